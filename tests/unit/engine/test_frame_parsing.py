"""Frames are found in the bytes of a connection, however these are split; garbage is one clear error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt, FrameTooLarge
from replicator.engine.log.buffers import Buffers
from replicator.engine.log.frame_parsing import AT_HAND_BYTES, FrameParser
from replicator.engine.log.link_frame import FRAME_BYTES_MAX, HEADER_BYTES, pack_frame


class CountingBuffers(Buffers):
    """Remembers what was taken."""

    def __init__(self) -> None:
        super().__init__(1024**2)
        self.taken: list[int] = []

    def take(self, size: int) -> memoryview:
        self.taken.append(size)
        return super().take(size)


def feed(parser: FrameParser, sent: bytes, sizes: list[int]) -> list[bytes]:
    """Feed the parser like a socket that gives ``sizes`` bytes by turns, never more than asked for; return the frames'
    contents."""
    found: list[bytes] = []
    turn = 0
    while sent:
        buffer = parser.buffer()
        assert len(buffer) > 0
        piece = sent[: min(len(buffer), sizes[turn % len(sizes)])]
        buffer[: len(piece)] = piece
        sent, turn = sent[len(piece) :], turn + 1
        found += [bytes(frame.content) for frame in parser.received(len(piece))]
    return found


def framed(*contents: bytes) -> bytes:
    return b"".join(b"".join(pack_frame([content], "none").pieces) for content in contents)


contents = st.lists(
    st.one_of(
        st.binary(max_size=40), st.sampled_from([b"a" * AT_HAND_BYTES, b"b" * 300_000, b"c" * (AT_HAND_BYTES - 9)])
    ),
    max_size=6,
)


@given(contents, st.lists(st.sampled_from([1, 5, HEADER_BYTES, 50, 4_096, 10**6]), min_size=1, max_size=5))
def test_any_split_of_the_bytes_gives_the_same_frames(sent: list[bytes], sizes: list[int]) -> None:
    if sum(map(len, sent)) > 10_000:
        sizes = [*sizes, 4_096]
    parser = FrameParser(Buffers(1024**2))
    assert feed(parser, framed(*sent), sizes) == sent
    parser.end()
    assert not parser.inside


@given(st.lists(st.binary(max_size=40), max_size=3), st.binary(min_size=1, max_size=200), st.integers(1, 60))
def test_garbage_after_whole_frames_is_one_clear_error_and_the_frames_before_it_come_first(
    sent: list[bytes], garbage: bytes, size: int
) -> None:
    buffers = CountingBuffers()
    parser = FrameParser(buffers)
    found: list[bytes] = []
    bytes_ = framed(*sent) + garbage
    try:
        while bytes_:
            buffer = parser.buffer()
            piece = bytes_[: min(size, len(buffer))]
            buffer[: len(piece)] = piece
            bytes_ = bytes_[len(piece) :]
            for frame in parser.received(len(piece)):
                found.append(bytes(frame.content))
        parser.end()
    except (BlockCorrupt, FrameTooLarge):
        pass
    assert found[: len(sent)] == sent
    assert all(taken <= FRAME_BYTES_MAX for taken in buffers.taken)


@pytest.mark.parametrize("lengths", [(FRAME_BYTES_MAX + 1, 5), (5, FRAME_BYTES_MAX + 1), (2**32 - 1, 2**32 - 1)])
def test_invariant_11_an_oversized_frame_is_refused_before_memory_is_taken(lengths: tuple[int, int]) -> None:
    buffers = CountingBuffers()
    with pytest.raises(FrameTooLarge, match="over the limit"):
        feed(FrameParser(buffers), struct.pack(">IBI", lengths[0], 2, lengths[1]), [100])
    assert buffers.taken == []


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (struct.pack(">IBI", 5, 3, 5), "compression 3"),
        (struct.pack(">IBI", 5, 0, 4), "5 bytes, but says that it has 4"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
    ],
)
def test_what_is_no_header_is_named(sent: bytes, error: str) -> None:
    with pytest.raises((BlockCorrupt, FrameTooLarge), match=error):
        feed(FrameParser(Buffers(1024**2)), sent, [100])


@given(st.integers(1, 2_000))
def test_an_end_inside_a_frame_is_an_error(cut: int) -> None:
    sent = framed(b"x" * 1_000, b"y" * 1_000)
    parser = FrameParser(Buffers(1024**2))
    feed(parser, sent[:cut], [10_000])
    if cut == 1_000 + HEADER_BYTES:
        parser.end()
        return
    with pytest.raises(BlockCorrupt, match="the link's stream ends inside a frame"):
        parser.end()


def test_a_large_frame_is_received_into_the_memory_that_it_is_handed_out_in() -> None:
    parser = FrameParser(Buffers(1024**2))
    sent = framed(b"x" * 1_000_000)
    at_hand = parser.buffer()
    at_hand[:] = sent[:AT_HAND_BYTES]
    assert list(parser.received(AT_HAND_BYTES)) == []
    rest = parser.buffer()
    assert len(rest) == len(sent) - AT_HAND_BYTES, "all that is missing is asked for at once"
    rest[:] = sent[AT_HAND_BYTES:]
    (frame,) = parser.received(len(rest))
    assert frame.content.obj is rest.obj
    assert frame.content == sent[HEADER_BYTES:]
