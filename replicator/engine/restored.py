"""Mark of a store that was restored from a backup, or whose reclaim is not finished. The mark is a row in the store.

It names the backup, and what became of the messages that the backup lacked.

A mark is *settled* when a reclaim is finished. A worker does not start on a store whose mark is not settled, for two
reasons. Other clusters may have messages that the store lost. Once new messages are stored, the lost ones cannot be put
back at their positions (invariants 3 and 10). And the worker would ignore a failover that the store does not know of.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from replicator.engine.errors import StoreUnusable
from replicator.engine.lineage import PREDECESSORS_MAX
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HEAD
from replicator.engine.topic import Topic

MARK: Final = "restored"
"""Name of the row in the table ``meta`` that has the mark."""
BESIDE: Final = "restored beside"
"""Name of a row in the table ``meta``: the newest backups of all clusters at the destination, in the order in which to
restore clusters that were lost together. Older versions ignore the row."""
TAKEN_BACK: Final = "taken back upto"
"""Name of the row in the table ``meta`` that :func:`taken_back_row` makes. Older versions ignore the row."""


@dataclass(frozen=True, slots=True)
class RestoredMark:
    """Mark of a store: its last restore from a backup, and the reclaim after that."""

    restore_id: str
    """Changes with each restore, and with a reclaim of a store whose mark is settled. By this id other clusters notice
    that the store was restored since they last spoke to it."""
    backup: str
    """Id of the backup. Empty if the store was not restored, and only a reclaim was run."""
    made_at_ms: int
    restored_at_ms: int
    settled_at_ms: int | None = None
    """Time at which the reclaim was finished. None until then: the worker may not start."""
    reclaimed_messages: int = 0
    reclaimed_topics: int = 0
    lost: tuple[str, ...] = ()
    """Messages that are known to be lost for good, or whose cluster was not asked, in words."""

    def settled(self, at_ms: int, *, messages: int, topics: int, lost: tuple[str, ...]) -> RestoredMark:
        return replace(self, settled_at_ms=at_ms, reclaimed_messages=messages, reclaimed_topics=topics, lost=lost)

    def in_words(self) -> str:
        """Return what the mark says of its store, for the log of a worker. Return an empty text if that is nothing."""
        if self.backup:
            return "this store was restored from a backup"
        if self.reclaimed_messages:
            return "messages of this store were taken back from other clusters"
        return "a reclaim of this store named losses" if self.lost else ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lost": list(self.lost)}


def restored_mark(store: Store) -> RestoredMark | None:
    """Return the mark of ``store``, or None if it has none."""
    return mark_of(store.meta(MARK))


def mark_of(row: Mapping[str, Any] | None) -> RestoredMark | None:
    """Return the mark in ``row`` of the table ``meta``, or None if there is no row."""
    return None if row is None else RestoredMark(**{**row, "lost": tuple(row["lost"])})


@dataclass(frozen=True, slots=True)
class SiblingBackup:
    """One of the backups that lay at the destination when a store was restored: the newest backup of its cluster."""

    cluster: str
    backup: str
    made_at_ms: int

    def __str__(self) -> str:
        made_at = datetime.fromtimestamp(self.made_at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        return f"backup {self.backup} of {self.cluster}, made at {made_at}"


def beside_of(rows: Sequence[Mapping[str, Any]] | None) -> list[SiblingBackup]:
    """Return the backups that the row :data:`BESIDE` lists, in the order in which to restore them. Return none without
    a row."""
    return [SiblingBackup(row["cluster"], row["backup"], row["made_at_ms"]) for row in rows or ()]


def first_restored(cluster: str, beside: Sequence[SiblingBackup]) -> list[SiblingBackup]:
    """Return the backups of other clusters that must be restored before the backup of ``cluster``, in order."""
    names = [each.cluster for each in beside]
    return list(beside[: names.index(cluster)]) if cluster in names else []


def order_advice(cluster: str, beside: Sequence[SiblingBackup]) -> str:
    """Return advice for the operator of ``cluster``: in which order to restore clusters that were lost together."""
    first = first_restored(cluster, beside)
    rest = [each.cluster for each in beside if each.cluster != cluster and each not in first]
    reclaim = f"run `replicator backup reclaim -f FILE --cluster {cluster}"
    if first:
        names = ", then ".join(each.cluster for each in first)
        return (
            f"{'; '.join(map(str, first))}: may have messages of {cluster} that {cluster}'s own backup lacks. So if "
            f"{' and '.join(each.cluster for each in first)} cannot be started because they are lost too, restore them "
            f"first ({names}), each with --without for every cluster that does not run yet, and start them. "
            f"Then {reclaim}`"
        )
    if rest:
        without = "".join(f" --without {each}" for each in rest)
        return (
            f"No other backup has messages of {cluster} that its own lacks. So if {' and '.join(rest)} cannot be "
            f"started because they are lost too, {cluster} comes first: {reclaim}{without}`, start {cluster}, and then "
            f"restore {', then '.join(rest)}"
        )
    return (
        "If clusters that do not answer are lost too, restore the one with the newest backup first, with --without for "
        "each of the others, and start it; then the next one (docs/backup.md)"
    )


def taken_back_row(topics: Iterable[Topic], cluster: str) -> dict[str, Any]:
    """Return, by topic, its incarnation and its newest message of ``cluster`` itself.

    If messages have just come back to a new store, all that the cluster confirmed after these positions is lost.
    """
    return {
        topic.name: [topic.incarnation, str(newest)]
        for topic in topics
        if (newest := topic.origins.message_vector().get(cluster)) is not None
    }


def taken_back_of(rows: Mapping[str, Any] | None, topic: Topic) -> dict[str, str]:
    """Return the field ``taken_back`` for the status of ``topic``: its newest own message that came back.

    Return an empty dict for a topic of which nothing came back. ``rows`` is the stored value of :data:`TAKEN_BACK`, by
    topic.
    """
    incarnation, newest = (rows or {}).get(topic.name, (None, ""))
    return {"taken_back": newest} if incarnation == topic.incarnation else {}


def check_settled(
    data: Path, cluster: str, mark: RestoredMark | None, beside: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Raise :class:`StoreUnusable` if the store's ``mark`` is not settled: a reclaim must be run first.

    ``mark`` is None if the store was never restored. ``beside`` is the row :data:`BESIDE`.
    """
    if mark is not None and mark.settled_at_ms is None and not mark.backup:
        raise StoreUnusable(
            f"data directory {data}: a `replicator backup reclaim` has not finished, and messages that it has not "
            "taken back yet could not be put back once new ones are stored. Run `replicator backup reclaim -f FILE "
            f"--cluster {cluster}` again: it goes on where it was"
        )
    if mark is not None and mark.settled_at_ms is None:
        raise StoreUnusable(
            f"data directory {data} was restored from backup {mark.backup}, and the other clusters were not asked for "
            f"the messages that {cluster} lost: once new messages are stored, the lost ones cannot be put back. Run "
            f"`replicator backup reclaim -f FILE --cluster {cluster}` first. {order_advice(cluster, beside_of(beside))}"
        )


def put_mark(store: Store, mark: RestoredMark, beside: Sequence[SiblingBackup] = ()) -> None:
    """Write the mark into a restored store, and give the store a new id. The old id becomes its first predecessor.

    No writer may run on the store. By the new id, other clusters distinguish what this store writes from what the store
    before it wrote after the backup was made.
    """
    before = [store.head["store_id"], *store.head.get("predecessors", ())]
    store.head |= {"store_id": uuid.uuid4().hex, "predecessors": before[:PREDECESSORS_MAX]}
    with store.env.begin(write=True, db=store.tables["meta"]) as txn:
        txn.put(HEAD.encode(), json.dumps(store.head).encode())
        txn.put(MARK.encode(), json.dumps(mark.as_json()).encode())
        txn.put(BESIDE.encode(), json.dumps([asdict(each) for each in beside]).encode())
