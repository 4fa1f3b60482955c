"""Checks for packages that the workers of a topology need and a plain installation does not have."""

from __future__ import annotations

from replicator.running.extras import require_extra
from replicator.topology.fields import SPARK
from replicator.topology.values import Topology


def check_extras(topology: Topology, *clusters: str) -> None:
    """Raise :class:`~replicator.running.extras.ExtraMissing` if a worker of ``clusters`` needs Spark or tracing, and
    the package for it is not installed.
    """
    if topology.traces.endpoint is not None:
        require_extra("traces", "traces.endpoint")
    if topology.pipeline.driver != "worker":
        return
    for link in topology.links:
        if link.source in clusters and topology.engine_of(link) == SPARK:
            require_extra(SPARK, f"the link {link.key}, which Spark copies unless pipeline.engine is embedded,")
