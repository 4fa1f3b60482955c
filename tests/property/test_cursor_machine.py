"""The cursor against the plainest model there is: the set of acknowledged (position, batch index)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from replicator.engine.errors import InvalidAck
from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

probes = st.one_of(
    st.just(BEFORE_ALL),
    st.builds(Position, st.integers(0, 12), st.integers(-1, 12)),
    st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**64 - 1)),
)


@dataclass
class Model:
    """Model of a cursor: the log as a list, and the acknowledged messages as a set of (position, index).
    A marker has batch size 0."""

    sizes: dict[Position, int] = field(default_factory=dict)
    acked: set[tuple[Position, int]] = field(default_factory=set)
    generation: int = 1

    def consumed(self, position: Position) -> bool:
        """Return whether an entry is consumed. A marker always is, because it has no message."""
        return all((position, index) in self.acked for index in range(self.sizes[position]))

    @property
    def mark_delete(self) -> Position:
        reached = BEFORE_ALL
        for position in sorted(self.sizes):
            if not self.consumed(position):
                break
            reached = position
        return reached

    def ack(self, position: Position, indexes: list[int] | None = None) -> None:
        self.acked |= {(position, index) for index in (range(self.sizes[position]) if indexes is None else indexes)}

    def ack_through(self, position: Position, but: Collection[Position] = ()) -> None:
        for other in self.sizes:
            if other <= position and other not in but:
                self.ack(other)

    def restart(self, position: Position, generation: int) -> None:
        self.acked = set()
        self.generation = generation
        self.ack_through(position)


class CursorMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.log = LogIndex()
        self.model = Model()
        self.cursor = Cursor(self.log, CursorState(replicated=True))
        self.uncovered: set[Position] = set()
        """Entries that are to be delivered because the start moved back, and were not yet."""
        self.told: set[tuple[Position, int]] = set()
        """Messages of this generation that we told others, or others told us, as acknowledged."""
        self.ledger, self.following = 1, 0
        self.highest: tuple[int, Position] = (1, BEFORE_ALL)

    # The log grows.

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
    def append_messages(self, sizes: list[int]) -> None:
        self._append(sizes)

    @rule(count=st.integers(1, 3))
    def append_markers(self, count: int) -> None:
        self._append([0] * count)
        self.cursor.advance()

    @rule(gap=st.integers(1, 3))
    def open_ledger(self, gap: int) -> None:
        if self.following:
            self.ledger, self.following = self.ledger + gap, 0

    def _append(self, sizes: list[int]) -> None:
        first = Position(self.ledger, self.following)
        self.log.append(first, len(sizes), marker=sizes[0] == 0)
        for index, size in enumerate(sizes):
            self.model.sizes[Position(first.ledger, first.entry + index)] = size
        self.following += len(sizes)

    # Consumers acknowledge.

    @precondition(lambda self: any(self.model.sizes.values()))
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        position = self._message(data)
        self.model.ack(position)
        assert self.cursor.acknowledge(position, None, self.model.sizes[position])

    @precondition(lambda self: any(self.model.sizes.values()))
    @rule(data=st.data())
    def acknowledge_some_of_a_batch(self, data: Any) -> None:
        position = self._message(data)
        begun = [p for p in self.cursor.state.batch_acks if self.model.sizes[p]]
        if begun and data.draw(st.booleans()):
            position = data.draw(st.sampled_from(begun))
        indexes = data.draw(st.lists(st.integers(0, self.model.sizes[position] - 1), max_size=2))
        self.model.ack(position, indexes)
        whole = self.cursor.acknowledge(position, indexes, self.model.sizes[position])
        assert whole == self.model.consumed(position)

    @precondition(lambda self: any(self.model.sizes.values()))
    @rule(data=st.data(), into_batch=st.booleans())
    def acknowledge_cumulatively(self, data: Any, into_batch: bool) -> None:
        position = self._message(data)
        size = self.model.sizes[position]
        index = data.draw(st.integers(0, size - 1)) if into_batch else None
        if position > self.model.mark_delete:
            self.uncovered.discard(position)
            self.model.ack_through(Position(position.ledger, position.entry - 1), but=self.uncovered)
        self.model.ack(position, None if index is None else list(range(index + 1)))
        self.cursor.acknowledge_cumulative(position, index, size)

    @precondition(lambda self: any(self.model.sizes.values()))
    @rule(data=st.data())
    def move_the_start_back(self, data: Any) -> None:
        """Move the start back. Entries that nobody acknowledged are not consumed any more, so others were not told of
        them."""
        self.tell_others()
        messages = [position for position, size in self.model.sizes.items() if size]
        chosen = data.draw(st.sets(st.sampled_from(messages), min_size=1))
        consumed = {position for position in chosen if self.model.consumed(position)}
        taken = {(position, index) for position in consumed for index in range(self.model.sizes[position])}
        self.model.acked -= taken
        self.told -= taken
        self.uncovered |= consumed
        self.highest = (1, BEFORE_ALL)
        assert set(self.cursor.uncover(PositionSet(chosen))) == consumed

    @rule(data=st.data())
    def deliver_what_came_back(self, data: Any) -> None:
        if self.uncovered:
            chosen = data.draw(st.sets(st.sampled_from(sorted(self.uncovered))))
            self.uncovered -= chosen
            self.cursor.delivered(chosen)

    @rule(data=st.data(), probe=probes, index=st.sampled_from([None, -1, 9]), cumulative=st.booleans())
    def what_cannot_be_acknowledged_is_refused_and_leaves_the_state(
        self, data: Any, probe: Position, index: int | None, cumulative: bool
    ) -> None:
        markers = [position for position, size in self.model.sizes.items() if not size]
        position = data.draw(st.sampled_from([probe, *markers])) if index is None else probe
        size = self.model.sizes.get(position, 0)
        if size and (index is None or self.cursor.is_consumed(position)):
            return
        first = self.log.first
        if first is not None and position < first and position.entry >= 0 and position <= self.cursor.mark_delete:
            return  # taken for one that retention has removed: late, not wrong
        before = deepcopy(self.cursor.state)
        acknowledge = self.cursor.acknowledge_cumulative if cumulative else self.cursor.acknowledge
        indexes: Any = index if cumulative or index is None else [0, index]
        with pytest.raises(InvalidAck):
            acknowledge(position, indexes, max(size, 1))
        assert self.cursor.state == before

    def _message(self, data: Any) -> Position:
        return data.draw(st.sampled_from([position for position, size in self.model.sizes.items() if size]))

    # Other clusters, operators, crashes.

    @rule(position=probes, step=st.integers(-1, 1))
    def merge(self, position: Position, step: int) -> None:
        """Merge a mark-delete position of an older, this or a newer generation, and check invariant 6.
        An older one is ignored, this one's is united with the state here, and a newer one replaces it."""
        generation = self.model.generation + step
        if step > 0:
            self.model.restart(position, generation)
            self.told, self.uncovered = set(self.model.acked), set()
        elif step == 0:
            self._told_by_others(lambda: self.model.ack_through(position))
        before = deepcopy(self.cursor.state)
        changed = self.cursor.merge_mark_delete(position, generation)
        assert changed == (self.cursor.state != before)
        assert not self.cursor.merge_mark_delete(position, generation), "merging again changed something"

    @rule(data=st.data(), announce=st.booleans())
    def merge_acks(self, data: Any, announce: bool) -> None:
        """Merge acknowledgements. The result is a plain union, whether entries are here, are markers, or were known."""
        places = st.one_of(
            st.builds(Position, st.integers(0, 3), st.integers(0, 8)),
            st.sampled_from([*self.model.sizes, BEFORE_ALL]),
        )
        whole = data.draw(st.lists(places.filter(lambda p: p.entry >= 0), max_size=12))
        batches = data.draw(st.dictionaries(places, st.sets(st.integers(0, 6), max_size=4), max_size=4))
        self._merge(whole, batches, announce)

    @precondition(lambda self: self.cursor.state.batch_acks)
    @rule(data=st.data(), announce=st.booleans())
    def merge_more_of_a_batch(self, data: Any, announce: bool) -> None:
        """Merge a batch; two clusters have acknowledged different messages of it."""
        position = data.draw(st.sampled_from(list(self.cursor.state.batch_acks)))
        done = self.cursor.acked_indexes(position)
        assert done is not None
        left = [index for index in range(self.model.sizes[position]) if index not in done]
        self._merge([], {position: data.draw(st.sets(st.sampled_from(left)) | st.just(set(left)))}, announce)

    def _merge(self, whole: list[Position], batches: dict[Position, set[int]], announce: bool) -> None:
        def unite() -> None:
            for position in whole:
                if position in self.model.sizes:
                    self.model.ack(position)
            for position, indexes in batches.items():
                size = self.model.sizes.get(position, 0)
                self.model.ack(position, [index for index in indexes if index < size])

        if announce:
            unite()
        else:
            self._told_by_others(unite)
        positions, bitmaps = PositionSet(whole), {p: BitMap(indexes) for p, indexes in batches.items()}
        before = deepcopy(self.cursor.state)
        changed = self.cursor.merge_acks(positions, bitmaps, self.model.sizes.__getitem__, announce=announce)
        assert (changed is not None) == (self.cursor.state != before)
        assert positions == PositionSet(whole), "what was handed in is the caller's"
        again = self.cursor.merge_acks(positions, bitmaps, self.model.sizes.__getitem__, announce=announce)
        assert again is None, "merging again changed something"

    def _told_by_others(self, unite: Callable[[], None]) -> None:
        before = set(self.model.acked)
        unite()
        self.told |= self.model.acked - before

    @rule(position=probes, through=st.booleans())
    def adopt_a_generation(self, position: Position, through: bool) -> None:
        self.model.restart(position if through else BEFORE_ALL, self.model.generation + 2)
        self.told, self.uncovered = set(self.model.acked), set()
        if through:
            self.cursor.adopt_generation(self.model.generation, through=position)
        else:
            self.cursor.adopt_generation(self.model.generation)

    # Others are told.

    @rule()
    def tell_others(self) -> None:
        unannounced = self.cursor.state.take_unannounced()
        if unannounced.whole:
            self.told = set(self.model.acked)
        for position, size in self.model.sizes.items():
            if position in unannounced.positions:
                self.told |= {(position, index) for index in range(size)}
        for position in unannounced.batches:
            acked = self.cursor.acked_indexes(position)
            assert acked is not None, "what has become whole since is told as a whole"
            self.told |= {(position, index) for index in acked}
        assert self.told <= self.model.acked, "invariant 5: told of what nobody has consumed"
        assert self.told == self.model.acked, "others miss something"
        assert not self.cursor.state.take_unannounced()
        assert self.cursor.state.note_announced()
        assert not self.cursor.state.to_announce

    @rule()
    def replicate_no_more_and_again(self) -> None:
        self.cursor.state.set_replicated(False)
        assert self.cursor.state.unannounced is None
        assert not self.cursor.state.to_announce
        self.cursor.state.set_replicated(True)

    @rule(position=probes)
    def seek(self, position: Position) -> None:
        self.model.restart(position, self.model.generation + 1)
        self.cursor.restart(position)
        self.told, self.uncovered = set(), set()

    @rule()
    def crash_and_load(self) -> None:
        """Load the cursor's state anew, which must change nothing. :mod:`test_cursor_rows` checks how the store keeps
        it."""
        stored = deepcopy(self.cursor.state)
        self.cursor = Cursor(self.log, deepcopy(stored))
        assert self.cursor.state == stored
        if self.uncovered:  # nobody knows which of them were delivered
            rewound = stored.rewound
            assert rewound is not None
            self.uncovered = {
                each
                for each, size in self.model.sizes.items()
                if size and each <= rewound and not self.model.consumed(each)
            }

    # What must hold always.

    @invariant()
    def invariant_5_and_7_the_state_is_exactly_what_was_acknowledged(self) -> None:
        if not hasattr(self, "model"):
            return
        model, cursor, state = self.model, self.cursor, self.cursor.state
        assert cursor.mark_delete == model.mark_delete
        beyond = [position for position in sorted(model.sizes) if position > model.mark_delete]
        whole = {position for position in beyond if model.sizes[position] and model.consumed(position)}
        assert set(state.individually_deleted) == whole
        partly = {
            position: {index for at, index in model.acked if at == position}
            for position in beyond
            if position not in whole
        }
        assert {p: set(bits) for p, bits in state.batch_acks.items()} == {p: got for p, got in partly.items() if got}
        for position, size in model.sizes.items():
            if size:
                assert cursor.is_consumed(position) == model.consumed(position)
        assert cursor.backlog_entries() == sum(bool(model.sizes[p]) for p in beyond) - len(whole)

    @invariant()
    def whoever_has_something_to_tell_says_so_in_the_store(self) -> None:
        if hasattr(self, "model") and self.cursor.state.unannounced:
            assert self.cursor.state.to_announce

    @invariant()
    def invariant_6_within_a_generation_it_never_goes_back(self) -> None:
        if not hasattr(self, "model"):
            return
        now = (self.cursor.generation, self.cursor.mark_delete)
        assert now >= self.highest
        self.highest = now


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=examples(125), stateful_step_count=30)


claims = st.lists(st.tuples(st.builds(Position, st.integers(0, 4), st.integers(-1, 6)), st.integers(1, 3)), max_size=6)


def log_of_four_ledgers() -> LogIndex:
    log = LogIndex()
    for ledger in (1, 2, 4):
        log.append(Position(ledger, 0), 3, marker=False)
        log.append(Position(ledger, 3), 1, marker=True)
        log.append(Position(ledger, 4), 2, marker=False)
    return log


def merged(claimed: list[tuple[Position, int]]) -> CursorState:
    cursor = Cursor(log_of_four_ledgers(), CursorState())
    for position, generation in claimed:
        cursor.merge_mark_delete(position, generation)
    return cursor.state


@given(claims, st.randoms(use_true_random=False))
def test_invariant_6_merging_does_not_depend_on_order_grouping_or_repetition(
    claimed: list[tuple[Position, int]], random: Any
) -> None:
    shuffled = [*claimed, *random.choices(claimed, k=3)] if claimed else []
    random.shuffle(shuffled)
    assert merged(shuffled) == merged(claimed)
    half = len(claimed) // 2
    first, second = merged(claimed[:half]), merged(claimed[half:])
    regrouped = Cursor(log_of_four_ledgers(), first)
    regrouped.merge_mark_delete(second.mark_delete, second.generation)
    assert regrouped.state == merged(claimed)


acks = st.tuples(
    st.sets(st.builds(Position, st.integers(0, 5), st.integers(0, 6)), max_size=8),
    st.dictionaries(
        st.builds(Position, st.integers(0, 5), st.integers(0, 6)), st.sets(st.integers(0, 2), max_size=2), max_size=3
    ),
)
Acks = tuple[set[Position], dict[Position, set[int]]]
BATCH = 3


def merge_into(cursor: Cursor, acked: Acks) -> None:
    whole, batches = acked
    cursor.merge_acks(PositionSet(whole), {p: BitMap(i) for p, i in batches.items()}, lambda _: BATCH, announce=False)


def united(sides: list[Acks]) -> CursorState:
    cursor = Cursor(log_of_four_ledgers(), CursorState())
    for side in sides:
        merge_into(cursor, side)
    return cursor.state


def state_as_acks(state: CursorState) -> Acks:
    """Return the acknowledgements that a whole state stands for, in the log of four ledgers."""
    log = log_of_four_ledgers()
    passed = PositionSet()
    for ledger, first, last in log.runs_between(BEFORE_ALL, state.mark_delete):
        passed.add_range(ledger, first, last)
    passed.update(state.individually_deleted)
    return set(passed), {position: set(indexes) for position, indexes in state.batch_acks.items()}


@given(st.lists(acks, max_size=5), st.randoms(use_true_random=False))
def test_invariant_6_merging_acks_does_not_depend_on_order_grouping_or_repetition(
    sides: list[Acks], random: Any
) -> None:
    shuffled = [*sides, *random.choices(sides, k=3)] if sides else []
    random.shuffle(shuffled)
    assert united(shuffled) == united(sides)
    half = len(sides) // 2
    assert united([state_as_acks(united(sides[:half])), state_as_acks(united(sides[half:]))]) == united(sides)
