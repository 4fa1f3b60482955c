"""Options and planning of the data source; the reading itself is tested against a server."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.pipeline.data_plane import TopicState
from replicator.pipeline.errors import BadOption
from replicator.pipeline.source import SourceOptions, TopicRange, plan_ranges
from snapshots.position import BEFORE_ALL, Position

URL = "http://127.0.0.1:1"


def topic(name: str, first: Position, last: Position, entries: int, messages: int | None = None) -> TopicState:
    return TopicState(name, 1, first, last, entries, entries if messages is None else messages)


def plan(*topics: TopicState, **options: object) -> list[tuple[TopicRange, ...]]:
    return plan_ranges({URL: ("us", topics)}, SourceOptions(urls=(URL,), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "url"),
        ({"url": "127.0.0.1:80"}, "url"),
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://host:99999"}, "url"),
        ({"url": f"{URL},"}, "url"),
        ({"url": URL, "topics": "t"}, "topics"),
        ({"url": URL, "topic": "a/../b"}, "topic"),
        ({"url": URL, "topic": "a,,b"}, "topic"),
        ({"url": URL, "topic": "t", "after": "3"}, "after"),
        ({"url": URL, "topic": "t", "upto": "3:x"}, "upto"),
        ({"url": URL, "after": "3:0"}, "after"),
        ({"url": URL, "topic": "a,b", "upto": "3:0"}, "upto"),
        ({"url": f"{URL},{URL}", "topic": "a", "upto": "3:0"}, "upto"),
        ({"url": URL, "entries_per_partition": "0"}, "entries_per_partition"),
        ({"url": URL, "entries_per_partition": "many"}, "entries_per_partition"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], option: str) -> None:
    with pytest.raises(BadOption, match=rf"^option '{option}': ") as caught:
        SourceOptions.parse(options)
    assert caught.value.option == option
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "Spark carries it between processes"


def test_options_are_read_whatever_their_case() -> None:
    options = SourceOptions.parse({"URL": f"{URL}/", "Topic": "a, b,a", "entries_per_Partition": "7"})
    assert options == SourceOptions(
        urls=(URL,),
        topics=("persistent://public/default/a", "persistent://public/default/b"),
        entries_per_partition=7,
    )


def test_a_topic_that_no_cluster_has_is_an_error() -> None:
    with pytest.raises(BadOption, match="no topic b"):
        plan(topic("a", Position(1, 0), Position(1, 9), 10), topics=("a", "b"))


def test_small_topics_share_a_partition_and_empty_ones_cost_nothing() -> None:
    small = [topic(f"t{number}", Position(1, 0), Position(1, 9), 10) for number in range(25)]
    planned = plan(*small, topic("empty", BEFORE_ALL, BEFORE_ALL, 0), entries_per_partition=100)
    assert [len(ranges) for ranges in planned] == [10, 10, 5]


def test_a_large_topic_is_split_into_even_ranges() -> None:
    planned = plan(topic("t", Position(1, 0), Position(1, 99), 100), entries_per_partition=40)
    assert [(ranges[0].after, ranges[0].upto) for ranges in planned] == [
        (Position(1, -1), Position(1, 39)),
        (Position(1, 39), Position(1, 79)),
        (Position(1, 79), Position(1, 99)),
    ]


def test_without_the_option_partitions_are_sized_by_messages() -> None:
    batched = topic("t", Position(1, 0), Position(1, 999), 1_000, messages=1_000_000)
    assert len(plan(batched)) == 10


def test_a_range_is_cut_to_the_options() -> None:
    whole = topic("t", Position(1, 0), Position(1, 99), 100)
    ((part,),) = plan(whole, topics=("t",), after=Position(1, 9), upto=Position(1, 19))
    assert (part.after, part.upto, part.entries) == (Position(1, 9), Position(1, 19), 10)
    assert plan(whole, topics=("t",), after=Position(1, 99)) == []
    ((clipped,),) = plan(whole, topics=("t",), upto=Position(7, 0))
    assert clipped.upto == Position(1, 99), "what comes after planning is not read"


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
    log = log[min(trimmed, len(log) - 1) :]
    planned = plan(
        topic("t", log[0], log[-1], len(log)),
        topics=("t",),
        after=after or BEFORE_ALL,
        upto=upto,
        entries_per_partition=size_max,
    )
    read = [p for ranges in planned for part in ranges for p in log if part.after < p <= part.upto]
    assert read == [p for p in log if (after or BEFORE_ALL) < p <= (upto or log[-1])]
