"""The frame that links send: what is packed is what is unpacked, and nothing is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt, FrameTooLarge
from replicator.engine.log.link_frame import (
    CODECS,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameHeader,
    pack_frame,
    read_header,
    unpack_frame,
)


@given(st.binary(max_size=2_000), st.integers(1, 50), st.sampled_from(CODECS))
def test_a_frame_comes_back_as_it_was(piece: bytes, times: int, codec: str) -> None:
    stream = piece * times
    packed = pack_frame([piece] * times, codec)
    header, content = packed.pieces[0], b"".join(packed.pieces[1:])
    assert len(header) == HEADER_BYTES
    assert unpack_frame(read_header(header), content) == stream
    assert len(content) <= len(stream)
    assert packed.size_bytes == len(header) + len(content)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.binary(max_size=100))
def test_noise_is_refused_and_nothing_large_is_made_of_it(header: bytes, content: bytes) -> None:
    try:
        raw = unpack_frame(read_header(header), content)
    except (BlockCorrupt, FrameTooLarge):
        return
    assert len(raw) <= FRAME_BYTES_MAX


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_frame_that_does_not_become_what_it_says_is_corrupt(codec: str, wrong: int) -> None:
    header, content = pack_frame([bytes(10_000)], codec).pieces
    told = read_header(header)
    with pytest.raises(BlockCorrupt):
        unpack_frame(FrameHeader(told.length_bytes, codec, told.raw_bytes + wrong), content)
