"""The search for the last message: it passes any number of markers and hidden duplicates, and few chunks; it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from duplicates_support import chunks_of, numbered, numbered_batch
from engine_support import logged, opened
from hypothesis import given
from hypothesis import strategies as st
from step_limit import at_most_steps

from replicator.engine.log import delivered
from replicator.engine.log.delivered import CHUNKS_PASSED_MAX, last_delivered, last_position
from replicator.engine.log.duplicates import DuplicateEntries
from replicator.engine.log.last_message import last_message
from replicator.engine.log.log_index import LogIndex, ViewIndex
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


def test_an_empty_log_and_one_of_markers_alone_have_no_last_message() -> None:
    log = LogIndex()
    assert last_message(log) == BEFORE_ALL
    log.append(Position(3, 0), 5, marker=True)
    log.append(Position(4, 7), 1, marker=True)
    assert last_message(log) == BEFORE_ALL


def test_a_million_markers_after_the_last_message_cost_a_few_look_ups() -> None:
    log = LogIndex()
    log.append(Position(3, 0), 2, marker=False)
    log.append(Position(3, 2), 1_000_000, marker=True)
    log.append(Position(5, 0), 1_000_000, marker=True)
    assert last_message(log) == Position(3, 1)


def test_a_log_that_is_trimmed_in_its_only_ledger_and_has_markers_alone_left_has_no_last_message() -> None:
    log = LogIndex()
    log.append(Position(5, 0), 3, marker=False)
    log.append(Position(5, 3), 1, marker=True)
    log.trim(Position(5, 2))
    with at_most_steps(1_000):
        assert last_message(log) == BEFORE_ALL


@pytest.mark.parametrize("kept", [(), (Position(5, 0),)])
def test_a_search_in_a_compacted_view_passes_hidden_duplicates_once_each(kept: tuple[Position, ...]) -> None:
    log, hidden = LogIndex(), [Position(5, entry) for entry in range(1, 4)]
    log.append(Position(5, 0), 5, marker=False)
    log.duplicates = DuplicateEntries((Position(4, each.entry), each) for each in hidden)
    log.view = ViewIndex(Position(5, 4), PositionSet([*kept, *hidden]))
    with at_most_steps(1_000):
        assert last_position(log, compacted=True) == (kept[0] if kept else BEFORE_ALL)
        assert last_position(log, compacted=True, upto=Position(5, 2)) == (kept[0] if kept else BEFORE_ALL)


def test_a_search_in_a_compacted_view_ends_though_its_index_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may be wrong, or a later one may answer as the log's ``clamp`` does at its start."""
    log = LogIndex()
    log.append(Position(5, 0), 5, marker=False)
    log.duplicates = DuplicateEntries([(Position(5, 0), Position(5, 1))])
    log.view = ViewIndex(Position(5, 4), PositionSet([Position(5, 1)]))
    monkeypatch.setattr(ViewIndex, "clamp", lambda *_: Position(5, 1))
    with at_most_steps(1_000):
        last_position(log, compacted=True)


@pytest.mark.parametrize("beyond", [0, 3])
def test_a_search_reads_so_many_chunks_at_the_end_of_a_log_and_takes_the_next_for_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    read: list[Position] = []
    last_index = delivered._last_index

    def counted(topic: delivered.ReadTopic, position: Position, *, compacted: bool) -> int | None:
        read.append(position)
        return last_index(topic, position, compacted=compacted)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic("chunks")
            begun = [chunks_of(number, 2)[0] for number in range(CHUNKS_PASSED_MAX - 1 + beyond)]
            await topic.publish([numbered(1), numbered_batch(2, 4), *begun])
            monkeypatch.setattr(delivered, "_last_index", counted)
            found = last_delivered(topic)
            places = [position for _, position, _ in logged(topic)]
            if beyond:
                assert found.position == places[1 + beyond - 1]
            else:
                assert (found.position, found.batch_index) == (places[1], 2)

    asyncio.run(main())
    assert len(read) == CHUNKS_PASSED_MAX == 1_000


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=12))
def test_it_is_the_one_that_walking_back_finds(runs: list[tuple[int, int, int, bool]]) -> None:
    """Runs of messages and of markers, over ledgers that start at any entry."""
    log = LogIndex()
    expected = BEFORE_ALL
    at = Position(1, 0)
    for new_ledger, first, entries, marker in runs:
        if new_ledger:
            at = Position(at.ledger + 1, first)
        log.append(at, entries, marker=marker)
        at = Position(at.ledger, at.entry + entries)
        if not marker:
            expected = Position(at.ledger, at.entry - 1)
    assert last_message(log) == expected
