"""What analyses read of each message: where and when, sizes and hashes. Payloads stay where they were read."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

READ_COLUMNS: Final = (
    "cluster string, topic string, ledger bigint, entry bigint, batch_index int, batch_size int, kind string, "
    "origin string, key string, publish_time timestamp, producer_name string, sequence_id bigint, payload binary"
)
"""The columns of the ``replicator`` source that :func:`facts` needs; as its ``schema`` the others are not read."""

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
"""Columns of what every analysis takes."""


def facts(messages: DataFrame) -> DataFrame:
    """The columns :data:`FACTS` of a table of the ``replicator`` source: a hundred bytes a row, whatever its payload.

    ``payload_bytes`` is the size of the payload as its producer made it, 0 for a tombstone; ``content_hash`` is equal
    for messages of equal payload. Worth to ``persist`` where several analyses follow.
    """
    content_hash = F.xxhash64("payload", F.col("payload").isNull())
    return messages.select(
        *FACTS[:-2],
        F.coalesce(F.octet_length("payload"), F.lit(0)).cast("bigint").alias("payload_bytes"),
        content_hash.alias("content_hash"),
    )


def messages_only(rows: DataFrame) -> DataFrame:
    """Without markers, which speak to workers."""
    return rows.where(F.col("kind") == "message")
