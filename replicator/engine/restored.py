"""The mark of a store that was restored from a backup: which backup, and what became of the messages that it lacked.

A store with an unsettled mark is not served: other clusters may have messages of its log that it lost. Once new ones
are stored, the lost ones could not be put back (invariants 3 and 10). A failover that the store does not know of
would be ignored.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from replicator.engine.errors import StoreUnusable
from replicator.engine.lineage import PREDECESSORS_MAX
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HEAD

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
    """Return the mark of the last restore of ``store``, or None if the store was never restored."""
    return mark_of(store.meta(MARK))


def mark_of(row: Mapping[str, Any] | None) -> RestoredMark | None:
    """Return the mark that ``row`` of the table ``meta`` holds, or None if there is no row."""
    return None if row is None else RestoredMark(**{**row, "lost": tuple(row["lost"])})


def check_settled(data: Path, cluster: str, mark: RestoredMark | None) -> None:
    """Raise :class:`StoreUnusable` if the store was restored, and the other clusters were not asked for what it lost.

    ``mark`` is the store's mark, or None if the store was never restored.
    """
    if mark is not None and mark.settled_at_ms is None and not mark.backup:
        raise StoreUnusable(
            f"data directory {data}: a `replicator backup reclaim` has not come to its end, and what it has not taken "
            f"back yet would find no room any more. Run `replicator backup reclaim -f FILE --cluster {cluster}` again: "
            "it goes on where it was"
        )
    if mark is not None and mark.settled_at_ms is None:
        raise StoreUnusable(
            f"data directory {data} was restored from backup {mark.backup}, and the other clusters were not asked "
            f"for the messages that {cluster} lost: once new ones are stored, there is no room for these. Run "
            f"`replicator backup reclaim -f FILE --cluster {cluster}` first"
        )


def put_mark(store: Store, mark: RestoredMark) -> None:
    """Write the mark into a store of which no writer runs, and make it another store that names the one it was.

    Other clusters then tell what this store writes from what the one before it wrote, after the backup too.
    """
    before = [store.head["store_id"], *store.head.get("predecessors", ())]
    store.head |= {"store_id": uuid.uuid4().hex, "predecessors": before[:PREDECESSORS_MAX]}
    with store.env.begin(write=True, db=store.tables["meta"]) as txn:
        txn.put(HEAD.encode(), json.dumps(store.head).encode())
        txn.put(MARK.encode(), json.dumps(mark.as_json()).encode())
