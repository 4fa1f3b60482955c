"""Where the log has which sequence ids of which producer, by origin: how a message that came by another way is known.

Invariants (DESIGN §3, §4.6): 1 and 5 in one: an entry counts as a message that is here only if the entry that has it is
found in the log, has the same sequence ids of the same producer, and holds the same (:mod:`.contents`). A "highest
sequence id" would not do: who sends 6 to cluster A, loses it and sends 7 to cluster B, has sent a 6 that is new to B
whenever it comes. Nor would ids alone: who moves to B may send another 6 there. What is found is written in the
transaction of the entry. Where nothing is found (any more) the message is taken for a new one: twice rather than never.

Only topics with deduplication have rows, of messages only, never of markers. The rows are few: one for each producer
of a block, however many entries it has.

=============== ============================================== ==================================================
table           key                                            value
=============== ============================================== ==================================================
numbered        topic id | digest of origin and producer       highest id u64
                | lowest id u64 | ledger | first entry
numbered_blocks topic id | ledger | first entry                (digest | lowest id) of each row of that block
numbering       topic id                                       epoch u32 | on u8
copied_sequences                                               as sequences, of what came from other clusters
twins           topic id | ledger | entry                      earlier twin, later twin, each ledger u64
                                                               | entry + 1 u64, 0 for none; origin
=============== ============================================== ==================================================

1. A block is committed: the entries' ids are read, and for each producer one row says from which to which they go.
2. Is this entry, of origin A, here by another way? For each other origin, the rows of the producer whose range holds
   its first id are looked up, the newest few of them; the entries of their blocks are read, and compared. In the steady
   state, in which a producer's ids only grow and come by one way, this ends with the highest id, held in memory.
3. Chunks are compared when the last one of their message comes, all of them, and become twins together: consumers put
   a message together from the chunks of one sender. A hidden first chunk before another last one would lose it.
4. Entries of one origin are never each other's twins: what their origin's own deduplication stored it has told apart.
5. When deduplication was off for a time, ids may have been used anew: the epoch is part of the digest, so that what was
   known before is not found any more.
6. Rows go with their blocks when the log is trimmed. What a producer is told that it sent last it is told for longer:
   ``copied_sequences`` has the highest id of each, as ``sequences`` has of those that sent it here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import lmdb
from google.protobuf.message import DecodeError

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockView, Buffer, verify_block
from replicator.engine.log.segments.places import BlockRow, parse_row
from replicator.engine.log.store_tables import BLOCK_KEY, TOPIC_KEY, decode_place, encode_place
from replicator.engine.log.twins import TWINS_MAX
from replicator.engine.producing.contents import Contents, equal_messages
from replicator.engine.producing.deduplication import NONE_YET, SEQUENCE_ID_MAX, Copied, Numbered
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

ROWS_LOOKED_AT_MAX: Final = 8
"""Rows that a look-up of one id reads. One is usual; there are more only if the ids of a producer do not ascend."""
BLOCKS_PARSED_MAX: Final = 4
"""Blocks kept for the next look-up, up to 3 MB each. A producer that sends again sends neighbouring entries."""
HIGHEST_KEPT_MAX: Final = 10_000
CHUNKS_COMPARED_MAX: Final = 16
"""Chunks of one message that a transaction reads and compares: 80 MB as clients cut them. A larger message that came
by two ways is delivered twice."""

_DIGEST_BYTES: Final = 16
_ROW_KEY_TAIL = struct.Struct(">QQQ")
_ROW = struct.Struct(">Q")
_BLOCK_ITEM = struct.Struct(f">{_DIGEST_BYTES}sQ")
_EPOCH = struct.Struct(">IB")
_FRAME = struct.Struct(">HII")
_PLACE_BYTES: Final = 16

Pair = tuple[Position, Position]
"""Two local positions, the earlier one first."""


class Identity(NamedTuple):
    """Ids and size of an entry. Two entries must share them to hold the same messages."""

    numbered: Numbered
    batch_size: int


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The entries of a block, by producer and first id, and by producer, in the order of the block."""

    by_id: dict[tuple[str, int], list[tuple[Identity, int]]] = field(default_factory=dict)
    by_producer: dict[str, _Entries] = field(default_factory=dict)


@dataclass(slots=True)
class _Entries:
    """The entries of one producer in a block, in the order of the block."""

    numbered: list[tuple[Numbered, int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    ordered: bool = True
    """Whether sequence ids ascend, which is usual."""

    def add(self, numbered: Numbered, index: int) -> None:
        if self.firsts and (numbered.first < self.firsts[-1] or numbered.last < self.lasts[-1]):
            self.ordered = False
        self.numbered.append((numbered, index))
        self.firsts.append(numbered.first)
        self.lasts.append(numbered.last)

    def overlapping(self, first: int, last: int) -> list[tuple[Numbered, int]]:
        """Return the entries with an id from ``first`` to ``last``, both inclusive, with their indexes in the block."""
        if self.ordered:
            return self.numbered[bisect_left(self.lasts, first) : bisect_right(self.firsts, last)]
        return [each for each in self.numbered if each[0].last >= first and each[0].first <= last]


class _Place(NamedTuple):
    """Place of an entry: the position of its block, and its index in the block."""

    block: Position
    offset: int

    @property
    def position(self) -> Position:
        return Position(self.block.ledger, self.block.entry + self.offset)


@dataclass(slots=True)
class Comparing:
    """State that all comparisons of one transaction share: the decompressed entries, and the blocks that were read."""

    contents: Contents
    views: dict[tuple[int, Position], BlockView] = field(default_factory=dict)
    other_content: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """Messages that reuse sequence ids of other messages with other content, counted by topic id, producer, and
    origin of the other messages."""

    def note_other_content(self, topic_id: int, producer: str, origin: str, messages: int) -> None:
        """Count messages that have sequence ids of messages from ``origin``, but other content."""
        key = topic_id, producer, origin
        self.other_content[key] = self.other_content.get(key, 0) + messages

    @property
    def wants(self) -> bool:
        """Return whether entries must be decompressed first. Then the transaction is rolled back, and its decisions
        are void."""
        return bool(self.contents.wanted)


def numbered_of(entry: Buffer) -> Numbered | None:
    """Return the part of a stored entry that deduplication looks at, or None if the entry has no usable ids."""
    try:
        _, _, size = _FRAME.unpack_from(entry)
        metadata = MessageMetadata.FromString(bytes(entry[_FRAME.size : _FRAME.size + size]))
    except (struct.error, DecodeError):
        return None
    first, last, name = metadata.sequence_id, metadata.highest_sequence_id, metadata.producer_name
    if not name or "\0" in name or first > SEQUENCE_ID_MAX or last > SEQUENCE_ID_MAX:
        return None
    chunks = metadata.num_chunks_from_msg
    if chunks > 1:
        return Numbered(name, first, first, metadata.chunk_id, chunks, metadata.uuid)
    return Numbered(name, first, max(first, last))


def load_twins(store: Any, topic_id: int) -> list[Pair]:
    """Return the pairs of neighbours in the chains of twins of a topic, the earlier entry first."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: list[Pair] = []
    with store.env.begin(db=store.tables["twins"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            _, ledger, entry = BLOCK_KEY.unpack(cursor.key())
            earlier = decode_place(bytes(cursor.value()[:_PLACE_BYTES]))
            if earlier != BEFORE_ALL:
                found.append((earlier, Position(ledger, entry)))
            more = cursor.next()
    return found


def trim_block(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, first: Position, last: Position) -> int:
    """Delete the rows of a block that is being deleted. Return how many rows that were."""
    key = BLOCK_KEY.pack(topic_id, *first)
    stored = txn.get(key, b"", db=tables["numbered_blocks"])
    txn.delete(key, db=tables["numbered_blocks"])
    rows = 0
    for digest, lowest in _BLOCK_ITEM.iter_unpack(stored):
        txn.delete(_row_key(topic_id, digest, lowest, first), db=tables["numbered"])
        rows += 1
    twins = tables["twins"]
    cursor = txn.cursor(db=twins)
    more = cursor.set_range(key)
    while more and bytes(cursor.key()) <= BLOCK_KEY.pack(topic_id, *last):
        later = decode_place(bytes(cursor.value()[_PLACE_BYTES : 2 * _PLACE_BYTES]))
        cursor.delete()
        rows += 1
        if later != BEFORE_ALL:
            _forget_earlier(txn, twins, BLOCK_KEY.pack(topic_id, *later))
            more = cursor.set_range(key)
        else:
            more = bool(cursor.key())
    return rows


class TwinRow(NamedTuple):
    """Row of the table ``twins`` for one entry: the twins before and after it, and the entry's own origin.

    ``earlier`` and ``later`` are BEFORE_ALL if there is no such twin.
    """

    earlier: Position
    later: Position
    origin: str


def get_twin(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, position: Position) -> TwinRow | None:
    """Return the row of the entry at ``position`` in the table ``twins``, or None if the entry has no twin."""
    if position == BEFORE_ALL:
        return None
    stored = txn.get(BLOCK_KEY.pack(topic_id, *position), db=tables["twins"])
    if stored is None:
        return None
    row = bytes(stored)
    places = row[:_PLACE_BYTES], row[_PLACE_BYTES : 2 * _PLACE_BYTES]
    return TwinRow(decode_place(places[0]), decode_place(places[1]), row[2 * _PLACE_BYTES :].decode("ascii"))


def put_twin(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, position: Position, row: TwinRow) -> None:
    """Write the row of the entry at ``position`` into the table ``twins``; delete the row if it names no twin."""
    key = BLOCK_KEY.pack(topic_id, *position)
    if row.earlier == BEFORE_ALL and row.later == BEFORE_ALL:
        txn.delete(key, db=tables["twins"])
        return
    places = encode_place(row.earlier) + encode_place(row.later)
    txn.put(key, places + row.origin.encode("ascii"), db=tables["twins"])


def _forget_earlier(txn: lmdb.Transaction, twins: Any, key: bytes) -> None:
    stored = txn.get(key, db=twins)
    assert stored is not None, "the row before it says that it has one"
    row = bytes(stored)
    if decode_place(row[_PLACE_BYTES : 2 * _PLACE_BYTES]) == BEFORE_ALL:
        txn.delete(key, db=twins)  # nobody is left of its chain
    else:
        txn.put(key, encode_place(BEFORE_ALL) + row[_PLACE_BYTES:], db=twins)


class SequenceIndex:
    """The index of one topic's sequence ids. Only the writer's thread uses it, within a transaction.

    If a transaction fails, the index is thrown away, and the next one is loaded from the store.
    """

    __slots__ = ("_body", "_epoch", "_highest", "_own", "_parsed", "_topic_id", "_twins", "on")

    def __init__(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        topic_id: int,
        cluster: str,
        body: Callable[[BlockRow], Buffer],
    ) -> None:
        """Load the index. ``body`` returns the bytes of a stored block."""
        self._body = body
        self._topic_id = topic_id
        self._own = cluster
        stored = txn.get(TOPIC_KEY.pack(topic_id), db=tables["numbering"])
        self._epoch, on = (0, 0) if stored is None else _EPOCH.unpack(stored)
        self.on = bool(on)
        self._highest: dict[tuple[str, str], int] = {}
        self._parsed: OrderedDict[Position, _Parsed] = OrderedDict()
        self._twins = _count(txn, tables["twins"], topic_id)

    def switch(self, txn: lmdb.Transaction, tables: dict[str, Any], *, on: bool) -> None:
        """Turn deduplication on or off from this place of the log on."""
        if on is self.on:
            return
        self.on = on
        self._epoch += on
        self._highest.clear()
        txn.put(TOPIC_KEY.pack(self._topic_id), _EPOCH.pack(self._epoch, on), db=tables["numbering"])

    def record(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        first: Position,
        entries: Iterable[Numbered | None],
    ) -> dict[str, int]:
        """Write the rows of a block of ``entries`` that begins at ``first``. Return each producer's highest complete
        id."""
        ranges: dict[str, tuple[int, int, int]] = {}
        for entry in entries:
            if entry is None:
                continue
            complete = entry.last if entry.chunk + 1 >= entry.chunks else NONE_YET
            known = ranges.get(entry.producer)
            if known is None:
                ranges[entry.producer] = (entry.first, entry.last, complete)
            else:
                ranges[entry.producer] = (
                    min(known[0], entry.first),
                    max(known[1], entry.last),
                    max(known[2], complete),
                )
        items: list[bytes] = []
        for producer, (lowest, highest, _) in ranges.items():
            self._keep(origin, producer, max(self._known(txn, tables, origin, producer), highest))
            digest = self._digest(origin, producer)
            txn.put(_row_key(self._topic_id, digest, lowest, first), _ROW.pack(highest), db=tables["numbered"])
            items.append(_BLOCK_ITEM.pack(digest, lowest))
        if items:
            txn.put(BLOCK_KEY.pack(self._topic_id, *first), b"".join(items), db=tables["numbered_blocks"])
        return {producer: complete for producer, (_, _, complete) in ranges.items()}

    def twins_of_block(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        new: BlockView,
        first: Position,
        numbered: Sequence[Numbered | None],
        origins: Iterable[str],
        comparing: Comparing,
    ) -> list[Pair]:
        """Find and write the twins of a copied block, which is about to be committed at ``first``. Return their
        pairs.

        ``numbered`` are the ids of the block's entries. ``origins`` are all origins of which the topic has messages.
        """
        pairs: list[Pair] = []
        header = new.header
        others = [origin for origin in origins if origin != header.origin]
        highest: dict[str, int] = {}
        for index, sent in enumerate(numbered):
            if sent is None:
                continue
            name = sent.producer
            if name not in highest:
                highest[name] = max((self._known(txn, tables, other, name) for other in others), default=-1)
            if sent.first > highest[name]:
                continue
            if sent.chunks:
                if sent.chunk == sent.chunks - 1:
                    pairs += self._chunk_twins(txn, tables, new, first, numbered, index, others, comparing)
                continue
            local = Position(first.ledger, first.entry + index)
            identity = Identity(sent, int(new.batch_sizes[index]))
            for other in others:
                found = self._find(txn, tables, other, identity, new.entry(index), comparing)
                if found is not None and (pair := self._join(txn, tables, found, other, local, header.origin)):
                    pairs.append(pair)
                    break
        return pairs

    def highest_copied(
        self, txn: lmdb.Transaction, tables: dict[str, Any], producer: str, origins: Iterable[str]
    ) -> int:
        """No entry of the producer with a higher sequence id is here from another cluster."""
        known = (self._known(txn, tables, origin, producer) for origin in origins if origin != self._own)
        return max(known, default=NONE_YET)

    def copied(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        sent: Numbered,
        entry: Buffer,
        origins: Iterable[str],
        comparing: Comparing,
    ) -> Copied:
        """Return how much of ``entry``, which a producer sends to this cluster, was already copied from other
        clusters."""
        others = [
            origin
            for origin in origins
            if origin != self._own and self._known(txn, tables, origin, sent.producer) >= sent.first
        ]
        if sent.chunks:
            return self._copied_chunk(txn, tables, sent, entry, others, comparing)
        found = [
            (origin, here, _Place(block, index))
            for origin in others
            for parsed, block in self._blocks(txn, tables, origin, sent.producer, sent.first, sent.last, comparing)
            if (entries := parsed.by_producer.get(sent.producer)) is not None
            for here, index in entries.overlapping(sent.first, sent.last)
            if not here.chunks
        ]
        contents = comparing.contents
        cut_otherwise: list[_Place] = []
        for _, here, place in found:
            if (here.first, here.last) == (sent.first, sent.last):
                if contents.alike(entry, self._entry(txn, tables, place, comparing)):
                    return Copied(whole=True)
                if sent.first == sent.last:
                    continue  # nothing of it is here
            cut_otherwise.append(place)
        equal, count = 0, 1 + sent.last - sent.first
        if cut_otherwise:
            here_too = [contents.messages(self._entry(txn, tables, place, comparing)) for place in cut_otherwise]
            messages = contents.messages(entry)
            if messages is not None:
                equal, count = equal_messages(messages, (each for each in here_too if each is not None)), len(messages)
                if equal == count:
                    return Copied(whole=True)
        for origin in set() if equal else {origin for origin, _, _ in found}:
            comparing.note_other_content(self._topic_id, sent.producer, origin, count)
        return Copied(part=equal > 0)

    def _copied_chunk(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        sent: Numbered,
        entry: Buffer,
        others: Iterable[str],
        comparing: Comparing,
    ) -> Copied:
        """Return how much of a sent chunk is in the log as a copy. This cluster has no sent chunk of its message.

        1. A chunk is a duplicate if it equals that of a copied message that is complete.
        2. A chunk is also a duplicate if it equals that of an incomplete message with the same uuid. Later chunks
           continue that message.
        3. Otherwise the chunk belongs to a new message. If it is the first chunk, it is stored; if not, the first
           chunk is missing.
        """
        goes_on = NONE_YET
        other = False
        for origin in others:
            for uuid, chunks in self._chunks(txn, tables, origin, sent, comparing).items():
                complete = sent.chunks - 1 in chunks
                place = chunks.get(sent.chunk)
                if place is None:
                    if not complete and uuid == sent.uuid:
                        goes_on = max(goes_on, *(chunk for chunk in chunks if chunk < sent.chunk), NONE_YET)
                elif comparing.contents.alike(entry, self._entry(txn, tables, place, comparing)):
                    if complete:
                        return Copied(whole=True)
                    if uuid == sent.uuid:
                        goes_on = max(goes_on, sent.chunk)
                else:
                    other = True
                    if sent.chunk == 0:
                        comparing.note_other_content(self._topic_id, sent.producer, origin, 1)
        return Copied(chunk=goes_on, other_chunk=other and sent.chunk > 0 and goes_on == NONE_YET)

    # Looking up.

    def _known(self, txn: lmdb.Transaction, tables: dict[str, Any], origin: str, producer: str) -> int:
        """Return an id that no entry of the producer from this origin exceeds."""
        known = self._highest.get((origin, producer))
        if known is None:
            rows = self._rows(txn, tables, self._digest(origin, producer), 2**64 - 1)
            known = max((highest for _, highest in rows), default=NONE_YET)
            self._keep(origin, producer, known)
        return known

    def _keep(self, origin: str, producer: str, known: int) -> None:
        if len(self._highest) >= HIGHEST_KEPT_MAX:
            self._highest.clear()
        self._highest[origin, producer] = known

    def _rows(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        digest: bytes,
        lowest_max: int,
        rows_max: int = ROWS_LOOKED_AT_MAX,
    ) -> Iterator[tuple[Position, int]]:
        """Rows whose lowest id is at or below ``lowest_max``, the highest of them first, a limited number."""
        prefix = TOPIC_KEY.pack(self._topic_id) + digest
        cursor = txn.cursor(db=tables["numbered"])
        end = prefix + _ROW_KEY_TAIL.pack(lowest_max, 2**64 - 1, 2**64 - 1)
        more = cursor.prev() if cursor.set_range(end) else cursor.last()
        for _ in range(rows_max):
            if not more or not bytes(cursor.key()).startswith(prefix):
                return
            _, ledger, first = _ROW_KEY_TAIL.unpack(cursor.key()[len(prefix) :])
            yield Position(ledger, first), _ROW.unpack(cursor.value())[0]
            more = cursor.prev()

    def _blocks(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        producer: str,
        first: int,
        last: int,
        comparing: Comparing,
        rows_max: int = ROWS_LOOKED_AT_MAX,
    ) -> Iterator[tuple[_Parsed, Position]]:
        """The blocks that may hold ids from ``first`` to ``last`` of a producer."""
        for position, highest in list(self._rows(txn, tables, self._digest(origin, producer), last, rows_max)):
            if highest >= first and (parsed := self._parse(txn, tables, position, comparing)) is not None:
                yield parsed, position

    def _find(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        identity: Identity,
        entry: Buffer,
        comparing: Comparing,
    ) -> Position | None:
        """Return the position of the entry from ``origin`` that has the sequence ids ``identity`` and the messages of
        ``entry``.

        Return None if there is none. Count the messages if entries with these ids have other content.
        """
        sent = identity.numbered
        met = False
        for parsed, block in self._blocks(txn, tables, origin, sent.producer, sent.first, sent.first, comparing):
            for here, index in parsed.by_id.get((sent.producer, sent.first), ()):
                if here == identity:
                    met = True
                    place = _Place(block, index)
                    if comparing.contents.alike(entry, self._entry(txn, tables, place, comparing)):
                        return place.position
        if met:
            comparing.note_other_content(self._topic_id, sent.producer, origin, identity.batch_size)
        return None

    def _chunks(
        self, txn: lmdb.Transaction, tables: dict[str, Any], origin: str, of: Numbered, comparing: Comparing
    ) -> dict[str, dict[int, _Place]]:
        """Return the chunks from ``origin`` with the sequence id and the number of chunks of ``of``, by uuid and
        chunk number."""
        found: dict[str, dict[int, _Place]] = {}
        rows_max = ROWS_LOOKED_AT_MAX + 2 * min(of.chunks, CHUNKS_COMPARED_MAX)
        for parsed, block in self._blocks(txn, tables, origin, of.producer, of.first, of.first, comparing, rows_max):
            for (here, _), index in parsed.by_id.get((of.producer, of.first), ()):
                if here.chunks == of.chunks:
                    found.setdefault(here.uuid, {}).setdefault(here.chunk, _Place(block, index))
        return found

    def _chunk_twins(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        new: BlockView,
        first: Position,
        numbered: Sequence[Numbered | None],
        last: int,
        others: Iterable[str],
        comparing: Comparing,
    ) -> list[Pair]:
        """Return the pairs of twins between the chunks of a copied message and equal chunks from another origin.

        The last chunk of the message is entry ``last`` of the copied block ``new``. Earlier chunks are in the same
        block, or in blocks copied before. The result is empty unless another origin has an equal chunk for every
        chunk.
        """
        sent = numbered[last]
        assert sent is not None
        count = sent.chunks
        if count > CHUNKS_COMPARED_MAX or self._twins + 2 * count > TWINS_MAX:
            return []
        origin = new.header.origin
        own = dict(self._chunks(txn, tables, origin, sent, comparing).get(sent.uuid, {}))
        for index, each in enumerate(numbered[: last + 1]):
            if each is not None and each._replace(chunk=sent.chunk) == sent:
                own[each.chunk] = _Place(first, index)
        if len(own) != count:
            return []

        def bytes_of(place: _Place) -> Buffer:
            return new.entry(place.offset) if place.block == first else self._entry(txn, tables, place, comparing)

        for other in others:
            for theirs in self._chunks(txn, tables, other, sent, comparing).values():
                if len(theirs) != count:
                    continue
                if not all(comparing.contents.alike(bytes_of(own[at]), bytes_of(theirs[at])) for at in range(count)):
                    comparing.note_other_content(self._topic_id, sent.producer, other, 1)
                    continue
                found = [(theirs[at].position, own[at].position) for at in range(count)]
                if all(self._may_join(txn, tables, here, other, local, origin) for here, local in found):
                    joined = (self._join(txn, tables, here, other, local, origin) for here, local in found)
                    return [pair for pair in joined if pair is not None]
        return []

    def _parse(
        self, txn: lmdb.Transaction, tables: dict[str, Any], first: Position, comparing: Comparing
    ) -> _Parsed | None:
        parsed = self._parsed.get(first)
        if parsed is not None:
            self._parsed.move_to_end(first)
            return parsed
        view = self._view(txn, tables, first, comparing)
        if view is None:
            return None
        parsed = _Parsed()
        for index, (entry, batch_size) in enumerate(zip(view.entries(), view.batch_sizes.tolist(), strict=True)):
            numbered = numbered_of(entry)
            if numbered is not None:
                identity = Identity(numbered, batch_size)
                parsed.by_id.setdefault((numbered.producer, numbered.first), []).append((identity, index))
                parsed.by_producer.setdefault(numbered.producer, _Entries()).add(numbered, index)
        self._parsed[first] = parsed
        if len(self._parsed) > BLOCKS_PARSED_MAX:
            self._parsed.popitem(last=False)
        return parsed

    def _view(
        self, txn: lmdb.Transaction, tables: dict[str, Any], first: Position, comparing: Comparing
    ) -> BlockView | None:
        """Return the stored block that begins at ``first``, or None if it is trimmed. Raises :class:`BlockCorrupt`."""
        views, key = comparing.views, (self._topic_id, first)
        view = views.get(key)
        if view is not None:
            return view
        stored = txn.get(BLOCK_KEY.pack(self._topic_id, *first), db=tables["blocks"])
        if stored is None:
            return None
        try:
            block = self._body(parse_row(stored))
            view = BlockView(block, verify_block(block))  # ids that are not what they were would lose a message
        except BlockCorrupt as error:
            raise BlockCorrupt(f"topic {self._topic_id} at {first}: {error}") from None
        views[key] = view
        if len(views) > BLOCKS_PARSED_MAX:
            del views[next(iter(views))]
        return view

    def _entry(self, txn: lmdb.Transaction, tables: dict[str, Any], place: _Place, comparing: Comparing) -> Buffer:
        view = self._view(txn, tables, place.block, comparing)
        assert view is not None, "its block was just parsed"
        return view.entry(place.offset)

    def _digest(self, origin: str, producer: str) -> bytes:
        text = f"{self._epoch}\0{origin}\0{producer}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=_DIGEST_BYTES).digest()

    # Chains.

    def _join(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        found: Position,
        found_origin: str,
        local: Position,
        origin: str,
    ) -> Pair | None:
        """Put ``local`` at the end of the chain of ``found``; None if that has one of its origin, or it is too much."""
        if self._twins >= TWINS_MAX or not self._may_join(txn, tables, found, found_origin, local, origin):
            return None
        last, row, _ = self._chain_of(txn, tables, found, found_origin)

        def put(position: Position, earlier: Position, later: Position, of: str) -> None:
            put_twin(txn, tables, self._topic_id, position, TwinRow(earlier, later, of))

        self._twins += 1 + (row[:2] == (BEFORE_ALL, BEFORE_ALL))
        put(last, row.earlier, local, row.origin)
        put(local, last, BEFORE_ALL, origin)
        return last, local

    def _may_join(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        found: Position,
        found_origin: str,
        local: Position,
        origin: str,
    ) -> bool:
        """Return whether ``local``, an entry of ``origin``, can be appended to the chain of twins that contains
        ``found``.

        It can if the chain has no entry of ``origin``, and ends before ``local``.
        """
        last, _, origins = self._chain_of(txn, tables, found, found_origin)
        return origin not in origins and last < local

    def _chain_of(
        self, txn: lmdb.Transaction, tables: dict[str, Any], found: Position, found_origin: str
    ) -> tuple[Position, TwinRow, set[str]]:
        """Return the last entry of the chain of twins that contains ``found``, its row, and the origins of all its
        entries.

        An entry without twins is a chain of its own.
        """
        last, row = found, get_twin(txn, tables, self._topic_id, found) or TwinRow(BEFORE_ALL, BEFORE_ALL, found_origin)
        origins = {row.origin}
        at, limit = row.earlier, last
        while BEFORE_ALL < at < limit and (before := get_twin(txn, tables, self._topic_id, at)) is not None:
            origins.add(before.origin)  # ever lower, whatever the rows say
            limit, at = at, before.earlier
        while row.later > last and (after := get_twin(txn, tables, self._topic_id, row.later)) is not None:
            last, row = row.later, after
            origins.add(row.origin)
        return last, row, origins


def _row_key(topic_id: int, digest: bytes, lowest: int, first: Position) -> bytes:
    return TOPIC_KEY.pack(topic_id) + digest + _ROW_KEY_TAIL.pack(lowest, *first)


def _count(txn: lmdb.Transaction, database: Any, topic_id: int) -> int:
    prefix = TOPIC_KEY.pack(topic_id)
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    count = 0
    while more and bytes(cursor.key()).startswith(prefix):
        count += 1
        more = cursor.next()
    return count
