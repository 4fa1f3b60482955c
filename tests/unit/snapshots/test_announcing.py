"""Rules for announcing subscriptions and for taking over announcements, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from pyroaring import BitMap

from snapshots import announcing
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ApplyUpdate, ControllerSettings, ControllerStats
from snapshots.announcing import UPDATES_PER_MARKER_MAX, Description, UpdateAnnouncer
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate
from snapshots.pacing import SNAPSHOT_AGE_MS_MAX, SnapshotBudget, UpdateBudget
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

HERE: Final = "us-east"
THERE: Final = "eu-west"
LAC: Final = Position(1, 100)
SETTINGS: Final = ControllerSettings(update_interval_ms=100, whole_interval_ms=60_000)


def acks(*entries: int) -> AckVector:
    return AckVector({HERE: OriginAcks(1, positions=PositionSet(Position(1, entry) for entry in entries))})


class Source:
    """Acknowledgements that are ready to be told."""

    def __init__(self) -> None:
        self.new: dict[str, AckVector] = {}
        self.all: dict[str, AckVector] = {}
        self.owed: list[str] = []

    def acknowledge(self, name: str, *entries: int) -> None:
        self.new.setdefault(name, AckVector()).merge(acks(*entries))
        self.all.setdefault(name, AckVector()).merge(acks(*entries))

    def take(self, name: str, *, whole: bool) -> tuple[AckVector, bool]:
        new = self.new.pop(name, AckVector())
        return (self.all.get(name, AckVector()), True) if whole else (new, False)

    def owe(self, name: str) -> None:
        self.owed.append(name)

    def describe(self, name: str) -> Description:
        return Description({"team": name})


class Announcer(UpdateAnnouncer):
    """One with a source of its own; :attr:`mapped_to` is what every position is mapped to."""

    def __init__(self, *, exact: bool = True) -> None:
        self.source = Source()
        self.mapped_to: Position | None = None
        self.snapshots = SnapshotBudget(exact=exact)
        super().__init__(
            HERE,
            [THERE],
            SETTINGS,
            ControllerStats(),
            lambda peer, claim: self.mapped_to,
            self.source if exact else None,
            UpdateBudget(),
            self.snapshots,
        )

    def acknowledge(self, name: str, *entries: int, now_ms: int) -> None:
        self.source.acknowledge(name, *entries)
        self.on_acknowledged(name, now_ms)

    def announced(self, now_ms: int) -> list[SubscriptionUpdate]:
        actions = self.announce(now_ms)
        for _ in actions:
            self.on_written(now_ms)
        return [update for action in actions for update in action.marker.updates]

    def hear(self, *updates: SubscriptionUpdate, now_ms: int = 0) -> list[ApplyUpdate]:
        return self.on_updates(SubscriptionsUpdate(updates), THERE, LAC, now_ms)


def known(name: str = "sub", generation: int = 1, *, exact: bool = True) -> Announcer:
    """Return an announcer whose peers know of one subscription."""
    announcer = Announcer(exact=exact)
    announcer.on_subscription(name, BEFORE_ALL, generation, 0, announced=True)
    return announcer


def test_a_subscription_that_peers_do_not_know_is_told_whole_and_asks_for_what_they_have() -> None:
    announcer = Announcer()
    announcer.source.acknowledge("sub", 1, 2)
    announcer.on_subscription("sub", BEFORE_ALL, 1, 0, announced=False)
    assert announcer.due_ms == 0
    assert announcer.announced(100) == [
        SubscriptionUpdate("sub", {}, 1, acks(1, 2), whole=True, asks=True, properties={"team": "sub"})
    ]
    assert announcer.due_ms is None


def test_changes_are_told_whole_at_first_then_as_changes_and_whole_again_after_an_interval_with_a_change() -> None:
    announcer = known()
    announcer.acknowledge("sub", 1, now_ms=1_000)
    (first,) = announcer.announced(1_100)
    assert first.whole
    announcer.acknowledge("sub", 5, now_ms=2_000)
    assert announcer.announced(2_100) == [SubscriptionUpdate("sub", {}, 1, acks(5))]
    assert announcer.due_ms is None, "the interval alone is no reason (invariant 7)"
    announcer.acknowledge("sub", 7, now_ms=61_200)
    (later,) = announcer.announced(61_300)
    assert (later.whole, later.acks) == (True, acks(1, 5, 7))


def test_a_whole_state_is_told_though_nothing_is_acknowledged_in_it() -> None:
    announcer = known(generation=2)  # as a hub that adopted what a seek began
    announcer.on_acknowledged("sub", 1_000)
    assert announcer.announced(1_100) == [
        SubscriptionUpdate("sub", {}, 2, AckVector(), whole=True, properties={"team": "sub"})
    ]
    announcer.on_acknowledged("sub", 2_000)
    assert announcer.announced(2_100) == [], "nothing changed"


def test_many_changes_within_an_interval_are_one_update() -> None:
    announcer = known()
    for entry in range(50):
        announcer.acknowledge("sub", entry, now_ms=entry)
    assert announcer.due_ms == 0
    assert len(announcer.announced(100)) == 1


def test_what_was_applied_is_not_told() -> None:
    announcer = known()
    announcer.on_mark_delete("sub", Position(1, 9), 1, 10, local=False)
    assert announcer.due_ms is None


def test_a_deletion_is_told_with_its_tombstone_and_not_when_it_came_from_elsewhere() -> None:
    announcer = known()
    announcer.on_subscription_deleted("sub", 2, 0, announced=False)
    assert announcer.announced(100) == [SubscriptionUpdate("sub", {}, 2, deleted=True)]
    other = known()
    other.on_subscription_deleted("sub", 2, 0, announced=True)
    assert other.due_ms is None


def test_invariant_11_only_the_last_deletions_are_kept_and_each_is_told_before_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcing, "BURIED_MAX", 3)
    announcer = known()
    for number in range(10):
        announcer.on_subscription_deleted(f"s{number}", 2, 0, announced=False)
    assert [update.subscription for update in announcer.announced(100)] == [f"s{number}" for number in range(10)]
    announcer.on_subscription_deleted("last", 2, 200, announced=True)
    announcer.announce_all(200)
    assert [update.subscription for update in announcer.announced(400) if update.deleted] == ["s8", "s9", "last"]


def test_a_subscription_that_is_made_again_before_its_deletion_was_told_is_told_instead() -> None:
    announcer = known()
    announcer.on_subscription_deleted("sub", 2, 0, announced=False)
    announcer.on_subscription("sub", BEFORE_ALL, 3, 0, announced=False)
    (update,) = announcer.announced(100)
    assert (update.generation, update.deleted, update.whole) == (3, False, True)


@pytest.mark.parametrize("deleted", [False, True])
def test_an_update_of_the_past_is_answered_with_what_is_here(deleted: bool) -> None:
    announcer = known(generation=3)
    assert announcer.hear(SubscriptionUpdate("sub", {}, 2, acks(1), deleted=deleted)) == []
    (update,) = announcer.announced(100)
    assert (update.generation, update.whole) == (3, True)


def test_an_update_of_a_subscription_that_was_deleted_is_answered_with_the_deletion() -> None:
    announcer = known()
    announcer.on_subscription_deleted("sub", 2, 0, announced=True)
    assert announcer.hear(SubscriptionUpdate("sub", {}, 2, acks(1))) == []
    assert announcer.announced(100) == [SubscriptionUpdate("sub", {}, 2, whole=True, deleted=True)]
    assert announcer.hear(SubscriptionUpdate("sub", {}, 2, deleted=True)) == []
    assert announcer.due_ms is None, "two that agree do not answer each other for ever"


def test_whether_a_deletion_was_forced_is_told_first_and_again() -> None:
    announcer = known()
    announcer.on_subscription_deleted("sub", 2, 0, announced=False, unless_in_use=True)
    told = SubscriptionUpdate("sub", {}, 2, deleted=True, unless_in_use=True)
    assert announcer.announced(100) == [told]
    announcer.hear(SubscriptionUpdate("sub", {}, 2, acks(1)))
    assert announcer.announced(200) == [replace(told, whole=True)], "it is not new"
    (action,) = known().hear(told)
    assert (action.deleted, action.unless_in_use) == (True, True)


def test_at_an_equal_generation_a_deletion_wins_and_a_higher_generation_wins_over_it() -> None:
    announcer = known(generation=2)
    (action,) = announcer.hear(SubscriptionUpdate("sub", {}, 2, deleted=True))
    assert action.deleted
    announcer.on_subscription_deleted("sub", 2, 0, announced=True)
    (again,) = announcer.hear(SubscriptionUpdate("sub", {}, 3, acks(1), whole=True))
    assert (again.deleted, again.generation) == (False, 3)


def test_who_learns_of_a_subscription_by_a_change_asks_for_the_rest() -> None:
    announcer = Announcer()
    assert len(announcer.hear(SubscriptionUpdate("sub", {}, 1, acks(4)))) == 1
    announcer.on_subscription("sub", BEFORE_ALL, 1, 0, announced=True)
    (update,) = announcer.announced(100)
    assert update.asks


def test_who_learns_of_it_by_its_whole_state_has_nothing_to_ask_or_tell() -> None:
    announcer = Announcer()
    assert len(announcer.hear(SubscriptionUpdate("sub", {}, 1, acks(4), whole=True))) == 1
    announcer.on_subscription("sub", BEFORE_ALL, 1, 0, announced=True)
    assert announcer.due_ms is None


def test_who_is_asked_tells_all_once() -> None:
    announcer = known()
    announcer.source.acknowledge("sub", 1)
    announcer.hear(SubscriptionUpdate("sub", {}, 1, asks=True))
    (update,) = announcer.announced(100)
    assert (update.whole, update.asks, update.acks) == (True, False, acks(1))
    assert announcer.due_ms is None


def test_a_position_past_the_log_does_not_keep_the_exact_state_out() -> None:
    announcer = known()
    (action,) = announcer.hear(SubscriptionUpdate("sub", {HERE: Position(2, 0)}, 1, acks(3)))
    assert (action.position, action.acks) == (None, acks(3))
    assert announcer.hear(SubscriptionUpdate("sub", {HERE: Position(2, 0)}, 1)) == []


def test_a_large_state_goes_in_several_markers_and_many_small_ones_in_one() -> None:
    announcer = known()
    scattered = PositionSet()
    for ledger in range(1, 400):
        scattered.add_entries(ledger, BitMap(range(0, 65_536, 16)))
    vector = AckVector({HERE: OriginAcks(1, positions=scattered)})
    announcer.source.new["sub"] = announcer.source.all["sub"] = vector
    announcer.on_acknowledged("sub", 0)
    markers = announcer.announce(100)
    assert len(markers) > 1
    rejoined = AckVector()
    for marker in markers:
        for update in marker.marker.updates:
            assert update.whole
            rejoined.merge(update.acks)
    assert rejoined == vector


def test_many_subscriptions_go_in_markers_of_a_bounded_number() -> None:
    announcer = Announcer()
    for number in range(UPDATES_PER_MARKER_MAX + 5):
        announcer.on_subscription(f"sub-{number}", BEFORE_ALL, 1, 0, announced=False)
    assert [len(action.marker.updates) for action in announcer.announce(100)] == [UPDATES_PER_MARKER_MAX, 5]


def test_without_exact_state_only_existence_and_positions_are_told() -> None:
    announcer = Announcer(exact=False)
    announcer.on_subscription("sub", BEFORE_ALL, 1, 0, announced=False)
    announcer.on_acknowledged("sub", 0)
    assert announcer.announced(100) == [SubscriptionUpdate("sub", {}, 1)]
    announcer.on_acknowledged("sub", 200)
    assert announcer.due_ms is None


def test_invariant_5_what_is_asked_for_before_an_own_update_is_seen_in_the_log_is_told_all_the_same() -> None:
    announcer = known()
    announcer.source.acknowledge("sub", 1)
    announcer.announce_all(0)
    (first,) = announcer.announced(100)
    announcer.announce_all(110)  # such as for a copy that was lost meanwhile
    announcer.recall(first)
    (second,) = announcer.announced(210)
    assert (second.whole, second.asks, second.acks) == (True, True, acks(1))
    announcer.recall(second)
    announcer.note_all(300)
    assert announcer.due_ms is None


def test_what_was_told_before_a_restart_is_not_told_again() -> None:
    announcer = Announcer()
    announcer.on_subscription("sub", BEFORE_ALL, 1, 0, announced=False)
    announcer.recall(SubscriptionUpdate("sub", {}, 1, acks(1), whole=True))
    assert announcer.announced(100) == []


def many_topics_move(announcer: Announcer) -> None:
    """Let other topics of the worker take all turns of the next seconds."""
    while announcer.snapshots.reserve(0, SNAPSHOT_AGE_MS_MAX) < SNAPSHOT_AGE_MS_MAX:
        pass


def mapping_comes(announcer: Announcer, now_ms: int) -> None:
    announcer.mapped_to = Position(9, 9)
    announcer.note_all(now_ms)


def test_a_mapping_alone_is_told_at_once_while_few_topics_move() -> None:
    announcer = known()
    announcer.announced(0)
    mapping_comes(announcer, 1_000)
    assert announcer.due_ms == 1_000
    assert announcer.announced(1_000) == [SubscriptionUpdate("sub", {THERE: Position(9, 9)}, 1)]


def test_a_mapping_goes_with_the_next_acknowledgement_where_many_topics_move() -> None:
    announcer = known()
    many_topics_move(announcer)
    mapping_comes(announcer, 1_000)
    announcer.acknowledge("sub", 3, now_ms=1_500)
    assert announcer.due_ms == 1_500
    (update,) = announcer.announced(1_500)
    assert (update.clusters, update.acks) == ({THERE: Position(9, 9)}, acks(3))
    assert announcer.due_ms is None


def test_a_mapping_that_no_acknowledgement_follows_is_told_once_in_the_end() -> None:
    announcer = known()
    many_topics_move(announcer)
    mapping_comes(announcer, 1_000)
    assert announcer.due_ms is not None
    assert 5_000 < announcer.due_ms <= 1_000 + SNAPSHOT_AGE_MS_MAX
    assert announcer.announced(announcer.due_ms) == [SubscriptionUpdate("sub", {THERE: Position(9, 9)}, 1)]
    assert announcer.due_ms is None


def test_without_an_exact_state_no_mapping_waits() -> None:
    """Then mappings alone carry acknowledgements."""
    announcer = known(exact=False)
    many_topics_move(announcer)
    mapping_comes(announcer, 1_000)
    assert announcer.due_ms == 1_000


def test_a_mapping_that_waits_is_not_told_of_a_subscription_that_is_gone_or_without_peers() -> None:
    announcer = known()
    many_topics_move(announcer)
    mapping_comes(announcer, 1_000)
    announcer.on_subscription_deleted("sub", None, 1_100, announced=False)
    assert announcer.due_ms is None
    announcer.on_subscription("sub", BEFORE_ALL, 1, 1_200, announced=True)
    assert announcer.due_ms is not None
    announcer.on_peers([], 1_300, announce_all=False)
    assert announcer.due_ms is None


def test_a_question_with_a_name_is_answered_with_the_whole_state_that_names_it() -> None:
    asking, answering = known(), known()
    for announcer in (asking, answering):
        announcer.announced(0)
    answering.acknowledge("sub", 1, now_ms=0)
    assert all(not update.answers for update in answering.announced(0)), "nobody asked"
    asking.ask("sub", "q-1", 10)
    (question,) = asking.announced(10)
    assert (question.asks, question.ask_id, question.whole) == (True, "q-1", False)
    answering.hear(question, now_ms=20)
    (answer,) = answering.announced(20)
    assert (answer.whole, answer.acks, answer.answers) == (True, acks(1), {THERE: "q-1"})


def test_an_answer_is_heard_though_it_says_nothing_new() -> None:
    announcer = known()
    (heard,) = announcer.hear(SubscriptionUpdate("sub", {}, 1, whole=True, answers={HERE: "q-1", "other": "q-2"}))
    assert heard.answer == "q-1"
    assert announcer.hear(SubscriptionUpdate("sub", {}, 1, whole=True, answers={"other": "q-2"})) == []
