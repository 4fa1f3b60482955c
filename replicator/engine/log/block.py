"""Blocks: the unit of storage and of copying.

A block holds consecutive entries of one topic that were committed together and share one origin. It is
the same bytes in every cluster: the origin's position of its first entry is inside, the local position is
in the store's key. So copying is moving bytes, and one checksum guards the way from the origin's disk to the
last destination's.

Layout, little-endian::

    magic "RBK1" | header crc32c u32 | body crc32c u32 | kind u16 | origin length u16 | entries u32 |
    messages u32 | incarnation u64 | origin ledger u64 | origin first entry u64 | publish time ms u64 | origin name |
    only | ends u32 × entries | batch sizes u32 × entries | entries, one after another | parts

The header's checksum covers everything from the body's checksum to the columns, and is checked whenever a header is
read: what a link passes over, it passes over by a header that is right. The body's covers the rest. ``ends[i]`` is
where entry i ends, from the start of the entries. All entries of a block are of one kind: messages, markers, or
local markers (which no link carries).

``only`` is there only if the kind has the bit :data:`_HAS_ONLY`: the producer wants the block in no other clusters than
these, beside its origin. It is ``length u16 | names, with commas between them``. Links leave the block out for all
others, by its header alone.

``parts`` is there only if the kind has the bit :data:`_HAS_PARTS`. It lists the batches that lack messages because a
link left them out. The batch keeps its size, and every message its index (:mod:`replicator.engine.log.parts`)::

    count u32 | entries' indexes u32 × count | a bit for each message of each of them, set if it was left out | size u32
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.checksums import crc32c
from replicator.engine.log.cluster_names import ONLY_LENGTH, ORIGIN_PATTERN, decode_only, encode_only
from replicator.engine.log.parts import decode_parts, encode_parts
from snapshots.position import Position

MAGIC: Final = b"RBK1"
BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a block's size. Readers hold a whole block in memory."""
BLOCK_ENTRIES_MAX: Final = 1 << 20
PIECE_BYTES_MIN: Final = 4096
"""Entries of at least this average size are not joined only to compute the checksum."""
FEW_ENTRIES_MAX: Final = 16
"""Columns of at most this many entries are packed and read without numpy, whose calls cost more than the work."""
ENTRY_IDS_MAX: Final = 1 << 32
"""Limit of entry ids in a ledger: sets of positions hold 32 bits. Writers begin a new ledger long before."""
LEDGER_MAX: Final = (1 << 63) - 1
"""Largest ledger and incarnation: the index has them as signed numbers of 64 bits."""

_ORIGIN: Final = re.compile(ORIGIN_PATTERN.encode())
_PREAMBLE = struct.Struct("<4sI")
_BODY_CHECKSUM = struct.Struct("<I")
_HEADER = struct.Struct("<HHIIQQQQ")
_CHECKED_HEADER = struct.Struct("<IHHIIQQQQ")
"""Body's checksum and the header behind it."""
_FLAGS = struct.Struct("<HH")
"""The kind with its bits, and the length of the origin: as the header begins."""
_FEW_NUMBERS: Final = tuple(struct.Struct(f"<{count}I") for count in range(FEW_ENTRIES_MAX + 1))
_FEW_COLUMNS: Final = tuple(struct.Struct(f"<{2 * count}I") for count in range(FEW_ENTRIES_MAX + 1))
"""Both columns of a block, by the number of its entries."""
_PARTS_SIZE = struct.Struct("<I")
_HAS_PARTS: Final = 0x100
"""Bit in the field of the kind: the block has a section about messages that were left out of batches."""
_HAS_ONLY: Final = 0x200
"""Bit in the field of the kind: the block names the clusters that may have it."""
_HEADER_AT = _PREAMBLE.size + _BODY_CHECKSUM.size
_ORIGIN_AT = _HEADER_AT + _HEADER.size
_INCARNATION_AT = _HEADER_AT + struct.calcsize("<HHII")

Buffer = bytes | bytearray | memoryview
_NONE_ABSENT: Final[Mapping[int, BitMap]] = MappingProxyType({})


class BlockKind(IntEnum):
    MESSAGES = 0
    MARKERS = 1
    LOCAL_MARKERS = 2
    """Markers of this cluster's own bookkeeping; no link carries them."""


class BlockHeader(NamedTuple):
    """Header of a block. ``messages`` is the sum of the batch sizes, or 0 for markers.

    It is a tuple because one is made for each block: a frozen dataclass takes four times as long.
    """

    kind: BlockKind
    origin: str
    incarnation: int
    origin_first: Position
    entries: int
    messages: int
    publish_time_ms: int
    columns_at: int
    """Offset of the ``ends`` column."""
    parts_bytes: int = 0
    """Bytes of the section about messages that were left out of batches; 0 if none were."""
    only: frozenset[str] | None = None
    """The other clusters that may have it; None if all may."""

    def is_for(self, cluster: str) -> bool:
        """Return whether ``cluster`` may have the block."""
        return self.only is None or cluster in self.only or cluster == self.origin

    @property
    def origin_last(self) -> Position:
        if self.entries == 1:  # a message that was sent alone
            return self.origin_first
        return Position(self.origin_first.ledger, self.origin_first.entry + self.entries - 1)


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """A stored block from outside: where it lies in this cluster, how large it is, and when its origin wrote it."""

    first: Position
    last: Position
    size_bytes: int
    publish_time_ms: int


def build_block(
    *,
    kind: BlockKind,
    origin: str,
    incarnation: int,
    origin_first: Position,
    publish_time_ms: int,
    entries: Sequence[Buffer],
    batch_sizes: Sequence[int],
    absent: Mapping[int, BitMap] | None = None,
    only: frozenset[str] | None = None,
    before: bytes = b"",
) -> bytes:
    """Make a block of ``entries``; ``batch_sizes[i]`` is the number of messages in entry i (0 for markers).

    ``absent`` has the indexes of left-out messages, by the index of the entry (a batch). ``only`` has the other
    clusters that may have the block, or None for all. ``before`` is put in front of the block, which saves the caller
    a copy.
    """
    count = len(entries)
    assert 0 < count == len(batch_sizes)
    if count == 1 and not absent and len(entries[0]) < PIECE_BYTES_MIN:
        return build_small_block(
            kind, origin, incarnation, origin_first, publish_time_ms, entries[0], batch_sizes[0], only, before
        )
    if count <= FEW_ENTRIES_MAX:
        ends = list(accumulate(map(len, entries)))
        payload_bytes, messages = ends[-1], sum(batch_sizes)
        _check_limits(count, payload_bytes)
        columns = _FEW_COLUMNS[count].pack(*ends, *batch_sizes)
    else:
        many = np.cumsum([len(entry) for entry in entries], dtype="<u8")
        sizes = np.asarray(batch_sizes, dtype="<u4")
        payload_bytes, messages = int(many[-1]), int(sizes.sum())
        _check_limits(count, payload_bytes)
        columns = many.astype("<u4").tobytes() + sizes.tobytes()
    return _assemble(
        kind,
        origin,
        incarnation,
        origin_first,
        publish_time_ms,
        columns,
        messages,
        payload_bytes,
        entries,
        encode_parts(absent, np.asarray(batch_sizes, dtype="<u4")) if absent else b"",
        only,
        before,
    )


def build_small_block(
    kind: BlockKind,
    origin: str,
    incarnation: int,
    origin_first: Position,
    publish_time_ms: int,
    entry: Buffer,
    batch_size: int,
    only: frozenset[str] | None,
    before: bytes,
) -> bytes:
    """Encode a block of one entry below :data:`PIECE_BYTES_MIN`, such as a message that was sent alone.

    The result equals that of :func:`build_block`, in a third of the time.
    """
    body = b"".join((_FEW_COLUMNS[1].pack(len(entry), batch_size), entry))
    head = b"".join(
        (
            _CHECKED_HEADER.pack(
                crc32c(body),
                kind if only is None else kind | _HAS_ONLY,
                len(origin),
                1,
                batch_size,
                incarnation,
                *origin_first,
                publish_time_ms,
            ),
            origin.encode("ascii"),
            encode_only(only),
        )
    )
    return b"".join((before, _PREAMBLE.pack(MAGIC, crc32c(head)), head, body))


def read_header(block: Buffer) -> BlockHeader:
    """Return the header of a block. Its checksum and the block's length are verified, in constant time.

    Raises :class:`BlockCorrupt`. :func:`verify_block` verifies the checksum of the body.
    """
    return read_head(block, len(block))


def columns_begin(origin: str, only: frozenset[str] | None) -> int:
    """Return the offset of the columns in a block of ``origin`` that is restricted to the clusters ``only``."""
    return _ORIGIN_AT + len(origin) + len(encode_only(only))


def head_bytes(block: Buffer, entries: int) -> int:
    """Return the bytes of the head of a block with ``entries`` entries: everything before the first entry."""
    (flags, origin_length) = _FLAGS.unpack_from(block, _HEADER_AT)
    at = _ORIGIN_AT + origin_length
    if flags & _HAS_ONLY:
        at += ONLY_LENGTH.size + int.from_bytes(block[at : at + ONLY_LENGTH.size], "little")
    return int(at) + 8 * entries


def read_head(block: Buffer, size_bytes: int) -> BlockHeader:
    """Return the header of a block of ``size_bytes``, as :func:`read_header` does.

    Only the head of the block is needed, unless it has parts.
    """
    if len(block) < _ORIGIN_AT or bytes(block[:4]) != MAGIC:
        raise BlockCorrupt(
            "these bytes are damaged, or not a block of messages: they do not begin like one, or are too few"
        )
    kind, origin_length, entries, messages, incarnation, ledger, first, publish_time_ms = _HEADER.unpack_from(
        block, _HEADER_AT
    )
    has_parts, has_only, kind = kind & _HAS_PARTS, kind & _HAS_ONLY, kind & ~(_HAS_PARTS | _HAS_ONLY)
    only_at = columns_at = _ORIGIN_AT + origin_length
    if has_only:
        if len(block) < only_at + ONLY_LENGTH.size:
            raise BlockCorrupt("a block ends inside its header: it was cut short")
        columns_at += ONLY_LENGTH.size + int.from_bytes(block[only_at : only_at + ONLY_LENGTH.size], "little")
    if crc32c(block[_PREAMBLE.size : columns_at]) != int.from_bytes(block[4:8], "little"):
        raise BlockCorrupt(
            f"the checksum of a block's header is wrong (it says {entries} entries from {ledger}:{first}): it is "
            "damaged"
        )
    payload_at = columns_at + 8 * entries
    if (
        kind > BlockKind.LOCAL_MARKERS
        or not 0 < entries <= BLOCK_ENTRIES_MAX
        or first + entries > ENTRY_IDS_MAX
        or len(block) < payload_at
    ):
        raise BlockCorrupt(
            f"the header of a block is not plausible: kind {kind}, {entries} entries from {ledger}:{first}, in "
            f"{size_bytes} bytes; it is damaged, or another version wrote it"
        )
    payload_bytes = int.from_bytes(block[columns_at + 4 * entries - 4 : columns_at + 4 * entries], "little")
    parts_bytes = _PARTS_SIZE.size + int.from_bytes(block[-_PARTS_SIZE.size :], "little") if has_parts else 0
    if payload_at + payload_bytes + parts_bytes != size_bytes or payload_bytes > BLOCK_BYTES_MAX:
        said = payload_at + payload_bytes + parts_bytes
        raise BlockCorrupt(
            f"the block with {entries} entries from {ledger}:{first} says that it has {said} bytes, and has "
            f"{size_bytes}: it is damaged, or was cut short"
        )
    origin = bytes(block[_ORIGIN_AT:only_at])
    if _ORIGIN.fullmatch(origin) is None:
        raise BlockCorrupt(
            f"the block from {ledger}:{first} is damaged: the origin that it names, {origin[:80]!r}, is no possible "
            "name of a cluster"
        )
    return BlockHeader(
        BlockKind(kind),
        origin.decode("ascii"),
        incarnation,
        Position(ledger, first),
        entries,
        messages,
        publish_time_ms,
        columns_at,
        parts_bytes,
        decode_only(bytes(block[only_at + ONLY_LENGTH.size : columns_at])) if has_only else None,
    )


def verify_block(block: Buffer) -> BlockHeader:
    """Return the header of a block, after its checksum and its columns were verified. Raises :class:`BlockCorrupt`."""
    header = read_header(block)
    block = memoryview(block)  # of which a slice is no copy
    (expected,) = _BODY_CHECKSUM.unpack_from(block, _PREAMBLE.size)
    if crc32c(block[header.columns_at :]) != expected:
        raise BlockCorrupt(
            f"the block at {header.origin} {header.origin_first} ({header.entries} entries) is damaged: its checksum "
            "is wrong"
        )
    _check_columns(block, header)
    return header


def _check_columns(block: Buffer, header: BlockHeader) -> None:
    """Raise :class:`BlockCorrupt` if the columns are inconsistent. A right checksum does not prove that they were
    right."""
    count, at = header.entries, header.columns_at
    is_marker = header.kind is not BlockKind.MESSAGES
    if count <= FEW_ENTRIES_MAX:
        columns = _FEW_COLUMNS[count].unpack_from(block, at)
        ends, sizes = columns[:count], columns[count:]
        wrong = (
            any(end > following for end, following in pairwise(ends))
            or sum(sizes) != header.messages
            or (any(sizes) if is_marker else not all(sizes))
        )
    else:
        many_ends = np.frombuffer(block, "<u4", count, at)
        many_sizes = np.frombuffer(block, "<u4", count, at + 4 * count)
        wrong = (
            bool((many_ends[1:] < many_ends[:-1]).any())
            or int(many_sizes.sum(dtype=np.uint64)) != header.messages
            or bool(many_sizes.any() if is_marker else not many_sizes.all())
        )
    if wrong:
        raise BlockCorrupt(
            f"the block at {header.origin} {header.origin_first} is damaged: its columns contradict each other"
        )
    if header.parts_bytes:
        if is_marker:
            raise BlockCorrupt(
                f"the block at {header.origin} {header.origin_first} is damaged: it holds markers, and says that a "
                "filter removed messages from them"
            )
        decode_parts(_parts(block, header), np.frombuffer(block, "<u4", count, at + 4 * count))


def _parts(block: Buffer, header: BlockHeader) -> Buffer:
    return block[len(block) - header.parts_bytes : len(block) - _PARTS_SIZE.size] if header.parts_bytes else b""


class BlockView:
    """The entries of a block, by index, without copying them. The block must have been verified."""

    __slots__ = ("_absent", "_ends", "_payload_at", "block", "header")

    def __init__(self, block: Buffer, header: BlockHeader | None = None) -> None:
        self.header = header or read_header(block)
        self.block = memoryview(block)
        """The bytes of the whole block."""
        count, at = self.header.entries, self.header.columns_at
        self._ends: Sequence[int] | npt.NDArray[np.uint32] = (
            _FEW_NUMBERS[count].unpack_from(block, at)
            if count <= FEW_ENTRIES_MAX
            else np.frombuffer(block, "<u4", count, at)
        )
        self._payload_at = at + 8 * count
        self._absent: Mapping[int, BitMap] | None = None if self.header.parts_bytes else _NONE_ABSENT

    @property
    def batch_sizes(self) -> npt.NDArray[np.uint32]:
        """Number of messages in each entry, 0 for markers."""
        count = self.header.entries
        return np.frombuffer(self.block, "<u4", count, self._payload_at - 4 * count)

    def sizes(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of messages in the entries ``start`` to ``stop``, without numpy for few entries."""
        count = stop - start
        at = self._payload_at - 4 * (self.header.entries - start)
        if count <= FEW_ENTRIES_MAX:
            return _FEW_NUMBERS[count].unpack_from(self.block, at)
        sizes: list[int] = np.frombuffer(self.block, "<u4", count, at).tolist()
        return sizes

    @property
    def absent(self) -> Mapping[int, BitMap]:
        """For each entry, the indexes of messages that a link left out of its batch. Entries that lack none are not
        included."""
        if self._absent is None:
            self._absent = decode_parts(_parts(self.block, self.header), self.batch_sizes)
        return self._absent

    def __len__(self) -> int:
        return self.header.entries

    def entry(self, index: int) -> memoryview:
        start = int(self._ends[index - 1]) if index else 0
        return self.block[self._payload_at + start : self._payload_at + int(self._ends[index])]

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield entries ``start`` to ``stop`` in order. This is cheaper than one call for each."""
        ends = self._ends[start:stop]
        previous = int(self._ends[start - 1]) if start else 0
        for end in ends.tolist() if isinstance(ends, np.ndarray) else ends:
            yield self.block[self._payload_at + previous : self._payload_at + end]
            previous = end

    def slice(self, start: int, stop: int) -> bytes:
        """Return a new block with entries ``start`` to ``stop``, at their origin positions."""
        assert 0 <= start < stop <= len(self)
        base = int(self._ends[start - 1]) if start else 0
        payload = self.block[self._payload_at + base : self._payload_at + int(self._ends[stop - 1])]
        header, sizes = self.header, self.batch_sizes[start:stop]
        ends = np.asarray(self._ends[start:stop], dtype="<u4") - np.uint32(base)
        return _assemble(
            header.kind,
            header.origin,
            header.incarnation,
            Position(header.origin_first.ledger, header.origin_first.entry + start),
            header.publish_time_ms,
            ends.astype("<u4").tobytes() + sizes.tobytes(),
            int(sizes.sum()),
            len(payload),
            [payload],
            encode_parts({index - start: each for index, each in self.absent.items() if start <= index < stop}, sizes),
            header.only,
        )


def with_incarnation(block: bytes, incarnation: int) -> bytes:
    """Return a copy of ``block`` that assigns its messages to the life ``incarnation``.

    An incarnation is the number of one life of a topic, from creation to deletion. Raise :class:`BlockCorrupt` if
    ``block`` is damaged.
    """
    header = verify_block(block)
    changed = bytearray(block)
    struct.pack_into("<Q", changed, _INCARNATION_AT, incarnation)
    checksum = crc32c(memoryview(changed)[_PREAMBLE.size : header.columns_at])
    _PREAMBLE.pack_into(changed, 0, MAGIC, checksum)
    return bytes(changed)


def _check_limits(entries: int, payload_bytes: int) -> None:
    if entries > BLOCK_ENTRIES_MAX or payload_bytes > BLOCK_BYTES_MAX:
        raise BlockCorrupt(
            f"a block of {entries} entries and {payload_bytes} bytes is too large; the limits are {BLOCK_ENTRIES_MAX} "
            f"entries and {BLOCK_BYTES_MAX} bytes: its writer must put fewer messages into one block"
        )


def _assemble(
    kind: BlockKind,
    origin: str,
    incarnation: int,
    origin_first: Position,
    publish_time_ms: int,
    columns: bytes,
    messages: int,
    payload_bytes: int,
    payload: Sequence[Buffer],
    parts: bytes,
    only: frozenset[str] | None = None,
    before: bytes = b"",
) -> bytes:
    name = origin.encode("ascii")
    tail = (parts, _PARTS_SIZE.pack(len(parts))) if parts else ()
    pieces = [columns, *payload, *tail]
    if payload_bytes < PIECE_BYTES_MIN * len(payload):
        pieces = [b"".join(pieces)]
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    header = _CHECKED_HEADER.pack(
        checksum,
        kind | (_HAS_PARTS if parts else 0) | (0 if only is None else _HAS_ONLY),
        len(name),
        len(columns) // 8,
        messages,
        incarnation,
        origin_first.ledger,
        origin_first.entry,
        publish_time_ms,
    )
    head = header + name if only is None else header + name + encode_only(only)
    return b"".join([before, _PREAMBLE.pack(MAGIC, crc32c(head)), head, *pieces])
