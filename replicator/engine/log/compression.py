"""Compression of entry payloads: the codecs that a ``MessageMetadata`` can name, in both directions.

Formats: LZ4 is the raw block, and snappy the raw stream, because the metadata has the length. The length is a
producer's claim. So no more than ``bytes_max`` is allocated, and a payload that does not decompress to exactly the
claimed length is corrupt (invariant 11).
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.metadata.metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

UNCOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of the size of one payload after decompression. It is well above an entry's limit, because some payloads
compress well."""

_ARROW_CODECS: Final = {LZ4: "lz4_raw", SNAPPY: "snappy", ZSTD: "zstd"}

Buffer = bytes | bytearray | memoryview


def compress(payload: Buffer, codec: CompressionType) -> bytes:
    """Return ``payload`` compressed with ``codec``. The caller must store its length in ``uncompressed_size``.

    Raises :class:`EntryCorrupt` for an unknown codec.
    """
    if codec == NONE:
        return bytes(payload)
    if codec == ZLIB:
        return zlib.compress(payload)
    return bytes(pa.compress(payload, codec=_arrow_codec(codec), asbytes=True))


def decompress(
    payload: Buffer, codec: CompressionType, uncompressed_bytes: int, *, bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> bytes:
    """Return ``payload`` decompressed. The result must have exactly ``uncompressed_bytes`` bytes.

    Raises :class:`EntryCorrupt`, and :class:`MessageTooLarge` if ``uncompressed_bytes`` is above ``bytes_max``.
    """
    if codec == NONE:
        return bytes(payload)
    check_claimed(uncompressed_bytes, bytes_max)
    if codec == ZLIB:
        return _inflate(payload, uncompressed_bytes)
    name = _arrow_codec(codec)
    try:
        whole = bytes(pa.decompress(payload, decompressed_size=uncompressed_bytes, codec=name, asbytes=True))
    except (OSError, pa.ArrowInvalid):
        raise EntryCorrupt(
            f"a payload of {len(payload)} bytes cannot be uncompressed by {name} to the {uncompressed_bytes} bytes "
            "that its metadata says: its client is wrong, or it was damaged"
        ) from None
    if codec in (LZ4, SNAPPY) and uncompressed_bytes and _fits(payload, name, uncompressed_bytes - 1):
        # These two codecs leave the rest of a buffer that is too long as it was: with memory of this process.
        raise EntryCorrupt(
            f"a payload in {name} has fewer bytes uncompressed than the {uncompressed_bytes} that its metadata says: "
            "its client is wrong, or it was damaged"
        )
    return whole


def check_claimed(uncompressed_bytes: int, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> None:
    """Raise :class:`MessageTooLarge` if a payload says that it has more than ``bytes_max`` bytes uncompressed."""
    if uncompressed_bytes > bytes_max:
        raise MessageTooLarge(
            f"a payload says it has {uncompressed_bytes} bytes uncompressed, more than the limit of {bytes_max}: "
            "send it in chunks, or smaller batches"
        )


def _fits(payload: Buffer, name: str, size_bytes: int) -> bool:
    try:
        pa.decompress(payload, decompressed_size=size_bytes, codec=name)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _inflate(payload: Buffer, uncompressed_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(payload, uncompressed_bytes + 1)
    except zlib.error as error:
        raise EntryCorrupt(
            f"a payload of {len(payload)} bytes is not in zlib's format, though its metadata says so ({error}): its "
            "client is wrong, or it was damaged"
        ) from None
    if len(whole) != uncompressed_bytes or not stream.eof or stream.unused_data:
        raise EntryCorrupt(
            f"a payload in zlib does not have the {uncompressed_bytes} bytes that its metadata says: its client is "
            "wrong, or it was damaged"
        )
    return whole


def _arrow_codec(codec: CompressionType) -> str:
    name = _ARROW_CODECS.get(codec)
    if name is None:
        raise EntryCorrupt(f"compression {codec} is not known: publish with LZ4, ZLIB, ZSTD, SNAPPY or none")
    return name
