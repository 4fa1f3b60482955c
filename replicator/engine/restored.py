"""The mark of a store that was restored from a backup: from which, and what became of what it lost.

A store that bears an unsettled mark is not served: its log may be behind what other clusters have of it. Once it went
on, what it lost could not be put back (invariants 3 and 10), and a failover that it does not know of would be passed
over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from replicator.engine.log.store import Store

MARK: Final = "restored"
"""Under this name in the table ``meta``."""


@dataclass(frozen=True, slots=True)
class RestoredMark:
    """What is known of the last restore of a store."""

    restore_id: str
    """By which other clusters tell that it was restored since they last spoke to it."""
    backup: str
    made_at_ms: int
    restored_at_ms: int
    settled_at_ms: int | None = None
    """When the other clusters had been asked what it lost; None while a worker may not start."""
    reclaimed_messages: int = 0
    reclaimed_topics: int = 0
    lost: tuple[str, ...] = ()
    """What is known to be lost for good, or was not asked for, in words."""

    def settled(self, at_ms: int, *, messages: int, topics: int, lost: tuple[str, ...]) -> RestoredMark:
        return replace(self, settled_at_ms=at_ms, reclaimed_messages=messages, reclaimed_topics=topics, lost=lost)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lost": list(self.lost)}


def restored_mark(store: Store) -> RestoredMark | None:
    """None for a store that was never restored."""
    row: Mapping[str, Any] | None = store.meta(MARK)
    return None if row is None else RestoredMark(**{**row, "lost": tuple(row["lost"])})


def put_mark(store: Store, mark: RestoredMark) -> None:
    """Write it; for a store of which no writer runs."""
    with store.env.begin(write=True, db=store.tables["meta"]) as txn:
        txn.put(MARK.encode(), json.dumps(mark.as_json()).encode())
