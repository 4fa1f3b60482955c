"""Keys by volume, and their load on the consumers of Key_Shared subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.engine.subscriptions.key_shared.hashing import NON_KEY, key_hash
from replicator.pipeline.analytics.assignments import Assignment
from replicator.pipeline.analytics.facts import messages_only
from replicator.pipeline.spark.session import without_pandas_warning

NOBODY: Final = "(nobody)"
"""Consumer name for keys whose hash no consumer has."""

_LOADS: Final = (
    "cluster string, topic string, subscription string, consumer string, keys bigint, messages bigint, bytes bigint"
)


def key_volumes(rows: DataFrame, keys_max: int = 100) -> DataFrame:
    """Return the heaviest ``keys_max`` keys of each cluster and topic, by messages: ``messages``, ``bytes``, ``share``.

    ``share`` is of the topic's messages, ``rank`` counts from 1. A null ``key`` stands for all messages without one.
    """
    assert keys_max > 0, keys_max
    topic = Window.partitionBy("cluster", "topic")
    heaviest = topic.orderBy(F.desc("messages"), F.desc("bytes"), "key")
    return (
        _by_key(rows)
        .withColumn("share", F.col("messages") / F.sum("messages").over(topic))
        .withColumn("rank", F.row_number().over(heaviest))
        .where(F.col("rank") <= keys_max)
    )


def consumer_loads(rows: DataFrame, assignments: Iterable[Assignment]) -> DataFrame:
    """Return ``keys``, ``messages``, ``bytes``, ``share`` and ``skew`` for each consumer of each assignment.

    ``share`` is of the messages of the cluster's topic. ``skew`` is its ratio to an even share: 1 if all consumers have
    the same. A consumer without any key has a row too; keys that no consumer has count for :data:`NOBODY`.
    """
    by_topic: dict[tuple[str, str], list[Assignment]] = {}
    for assignment in assignments:
        by_topic.setdefault((assignment.cluster, assignment.topic), []).append(assignment)

    def loads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _loads_of(batch, by_topic)

    with without_pandas_warning():
        spread = _by_key(rows).mapInArrow(loads, _LOADS)
    idle = [
        (*topic, each.subscription, consumer, 0, 0, 0)
        for topic, several in by_topic.items()
        for each in several
        for consumer in each.consumers
    ]
    if idle:
        spread = spread.unionByName(rows.sparkSession.createDataFrame(idle, _LOADS))
    subscription = Window.partitionBy("cluster", "topic", "subscription")
    consumers = F.count(F.when(F.col("consumer") != NOBODY, 1)).over(subscription)
    messages = F.sum("messages").over(subscription)
    return (
        spread.groupBy("cluster", "topic", "subscription", "consumer")
        .agg(*(F.sum(figure).alias(figure) for figure in ("keys", "messages", "bytes")))
        .withColumn("share", F.when(messages > 0, F.col("messages") / messages).otherwise(0.0))
        .withColumn("skew", F.when(F.col("consumer") != NOBODY, F.col("share") * consumers))
    )


def _by_key(rows: DataFrame) -> DataFrame:
    return (
        messages_only(rows)
        .groupBy("cluster", "topic", "key")
        .agg(F.count("*").alias("messages"), F.sum("payload_bytes").alias("bytes"))
    )


def _loads_of(batch: pa.RecordBatch, by_topic: dict[tuple[str, str], list[Assignment]]) -> Iterator[pa.RecordBatch]:
    """Yield the loads of a batch of keys: one row for each consumer, not for each key."""
    clusters, topics = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("cluster", "topic"))
    messages, sizes = (batch.column(name).to_numpy() for name in ("messages", "bytes"))
    found = []
    for cluster, topic in set(zip(clusters.tolist(), topics.tolist(), strict=True)):
        several = by_topic.get((cluster, topic))
        if not several:
            continue
        here = np.flatnonzero((clusters == cluster) & (topics == topic))
        # One call for each distinct key, not for each message.
        keys = batch.column("key").take(pa.array(here)).to_pylist()
        hashes = np.array([key_hash(NON_KEY if key is None else key.encode()) for key in keys], dtype=np.int64)
        for assignment in several:
            owners = assignment.owners(hashes)
            names = (*assignment.consumers, NOBODY)  # the index of nobody is -1
            for owner in np.unique(owners).tolist():
                of_owner = here[owners == owner]
                found.append(
                    {
                        "cluster": cluster,
                        "topic": topic,
                        "subscription": assignment.subscription,
                        "consumer": names[owner],
                        "keys": len(of_owner),
                        "messages": int(messages[of_owner].sum()),
                        "bytes": int(sizes[of_owner].sum()),
                    }
                )
    if found:
        yield pa.RecordBatch.from_pylist(found)
