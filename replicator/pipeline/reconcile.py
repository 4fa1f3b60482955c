"""Comparing clusters message by message: the Spark side of verify. Nothing here collects messages.

1. Every message and marker has one identity everywhere: topic, origin, incarnation, origin position, batch index.
   :func:`identities` groups the rows of all clusters by it, into one row that says, for each cluster, how often it
   is there, where first, and which subscriptions have acknowledged it there; and whether the content is the same.
2. ``missing``, ``duplicated``, ``corrupted`` and ``ack_mismatch`` can be seen on such a row alone
   (:func:`row_faults`); they are sums.
3. ``reordered`` and ``mismapped`` need the order of each cluster's log. :func:`ordered` lays out each cluster's
   entries by their position there, with the mappings that point to that cluster between them. Then

   - an entry is reordered if the one of its origin before it has a higher origin position;
   - a mapping "local L, peer P, remote R" is wrong if some message in P's log up to R lies after L at home, or nowhere:
     if the running maximum of the positions at home, "nowhere" being higher than all, is past L where it stands.
     Markers are never consumed, so a mapping promises nothing of them.

Everything is sums, a grouping and two windows over one order, so that Spark spills where memory is short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.acks import AckedSets
from replicator.pipeline.ways import Pair, Ways
from snapshots.mapping import SnapshotMapping

IDENTITY: Final = (
    "topic",
    "kind",
    "marker_type",
    "origin",
    "incarnation",
    "origin_ledger",
    "origin_entry",
    "batch_index",
)
READ_COLUMNS: Final = (
    "cluster string, topic string, ledger bigint, entry bigint, batch_index int, kind string, origin string, "
    "incarnation bigint, origin_ledger bigint, origin_entry bigint, marker_type int, key string, "
    "properties map<string,string>, payload binary"
)
"""The columns of the source that a comparison needs."""

_NOWHERE: Final = 2**63 - 1
_MAPPING_ROWS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("at", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("home", pa.int32()),
        ("local_ledger", pa.int64()),
        ("local_entry", pa.int64()),
        ("snapshot_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is compared. A cluster's number, in column names and below, is its index in ``clusters``."""

    clusters: tuple[str, ...]
    ways: tuple[Ways, ...]
    """Different ones: of as many topics as there may be, a few."""
    ways_of: Mapping[str, int]
    """By topic, the index of its ways."""
    acked: Mapping[str, AckedSets]
    """The acknowledgements of each cluster."""

    @property
    def words(self) -> int:
        return max((sets.words for sets in self.acked.values()), default=0)

    def messages(self) -> Iterable[tuple[int, int, Column]]:
        """Origin and another cluster, and the condition that the origin's messages of a row's topic get there."""
        return self._pairs([ways.messages for ways in self.ways])

    def acks(self) -> Iterable[tuple[int, int, Column]]:
        """Source and destination of links, and the condition that one carries a row's topic."""
        return self._pairs([ways.acks for ways in self.ways])

    def _pairs(self, ways: Sequence[Collection[Pair]]) -> Iterable[tuple[int, int, Column]]:
        for pair in sorted(frozenset[Pair]().union(*ways)):
            having = [number for number, pairs in enumerate(ways) if pair in pairs]
            everywhere = len(having) == len(ways)
            condition = F.lit(True) if everywhere else F.col("ways").isin(having)
            yield self.clusters.index(pair[0]), self.clusters.index(pair[1]), condition


def identities(messages: DataFrame, scope: Scope) -> DataFrame:
    """One row for each identity: its columns, ``hash_min``, ``hash_max``, and for each cluster i

    ``count_i``, ``ledger_i`` and ``entry_i`` of its first occurrence (null if it is not there), ``acked_i_w``.
    """
    content_hash = F.xxhash64(
        "payload",
        # A null leaves the hash as it was, so that there is one is hashed too.
        F.col("payload").isNull(),
        "key",
        F.col("key").isNull(),
        F.map_entries("properties"),
    )
    rows = messages.withColumn("hash", content_hash)
    for word in range(scope.words):
        evaluate = _acked_word(scope, word)
        rows = rows.withColumn(f"acked_{word}", evaluate("cluster", "topic", "ledger", "entry", "batch_index"))
    aggregates = [F.min("hash").alias("hash_min"), F.max("hash").alias("hash_max")]
    for number, cluster in enumerate(scope.clusters):
        here = F.col("cluster") == cluster
        aggregates.append(F.count(F.when(here, 1)).alias(f"count_{number}"))
        aggregates.append(F.min(F.when(here, F.struct("ledger", "entry"))).alias(f"first_{number}"))
        for word in range(scope.words):
            aggregates.append(F.bit_or(F.when(here, F.col(f"acked_{word}"))).alias(f"acked_{number}_{word}"))
    grouped = rows.groupBy(*IDENTITY).agg(*aggregates).withColumn("ways", _ways_column(scope))
    for number in range(len(scope.clusters)):
        grouped = (
            grouped.withColumn(f"ledger_{number}", F.col(f"first_{number}.ledger"))
            .withColumn(f"entry_{number}", F.col(f"first_{number}.entry"))
            .drop(f"first_{number}")
        )
    return grouped


def row_faults(scope: Scope) -> dict[str, Column]:
    """For each fault that one identity row shows, how many it shows."""

    def copied(origin: int) -> Column:
        return (F.col("kind") != "local_marker") & (F.col("origin") == scope.clusters[origin])

    return {
        "missing": _sum(
            F.when(carried & copied(origin) & (_is_at(origin) != _is_at(other)), 1)
            for origin, other, carried in scope.messages()
        ),
        "duplicated": _sum(F.when(F.col(f"count_{number}") > 1, 1) for number in range(len(scope.clusters))),
        "corrupted": _sum([F.when(F.col("hash_min") != F.col("hash_max"), 1)]),
        "ack_mismatch": _sum(
            F.when(
                carried & _is_at(source) & _is_at(destination),
                F.bit_count(_only_acked_at(source, destination, word)),
            )
            for source, destination, carried in scope.acks()
            for word in range(scope.words)
        ),
    }


def _only_acked_at(source: int, destination: int, word: int) -> Column:
    """The bits of the subscriptions that acknowledged a message at a link's source and not at its destination.

    A link carries acknowledgements one way only, as it carries messages. With a link each way both differences count.
    """
    at_source, at_destination = F.col(f"acked_{source}_{word}"), F.col(f"acked_{destination}_{word}")
    return F.when(F.col("kind") == "message", at_source.bitwiseAND(F.bitwise_not(at_destination))).otherwise(F.lit(0))


def ordered(
    spark: SparkSession, compared: DataFrame, mappings: Iterable[tuple[str, str, SnapshotMapping]], scope: Scope
) -> DataFrame:
    """Each cluster's entries and the mappings that point to it, in its order, with ``reordered`` and ``mismapped``.

    ``mappings`` are given with their cluster and topic.
    """
    clusters = range(len(scope.clusters))
    entries = compared.where((F.col("batch_index") == 0) & (F.col("kind") != "local_marker"))
    rows = _mapping_rows(spark, mappings, scope)
    for at in clusters:
        positions = [
            F.when(
                F.col("kind") == "message",
                F.struct(
                    F.coalesce(f"ledger_{number}", F.lit(_NOWHERE)).alias("ledger"),
                    F.coalesce(f"entry_{number}", F.lit(_NOWHERE)).alias("entry"),
                ),
            ).alias(f"position_{number}")
            for number in clusters
        ]
        here = entries.where(_is_at(at)).select(
            "topic",
            F.lit(at).alias("at"),
            F.col(f"ledger_{at}").alias("ledger"),
            F.col(f"entry_{at}").alias("entry"),
            "origin",
            "incarnation",
            F.struct("origin_ledger", "origin_entry").alias("origin_position"),
            *positions,
        )
        rows = rows.unionByName(here, allowMissingColumns=True)

    log = Window.partitionBy("topic", "at")
    # A mapping stands after the entry at its remote position: that one is part of its promise.
    upto_here = log.orderBy("ledger", "entry", F.col("home").isNotNull()).rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    of_origin = Window.partitionBy("topic", "at", "origin", "incarnation").orderBy("ledger", "entry")
    reached = F.coalesce(
        *(F.when(F.col("home") == number, F.max(f"position_{number}").over(upto_here)) for number in clusters)
    )
    promised = F.struct(F.col("local_ledger").alias("ledger"), F.col("local_entry").alias("entry"))
    return (
        rows.withColumn("mismapped", F.coalesce((reached > promised).cast("int"), F.lit(0)))
        .withColumn("previous", F.lag("origin_position").over(of_origin))
        .withColumn("reordered", F.coalesce((F.col("previous") > F.col("origin_position")).cast("int"), F.lit(0)))
    )


def _mapping_rows(spark: SparkSession, mappings: Iterable[tuple[str, str, SnapshotMapping]], scope: Scope) -> DataFrame:
    rows = [
        {
            "topic": topic,
            "at": scope.clusters.index(mapping.peer),
            "ledger": mapping.remote.ledger,
            "entry": mapping.remote.entry,
            "home": scope.clusters.index(cluster),
            "local_ledger": mapping.local.ledger,
            "local_entry": mapping.local.entry,
            "snapshot_id": mapping.snapshot_id,
        }
        for cluster, topic, mapping in mappings
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_MAPPING_ROWS))


def _acked_word(scope: Scope, word: int) -> Callable[..., Column]:
    """A function for Spark that evaluates one word of acknowledgement bits for rows of any cluster and topic."""
    acked = dict(scope.acked)

    def evaluate(
        clusters: pa.Array, topics: pa.Array, ledgers: pa.Array, entries: pa.Array, indexes: pa.Array
    ) -> pa.Array:
        of_clusters = clusters.to_numpy(zero_copy_only=False)
        columns: list[Any] = [topics.to_numpy(zero_copy_only=False)]
        columns += [column.to_numpy() for column in (ledgers, entries, indexes)]
        bits = np.zeros(len(of_clusters), dtype=np.int64)
        for cluster in set(of_clusters.tolist()):
            here = np.flatnonzero(of_clusters == cluster)
            bits[here] = acked[cluster].word(word, *(column[here] for column in columns))
        return pa.array(bits)

    function: Callable[..., Column] = F.arrow_udf(evaluate, "bigint")
    return function


def _ways_column(scope: Scope) -> Column:
    """The index of the ways of a row's topic."""
    if len(scope.ways) == 1:
        return F.lit(0)
    ways_of = dict(scope.ways_of)

    def look_up(topics: pa.Array) -> pa.Array:
        return pa.array([ways_of[topic] for topic in topics.to_pylist()], pa.int32())

    return F.arrow_udf(look_up, "int")("topic")


def _is_at(number: int) -> Column:
    return F.col(f"count_{number}") > 0


def _sum(columns: Iterable[Column]) -> Column:
    """The sum of columns, null counting as 0."""
    return reduce(lambda total, column: total + F.coalesce(column, F.lit(0)), columns, F.lit(0))
