"""Analyses of topics on Spark: functions from DataFrame to DataFrame, and the report that runs them all.

Begin with :func:`~replicator.pipeline.analytics.facts.facts` of a table of the ``replicator`` source; docs/reports.md
explains each figure. Spark aggregates everything: no analysis brings messages to the driver.
"""

from replicator.pipeline.analytics.duplicates import repeated_contents, repeated_sequence_ids
from replicator.pipeline.analytics.facts import FACTS, READ_COLUMNS, facts
from replicator.pipeline.analytics.keys import consumer_loads, key_volumes
from replicator.pipeline.analytics.lag import replication_lag
from replicator.pipeline.analytics.sizes import size_histogram
from replicator.pipeline.analytics.throughput import throughput

__all__ = [
    "FACTS",
    "READ_COLUMNS",
    "consumer_loads",
    "facts",
    "key_volumes",
    "repeated_contents",
    "repeated_sequence_ids",
    "replication_lag",
    "size_histogram",
    "throughput",
]
