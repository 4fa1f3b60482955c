"""Heads of blocks on their way from a worker to a comparison."""

from __future__ import annotations

import numpy as np
from engine_support import make_block, message

from replicator.engine.log.block import BlockKind, read_header
from replicator.engine.log.block_heads import checksums_of, encode_heads, head_of
from replicator.pipeline.verify.plane import read_heads
from snapshots.position import Position


def test_a_head_has_all_that_its_block_says_of_itself() -> None:
    even = make_block(Position(3, 5), [message(b"a"), message(b"b")])
    uneven = make_block(Position(2**50, 7), [message(b"a"), message(b"b")], origin="eu-west", batch_sizes=[3, 4])
    markers = make_block(Position(3, 8), [message(b"m")], kind=BlockKind.MARKERS)
    blocks = {Position(9, 0): even, Position(9, 2): uneven, Position(2**51, 0): markers}
    heads = [head_of(first, read_header(block), memoryview(block), len(block)) for first, block in blocks.items()]
    read = list(read_heads(encode_heads(heads).to_pybytes()))
    assert [head.first for head in read] == list(blocks)
    for head, block in zip(read, blocks.values(), strict=True):
        header = read_header(block)
        assert (head.kind, head.origin, head.incarnation) == (header.kind, header.origin, header.incarnation)
        assert (head.origin_first, head.entries, head.messages) == (
            header.origin_first,
            header.entries,
            header.messages,
        )
        assert (head.size_bytes, head.publish_time_ms) == (len(block), header.publish_time_ms)
        assert head.checksums == checksums_of(memoryview(block))
    assert [np.frombuffer(head.sizes, "<u4").tolist() for head in read] == [[], [3, 4], []]


def test_no_heads_are_an_empty_page() -> None:
    assert list(read_heads(encode_heads([]).to_pybytes())) == []
