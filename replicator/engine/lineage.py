"""Judge what a copy of a cluster's messages in another cluster means for the cluster that published them. Pure.

Invariants (DESIGN §3): 12, no judgement leads to the loss of a copy; 13, lost data is told from deleted data.

A *store* is one data directory of a cluster. It has an id. A store that was restored from a backup has a new id, and
names the ids before it. A *life* of a topic begins when the topic is made, and ends when it is deleted; its incarnation
names it.

:func:`judge` compares one copy with the cluster's own store, in this order:

1. Whoever holds the copy was told that this life was deleted, or the own store remembers it: deleted on purpose.
2. The own store knows the life, and has or had the copy's last position: nothing is wrong. A position with a ledger
   below the incarnation belongs to an earlier life: the copy has nothing of this one yet.
3. Another store wrote the copy, or nobody knows which one did: the own store lost it.
4. The own store wrote the copy, and has an older life or the same one, or no such topic: its directory was put back to
   an earlier state, as by a snapshot of the disk. A deletion would be remembered.
5. The own store wrote the copy, and has a later life: deleted on purpose.

A copy without a store's id comes from an older version. By rule 2 it belongs to the first store that knows it. For any
other store rule 3 counts it as lost: what may be lost is never taken for deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Self

from snapshots.position import Position

SHOWN_CHARS: Final = 8
"""Characters of a store's id in a text: enough to tell the stores of one cluster apart."""
PREDECESSORS_MAX: Final = 100
"""Ids of earlier stores that a store names: so many restores. The oldest are left out."""
STORE_ID_CHARS_MAX: Final = 64
"""Characters that are taken of an id from another cluster; an id has 32."""
DELETION_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class StoreLine:
    """Id of a store, and the ids of the stores that it was restored from, the newest first."""

    store: str
    predecessors: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the line in a JSON object. Raises KeyError, TypeError or ValueError if it is malformed."""
        store, predecessors = row["store"], row.get("predecessors", [])
        ids = [store, *predecessors]
        if not all(isinstance(each, str) and 0 < len(each) <= STORE_ID_CHARS_MAX for each in ids):
            raise ValueError("an id of a store is not a short text")
        return cls(store, tuple(predecessors[:PREDECESSORS_MAX]))

    def as_json(self) -> dict[str, Any]:
        return {"store": self.store, "predecessors": list(self.predecessors)}

    def is_later(self, store: str, than: str) -> bool:
        """Return whether ``store`` came after ``than``, as far as this line says."""
        ids = (self.store, *self.predecessors)
        return store in ids and than in ids[ids.index(store) + 1 :]


@dataclass(frozen=True, slots=True)
class CopyWriter:
    """Store of ``origin`` that wrote a life of a topic, as a link tells it to whoever holds a copy."""

    topic: str
    origin: str
    incarnation: int
    store: str

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return what a JSON object says. Raises KeyError, TypeError or ValueError if it is malformed."""
        line = StoreLine.of_json({"store": row["store"]})
        return cls(str(row["topic"]), str(row["origin"]), int(row["incarnation"]), line.store)

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "origin": self.origin, "incarnation": self.incarnation, "store": self.store}


@dataclass(frozen=True, slots=True)
class Deletion:
    """A life of a topic that its origin deleted on purpose, with all messages up to ``position``."""

    topic: str
    origin: str
    incarnation: int
    position: Position
    at_ms: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.topic, self.origin, self.incarnation

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the deletion in a JSON object. Raises KeyError, TypeError, ValueError or InvalidPosition."""
        position = Position.parse(row["position"])
        return cls(str(row["topic"]), str(row["origin"]), int(row["incarnation"]), position, int(row["at_ms"]))

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "origin": self.origin,
            "incarnation": self.incarnation,
            "position": str(self.position),
            "at_ms": self.at_ms,
        }

    def row(self) -> tuple[bytes, bytes]:
        """Return key and value of the row in the table ``deletions``."""
        return self.row_key(), json.dumps(self.as_json()).encode()

    def row_key(self) -> bytes:
        name = f"{self.topic}\0{self.origin}\0{self.incarnation}".encode()
        return blake2b(name, digest_size=DELETION_KEY_BYTES).digest()


class Judgement(Enum):
    """Meaning of a copy for the cluster whose messages it holds."""

    SAME = "same"
    """The cluster has what the copy holds, or has trimmed it."""
    LOST = "lost"
    """An earlier store of the cluster wrote it: the cluster lost it, and should take it back."""
    DELETED_ON_PURPOSE = "deleted-on-purpose"
    """The cluster deleted the topic: the copy stays where it is, and never comes back by itself."""
    ABOVE_THE_END = "above-the-end"
    """The cluster's own store wrote it, and the log ends before it: the cluster lost it."""


LOST_HERE: Final = frozenset({Judgement.LOST, Judgement.ABOVE_THE_END})
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
    """Earlier lives that still have messages in the log."""
    deleted: Mapping[int, Position] = field(default_factory=dict)
    """Lives that this store remembers to have deleted on purpose, each with its last position."""
    remembers: bool = True
    """Whether ``deleted`` has all lives that this store deleted. If not, a topic that is not here counts as deleted."""


def judge(copy: CopyElsewhere, own: OwnTopic) -> Judgement:
    """Return what ``copy`` means for the cluster that published it."""
    deleted_upto = own.deleted.get(copy.incarnation)
    if copy.deleted or (deleted_upto is not None and copy.position <= deleted_upto):
        return Judgement.DELETED_ON_PURPOSE
    known = copy.incarnation == own.incarnation or copy.incarnation in own.earlier
    if known and (copy.position.ledger < copy.incarnation or own.has(copy.position)):
        return Judgement.SAME
    if copy.store != own.store:
        return Judgement.LOST
    was_put_back = own.remembers if own.incarnation is None else known or copy.incarnation > own.incarnation
    return Judgement.ABOVE_THE_END if was_put_back else Judgement.DELETED_ON_PURPOSE


def cause(judgement: Judgement, copy: CopyElsewhere, own: OwnTopic, *, cluster: str, holder: str) -> str:
    """Return in words why the copies at ``holder`` differ from what ``cluster`` has, and what brings them together.

    The text is empty if nothing differs. It never advises to delete a copy.
    """
    this = f"this store (id {own.store[:SHOWN_CHARS]}…)"
    reclaim = f"`replicator backup reclaim`, with the worker of {cluster} stopped, takes"
    if judgement is Judgement.LOST and copy.store is None:
        return (
            f"nobody noted which store of {cluster} wrote the copy at {holder}, as before an upgrade: either the topic "
            f"was deleted at {cluster}, or {cluster} lost it. {reclaim} it back if it was lost. Keep the copy until "
            "you know"
        )
    if judgement is Judgement.LOST and copy.store is not None:
        return (
            f"another store of {cluster} (id {copy.store[:SHOWN_CHARS]}…) wrote the copy at {holder}, and {this} does "
            f"not have it: {cluster} lost it. {reclaim} it back. Keep the copy until then: it may be the only one"
        )
    if judgement is Judgement.ABOVE_THE_END:
        return (
            f"{this} wrote the copy at {holder}, does not have all of it, and did not delete it: the directory of "
            f"{cluster} was put back to an earlier state, as by a snapshot of its disk. {reclaim} back what is missing"
        )
    if judgement is Judgement.DELETED_ON_PURPOSE:
        return f"the topic was deleted at {cluster} on purpose; the copy at {holder} stays, and nothing takes it back"
    return ""
