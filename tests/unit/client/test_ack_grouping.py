"""The tracker groups acknowledgements, never widens them, and keeps each until it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from replicator.client.consuming.ack_grouping import (
    REQUESTS_IN_FLIGHT_MAX,
    AckGrouping,
    Action,
    Refused,
    Request,
    SendAcks,
    SendCumulative,
    Settled,
    StartTimer,
)
from replicator.client.errors import InvalidAck, NotAllowedError
from replicator.client.wire.consumer_commands import acknowledging
from replicator.engine.types import Ack
from replicator.protocol.frames import COMMAND_BYTES_MAX
from snapshots.position import Position


def _at(entry: int) -> Position:
    return Position(1, entry)


def _requests(actions: Iterable[Action]) -> list[Request]:
    return [action for action in actions if isinstance(action, SendAcks | SendCumulative)]


def _acks(actions: Iterable[Action]) -> tuple[Ack, ...]:
    (request,) = _requests(actions)
    assert isinstance(request, SendAcks)
    return request.acks


def test_the_first_acknowledgement_starts_the_timer_and_the_timer_sends_the_group() -> None:
    tracker = AckGrouping(group_time_ms=100)
    assert tracker.acknowledge(_at(1)) == (StartTimer(100),)
    assert tracker.acknowledge(_at(2)) == ()
    assert _acks(tracker.timer_fired()) == (Ack(_at(1)), Ack(_at(2)))
    assert tracker.acknowledge(_at(3)) == (StartTimer(100),)


def test_a_full_group_is_sent_before_its_timer() -> None:
    tracker = AckGrouping(size_max=3)
    tracker.acknowledge(_at(1))
    tracker.acknowledge(_at(2))
    assert len(_acks(tracker.acknowledge(_at(3)))) == 3


def test_a_group_time_of_zero_sends_at_once() -> None:
    tracker = AckGrouping(group_time_ms=0)
    assert _acks(tracker.acknowledge(_at(1))) == (Ack(_at(1)),)


def test_the_chunks_of_a_message_are_sent_in_one_request_without_a_group_time_too() -> None:
    tracker = AckGrouping(group_time_ms=0)
    assert _acks(tracker.acknowledge_entries((_at(1), _at(2), _at(5)))) == (Ack(_at(1)), Ack(_at(2)), Ack(_at(5)))


def test_each_chunk_counts_in_a_group() -> None:
    tracker = AckGrouping(size_max=3)
    assert tracker.acknowledge_entries((_at(1), _at(2))) == (StartTimer(100),)
    assert len(_acks(tracker.acknowledge(_at(3)))) == 3


def test_messages_of_a_batch_are_sent_as_indexes_of_their_entry() -> None:
    tracker = AckGrouping()
    for index in (0, 2, 5, 6, 7):
        tracker.acknowledge(_at(1), index, 8)
    assert _acks(tracker.flush()) == (Ack(_at(1), (0, 2, 5, 6, 7)),)


def test_when_all_indexes_of_a_batch_are_acknowledged_the_whole_entry_is() -> None:
    tracker = AckGrouping()
    for index in (2, 0, 1):
        tracker.acknowledge(_at(1), index, 3)
    assert _acks(tracker.flush()) == (Ack(_at(1)),)


def test_a_batch_with_one_index_missing_is_not_the_whole_entry() -> None:
    tracker = AckGrouping()
    for index in range(7):
        tracker.acknowledge(_at(1), index, 8)
    assert _acks(tracker.flush()) == (Ack(_at(1), tuple(range(7))),)


def test_acknowledging_the_whole_entry_replaces_its_indexes() -> None:
    tracker = AckGrouping()
    tracker.acknowledge(_at(1), 0, 3)
    tracker.acknowledge(_at(1))
    tracker.acknowledge(_at(1), 1, 3)
    assert _acks(tracker.flush()) == (Ack(_at(1)),)


def test_only_the_highest_cumulative_acknowledgement_is_sent() -> None:
    tracker = AckGrouping()
    for entry in (10, 20, 15):
        tracker.acknowledge_cumulative(_at(entry))
    (request,) = _requests(tracker.flush())
    assert isinstance(request, SendCumulative)
    assert (request.position, request.batch_index) == (_at(20), None)


def test_a_cumulative_index_counts_within_its_batch_and_the_last_one_means_the_whole_entry() -> None:
    tracker = AckGrouping()
    tracker.acknowledge_cumulative(_at(4), 3, 10)
    tracker.acknowledge_cumulative(_at(4), 1, 10)
    (request,) = _requests(tracker.flush())
    assert isinstance(request, SendCumulative)
    assert (request.position, request.batch_index) == (_at(4), 3)
    tracker.acknowledge_cumulative(_at(4), 9, 10)
    tracker.acknowledge_cumulative(_at(4), 5, 10)
    (request,) = _requests(tracker.flush())
    assert isinstance(request, SendCumulative)
    assert (request.position, request.batch_index) == (_at(4), None)


def test_a_cumulative_acknowledgement_takes_along_what_is_below_it_and_nothing_more() -> None:
    tracker = AckGrouping()
    tracker.acknowledge(_at(1))
    tracker.acknowledge(_at(5), 7, 10)
    tracker.acknowledge(_at(6))
    tracker.acknowledge_cumulative(_at(5), 3, 10)
    cumulative, individual = _requests(tracker.flush())
    assert isinstance(cumulative, SendCumulative)
    assert isinstance(individual, SendAcks)
    assert individual.acks == (Ack(_at(5), (7,)), Ack(_at(6)))


def test_past_the_requests_in_flight_the_group_gathers_until_an_answer_makes_room() -> None:
    tracker = AckGrouping(group_time_ms=0)
    sent = [_requests(tracker.acknowledge(_at(entry))) for entry in range(REQUESTS_IN_FLIGHT_MAX)]
    assert tracker.acknowledge(_at(100)) == []
    assert tracker.acknowledge(_at(101)) == []
    assert _acks(tracker.confirmed(sent[0][0].request_id)) == (Ack(_at(100)), Ack(_at(101)))


def test_unconfirmed_requests_are_kept_in_order_and_a_late_answer_does_nothing() -> None:
    tracker = AckGrouping(group_time_ms=0)
    (first,) = _requests(tracker.acknowledge(_at(1)))
    (second,) = _requests(tracker.acknowledge(_at(2)))
    assert tracker.unconfirmed() == [first, second]
    assert tracker.confirmed(first.request_id) == [Settled(1)]
    assert tracker.confirmed(first.request_id) == ()
    assert tracker.unconfirmed() == [second]
    assert tracker.confirmed(second.request_id) == [Settled(2)]


def test_one_bad_acknowledgement_costs_its_neighbours_nothing() -> None:
    tracker = AckGrouping()
    for entry in range(8):
        tracker.acknowledge(_at(entry))
    waiting = _requests(tracker.flush())
    refused: list[Position] = []
    applied: set[Position] = set()
    actions: Sequence[Action] = ()
    while waiting:
        request = waiting.pop(0)
        assert isinstance(request, SendAcks)
        if any(ack.position == _at(5) for ack in request.acks):
            actions = tracker.refused(request.request_id, InvalidAck("no such position"), split=True)
        else:
            applied |= {ack.position for ack in request.acks}
            actions = tracker.confirmed(request.request_id)
        waiting += _requests(actions)
        refused += [action.position for action in actions if isinstance(action, Refused)]
    assert refused == [_at(5)]
    assert applied == {_at(entry) for entry in range(8) if entry != 5}
    assert actions[-1] == Settled(8)


def test_a_refusal_of_the_request_as_such_is_not_tried_again() -> None:
    tracker = AckGrouping(group_time_ms=0)
    (request,) = _requests(tracker.acknowledge_cumulative(_at(3)))
    error = NotAllowedError("Shared")
    assert tracker.refused(request.request_id, error, split=False) == [Refused(_at(3), error), Settled(1)]
    assert tracker.unconfirmed() == []


def test_what_is_acknowledged_here_is_known_until_it_is_confirmed() -> None:
    tracker = AckGrouping()
    assert tracker.acknowledged(_at(1)) is False
    tracker.acknowledge(_at(1))
    tracker.acknowledge(_at(2), 4, 5)
    (request,) = _requests(tracker.flush())
    tracker.acknowledge(_at(2), 1, 5)
    assert tracker.acknowledged(_at(1)) is True
    assert tracker.acknowledged(_at(2)) == BitMap([1, 4])
    assert tracker.acknowledged(_at(3)) is False
    tracker.confirmed(request.request_id)
    assert tracker.acknowledged(_at(1)) is False
    assert tracker.acknowledged(_at(2)) == BitMap([1])


def test_a_cumulative_acknowledgement_counts_for_everything_below_it() -> None:
    tracker = AckGrouping()
    tracker.acknowledge_cumulative(_at(5), 2, 10)
    for flushed in (False, True):
        assert tracker.acknowledged(_at(4)) is True, flushed
        assert tracker.acknowledged(_at(5)) == BitMap([0, 1, 2])
        assert tracker.acknowledged(_at(6)) is False
        tracker.flush()


class AcksAgainstAModel(RuleBasedStateMachine):
    """A cluster that applies what it is sent, loses connections, and must end up with exactly what was acknowledged."""

    BATCH = 3
    ENTRIES = 4

    def __init__(self) -> None:
        super().__init__()
        self.tracker = AckGrouping(group_time_ms=100, size_max=5)
        self.acknowledged: set[tuple[int, int]] = set()
        self.applied: set[tuple[int, int]] = set()
        self.wire: list[Request] = []
        self.by_ticket: list[set[tuple[int, int]]] = [set()]
        self.settled = 0

        self.cumulative = False

    def _do(self, actions: Sequence[Action]) -> None:
        self.wire += _requests(actions)
        for action in actions:
            if isinstance(action, Settled):
                self.settled = action.through
                assert self.by_ticket[action.through] <= self.applied, "settled before it was applied"

    def _acked(self, messages: set[tuple[int, int]]) -> None:
        self.acknowledged |= messages
        self.by_ticket.append(set(self.acknowledged))

    @rule(entry=st.integers(0, ENTRIES - 1), indexes=st.sets(st.integers(0, BATCH - 1)))
    def acknowledge_messages(self, entry: int, indexes: set[int]) -> None:
        for index in indexes:
            self._acked({(entry, index)})
            self._do(self.tracker.acknowledge(_at(entry), index, self.BATCH))

    @rule(entry=st.integers(0, ENTRIES - 1))
    def acknowledge_entry(self, entry: int) -> None:
        self._acked({(entry, index) for index in range(self.BATCH)})
        self._do(self.tracker.acknowledge(_at(entry)))

    @initialize(cumulative=st.booleans())
    def choose_the_type(self, cumulative: bool) -> None:
        self.cumulative = cumulative

    @precondition(lambda self: self.cumulative)
    @rule(entry=st.integers(0, ENTRIES - 1), index=st.integers(-1, BATCH - 1))
    def acknowledge_cumulative(self, entry: int, index: int) -> None:
        last = self.BATCH - 1 if index == -1 else index
        self._acked({(e, i) for e in range(entry + 1) for i in range(self.BATCH) if e < entry or i <= last})
        self._do(self.tracker.acknowledge_cumulative(_at(entry), index, self.BATCH))

    @rule()
    def timer(self) -> None:
        self._do(self.tracker.timer_fired())

    @rule(answered=st.booleans())
    def the_cluster_applies_a_request(self, answered: bool) -> None:
        if not self.wire:
            return
        request = self.wire.pop(0)
        if isinstance(request, SendCumulative):
            entry = request.position.entry
            last = self.BATCH - 1 if request.batch_index is None else request.batch_index
            self.applied |= {(e, i) for e in range(entry + 1) for i in range(self.BATCH) if e < entry or i <= last}
        else:
            for ack in request.acks:
                indexes = range(self.BATCH) if ack.batch_indexes is None else ack.batch_indexes
                self.applied |= {(ack.position.entry, index) for index in indexes}
        if answered:
            self._do(self.tracker.confirmed(request.request_id))

    @rule()
    def the_connection_is_lost_and_comes_back(self) -> None:
        self.wire = self.tracker.unconfirmed()
        self._do(self.tracker.flush())

    @invariant()
    def nothing_is_applied_that_was_not_acknowledged(self) -> None:
        assert self.applied <= self.acknowledged

    @invariant()
    def what_is_not_applied_is_still_known_here(self) -> None:
        for entry, index in self.acknowledged - self.applied:
            known = self.tracker.acknowledged(_at(entry))
            assert known is True or (isinstance(known, BitMap) and index in known)

    def teardown(self) -> None:
        self.the_connection_is_lost_and_comes_back()
        while self.wire:
            self.the_cluster_applies_a_request(answered=True)
        assert self.applied == self.acknowledged
        assert self.tracker.settled == self.tracker.ticket
        assert self.tracker.unconfirmed() == []


TestAcksAgainstAModel = AcksAgainstAModel.TestCase
TestAcksAgainstAModel.settings = settings(stateful_step_count=40)


def test_without_batch_index_acks_an_entry_is_sent_when_all_its_messages_are_acknowledged() -> None:
    acks = AckGrouping(0, 1000, batch_index_acks=False)
    assert acks.acknowledge(_at(0), 0, 3) == ()
    assert acks.acknowledge(_at(0), 2, 3) == ()
    assert acks.acknowledged(_at(0)) is False
    assert _acks(acks.acknowledge(_at(0), 1, 3)) == (Ack(_at(0)),)


def test_without_batch_index_acks_a_new_delivery_starts_from_none() -> None:
    acks = AckGrouping(0, 1000, batch_index_acks=False)
    acks.acknowledge(_at(0), 0, 2)
    acks.delivered(_at(0))
    assert acks.acknowledge(_at(0), 1, 2) == ()
    assert _acks(acks.acknowledge(_at(0), 0, 2)) == (Ack(_at(0)),)


def test_without_batch_index_acks_a_cumulative_one_in_a_batch_covers_the_entries_before_it() -> None:
    acks = AckGrouping(0, 1000, batch_index_acks=False)
    (sent,) = _requests(acks.acknowledge_cumulative(_at(5), 1, 3))
    assert isinstance(sent, SendCumulative)
    assert (sent.position, sent.batch_index) == (_at(4), None)
    assert _requests(acks.acknowledge_cumulative(_at(0), 0, 3)) == [], "nothing is before the first entry"
    assert _acks(acks.acknowledge(_at(5), 2, 3)) == (Ack(_at(5)),)


def test_after_a_restart_nothing_unconfirmed_is_sent_and_late_answers_do_nothing() -> None:
    acks = AckGrouping(0, 1000)
    (in_flight,) = _requests(acks.acknowledge(_at(0)))
    grouped = AckGrouping(100, 1000)
    grouped.acknowledge(_at(1))
    grouped.acknowledge_cumulative(_at(2))
    for each in (acks, grouped):
        assert list(each.restart()) == [Settled(each.ticket)]
        assert each.unconfirmed() == []
        assert _requests(each.flush()) == []
        assert each.acknowledged(_at(0)) is False
    assert acks.confirmed(in_flight.request_id) == ()
    assert _acks(acks.acknowledge(_at(3))) == (Ack(_at(3)),)


def test_an_index_of_an_id_without_its_batch_size_counts_alone() -> None:
    acks = AckGrouping(0, 1000)
    assert _acks(acks.acknowledge(_at(0), 3, 1)) == (Ack(_at(0), (3,)),)
    (sent,) = _requests(acks.acknowledge_cumulative(_at(1), 3, 1))
    assert isinstance(sent, SendCumulative)
    assert (sent.position, sent.batch_index) == (_at(1), 3)


def test_a_request_holds_no_more_batch_indexes_than_fit_in_a_command() -> None:
    grouping = AckGrouping(60_000, 10**6)
    for entry in range(12):
        for index in range(0, 100_000, 2):  # no two in a row: nothing in them can be left out
            grouping.acknowledge(Position(1, entry), index, 100_000)
    requests = [action for action in grouping.flush() if isinstance(action, SendAcks)]
    assert sum(len(request.acks) for request in requests) == 12
    assert all(acknowledging(1, request.acks).ByteSize() < COMMAND_BYTES_MAX for request in requests)
