"""The topology: which clusters there are, where their workers serve, and which way the links go.

This is the face of the folder: the rest of the service imports these names from here.
"""

from __future__ import annotations

from replicator.topology.database_file import database_of
from replicator.topology.fields import (
    SPARK,
    Cluster,
    MetricsSettings,
    PipelineSettings,
    PolicySettings,
    StoreSettings,
    SyncSettings,
    WatchdogSettings,
)
from replicator.topology.links import Link
from replicator.topology.reader import TOPOLOGY_FILE_BYTES_MAX, load_topology
from replicator.topology.scalars import EMBEDDED, format_size, mask_password, parse_size, rounded_size
from replicator.topology.values import PROBLEMS_SHOWN_MAX, Topology, TopologyError, default_topology, dump

__all__ = [
    "EMBEDDED",
    "PROBLEMS_SHOWN_MAX",
    "SPARK",
    "TOPOLOGY_FILE_BYTES_MAX",
    "Cluster",
    "Link",
    "MetricsSettings",
    "PipelineSettings",
    "PolicySettings",
    "StoreSettings",
    "SyncSettings",
    "Topology",
    "TopologyError",
    "WatchdogSettings",
    "database_of",
    "default_topology",
    "dump",
    "format_size",
    "load_topology",
    "mask_password",
    "parse_size",
    "rounded_size",
]
