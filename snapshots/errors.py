"""Errors of the state-sync protocol. Each names the wrong value and, if there is one, the remedy."""

from __future__ import annotations


class SnapshotsError(Exception):
    """Base of this package's own errors."""


class InvalidPosition(SnapshotsError):
    """A text is not a position of the form ``ledger:entry``."""

    def __init__(self, text: str) -> None:
        super().__init__(f"not a position: {text[:60]!r} (expected ledger:entry, for example 12:0)")


class MarkerCorrupt(SnapshotsError):
    """A marker's payload is not the message that its type says."""


class ExtentsCorrupt(SnapshotsError):
    """Bytes are not packed extents of :meth:`snapshots.extents.ExtentTable.pack`."""
