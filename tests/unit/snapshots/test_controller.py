"""The snapshot controller, event by event: what it writes, when, and when it keeps silent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count
from typing import Final

import pytest

from snapshots.actions import (
    Action,
    ApplyUpdate,
    ControllerSettings,
    LogState,
    RecordMapping,
    WriteLocalSnapshot,
    WriteRequest,
    WriteResponse,
    WriteUpdate,
)
from snapshots.announcing import UPDATES_PER_MARKER_MAX
from snapshots.controller import WAITING_ANSWERS_MAX, SnapshotController
from snapshots.mapping import SnapshotMapping
from snapshots.markers import LocalSnapshot, SnapshotRequest, SnapshotResponse, SubscriptionsUpdate, SubscriptionUpdate
from snapshots.position import BEFORE_ALL, Position
from snapshots.scheduling import MESSAGES_MAX, PENDING_REQUESTS_MAX

A: Final = "us-east"
B: Final = "eu-west"
C: Final = "ap-south"
SETTINGS: Final = ControllerSettings(snapshot_interval_ms=200, snapshot_timeout_ms=30_000, update_interval_ms=100)


def at(entry: int) -> Position:
    return Position(1, entry)


class WrittenAtOnce(SnapshotController):
    """Its updates stand in the log as soon as they are decided."""

    def on_tick(self, now_ms: int, log: LogState) -> list[Action]:
        actions = super().on_tick(now_ms, log)
        for action in actions:
            if isinstance(action, WriteUpdate):
                self.on_written(now_ms)
        return actions


def controller(peers: Collection[str] = (B,), reachable: Collection[str] | None = None) -> SnapshotController:
    numbers = count()
    return WrittenAtOnce(
        A,
        peers=peers,
        reachable_origins=peers if reachable is None else reachable,
        next_id=lambda: f"id-{next(numbers)}",
        settings=SETTINGS,
    )


def log_state(lac: int, **vector: int) -> LogState:
    """``a``, ``b``, ``c``: how far the log is in each cluster's entries."""
    names = {"a": A, "b": B, "c": C}
    return LogState(at(lac), {names[key]: at(entry) for key, entry in vector.items()})


def published(core: SnapshotController, last: int, now_ms: int, origin: str = A) -> None:
    core.on_append(at(last), origin=origin, messages=True, now_ms=now_ms)


def answer(
    core: SnapshotController, position: int, lac: int, log: LogState, now_ms: int = 0, **vector: int
) -> list[Action]:
    """B's answer of ``lac`` and ``vector`` stands in A's log at ``position``."""
    core.on_append(at(position), origin=B, messages=False, now_ms=now_ms)
    response = SnapshotResponse(f"id-{lac}", B, at(lac), log_state(lac, **vector).vector, A)
    return core.on_marker(at(position), B, response, log, now_ms)


def recorded(actions: list[Action]) -> list[tuple[int, int]]:
    """Return the (local, remote) entries of the mappings that must be recorded."""
    return [(a.mapping.local.entry, a.mapping.remote.entry) for a in actions if isinstance(a, RecordMapping)]


def told(actions: list[Action]) -> dict[str, dict[str, int]]:
    """Return each cluster's entry in the updates, by subscription."""
    return {
        update.subscription: {cluster: position.entry for cluster, position in update.clusters.items()}
        for action in actions
        if isinstance(action, WriteUpdate)
        for update in action.marker.updates
    }


def subscribed(core: SnapshotController, name: str = "s") -> None:
    """Make a subscription that peers know of already."""
    core.on_subscription(name, BEFORE_ALL, 1, 0, announced=True)


# Asking.


def test_a_burst_makes_one_request_an_interval_and_one_after_its_end() -> None:
    core = controller()
    subscribed(core)
    requests = []
    now_ms = 0
    while now_ms <= 2_000:
        if now_ms <= 1_000:
            published(core, now_ms, now_ms)
        if any(isinstance(action, WriteRequest) for action in core.on_tick(now_ms, log_state(now_ms, a=now_ms))):
            requests.append(now_ms)
        now_ms += 10
    assert requests == [0, 200, 400, 600, 800, 1_000]
    published(core, 3_000, 3_000)
    assert core.next_deadline(3_000) == 3_000
    core.on_tick(3_000, log_state(3_000, a=3_000))
    published(core, 3_010, 3_010)
    assert core.next_deadline(3_010) == 3_200


def test_markers_ask_for_nothing() -> None:
    core = controller()
    subscribed(core)
    core.on_append(at(5), origin=B, messages=False, now_ms=0)
    assert core.next_deadline(0) is None
    assert core.on_tick(10_000, log_state(5, b=5)) == []


@pytest.mark.parametrize(("peers", "reachable"), [((), ()), ((B,), ()), ((), (B,)), ((B,), (C,))])
def test_nobody_is_asked_who_cannot_answer(peers: Collection[str], reachable: Collection[str]) -> None:
    core = controller(peers, reachable)
    subscribed(core)
    published(core, 5, 0)
    assert core.next_deadline(0) is None


def test_without_a_replicated_subscription_nothing_is_asked_until_there_is_one() -> None:
    core = controller()
    published(core, 5, 0)
    assert core.next_deadline(0) is None
    subscribed(core)
    (request,) = core.on_tick(50, log_state(5, a=5))
    assert request == WriteRequest(SnapshotRequest("id-0", A, at(5), {A: at(5)}))
    core.on_subscription_deleted("s")
    published(core, 6, 60)
    assert core.on_tick(5_000, log_state(6, a=6)) == []


def request_of(core: SnapshotController, cluster: str, position: int, log: LogState, now_ms: int) -> list[Action]:
    """A request, which says that its cluster has what ``log`` has, stands at ``position``."""
    core.on_append(at(position), origin=cluster, messages=False, now_ms=now_ms)
    marker = SnapshotRequest(f"of {cluster}", cluster, log.lac, log.vector)
    return core.on_marker(at(position), cluster, marker, log, now_ms)


def test_messages_of_a_peer_that_asks_are_not_asked_about_again() -> None:
    """One asks, and all answers serve all."""
    core = controller((B, C))
    subscribed(core)
    published(core, 5, 0, origin=B)
    assert core.on_tick(0, log_state(5, b=5)) == [], "B is waited for"
    asked = request_of(core, B, 6, log_state(6, b=5), 100)
    assert [type(action) for action in asked] == [WriteResponse, RecordMapping]
    answered = SnapshotResponse("of B", C, at(7), log_state(7, b=5).vector, B)
    assert core.on_marker(at(8), C, answered, log_state(8, b=5), 200) == [
        RecordMapping(SnapshotMapping("of B", at(8), C, at(7))),
        WriteLocalSnapshot(LocalSnapshot("of B", at(8), {B: at(6), C: at(7)}, covers=True)),
    ]
    assert core.next_deadline(200) is None
    assert core.on_tick(100_000, log_state(8, b=5)) == []
    assert (core.stats.requests, core.stats.answers) == (0, 1)


def test_who_does_not_ask_is_not_waited_for_long() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 5, 0, origin=B)
    assert core.next_deadline(0) == 2_000
    published(core, 6, 1_900, origin=B)
    (request,) = core.on_tick(2_000, log_state(6, b=6))
    assert request == WriteRequest(SnapshotRequest("id-0", A, at(6), {B: at(6)}))


def test_messages_of_a_cluster_that_cannot_ask_are_asked_about_at_once() -> None:
    core = controller((B,), reachable=(B, C))
    subscribed(core)
    published(core, 5, 0, origin=C)
    assert [type(action) for action in core.on_tick(0, log_state(5, c=5))] == [WriteRequest]


def test_invariant_8_an_answer_that_does_not_come_is_asked_for_in_the_end() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 5, 0, origin=B)
    request_of(core, B, 6, log_state(6, b=5), 100)
    behind = SnapshotResponse("of B", C, at(7), log_state(7, b=4).vector, B)
    assert recorded(core.on_marker(at(8), C, behind, log_state(8, b=5), 200)) == [(8, 7)], "true, and less than all"
    assert core.next_deadline(200) == 30_100
    assert [type(action) for action in core.on_tick(30_100, log_state(8, b=5))] == [WriteRequest]


def test_a_peer_that_asks_for_ever_is_not_waited_for_for_ever() -> None:
    core = controller((B, C))
    subscribed(core)
    for now_ms in range(0, 300_000, 5_000):
        published(core, now_ms, now_ms, origin=B)
        log = log_state(now_ms + 1, b=now_ms)
        request_of(core, B, now_ms + 1, log, now_ms)
        assert not [each for each in core.on_tick(now_ms, log) if isinstance(each, WriteRequest)]
    assert core.next_deadline(295_000) == 300_000
    assert [type(action) for action in core.on_tick(300_000, log_state(300_000, b=295_000))] == [WriteRequest]


def test_answers_that_others_ask_for_are_recorded_at_our_own_pace() -> None:
    core = controller((B, C))
    subscribed(core)
    found: list[int] = []
    for now_ms in range(0, 1_000, 50):
        lac = now_ms + 5
        published(core, lac, now_ms)  # so it is never covered
        response = SnapshotResponse(f"{now_ms}", B, at(lac), log_state(lac, b=lac).vector, C)
        if recorded(core.on_marker(at(lac), B, response, log_state(lac, a=lac, b=lac), now_ms)):
            found.append(now_ms)
    assert found == [0, 200, 400, 600, 800]
    ours = SnapshotResponse("ours", B, at(2_000), log_state(1, b=2_000).vector, A)
    assert recorded(core.on_marker(at(2_000), B, ours, log_state(2_000, a=999, b=2_000), 960)) == [(2_000, 2_000)]
    all_of_it = SnapshotResponse("all", B, at(2_010), log_state(1, a=955, b=2_000).vector, C)
    assert recorded(core.on_marker(at(2_010), B, all_of_it, log_state(2_010, a=955, b=2_000), 970)) == [(2_010, 2_010)]


def test_an_answer_that_covers_all_is_recorded_right_after_our_own_which_came_too_early_for_that() -> None:
    """The links of B stood still. So B answered A before the message of C reached it, and C afterwards."""
    core = controller((B, C))
    subscribed(core)
    published(core, 3, 0, origin=C)
    core.on_append(at(4), origin=None, messages=True, now_ms=0)
    assert [type(action) for action in core.on_tick(0, log_state(4, c=4))] == [WriteRequest]
    early = SnapshotResponse("id-0", B, at(7), log_state(7, c=3).vector, A)
    assert recorded(core.on_marker(at(6), B, early, log_state(6, c=4), 10)) == [(6, 7)]
    for_c = SnapshotResponse("of C", B, at(9), log_state(9, c=4).vector, C)
    assert recorded(core.on_marker(at(8), B, for_c, log_state(8, c=4), 20)) == [(8, 9)]
    again = SnapshotResponse("of C again", B, at(11), log_state(11, c=4).vector, C)
    assert recorded(core.on_marker(at(10), B, again, log_state(10, c=4), 30)) == [], "once; then at our own pace"


def test_an_answer_that_was_ahead_of_the_message_covers_it_when_it_comes() -> None:
    core = controller((B, C))
    subscribed(core)
    assert request_of(core, C, 2, log_state(2, c=1), 0)
    published(core, 3, 0, origin=C)
    ahead = SnapshotResponse("of C", B, at(7), log_state(7, c=4).vector, C)
    assert recorded(core.on_marker(at(4), B, ahead, log_state(4, c=3), 0)) == []
    published(core, 5, 10, origin=C)
    assert recorded(core.on_tick(10, log_state(5, c=4))) == [(5, 7)]
    request_of(core, C, 6, log_state(6, c=4), 20)
    assert core.next_deadline(20) == 220, "B has no newer mapping, so the local snapshot waits for an interval"
    assert [type(each) for each in core.on_tick(220, log_state(6, c=4))] == [WriteLocalSnapshot]
    assert core.next_deadline(220) is None


def test_a_local_snapshot_waits_for_the_peers_that_answer_and_not_longer_than_an_interval() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 3, 0)
    core.on_tick(0, log_state(3, a=3))
    first = SnapshotResponse("id-0", B, at(7), log_state(7, a=3).vector, A)
    assert [type(each) for each in core.on_marker(at(4), B, first, log_state(4, a=3), 10)] == [RecordMapping]
    assert core.next_deadline(10) == 210
    assert core.on_tick(209, log_state(4, a=3)) == []
    kept = LocalSnapshot("id-0", at(4), {B: at(7)}, covers=True)
    assert core.on_tick(210, log_state(4, a=3)) == [WriteLocalSnapshot(kept)]
    assert core.on_tick(10_000, log_state(4, a=3)) == []


def test_a_local_snapshot_covers_nothing_that_came_after_one_of_its_mappings() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 3, 0)
    core.on_tick(0, log_state(3, a=3))
    core.on_marker(at(4), B, SnapshotResponse("id-0", B, at(7), log_state(7, a=3).vector, A), log_state(4, a=3), 10)
    published(core, 5, 20)
    late = SnapshotResponse("id-0", C, at(9), log_state(9, a=5).vector, A)
    *_, written = core.on_marker(at(6), C, late, log_state(6, a=5), 30)
    assert written == WriteLocalSnapshot(LocalSnapshot("id-0", at(6), {B: at(7), C: at(9)}, covers=False))


def test_a_request_that_stays_unanswered_is_counted_and_holds_nothing_up() -> None:
    core = controller()
    subscribed(core)
    published(core, 5, 0)
    core.on_tick(0, log_state(5, a=5))
    assert core.next_deadline(0) == 30_000
    assert core.on_tick(30_000, log_state(5, a=5)) == []
    assert (core.stats.requests, core.stats.timeouts) == (1, 1)
    assert core.next_deadline(30_000) is None
    # A late answer is as true as one in time.
    assert recorded(answer(core, 9, 7, log_state(9, a=5, b=8), a=5, b=7)) == [(9, 7)]


def test_pending_requests_are_bounded_and_the_oldest_counts_as_timed_out() -> None:
    core = controller()
    subscribed(core)
    core._settings = ControllerSettings(snapshot_interval_ms=1, snapshot_timeout_ms=10**9)
    for now_ms in range(PENDING_REQUESTS_MAX + 10):
        core.on_append(at(now_ms), origin=A, messages=MESSAGES_MAX, now_ms=now_ms)
        assert len(core.on_tick(now_ms, log_state(now_ms, a=now_ms))) == 1
    assert core.stats.timeouts == 10


# Answering.


def test_a_request_is_answered_with_the_lac_and_what_the_log_holds_of_messages() -> None:
    core = controller()
    log = LogState(at(9), {A: at(9), B: at(8)}, messages={A: at(4), B: at(7)})
    (action,) = core.on_marker(at(8), B, SnapshotRequest("x", B), log, 0)
    assert action == WriteResponse(SnapshotResponse("x", A, at(9), {A: at(4), B: at(7)}, B))


def test_requests_that_no_answer_of_ours_reaches_are_left_alone() -> None:
    core = controller()
    log = log_state(9, a=9, b=8)
    assert core.on_marker(at(8), A, SnapshotRequest("own", A), log, 0) == []
    assert core.on_marker(at(8), C, SnapshotRequest("not a peer", C), log, 0) == []
    assert core.on_marker(at(8), B, SnapshotRequest("in another's name", C), log, 0) == []


def test_messages_of_others_after_the_last_answer_are_followed_up_once() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 3, 0, origin=C)
    log = log_state(3, b=9, c=3)
    for cluster in (B, C):  # to somebody whose link to us has stalled
        response = SnapshotResponse("x", cluster, at(3), log_state(3, c=3).vector, "eu-south")
        assert recorded(core.on_marker(at(3), cluster, response, LogState(at(3), {C: at(3)}), 0)) == [(3, 3)]
    assert core.on_tick(0, log) == []
    (follow_up,) = core.on_tick(2_000, log)
    assert isinstance(follow_up, WriteResponse)
    assert (follow_up.marker.requested_by, follow_up.marker.position) == ("", at(3))
    assert core.on_tick(20_000, log) == []
    # If B asks by itself, all are told, and so they are by a request of ours: nothing is left to follow up.
    published(core, 4, 20_000, origin=C)
    core.on_marker(at(5), B, SnapshotRequest("x", B), LogState(at(5), {B: at(9), C: at(4)}), 20_100)
    assert [type(action) for action in core.on_tick(29_000, log)] == [WriteRequest]
    published(core, 6, 30_000, origin=C)
    assert [type(action) for action in core.on_tick(39_000, log)] == [WriteRequest]
    assert core.stats.answers == 2


def test_two_clusters_need_no_follow_up() -> None:
    core = controller()
    subscribed(core)
    published(core, 3, 0, origin=B)
    published(core, 4, 0, origin=A)
    core.on_append(at(4), origin=None, messages=True, now_ms=0)
    core.on_tick(0, log_state(4, a=4, b=3))
    assert core.next_deadline(0) == 30_000  # only the request's expiry
    assert core.stats.answers == 0


# Mappings.


def test_with_two_clusters_the_mapping_is_where_the_answer_stands() -> None:
    core = controller()
    subscribed(core)
    actions = answer(core, 6, 4, log_state(50, a=50, b=9), a=3, b=4)
    mapping = SnapshotMapping("id-4", at(6), B, at(4))
    assert actions == [RecordMapping(mapping), WriteLocalSnapshot(LocalSnapshot("id-4", at(6), {B: at(4)}))]
    assert list(core.mappings(B)) == [mapping]


def test_an_answer_that_knows_more_of_a_third_cluster_waits_until_we_know_it_too() -> None:
    core = controller((B, C))
    assert recorded(answer(core, 6, 4, log_state(6, a=3, b=5, c=1), a=3, b=4, c=2)) == []
    published(core, 7, 10)
    assert core.next_deadline(10) is None, "only entries of others can end the waiting"
    core.on_append(at(8), origin=C, messages=True, now_ms=20)
    assert core.next_deadline(20) == 20
    assert recorded(core.on_tick(20, log_state(8, a=7, b=5, c=1))) == []
    core.on_append(at(9), origin=C, messages=True, now_ms=30)
    assert recorded(core.on_tick(30, log_state(9, a=7, b=5, c=2))) == [(9, 4)]


@pytest.mark.parametrize("waits", [False, True])
def test_invariant_5_an_answer_proves_nothing_where_messages_of_a_third_cluster_are_left_out(waits: bool) -> None:
    core = controller((B, C))
    with_hole = replace(log_state(9, a=3, b=5, c=2), incomplete=lambda origin: origin == C)
    if waits:
        assert recorded(answer(core, 6, 4, log_state(6, a=3, b=5, c=1), a=3, b=4, c=2)) == []
        core.on_append(at(9), origin=C, messages=True, now_ms=30)
        assert recorded(core.on_tick(30, with_hole)) == []
    else:
        assert recorded(answer(core, 6, 4, with_hole, a=3, b=4, c=2)) == []
    assert core.stats.skipped == 1
    assert recorded(answer(core, 10, 4, replace(with_hole, lac=at(10)), a=3, b=4)) == [(10, 4)], "nothing of C in it"


def test_where_a_third_origin_is_known_the_mapping_is_at_the_lac_and_not_where_the_answer_stands() -> None:
    core = controller((B, C))
    # C's entry may have come after the answer, before the answer was looked at.
    assert recorded(answer(core, 6, 4, log_state(8, a=3, b=5, c=2), a=3, b=4, c=2)) == [(8, 4)]


def test_of_answers_that_are_fulfilled_together_the_newest_is_recorded() -> None:
    core = controller((B, C))
    for lac in (4, 5, 6):
        assert recorded(answer(core, 10 + lac, lac, log_state(20, a=3, b=9, c=0), a=3, b=lac, c=lac)) == []
    core.on_append(at(21), origin=C, messages=True, now_ms=0)
    assert recorded(core.on_tick(0, log_state(21, a=3, b=9, c=5))) == [(21, 5)]
    core.on_append(at(22), origin=C, messages=True, now_ms=0)
    assert recorded(core.on_tick(0, log_state(22, a=3, b=9, c=6))) == [(22, 6)]


def test_waiting_answers_are_bounded_and_the_newest_is_kept() -> None:
    core = controller((B, C))
    for lac in range(100):
        answer(core, 100 + lac, lac, log_state(300, a=3, b=200), a=3, b=lac, c=lac)
    assert core.stats.skipped == 100 - WAITING_ANSWERS_MAX
    core.on_append(at(301), origin=C, messages=True, now_ms=0)
    assert recorded(core.on_tick(0, log_state(301, a=3, b=200, c=WAITING_ANSWERS_MAX))) == [
        (301, WAITING_ANSWERS_MAX - 2)
    ]
    core.on_append(at(302), origin=C, messages=True, now_ms=0)
    assert recorded(core.on_tick(0, log_state(302, a=3, b=200, c=99))) == [(302, 99)]


def test_answers_that_prove_nothing_are_counted_as_skipped() -> None:
    core = controller((B,))
    log = log_state(9, a=9, b=8)
    assert answer(core, 6, 4, log, a=3, b=4, c=2) == [], "C never reaches us"
    assert answer(core, 7, 5, log, a=10, b=5) == [], "B has entries of ours that we have not"
    assert answer(core, 8, 5, log) == [], "nothing is known of other origins"
    assert core.stats.skipped == 3
    assert core.next_deadline(0) is None


def test_an_answer_serves_whoever_reads_it_but_not_in_the_name_of_others_or_again() -> None:
    core = controller((B, C))
    log = log_state(9, a=9, b=8, c=8)
    vector = log_state(4, a=3, b=4).vector
    assert core.on_marker(at(6), C, SnapshotResponse("x", B, at(4), vector, A), log, 0) == []
    assert recorded(core.on_marker(at(6), B, SnapshotResponse("x", B, at(4), vector, C), log, 0)) == [(6, 4)]
    assert answer(core, 6, 4, log, a=3, b=4) == []
    assert core.stats.mappings == 1


def test_an_answer_without_a_name_is_known_by_its_id() -> None:
    core = controller()
    subscribed(core)
    published(core, 3, 0)
    core.on_tick(0, log_state(3, a=3))
    response = SnapshotResponse("id-0", B, at(4), log_state(4, a=3, b=2).vector, "")
    assert recorded(core.on_marker(at(6), B, response, log_state(6, a=3, b=5), 0)) == [(6, 4)]


def test_each_peer_answers_for_itself() -> None:
    core = controller((B, C))
    subscribed(core)
    published(core, 3, 0)
    core.on_tick(0, log_state(3, a=3))
    assert recorded(answer(core, 6, 4, log_state(6, a=3, b=5), a=3, b=4)) == [(6, 4)]  # C is silent
    core.on_tick(30_000, log_state(6, a=3, b=5))
    assert core.stats.timeouts == 1


# Telling.


def test_a_new_subscription_is_announced_once_with_all_others_of_the_moment() -> None:
    core = controller()
    core.on_subscription("s", BEFORE_ALL, 1, 0)
    core.on_subscription("t", BEFORE_ALL, 3, 50)
    core.on_subscription("from a peer", BEFORE_ALL, 1, 50, announced=True)
    assert core.next_deadline(50) == 0
    (action,) = core.on_tick(100, log_state(0))
    assert action == WriteUpdate(SubscriptionsUpdate((SubscriptionUpdate("s", {}, 1), SubscriptionUpdate("t", {}, 3))))
    core.on_subscription("s", BEFORE_ALL, 1, 200)
    assert core.next_deadline(200) is None


def test_the_best_mapping_below_the_mark_delete_is_told_and_never_twice() -> None:
    core = controller()
    subscribed(core)
    for entry in (10, 20, 30):
        published(core, entry - 1, 0)
        answer(core, entry, entry + 100, log_state(entry, a=entry - 1, b=200), a=entry - 1, b=entry)
    published(core, 40, 0)
    core.on_mark_delete("s", at(25), 1, 1_000, local=True)
    assert told(core.on_tick(1_100, log_state(40, a=40))) == {"s": {B: 120}}
    core.on_mark_delete("s", at(29), 1, 1_200, local=True)
    assert told(core.on_tick(1_400, log_state(40, a=40))) == {}
    core.on_mark_delete("s", at(30), 1, 1_500, local=True)
    assert told(core.on_tick(1_600, log_state(40, a=40))) == {"s": {B: 130}}


def test_markers_at_the_end_of_the_log_do_not_stand_between_the_last_message_and_its_mapping() -> None:
    core = controller()
    subscribed(core)
    published(core, 5, 0)
    core.on_mark_delete("s", at(5), 1, 0, local=True)
    answer(core, 8, 4, log_state(8, a=5, b=5), now_ms=10, a=5, b=4)
    assert told(core.on_tick(300, log_state(8, a=5, b=5))) == {"s": {B: 4}}


def test_while_the_last_message_is_not_known_nothing_beyond_the_mark_delete_is_claimed() -> None:
    core = controller()
    subscribed(core)
    core.on_mark_delete("s", at(5), 1, 0, local=True)
    answer(core, 8, 4, log_state(8, a=5, b=5), a=5, b=4)
    assert told(core.on_tick(300, log_state(8, a=5, b=5))) == {}


def test_a_mapping_that_runs_ahead_of_the_append_event_is_told_when_the_event_comes() -> None:
    core = controller()
    subscribed(core)
    published(core, 5, 0)
    core.on_mark_delete("s", at(5), 1, 0, local=True)
    response = SnapshotResponse("x", B, at(4), log_state(4, a=5, b=4).vector, A)
    core.on_marker(at(8), B, response, log_state(8, a=5, b=5), 0)
    assert told(core.on_tick(300, log_state(8, a=5, b=5))) == {}
    core.on_append(at(8), origin=B, messages=False, now_ms=300)
    assert told(core.on_tick(400, log_state(8, a=5, b=5))) == {"s": {B: 4}}


def test_what_only_an_update_moved_is_not_told_back_until_a_consumer_here_moves_on() -> None:
    core = controller()
    subscribed(core)
    published(core, 5, 0)
    answer(core, 8, 4, log_state(8, a=5, b=5), a=5, b=4)
    published(core, 9, 0)
    core.on_mark_delete("s", at(8), 1, 0, local=False)
    assert told(core.on_tick(300, log_state(9, a=9, b=5))) == {}
    core.on_mark_delete("s", at(9), 1, 300, local=True)
    assert told(core.on_tick(400, log_state(9, a=9, b=5))) == {"s": {B: 4}}


def test_a_seek_starts_a_generation_that_is_announced_and_told_anew() -> None:
    core = controller()
    subscribed(core)
    published(core, 5, 0)
    answer(core, 8, 4, log_state(8, a=5, b=5), a=5, b=4)
    core.on_mark_delete("s", at(8), 1, 0, local=True)
    assert told(core.on_tick(300, log_state(8, a=5, b=5))) == {"s": {B: 4}}
    core.on_mark_delete("s", at(2), 2, 400, local=True)
    (update,) = [a for a in core.on_tick(500, log_state(8, a=5, b=5)) if isinstance(a, WriteUpdate)]
    assert update.marker.updates == (SubscriptionUpdate("s", {}, 2),)
    core.on_mark_delete("s", at(8), 1, 600, local=True)  # of the past
    assert told(core.on_tick(700, log_state(8, a=5, b=5))) == {}
    core.on_mark_delete("s", at(8), 2, 800, local=True)
    assert told(core.on_tick(900, log_state(8, a=5, b=5))) == {"s": {B: 4}}


def test_many_subscriptions_go_into_several_markers() -> None:
    core = controller()
    for number in range(UPDATES_PER_MARKER_MAX + 1):
        core.on_subscription(f"s{number}", BEFORE_ALL, 1, 0)
    actions = core.on_tick(100, log_state(0))
    assert [len(a.marker.updates) for a in actions if isinstance(a, WriteUpdate)] == [UPDATES_PER_MARKER_MAX, 1]


# Being told.


def updates(*items: SubscriptionUpdate) -> SubscriptionsUpdate:
    return SubscriptionsUpdate(items)


def test_each_subscription_of_an_update_is_applied_or_made() -> None:
    core = controller()
    core.on_subscription("known", at(3), 2, 0, announced=True)
    marker = updates(
        SubscriptionUpdate("known", {A: at(5), C: at(99)}, 2),
        SubscriptionUpdate("new", {C: at(99)}, 1),
        SubscriptionUpdate("known, but not told of us", {}, 1),
    )
    assert core.on_marker(at(8), B, marker, log_state(9), 0) == [
        ApplyUpdate("known", 2, at(5), B),
        ApplyUpdate("new", 1, None, B),
        ApplyUpdate("known, but not told of us", 1, None, B),
    ]
    assert core.stats.updates_applied == 3


@pytest.mark.parametrize(
    ("clusters", "generation"),
    [({A: at(5)}, 1), ({A: at(3)}, 2), ({A: at(2)}, 2), ({}, 2), ({}, 1), ({A: at(10)}, 2), ({A: at(10)}, 3)],
    ids=["generation of the past", "same", "behind", "known", "known, past", "past our log", "past our log, seek"],
)
def test_an_update_that_says_nothing_new_or_cannot_be_true_is_passed_over(
    clusters: dict[str, Position], generation: int
) -> None:
    core = controller()
    core.on_subscription("s", at(3), 2, 0, announced=True)
    marker = updates(SubscriptionUpdate("s", clusters, generation))
    assert core.on_marker(at(8), B, marker, log_state(9), 0) == []


def test_a_higher_generation_is_applied_even_if_it_goes_back() -> None:
    core = controller()
    core.on_subscription("s", at(7), 2, 0, announced=True)
    marker = updates(SubscriptionUpdate("s", {A: at(1)}, 3))
    assert core.on_marker(at(8), B, marker, log_state(9), 0) == [ApplyUpdate("s", 3, at(1), B)]


# Restarts and topologies.


def test_after_a_restart_own_markers_bring_back_what_was_recorded_asked_and_told() -> None:
    core = controller()
    core.on_subscription("s", at(8), 1, 0)
    core.on_append(at(5), origin=None, messages=True, now_ms=0)
    log = log_state(12, a=12, b=5)
    assert core.on_marker(at(6), A, SnapshotRequest("x", A), log, 0) == []
    assert core.on_marker(at(9), A, LocalSnapshot("x", at(8), {B: at(4)}), log, 0) == []
    marker = updates(SubscriptionUpdate("s", {B: at(4)}, 1))
    assert core.on_marker(at(10), A, marker, log, 0) == []
    assert list(core.mappings(B)) == [SnapshotMapping("x", at(8), B, at(4))]
    assert core.on_tick(5_000, log) == [], "all was asked and told before the restart"


def test_after_a_restart_messages_that_were_not_asked_about_are() -> None:
    core = controller()
    core.on_subscription("s", BEFORE_ALL, 1, 0, announced=True)
    core.on_append(at(7), origin=None, messages=True, now_ms=0)
    core.on_marker(at(6), A, SnapshotRequest("x", A), log_state(7, a=7), 0)
    assert [type(action) for action in core.on_tick(0, log_state(7, a=7))] == [WriteRequest]


def test_after_a_restart_messages_that_were_covered_are_not_asked_about() -> None:
    core = controller((B, C))
    core.on_subscription("s", BEFORE_ALL, 1, 0, announced=True)
    core.on_append(at(5), origin=None, messages=True, now_ms=0)
    log = log_state(9, a=9, b=5, c=6)
    core.on_marker(at(7), A, SnapshotResponse("x", A, at(6), {B: at(5)}, B), log, 0)
    core.on_marker(at(8), A, LocalSnapshot("x", at(6), {B: at(6)}, covers=True), log, 0)
    assert core.next_deadline(0) == 0
    core.on_marker(at(9), A, LocalSnapshot("x", at(7), {C: at(6)}, covers=True), log, 0)
    assert core.next_deadline(0) is None


def test_restored_mappings_serve_lookups_at_once() -> None:
    core = controller()
    core.restore([SnapshotMapping("1", at(2), B, at(1)), SnapshotMapping("2", at(8), B, at(4))])
    core.on_subscription("s", at(8), 1, 0, announced=True)
    assert told(core.on_tick(100, log_state(9, a=9))) == {"s": {B: 4}}


def test_a_peer_that_joins_is_told_of_every_subscription() -> None:
    core = controller(())
    core.on_subscription("s", BEFORE_ALL, 1, 0)
    assert core.next_deadline(0) is None
    core.on_topology((B,), (B,), 1_000)
    assert told(core.on_tick(1_100, log_state(0))) == {"s": {}}
    core.on_topology((), (), 2_000)
    core.on_mark_delete("s", at(5), 1, 2_000, local=True)
    assert core.next_deadline(2_000) is None


def test_an_answer_of_a_cluster_that_keeps_an_earlier_life_proves_something_only_to_those_that_have_it_too() -> None:
    core = controller()
    log = LogState(at(9), {A: at(9), B: at(8)}, {A: at(4), B: at(7)}, earlier_lives={"x/3": at(2)})
    (action,) = core.on_marker(at(8), B, SnapshotRequest("x", B), log, 0)
    assert isinstance(action, WriteResponse)
    assert action.marker.vector == {A: at(4), B: at(7), "x/3": at(2)}
    lacking = log_state(9, a=9, b=8)
    for earlier, proved in ((at(1), False), (at(2), True), (None, False)):
        core = controller()
        here = replace(lacking, earlier_lives={} if earlier is None else {"x/3": earlier})
        core.on_append(at(9), origin=B, messages=False, now_ms=0)
        response = SnapshotResponse("id", B, at(8), {A: at(4), B: at(7), "x/3": at(2)}, A)
        assert bool(recorded(core.on_marker(at(9), B, response, here, 0))) == proved
