"""The digest of one topic: clusters with equal digests agree on everything that verify compares. Pure.

Positions differ from cluster to cluster, so a digest names messages by origin, incarnation and origin position. It is
computed in one pass over the blocks of a log, in their order:

1. *Entries.* Each origin has a hash over its blocks: identity, number of entries and of messages, and both checksums,
   which are computed anew. If clusters cut blocks differently, the hashes differ, and the entries are compared.
2. *Order.* The entries of an origin must ascend. A log with an entry out of order, or twice, has no digest.
3. *Acknowledgements.* Each subscription has a hash for each origin. It covers the messages at which an acknowledged
   run begins or ends, and the acknowledged indexes of partly acknowledged batches. So if the messages are equal,
   equal hashes mean equal acknowledgements, however ranges and mark-delete positions express them.
4. *Mappings.* For each local position that was asked for: the last message of each origin up to it. A snapshot
   mapping is right if no origin is further at the peer's position than at the home's.

A damaged log has no digest either. If verify is to compare something new, add it to the digest and raise
:data:`DIGEST_FORM`. Workers with different forms are compared by reading their logs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, Buffer, verify_block
from replicator.engine.log.block_heads import checksums_of
from replicator.engine.log.entry import decode_entry
from replicator.engine.subscriptions.batch_acks import BatchAcks
from snapshots.position import Position
from snapshots.position_set import PositionSet

DIGEST_FORM: Final = 1
"""Number of the digest's form. Raise it whenever the digest covers something else than before."""
DIGEST_BYTES: Final = 16
_BLOCK: Final = struct.Struct("<QQIIHQ")
_CHANGE: Final = struct.Struct("<QQB")
_PART: Final = struct.Struct("<QQBI")
_IN_PART: Final = 2
"""Marks an acknowledged part of a batch in a hash. A run's begin or end has 1 or 0 in this place."""

OriginKey = tuple[str, int]
"""An origin and its incarnation."""


class NoDigest(Exception):
    """The log is damaged or out of order, so its blocks must be compared one by one."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Acknowledgements of one replicated subscription, in positions of its own cluster; see ``CursorState``."""

    name: str
    mark_delete: Position
    individually_deleted: PositionSet
    batch_acks: BatchAcks


@dataclass(frozen=True, slots=True)
class OriginDigest:
    """Digest of all blocks of one origin and incarnation in a log."""

    origin: str
    incarnation: int
    digest: str
    messages: int
    places: tuple[tuple[Position, Position], ...]
    """Origin position and local position of the first and the last message; empty if there are only markers."""

    @property
    def key(self) -> OriginKey:
        return self.origin, self.incarnation


@dataclass(frozen=True, slots=True)
class TopicDigest:
    """Digest of one topic in one cluster: its entries, acknowledgements and markers."""

    origins: tuple[OriginDigest, ...] = ()
    subscriptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By replicated subscription, one digest for each of ``origins``; an empty text if nothing is acknowledged."""
    reached: Mapping[Position, tuple[Position | None, ...]] = field(default_factory=dict)
    """By local position that was asked for, the last message of each of ``origins`` up to it, or None if there is
    none."""
    markers: Mapping[int, int] = field(default_factory=dict)
    """Number of markers by type, including this cluster's own."""


@dataclass(slots=True)
class _Origin:
    digest: Any = field(default_factory=lambda: blake2b(digest_size=DIGEST_BYTES))
    last: Position | None = None
    messages: int = 0
    first_message: tuple[Position, Position] | None = None
    last_message: tuple[Position, Position] | None = None


class LogDigester:
    """Computes the digest of one topic from the blocks of its log, which it takes in order."""

    def __init__(self, subscriptions: Sequence[Acknowledged], positions: Sequence[Position] = ()) -> None:
        self._origins: dict[OriginKey, _Origin] = {}
        self._subscriptions = [_Subscription(each) for each in subscriptions]
        self._asked = sorted(set(positions), reverse=True)
        self._reached: dict[Position, dict[OriginKey, Position]] = {}
        self._markers: dict[int, int] = {}

    def take(self, first: Position, block: Buffer) -> None:
        """Add the block whose first entry is at local position ``first``.

        Raises :class:`NoDigest` if the block is damaged, or not in the order of its origin.
        """
        try:
            header = verify_block(block)
            if header.kind is not BlockKind.MESSAGES:
                self._count_markers(BlockView(block, header))
        except (BlockCorrupt, EngineError) as error:
            raise NoDigest(str(error)) from None
        self._answer_before(first)
        if header.kind is BlockKind.LOCAL_MARKERS:
            return
        key = header.origin, header.incarnation
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin()
        elif origin.last is not None and header.origin_first <= origin.last:
            raise NoDigest(
                f"the log is out of order: entry {header.origin_first} of origin {header.origin} comes after its later "
                f"entry {origin.last}"
            )
        origin.last = header.origin_last
        origin.digest.update(
            _BLOCK.pack(
                *header.origin_first,
                header.entries,
                header.messages,
                int(header.kind),
                checksums_of(memoryview(block)),
            )
        )
        if header.kind is BlockKind.MESSAGES:
            self._take_messages(first, header, key, origin)

    def _take_messages(self, first: Position, header: BlockHeader, key: OriginKey, origin: _Origin) -> None:
        last = Position(first.ledger, first.entry + header.entries - 1)
        while self._asked and self._asked[-1] < last:
            position = self._asked.pop()
            inside = position.entry - first.entry
            upto = Position(header.origin_first.ledger, header.origin_first.entry + inside)
            self._reached[position] = {**self._messages_so_far(), key: upto}
        origin.messages += header.messages
        origin.first_message = origin.first_message or (header.origin_first, first)
        origin.last_message = header.origin_last, last
        for subscription in self._subscriptions:
            subscription.take(key, header.origin_first, first, header.entries)

    def result(self) -> TopicDigest:
        """Return the digest of all blocks taken so far. Take no more blocks afterwards."""
        while self._asked:
            self._reached[self._asked.pop()] = self._messages_so_far()
        keys = sorted(self._origins)
        return TopicDigest(
            tuple(
                OriginDigest(
                    *key,
                    digest=each.digest.hexdigest(),
                    messages=each.messages,
                    places=_places(each.first_message, each.last_message),
                )
                for key in keys
                for each in [self._origins[key]]
            ),
            {each.name: tuple(each.digest(key) for key in keys) for each in self._subscriptions},
            {position: tuple(map(reached.get, keys)) for position, reached in self._reached.items()},
            self._markers,
        )

    def _answer_before(self, first: Position) -> None:
        """Record the last message of each origin for every asked position below ``first``, the first entry of the
        next block."""
        while self._asked and self._asked[-1] < first:
            self._reached[self._asked.pop()] = self._messages_so_far()

    def _messages_so_far(self) -> dict[OriginKey, Position]:
        return {key: each.last_message[0] for key, each in self._origins.items() if each.last_message is not None}

    def _count_markers(self, view: BlockView) -> None:
        for entry in view.entries():
            kind = decode_entry(entry, check=False)[0].marker_type
            self._markers[kind] = self._markers.get(kind, 0) + 1


def _places(
    first: tuple[Position, Position] | None, last: tuple[Position, Position] | None
) -> tuple[tuple[Position, Position], ...]:
    return tuple(dict.fromkeys(place for place in (first, last) if place is not None))


class _Subscription:
    """Hashes of one subscription's acknowledgements: for each origin, where runs of acknowledged messages begin and
    end."""

    def __init__(self, acknowledged: Acknowledged) -> None:
        self.name = acknowledged.name
        self._mark = acknowledged.mark_delete
        self._deleted = acknowledged.individually_deleted
        self._parts = acknowledged.batch_acks
        self._digests: dict[OriginKey, Any] = {}
        self._inside: dict[OriginKey, bool] = {}
        """Whether the last message of the origin was acknowledged."""

    def digest(self, key: OriginKey) -> str:
        found = self._digests.get(key)
        return "" if found is None else str(found.hexdigest())

    def take(self, key: OriginKey, origin_first: Position, first: Position, entries: int) -> None:
        """Add the acknowledgements of one block of messages, whose first entry is at local position ``first``."""
        begins, ends = self._runs(first, entries)
        inside = self._inside.get(key, False)
        changes: list[tuple[int, bool]] = []
        at = 0
        for begin, end in zip(begins, ends, strict=True):
            if inside and begin > at:
                changes.append((at, False))
            if begin > at or not inside:
                changes.append((begin, True))
            inside, at = True, end
        if inside and at < entries:
            changes.append((at, False))
            inside = False
        self._inside[key] = inside
        ledger, start = origin_first
        for offset, acknowledged in changes:
            self._hash(key).update(_CHANGE.pack(ledger, start + offset, acknowledged))
        for offset, indexes in self._parts_in(first, entries):
            part = np.array(indexes, "<u4").tobytes()
            self._hash(key).update(_PART.pack(ledger, start + offset, _IN_PART, len(part)) + part)

    def _hash(self, key: OriginKey) -> Any:
        found = self._digests.get(key)
        if found is None:
            found = self._digests[key] = blake2b(digest_size=DIGEST_BYTES)
        return found

    def _runs(self, first: Position, entries: int) -> tuple[list[int], list[int]]:
        """Return where runs of acknowledged entries begin (inclusive) and end (exclusive), as offsets in the block."""
        marked = self._marked(first, entries)
        if marked == entries or not self._deleted:
            return ([0], [marked]) if marked else ([], [])
        last = first.entry + entries - 1
        found = np.array(self._deleted.entries_in(first.ledger, first.entry + marked, last).to_array(), np.int64)
        if not len(found):
            return ([0], [marked]) if marked else ([], [])
        borders = np.flatnonzero(np.diff(found) != 1) + 1
        begins = (found[np.concatenate([[0], borders])] - first.entry).tolist()
        ends = (found[np.concatenate([borders - 1, [len(found) - 1]])] - first.entry + 1).tolist()
        if not marked:
            return begins, ends
        if begins[0] == marked:
            return [0, *begins[1:]], ends
        return [0, *begins], [marked, *ends]

    def _marked(self, first: Position, entries: int) -> int:
        """Return how many entries from the start of a block on lie at or below the mark-delete position."""
        if self._mark.ledger == first.ledger:
            return min(max(self._mark.entry + 1 - first.entry, 0), entries)
        return entries if self._mark.ledger > first.ledger else 0

    def _parts_in(self, first: Position, entries: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the partly acknowledged batches of a block: the offset in the block, and the acknowledged indexes."""
        if not self._parts:
            return
        marked = self._marked(first, entries)
        for entry, indexes in self._parts.between(first.ledger, first.entry + marked, first.entry + entries - 1):
            if Position(first.ledger, entry) not in self._deleted:
                yield entry - first.entry, list(indexes)
