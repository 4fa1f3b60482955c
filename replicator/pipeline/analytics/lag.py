"""Replication lag: bounds of the time until copies arrived, as far as the logs know it.

A log has the time at which a message was published at its origin, and no time of arrival. But its own cluster's entries
tell the time: workers write markers several times a second while a topic moves, and producers write messages. So

1. a copied entry behind an own entry of time t1 arrived at t1 or later: lag is *at least* t1 - published;
2. one before an own entry of time t2 arrived at t2 or earlier: lag is *at most* t2 - published.

The truth lies between. The distance of the bounds depends on how often the destination's own entries come. Times come
from two clusters' clocks, and those of messages from their producers' clocks: a difference of clocks is in the figures.
Entries after which the destination wrote nothing have no upper bound and are counted apart.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.analytics.throughput import bucket_of

PERCENTILES: Final = {"p50": 0.5, "p99": 0.99}


def replication_lag(rows: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Return the number of copied ``entries`` and their lags in ms, by pair of clusters, topic and bucket of publish
    time.

    ``origin`` and ``cluster`` are the pair. ``at_most_ms_p50``, ``…_p99`` and ``…_max`` are of the upper bounds, of the
    entries that have one (null if none has); ``at_least_ms_p50`` and so on of the lower bounds, 0 if none is known;
    ``unbounded`` counts entries without an upper bound.
    """
    assert bucket_seconds > 0, bucket_seconds
    return (
        _bounded(rows)
        .where((F.col("origin") != F.col("cluster")) & (F.col("kind") == "message"))
        .groupBy("origin", "cluster", "topic", bucket_of("publish_time", bucket_seconds).alias("bucket"))
        .agg(
            F.count("*").alias("entries"),
            F.count(F.when(F.col("at_most_ms").isNull(), 1)).alias("unbounded"),
            *_spread("at_most_ms"),
            *_spread("at_least_ms"),
        )
    )


def _bounded(rows: DataFrame) -> DataFrame:
    """Return one row for each entry, with the bounds of its lag."""
    entries = rows.where((F.col("batch_index") == 0) & F.col("publish_time").isNotNull()).select(
        "cluster", "topic", "ledger", "entry", "kind", "origin", "publish_time"
    )
    own_time = F.when(F.col("origin") == F.col("cluster"), F.col("publish_time"))
    log = Window.partitionBy("cluster", "topic")
    before = log.orderBy("ledger", "entry").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Sorted backwards instead of with a frame that looks ahead, which Spark would go through anew for each row.
    behind = log.orderBy(F.desc("ledger"), F.desc("entry")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return entries.withColumns(
        {
            # Producers' clocks differ: the latest of all before, and the earliest of all behind, are sound bounds
            # only if clocks agree; the nearest one is wrong by no more than its own clock.
            "at_least_ms": F.coalesce(_ms_since_publish(F.last(own_time, ignorenulls=True).over(before)), F.lit(0)),
            "at_most_ms": _ms_since_publish(F.last(own_time, ignorenulls=True).over(behind)),
        }
    )


def _ms_since_publish(time: Column) -> Column:
    """Return the ms from publish to ``time``, at least 0: clocks can make a lag negative. Null if ``time`` is null."""
    return F.when(time.isNotNull(), F.greatest(F.unix_millis(time) - F.unix_millis("publish_time"), F.lit(0)))


def _spread(name: str) -> list[Column]:
    figures = [F.percentile_approx(name, share).alias(f"{name}_{label}") for label, share in PERCENTILES.items()]
    return [*figures, F.max(name).alias(f"{name}_max")]
