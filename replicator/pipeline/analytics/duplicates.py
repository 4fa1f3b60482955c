"""Messages that were published more than once, by producer.

A producer numbers its messages. One that sends again after it lost an answer, without deduplication, has two messages
of one number in the log. If the same number has other content, the producer began anew. Messages that one *cluster*
stored twice are another matter: ``replicator verify`` finds them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.analytics.facts import messages_only


def repeated_sequence_ids(rows: DataFrame) -> DataFrame:
    """Count, for each cluster, topic, origin and producer, the ``messages`` and those ``repeated`` by sequence id.

    A message is repeated if an earlier one has the same producer and sequence id: n of one id are n - 1 repeated.
    ``same_content`` counts repeated messages whose key and payload had that id before, ``repeated_ids`` the sequence
    ids that came more than once.
    """
    producer = ("cluster", "topic", "origin", "producer_name")
    by_content = (
        messages_only(rows).groupBy(*producer, "sequence_id", "key", "content_hash").agg(F.count("*").alias("n"))
    )
    by_id = by_content.groupBy(*producer, "sequence_id").agg(F.sum("n").alias("n"), F.count("*").alias("contents"))
    return by_id.groupBy(*producer).agg(
        F.sum("n").alias("messages"),
        F.sum(F.col("n") - 1).alias("repeated"),
        F.sum(F.col("n") - F.col("contents")).alias("same_content"),
        F.count(F.when(F.col("n") > 1, 1)).alias("repeated_ids"),
    )


def repeated_contents(rows: DataFrame, window_seconds: int = 60) -> DataFrame:
    """Count, for each cluster, topic and producer, the ``messages`` and those ``repeated`` by key and payload.

    A message is repeated if one of equal key and payload, by any producer, was published at most ``window_seconds``
    before it. Messages without a publish time are left out.
    """
    assert window_seconds > 0, window_seconds
    same = Window.partitionBy("cluster", "topic", "key", "content_hash").orderBy(
        "publish_time", "ledger", "entry", "batch_index"
    )
    before = F.unix_micros(F.lag("publish_time").over(same))
    repeated = F.unix_micros("publish_time") - before <= window_seconds * 1_000_000
    return (
        messages_only(rows)
        .where(F.col("publish_time").isNotNull())
        .withColumn("again", F.coalesce(repeated, F.lit(False)))
        .groupBy("cluster", "topic", "producer_name")
        .agg(F.count("*").alias("messages"), F.count(F.when(F.col("again"), 1)).alias("repeated"))
    )
