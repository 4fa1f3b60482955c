from __future__ import annotations

from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.block import BlockView
from replicator.engine.log.block_cache import BlockCache
from snapshots.position import Position

VIEW = BlockView(make_block(Position(1, 0), [b"a", b"b", b"c"]))


def test_a_block_is_found_by_each_of_its_positions_and_no_other() -> None:
    cache = BlockCache()
    cache.put(1, Position(5, 10), VIEW, 100)
    for entry in (10, 11, 12):
        assert cache.get(1, Position(5, entry)) == (Position(5, 10), VIEW)
    for topic_id, position in [(1, Position(5, 9)), (1, Position(5, 13)), (1, Position(6, 0)), (2, Position(5, 11))]:
        assert cache.get(topic_id, position) is None


def test_the_least_recently_used_block_goes_first() -> None:
    cache = BlockCache(bytes_max=250)
    cache.put(1, Position(1, 0), VIEW, 100)
    cache.put(1, Position(1, 3), VIEW, 100)
    assert cache.get(1, Position(1, 0)) is not None
    cache.put(1, Position(1, 6), VIEW, 100)
    assert cache.get(1, Position(1, 3)) is None
    assert cache.get(1, Position(1, 0)) is not None
    assert cache.get(1, Position(1, 6)) is not None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(1, 100)), max_size=60))
def test_invariant_11_it_never_holds_more_than_its_limit_or_one_block(puts: list[tuple[int, int, int]]) -> None:
    cache = BlockCache(bytes_max=150)
    for topic_id, index, size_bytes in puts:
        position = Position(1, 3 * index)
        cache.put(topic_id, position, VIEW, size_bytes)
        held = cache._blocks
        assert sum(size for _, size in held.values()) == cache._bytes
        assert cache._bytes <= 150 or len(held) == 1
        assert cache._order == sorted(held)
        assert cache.get(topic_id, Position(1, 3 * index + 2)) == (position, VIEW)


def test_what_is_trimmed_is_forgotten_and_makes_room() -> None:
    cache = BlockCache(bytes_max=400)
    for topic_id in (1, 2):
        for entry in (0, 3, 6):
            cache.put(topic_id, Position(5, entry), VIEW, 60)
    cache.discard_through(1, Position(5, 5))
    assert [cache.get(1, Position(5, entry)) is None for entry in (0, 3, 6)] == [True, True, False]
    assert all(cache.get(2, Position(5, entry)) is not None for entry in (0, 3, 6))
    cache.put(1, Position(6, 0), VIEW, 120)
    assert cache.get(2, Position(5, 0)) is not None, "120 of 400 bytes were free again"
