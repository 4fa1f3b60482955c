"""Shares of the event loop's time, with a clock that the test moves: who is next, and how much fits into a turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.running.turns import FRESH_SECONDS, LIGHT_SECONDS, SLICE_SECONDS, TURN_SECONDS, FairScheduler, LoopShare

COSTS = st.floats(min_value=0.00001, max_value=0.003)
"""Time that a slice really takes. Some end late, because one command of theirs is long."""


class Loop:
    """Event loop that turns only when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls: list[Callable[[], None]] = []
        self.turns = FairScheduler(lambda: self.now, self.calls.append)

    def turn(self) -> None:
        """Make all calls that were scheduled before this turn."""
        calls = self.calls[:]
        del self.calls[:]
        for call in calls:
            call()

    def work(self, share: LoopShare, seconds: float) -> None:
        """Use time for a client."""
        self.now += seconds
        self.turns.spend(share, seconds, self.now)


def flood(loop: Loop, share: LoopShare, cost: float, served: list[LoopShare]) -> Callable[[], bool]:
    """Return a job that never ends: each slice uses ``cost`` seconds for ``share``, and adds it to ``served``."""

    def job() -> bool:
        served.append(share)
        loop.work(share, cost)
        return True

    return job


@given(st.lists(COSTS, min_size=1, max_size=50), COSTS, st.integers(0, 20))
def test_a_client_that_used_little_is_next_however_many_others_that_used_much_wait(
    costs: list[float], own: float, turns_before: int
) -> None:
    """Only the slice that is under way, and one more, may come before it."""
    loop, served = Loop(), list[LoopShare]()
    for number, cost in enumerate(costs):
        hostile = LoopShare(f"10.0.0.1:{number}")
        loop.work(hostile, 2 * FRESH_SECONDS)
        loop.turns.wait(hostile, flood(loop, hostile, cost, served))
    for _ in range(turns_before):
        loop.turn()
    honest = LoopShare("10.0.0.2:1")
    loop.work(honest, LIGHT_SECONDS / 2)
    before = len(served)
    loop.turns.wait(honest, flood(loop, honest, own, served))
    for _ in range(2):
        loop.turn()
    assert honest in served[before : before + 2]


@given(st.lists(COSTS, min_size=1, max_size=50), st.integers(1, 30))
def test_a_turn_takes_no_longer_than_its_time_and_one_slice(costs: list[float], turns: int) -> None:
    loop, served = Loop(), list[LoopShare]()
    for number, cost in enumerate(costs):
        share = LoopShare(f"10.0.0.1:{number}")
        loop.turns.wait(share, flood(loop, share, cost, served))
    for _ in range(turns):
        began, count = loop.now, len(served)
        loop.turn()
        assert loop.now - began <= TURN_SECONDS + max(costs)
        assert len(served) > count, "work that waits gets a slice in each turn"


@given(st.lists(COSTS, min_size=1, max_size=50), st.floats(0, FRESH_SECONDS))
def test_a_client_that_asks_little_but_often_waits_for_nobody_who_is_behind(costs: list[float], used: float) -> None:
    """This holds even if each client that is behind used less time."""
    loop, served = Loop(), list[LoopShare]()
    for number, cost in enumerate(costs):
        hostile = LoopShare(f"10.0.0.1:{number}")
        loop.turns.wait(hostile, flood(loop, hostile, cost, served))
    while len(set(served)) < len(costs):
        loop.turn()
    honest = LoopShare("10.0.0.2:1")
    loop.work(honest, used)
    before = len(served)
    loop.turns.wait(honest, lambda: bool(served.append(honest)))
    loop.turn()
    loop.turn()
    assert honest in served[before : before + 2], "one slice at most comes before it: that of those behind"


@given(st.lists(COSTS, min_size=1, max_size=20), st.integers(2, 30))
def test_those_behind_get_a_slice_in_every_second_turn(costs: list[float], turns: int) -> None:
    """Together they get one, however many others ask in each turn."""
    loop, served = Loop(), list[LoopShare]()
    behind = LoopShare("10.0.0.1:1")
    loop.turns.wait(behind, flood(loop, behind, SLICE_SECONDS, served))
    loop.turn()

    def ask(number: int) -> None:
        share = LoopShare(f"10.0.0.2:{number}")
        loop.turns.wait(share, lambda: bool(loop.work(share, max(costs))))

    for turn in range(turns):
        before = len(served)
        for _ in range(2):
            for number in range(1 + round(2 * TURN_SECONDS / max(costs))):
                ask(1_000 * turn + number)
            loop.turn()
        assert len(served) > before


def test_beside_two_hundred_that_ask_again_and_again_nobody_waits_long() -> None:
    """Each uses less time than the one that is watched, and leaves no work over, so that none is behind."""
    loop = Loop()
    hostile = [LoopShare(f"10.0.0.1:{number}") for number in range(200)]
    for share in hostile:
        loop.turns.wait(share, lambda share=share: bool(loop.work(share, 0.0009)))
    honest, waits, asked = LoopShare("10.0.0.2:1"), list[float](), 0.0
    loop.work(honest, 0.03)
    due = loop.now + 0.01
    end = loop.now + 3

    def answer() -> bool:
        waits.append(loop.now - asked)
        loop.work(honest, 0.0002)
        return False

    while loop.now < end:
        loop.turn()
        for share in hostile:
            if share not in loop.turns._waiting:
                loop.turns.wait(share, lambda share=share: bool(loop.work(share, 0.0009)))
        if loop.now >= due:
            asked, due = loop.now, math.inf
            loop.turns.wait(honest, answer)
        if due == math.inf and honest not in loop.turns._waiting:
            due = loop.now + 0.01
    assert len(waits) > 10
    assert max(waits) < 0.4, "by use alone it waits for seconds"


def test_beside_a_flood_clients_that_ask_little_get_what_they_ask_for() -> None:
    """Twenty clients each use 0.2 ms, and then pause for 5 ms. Together they want less than their share of the time."""
    loop, served = Loop(), list[LoopShare]()
    hostile = LoopShare("10.0.0.1:1")
    loop.turns.wait(hostile, flood(loop, hostile, SLICE_SECONDS, served))
    asks_at = {LoopShare(f"10.0.0.2:{number}"): loop.now for number in range(20)}
    answers, end = 0, loop.now + 5

    def answer(share: LoopShare) -> bool:
        nonlocal answers
        answers += 1
        loop.work(share, 0.0002)
        asks_at[share] = loop.now + 0.005
        return False

    while loop.now < end:
        for share, at in asks_at.items():
            if loop.now >= at:
                asks_at[share] = math.inf
                loop.turns.wait(share, partial(answer, share))
        loop.turn()
    assert answers / 20 / 5 > 100, "in a second"


def test_jobs_that_have_nothing_to_do_take_no_slice_from_those_behind() -> None:
    loop, served = Loop(), list[LoopShare]()
    behind, idle = LoopShare("10.0.0.1:1"), LoopShare("10.0.0.3:1")
    loop.work(behind, 0.5)
    loop.turns.wait(behind, flood(loop, behind, SLICE_SECONDS, served))
    for _ in range(20):
        loop.turns.wait(idle, lambda: False, left_over=True)
        for number in range(6):
            busy = LoopShare(f"10.0.0.2:{number}")
            loop.turns.wait(busy, lambda busy=busy: bool(loop.work(busy, SLICE_SECONDS)))
        loop.turn()
    assert len(served) >= 20


@given(st.lists(COSTS, min_size=2, max_size=20))
@settings(deadline=None)
def test_those_who_flood_get_equal_time(costs: list[float]) -> None:
    """Whatever a slice of theirs takes: the one whose slices are long has fewer of them."""
    loop, served = Loop(), list[LoopShare]()
    used: dict[LoopShare, float] = {}
    for number, cost in enumerate(costs):
        share = LoopShare(f"10.0.0.1:{number}")
        used[share] = cost
        loop.turns.wait(share, flood(loop, share, cost, served))
    for _ in range(300):
        loop.turn()
    counted = [served.count(share) * cost for share, cost in used.items()]
    assert max(counted) - min(counted) <= 4 * max(costs), counted


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.lists(COSTS, min_size=5, max_size=5))
def test_jobs_of_one_client_keep_their_order(owners: list[int], costs: list[float]) -> None:
    loop = Loop()
    shares = [LoopShare(f"10.0.0.1:{number}") for number in range(5)]
    done: list[tuple[int, int]] = []

    def job(owner: int, number: int) -> Callable[[], bool]:
        def work() -> bool:
            done.append((owner, number))
            loop.work(shares[owner], costs[owner])
            return False

        return work

    for number, owner in enumerate(owners):
        loop.turns.wait(shares[owner], job(owner, number))
    while loop.calls:
        loop.turn()
    assert len(done) == len(owners)
    for owner in range(5):
        numbers = [number for each, number in done if each == owner]
        assert numbers == sorted(numbers)


def test_a_client_is_served_at_once_until_the_turn_is_used_up() -> None:
    loop = Loop()
    one, other = LoopShare("10.0.0.1:1"), LoopShare("10.0.0.2:1")
    assert loop.turns.may_begin(one)
    loop.work(one, TURN_SECONDS)
    assert not loop.turns.may_begin(other)
    loop.turn()
    assert loop.turns.may_begin(other)


def test_while_others_wait_only_a_client_that_used_little_is_served_at_once() -> None:
    loop = Loop()
    light, heavy, waiting = LoopShare("10.0.0.1:1"), LoopShare("10.0.0.2:1"), LoopShare("10.0.0.3:1")
    for _ in range(20):
        loop.work(heavy, LIGHT_SECONDS)
        loop.turn()
    loop.turns.wait(waiting, lambda: False)
    assert loop.turns.may_begin(light)
    assert not loop.turns.may_begin(heavy)
    loop.now += 60  # what was used long ago does not count
    assert loop.turns.may_begin(heavy)


def test_a_job_that_fails_keeps_nobody_from_a_turn() -> None:
    loop, served = Loop(), list[LoopShare]()

    def broken() -> bool:
        raise RuntimeError("a bug")

    broken_share, share = LoopShare("10.0.0.1:1"), LoopShare("10.0.0.2:1")
    loop.work(share, SLICE_SECONDS)
    loop.turns.wait(broken_share, broken)
    loop.turns.wait(share, flood(loop, share, SLICE_SECONDS, served))
    for _ in range(3):
        try:
            loop.turn()
        except RuntimeError:
            continue
    assert served


def test_the_busiest_of_the_last_minute_are_named_with_their_seconds() -> None:
    loop = Loop()
    shares = [LoopShare(f"10.0.0.1:{number}") for number in range(5)]
    for number, share in enumerate(shares):
        loop.turns.opened(share)
        loop.work(share, number / 10)
    assert [(each.address, round(seconds, 3)) for each, seconds in loop.turns.busiest(3)] == [
        ("10.0.0.1:4", 0.4),
        ("10.0.0.1:3", 0.3),
        ("10.0.0.1:2", 0.2),
    ]
    loop.now += 30
    loop.work(shares[0], 0.25)
    loop.now += 35
    assert [each.address for each, _ in loop.turns.busiest(3)] == ["10.0.0.1:0"]
    loop.turns.closed(shares[0])
    assert loop.turns.busiest(3) == []


def test_clients_are_found_by_their_connection_or_by_their_host() -> None:
    loop = Loop()
    shares = [LoopShare("10.0.0.1:1"), LoopShare("10.0.0.1:2"), LoopShare("::1:3")]
    for share in shares:
        loop.turns.opened(share)
    assert loop.turns.clients("10.0.0.1:2") == [shares[1]]
    assert loop.turns.clients("10.0.0.1") == shares[:2]
    assert loop.turns.clients("::1") == [shares[2]]
    assert loop.turns.clients("10.0.0.2") == []
