"""Format in which a worker sends a copy of its store: a head, the pieces in order, and an end.

Each frame is a kind (one byte), a length u32, and so many bytes. A stream without its end frame was cut off.

==== ==================================================================
kind content
==== ==================================================================
H    JSON: what is copied (:func:`encode_head`)
K    file name NUL, hash, size u32: a piece that the receiver has already
C    file name NUL, hash, and the piece
D    JSON: a block that is not whole (:func:`encode_damaged`)
E    empty: the copy is complete
X    why the copying was given up, as text
==== ==================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from replicator.engine.errors import StoreCopyFailed
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import PIECE_BYTES, DamagedBlock, Piece
from replicator.engine.log.store_tables import FORMATS
from snapshots.errors import InvalidPosition
from snapshots.position import Position

DIGEST_BYTES: Final = 32
KNOWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of the list of hashes that a receiver has already: 2 million hashes, for a store of 2 TB. A receiver that has
more names a part of them."""
HEAD_BYTES_MAX: Final = 64 * 1024 * 1024
_FRAME = struct.Struct("<cI")
_SIZE = struct.Struct("<I")


def copy_head(
    store: Store,
    ends: Mapping[str, tuple[int, Position]],
    *,
    version: str,
    made_at_ms: int,
    marks: Mapping[str, Mapping[str, Position]],
) -> dict[str, Any]:
    """Return the head of a store's copy: store, version, time, and topics.

    ``ends`` has the incarnation and LAC of each topic before the copy began. ``marks`` has, by topic and origin, the
    last position of the origin's messages then.
    """
    topics = {
        name: {
            "incarnation": incarnation,
            "lac": str(last),
            "marks": {origin: str(position) for origin, position in marks.get(name, {}).items()},
        }
        for name, (incarnation, last) in ends.items()
    }
    return {
        "cluster": store.cluster,
        "store_id": store.meta("store")["store_id"],
        "store_format": FORMATS[-1] if store.segments.settings.segment_bytes else store.head["format"],
        "version": version,
        "made_at_ms": made_at_ms,
        "topics": topics,
    }


def encode_head(head: Mapping[str, Any]) -> bytes:
    return _frame(b"H", json.dumps(head).encode())


def encode_piece(piece: Piece) -> bytes:
    name = piece.file.encode() + b"\0"
    if piece.content is None:
        return _frame(b"K", name + piece.digest + _SIZE.pack(piece.size))
    return _frame(b"C", name + piece.digest + piece.content)


def encode_damaged(block: DamagedBlock) -> bytes:
    row = {"topic": block.topic, "first": str(block.first), "last": str(block.last), "reason": block.reason}
    return _frame(b"D", json.dumps(row).encode())


def _read_damaged(content: bytes) -> DamagedBlock:
    try:
        row = json.loads(content)
        return DamagedBlock(
            str(row["topic"]), Position.parse(row["first"]), Position.parse(row["last"]), str(row["reason"])
        )
    except (ValueError, KeyError, TypeError, InvalidPosition) as error:
        raise StoreCopyFailed(
            f"the copy of the store names a damaged block in a form that cannot be read: {error!r:.100}; run the "
            "worker's version here"
        ) from None


def encode_end(failed: str | None = None) -> bytes:
    return _frame(b"E", b"") if failed is None else _frame(b"X", failed.encode())


def _frame(kind: bytes, content: bytes) -> bytes:
    return _FRAME.pack(kind, len(content)) + content


def read_head(read: Callable[[int], bytes]) -> dict[str, Any]:
    """Read the head of a copy. ``read`` returns as many bytes as asked for, or fewer at the end. Raise
    :class:`StoreCopyFailed`."""
    kind, content = _read_frame(read, HEAD_BYTES_MAX)
    if kind != b"H":
        raise StoreCopyFailed(
            "what came is not a copy of a store, because it does not begin like one: see that the address is that of a "
            "worker of this version"
        )
    try:
        head: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise StoreCopyFailed(
            f"the head of the copy of the store cannot be read: {error}; run the command again"
        ) from None
    return head


def read_pieces(read: Callable[[int], bytes]) -> Iterator[Piece | DamagedBlock]:
    """Yield the pieces and the damaged blocks of a copy. Raise :class:`StoreCopyFailed` if it is cut off or was given
    up."""
    while True:
        kind, content = _read_frame(read, PIECE_BYTES + 4096)
        if kind == b"E":
            return
        if kind == b"X":
            raise StoreCopyFailed(content.decode(errors="replace"))
        if kind == b"D":
            yield _read_damaged(content)
            continue
        name, _, rest = content.partition(b"\0")
        digest, body = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
        if kind == b"C":
            yield Piece(name.decode(), digest, len(body), body)
        elif kind == b"K" and len(body) == _SIZE.size:
            yield Piece(name.decode(), digest, _SIZE.unpack(body)[0], None)
        else:
            raise StoreCopyFailed(
                f"the copy of the store has a frame that this version does not know: {kind!r}; run the worker's "
                "version here"
            )


def _read_frame(read: Callable[[int], bytes], content_max: int) -> tuple[bytes, bytes]:
    preamble = read(_FRAME.size)
    if len(preamble) < _FRAME.size:
        raise StoreCopyFailed("the copy of the store was cut off: run the command again")
    kind, size = _FRAME.unpack(preamble)
    if size > content_max:
        raise StoreCopyFailed(
            f"the copy of the store has a frame of {size} bytes, over the limit of {content_max}: run the "
            "worker's version here"
        )
    content = read(size)
    if len(content) < size:
        raise StoreCopyFailed("the copy of the store was cut off: run the command again")
    return kind, content
