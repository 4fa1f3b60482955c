"""Chunked messages: a message over the entry limit is sent as several entries and put together again. Sans-IO.

Invariants: a message comes out of the assembler only if every chunk of it went in, each once and in order, and they
have the size that they say (5: what is given out is what was sent); what is held is bounded by count and by bytes (11).

Algorithm of the producer: compress the whole message, cut the result into pieces, send each as an entry with the same
``uuid`` and sequence id, and with ``chunk_id``, ``num_chunks_from_msg`` and ``total_chunk_msg_size``. Encryption comes
after the cut, for each chunk alone.

Algorithm of :class:`ChunkAssembler`, for a chunk whose message has ``next`` as the chunk that it waits for:
1. Chunk 0 of a message that is not held begins it. Over a limit the oldest other message is abandoned.
2. ``chunk_id == next``: it is added; with the last one the message is complete.
3. A chunk that is held already, at the same position: the cluster delivered it again. Chunk 0 begins the message anew
   since the others follow it; any other is dropped.
4. A chunk that is held already, at another position: the producer sent it again because it missed a receipt. Chunk 0
   begins the message anew, and the older copies are to be acknowledged; any other is to be acknowledged alone.
5. Anything else means that a chunk is missing: what is held of the message and this chunk are abandoned. They stay
   unacknowledged, so that they come again. If the message still misses a chunk when the expiry has passed since the
   first time, it never becomes complete, and its chunks are to be acknowledged, or they would hold back the
   subscription for ever.
6. A message that is not complete in time is abandoned and its chunks are to be acknowledged, for the same reason.

Source: Pulsar's PIP-37 and the publicly documented behaviour of its consumers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from replicator.client.errors import (
    ChunkDuplicated,
    ChunkMissing,
    ChunksExpired,
    ChunksOverflow,
    InvalidMessage,
    MessageTooBig,
)
from replicator.engine.log.compression import UNCOMPRESSED_BYTES_MAX
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

CHUNKED_MESSAGE_BYTES_MAX: Final = UNCOMPRESSED_BYTES_MAX
"""The largest message that can be sent in chunks: what a consumer agrees to decompress."""
CHUNKS_MAX: Final = 100_000
"""Chunks of one message; their positions are kept until it is acknowledged."""
MISSED_MAX: Final = 10_000
"""Limit of messages for which one assembler remembers when they first missed a chunk."""
CHUNK_BYTES_PENDING_MAX: Final = 4 * CHUNKED_MESSAGE_BYTES_MAX
"""Payload that the messages of one assembler may have together when they are complete, however many they are."""


def split_payload(payload: bytes | bytearray, chunk_bytes_max: int) -> Iterator[memoryview]:
    """Cut ``payload`` into pieces of at most ``chunk_bytes_max`` bytes, in order. The views do not copy it.

    Raises :class:`MessageTooBig` if that makes more than :data:`CHUNKS_MAX` pieces, or no piece fits.
    """
    if chunk_bytes_max <= 0 or len(payload) > chunk_bytes_max * CHUNKS_MAX:
        raise MessageTooBig(
            f"{len(payload)} bytes in chunks of {chunk_bytes_max} are more than {CHUNKS_MAX} chunks, the limit: send "
            "a smaller message"
        )
    view = memoryview(payload)
    return (view[at : at + chunk_bytes_max] for at in range(0, len(payload), chunk_bytes_max))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk as it is received, decrypted but not decompressed."""

    uuid: str
    chunk_id: int
    chunks: int
    total_bytes: int
    payload: bytes
    position: Position


def chunk_of(
    metadata: MessageMetadata, payload: bytes | memoryview, position: Position, topic: str = ""
) -> Chunk | None:
    """Return the chunk that an entry holds, or None if the entry is not a chunk. Raises :class:`InvalidMessage`."""
    if metadata.num_chunks_from_msg <= 1:
        return None
    chunk = Chunk(
        metadata.uuid,
        metadata.chunk_id,
        metadata.num_chunks_from_msg,
        metadata.total_chunk_msg_size,
        bytes(payload),
        position,
    )
    of_topic = f" of {topic}" if topic else ""
    if not (chunk.uuid and chunk.chunks <= CHUNKS_MAX and 0 <= chunk.chunk_id < chunk.chunks):
        raise InvalidMessage(
            f"entry {position}{of_topic} says it is chunk {chunk.chunk_id} of {chunk.chunks} of message "
            f"{chunk.uuid!r:.80}, which cannot be: chunks have a uuid, and numbers from 0 on, of at most "
            f"{CHUNKS_MAX}. Its producer is wrong; a seek behind the entry goes on without it"
        )
    if not len(chunk.payload) <= chunk.total_bytes <= CHUNKED_MESSAGE_BYTES_MAX:
        raise InvalidMessage(
            f"entry {position}{of_topic} is a chunk of {len(chunk.payload)} bytes, and says that its whole message "
            f"has {chunk.total_bytes}, which cannot be: a message has no fewer bytes than its chunk, and at most "
            f"{CHUNKED_MESSAGE_BYTES_MAX}. Its producer is wrong; a seek behind the entry goes on without it"
        )
    return chunk


@dataclass(frozen=True, slots=True)
class Assembled:
    """Complete message: its payload (still compressed), and the positions of its chunks in order."""

    payload: bytes
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class DiscardedChunks:
    """Chunks that the assembler let go of, and why.

    With ``acknowledge`` they never become a message and the consumer acknowledges them. Without it they stay
    unacknowledged, so that they are delivered again.
    """

    positions: tuple[Position, ...]
    error: InvalidMessage
    acknowledge: bool


ChunkAction = Assembled | DiscardedChunks


@dataclass(slots=True)
class _Incomplete:
    """Incomplete message: chunks 0 to ``len(positions) - 1`` have arrived."""

    chunks: int
    total_bytes: int
    begun_ms: int
    positions: list[Position] = field(default_factory=list)
    payload: bytearray = field(default_factory=bytearray)


class ChunkAssembler:
    """Holder of the incomplete messages of one consumer.

    It holds ``pending_max`` messages at once (0: as many as :data:`CHUNK_BYTES_PENDING_MAX` allows), each for
    ``expire_after_ms`` (0: without end). Past ``pending_max`` the oldest is abandoned. With ``acknowledge_oldest`` its
    chunks are then acknowledged, and this subscription never gets the message.
    """

    __slots__ = ("_acknowledge_oldest", "_expire_after_ms", "_incomplete", "_missed", "_pending_max", "_reserved_bytes")

    def __init__(self, *, pending_max: int = 10, expire_after_ms: int = 60_000, acknowledge_oldest: bool = False):
        assert pending_max >= 0
        assert expire_after_ms >= 0
        self._pending_max = pending_max
        self._expire_after_ms = expire_after_ms
        self._acknowledge_oldest = acknowledge_oldest
        self._incomplete: dict[str, _Incomplete] = {}  # in the order of their beginnings
        self._missed: dict[int, int] = {}
        """Times at which messages first missed a chunk, by the hash of their uuid, the earliest first."""
        self._reserved_bytes = 0

    def __len__(self) -> int:
        """Return the number of incomplete messages."""
        return len(self._incomplete)

    @property
    def deadline_ms(self) -> int | None:
        """Return when :meth:`expire` is due next, by the clock that :meth:`add` is given; None if never."""
        if not self._incomplete or not self._expire_after_ms:
            return None
        return next(iter(self._incomplete.values())).begun_ms + self._expire_after_ms

    def add(self, chunk: Chunk, now_ms: int) -> list[ChunkAction]:
        """Add one chunk. Return the actions that follow, in order. ``now_ms`` is of a clock that only goes forward."""
        actions: list[ChunkAction] = list(self.expire(now_ms))
        held = self._incomplete.get(chunk.uuid)
        if chunk.chunk_id == 0:
            if held is not None:
                actions += self._restart_message(chunk, held)
            actions += self._make_room(chunk.total_bytes)
            held = _Incomplete(chunk.chunks, chunk.total_bytes, now_ms)
            self._incomplete[chunk.uuid] = held
            self._reserved_bytes += chunk.total_bytes
        elif held is not None and chunk.chunk_id < len(held.positions):
            if held.positions[chunk.chunk_id] != chunk.position:
                actions.append(
                    DiscardedChunks((chunk.position,), ChunkDuplicated(_named(chunk, "is here already")), True)
                )
            return actions
        elif held is None or chunk.chunk_id > len(held.positions):
            return [*actions, self._missing(chunk, held, now_ms)]
        if (chunk.chunks, chunk.total_bytes) != (held.chunks, held.total_bytes):
            return [*actions, self._chunk_conflict(chunk, "contradicts the chunks before it")]
        held.positions.append(chunk.position)
        held.payload += chunk.payload
        if len(held.payload) > held.total_bytes:
            return [*actions, self._chunk_conflict(chunk, f"goes beyond {held.total_bytes} bytes")]
        if len(held.positions) == held.chunks:
            if len(held.payload) != held.total_bytes:
                return [
                    *actions,
                    self._chunk_conflict(chunk, f"ends at {len(held.payload)} bytes of {held.total_bytes}"),
                ]
            self._forget(chunk.uuid)
            self._missed.pop(hash(chunk.uuid), None)
            actions.append(Assembled(bytes(held.payload), tuple(held.positions)))
        return actions

    def expire(self, now_ms: int) -> list[DiscardedChunks]:
        """Abandon the messages that began too long ago."""
        expired: list[DiscardedChunks] = []
        while (deadline_ms := self.deadline_ms) is not None and deadline_ms <= now_ms:
            uuid, held = next(iter(self._incomplete.items()))
            self._forget(uuid)
            text = (
                f"message {uuid!r:.80}: {len(held.positions)} of {held.chunks} chunks came within "
                f"{self._expire_after_ms} ms"
            )
            expired.append(DiscardedChunks(tuple(held.positions), ChunksExpired(text), acknowledge=True))
        return expired

    def clear(self) -> None:
        """Forget all chunks, because a new connection delivers everything unacknowledged from the beginning."""
        self._incomplete.clear()
        self._reserved_bytes = 0

    def _restart_message(self, chunk: Chunk, held: _Incomplete) -> list[DiscardedChunks]:
        self._forget(chunk.uuid)
        if held.positions[0] == chunk.position:
            return []  # the cluster delivers it again, and the others after it
        error = ChunkDuplicated(_named(chunk, f"was sent again after {len(held.positions)} chunks"))
        return [DiscardedChunks(tuple(held.positions), error, acknowledge=True)]

    def _make_room(self, needed_bytes: int) -> list[DiscardedChunks]:
        overflowing: list[DiscardedChunks] = []
        while self._incomplete and (
            0 < self._pending_max <= len(self._incomplete)
            or self._reserved_bytes + needed_bytes > CHUNK_BYTES_PENDING_MAX
        ):
            uuid, oldest = next(iter(self._incomplete.items()))
            self._forget(uuid)
            self._missed.pop(hash(uuid), None)  # its later chunks miss what was here, and are not hopeless
            text = (
                f"message {uuid!r:.80}: given up after {len(oldest.positions)} of {oldest.chunks} chunks for newer ones"
            )
            overflowing.append(DiscardedChunks(tuple(oldest.positions), ChunksOverflow(text), self._acknowledge_oldest))
        return overflowing

    def _missing(self, chunk: Chunk, held: _Incomplete | None, now_ms: int) -> DiscardedChunks:
        positions: tuple[Position, ...] = (chunk.position,)
        awaited = 0
        if held is not None:
            awaited = len(held.positions)
            positions = (*held.positions, chunk.position)
            self._forget(chunk.uuid)
        hopeless = 0 < self._expire_after_ms <= now_ms - self._missed_since(chunk.uuid, now_ms)
        return DiscardedChunks(positions, ChunkMissing(_named(chunk, f"came, expected chunk {awaited}")), hopeless)

    def _missed_since(self, uuid: str, now_ms: int) -> int:
        """Return when a message first missed a chunk; note that it is now if that is not known."""
        key = hash(uuid)
        if key not in self._missed:
            if len(self._missed) >= MISSED_MAX:
                earliest, since_ms = next(iter(self._missed.items()))
                if now_ms - since_ms < 2 * self._expire_after_ms:
                    return now_ms  # it is noted when it comes again, once there is room
                del self._missed[earliest]  # it came in the meantime, and was given up
            self._missed[key] = now_ms
        return self._missed[key]

    def _chunk_conflict(self, chunk: Chunk, how: str) -> DiscardedChunks:
        held = self._incomplete[chunk.uuid]
        positions = tuple(dict.fromkeys((*held.positions, chunk.position)))
        self._forget(chunk.uuid)
        return DiscardedChunks(positions, InvalidMessage(_named(chunk, how)), acknowledge=False)

    def _forget(self, uuid: str) -> None:
        self._reserved_bytes -= self._incomplete.pop(uuid).total_bytes


def _named(chunk: Chunk, what: str) -> str:
    return f"entry {chunk.position}: chunk {chunk.chunk_id} of {chunk.chunks} of message {chunk.uuid!r:.80} {what}"
