"""Limits of metrics by topic: some topics have series of their own, the others share a sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.api.metrics.bounded import OTHER, BoundedFigures, Bounds, SubscriptionFigures, TopicFigures


def topic(incarnation: int, messages: int = 0, subscriptions: int = 0) -> TopicFigures:
    each = (SubscriptionFigures(f"s{index}", 1, 2, 3) for index in range(subscriptions))
    return TopicFigures(f"t{incarnation}", incarnation, 5, messages, 1, tuple(each))


def bound(bounds: Bounds, *topics: TopicFigures, topics_max: int = 2, subscriptions_max: int = 3) -> BoundedFigures:
    return bounds.bound(topics, topics_max=topics_max, subscriptions_max=subscriptions_max)


def named(found: BoundedFigures) -> list[str]:
    return [each.name for each in found.topics]


def other(found: BoundedFigures) -> int:
    """Return the messages of the summed topics."""
    return next((each.messages for each in found.topics if each.name == OTHER), 0)


def test_the_oldest_topics_have_series_of_their_own() -> None:
    found = bound(Bounds(), topic(3), topic(1), topic(2))
    assert named(found) == ["t1", "t2", OTHER]
    assert (found.topics_in_all, found.topics_summed) == (3, 1)


def test_within_the_limits_nothing_is_summed() -> None:
    found = bound(Bounds(), topic(1, subscriptions=2), topic(2, subscriptions=1))
    assert named(found) == ["t1", "t2"]
    assert [(name, each.name) for name, each in found.subscriptions] == [("t1", "s0"), ("t1", "s1"), ("t2", "s0")]
    assert (found.topics_summed, found.subscriptions_summed) == (0, 0)


def test_subscriptions_beyond_the_limit_are_summed_also_those_of_topics_with_series() -> None:
    found = bound(Bounds(), topic(1, subscriptions=2), topic(2, subscriptions=4), topic(3, subscriptions=5))
    assert len(found.subscriptions) == 3 + 1
    name, rest = found.subscriptions[-1]
    assert (name, rest) == (OTHER, SubscriptionFigures(OTHER, 8, 16, 24))
    assert (found.subscriptions_in_all, found.subscriptions_summed) == (11, 8)


def test_a_topic_that_was_summed_stays_so_and_a_new_one_takes_the_room() -> None:
    bounds = Bounds()
    bound(bounds, topic(1), topic(2), topic(3))
    assert named(bound(bounds, topic(2), topic(3))) == ["t2", OTHER]
    assert named(bound(bounds, topic(2), topic(3), topic(4))) == ["t2", "t4", OTHER]


def test_the_sum_counts_from_the_first_scrape_and_a_new_topic_whole() -> None:
    bounds = Bounds()
    assert other(bound(bounds, topic(1), topic(2), topic(3, 1_000))) == 0
    assert other(bound(bounds, topic(1), topic(2), topic(3, 1_010))) == 10
    assert other(bound(bounds, topic(1), topic(2), topic(3, 1_010), topic(4, 7))) == 17
    assert other(bound(bounds, topic(1), topic(2))) == 17  # what was deleted stays in the sum


def test_a_limit_that_is_lowered_holds_at_once_and_old_messages_are_not_counted_as_new() -> None:
    bounds = Bounds()
    bound(bounds, topic(1, 100), topic(2, 100))
    found = bound(bounds, topic(1, 100), topic(2, 105), topics_max=1)
    assert named(found) == ["t1", OTHER]
    assert other(found) == 0
    assert other(bound(bounds, topic(1, 100), topic(2, 106), topics_max=1)) == 1


@given(st.lists(st.tuples(st.sets(st.integers(1, 12)), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_sum_never_falls_and_the_series_keep_to_their_limit(scrapes: list[tuple[set[int], int]]) -> None:
    """Topics come and go, and the limit changes."""
    bounds, before = Bounds(), 0
    for step, (incarnations, topics_max) in enumerate(scrapes):
        found = bound(bounds, *(topic(each, 10 * (step + 1) * each) for each in incarnations), topics_max=topics_max)
        assert len([name for name in named(found) if name != OTHER]) <= topics_max
        assert found.topics_summed == len(incarnations) - len([name for name in named(found) if name != OTHER])
        assert other(found) >= before
        before = other(found)
