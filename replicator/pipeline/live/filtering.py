"""Filtering and masking of blocks for a link with SQL: messages are left out or changed. Pure.

Invariants (DESIGN §3): 2 and 3, the remaining messages keep identity and order; 5, a left-out range is noted with the
block that follows it, so that the destination never claims it.

1. An entry whose messages all stay unchanged keeps its bytes. If that is so for all entries, the block keeps its bytes.
2. An entry without remaining messages is a hole: the block is cut there, as entries are known by their place in it.
3. Any other entry is written anew, under its identity: with its size, its compression and its sequence ids. Removed
   messages are marked ``compacted_out`` and keep their index, and the block lists them
   (:mod:`replicator.engine.log.parts`).
4. Each block is sent with the position that was sent before it, and after a hole with the note that something was left
   out. If the last block of a segment was left out, a note takes its place.

Markers always pass. So do entries that cannot be read: one that its producer encrypted, and a chunk of a message.
Neither can be masked: :class:`~replicator.pipeline.errors.CannotMask`, so that nothing leaves unmasked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.engine.log.block import BlockKind, BlockView, Buffer, build_block, read_header
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.log.left_out import LeftOutNote, encode_note
from replicator.engine.unpacking import unpacked_internally
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.pipeline.errors import CannotMask
from snapshots.position import BEFORE_ALL, Position

Keep = npt.NDArray[np.bool_]


class Masked(NamedTuple):
    """New values of a message. Only those that the link masks count."""

    payload: bytes | None = None
    key: str | None = None
    properties: Mapping[str, str | None] | None = None


class Sent(NamedTuple):
    """Block, or a note in its place, to be sent to a topic; ``previous`` of its origin was sent before it."""

    topic: str
    previous: Position
    block: bytes
    left_out: bool


class Piece(NamedTuple):
    """Block to be sent, and whether something was left out right before it."""

    block: Buffer
    after_hole: bool


@dataclass(frozen=True, slots=True)
class Filtered:
    """Remainder of a block: the pieces in order, and whether its last entries were left out."""

    pieces: tuple[Piece, ...]
    ends_in_hole: bool
    messages: int


def is_readable_by_sql(metadata: MessageMetadata) -> bool:
    """Return whether SQL can read the messages of the entry: it is neither encrypted nor a chunk of a message."""
    return not metadata.encryption_keys and metadata.num_chunks_from_msg <= 1


def filter_block(
    block: Buffer, view: BlockView, keep: Keep, masked: Mapping[int, Masked], fields: frozenset[str]
) -> Filtered:
    """Filter and mask the messages of a block.

    ``keep`` says for each message of the block, in order, whether it stays. ``masked`` has new values for the
    ``fields`` of messages, by their number in the block. Messages that earlier links left out need not be named. Raises
    :class:`CannotMask`, :class:`EntryCorrupt`, and :class:`MessageTooLarge` if masking makes an entry too large.
    """
    header = view.header
    if header.kind is not BlockKind.MESSAGES:
        return Filtered((Piece(block, after_hole=False),), ends_in_hole=False, messages=0)
    assert len(keep) == header.messages
    sizes = view.batch_sizes.astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    present = sizes.copy()
    for entry, absent in view.absent.items():
        present[entry] -= len(absent)
        keep[starts[entry] + np.asarray(absent)] = False
    kept = np.add.reduceat(keep.astype(np.int64), starts)
    anew = (kept > 0) & (kept < present)
    if masked:
        anew[np.searchsorted(starts, np.fromiter(masked, np.int64), side="right") - 1] = True
        anew &= kept > 0
    if not anew.any() and bool((kept == present).all()):
        return Filtered((Piece(block, after_hole=False),), ends_in_hole=False, messages=int(kept.sum()))
    pieces = []
    end = 0
    for start, stop in _runs(kept > 0):
        after_hole, end = start > end, stop
        if anew[start:stop].any():
            piece = _written_anew(view, start, stop, anew, starts, keep, masked, fields)
        else:
            piece = view.slice(start, stop)
        pieces.append(Piece(piece, after_hole))
    return Filtered(tuple(pieces), end < header.entries, int(kept.sum()))


def _runs(stays: Keep) -> list[tuple[int, int]]:
    """Return the runs of entries that stay, as pairs of start and stop."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], stays, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _written_anew(
    view: BlockView,
    start: int,
    stop: int,
    anew: Keep,
    starts: npt.NDArray[np.int64],
    keep: Keep,
    masked: Mapping[int, Masked],
    fields: frozenset[str],
) -> bytes:
    header = view.header
    sizes = view.batch_sizes[start:stop].tolist()
    entries: list[Buffer] = []
    absent: dict[int, BitMap] = {}
    for index, entry in enumerate(view.entries(start, stop), start):
        if not anew[index]:
            if (before := view.absent.get(index)) is not None:
                absent[index - start] = before
            entries.append(entry)
            continue
        first, size = int(starts[index]), sizes[index - start]
        stays = keep[first : first + size]
        new = {at: masked[first + at] for at in range(size) if first + at in masked}
        entries.append(rewrite_entry(entry, stays, new, fields))
        if not stays.all():
            absent[index - start] = BitMap(np.flatnonzero(~stays).astype(np.uint32))
    return build_block(
        kind=header.kind,
        origin=header.origin,
        incarnation=header.incarnation,
        origin_first=Position(header.origin_first.ledger, header.origin_first.entry + start),
        publish_time_ms=header.publish_time_ms,
        entries=entries,
        batch_sizes=sizes,
        absent=absent,
        only=header.only,
    )


def rewrite_entry(
    entry: Buffer, stays: Sequence[bool] | Keep, new: Mapping[int, Masked], fields: frozenset[str]
) -> bytes:
    """Return the entry with only the messages that stay, and the ``fields`` of those in ``new`` replaced.

    Raises :class:`CannotMask`, :class:`EntryCorrupt`, :class:`MessageTooLarge`.
    """
    metadata, payload = decode_entry(memoryview(entry), check=False)  # the block's checksum covers it
    if not is_readable_by_sql(metadata):
        raise CannotMask(
            "an entry is encrypted, or a chunk of a message, so that what the link's `select` masks cannot be seen "
            "in it: publish such topics without encryption and chunks, or leave them out of the link"
        )
    written = MessageMetadata()
    written.CopyFrom(metadata)
    with unpacked_internally(payload, metadata.compression, metadata.uncompressed_size) as content:
        body = _rewritten(metadata, written, content, stays, new, fields)
        if written.HasField("uncompressed_size"):
            written.uncompressed_size = len(body)
        return encode_entry(written, compress(body, metadata.compression))


def _rewritten(
    metadata: MessageMetadata,
    written: MessageMetadata,
    content: Buffer,
    stays: Sequence[bool] | Keep,
    new: Mapping[int, Masked],
    fields: frozenset[str],
) -> Buffer:
    """Return the uncompressed content of an entry that is written anew, and put what it changes into ``written``."""
    if metadata.HasField("num_messages_in_batch"):
        body = bytearray()
        keys = set()
        # All at once: taking a message apart reads on from the size that writing it anew changes.
        for index, (single, message) in enumerate(list(split_batch(metadata, memoryview(content)))):
            if not stays[index]:
                append_to_batch(body, SingleMessageMetadata(compacted_out=True, payload_size=0), b"")
                continue
            text = bytes(message)
            if index in new:
                text = _mask(single, new[index], text, fields)
            keys.add(single.partition_key if single.HasField("partition_key") else None)
            append_to_batch(body, single, text)
        _mask_outside(written, keys, fields)
        return body
    return _mask(written, new[0], content, fields) if 0 in new else content


def _mask(
    metadata: MessageMetadata | SingleMessageMetadata, new: Masked, payload: Buffer, fields: frozenset[str]
) -> bytes:
    if "key" in fields:
        for name in ("partition_key", "partition_key_b64_encoded", "null_partition_key", "ordering_key"):
            metadata.ClearField(name)
        if new.key is not None:
            metadata.partition_key = new.key
    if "properties" in fields:
        del metadata.properties[:]
        for key, value in (new.properties or {}).items():
            if value is not None:  # as for a key: what becomes null is not there
                metadata.properties.add(key=key, value=value)
    if "payload" not in fields:
        return bytes(payload)
    metadata.ClearField("null_value")
    if new.payload is None:
        metadata.null_value = True
    return new.payload or b""


def _mask_outside(metadata: MessageMetadata, keys: set[str | None], fields: frozenset[str]) -> None:
    """Mask the metadata of a whole batch, so that it does not tell what was masked in each message."""
    if "properties" in fields:
        del metadata.properties[:]
    if "key" in fields:
        had_key = metadata.HasField("partition_key")
        for name in ("partition_key", "partition_key_b64_encoded", "ordering_key"):
            metadata.ClearField(name)
        key = next(iter(keys)) if len(keys) == 1 else None
        if had_key and key is not None:
            metadata.partition_key = key


@dataclass(slots=True)
class Chain:
    """Sent blocks of one origin of a topic in a segment, each with the position that was sent before it."""

    topic: str
    _previous: Position | None = None
    _left_out: bool = False
    _note: LeftOutNote | None = field(default=None)

    def outgoing(
        self, planned_previous: Position, planned_left_out: bool, view: BlockView, left: Filtered
    ) -> Iterator[Sent]:
        """Yield what to send for a block that was planned after ``planned_previous``."""
        header = view.header
        if self._previous is None:
            self._previous = planned_previous
        self._left_out |= planned_left_out
        for piece in left.pieces:
            yield Sent(self.topic, self._previous, bytes(piece.block), self._left_out or piece.after_hole)
            self._previous, self._left_out, self._note = read_header(piece.block).origin_last, False, None
        if left.ends_in_hole:
            self._left_out = True
            self._note = LeftOutNote(header.origin, header.incarnation, header.origin_last)

    def left_out(self, planned_previous: Position, note: LeftOutNote) -> None:
        """Note that a block, planned after ``planned_previous``, is not for the destination."""
        if self._previous is None:
            self._previous = planned_previous
        self._left_out, self._note = True, note

    def end(self) -> Iterator[Sent]:
        """Yield the note to send at the end of the segment, if its last block was left out."""
        if self._note is not None:
            yield Sent(self.topic, self._previous or BEFORE_ALL, encode_note(self._note), left_out=True)
