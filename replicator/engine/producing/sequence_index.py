"""Index of a topic's log by origin, producer and sequence id. It recognises messages that came by another way before.

Invariants (DESIGN §3, §4.6): 1 and 5. A message counts as a duplicate only if the log has an entry with the same
sequence ids of the same producer and the same content (:mod:`.contents`). The highest sequence id is not enough: a
producer may send 6 to cluster A, lose the connection, and send 7 to cluster B. If its 6 comes to B later, it is new
there. Equal ids are not enough either: a producer that moves to B may send a different 6 there. Duplicates that are
found are written in the transaction of the entry. If no such entry is found (any more), the message counts as new:
delivering it twice is better than never. So does a copied message that could be compared only with a damaged block. A
producer that sends such a message is refused instead, because it can send again once the block is mended.

Only topics with deduplication have rows. Rows exist for messages, never for markers. The rows are few: one for each
producer of a block, however many entries it has.

=============== ============================================== ==================================================
table           key                                            value
=============== ============================================== ==================================================
numbered        topic id | digest of origin and producer       highest id u64
                | lowest id u64 | ledger | first entry
numbered_blocks topic id | ledger | first entry                (digest | lowest id) of each row of that block
numbering       topic id                                       epoch u32 | on u8
copied_sequences                                               as ``sequences``, for entries from other clusters
twins           topic id | ledger | entry                      earlier duplicate, later duplicate, each ledger u64
                                                               | entry + 1 u64, 0 for none; origin
=============== ============================================== ==================================================

1. When a block is committed, the ids of its entries are read. For each producer, one row has the lowest and the
   highest id.
2. To find an entry of origin A that came by another way, look up the producer's rows at each other origin, the newest
   few whose range contains the entry's first id. Read and compare the entries of their blocks. Usually a producer's ids
   only grow and come by one way. Then the highest id in memory decides, and nothing is looked up.
3. Chunks are compared, all together, when the last chunk of their message comes, and become duplicates together.
   Consumers build a message from the chunks of one sender. If a first chunk were hidden and its last chunk were not,
   the message would be lost.
4. All duplicates of a block are found before the first one is written.
5. Two entries of one origin are never duplicates: the origin's own deduplication stored both, so they differ.
6. While deduplication is off, producers may use ids again. So the epoch, which counts how often it was turned on, is
   part of the digest, and rows from before are not found any more.
7. Rows are deleted with their blocks when the log is trimmed. A producer can ask for its highest id for longer:
   ``copied_sequences`` has it for entries from other clusters, as ``sequences`` has it for entries that were sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockView, Buffer
from replicator.engine.producing.contents import equal_messages
from replicator.engine.producing.deduplication import NONE_YET, Copied, SequencedEntry
from replicator.engine.producing.duplicate_chains import DuplicateChains, Pair
from replicator.engine.producing.numbered_blocks import (
    ContentComparison,
    Identity,
    NumberedBlocks,
    Parsed,
    Place,
    ReadBlock,
)
from replicator.engine.producing.numbered_rows import ROWS_LOOKED_AT_MAX, NumberedRows
from snapshots.position import Position

CHUNKS_COMPARED_MAX: Final = 16
"""Chunks of one message that a transaction reads and compares: 80 MB as clients cut them. A larger message that came
by two ways is delivered twice."""


class _Found(NamedTuple):
    """Entry of another origin, at ``here``, that holds the same message as the entry at ``local``."""

    here: Position
    origin: str
    local: Position


class SequenceIndex:
    """The index of one topic's sequence ids. Only the writer's thread uses it, within a transaction.

    If a transaction fails, the index is thrown away, and the next one is loaded from the store.
    """

    __slots__ = ("_blocks", "_chains", "_own", "_topic_id", "rows")

    def __init__(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        topic_id: int,
        cluster: str,
        read: ReadBlock,
    ) -> None:
        self._topic_id = topic_id
        self._own = cluster
        self.rows = NumberedRows(txn, tables, topic_id)
        """Rows that say which blocks have which ids of a producer. They are written for each block, and read to find
        duplicates."""
        self._blocks = NumberedBlocks(topic_id, read)
        self._chains = DuplicateChains(txn, tables, topic_id)

    def duplicates_of_block(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        new: BlockView,
        first: Position,
        numbered: Sequence[SequencedEntry | None],
        origins: Iterable[str],
        comparing: ContentComparison,
    ) -> list[Pair]:
        """Find and write the duplicates of a copied block, which is about to be committed at ``first``. Return their
        pairs.

        ``numbered`` are the ids of the block's entries. ``origins`` are all origins with messages in the topic.
        """
        ways: list[list[list[_Found]]] = []
        header = new.header
        others = [origin for origin in origins if origin != header.origin]
        highest: dict[str, int] = {}
        for index, sent in enumerate(numbered):
            if sent is None:
                continue
            name = sent.producer
            if name not in highest:
                highest[name] = max((self.rows.known(txn, tables, other, name) for other in others), default=-1)
            if sent.first > highest[name]:
                continue
            if sent.chunks:
                if sent.chunk == sent.chunks - 1:
                    ways.append(self._chunk_duplicates(txn, tables, new, first, numbered, index, others, comparing))
                continue
            local = Position(first.ledger, first.entry + index)
            identity = Identity(sent, int(new.batch_sizes[index]))
            found = ((other, self._find(txn, tables, other, identity, new.entry(index), comparing)) for other in others)
            ways.append([[_Found(here, other, local)] for other, here in found if here is not None])
        return [pair for each in ways for pair in self._join_first(txn, tables, each, header.origin)]

    def _join_first(
        self, txn: lmdb.Transaction, tables: dict[str, Any], ways: Iterable[Sequence[_Found]], origin: str
    ) -> list[Pair]:
        """Write the duplicates of the first of ``ways`` whose entries can all join chains. Return their pairs.

        Each of ``ways`` has, for one message of ``origin``, the entries of another origin that hold it.
        """
        for found in ways:
            if self._chains.has_room(2 * len(found) if len(found) > 1 else 1) and all(
                self._chains.may_join(txn, tables, *each, origin) for each in found
            ):
                joined = (self._chains.join(txn, tables, *each, origin) for each in found)
                return [pair for pair in joined if pair is not None]
        return []

    def highest_copied(
        self, txn: lmdb.Transaction, tables: dict[str, Any], producer: str, origins: Iterable[str]
    ) -> int:
        """Return a sequence id that no entry of the producer from another cluster exceeds."""
        known = (self.rows.known(txn, tables, origin, producer) for origin in origins if origin != self._own)
        return max(known, default=NONE_YET)

    def copied(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        sent: SequencedEntry,
        entry: Buffer,
        origins: Iterable[str],
        comparing: ContentComparison,
    ) -> Copied:
        """Return how much of ``entry``, which a producer sends to this cluster, was already copied from other
        clusters."""
        others = [
            origin
            for origin in origins
            if origin != self._own and self.rows.known(txn, tables, origin, sent.producer) >= sent.first
        ]
        if sent.chunks:
            return self._copied_chunk(txn, tables, sent, entry, others, comparing)
        found = [
            (origin, here, Place(block, index))
            for origin in others
            for parsed, block in self._parsed(txn, tables, origin, sent.producer, (sent.first, sent.last), comparing)
            if (entries := parsed.by_producer.get(sent.producer)) is not None
            for here, index in entries.overlapping(sent.first, sent.last)
            if not here.chunks
        ]
        contents = comparing.contents
        cut_otherwise: list[Place] = []
        for _, here, place in found:
            if (here.first, here.last) == (sent.first, sent.last):
                if contents.alike(entry, self._blocks.entry(txn, tables, place, comparing)):
                    return Copied(whole=True)
                if sent.first == sent.last:
                    continue  # no message of the entry is here
            cut_otherwise.append(place)
        equal, count = 0, 1 + sent.last - sent.first
        if cut_otherwise:
            here_too = [contents.messages(self._blocks.entry(txn, tables, place, comparing)) for place in cut_otherwise]
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
        sent: SequencedEntry,
        entry: Buffer,
        others: Iterable[str],
        comparing: ContentComparison,
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
            for uuid, chunks in self._chunks(txn, tables, origin, sent, comparing, skip_damaged=False).items():
                complete = sent.chunks - 1 in chunks
                place = chunks.get(sent.chunk)
                if place is None:
                    if not complete and uuid == sent.uuid:
                        goes_on = max(goes_on, *(chunk for chunk in chunks if chunk < sent.chunk), NONE_YET)
                elif comparing.contents.alike(entry, self._blocks.entry(txn, tables, place, comparing)):
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

    def _parsed(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        producer: str,
        ids: tuple[int, int],
        comparing: ContentComparison,
        rows_max: int = ROWS_LOOKED_AT_MAX,
        *,
        skip_damaged: bool = False,
    ) -> Iterator[tuple[Parsed, Position]]:
        """Yield the parsed blocks that may hold ids of a producer, from the first to the last of ``ids``, with their
        positions.

        Raises :class:`BlockCorrupt` for a damaged block, unless ``skip_damaged``.
        """
        for position in self.rows.blocks(txn, tables, origin, producer, *ids, rows_max):
            try:
                parsed = self._blocks.parse(txn, tables, position, comparing)
            except BlockCorrupt:
                if skip_damaged:
                    continue
                raise
            if parsed is not None:
                yield parsed, position

    def _find(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        identity: Identity,
        entry: Buffer,
        comparing: ContentComparison,
    ) -> Position | None:
        """Return the position of the entry from ``origin`` that has the sequence ids ``identity`` and the messages of
        ``entry``.

        Return None if there is none, or if its block is damaged. Count the messages if entries with these ids have
        other content.
        """
        sent = identity.numbered
        met = False
        ids = sent.first, sent.first
        for parsed, block in self._parsed(txn, tables, origin, sent.producer, ids, comparing, skip_damaged=True):
            for here, index in parsed.by_id.get((sent.producer, sent.first), ()):
                if here == identity:
                    place = Place(block, index)
                    try:
                        stored = self._blocks.entry(txn, tables, place, comparing)
                    except BlockCorrupt:
                        continue
                    met = True
                    if comparing.contents.alike(entry, stored):
                        return place.position
        if met:
            comparing.note_other_content(self._topic_id, sent.producer, origin, identity.batch_size)
        return None

    def _chunks(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        of: SequencedEntry,
        comparing: ContentComparison,
        *,
        skip_damaged: bool,
    ) -> dict[str, dict[int, Place]]:
        """Return the chunks from ``origin`` with the sequence id and the number of chunks of ``of``, by uuid and
        chunk number."""
        found: dict[str, dict[int, Place]] = {}
        rows_max = ROWS_LOOKED_AT_MAX + 2 * min(of.chunks, CHUNKS_COMPARED_MAX)
        ids = of.first, of.first
        for parsed, block in self._parsed(
            txn, tables, origin, of.producer, ids, comparing, rows_max, skip_damaged=skip_damaged
        ):
            for (here, _), index in parsed.by_id.get((of.producer, of.first), ()):
                if here.chunks == of.chunks:
                    found.setdefault(here.uuid, {}).setdefault(here.chunk, Place(block, index))
        return found

    def _chunk_duplicates(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        new: BlockView,
        first: Position,
        numbered: Sequence[SequencedEntry | None],
        last: int,
        others: Iterable[str],
        comparing: ContentComparison,
    ) -> list[list[_Found]]:
        """Return the chunks from other origins that equal those of a copied message, one list for each equal message.

        The last chunk of the message is entry ``last`` of the copied block ``new``. Earlier chunks are in the same
        block, or in blocks copied before. A message counts as equal only if it has an equal chunk for every chunk.
        """
        sent = numbered[last]
        assert sent is not None
        count = sent.chunks
        if count > CHUNKS_COMPARED_MAX or not self._chains.has_room(2 * count):
            return []
        origin = new.header.origin
        own = dict(self._chunks(txn, tables, origin, sent, comparing, skip_damaged=True).get(sent.uuid, {}))
        for index, each in enumerate(numbered[: last + 1]):
            if each is not None and each._replace(chunk=sent.chunk) == sent:
                own[each.chunk] = Place(first, index)
        if len(own) != count:
            return []

        def bytes_of(place: Place) -> Buffer:
            return (
                new.entry(place.offset) if place.block == first else self._blocks.entry(txn, tables, place, comparing)
            )

        ways: list[list[_Found]] = []
        for other in others:
            for theirs in self._chunks(txn, tables, other, sent, comparing, skip_damaged=True).values():
                if theirs.keys() != own.keys():
                    continue
                try:
                    equal = all(comparing.contents.alike(bytes_of(own[at]), bytes_of(theirs[at])) for at in own)
                except BlockCorrupt:
                    continue
                if equal:
                    ways.append([_Found(theirs[at].position, other, own[at].position) for at in sorted(own)])
                else:
                    comparing.note_other_content(self._topic_id, sent.producer, other, 1)
        return ways
