"""Limit of bytes that are on their way to the brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.publish_budget import (
    SHARED_BYTES,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MIN,
    TOPIC_ENTRIES_MAX,
    InFlightEntries,
    publish_budget,
)

MB = 1024 * 1024


def test_one_topic_has_its_most_and_one_entry_always_goes() -> None:
    room = InFlightEntries(publish_budget())
    while room.fits(MB):
        room.sent(MB)
    assert room.bytes == TOPIC_BYTES_MAX
    room.close()
    assert room.fits(10 * TOPIC_BYTES_MAX)


def test_a_broker_is_not_asked_for_more_entries_than_it_takes() -> None:
    room = InFlightEntries(publish_budget())
    while room.fits(1):
        room.sent(1)
    assert room.entries == TOPIC_ENTRIES_MAX


def test_what_a_topic_has_at_least_it_has_however_much_others_have() -> None:
    shared = publish_budget()
    others = [InFlightEntries(shared) for _ in range(2 * SHARED_BYTES // TOPIC_BYTES_MAX)]
    for other in others:
        while other.fits(MB // 2):
            other.sent(MB // 2)
    assert shared.used == SHARED_BYTES
    room = InFlightEntries(shared)
    while room.fits(MB // 2):
        room.sent(MB // 2)
    assert room.bytes == TOPIC_BYTES_MIN
    others[0].close()
    assert room.fits(MB // 2)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20 * MB), st.booleans()), max_size=200))
def test_invariant_11_all_together_are_bounded_and_nothing_is_left_in_the_end(
    steps: list[tuple[int, int, bool]],
) -> None:
    shared = publish_budget()
    rooms = [InFlightEntries(shared) for _ in range(10)]
    sent: list[list[int]] = [[] for _ in rooms]
    for index, size, confirms in steps:
        if confirms and sent[index]:
            rooms[index].confirmed(sent[index].pop(0))
        elif rooms[index].fits(size):
            rooms[index].sent(size)
            sent[index].append(size)
        alone = sum(max(each, default=0) for each in sent)
        assert shared.used <= SHARED_BYTES + alone
        assert shared.used == sum(max(0, sum(each) - TOPIC_BYTES_MIN) for each in sent)
    for room in rooms:
        room.close()
    assert shared.used == 0
