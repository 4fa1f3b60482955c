"""A cursor writes and reads single rows, not its whole state; :mod:`test_cursor_rows_machine` does so at random."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc

import pytest
from cursor_support import TOPIC_ID, CursorTables
from engine_support import make_log
from pyroaring import BitMap

from replicator.engine.errors import StoreUnusable
from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CURSOR_ROWS, CURSORS, CursorRows
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start


def at(entry: int, ledger: int = 1) -> Position:
    return Position(ledger, entry)


def saved(log: LogIndex, state: CursorState | None = None) -> tuple[Cursor, CursorRows, CursorTables]:
    cursor, rows, tables = Cursor(log, state or CursorState()), CursorRows(TOPIC_ID, "s"), CursorTables()
    tables.save(rows, cursor.state)
    return cursor, rows, tables


def test_the_stored_form_keeps_everything() -> None:
    state = CursorState(mark_delete=at(3), generation=4, replicated=True, properties={"owner": "tests", "ü": "x"})
    cursor, rows, tables = saved(make_log((1, 9, False), (2, 3, False)), state)
    for position in (at(5), at(6), at(0, 2)):
        cursor.acknowledge(position, None, 1)
    cursor.acknowledge(at(8), [1, 3], 5)
    tables.save(rows, cursor.state)
    assert tables.load()[0] == cursor.state


def test_nothing_is_written_for_what_did_not_change() -> None:
    cursor, rows, _ = saved(make_log((1, 9, False)))
    assert not rows.changes(cursor.state)
    rows.saved()
    cursor.acknowledge(at(5), None, 1)
    assert [table for table, _, _ in rows.changes(cursor.state).writes] == [CURSOR_ROWS]


def test_acknowledging_in_order_writes_the_head_alone() -> None:
    cursor, rows, tables = saved(make_log((1, 9, False)))
    for entry in range(9):
        cursor.acknowledge(at(entry), None, 1)
        changes = rows.changes(cursor.state)
        assert [table for table, _, _ in changes.writes] == [CURSORS]
        tables.apply(changes)
        rows.saved()


def test_rows_that_mark_delete_passed_are_deleted_and_those_it_stands_in_are_kept() -> None:
    cursor, rows, tables = saved(make_log((1, 200_000, False)))
    for entry in (65_537, 65_540, 140_000):
        cursor.acknowledge(at(entry), None, 1)
        cursor.acknowledge(at(entry + 1_000), [0], 2)
    tables.save(rows, cursor.state)
    assert len(tables.tables[CURSOR_ROWS]) == 4
    cursor.acknowledge_cumulative(at(65_538), None, 1)
    tables.save(rows, cursor.state)
    assert len(tables.tables[CURSOR_ROWS]) == 4
    assert tables.load()[0] == cursor.state
    cursor.acknowledge_cumulative(at(131_072), None, 1)
    tables.save(rows, cursor.state)
    assert len(tables.tables[CURSOR_ROWS]) == 2
    cursor.acknowledge_cumulative(at(199_999), None, 1)
    tables.save(rows, cursor.state)
    assert not tables.tables[CURSOR_ROWS]
    assert tables.load()[0] == cursor.state


def test_a_batch_that_is_acknowledged_whole_takes_its_row_along() -> None:
    cursor, rows, tables = saved(make_log((1, 9, False)))
    cursor.acknowledge(at(4), [0], 2)
    tables.save(rows, cursor.state)
    cursor.acknowledge(at(4), [1], 2)
    tables.save(rows, cursor.state)
    assert len(tables.tables[CURSOR_ROWS]) == 1
    state, _ = tables.load()
    assert (list(state.individually_deleted), len(state.batch_acks)) == ([at(4)], 0)


def test_invariant_5_a_seek_drops_every_row_and_keeps_what_came_after_it() -> None:
    cursor, rows, tables = saved(make_log((1, 200_000, False)))
    for entry in (7, 70_000, 140_000):
        cursor.acknowledge(at(entry), None, 1)
        cursor.acknowledge(at(entry + 1), [0], 2)
    tables.save(rows, cursor.state)
    cursor.restart(BEFORE_ALL)
    cursor.acknowledge(at(70_001), None, 1)
    tables.save(rows, cursor.state)
    state, _ = tables.load()
    assert state == cursor.state
    assert list(state.individually_deleted) == [at(70_001)]
    assert len(tables.tables[CURSOR_ROWS]) == 1


def test_a_refused_save_leaves_what_it_was_to_write_dirty() -> None:
    cursor, rows, tables = saved(make_log((1, 9, False)))
    cursor.acknowledge(at(5), None, 1)
    cursor.acknowledge(at(7), [1], 3)
    rows.changes(cursor.state)
    cursor.acknowledge(at(3), None, 1)
    rows.failed()
    tables.save(rows, cursor.state)
    assert tables.load()[0] == cursor.state


def test_a_save_that_failed_but_was_written_is_deleted_in_its_time() -> None:
    cursor, rows, tables = saved(make_log((1, 9, False)))
    cursor.acknowledge(at(5), [0], 2)
    tables.apply(rows.changes(cursor.state))
    rows.failed()
    cursor.acknowledge(at(5), [1], 2)
    tables.save(rows, cursor.state)
    assert tables.load()[0] == cursor.state
    assert len(tables.tables[CURSOR_ROWS]) == 1


def test_deleting_a_subscription_leaves_nothing_of_it_and_all_of_others() -> None:
    tables, log = CursorTables(), make_log((1, 9, False))
    for name in ("s", "s2", "s.x"):
        cursor, rows = Cursor(log, CursorState()), CursorRows(TOPIC_ID, name)
        cursor.acknowledge(at(5), None, 1)
        tables.save(rows, cursor.state)
    other = CursorRows(TOPIC_ID, "s")
    tables.apply(other.deletion())
    assert sorted(tables.cursors(TOPIC_ID)) == ["s.x", "s2"]
    assert len(tables.tables[CURSOR_ROWS]) == 2


def format_1(state: CursorState, number: int = 1) -> bytes:
    deleted = state.individually_deleted.serialize()
    batches = [(position, bitmap.serialize()) for position, bitmap in state.batch_acks.items()]
    head = json.dumps(
        {
            "format": number,
            "generation": state.generation,
            "mark_delete": list(state.mark_delete),
            "replicated": state.replicated,
            "properties": dict(state.properties),
            "deleted": [[ledger, len(encoded)] for ledger, encoded in deleted],
            "batches": [[*position, len(encoded)] for position, encoded in batches],
        }
    ).encode()
    return b"".join([struct.pack(">I", len(head)), head, *(e for _, e in deleted), *(e for _, e in batches)])


def test_format_1_is_read_and_rewritten_as_rows_by_the_first_save() -> None:
    state = CursorState(at(3), 4, True, {"a": "b"}, PositionSet([at(5), at(70_000), at(0, 2)]))
    state.batch_acks[at(8)] = BitMap([1, 3])
    tables = CursorTables()
    tables.tables[CURSORS][struct.pack(">I", TOPIC_ID) + b"s"] = format_1(state)
    loaded, rows = tables.load()
    assert loaded == state
    tables.save(rows, loaded)
    assert len(tables.tables[CURSOR_ROWS]) == 4
    assert tables.load()[0] == state


@pytest.mark.parametrize("stored", [format_1(CursorState(), 2), b'{"format":3}'])
def test_a_cursor_of_a_newer_format_is_refused_by_name(stored: bytes) -> None:
    tables = CursorTables()
    tables.tables[CURSORS][struct.pack(">I", TOPIC_ID) + b"s"] = stored
    with pytest.raises(StoreUnusable, match=r"format [23]"):
        tables.load()


def test_a_million_holes_fit_20_mb_load_in_a_second_and_one_more_costs_one_small_write() -> None:
    count = 2_000_000
    log = make_log((1, count, False))
    cursor, rows, tables = saved(log)
    for entry in range(1, count, 2):
        cursor.acknowledge(at(entry), None, 1)
    tables.save(rows, cursor.state)
    assert sum(len(value) for value in tables.tables[CURSOR_ROWS].values()) < 300_000, "as in memory, bit by bit"
    started = time.perf_counter()
    state, rows = tables.load()
    again = Cursor(log, state)
    assert time.perf_counter() - started < 1
    assert len(state.individually_deleted) == count // 2
    tables.written_bytes = 0
    again.acknowledge(at(1_000), None, 1)
    tables.save(rows, state)
    assert 0 < tables.written_bytes < 10_000


def test_100_000_open_batches_fit_20_mb_and_one_more_costs_one_small_write() -> None:
    count = 100_000
    log = make_log((1, count, False))
    cursor, rows, tables = saved(log)
    for entry in range(count):
        cursor.acknowledge(at(entry), [1, 3, 99], 100)
    tables.save(rows, cursor.state)
    tracemalloc.start()
    state, rows = tables.load()
    again = Cursor(log, state)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 20_000_000
    tables.written_bytes = 0
    again.acknowledge(at(1_000), [5], 100)
    tables.save(rows, state)
    assert 0 < tables.written_bytes < 20_000
    again.acknowledge_cumulative(at(count - 1), None, 100)
    tables.save(rows, state)
    assert len(tables.tables[CURSOR_ROWS]) == 1, "the one in which mark-delete stands"


def test_where_a_subscription_starts_is_stored_and_a_cursor_of_an_earlier_version_has_no_start() -> None:
    starts = {"us": Start(7, at(3)), "eu": FROM_THE_FIRST}
    cursor, rows, tables = saved(make_log((1, 9, False)), CursorState(mark_delete=at(3), starts=starts))
    assert tables.load()[0].starts == starts
    head = json.loads(next(iter(tables.tables[CURSORS].values())))
    del head["starts"]
    tables.tables[CURSORS] = {key: json.dumps(head).encode() for key in tables.tables[CURSORS]}
    assert tables.load()[0].starts == {}
    cursor.restart(at(5))
    tables.save(rows, cursor.state)
    assert tables.load()[0].starts == {}, "a seek claims all before it"


def test_a_worker_that_starts_again_still_knows_what_came_back_and_may_not_have_been_delivered() -> None:
    log = make_log((1, 9, False))
    cursor, rows, tables = saved(log, CursorState(mark_delete=at(5)))
    assert list(cursor.uncover(PositionSet([at(1), at(2)]))) == [at(1), at(2)]
    tables.save(rows, cursor.state)
    state, _ = tables.load()
    assert (state.mark_delete, list(state.individually_deleted)) == (at(0), [at(3), at(4), at(5)])
    again = Cursor(log, state)
    again.acknowledge_cumulative(at(7), None, 1)
    assert [
        position for position in log.messages_after(BEFORE_ALL, PositionSet()) if not again.is_consumed(position)
    ] == [
        at(1),
        at(2),
        at(8),
    ]
    again.delivered([at(1), at(2)])
    again.acknowledge_cumulative(at(2), None, 1)
    assert again.mark_delete == at(7)
