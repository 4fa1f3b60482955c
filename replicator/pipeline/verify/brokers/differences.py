"""What is wrong in one copy of a topic: counted, with examples, and row by row for ``--parquet``. Pure.

Rows are made when they are asked for, run by run, from the columns of the logs that were compared: a topic of which
millions of entries are missing has no more in memory than those columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s
from replicator.pipeline.verify.comparison.rows import Found


@dataclass(frozen=True, slots=True)
class Where:
    """Which entries a difference is of: ``rows`` of a ``log``, in the order in which they are told."""

    log: EntryLog
    rows: Int64s
    text: Callable[[int, int], str]
    """What a run of them is called, by its begin and end in ``rows``."""
    other: str | None = None
    """The copy whose log it is; None if it is the one that is wrong."""
    subscription: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Entries of one topic with one fault in one copy; ``messages`` are those in them."""

    kind: str
    copy: str
    entries: int
    messages: int
    examples: tuple[str, ...]
    where: Where | None = None
    """None where it is of no entries."""

    def rows(self, topic: str) -> Iterator[Found]:
        """One for each run of entries that follow one another."""
        if self.where is None:
            yield Found(self.kind, topic, self.messages, cluster=self.copy, detail="; ".join(self.examples))
            return
        log, rows = self.where.log, self.where.rows
        counted = log.messages[rows].astype(np.int64) if self.kind != "reordered" else np.ones(len(rows), np.int64)
        for start, stop in runs(log, rows):
            first, last = int(rows[start]), int(rows[stop - 1])
            life = log.lives[int(log.life[first])]
            yield Found(
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
    """Begins and ends, in ``rows``, of entries of one life that follow one another."""
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
    """As the column of 64 bits has it, here and in the rows of logs."""
    return incarnation - 2**64 if incarnation >= 2**63 else incarnation
