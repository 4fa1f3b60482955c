"""Sizes of messages and batches, in classes of powers of two."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.analytics.facts import messages_only

MEASURES: Final = {
    "message_bytes": "payload of one message, in bytes",
    "batch_messages": "messages in one entry",
    "batch_bytes": "payloads of one entry, in bytes",
}


def size_histogram(rows: DataFrame) -> DataFrame:
    """Return ``count`` and ``total`` for each cluster, topic, ``measure`` (of :data:`MEASURES`) and class of sizes.

    A class holds the sizes from ``low`` to ``high``, both inclusive: 0, 1, 2–3, 4–7, 8–15 and so on. ``count`` is of
    messages for the first measure and of entries for the others; ``total`` is the sum of their sizes.
    """
    messages = messages_only(rows)
    entries = messages.groupBy("cluster", "topic", "ledger", "entry").agg(
        F.count("*").alias("batch_messages"), F.sum("payload_bytes").alias("batch_bytes")
    )
    return (
        _histogram(messages, "message_bytes", F.col("payload_bytes"))
        .unionByName(_histogram(entries, "batch_messages", F.col("batch_messages")))
        .unionByName(_histogram(entries, "batch_bytes", F.col("batch_bytes")))
    )


def _histogram(rows: DataFrame, measure: str, size: Column) -> DataFrame:
    # The length in binary, because a logarithm of 2**n is not always n.
    digits = F.when(size == 0, 0).otherwise(F.length(F.bin(size)))
    return (
        rows.groupBy("cluster", "topic", digits.alias("digits"))
        .agg(F.count("*").alias("count"), F.sum(size).alias("total"))
        .select(
            "cluster",
            "topic",
            F.lit(measure).alias("measure"),
            F.when(F.col("digits") == 0, 0).otherwise(F.pow(2.0, F.col("digits") - 1)).cast("bigint").alias("low"),
            (F.pow(2.0, F.col("digits")) - 1).cast("bigint").alias("high"),
            "count",
            "total",
        )
    )
