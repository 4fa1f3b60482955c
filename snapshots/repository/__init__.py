"""Repository: one cluster's part of the Postgres index. Invariant 9: it is only an index (docs/mapping.md).

Writes are upserts of whole batches, so writing something twice, late or again from the start does no harm.
"""

from __future__ import annotations

from snapshots.repository.audit import AuditEntry, AuditLog
from snapshots.repository.drills import DrillRun, DrillRuns
from snapshots.repository.extents import ExtentKey, Extents, SegmentBounds, segments_of
from snapshots.repository.failovers import FailoverEpoch, FailoverEpochs
from snapshots.repository.links import LinkState, LinkStates
from snapshots.repository.mappings import Mappings
from snapshots.repository.rows import Head, RepositoryUnavailable, RowsRefused, first_line
from snapshots.repository.states import SubscriptionState, SubscriptionStates

__all__ = [
    "AuditEntry",
    "DrillRun",
    "ExtentKey",
    "FailoverEpoch",
    "Head",
    "LinkState",
    "RepositoryUnavailable",
    "RowsRefused",
    "SegmentBounds",
    "SnapshotRepository",
    "SubscriptionState",
    "first_line",
    "segments_of",
]


class SnapshotRepository(Mappings, SubscriptionStates, Extents, LinkStates, FailoverEpochs, DrillRuns, AuditLog):
    """Reader and writer of the rows of ``cluster``.

    Every method raises :class:`RepositoryUnavailable`; those that write raise :class:`RowsRefused`.
    """
