"""Deduplication: keeps the highest sequence id of each producer, so that an entry that is sent again is not stored
twice.

Invariant: an entry is stored if, and only if, its sequence ids are above all that the topic has of its producer. What
the topic has is written in the same transaction as the entry, so it is right after a kill at any moment. The writer
decides in the order in which it appends. A copy of an entry that is still under way is answered after that entry,
with the same outcome.

:class:`SequenceTable` is the sans-IO core: the rows of one topic, owned by the writer thread.

1. An entry stands for the sequence ids ``first`` to ``last`` of its producer (equal for a single message). If all are
   at or below the producer's highest id, the entry is a duplicate. If all are above, it is stored, and ``last`` is
   the new highest id. Otherwise (a producer sent again in other batches) it is refused: only a part of it is here.
2. The chunks of a large message have one sequence id. It counts when the last chunk is stored. Before, the row has the
   message and the number of its chunks here, and the next chunk must follow them. A chunk that skips some is refused,
   or the message would be taken for complete later. A message that starts again under another uuid starts again here.
3. A row is dropped when its producer is not connected and has sent nothing for a time. If there are too many rows,
   the one unused for longest is dropped.
4. Copies from other clusters count as well, by what is in the log, not by a highest id (see
   :mod:`replicator.engine.producing.sequence_index`). Ids alone prove nothing: a failover can give one out twice. An
   entry is a duplicate if each of its messages has an equal one among the copies, however batches are cut. An entry
   with only some messages here is refused. An entry whose ids are here with other content is stored. Chunks continue
   after equal chunks of the same message. A message whose first chunk is stored here is stored whole.
5. If the transaction fails, :meth:`SequenceTable.roll_back` restores the rows.

Source: the publicly documented behaviour of Pulsar's broker deduplication. Upstream writes such a table as a snapshot
now and then, and reads the log from there on. It answers a copy of an entry that is on its way with an error.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from replicator.engine.errors import BlockCorrupt, NotAllowedError

PRODUCERS_REMEMBERED_MAX: Final = 10_000
"""Limit of rows of one topic, as upstream (brokerDeduplicationMaxNumberOfProducers)."""
INACTIVE_MS_MAX: Final = 6 * 60 * 60 * 1000
"""Time for which a row stays after its producer was last seen, as upstream
(brokerDeduplicationProducerInactivityTimeout)."""
SEQUENCE_ID_MAX: Final = 2**63 - 1
"""Largest sequence id that clients in every language can hold."""
NONE_YET: Final = -1

_ROW = struct.Struct(">qQqii8s")
_NO_UUID: Final = bytes(8)


class Copied(NamedTuple):
    """How much of a sent entry is in the log as copies from other clusters: all messages (``whole``), or some
    (``part``)."""

    whole: bool = False
    part: bool = False
    chunk: int = NONE_YET
    """Highest copied chunk of a message whose last chunk has not come, or -1."""
    other_chunk: bool = False
    """Whether the copied message has other content than this chunk, which is not the first one, in its place."""


_NOT_COPIED: Final = Copied()


class Copies(Protocol):
    """Interface that finds the messages of sent entries among the copies from other clusters."""

    def highest(self, producer: str) -> int:
        """Return a sequence id that no copied entry of ``producer`` exceeds."""
        ...

    def of(self, index: int, sent: SequencedEntry) -> Copied:
        """Return how much of a sent entry was copied from other clusters. ``index`` is its place among the sent
        entries."""
        ...


class SequencedEntry(NamedTuple):
    """The part of an entry that deduplication looks at. ``chunks`` is 0 if the entry is not a chunk of a larger
    message."""

    producer: str
    first: int
    last: int
    chunk: int = 0
    chunks: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """Stored state of one producer: everything up to ``highest``, and the chunks up to ``chunk`` of message
    ``open_id``."""

    highest: int = NONE_YET
    used_at_ms: int = 0
    open_id: int = NONE_YET
    chunk: int = NONE_YET
    chunks: int = 0
    uuid_digest: bytes = _NO_UUID


def encode_row(row: SequenceRow) -> bytes:
    return _ROW.pack(row.highest, row.used_at_ms, row.open_id, row.chunk, row.chunks, row.uuid_digest)


def decode_row(stored: bytes) -> SequenceRow:
    return SequenceRow(*_ROW.unpack(stored))


class SequenceTable:
    """The rows of one topic, longest unused first, and which of them changed since they were last written.

    ``connected`` holds the names of the connected producers. The table only reads it; another thread may own it.
    """

    def __init__(
        self,
        rows: Iterable[tuple[str, SequenceRow]] = (),
        *,
        connected: Container[str] = (),
        rows_max: int = PRODUCERS_REMEMBERED_MAX,
    ) -> None:
        self._rows: OrderedDict[str, SequenceRow] = OrderedDict(sorted(rows, key=lambda item: item[1].used_at_ms))
        self._connected = connected
        self._rows_max = rows_max
        self._before: dict[str, SequenceRow | None] = {}
        """Rows that this transaction has changed, as they were before."""
        self._unwritten: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def highest(self, producer: str) -> int:
        """Return the highest sequence id of ``producer`` up to which everything is stored; -1 if there is none."""
        row = self._rows.get(producer)
        return NONE_YET if row is None else row.highest

    def admit(self, numbered: Sequence[SequencedEntry], now_ms: int, copies: Copies | None = None) -> list[bool]:
        """Return for each entry whether to store it. False means a duplicate of an earlier entry, or of a copy.

        Raises :class:`NotAllowedError` for an entry that may be neither stored nor dropped, and :class:`BlockCorrupt`
        if a copy cannot be read. Then nothing has changed.
        """
        changed: dict[str, SequenceRow | None] = {}
        try:
            return self._admit_all(numbered, now_ms, changed, copies)
        except (NotAllowedError, BlockCorrupt):
            for producer, row in changed.items():
                self._restore(producer, row)
            raise

    def note(self, highest: Mapping[str, int], now_ms: int) -> None:
        """Raise each producer's highest sequence id to that of entries from other clusters.

        Only for a table that does not admit entries.
        """
        for producer, last in highest.items():
            before = self._rows.get(producer)
            if before is None and last < 0:
                continue
            if before is None or last > before.highest:
                self._set(producer, SequenceRow(last, now_ms))
                self._rows.move_to_end(producer)
            if len(self._rows) > self._rows_max:
                self._evict({})

    def touch(self, producer: str, now_ms: int) -> None:
        """Mark ``producer`` as seen now, though it sent nothing."""
        row = self._rows.get(producer)
        if row is not None:
            self._set(producer, replace(row, used_at_ms=now_ms))

    def drop_inactive(self, now_ms: int, *, inactive_ms_max: int = INACTIVE_MS_MAX) -> None:
        """Forget producers that are not connected and were not seen for ``inactive_ms_max``.

        A connected producer is marked as seen once a quarter of that time has passed. So few rows are written.
        """
        for producer, row in list(self._rows.items()):
            unused_ms = now_ms - row.used_at_ms
            if producer in self._connected:
                if unused_ms > inactive_ms_max // 4:
                    self.touch(producer, now_ms)
            elif unused_ms > inactive_ms_max:
                self._set(producer, None)

    def clear(self) -> None:
        for producer in list(self._rows):
            self._set(producer, None)

    def take_changes(self) -> list[tuple[str, SequenceRow | None]]:
        """Return the rows to write since the last call; None stands for a row to delete."""
        changes = [(producer, self._rows.get(producer)) for producer in sorted(self._unwritten)]
        self._unwritten.clear()
        return changes

    def begin(self) -> None:
        """Begin a transaction. The one before it is durable, or was rolled back."""
        self._before.clear()

    def roll_back(self) -> None:
        """Restore the rows as they were before the transaction, because it was not written."""
        for producer, row in self._before.items():
            self._put(producer, row)
        self._before.clear()
        self._unwritten.clear()

    # One entry.

    def _admit_all(
        self,
        numbered: Sequence[SequencedEntry],
        now_ms: int,
        changed: dict[str, SequenceRow | None],
        copies: Copies | None,
    ) -> list[bool]:
        """Return for each entry, in order, whether it is new, and note the new ones in ``changed``.

        Consecutive new entries of one producer, the usual case, change the producer's row once, at their end.
        """
        stored: list[bool] = []
        run: str | None = None
        highest = copied = NONE_YET
        for entry in numbered:
            producer, first, last, _, chunks, _ = entry
            if producer == run and first > highest and first > copied and not chunks:
                highest = last
                stored.append(True)
                continue
            if run is not None:
                self._advance(run, SequenceRow(highest, now_ms), changed)
            copied = NONE_YET if copies is None else copies.highest(producer)
            here = _NOT_COPIED
            if copies is not None and first <= copied and not self._needs_no_lookup(entry):
                here = copies.of(len(stored), entry)
            stored.append(self._admit(entry, now_ms, changed, here))
            row = self._rows.get(producer)
            run = producer if row is not None and not row.chunks else None
            highest = NONE_YET if row is None else row.highest
        if run is not None:
            self._advance(run, SequenceRow(highest, now_ms), changed)
        return stored

    def _needs_no_lookup(self, entry: SequencedEntry) -> bool:
        """Return whether the table decides about ``entry`` without a look at copies from other clusters.

        It does if a producer sent the entry to this cluster before, or if ``entry`` is a chunk that follows stored
        chunks.
        """
        row = self._rows.get(entry.producer)
        if row is None:
            return False
        return entry.last <= row.highest or bool(entry.chunks and _is_open(row, entry))

    def _advance(self, producer: str, row: SequenceRow, changed: dict[str, SequenceRow | None]) -> None:
        """Raise the producer's row to ``row`` if its highest sequence id has grown."""
        before = self._rows[producer]
        if before.highest < row.highest:
            changed.setdefault(producer, before)
            self._set(producer, row)
            self._rows.move_to_end(producer)

    def _admit(
        self, entry: SequencedEntry, now_ms: int, changed: dict[str, SequenceRow | None], copied: Copied
    ) -> bool:
        before = self._rows.get(entry.producer)
        row = before or SequenceRow()
        if entry.last <= row.highest or copied.whole:
            return False
        if copied.other_chunk:
            raise NotAllowedError(
                f"producer {entry.producer!r} sent chunk {entry.chunk} of message {entry.last}, but the topic has "
                "another message with this sequence id, copied from another cluster, that begins with the same chunk: "
                "send the message under another sequence id"
            )
        if copied.part:
            raise NotAllowedError(
                f"producer {entry.producer!r} sent sequence ids {entry.first} to {entry.last} in one batch, and the "
                "topic has a part of them from another cluster: send the others in a batch of their own"
            )
        if entry.first <= row.highest:
            raise NotAllowedError(
                f"producer {entry.producer!r} sent sequence ids {entry.first} to {entry.last} in one batch, and the "
                f"topic has those up to {row.highest}: send the ones above in a batch of their own"
            )
        if entry.chunks:
            following = _after_chunk(entry, row, copied.chunk, known=before is not None)
            if following is None:
                return False
        else:
            following = SequenceRow(entry.last, now_ms)
        changed.setdefault(entry.producer, before)
        self._set(entry.producer, replace(following, used_at_ms=now_ms) if entry.chunks else following)
        self._rows.move_to_end(entry.producer)
        if before is None and len(self._rows) > self._rows_max:
            self._evict(changed)
        return True

    def _evict(self, changed: dict[str, SequenceRow | None]) -> None:
        """Drop the row unused for longest, preferably of a producer that is not connected."""
        longest_unused = next(iter(self._rows))
        producer = next((name for name in self._rows if name not in self._connected), longest_unused)
        changed.setdefault(producer, self._rows[producer])
        self._set(producer, None)

    def _set(self, producer: str, row: SequenceRow | None) -> None:
        self._before.setdefault(producer, self._rows.get(producer))
        self._unwritten.add(producer)
        self._put(producer, row)

    def _restore(self, producer: str, row: SequenceRow | None) -> None:
        self._put(producer, row)
        if row == self._before.get(producer):
            self._unwritten.discard(producer)

    def _put(self, producer: str, row: SequenceRow | None) -> None:
        if row is None:
            self._rows.pop(producer, None)
        else:
            self._rows[producer] = row


def _after_chunk(entry: SequencedEntry, row: SequenceRow, copied: int, *, known: bool) -> SequenceRow | None:
    """Return the row once the chunk ``entry`` is stored, or None if the topic has that chunk.

    Raises :class:`NotAllowedError` if a chunk before it is missing.
    """
    here = max(row.chunk, copied) if _is_open(row, entry) else copied
    if entry.chunk <= here:
        return None
    if entry.chunk > here + 1 and known:  # of a producer that is not known, the beginning may have come before
        raise NotAllowedError(
            f"producer {entry.producer!r} sent chunk {entry.chunk} of message {entry.last}, and chunk {here + 1} is "
            "not here: send the message again from that chunk on"
        )
    if entry.chunk == entry.chunks - 1:
        return SequenceRow(entry.last)
    return SequenceRow(row.highest, 0, entry.last, entry.chunk, entry.chunks, _digest(entry.uuid))


def _is_open(row: SequenceRow, entry: SequencedEntry) -> bool:
    """Return whether ``row`` has chunks of the incomplete message that the chunk ``entry`` belongs to."""
    return (row.open_id, row.chunks, row.uuid_digest) == (entry.last, entry.chunks, _digest(entry.uuid))


def _digest(uuid: str) -> bytes:
    return blake2b(uuid.encode("utf-8", "surrogatepass"), digest_size=8).digest()
