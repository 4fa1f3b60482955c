"""Finds the newest message of each key in a topic, and makes entries with only these messages. Sans-IO.

Invariant: after a compacted view comes the log from the view's horizon on. A reader of both finds, for each key, the
newest message, unless that is a tombstone.

A pass reads the same entries (the present view, then the log after its horizon) twice:

1. :meth:`Compactor.note` each: remember for each key which message is its newest. A tombstone (no payload, or
   ``null_value``) takes the key away. A chunked message counts when its last chunk is there.
2. :meth:`Compactor.retained` each: an entry without newest messages is left out. A batch with some of them is written
   again, in the same size and order, with the others marked ``compacted_out``: every message keeps its batch index.

Messages without a key are left out (as upstream since 3.2, by PIP-318). Entries that cannot be parsed are kept: damaged
ones, and encrypted batches whose key is not in the entry's metadata.

The horizon must not divide a message whose chunks are still coming: :meth:`Compactor.horizon` stays before it, for a
limited time.

Source: the publicly documented behaviour of Pulsar's two-phase compactor.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from pyroaring import BitMap

from replicator.engine.errors import EntryCorrupt, MessageTooLarge, NotAllowedError
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import BatchedMessage, append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.types import LoggedEntry
from replicator.engine.unpacking import unpacked_internally
from replicator.metadata.metadata_pb2 import NONE, MessageMetadata, SingleMessageMetadata
from snapshots.position import Position

KEYS_MAX: Final = 5_000_000
"""Limit of keys in one pass. A key takes about 200 bytes of memory, so this is a gigabyte. With more keys the pass
fails."""
OPEN_MESSAGES_MAX: Final = 1_000
"""Limit of chunked messages that are incomplete at one time. Beyond it, the oldest is given up."""
OPEN_MS_MAX: Final = 10 * 60 * 1000
"""Time after which an incomplete chunked message without new chunks is given up, so that it does not hold the horizon
any more."""

_PLACE = Struct(">QQI")


class Retained(NamedTuple):
    """The part of an entry that goes into the view, and the batch indexes that do not; None if all do."""

    content: bytes | memoryview
    compacted_out: BitMap | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """One message of an entry, for compaction. ``key`` is None for a message without a key."""

    key: bytes | None
    tombstone: bool


@dataclass(frozen=True, slots=True)
class _Opened:
    """A parsed entry. ``batch`` is None if the entry is a single message."""

    metadata: MessageMetadata
    parts: list[_Part]
    batch: list[BatchedMessage] | None


@dataclass(slots=True)
class _OpenMessage:
    """A chunked message whose last chunk has not come."""

    first: Position
    following_chunk: int
    published_at_ms: int


class Compactor:
    """One pass over one topic. The module describes the order of calls."""

    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._newest: dict[bytes, bytes] = {}
        """By digest of a key, the identity of its newest message."""
        self._open: OrderedDict[str, _OpenMessage] = OrderedDict()

    @property
    def keys(self) -> int:
        return len(self._newest)

    def note(self, entry: LoggedEntry) -> None:
        """Take an entry in the first reading. Raise :class:`NotAllowedError` if there are too many keys."""
        with ExitStack() as held:
            opened = None if entry.marker else _open(entry, held)
            if opened is not None:
                self._note(entry.position, opened)

    def _note(self, position: Position, opened: _Opened) -> None:
        metadata = opened.metadata
        if metadata.num_chunks_from_msg > 1 and not self._is_complete(metadata, position):
            return
        for index, part in enumerate(opened.parts):
            if part.key is None:
                continue
            digest = _digest(part.key)
            if part.tombstone:
                self._newest.pop(digest, None)
            else:
                self._newest[digest] = _identity(position, index, metadata)
        if len(self._newest) > self._keys_max:
            raise NotAllowedError(
                f"the topic cannot be compacted, because its messages have more than {self._keys_max} different keys: "
                "spread them over a topic with more partitions, or do not compact this one"
            )

    def horizon(self, end: Position, now_ms: int) -> Position:
        """Return the position up to which the view may reach, after all entries up to ``end`` were noted."""
        waiting = [message.first for message in self._open.values() if now_ms - message.published_at_ms <= OPEN_MS_MAX]
        first = min(waiting, default=None)
        return end if first is None else Position(first.ledger, first.entry - 1)

    def retained(self, entry: LoggedEntry) -> Retained | None:
        """Take an entry in the second reading. Return the part that goes into the view, or None if nothing does."""
        if entry.marker:
            return None
        with ExitStack() as held:
            opened = _open(entry, held)
            return Retained(entry.entry) if opened is None else self._retained(entry, opened)

    def _retained(self, entry: LoggedEntry, opened: _Opened) -> Retained | None:
        kept = [
            part.key is not None
            and self._newest.get(_digest(part.key)) == _identity(entry.position, index, opened.metadata)
            for index, part in enumerate(opened.parts)
        ]
        if not any(kept):
            return None
        if opened.batch is None or all(kept):
            return Retained(entry.entry)
        compacted_out = BitMap(index for index, keep in enumerate(kept) if not keep)
        return Retained(_rewrite(opened.metadata, opened.batch, kept), compacted_out)

    def _is_complete(self, metadata: MessageMetadata, position: Position) -> bool:
        """Take in a chunk. Return whether it is the last chunk of a message, and all others are here."""
        if metadata.chunk_id == 0:
            self._open[metadata.uuid] = _OpenMessage(position, 1, metadata.publish_time)
            self._open.move_to_end(metadata.uuid)
            if len(self._open) > OPEN_MESSAGES_MAX:
                self._open.popitem(last=False)
            return False
        message = self._open.get(metadata.uuid)
        if message is None or metadata.chunk_id != message.following_chunk:
            return False
        message.following_chunk += 1
        message.published_at_ms = metadata.publish_time
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            del self._open[metadata.uuid]
            return True
        return False


def publish_time_ms(entry: LoggedEntry) -> int:
    """Return the publish time that the producer stated; -1 for an entry that cannot be read."""
    try:
        metadata, _ = decode_entry(entry.entry, check=False)
    except EntryCorrupt:
        return -1
    return metadata.publish_time


def _open(entry: LoggedEntry, held: ExitStack) -> _Opened | None:
    """Parse an entry, and return None if it cannot be parsed. Decompressed bytes count in the engine's budget until
    ``held`` is closed."""
    try:
        metadata, payload = decode_entry(entry.entry, check=False)
        encrypted = bool(metadata.encryption_keys)
        if not metadata.HasField("num_messages_in_batch"):
            return _Opened(metadata, [_single_part(metadata, payload, encrypted=encrypted)], None)
        if encrypted:
            part = _single_part(metadata, payload, encrypted=True)
            return None if part.key is None else _Opened(metadata, [part], None)
        content = held.enter_context(unpacked_internally(payload, metadata.compression, metadata.uncompressed_size))
        batch = list(split_batch(metadata, memoryview(content)))
    except (EntryCorrupt, MessageTooLarge):
        return None
    return _Opened(metadata, [_batched_part(message) for message in batch], batch)


def _single_part(metadata: MessageMetadata, payload: memoryview, *, encrypted: bool) -> _Part:
    key = None
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key = metadata.partition_key.encode("utf-8", "surrogatepass")
    size_bytes = len(payload) if metadata.compression == NONE else metadata.uncompressed_size
    return _Part(key, metadata.null_value or (not size_bytes and not encrypted))


def _batched_part(message: BatchedMessage) -> _Part:
    single = message.metadata
    key = None
    if single.HasField("partition_key") and not single.null_partition_key:
        key = single.partition_key.encode("utf-8", "surrogatepass")
    return _Part(key, single.null_value or not len(message.payload))


def _rewrite(metadata: MessageMetadata, batch: list[BatchedMessage], kept: list[bool]) -> bytes:
    body = bytearray()
    for message, keep in zip(batch, kept, strict=True):
        if keep:
            append_to_batch(body, message.metadata, bytes(message.payload))
        else:
            append_to_batch(body, SingleMessageMetadata(compacted_out=True, payload_size=0), b"")
    written = MessageMetadata()
    written.CopyFrom(metadata)
    written.uncompressed_size = len(body)
    return encode_entry(written, compress(body, metadata.compression))


def _identity(position: Position, index: int, metadata: MessageMetadata) -> bytes:
    """Return the identity of a message: its place, or for a chunk that of the message that it belongs to."""
    if metadata.num_chunks_from_msg > 1:
        return _digest(metadata.uuid.encode("utf-8", "surrogatepass"))
    return _PLACE.pack(position.ledger, position.entry, index)


def _digest(key: bytes) -> bytes:
    """Return a digest of a key, 16 bytes for any length. Two keys with one digest do not happen."""
    return blake2b(key, digest_size=16).digest()
