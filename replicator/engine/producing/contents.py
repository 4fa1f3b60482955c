"""Comparison of entries from different clusters with equal sequence ids, to find out whether their messages are equal.

A failover can give out a sequence id twice. So messages of two origins are duplicates only if their content is equal
too: payload, key, ordering key, properties, event time, and the clusters that they are for. The rest may differ
between two sends of one message: publish time, compression, schema version, delivery time, and the cut of batches.

1. Stored bytes are compared first. They decide for entries that are equal, or differ only in metadata that is not
   content.
2. Other entries are *opened*: decompressed, and split into messages with a digest each. That never happens inside of
   a transaction. :meth:`Contents.messages` notes each entry that it lacks, and the transaction is rolled back.
3. Then the writer calls :meth:`Contents.open_wanted`, and writes its group again, with all opened entries at hand.
4. Some entries cannot be opened: ciphertext, damaged payloads, and entries above the limits below. Such an entry equals
   only its own bytes. At worst its messages are stored and delivered twice, and never lost.
5. Entries are opened on the writer's thread: nothing is confirmed meanwhile. So the work for one group is bounded, over
   all of its openings: by :data:`OPENED_BYTES_MAX`, and by :data:`OPENED_MESSAGES_MAX` for batches of tiny messages.
   An entry that turns out to be damaged uses up the bounds like any other. A group of several requests that wants more
   is written in halves, each with the whole bounds. The steps outside of opening are bounded by the sizes of groups,
   blocks and look-ups (:mod:`.numbered_rows`, :mod:`.numbered_blocks`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from replicator.engine.errors import EngineError
from replicator.engine.log import compression
from replicator.engine.log.block import Buffer
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry, split_batch
from replicator.metadata.metadata_pb2 import NONE, KeyValue, MessageMetadata, SingleMessageMetadata

OPENED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Uncompressed bytes of the entries that one group commit decompresses. That takes some tenths of a second, in which
nothing is confirmed. A producer that sends again has only a few megabytes under way."""
OPENED_MESSAGES_MAX: Final = 2 * BATCH_MESSAGES_MAX
"""Messages in the entries that one group commit decompresses: two of the largest batches, which takes one to two
seconds, in which nothing is confirmed."""
OPENED_MESSAGES_KEPT_MAX: Final = 100_000
"""Digests of messages in the cache, some 200 bytes each. A producer that sends again sends neighbouring entries."""

_DIGEST_BYTES: Final = 16


class ContentsNeeded(Exception):
    """Raised at the end of a transaction that must be rolled back, because entries must be decompressed for
    comparison."""


class MessageContent(NamedTuple):
    """Sequence id of one message, and the digest of its content."""

    sequence_id: int
    digest: bytes


Opened = tuple[MessageContent, ...] | None
"""Messages of an entry, in their order; None for an entry that cannot be decompressed."""


def compare_stored(one: Buffer, other: Buffer) -> bool | None:
    """Return whether two entries hold the same messages, judged by their stored bytes.

    Return None if that needs their decompressed contents.
    """
    if len(one) == len(other) and bytes(one) == bytes(other):  # comparing views takes ten times as long
        return True
    try:
        (metadata, payload), (its_metadata, its_payload) = (
            decode_entry(memoryview(each), check=False) for each in (one, other)
        )
    except EngineError:
        return False
    same_payload = len(payload) == len(its_payload) and bytes(payload) == bytes(its_payload)
    if same_payload and _shape(metadata) == _shape(its_metadata):
        return True
    if metadata.encryption_keys or its_metadata.encryption_keys:
        return False
    if metadata.num_chunks_from_msg > 1 or its_metadata.num_chunks_from_msg > 1:
        return False  # a chunk is a piece of what was compressed
    if _is_plain(metadata) and _is_plain(its_metadata):
        return same_payload and _content(metadata) == _content(its_metadata) and _to(metadata) == _to(its_metadata)
    return None


class Work(NamedTuple):
    """Amount of work to open entries: uncompressed bytes, and messages."""

    size_bytes: int
    messages: int

    def __add__(self, other: Work) -> Work:  # type: ignore[override]  # no concatenation
        return Work(self.size_bytes + other.size_bytes, self.messages + other.messages)

    def less(self, other: Work) -> Work:
        """Return what is left of this amount after ``other``."""
        return Work(self.size_bytes - other.size_bytes, self.messages - other.messages)

    def covers(self, other: Work) -> bool:
        """Return whether ``other`` is at most this amount."""
        return other.size_bytes <= self.size_bytes and other.messages <= self.messages


def room_for_opening() -> Work:
    """Return how much work one group commit may take to open entries."""
    return Work(OPENED_BYTES_MAX, OPENED_MESSAGES_MAX)


def work_of(entry: Buffer) -> Work:
    """Return the work to open ``entry``, as its metadata state it; nothing for an entry that is not opened at all."""
    try:
        metadata, payload = decode_entry(memoryview(entry), check=False)
    except EngineError:
        return Work(0, 0)
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
        return Work(0, 0)
    size = len(payload) if metadata.compression == NONE else max(len(payload), metadata.uncompressed_size)
    return Work(size, max(1, metadata.num_messages_in_batch))


def open_entry(entry: Buffer, room: Work | None = None) -> Opened:
    """Decompress an entry, and return its messages.

    Return None for encrypted entries, chunks, damaged payloads, and entries whose :func:`work_of` is more than
    ``room`` (:func:`room_for_opening`).
    """
    if not (room or room_for_opening()).covers(work_of(entry)):
        return None
    try:
        metadata, payload = decode_entry(memoryview(entry), check=False)
        if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
            return None
        if metadata.compression != NONE:
            payload = memoryview(compression.decompress(payload, metadata.compression, metadata.uncompressed_size))
        to = _to(metadata)
        if not metadata.HasField("num_messages_in_batch"):
            return (MessageContent(metadata.sequence_id, _digest(metadata, payload, to)),)
        return tuple(
            MessageContent(
                single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index,
                _digest(single, body, (*to, True) if single.compacted_out else to),
            )
            for index, (single, body) in enumerate(split_batch(metadata, payload))
        )
    except EngineError:
        return None


def alike(one: Buffer, other: Buffer) -> bool:
    """Return whether two entries hold the same messages. Decompress them if needed, so never call this in a
    transaction."""
    if (stored := compare_stored(one, other)) is not None:
        return stored
    opened = open_entry(one)
    return opened is not None and opened == open_entry(other)


class Contents:
    """Cache of decompressed entries, as digests of their messages. Only the writer's thread may use it.

    A comparison in a transaction does not wait for an entry that the cache lacks. The entry is noted as wanted, and
    counts as different from everything. At its end the transaction is rolled back, so that all wanted entries are
    decompressed at once.
    """

    __slots__ = ("_messages", "_not_opened", "_opened", "_room", "closed", "wanted")

    def __init__(self) -> None:
        self._opened: OrderedDict[bytes, Opened] = OrderedDict()
        self._messages = 0
        self._room = room_for_opening()
        """Work that may still be done for the current group."""
        self._not_opened: list[bytes] = []
        """Entries of the current group that could not be decompressed. The next group may have room for them."""
        self.closed = False
        """Whether no more entries are decompressed for this group. Then an entry that the cache lacks counts as
        different."""
        self.wanted: dict[bytes, bytes] = {}
        """Entries that are to be decompressed, by the digest of their bytes."""

    @property
    def exceeds_budget(self) -> bool:
        """Return whether the wanted entries take more work than is left for this group."""
        return not self._room.covers(sum(map(work_of, self.wanted.values()), Work(0, 0)))

    def messages(self, entry: Buffer) -> Opened:
        """Return the messages of ``entry`` from the cache, or None if the entry could not be decompressed.

        If the cache lacks the entry, note it as wanted and return None; if ``closed``, return None only.
        """
        key = _key(entry)
        if key not in self._opened:
            if self.closed:
                return None
            self.wanted[key] = bytes(entry)
            return None
        self._opened.move_to_end(key)
        return self._opened[key]

    def alike(self, one: Buffer, other: Buffer) -> bool:
        """Return whether two entries hold the same messages.

        The result is False if an entry is not in the cache; then the entry is noted as wanted.
        """
        if (stored := compare_stored(one, other)) is not None:
            return stored
        opened, its_opened = self.messages(one), self.messages(other)
        return opened is not None and opened == its_opened

    def open_wanted(self) -> None:
        """Decompress the wanted entries into the cache, as far as :func:`room_for_opening` of the group lasts.

        An entry beyond that is cached as one that cannot be decompressed.
        """
        for key, entry in self.wanted.items():
            work = work_of(entry)
            opened = open_entry(entry, self._room)
            if self._room.covers(work):  # also if it was damaged: to find that took the work
                self._room = self._room.less(work)
            self._opened[key] = opened
            self._messages += 1 if opened is None else len(opened)
            if opened is None:
                self._not_opened.append(key)
        self.wanted = {}

    def settle(self) -> None:
        """Shrink the cache to :data:`OPENED_MESSAGES_KEPT_MAX` messages, the oldest first, after the writer has
        written a group, or gives it up to write its halves.

        Entries that could not be decompressed are forgotten, because the next group may have room for them.
        """
        self.wanted = {}
        self.closed = False
        self._room = room_for_opening()
        for key in self._not_opened:
            if self._opened.pop(key, ()) is None:
                self._messages -= 1
        self._not_opened = []
        while self._messages > OPENED_MESSAGES_KEPT_MAX:
            _, opened = self._opened.popitem(last=False)
            self._messages -= 1 if opened is None else len(opened)


def equal_messages(sent: Sequence[MessageContent], here: Iterable[Sequence[MessageContent]]) -> int:
    """Return how many messages of ``sent`` have an equal message in ``here``, however batches are cut."""
    found = {message for messages in here for message in messages}
    return sum(message in found for message in sent)


def _key(entry: Buffer) -> bytes:
    return blake2b(entry, digest_size=_DIGEST_BYTES).digest()


def _properties(properties: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((each.key, each.value) for each in properties))


def _to(metadata: MessageMetadata) -> tuple[str, ...]:
    """Return the sorted names of the clusters that the producer restricts the message to; empty if it names none."""
    return tuple(sorted(metadata.replicate_to))


def _is_plain(metadata: MessageMetadata) -> bool:
    """Return whether the payload is that of a single message without compression."""
    return metadata.compression == NONE and not metadata.HasField("num_messages_in_batch")


def _content(metadata: MessageMetadata | SingleMessageMetadata) -> tuple[object, ...]:
    """Return the part of a message's metadata that is content: two sends of one message agree in it."""
    return (
        metadata.HasField("partition_key"),
        metadata.partition_key,
        metadata.partition_key_b64_encoded,
        metadata.null_partition_key,
        metadata.ordering_key,
        metadata.null_value,
        metadata.event_time,
        _properties(metadata.properties),
    )


def _shape(metadata: MessageMetadata) -> tuple[object, ...]:
    """Return the part of an entry's metadata that tells how to read the payload, or that is content."""
    return (
        metadata.sequence_id,
        max(metadata.sequence_id, metadata.highest_sequence_id),
        metadata.HasField("num_messages_in_batch"),
        metadata.num_messages_in_batch,
        metadata.compression,
        metadata.uncompressed_size if metadata.compression != NONE else 0,
        metadata.num_chunks_from_msg,
        metadata.chunk_id,
        _to(metadata),
        metadata.encryption_algo,
        metadata.encryption_param,
        sorted((each.key, each.value) for each in metadata.encryption_keys),
        _content(metadata),
    )


def _digest(metadata: MessageMetadata | SingleMessageMetadata, payload: Buffer, more: tuple[object, ...]) -> bytes:
    digest = blake2b(repr((_content(metadata), more, len(payload))).encode(), digest_size=_DIGEST_BYTES)
    digest.update(payload)
    return digest.digest()
