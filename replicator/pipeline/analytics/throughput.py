"""Messages and bytes over time, by cluster and topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.analytics.facts import messages_only


def throughput(rows: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Return ``messages``, ``entries``, ``bytes`` and rates for each cluster, topic, way and bucket of time.

    ``bucket`` is the start of a bucket; a message, also a copy, counts in that of its ``publish_time``. ``way`` is
    ``published`` if the message was published in that cluster, else ``copied``. Bytes are of payloads. A bucket without
    messages has no row; messages without a publish time are left out.
    """
    assert bucket_seconds > 0, bucket_seconds
    return (
        messages_only(rows)
        .where(F.col("publish_time").isNotNull())
        .groupBy(
            "cluster",
            "topic",
            F.when(F.col("origin") == F.col("cluster"), "published").otherwise("copied").alias("way"),
            bucket_of("publish_time", bucket_seconds).alias("bucket"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.count(F.when(F.col("batch_index") == 0, 1)).alias("entries"),
            F.sum("payload_bytes").alias("bytes"),
        )
        .withColumn("messages_per_second", F.col("messages") / bucket_seconds)
        .withColumn("bytes_per_second", F.col("bytes") / bucket_seconds)
    )


def bucket_of(time: str, bucket_seconds: int) -> Column:
    """Return the start of the bucket that a time lies in. Buckets count from 1970, so that those of all reports line
    up."""
    seconds = F.unix_seconds(time)
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(bucket_seconds)))
