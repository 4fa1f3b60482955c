"""Judge what a copy of a cluster's messages in another cluster means for the cluster that published them. Pure.

Invariants (DESIGN §3): 12, no judgement leads to the loss of a copy; 13, lost data is told from deleted data.

A *store* is one data directory of a cluster. It has an id. A store that was restored from a backup has a new id, and names
the ids before it. A *life* of a topic begins when the topic is made and ends when it is deleted; its incarnation names it.

:func:`judge` compares one copy with the cluster's own store, in this order:

1. Whoever holds the copy was told that this life was deleted, or the own store remembers it: deleted on purpose.
2. The own store knows the life, and has or had the copy's last position: nothing is wrong.
3. Another store wrote the copy, or nobody knows which one did: the own store lost it.
4. The own store wrote the copy, and the life is its newest one or a later one: the log ends too early, as after a snapshot
   of the disk was put back.
5. The own store wrote the copy, and its topic is gone or has a later life: deleted on purpose.

A copy without a store's id comes from an older version. Rule 2 lets the first store that knows it have it; for any other
store rule 3 counts it as lost. So nothing that was deleted before an upgrade can be told from lost data, and nothing that
may be lost is taken for deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from snapshots.position import Position

SHOWN_CHARS: int = 8
"""Characters of a store's id in a text: enough to tell the stores of one cluster apart."""


class Judgement(Enum):
    """Meaning of a copy for the cluster whose messages it holds."""

    SAME = "same"
    """The cluster has what the copy holds, or has trimmed it."""
    LOST = "lost"
    """An earlier store of the cluster wrote it: the cluster lost it, and should take it back."""
    DELETED_ON_PURPOSE = "deleted-on-purpose"
    """The cluster deleted the topic: the copy stays where it is, and never comes back by itself."""
    ABOVE_THE_END = "above-the-end"
    """The same store wrote it, and its log ends before it: the cluster lost it."""


LOST_HERE: frozenset[Judgement] = frozenset({Judgement.LOST, Judgement.ABOVE_THE_END})
"""Judgements by which the cluster lost what the copy holds."""


@dataclass(frozen=True, slots=True)
class CopyElsewhere:
    """One life of a topic of this cluster, as another cluster holds it."""

    incarnation: int
    position: Position
    """The last position of this cluster that the copy holds."""
    store: str | None = None
    """The store of this cluster that wrote the copy; None if the other cluster does not know."""
    deleted: bool = False
    """Whether the other cluster was told that this life was deleted on purpose."""


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """State of the same topic in the cluster that published it."""

    store: str
    incarnation: int | None
    """The newest life; None if there is no such topic."""
    has: Callable[[Position], bool]
    """Whether a position of this cluster is in the log, was trimmed, or is known to be lost for good."""
    earlier: Collection[int] = ()
    """Earlier lives of which the log holds messages."""
    deleted: Mapping[int, Position] = field(default_factory=dict)
    """Lives that this store remembers to have deleted on purpose, each with its last position."""
    ids_upto: int | None = None
    """The newest id that the store gave out; None if it is not known."""


def judge(copy: CopyElsewhere, own: OwnTopic) -> Judgement:
    """Return what ``copy`` means for the cluster that published it."""
    deleted_upto = own.deleted.get(copy.incarnation)
    if copy.deleted or (deleted_upto is not None and copy.position <= deleted_upto):
        return Judgement.DELETED_ON_PURPOSE
    known = copy.incarnation == own.incarnation or copy.incarnation in own.earlier
    if known and own.has(copy.position):
        return Judgement.SAME
    if copy.store != own.store:
        return Judgement.LOST
    if known or _is_later(copy, own):
        return Judgement.ABOVE_THE_END
    return Judgement.DELETED_ON_PURPOSE


def _is_later(copy: CopyElsewhere, own: OwnTopic) -> bool:
    """Return whether the copy's life began after all that the own store knows."""
    if own.incarnation is not None:
        return copy.incarnation > own.incarnation
    return own.ids_upto is not None and copy.incarnation > own.ids_upto


def cause(judgement: Judgement, copy: CopyElsewhere, own: OwnTopic, *, cluster: str, holder: str) -> str:
    """Return in words why the copies at ``holder`` differ from what ``cluster`` has, and what brings them together.

    The text is empty if nothing differs. It never advises to delete a copy.
    """
    if judgement is Judgement.LOST:
        wrote = "a store without an id" if copy.store is None else f"another store (id {copy.store[:SHOWN_CHARS]}…)"
        return (
            f"{wrote} of {cluster} wrote the copy at {holder}, and this store (id {own.store[:SHOWN_CHARS]}…) does not "
            f"have it: {cluster} lost data. `replicator backup reclaim`, with the worker of {cluster} stopped, takes it "
            "back. Keep the copy until then: it may be the only one"
        )
    if judgement is Judgement.ABOVE_THE_END:
        return (
            f"this store (id {own.store[:SHOWN_CHARS]}…) wrote the copy at {holder}, and its log ends before it: the "
            f"directory of {cluster} was put back to an earlier state, as by a snapshot of its disk. `replicator backup "
            f"reclaim`, with the worker of {cluster} stopped, takes back what is missing"
        )
    if judgement is Judgement.DELETED_ON_PURPOSE:
        return f"the topic was deleted at {cluster} on purpose; the copy at {holder} stays, and nothing takes it back"
    return ""
