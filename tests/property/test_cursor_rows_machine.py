"""A cursor's rows against the state in memory: random acknowledgements, saves that fail before or after they were
written, restarts and trims. What is loaded is exactly what the last write held."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from cursor_support import TOPIC_ID, CursorTables
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CURSOR_ROWS, CursorRows
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

LEDGERS = ((1, 200_000), (2, 300), (5, 70_000))
"""Ledgers of several chunks each, with positions near the borders of chunks drawn more often."""
BATCH = 3

positions = st.one_of(
    st.builds(
        Position, st.just(1), st.one_of(st.integers(0, 600), st.integers(65_530, 65_545), st.integers(0, 199_999))
    ),
    st.builds(Position, st.just(2), st.integers(0, 299)),
    st.builds(Position, st.just(5), st.one_of(st.integers(0, 300), st.integers(65_530, 65_545))),
)


class CursorRowsMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.log = LogIndex()
        for ledger, entries in LEDGERS:
            self.log.append(Position(ledger, 0), entries, marker=False)
        self.tables = CursorTables()
        self.cursor = Cursor(self.log, CursorState())
        self.rows = CursorRows(TOPIC_ID, "s")
        other, other_rows = Cursor(self.log, CursorState()), CursorRows(TOPIC_ID, "s2")
        other.acknowledge(Position(1, 77), None, 1)
        self.tables.save(other_rows, other.state)
        self.other = deepcopy(other.state)
        self.saved: CursorState | None = None
        self.save()

    # What changes the state.

    @rule(position=positions, indexes=st.none() | st.lists(st.integers(0, BATCH - 1), max_size=2))
    def acknowledge(self, position: Position, indexes: list[int] | None) -> None:
        self.cursor.acknowledge(position, indexes, BATCH)

    @rule(position=positions, index=st.none() | st.integers(0, BATCH - 1))
    def acknowledge_through(self, position: Position, index: int | None) -> None:
        self.cursor.acknowledge_cumulative(position, index, BATCH)

    @rule(position=positions)
    def close_the_first_hole(self, position: Position) -> None:
        following = self.log.next_after(self.cursor.mark_delete)
        if following is not None:
            self.cursor.acknowledge(following, None, BATCH)

    @rule(
        position=positions,
        entries=st.sampled_from([1, 5, 300, 66_000, 140_000]),
        batch=positions,
        index=st.integers(0, 2),
    )
    def merge_acks(self, position: Position, entries: int, batch: Position, index: int) -> None:
        """Merge a run of entries over several chunks, and one message of a batch, which that may complete."""
        run = PositionSet()
        run.add_range(position.ledger, position.entry, position.entry + entries - 1)
        self.cursor.merge_acks(run, {batch: BitMap([index])}, lambda _: BATCH, announce=False)

    @rule(generations=st.integers(1, 3), through=st.just(BEFORE_ALL) | positions)
    def adopt_a_generation(self, generations: int, through: Position) -> None:
        self.cursor.adopt_generation(self.cursor.generation + generations, through=through)

    @rule()
    def tell(self) -> None:
        self.cursor.state.take_unannounced()
        self.cursor.state.note_announced()

    @rule(position=st.just(BEFORE_ALL) | positions)
    def seek(self, position: Position) -> None:
        self.cursor.restart(position)

    @rule(flag=st.booleans(), value=st.text(max_size=3))
    def set_head(self, flag: bool, value: str) -> None:
        self.cursor.state.set_replicated(flag)
        self.cursor.state.properties = {"p": value}

    # Saves, and what goes wrong with them.

    @rule()
    def save(self) -> None:
        self.tables.save(self.rows, self.cursor.state)
        self.saved = deepcopy(self.cursor.state)

    @rule(acked_meanwhile=st.lists(positions, max_size=3))
    def save_while_acknowledgements_come(self, acked_meanwhile: list[Position]) -> None:
        changes = self.rows.changes(self.cursor.state)
        self.saved = deepcopy(self.cursor.state)
        for position in acked_meanwhile:
            self.cursor.acknowledge(position, None, BATCH)
        self.tables.apply(changes)
        self.rows.saved()

    @rule(acked_meanwhile=st.lists(positions, max_size=3), seek=st.booleans())
    def a_save_is_refused(self, acked_meanwhile: list[Position], seek: bool) -> None:
        self.rows.changes(self.cursor.state)
        if seek:
            self.cursor.restart(BEFORE_ALL)
        for position in acked_meanwhile:
            self.cursor.acknowledge(position, None, BATCH)
        self.rows.failed()

    @rule()
    def a_save_fails_after_it_was_written(self) -> None:
        changes = self.rows.changes(self.cursor.state)
        self.tables.apply(changes)
        self.saved = deepcopy(self.cursor.state)
        self.rows.failed()

    @rule()
    def restart(self) -> None:
        state, self.rows = self.tables.load()
        assert state == self.saved
        self.cursor = Cursor(self.log, state)

    @rule(data=st.data())
    def delete_and_make_again(self, data: Any) -> None:
        if data.draw(st.booleans()):
            self.rows.changes(self.cursor.state)  # a save is under way
        self.tables.apply(self.rows.deletion())
        assert set(self.tables.cursors(TOPIC_ID)) == {"s2"}
        self.cursor, self.rows = Cursor(self.log, CursorState()), CursorRows(TOPIC_ID, "s")
        self.save()

    @precondition(lambda self: hasattr(self, "log"))
    @rule(data=st.data())
    def trim(self, data: Any) -> None:
        """Trim only entries that this cursor has consumed."""
        upto = min(self.cursor.mark_delete, self.saved.mark_delete if self.saved else BEFORE_ALL)
        if self.log.trimmed < upto < self.log.last and upto in self.log:
            self.log.trim(upto)

    # What must hold always.

    @invariant()
    def what_is_stored_is_what_the_last_save_held(self) -> None:
        if not hasattr(self, "log"):
            return
        state, _ = self.tables.load()
        assert state == self.saved
        assert self.saved is not None
        assert state.to_announce == self.saved.to_announce
        assert bool(state.unannounced) == state.to_announce, "what was under way at a crash is told again, whole"
        assert self.tables.load("s2")[0] == self.other

    @invariant()
    def no_row_is_forgotten_in_the_store(self) -> None:
        if not hasattr(self, "log"):
            return
        held = self.rows._stored
        in_store = [key for key in self.tables.tables[CURSOR_ROWS] if key.startswith(b"\0\0\0\x07s\0")]
        assert len(in_store) <= sum(map(len, held.values()))


TestCursorRowsMachine = CursorRowsMachine.TestCase
TestCursorRowsMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
