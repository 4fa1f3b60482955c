"""Topics in Spark: source, sink, live copy, backfill and verify. Importing it does not import Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register ``format("replicator")`` with a session, and let Spark push filters of batch queries down to it."""
    from replicator.pipeline.source.source import ReplicatorDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # Spark refuses sources with filters without it
    spark.dataSource.register(ReplicatorDataSource)
