"""The checksum is the same whatever holds the bytes."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from replicator.engine.log.checksums import COPIED_BYTES_MAX, crc32c


@pytest.mark.parametrize("size", [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 100_000])
def test_it_is_the_same_for_bytes_arrays_of_bytes_and_slices(size: int) -> None:
    content = random.Random(size).randbytes(size)
    expected = google_crc32c.value(content)
    for held in (content, bytearray(content), memoryview(content), memoryview(b"x" + content)[1:]):
        assert crc32c(held) == expected
        assert crc32c(held[size // 3 :], crc32c(held[: size // 3])) == expected
