"""Offsets of streams, and what limits let into a micro-batch."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.pipeline.errors import BadOffset
from replicator.pipeline.source.admission import Admission
from replicator.pipeline.source.planning import TopicSpan
from replicator.pipeline.source.stream_offsets import READABLE_TOPICS_MAX, decode_offset, encode_offset
from replicator.pipeline.source.topic_positions import Measured, TopicPositions, water_fill
from snapshots.position import BEFORE_ALL, Position

URL = "http://127.0.0.1:1"
POSITIONS = st.builds(Position, st.integers(1, 2**64 - 1), st.integers(-1, 2**40))
NAMES = st.text("abc-/:é", min_size=1, max_size=12)


@given(
    clusters=st.dictionaries(
        st.sampled_from(["us", "eu"]), st.dictionaries(NAMES, POSITIONS, max_size=5), min_size=1, max_size=2
    ),
    more=st.integers(0, 2 * READABLE_TOPICS_MAX),
    ledger=st.integers(1, 2**63),
)
def test_an_offset_stands_for_itself_and_the_same_positions_make_the_same_text(
    clusters: dict[str, dict[str, Position]], more: int, ledger: int
) -> None:
    positions = {
        cluster: topics | {f"t{number}": Position(ledger + number % 7, number) for number in range(more)}
        for cluster, topics in clusters.items()
    }
    text = json.dumps(encode_offset(positions))
    assert decode_offset(json.loads(text)) == positions
    turned_round = {cluster: dict(reversed(topics.items())) for cluster, topics in reversed(positions.items())}
    assert json.dumps(encode_offset(turned_round)) == text


def test_what_was_never_read_is_not_in_an_offset() -> None:
    assert encode_offset({"us": {"read": Position(3, 0), "new": BEFORE_ALL}}) == {"us": {"read": "3:0"}}


@pytest.mark.parametrize(
    "offset", [{"us": "9~abc"}, {"us": "1~!"}, {"us": "1~AAAA"}, {"us": {"t": "x"}}, {"us": 3}, [1], 7, None]
)
def test_an_offset_of_another_source_is_refused(offset: Any) -> None:
    with pytest.raises(BadOffset, match="an offset that this source did not write"):
        decode_offset(offset)


def test_offsets_of_ten_thousand_topics_stay_small() -> None:
    draw = random.Random(1)
    names = [f"persistent://public/default/device-{number:05d}-events" for number in range(10_000)]
    first = 1_700_000_000_000 * 1024  # ids are milliseconds with a salt
    made_at_once = {name: Position(first + 1024 * at + draw.randrange(1024), 0) for at, name in enumerate(names)}
    assert len(json.dumps(encode_offset({"us-east": made_at_once}))) < 80_000
    over_a_month = {
        name: Position(first + 1024 * draw.randrange(30 * 86_400_000), draw.randrange(100_000)) for name in names
    }
    assert len(json.dumps(encode_offset({"us-east": over_a_month}))) < 150_000


@given(wanted=st.dictionaries(st.text("abc", max_size=3), st.integers(0, 50), max_size=6), limit=st.integers(0, 120))
def test_a_limit_is_used_up_and_nobody_gets_less_than_another_who_wanted_more_than_that(
    wanted: dict[str, int], limit: int
) -> None:
    shares = water_fill(wanted, limit)
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    for name, share in shares.items():
        assert 0 <= share <= wanted[name]
        if share < wanted[name]:
            assert share >= max(shares.values()) - 1


def measured(sizes: dict[str, list[int]], after: Position, name: str, upto: Position, limit: int) -> Measured:
    """Measure as a worker does with blocks of one entry, all in one ledger."""
    reached, size = after.entry, 0
    while reached < upto.entry and (not size or size + sizes[name][reached + 1] <= limit):
        reached += 1
        size += sizes[name][reached]
    return Measured(Position(2, reached), reached - after.entry, reached - after.entry, size)


@given(
    sizes=st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.integers(1, 100), min_size=1, max_size=20), min_size=1, max_size=6
    ),
    entries_max=st.none() | st.integers(1, 30),
    bytes_max=st.none() | st.integers(1, 500),
)
def test_batches_keep_to_their_limits_and_read_everything_in_the_end(
    sizes: dict[str, list[int]], entries_max: int | None, bytes_max: int | None
) -> None:
    admission = Admission(entries_max, bytes_max)
    topics = {name: TopicPositions(name, 1, BEFORE_ALL, ((2, 0, len(of) - 1),)) for name, of in sizes.items()}
    read = dict.fromkeys(sizes, Position(2, -1))
    largest = max(size for of in sizes.values() for size in of)
    waited = dict.fromkeys(sizes, 0)

    def ask(url: str, rows: Sequence[tuple[str, Position, Position, int]], at_most: int) -> list[Measured | None]:
        answer: list[Measured | None] = []
        taken = 0
        for name, after, upto, limit in rows:
            if answer and taken >= at_most:
                break
            answer.append(measured(sizes, after, name, upto, min(limit, at_most - taken)))
            taken += answer[-1].size_bytes if answer[-1] else 0
        return answer

    for _ in range(500):
        backlog = [
            TopicSpan(URL, "us", topics[name], at, topics[name].last)
            for name, at in read.items()
            if at < topics[name].last
        ]
        if not backlog:
            break
        before = dict(read)
        for (_, name), position in admission.admit(backlog, ask).items():
            assert position >= read[name]
            read[name] = position
        entries = sum(read[name].entry - before[name].entry for name in read)
        size = sum(sum(sizes[name][before[name].entry + 1 : read[name].entry + 1]) for name in read)
        assert entries > 0
        assert entries_max is None or entries <= entries_max
        assert bytes_max is None or size <= bytes_max + largest
        for name in read:
            waited[name] = waited[name] + 1 if before[name] == read[name] < topics[name].last else 0
        assert max(waited.values()) <= len(sizes), "nobody waits for ever"
    assert all(read[name] == topics[name].last for name in read)
