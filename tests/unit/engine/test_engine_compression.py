"""Codecs: what is compressed comes back, and a payload that lies about its length is refused."""

from __future__ import annotations

import pytest

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.compression import compress, decompress
from replicator.metadata.metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

CODECS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
COMPRESSING = CODECS[1:]
PAYLOADS = [b"", b"x", b"hello world" * 1000, bytes(range(256)) * 40]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_is_compressed_comes_back(codec: CompressionType, payload: bytes) -> None:
    assert decompress(compress(payload, codec), codec, len(payload)) == payload
    assert decompress(memoryview(compress(memoryview(payload), codec)), codec, len(payload)) == payload


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("claim", [-1, 1, 100, 5000])
def test_a_payload_that_says_a_wrong_length_is_corrupt(codec: CompressionType, claim: int) -> None:
    payload = b"hello world" * 1000
    with pytest.raises(EntryCorrupt):
        decompress(compress(payload, codec), codec, len(payload) + claim)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 3), slice(0, 0), slice(2, None)])
def test_a_payload_that_is_cut_is_corrupt(codec: CompressionType, cut: slice) -> None:
    payload = bytes(range(256)) * 40
    with pytest.raises(EntryCorrupt):
        decompress(compress(payload, codec)[cut], codec, len(payload))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_claim_over_the_limit_is_refused_before_anything_is_allocated(codec: CompressionType) -> None:
    with pytest.raises(MessageTooLarge):
        decompress(compress(b"x" * 100, codec), codec, 2**32 - 1)
    with pytest.raises(MessageTooLarge):
        decompress(compress(b"x" * 100, codec), codec, 100, bytes_max=99)


def test_a_codec_that_is_not_known_is_corrupt() -> None:
    with pytest.raises(EntryCorrupt):
        decompress(b"x", 17, 1)  # type: ignore[arg-type]
    with pytest.raises(EntryCorrupt):
        compress(b"x", 17)  # type: ignore[arg-type]
