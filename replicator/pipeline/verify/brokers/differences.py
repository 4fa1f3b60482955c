"""Faults in one copy of a topic: counted, with examples, and row by row for ``--parquet``. Pure.

Rows are made when they are asked for, run by run, from the columns of the compared logs: a topic with millions of
missing entries has no more in memory than those columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s
from replicator.pipeline.verify.comparison.rows import FindingRow


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Entries of a difference: ``rows`` of a ``log``, in the order of the report."""

    log: EntryLog
    rows: Int64s
    text: Callable[[int, int], str]
    """Function that describes a run of entries, given its begin and end in ``rows``."""
    other: str | None = None
    """Name of the copy with this log; None if it is the faulty copy."""
    subscription: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Entries of one topic with one fault in one copy; ``messages`` counts those in them."""

    kind: str
    copy: str
    entries: int
    messages: int
    examples: tuple[str, ...]
    where: EntryLocation | None = None
    """Entries of the difference; None if it is not about entries."""

    def rows(self, topic: str) -> Iterator[FindingRow]:
        """Yield one row for each run of consecutive entries."""
        if self.where is None:
            yield FindingRow(self.kind, topic, self.messages, cluster=self.copy, detail="; ".join(self.examples))
            return
        log, rows = self.where.log, self.where.rows
        counted = log.messages[rows].astype(np.int64) if self.kind != "reordered" else np.ones(len(rows), np.int64)
        for start, stop in runs(log, rows):
            first, last = int(rows[start]), int(rows[stop - 1])
            life = log.lives[int(log.life[first])]
            yield FindingRow(
                self.kind,
                topic,
                int(counted[start:stop].sum()),
                cluster=self.copy,
                other=self.where.other,
                origin=life.origin,
                incarnation=_signed(life.incarnation),
                origin_ledger=int(log.origin_ledger[first]),
                origin_first=int(log.origin_entry[first]),
                origin_last=int(log.origin_entry[last]),
                ledger=int(log.ledger[first]),
                entry=int(log.entry[first]),
                subscription=self.where.subscription,
                detail=self.where.text(start, stop),
            )


def runs(log: EntryLog, rows: Int64s) -> Iterator[tuple[int, int]]:
    """Yield begins and ends, in ``rows``, of consecutive entries of one life."""
    if not len(rows):
        return
    follows = (
        (np.diff(log.life[rows]) == 0)
        & (np.diff(log.origin_ledger[rows]) == 0)
        & (np.diff(log.origin_entry[rows]) == 1)
    )
    breaks = np.flatnonzero(~follows) + 1
    start = 0
    for stop in breaks:
        yield start, int(stop)
        start = int(stop)
    yield start, len(rows)


def identity_at(log: EntryLog, row: int) -> str:
    return f"{log.lives[int(log.life[row])].origin} {int(log.origin_ledger[row])}:{int(log.origin_entry[row])}"


def _signed(incarnation: int) -> int:
    """Return an incarnation as a signed column of 64 bits has it, here and in the rows of logs."""
    return incarnation - 2**64 if incarnation >= 2**63 else incarnation
