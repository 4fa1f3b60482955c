"""Errors of the state-sync protocol. Each names the thing that was wrong and, where there is one, the remedy."""

from __future__ import annotations


class SnapshotsError(Exception):
    """Base of every error raised by this package."""


class InvalidPosition(SnapshotsError):
    """A position that is not ``ledger:entry``."""

    def __init__(self, text: str) -> None:
        super().__init__(f"not a position: {text[:60]!r} (expected ledger:entry, for example 12:0)")


class MarkerCorrupt(SnapshotsError):
    """A marker whose payload is not the message that its type says."""


class ExtentsCorrupt(SnapshotsError):
    """Packed extents that are not what :meth:`snapshots.extents.ExtentTable.pack` gives."""
