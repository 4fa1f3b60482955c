"""Facts of each message for analyses: its place and time, sizes and hashes. Payloads are not passed on."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

READ_COLUMNS: Final = (
    "cluster string, topic string, ledger bigint, entry bigint, batch_index int, batch_size int, kind string, "
    "origin string, key string, publish_time timestamp, producer_name string, sequence_id bigint, payload binary"
)
"""Columns of the ``replicator`` source that :func:`facts` needs. Used as its ``schema``, they keep Spark from reading
others."""

FACTS: Final = (
    "cluster",
    "topic",
    "ledger",
    "entry",
    "batch_index",
    "batch_size",
    "kind",
    "origin",
    "key",
    "publish_time",
    "producer_name",
    "sequence_id",
    "payload_bytes",
    "content_hash",
)
"""Columns of the table that every analysis takes."""


def facts(messages: DataFrame) -> DataFrame:
    """Return the columns :data:`FACTS` of a table of the ``replicator`` source: a hundred bytes a row, whatever its
    payload.

    ``payload_bytes`` is the size of the payload as its producer made it, 0 for a tombstone; ``content_hash`` is equal
    for messages of equal payload. ``persist`` the result if several analyses use it.
    """
    content_hash = F.xxhash64("payload", F.col("payload").isNull())
    return messages.select(
        *FACTS[:-2],
        F.coalesce(F.octet_length("payload"), F.lit(0)).cast("bigint").alias("payload_bytes"),
        content_hash.alias("content_hash"),
    )


def messages_only(rows: DataFrame) -> DataFrame:
    """Return the rows without markers, which are for workers."""
    return rows.where(F.col("kind") == "message")
