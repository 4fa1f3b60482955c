from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.block import BlockSpan
from replicator.engine.log.log_sizes import SAMPLE_BLOCKS, LogSizes
from snapshots.position import BEFORE_ALL, Position


def spans(sizes: list[int]) -> list[BlockSpan]:
    return [BlockSpan(Position(1, 3 * at), Position(1, 3 * at + 2), size, 0) for at, size in enumerate(sizes)]


def through(log_sizes: LogSizes, blocks: list[BlockSpan], position: Position) -> int:
    """Return the size up to ``position`` as the shell computes it: from the sample on, block by block."""
    reached, size_bytes = log_sizes.sample(position)
    following = [block for block in blocks if reached < block.last <= position]
    assert len(following) <= SAMPLE_BLOCKS
    return size_bytes + sum(block.size_bytes for block in following)


@given(st.integers(1, 5 * SAMPLE_BLOCKS), st.data())
def test_the_bytes_below_any_position_are_the_sum_of_the_blocks_there_also_after_trims(
    count_of_blocks: int, data: st.DataObject
) -> None:
    blocks, log_sizes = spans([1 + index * 37 % 1000 for index in range(count_of_blocks)]), LogSizes(BEFORE_ALL)
    for block in blocks:
        log_sizes.add(block)
    gone = 0
    for _ in range(data.draw(st.integers(0, 2))):
        count = data.draw(st.integers(0, len(blocks) - gone - 1))
        if count:
            leaving = blocks[gone : gone + count]
            log_sizes.trim(leaving[-1].last, sum(block.size_bytes for block in leaving))
            gone += count
    left = blocks[gone:]
    assert log_sizes.size_bytes == sum(block.size_bytes for block in left)
    position = Position(1, data.draw(st.integers(3 * gone - 1, 3 * len(blocks))))
    assert through(log_sizes, left, position) == sum(block.size_bytes for block in left if block.last <= position)
