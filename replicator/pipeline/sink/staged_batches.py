"""Batches of one task of a write: rows become producer batches by topic, in frames for the staging area.

Record batches go in, bodies for the worker come out; no network, no Spark. For each record batch:

1. Markers, and rows that the writer has published already by their origin, are left out (:mod:`.source_marks`).
2. Rows are grouped by destination: topic, partition (by the key's hash like in Pulsar's clients, else by
   turns), and key if batches are to have one. Within each group the order stays.
3. All of them are encoded at once, then cut into producer batches, which are compressed and framed as entries.
4. Entries wait by topic until there is enough for a request, so that many small topics share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.engine.errors import InvalidTopicName, MessageTooLarge
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import METADATA_ROOM_BYTES, encode_entry
from replicator.engine.staging.area import encode_frame
from replicator.engine.topic_name import parse_topic
from replicator.metadata.metadata_pb2 import NONE, MessageMetadata
from replicator.pipeline.errors import BadRow
from replicator.pipeline.sink.batch_encoding import ROWS_BYTES_MAX, EncodedMessages, encode_messages
from replicator.pipeline.sink.options import BATCH_BYTES_MAX, SinkColumns, SinkOptions
from replicator.pipeline.sink.source_marks import SourceMarks
from replicator.protocol.key_hashes import java_string_hash

BODY_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Bytes that are staged at once; the worker checks one body while the next is being made."""
FRAME_BYTES_TARGET: Final = 1024 * 1024
FRAME_ENTRIES_TARGET: Final = 5_000
"""Entries of one frame: about a block of the log."""

Int64s = npt.NDArray[np.int64]
PartitionsOf = Callable[[Sequence[str]], Mapping[str, int]]
"""Function that returns the number of partitions of topics."""


@dataclass(slots=True)
class _Waiting:
    entries: list[bytes]
    sizes: list[int]
    bytes: int = 0


class StagedBatches:
    """Encoder of the rows of one task. ``sequence_from`` is its first sequence id; ``turn`` is where its turns
    begin."""

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        *,
        producer: str,
        sequence_from: int,
        turn: int,
        partitions_of: PartitionsOf,
        wall_clock_ms: Callable[[], int],
        marks: SourceMarks | None = None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._producer = producer
        self._sequence_next = sequence_from
        self._turn = turn
        self._partitions_of = partitions_of
        self._wall_clock_ms = wall_clock_ms
        self._marks = marks
        used = {"topic": columns.topic, "key": columns.key, "properties": columns.properties}
        self._texts = [name for name, is_used in used.items() if is_used]
        self._partitions: dict[str, tuple[str, int]] = {}
        """Full name and number of partitions of each topic, by the name in the rows."""
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_bytes = 0
        self.entries = self.messages = self.left_out = 0
        self.topics: dict[str, int] = {}
        """Messages by topic, partitions for themselves."""

    @property
    def sequence_last(self) -> int:
        """Highest sequence id given; one less than the first if there are none."""
        return self._sequence_next - 1

    def add(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Take rows; yield the bodies that are complete. Raises :class:`BadRow`, :class:`MessageTooLarge`."""
        if batch.nbytes > ROWS_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.add(batch.slice(0, half))
            yield from self.add(batch.slice(half))
            return
        rows = batch.num_rows
        if self._columns.kind:
            batch = messages_only(batch)
        if self._marks is not None:
            batch = self._marks.unpublished(batch)
        self.left_out += rows - batch.num_rows
        if not batch.num_rows:
            return
        yield from self._add(batch)

    def flush(self) -> Iterator[bytes]:
        """Yield the remaining entries as bodies."""
        if self._waiting_bytes:
            yield self._body()

    def _add(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for name in self._texts:
            _check_text(name, batch.column(name))
        groups, batch = self._grouped(batch)
        encoded = encode_messages(
            batch.column(self._columns.payload),
            key=batch.column("key") if self._columns.key else None,
            properties=batch.column("properties") if self._columns.properties else None,
            event_time_ms=_event_time_ms(batch.column("event_time")) if self._columns.event_time else None,
        )
        keys = batch.column("key") if self._options.batch_by_key else None
        for topic, start, stop in groups:
            limits = {"messages_max": self._options.batch_messages, "bytes_max": self._options.batch_bytes}
            for first, end in encoded.batches(start, stop, **limits):
                entry = self._entry(encoded, first, end, None if keys is None else keys[first].as_py())
                waiting = self._waiting.setdefault(topic, _Waiting([], []))
                waiting.entries.append(entry)
                waiting.sizes.append(end - first)
                waiting.bytes += len(entry)
                self._waiting_bytes += len(entry)
                if self._waiting_bytes >= BODY_BYTES_TARGET:
                    yield self._body()
            self.topics[topic] = self.topics.get(topic, 0) + stop - start

    def _entry(self, encoded: EncodedMessages, first: int, end: int, key: str | None) -> bytes:
        payload = encoded.payload(first, end)
        metadata = MessageMetadata(
            producer_name=self._producer,
            sequence_id=self._sequence_next,
            highest_sequence_id=self._sequence_next + end - first - 1,
            publish_time=self._wall_clock_ms(),
            num_messages_in_batch=end - first,
            uncompressed_size=len(payload),
        )
        if key is not None:
            metadata.partition_key = key
        codec = self._options.compression
        if codec != NONE:
            metadata.compression = codec
        self._sequence_next += end - first
        self.entries += 1
        self.messages += end - first
        content = payload if codec == NONE else compress(payload, codec)
        try:
            return encode_entry(metadata, content, bytes_max=BATCH_BYTES_MAX + METADATA_ROOM_BYTES)
        except MessageTooLarge as error:
            message_or_batch = "a message" if end - first == 1 else f"a batch of {end - first} messages"
            raise BadRow(f"{message_or_batch} of {len(payload)} bytes cannot be written: {error}") from None

    def _body(self) -> bytes:
        now_ms = self._wall_clock_ms()
        frames = []
        for topic, waiting in self._waiting.items():
            for first, end in _frames(waiting.entries):
                frames.append(encode_frame(topic, waiting.entries[first:end], waiting.sizes[first:end], now_ms))
        self._waiting, self._waiting_bytes = {}, 0
        return b"".join(frames)

    # Where rows go.

    def _grouped(self, batch: pa.RecordBatch) -> tuple[list[tuple[str, int, int]], pa.RecordBatch]:
        """Return the rows grouped by destination, with the range of rows of each."""
        names, codes = self._topics(batch)
        self._ask_for(names)
        split = any(self._partitions[name][1] for name in names)
        parts = self._parts(batch, names, codes) if split else np.zeros(batch.num_rows, np.int64)
        keys = _codes(batch.column("key"))[1] if self._options.batch_by_key else None
        if len(names) == 1 and not split and keys is None:
            return [(self._partitions[names[0]][0], 0, batch.num_rows)], batch
        columns = (parts, codes) if keys is None else (keys, parts, codes)
        order = np.lexsort(columns)  # the last column counts first; equal rows stay in order
        changed = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
        bounds = [0, *(np.flatnonzero(changed) + 1).tolist(), batch.num_rows]
        groups = []
        for start, stop in pairwise(bounds):
            row = order[start]
            name, partitions = self._partitions[names[codes[row]]]
            groups.append((f"{name}-partition-{parts[row]}" if partitions else name, start, stop))
        return groups, batch.take(pa.array(order))

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Int64s]:
        if not self._columns.topic:
            assert self._options.topic is not None
            return [self._options.topic], np.zeros(batch.num_rows, np.int64)
        found, codes = _codes(batch.column("topic"))
        names = [name for name in found if name is not None]
        if len(names) < len(found):
            raise BadRow("column 'topic': a row has none; give one, or the option 'topic' for all rows")
        return names, codes

    def _ask_for(self, names: Sequence[str]) -> None:
        new = [name for name in names if name not in self._partitions]
        if not new:
            return
        try:
            full = {name: str(parse_topic(name)) for name in new}
        except InvalidTopicName as error:
            raise BadRow(f"column 'topic': a row has a name that no topic can have: {error}") from None
        partitions = self._partitions_of(sorted(set(full.values())))
        self._partitions |= {name: (full[name], partitions[full[name]]) for name in new}

    def _parts(self, batch: pa.RecordBatch, names: Sequence[str], codes: Int64s) -> Int64s:
        """Return the partition of each row; 0 for topics without partitions."""
        numbers = np.array([max(self._partitions[name][1], 1) for name in names], np.int64)[codes]
        turns = np.arange(batch.num_rows) // self._options.batch_messages + self._turn
        self._turn = int(turns[-1]) + 1
        if not self._columns.key:
            return turns % numbers
        keys, key_codes = _codes(batch.column("key"))
        hashes = np.array([-1 if key is None else java_string_hash(key) for key in keys], np.int64)[key_codes]
        return np.where(hashes < 0, turns, hashes) % numbers


def messages_only(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are messages by their column ``kind``, or whose kind is null."""
    return batch.filter(pc.fill_null(pc.equal(batch.column("kind"), "message"), fill_value=True))


def _frames(entries: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    start = size = 0
    for index, entry in enumerate(entries):
        if index > start and (size + len(entry) > FRAME_BYTES_TARGET or index - start >= FRAME_ENTRIES_TARGET):
            yield start, index
            start, size = index, 0
        size += len(entry)
    yield start, len(entries)


def _check_text(name: str, column: pa.Array) -> None:
    """Raise :class:`BadRow` for bytes that Spark has cast to a string and that are not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise BadRow(f"column {name!r}: a row has text that is not UTF-8; write bytes with base64() or hex()") from None


def _codes(column: pa.Array) -> tuple[list[str | None], Int64s]:
    """Return the distinct values of a column, and each row's index among them."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _event_time_ms(column: pa.Array) -> pa.Array:
    """Return a column in milliseconds since 1970, which a bigint has already. Raises :class:`BadRow` for an earlier
    time."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    column = column.cast(pa.int64())
    if (lowest := pc.min(column).as_py()) is not None and lowest < 0:
        raise BadRow(
            f"column 'event_time': {lowest} ms is before 1970, which a message cannot say: correct such rows, and "
            "see that the unit of the column is right"
        )
    return column
