"""Reading plan of Spark's partitions: ranges meet end to end, small topics share tasks, unreadable ranges are
reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.pipeline.errors import BadOption, TopicChanged
from replicator.pipeline.source.filters import Condition, PushedFilters
from replicator.pipeline.source.options import Bound, OnGap, SourceOptions
from replicator.pipeline.source.planning import (
    PARTITIONS_MAX,
    RANGES_PER_PARTITION,
    TopicRange,
    bounded_spans,
    narrowed_spans,
    plan_ranges,
)
from replicator.pipeline.source.topic_positions import ClusterTopics, Measured, TopicPositions
from snapshots.position import BEFORE_ALL, Position

URL = "http://127.0.0.1:1"


def topic(name: str, *runs: tuple[int, int, int], trimmed: Position = BEFORE_ALL) -> TopicPositions:
    return TopicPositions(name, 1, trimmed, runs)


def standings(*topics: TopicPositions) -> dict[str, ClusterTopics]:
    return {URL: ClusterTopics("us", "", {each.name: each for each in topics})}


def options(**given: Any) -> SourceOptions:
    return SourceOptions(urls=(URL,), **given)


def plan(*topics: TopicPositions, **given: Any) -> list[tuple[TopicRange, ...]]:
    spans = bounded_spans(standings(*topics), options(**given))
    return plan_ranges(spans, {}, options(**given))


def test_a_topic_that_no_cluster_has_and_a_pattern_that_matches_nothing_are_errors() -> None:
    with pytest.raises(BadOption, match=rf"option 'topic': no topic b at us \({URL}\)"):
        plan(topic("a", (2, 0, 9)), topics=("a", "b"))
    nothing = SourceOptions.parse({"url": URL, "pattern": "x.*"})
    with pytest.raises(BadOption, match=r"option 'pattern': persistent://public/default/x\.\* matches no topic"):
        bounded_spans(standings(topic("persistent://public/default/a", (2, 0, 9))), nothing)


def test_small_topics_share_a_partition_and_empty_ones_cost_nothing() -> None:
    small = [topic(f"t{number:02d}", (2, 0, 9)) for number in range(25)]
    planned = plan(*small, topic("empty"), entries_per_partition=100)
    assert [len(ranges) for ranges in planned] == [10, 10, 5]


def test_thousands_of_topics_with_a_little_each_are_a_few_tasks() -> None:
    planned = plan(*(topic(f"t{number:05d}", (2, 0, 0)) for number in range(5_000)))
    assert len(planned) == 5_000 // RANGES_PER_PARTITION


def test_a_large_topic_is_split_evenly_over_its_ledgers() -> None:
    planned = plan(topic("t", (2, 0, 59), (5, 0, 39)), entries_per_partition=40)
    assert [(ranges[0].after, ranges[0].upto, ranges[0].entries) for ranges in planned] == [
        (BEFORE_ALL, Position(2, 39), 40),
        (Position(2, 39), Position(5, 19), 40),
        (Position(5, 19), Position(5, 39), 20),
    ]


def test_partitions_are_sized_by_messages_and_by_bytes() -> None:
    spans = bounded_spans(standings(topic("t", (2, 0, 999))), options())
    many_messages = {(URL, "t"): Measured(Position(2, 9), 10, 50_000, 100)}
    assert len(plan_ranges(spans, many_messages, options())) == 20
    many_bytes = {(URL, "t"): Measured(Position(2, 9), 10, 10, 10_000)}
    assert len(plan_ranges(spans, many_bytes, options(bytes_per_partition=100_000))) == 10


def test_the_largest_backlog_makes_larger_partitions_not_more() -> None:
    assert len(plan(topic("t", (2, 0, 10**7)), entries_per_partition=10)) <= PARTITIONS_MAX + 1


def test_a_read_is_cut_to_its_bounds_and_a_position_beyond_the_end_is_an_error() -> None:
    whole = topic("t", (2, 0, 99))
    after, upto = Bound("after", "2:9", position=Position(2, 9)), Bound("upto", "2:19", position=Position(2, 19))
    ((part,),) = plan(whole, start=after, end=upto)
    assert (part.after, part.upto, part.entries) == (Position(2, 9), Position(2, 19), 10)
    assert plan(whole, start=Bound("after", "2:99", position=Position(2, 99))) == []
    assert plan(whole, start=Bound("start", "latest", latest=True)) == []
    for option in ("start", "end"):
        beyond = {option: Bound(option, "7:0", position=Position(7, 0))}
        with pytest.raises(BadOption, match=f"option '{option}': 7:0 is beyond the last entry of t, which is 2:99"):
            plan(whole, **beyond)


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
def test_a_start_that_was_trimmed_is_an_error_or_skipped(on_gap: OnGap) -> None:
    trimmed = topic("t", (2, 50, 99), trimmed=Position(2, 49))
    given: dict[str, Any] = {"start": Bound("start", "2:10", position=Position(2, 9)), "on_gap": on_gap}
    if on_gap == "fail":
        with pytest.raises(TopicChanged, match=r"topic t was trimmed up to 2:49, past 2:9.*option 'onGap'"):
            plan(trimmed, **given)
    else:
        ((part,),) = plan(trimmed, **given)
        assert (part.after, part.entries, part.incarnation) == (Position(2, 49), 50, None)
    ((pinned,),) = plan(trimmed)
    assert (pinned.after, pinned.incarnation) == (Position(2, 49), 1), "what is there is all that is wanted"


def test_an_end_in_an_earlier_life_of_the_topic_is_an_error_and_not_an_empty_answer() -> None:
    anew = TopicPositions("t", 50, BEFORE_ALL, ((53, 0, 9),))
    end = Bound("upto", "2:9", position=Position(2, 9))
    with pytest.raises(TopicChanged, match=r"topic t was deleted and made anew after 2:9.*option 'onGap'"):
        plan(anew, end=end)
    assert plan(anew, end=end, on_gap="skip") == []


def test_filters_narrow_what_is_planned() -> None:
    spans = bounded_spans(standings(topic("a", (2, 0, 9), (5, 0, 9)), topic("b", (3, 0, 9))), options())
    assert [span.positions.name for span in narrowed_spans(spans, PushedFilters((Condition("topic", "=", "b"),)))] == [
        "b"
    ]
    one_ledger = PushedFilters((Condition("ledger", "=", 5), Condition("entry", ">=", 4), Condition("entry", "<", 6)))
    (span,) = narrowed_spans(spans, one_ledger)
    assert (span.after, span.entries) == (Position(5, 3), 2)
    assert narrowed_spans(spans, PushedFilters((Condition("ledger", ">", 5),))) == []


@given(
    ledgers=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    trimmed=st.integers(0, 10),
    size_max=st.integers(1, 50),
    after=st.none() | st.builds(Position, st.integers(1, 10), st.integers(-1, 60)),
    upto=st.none() | st.builds(Position, st.integers(1, 10), st.integers(0, 60)),
)
def test_the_ranges_of_a_topic_hold_each_wanted_entry_exactly_once_in_order(
    ledgers: list[int], trimmed: int, size_max: int, after: Position | None, upto: Position | None
) -> None:
    log = [Position(2 * number + 1, entry) for number, size in enumerate(ledgers) for entry in range(size)]
    gone, log = log[: min(trimmed, len(log) - 1)], log[min(trimmed, len(log) - 1) :]
    runs = []
    for ledger in dict.fromkeys(position.ledger for position in log):
        entries = [position.entry for position in log if position.ledger == ledger]
        runs.append((ledger, entries[0], entries[-1]))
    after = None if after is None else min(after, log[-1])
    upto = None if upto is None else min(upto, log[-1])
    planned = plan(
        topic("t", *runs, trimmed=gone[-1] if gone else BEFORE_ALL),
        start=None if after is None else Bound("after", "", position=after),
        end=None if upto is None else Bound("upto", "", position=upto),
        on_gap="skip",
        entries_per_partition=size_max,
    )
    parts = [part for ranges in planned for part in ranges]
    read = [p for part in parts for p in log if part.after < p <= part.upto]
    assert read == [p for p in log if (after or BEFORE_ALL) < p <= (upto or log[-1])]
    assert all(sum(part.after < p <= part.upto for p in log) == part.entries <= size_max for part in parts)
