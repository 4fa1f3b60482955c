"""Judgement about a copy of a cluster's messages in another cluster: did the publishing cluster lose or delete them?
Pure.

Invariants (DESIGN §3): 12, no judgement leads to the loss of a copy; 13, lost data is told from deleted data.

A *store* is one data directory of a cluster. It has an id. A store that was restored from a backup has a new id, and
lists the ids of the stores before it. A *life* of a topic begins when the topic is made, and ends when it is deleted.
The incarnation is the name of the life.

:func:`judge` compares one copy with the cluster's own store. The first rule that applies decides:

1. The cluster with the copy knows that this life was deleted on purpose, or the own store remembers it: *deleted on
   purpose*.
2. The own store knows the life, and has or had the copy's last position: *same*. If that position's ledger is below the
   incarnation, it belongs to an earlier life, and the copy has nothing of this life yet. That is *same*, too.
3. Another store wrote the copy, or nobody knows which store wrote it: *lost*.
4. The own store wrote the copy, and has an older life, the same life, or no such topic: *above the end*. The directory
   was set back to an earlier state, such as by a snapshot of the disk. The store would remember a deletion.
5. The own store wrote the copy, and has a later life, or deleted one: *deleted on purpose*.

A copy without a store's id comes from an older version. The first store that knows the life owns the copy by rule 2.
For any other store rule 3 applies, so that messages that may be lost are never judged as deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Self

from replicator.engine.log.block import ENTRY_IDS_MAX, LEDGER_MAX
from snapshots.position import BEFORE_ALL, Position

SHOWN_CHARS: Final = 8
"""Characters of a store's id in a text: enough to tell the stores of one cluster apart."""
PREDECESSORS_MAX: Final = 100
"""Limit of the earlier stores that a store lists, one for each restore. The oldest ones are left out."""
STORE_ID_CHARS_MAX: Final = 64
"""Limit of characters of a store's id that another cluster sends. Ids have 32."""
DELETION_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class StoreLine:
    """Id of a store, and the ids of the stores that it was restored from, the newest first."""

    store: str
    predecessors: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    """Ids of stores that were newer, and whose place this store took: an operator went back to an older store. It is
    not a line of descent, so it proves nothing about topics."""

    @classmethod
    def of_head(cls, head: Mapping[str, Any]) -> Self:
        """Return the line in the row of a store that has its id."""
        return cls(head["store_id"], tuple(head.get("predecessors", ())), tuple(head.get("replaced", ())))

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the line that a JSON object encodes. Raises KeyError, TypeError or ValueError if the object is
        malformed."""
        store, predecessors, replaced = row["store"], row.get("predecessors", []), row.get("replaced", [])
        check_store_ids([store, *predecessors, *replaced])
        return cls(store, tuple(predecessors[:PREDECESSORS_MAX]), tuple(replaced[:PREDECESSORS_MAX]))

    def as_json(self) -> dict[str, Any]:
        replaced = {"replaced": list(self.replaced)} if self.replaced else {}
        return {"store": self.store, "predecessors": list(self.predecessors), **replaced}

    def is_later(self, store: str, than: str) -> bool:
        """Return whether this line shows that the store ``store`` came after the store ``than``."""
        ids = (self.store, *self.predecessors)
        return (store in ids and than in ids[ids.index(store) + 1 :]) or (store == self.store and than in self.replaced)


def check_store_ids(ids: Collection[Any]) -> None:
    """Raise ValueError if one of ``ids``, which another cluster sent, is not a short text."""
    if not all(isinstance(each, str) and 0 < len(each) <= STORE_ID_CHARS_MAX for each in ids):
        raise ValueError(
            f"another cluster sent a store id that is not a text of 1 to {STORE_ID_CHARS_MAX} characters; run the "
            "same version in all clusters"
        )


def checked_life(incarnation: Any, position: Position = BEFORE_ALL) -> int:
    """Return ``incarnation``, which another cluster sent with ``position``. Raise ValueError if no life can have such
    numbers: the store could not write them."""
    possible = type(incarnation) is int and 0 <= incarnation <= LEDGER_MAX
    if not possible or position.ledger > LEDGER_MAX or position.entry >= ENTRY_IDS_MAX:
        raise ValueError(
            f"another cluster sent incarnation {incarnation!r:.40} and position {position}, which no topic can have; "
            "run the same version in all clusters"
        )
    return int(incarnation)


@dataclass(frozen=True, slots=True)
class NewestStore:
    """Newest store of a cluster that another cluster heard of.

    ``since_ms`` is the time at which that cluster first heard of it; None if an older version noted it. ``earlier`` are
    the stores that were the newest before it, the last one first.
    """

    line: StoreLine
    since_ms: int | None = None
    earlier: tuple[str, ...] = ()

    def replaces(self, own: StoreLine) -> bool:
        """Return whether this store took the place of the store ``own``: ``own`` was the newest before, or this store
        descends from it.

        A store that took the place of this one in turn is not replaced. An unknown store is not, either: nobody knows
        that it is older.
        """
        newest = self.line.store
        if newest == own.store or own.is_later(own.store, newest):
            return False
        return own.store in self.earlier or self.line.is_later(newest, own.store)

    def followed_by(self, line: StoreLine, since_ms: int | None) -> NewestStore:
        """Return the newest store after ``line`` was announced as a newer one, at ``since_ms`` if that is known."""
        if line.store == self.line.store:
            return NewestStore(line, self.since_ms, self.earlier)
        before = (self.line.store, *(each for each in self.earlier if each not in (line.store, self.line.store)))
        return NewestStore(line, since_ms, before[:PREDECESSORS_MAX])


@dataclass(frozen=True, slots=True)
class CopyWriter:
    """Id of the store of ``origin`` that wrote one life of a topic. A link announces it to clusters that have a
    copy."""

    topic: str
    origin: str
    incarnation: int
    store: str

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the object that a JSON object encodes. Raises KeyError, TypeError or ValueError if it is malformed."""
        line = StoreLine.of_json({"store": row["store"]})
        return cls(str(row["topic"]), str(row["origin"]), checked_life(row["incarnation"]), line.store)

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "origin": self.origin, "incarnation": self.incarnation, "store": self.store}


@dataclass(frozen=True, slots=True)
class Deletion:
    """Record that ``origin`` deleted one life of a topic on purpose, with all messages up to ``position``.

    The record of a partitioned topic has its name without a partition's index, an id of its own as incarnation, and a
    position before all. It stands beside the records of the partitions.
    """

    topic: str
    origin: str
    incarnation: int
    position: Position
    at_ms: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.topic, self.origin, self.incarnation

    @property
    def is_of_partitioned(self) -> bool:
        """Whether this is the record of a partitioned topic, which has no log of its own."""
        return self.position == BEFORE_ALL

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the deletion that a JSON object encodes. Raises KeyError, TypeError, ValueError or InvalidPosition if
        the object is malformed."""
        position = Position.parse(row["position"])
        incarnation = checked_life(row["incarnation"], position)
        return cls(str(row["topic"]), str(row["origin"]), incarnation, position, int(row["at_ms"]))

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "origin": self.origin,
            "incarnation": self.incarnation,
            "position": str(self.position),
            "at_ms": self.at_ms,
        }

    def row(self) -> tuple[bytes, bytes]:
        """Return the key and the value of this deletion's row in the table ``deletions``."""
        return self.row_key(), json.dumps(self.as_json()).encode()

    def row_key(self) -> bytes:
        name = f"{self.topic}\0{self.origin}\0{self.incarnation}".encode()
        return blake2b(name, digest_size=DELETION_KEY_BYTES).digest()


def possible_deletions(rows: Iterable[Mapping[str, Any]]) -> list[Deletion]:
    """Return the deletions that JSON objects encode, without those that no cluster can have made.

    An earlier version took such deletions from a link, kept them, and tells others of them. Raises KeyError, TypeError
    or InvalidPosition if an object is malformed.
    """
    found: list[Deletion] = []
    for row in rows:
        with suppress(ValueError):
            found.append(Deletion.of_json(row))
    return found


class Judgement(Enum):
    """Result of :func:`judge` about a copy."""

    SAME = "same"
    """The cluster has all that the copy has, or trimmed it."""
    LOST = "lost"
    """An earlier store of the cluster wrote the copy. The cluster lost it, and should take it back."""
    DELETED_ON_PURPOSE = "deleted-on-purpose"
    """The cluster deleted the topic. The copy stays where it is, and no reclaim takes it back."""
    ABOVE_THE_END = "above-the-end"
    """The cluster's own store wrote the copy, and its log ends before the copy does. The cluster lost the rest."""


LOST_HERE: Final = frozenset({Judgement.LOST, Judgement.ABOVE_THE_END})
"""Judgements by which the cluster lost what the copy holds."""


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """Copy of one life of a topic in another cluster."""

    incarnation: int
    position: Position
    """The last position of the publishing cluster that the copy has."""
    store: str | None = None
    """Id of the publishing cluster's store that wrote the copy; None if the other cluster does not know it."""
    deleted: bool = False
    """Whether the other cluster knows that this life was deleted on purpose."""


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """State of the topic in the cluster that published it."""

    store: str
    incarnation: int | None
    """The newest life; None if the cluster has no such topic."""
    has: Callable[[Position], bool]
    """Returns whether a position of this cluster is in the log, was trimmed, or is known to be lost for good."""
    earlier: Collection[int] = ()
    """Earlier lives that still have messages in the log."""
    deleted: Mapping[int, Position] = field(default_factory=dict)
    """For each incarnation that this store deleted on purpose, as it remembers, the last position of that life."""
    remembers: bool = True
    """Whether ``deleted`` has every life that this store deleted. If not, a topic that is not here is judged as
    deleted."""


def judge(copy: RemoteCopy, own: OwnTopic) -> Judgement:
    """Return what ``copy`` means for the cluster that published its messages. See the rules of this module."""
    deleted_upto = own.deleted.get(copy.incarnation)
    if copy.deleted or (deleted_upto is not None and copy.position <= deleted_upto):
        return Judgement.DELETED_ON_PURPOSE
    known = copy.incarnation == own.incarnation or copy.incarnation in own.earlier
    if known and (copy.position.ledger < copy.incarnation or own.has(copy.position)):
        return Judgement.SAME
    if copy.store != own.store:
        return Judgement.LOST
    newest = own.incarnation if own.incarnation is not None or not own.deleted else max(own.deleted)
    was_put_back = own.remembers if newest is None else known or copy.incarnation > newest
    return Judgement.ABOVE_THE_END if was_put_back else Judgement.DELETED_ON_PURPOSE


def reclaim_command(cluster: str) -> str:
    """Return the command by which ``cluster`` takes back what it lost. FILE stands for the topology file."""
    return f"replicator backup reclaim -f FILE --cluster {cluster}"


def cause(judgement: Judgement, copy: RemoteCopy, own: OwnTopic, *, cluster: str, holder: str) -> str:
    """Return in words why the copy at ``holder`` differs from the topic in ``cluster``, and how to repair that.

    Return an empty text if nothing differs. The text never advises to delete a copy.
    """
    this = f"this store (id {own.store[:SHOWN_CHARS]}…)"
    reclaim = f"`{reclaim_command(cluster)}`, with the worker of {cluster} stopped, takes"
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
