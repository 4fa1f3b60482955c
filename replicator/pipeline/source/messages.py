"""Messages from the bytes of many entries at once, without a step in Python for each message. Pure.

Entries are ``magic u16 | crc32c u32 | metadata size u32 | MessageMetadata | payload``; the payload of a batch is a run
of ``size u32 | SingleMessageMetadata | payload`` (:mod:`replicator.engine.log.entry`). The end of one message of a
batch is known only when it has been read, so they would have to be read one after another. Instead:

1. The metadata of all entries are read at once (:mod:`wire_fields <replicator.pipeline.source.wire_fields>`).
   Compressed payloads are decompressed, and laid behind the others in one buffer.
2. A message of a batch begins with two zero bytes (its metadata is shorter than 64 KiB) and the tag of a field that
   such metadata have. All places that look so are found at once: these are guesses.
3. The metadata at all guesses are read at once, as if each were right; each says where its message ends.
4. In each batch the right guesses are the chain from its start: each ends where the next begins, and the last at the
   end of the batch. If the guesses of a batch are such a chain and as many as it says it has, that is proof; if not
   (some payload looked like a message), the chain is followed guess by guess.

Large messages are few for their bytes: batches with :data:`LARGE_MESSAGE_BYTES` or more for each message are read one
message after another.

Any fault raises :class:`ProtobufRequired`, and nothing is returned: such entries are left to protobuf, one by one,
which names their faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from replicator.engine.errors import EngineError
from replicator.engine.log import compression
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, ENTRY_BYTES_MAX
from replicator.metadata.metadata_pb2 import SingleMessageMetadata
from replicator.pipeline.source.wire_fields import (
    PADDING_BYTES,
    Bools,
    Bytes,
    Fields,
    Int64s,
    Numbers,
    Spans,
    UInt64s,
    read_fields,
)

FRAME_BYTES: Final = 10
LARGE_MESSAGE_BYTES: Final = 1_024
"""Average size from which messages are read one after another: looking at each of their bytes would take longer (1
µs)."""
_OWN_METADATA_BYTES_MAX: Final = 65_535
"""Limit of a message's metadata. Longer ones begin with other bytes than those that are read here."""
_CODECS: Final = frozenset((0, 1, 2, 3, 4))

# Fields of MessageMetadata and SingleMessageMetadata, see metadata.proto.
PRODUCER_NAME: Final = 1
_SEQUENCE_ID, PUBLISH_TIME, _PROPERTIES, _KEY, _COMPRESSION, _UNCOMPRESSED = 2, 3, 4, 6, 8, 9
_BATCH_SIZE, _ENCRYPTION_KEYS, MARKER_TYPE, _NULL_VALUE, _NULL_KEY = 11, 13, 20, 25, 30
_OWN_PROPERTIES, _OWN_KEY, _PAYLOAD_SIZE, _OWN_SEQUENCE_ID, _OWN_NULL_VALUE, _OWN_NULL_KEY = 1, 2, 3, 8, 9, 10

_BEGINS_METADATA: Final = np.zeros(256, np.bool_)
"""Bytes that a SingleMessageMetadata can begin with: the tags of its ten fields."""
_BEGINS_METADATA[[0x0A, 0x12, 0x18, 0x20, 0x28, 0x30, 0x3A, 0x40, 0x48, 0x50]] = True


class ProtobufRequired(Exception):
    """These entries must be read by protobuf."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries that were read, one value for each. ``content`` has their bytes, with decompressed payloads behind
    them."""

    content: Bytes
    metadata: Fields
    batched: Bools
    sizes: Int64s
    """Number of messages in each; 1 for a marker or a message outside a batch."""
    payload_starts: Int64s
    payload_ends: Int64s


@dataclass(frozen=True, slots=True)
class Properties:
    """Key and value of each property, in the order of their messages."""

    owners: Int64s
    keys: Spans
    values: Spans


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in log order, one value for each. ``entry`` is the index of its entry."""

    entry: Int64s
    batch_index: Int64s
    sequence_id: UInt64s
    key: Spans
    properties: Properties
    payload: Spans
    """Place of each payload; not present for a tombstone."""


def uncompressed_bytes(metadata: Fields, entry_bytes: Int64s) -> Int64s:
    """Return about how much memory the payload of each entry takes once it is decompressed."""
    claimed = np.minimum(metadata.numbers[_UNCOMPRESSED].values, np.uint64(2**31)).astype(np.int64)
    return np.where(metadata.numbers[_COMPRESSION].values != 0, claimed, entry_bytes)


def read_metadata(content: Bytes, starts: Int64s, ends: Int64s) -> tuple[Fields, Int64s]:
    """Return the metadata of the entries that lie from ``starts`` to ``ends``, and the starts of their payloads.

    Raises :class:`ProtobufRequired`.
    """
    if not len(starts):
        raise ProtobufRequired
    lengths = ends - starts
    if int(lengths.min()) < FRAME_BYTES or int(lengths.max()) > ENTRY_BYTES_MAX:
        raise ProtobufRequired
    at = starts[:, np.newaxis] + np.arange(FRAME_BYTES)
    frames = content[at]
    metadata_bytes = frames[:, 6:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    payload_starts = starts + FRAME_BYTES + metadata_bytes
    if (frames[:, 0] != 0x0E).any() or (frames[:, 1] != 0x01).any() or (payload_starts > ends).any():
        raise ProtobufRequired
    metadata = read_fields(
        content,
        starts + FRAME_BYTES,
        payload_starts,
        numbers=(
            _SEQUENCE_ID,
            PUBLISH_TIME,
            _COMPRESSION,
            _UNCOMPRESSED,
            _BATCH_SIZE,
            MARKER_TYPE,
            _NULL_VALUE,
            _NULL_KEY,
        ),
        spans=(PRODUCER_NAME, _KEY),
        repeated=(_PROPERTIES, _ENCRYPTION_KEYS),
    )
    numbers = metadata.numbers
    sizes = numbers[_BATCH_SIZE]
    whole = (
        metadata.sound.all()
        and metadata.spans[PRODUCER_NAME].present.all()
        and numbers[_SEQUENCE_ID].present.all()
        and numbers[PUBLISH_TIME].present.all()
        and not len(metadata.repeated[_ENCRYPTION_KEYS].owners)
        and bool(((sizes.values > 0) & (sizes.values <= BATCH_MESSAGES_MAX))[sizes.present].all())
        and bool((numbers[_UNCOMPRESSED].values < 2**32).all())
        and _CODECS.issuperset(np.unique(numbers[_COMPRESSION].values).tolist())
    )
    if not whole:
        raise ProtobufRequired
    return metadata, payload_starts


def unpack_entries(content: Bytes, metadata: Fields, payload_starts: Int64s, ends: Int64s, markers: Bools) -> Entries:
    """Return the entries with decompressed payloads. Raises :class:`ProtobufRequired`."""
    starts, ends = payload_starts.copy(), ends.copy()
    codecs = np.where(markers, np.uint64(0), metadata.numbers[_COMPRESSION].values)
    pieces: list[Bytes] = []
    behind = len(content) - PADDING_BYTES
    for index in np.flatnonzero(codecs).tolist():
        try:
            piece = compression.decompress(
                content[starts[index] : ends[index]].tobytes(),
                int(codecs[index]),  # type: ignore[arg-type]  # protobuf's enums are numbers
                int(metadata.numbers[_UNCOMPRESSED].values[index]),
            )
        except EngineError:
            raise ProtobufRequired from None
        starts[index], ends[index] = behind, behind + len(piece)
        behind += len(piece)
        pieces.append(np.frombuffer(piece, np.uint8))
    if pieces:
        content = np.concatenate([content[: len(content) - PADDING_BYTES], *pieces, np.zeros(PADDING_BYTES, np.uint8)])
    batched = metadata.numbers[_BATCH_SIZE].present & ~markers
    sizes = np.where(batched, metadata.numbers[_BATCH_SIZE].values.astype(np.int64), 1)
    return Entries(content, metadata, batched, sizes, starts, ends)


def split_messages(entries: Entries) -> Messages:
    """Return the messages of all entries, in order. Raises :class:`ProtobufRequired`."""
    metadata, content = entries.metadata, entries.content
    firsts = np.cumsum(entries.sizes) - entries.sizes
    count = int(entries.sizes.sum())
    entry = np.repeat(np.arange(len(entries.sizes)), entries.sizes)
    batch_index = np.arange(count) - firsts[entry]
    sequence_id = metadata.numbers[_SEQUENCE_ID].values[entry] + batch_index.astype(np.uint64)

    outside = firsts[~entries.batched]
    inside = np.ones(count, np.bool_)
    inside[outside] = False
    starts = _message_starts(entries)
    own, payload_starts = _own_metadata(content, starts)
    payload_bytes = own.numbers[_PAYLOAD_SIZE].values.astype(np.int64)

    sent = own.numbers[_OWN_SEQUENCE_ID]
    sequence_id[np.flatnonzero(inside)[sent.present]] = sent.values[sent.present]
    single = ~entries.batched
    key, own_key = metadata.spans[_KEY], own.spans[_OWN_KEY]
    return Messages(
        entry=entry,
        batch_index=batch_index,
        sequence_id=sequence_id,
        key=_merged(
            inside,
            Spans(own_key.starts, own_key.lengths, own_key.present & ~_flag(own.numbers[_OWN_NULL_KEY])),
            Spans(
                key.starts[single],
                key.lengths[single],
                (key.present & ~_flag(metadata.numbers[_NULL_KEY]))[single],
            ),
        ),
        properties=_properties(content, metadata, own, firsts, single, inside),
        payload=_merged(
            inside,
            Spans(payload_starts, payload_bytes, ~_flag(own.numbers[_OWN_NULL_VALUE])),
            Spans(
                entries.payload_starts[single],
                (entries.payload_ends - entries.payload_starts)[single],
                ~_flag(metadata.numbers[_NULL_VALUE])[single],
            ),
        ),
    )


def _message_starts(entries: Entries) -> Int64s:
    """Return the start of each message of each batch."""
    which = np.flatnonzero(entries.batched)
    if not len(which):
        return np.zeros(0, np.int64)
    content = entries.content
    # Decompressed payloads lie behind the others, so the batches need not lie in the order of their entries.
    by_place = which[np.argsort(entries.payload_starts[which], kind="stable")]
    starts, ends, sizes = entries.payload_starts[by_place], entries.payload_ends[by_place], entries.sizes[by_place]
    if int((ends - starts).sum()) > LARGE_MESSAGE_BYTES * int(sizes.sum()):
        return np.concatenate([_walk(entries, index) for index in which.tolist()])
    low, high = int(starts[0]), int(ends[-1])
    zero = content[low : high + 1] == 0
    guesses = np.flatnonzero(zero[:-1] & zero[1:]) + low
    guesses = guesses[_BEGINS_METADATA[content[guesses + 4]]]
    batch = np.searchsorted(starts, guesses, side="right") - 1
    within = guesses + 4 < ends[batch]
    guesses, batch = guesses[within], batch[within]
    own_ends = guesses + 4 + content[guesses + 2].astype(np.int64) * 256 + content[guesses + 3]
    within = own_ends <= ends[batch]
    guesses, batch, own_ends = guesses[within], batch[within], own_ends[within]
    fields = read_fields(content, guesses + 4, own_ends, numbers=(_PAYLOAD_SIZE,))
    size = fields.numbers[_PAYLOAD_SIZE]
    good = fields.sound & size.present & (size.values < 2**31)
    guesses, batch, own_ends = guesses[good], batch[good], own_ends[good]
    following = own_ends + size.values[good].astype(np.int64)

    found: list[Int64s] = [np.zeros(0, np.int64)] * len(by_place)
    bounds = np.searchsorted(batch, np.arange(len(by_place) + 1))
    chained = np.ones(len(guesses), np.bool_)
    chained[:-1] = (following[:-1] == guesses[1:]) | (batch[:-1] != batch[1:])
    broken = np.zeros(len(by_place), np.bool_)
    broken[batch[~chained]] = True
    counts = np.diff(bounds)
    broken |= counts != sizes
    if not broken.all():
        sane = np.flatnonzero(~broken)
        broken[sane] = (guesses[bounds[sane]] != starts[sane]) | (following[bounds[sane + 1] - 1] != ends[sane])
    if not broken.any() and (by_place == which).all():
        return guesses
    for index in range(len(by_place)):
        some = slice(int(bounds[index]), int(bounds[index + 1]))
        found[index] = (
            _follow(guesses[some], following[some], int(starts[index]), int(ends[index]), int(sizes[index]))
            if broken[index]
            else guesses[some]
        )
    in_order: list[Int64s] = [found[index] for index in np.argsort(by_place, kind="stable").tolist()]
    return np.concatenate(in_order)


def _walk(entries: Entries, index: int) -> Int64s:
    """Return the starts of the messages of a batch of large ones, read one after another."""
    content = entries.content.data
    at, end = int(entries.payload_starts[index]), int(entries.payload_ends[index])
    starts = np.empty(int(entries.sizes[index]), np.int64)
    single = SingleMessageMetadata()
    for number in range(len(starts)):
        starts[number] = at
        own_end = at + 4 + int.from_bytes(content[at : at + 4], "big")
        if own_end > end:
            raise ProtobufRequired
        try:
            single.ParseFromString(content[at + 4 : own_end].tobytes())
        except DecodeError:
            raise ProtobufRequired from None
        at = own_end + single.payload_size
        if single.payload_size < 0 or at > end or own_end - starts[number] > _OWN_METADATA_BYTES_MAX:
            raise ProtobufRequired
    return starts


def _follow(guesses: Int64s, following: Int64s, start: int, end: int, size: int) -> Int64s:
    """Return the chain of guesses from the start of a batch to its end. Raises :class:`ProtobufRequired` if there is
    none."""
    after = dict(zip(guesses.tolist(), following.tolist(), strict=True))
    chain: list[int] = []
    at = start
    while len(chain) < size and at in after:
        chain.append(at)
        at = after[at]
    if len(chain) < size or at != end:
        raise ProtobufRequired
    return np.array(chain, dtype=np.int64)


def _own_metadata(content: Bytes, starts: Int64s) -> tuple[Fields, Int64s]:
    """Return the metadata of the messages that begin at ``starts``, and the starts of their payloads."""
    ends = starts + 4 + content[starts + 2].astype(np.int64) * 256 + content[starts + 3]
    own = read_fields(
        content,
        starts + 4,
        ends,
        numbers=(_PAYLOAD_SIZE, _OWN_SEQUENCE_ID, _OWN_NULL_VALUE, _OWN_NULL_KEY),
        spans=(_OWN_KEY,),
        repeated=(_OWN_PROPERTIES,),
    )
    if not own.sound.all():
        raise ProtobufRequired
    return own, ends


def _properties(
    content: Bytes, metadata: Fields, own: Fields, firsts: Int64s, single: Bools, inside: Bools
) -> Properties:
    """Return the properties of all messages.

    Those of messages outside of batches are in their entry's metadata, which for a batch has its producer's."""
    of_entries, of_messages = metadata.repeated[_PROPERTIES], own.repeated[_OWN_PROPERTIES]
    entries_kept = single[of_entries.owners]
    owners = np.concatenate([firsts[of_entries.owners], np.flatnonzero(inside)[of_messages.owners]])
    starts = np.concatenate([of_entries.starts, of_messages.starts])
    lengths = np.concatenate([of_entries.lengths, of_messages.lengths])
    pairs = read_fields(content, starts, starts + lengths, spans=(1, 2))
    if not (pairs.sound.all() and pairs.spans[1].present.all() and pairs.spans[2].present.all()):
        raise ProtobufRequired  # also in a producer's, though no row has them: protobuf would refuse such an entry
    kept = np.flatnonzero(np.concatenate([entries_kept, np.ones(len(of_messages.owners), np.bool_)]))
    kept = kept[np.argsort(owners[kept], kind="stable")]
    keys, values = (
        Spans(spans.starts[kept], spans.lengths[kept], spans.present[kept])
        for spans in (pairs.spans[1], pairs.spans[2])
    )
    return Properties(owners[kept], keys, values)


def _merged(inside: Bools, batched: Spans, single: Spans) -> Spans:
    if inside.all():
        return batched
    if not inside.any():
        return single
    merged = Spans(np.empty(len(inside), np.int64), np.empty(len(inside), np.int64), np.empty(len(inside), np.bool_))
    for column, of_batches, of_singles in (
        (merged.starts, batched.starts, single.starts),
        (merged.lengths, batched.lengths, single.lengths),
        (merged.present, batched.present, single.present),
    ):
        column[inside] = of_batches
        column[~inside] = of_singles
    return merged


def _flag(numbers: Numbers) -> Bools:
    flags: Bools = numbers.values != 0
    return flags


def joined(pieces: Sequence[Bytes | memoryview]) -> Bytes:
    """Return buffers one after another, with the padding that reading needs."""
    return np.concatenate([*(np.frombuffer(piece, np.uint8) for piece in pieces), np.zeros(PADDING_BYTES, np.uint8)])
