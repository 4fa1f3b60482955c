from __future__ import annotations

from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.block import BlockView
from replicator.engine.log.block_cache import BLOCK_OBJECT_BYTES, SLOT_ENTRIES, BlockCache
from snapshots.position import Position

VIEW = BlockView(make_block(Position(1, 0), [b"a", b"b", b"c"]))
LONG = BlockView(make_block(Position(1, 0), [b"a"] * (2 * SLOT_ENTRIES + 5)))
TAKES = len(VIEW.block) + BLOCK_OBJECT_BYTES


def test_a_block_is_found_by_each_of_its_positions_and_no_other() -> None:
    cache = BlockCache()
    cache.put(1, Position(5, 10), VIEW)
    for entry in (10, 11, 12):
        assert cache.get(1, Position(5, entry)) == (Position(5, 10), VIEW)
    for topic_id, position in [(1, Position(5, 9)), (1, Position(5, 13)), (1, Position(6, 0)), (2, Position(5, 11))]:
        assert cache.get(topic_id, position) is None


def test_the_least_recently_used_block_goes_first() -> None:
    cache = BlockCache(bytes_max=2 * TAKES)
    cache.put(1, Position(1, 0), VIEW)
    cache.put(1, Position(1, 3), VIEW)
    assert cache.get(1, Position(1, 0)) is not None
    cache.put(1, Position(1, 6), VIEW)
    assert cache.get(1, Position(1, 3)) is None
    assert cache.get(1, Position(1, 0)) is not None
    assert cache.get(1, Position(1, 6)) is not None


_FIRSTS = st.integers(0, 5).map(lambda index: index * (len(LONG) + len(VIEW)))
_STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 3), _FIRSTS, st.booleans()),
    st.tuples(st.just("trim"), st.integers(1, 3), st.integers(0, 4_000), st.booleans()),
)


@given(st.lists(_STEPS, max_size=60), st.integers(1, 6 * TAKES))
def test_invariant_11_it_holds_what_was_put_last_within_its_limit(
    steps: list[tuple[str, int, int, bool]], bytes_max: int
) -> None:
    cache = BlockCache(bytes_max=bytes_max)
    model: dict[tuple[int, Position], BlockView] = {}
    for what, topic_id, entry, long in steps:
        position = Position(1, entry)
        if what == "trim":
            cache.discard_through(topic_id, position)
            for key in [key for key in model if key[0] == topic_id and key[1] <= position]:
                del model[key]
        else:
            view = model.pop((topic_id, position), None)
            if view is None or cache.get(topic_id, position) is None:
                view = LONG if long else VIEW
                cache.put(topic_id, position, view)
            model[topic_id, position] = view
        while sum(len(view.block) + BLOCK_OBJECT_BYTES for view in model.values()) > bytes_max and len(model) > 1:
            del model[next(iter(model))]
        assert len(cache) == len(model)
        assert cache.size_bytes == sum(len(view.block) + BLOCK_OBJECT_BYTES for view in model.values())
    for topic_id in (1, 2, 3):
        for entry in range(0, 4_000, 7):
            holding = [
                (first, view)
                for (each, first), view in model.items()
                if each == topic_id and first.entry <= entry < first.entry + len(view)
            ]
            assert cache.get(topic_id, Position(1, entry)) == (holding[0] if holding else None)


def test_what_is_trimmed_is_forgotten_and_makes_room() -> None:
    cache = BlockCache(bytes_max=6 * TAKES)
    for topic_id in (1, 2):
        for entry in (0, 3, 6):
            cache.put(topic_id, Position(5, entry), VIEW)
    cache.discard_through(1, Position(5, 5))
    assert [cache.get(1, Position(5, entry)) is None for entry in (0, 3, 6)] == [True, True, False]
    assert all(cache.get(2, Position(5, entry)) is not None for entry in (0, 3, 6))
    cache.put(1, Position(6, 0), VIEW)
    cache.put(1, Position(6, 3), VIEW)
    assert cache.get(2, Position(5, 0)) is not None, "two of six were free again"
