"""Offsets of a stream: the position up to which each topic of each cluster was read, as JSON. Pure.

Spark writes the whole offset into the checkpoint with each micro-batch. It is all that a query knows after a restart,
and its size matters with many topics:

1. Topics that were not read are left out; so a later topic starts at its beginning.
2. Incarnations are left out, too: ids of ledgers and incarnations come from one rising counter of the cluster, so a
   position alone tells whether a topic was made anew.
3. Up to :data:`READABLE_TOPICS_MAX` topics are written as they are: ``{"us-east": {"persistent://…/a": "3:17"}}``.
4. More are packed: ``{"us-east": "1~…"}``, the names in order, the ledgers and the entries as numbers, bytes
   of the same weight together, compressed by zlib, and in base 64: 6 to 13 bytes a topic, 40 if names are random.
5. An offset of a later version than 1 says which under ``~version``; names of clusters have no tilde.

The same positions always make the same text, by which Spark knows that there is nothing new.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replicator import __version__
from replicator.pipeline.errors import BadOffset
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

READABLE_TOPICS_MAX: Final = 100
"""Limit of topics of one cluster that are not packed. More would be too long to read in Spark's progress."""
PACKED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of an unpacked offset: a million topics with the longest names would be larger, and no worker has them."""
VERSION_FIELD: Final = "~version"
VERSION: Final = 1
"""Version of offsets. It is not written while it is 1; a checkpoint with a higher one is a later version's."""
_VERSION: Final = "1~"
_LEVEL: Final = 6

Positions = Mapping[str, Mapping[str, Position]]
"""Last position that was read, by cluster and topic."""


def encode_offset(positions: Positions) -> dict[str, Any]:
    """Return the offset for ``positions``."""
    offset: dict[str, Any] = {}
    for cluster, topics in sorted(positions.items()):
        read = {topic: position for topic, position in sorted(topics.items()) if position > BEFORE_ALL}
        if len(read) > READABLE_TOPICS_MAX:
            offset[cluster] = _pack(read)
        else:
            offset[cluster] = {topic: str(position) for topic, position in read.items()}
    return offset


def decode_offset(offset: Mapping[str, Any]) -> dict[str, dict[str, Position]]:
    """Return the positions in an offset of :func:`encode_offset`. Raises :class:`BadOffset` if the source did not write
    it."""
    if not isinstance(offset, Mapping):
        raise BadOffset(
            f"the query's checkpoint has an offset that this source did not write: {str(offset)[:80]!r}; give the "
            "query a checkpointLocation of its own"
        )
    if (version := offset.get(VERSION_FIELD, VERSION)) != VERSION:
        raise BadOffset(
            f"the query's checkpoint has an offset of version {version}, this replicator ({__version__}) reads version "
            f"{VERSION}: run the query with the version that wrote it or a newer one, or begin it anew with another "
            "checkpointLocation (docs/upgrade.md)"
        )
    positions: dict[str, dict[str, Position]] = {}
    for cluster, topics in offset.items():
        try:
            if isinstance(topics, str):
                positions[cluster] = _unpack(topics)
            else:
                positions[cluster] = {str(topic): Position.parse(text) for topic, text in topics.items()}
        except (ValueError, TypeError, AttributeError, IndexError, InvalidPosition, zlib.error) as error:
            raise BadOffset(
                f"the query's checkpoint has an offset that this source did not write: {error}; give the query a "
                "checkpointLocation of its own"
            ) from None
    return positions


def _pack(read: Mapping[str, Position]) -> str:
    names = "\n".join(read).encode()
    ledgers = np.array([position.ledger for position in read.values()], dtype=np.uint64)
    # Entries count from -1, the place before the first of a ledger.
    entries = np.array([position.entry + 1 for position in read.values()], dtype=np.uint64)
    ledgers[1:] -= ledgers[:-1].copy()  # wraps around, and back when it is summed up
    body = b"".join([len(read).to_bytes(4, "big"), _planes(ledgers), _planes(entries), names])
    return _VERSION + base64.b64encode(zlib.compress(body, _LEVEL)).decode("ascii")


def _unpack(text: str) -> dict[str, Position]:
    if not text.startswith(_VERSION):
        raise ValueError(f"the offset begins with {text[:8]!r}, not {_VERSION!r}; was it written by a later version?")
    try:
        packed = base64.b64decode(text[len(_VERSION) :], validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    stream = zlib.decompressobj()
    body = stream.decompress(packed, PACKED_BYTES_MAX)
    count = int.from_bytes(body[:4], "big")
    if not stream.eof or len(body) < 4 + 16 * count:
        raise ValueError("the packed part of the offset is cut short")
    ledgers = np.cumsum(_numbers(body[4 : 4 + 8 * count], count), dtype=np.uint64).tolist()
    entries = _numbers(body[4 + 8 * count : 4 + 16 * count], count).tolist()
    names = body[4 + 16 * count :].decode().split("\n") if count else []
    return {name: Position(ledger, entry - 1) for name, ledger, entry in zip(names, ledgers, entries, strict=True)}


def _planes(numbers: npt.NDArray[np.uint64]) -> bytes:
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _numbers(planes: bytes, count: int) -> npt.NDArray[np.uint64]:
    by_weight = np.frombuffer(planes, np.uint8).reshape(8, count)
    return np.ascontiguousarray(by_weight.T).view("<u8").reshape(count).astype(np.uint64)
