"""Topics in Spark: source, sink, live copy, backfill and verify. Imports no Spark by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make ``format("replicator")`` known to a session, and let it have the filters of batch queries."""
    from replicator.pipeline.source.source import ReplicatorDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # Spark refuses sources with filters without it
    spark.dataSource.register(ReplicatorDataSource)
