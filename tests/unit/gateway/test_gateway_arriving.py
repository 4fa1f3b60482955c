"""Commands of one client are carried out in slices and in order, also after it has left. The clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.gateway.arriving import Arrivals
from replicator.gateway.outgoing import Outgoing
from replicator.protocol.errors import OutOfOrder
from replicator.running.turns import LIGHT_SECONDS, SLICE_SECONDS, TURN_SECONDS, FairScheduler, LoopShare

COMMAND_SECONDS = 0.00002
A_SLICE = round(SLICE_SECONDS / COMMAND_SECONDS)
A_TURN = round(TURN_SECONDS / COMMAND_SECONDS)


class Loop:
    """An event loop that turns when the test says so. Time goes on by commands alone."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls: list[Callable[[], None]] = []
        self.turns = FairScheduler(lambda: self.now, self.calls.append)

    def turn(self) -> None:
        calls = self.calls[:]
        del self.calls[:]
        for call in calls:
            call()


class Client:
    """A connection whose commands are numbers: bytes, one a command."""

    def __init__(self, loop: Loop, name: str = "10.0.0.1:1") -> None:
        self.loop = loop
        self.share = LoopShare(name)
        self.outgoing = Outgoing(cast(asyncio.AbstractEventLoop, loop), lambda: None)
        self.arrivals = Arrivals(self, self.outgoing, loop.turns, self.share)
        self.done: list[int] = []
        self.on_command: Callable[[int], Iterator[None] | None] = lambda number: None
        self.failed: list[str] = []
        self.is_over = False
        self.reads = True

    def commands(self, data: bytes) -> Iterator[Any]:
        yield from data

    def carry_out(self, command: int) -> Iterator[None] | None:
        self.loop.now += COMMAND_SECONDS
        self.done.append(command)
        return self.on_command(command)

    def on_commands_run(self) -> None:
        pass

    def fail(self, reason: str) -> None:
        self.failed.append(reason)
        self.arrivals.drop()

    def on_backlog_changed(self) -> None:
        self.reads = not self.arrivals.behind

    def over(self) -> None:
        assert not self.is_over
        self.is_over = True


def test_one_small_command_is_carried_out_at_once_and_asks_nothing_of_the_loop() -> None:
    loop = Loop()
    client = Client(loop)
    client.arrivals.came(b"a")
    assert client.done == [ord("a")]
    assert loop.calls == []
    assert client.reads


def test_a_flood_is_carried_out_in_slices_and_nothing_more_is_read_meanwhile() -> None:
    loop = Loop()
    client = Client(loop)
    flood = bytes(range(256)) * 40
    client.arrivals.came(flood)
    assert len(client.done) <= A_SLICE + 1
    assert not client.reads
    while not client.reads:
        before = len(client.done)
        loop.turn()
        assert 0 < len(client.done) - before <= A_TURN + A_SLICE + 1
    assert bytes(client.done) == flood


def test_a_client_that_sends_one_command_is_not_held_up_by_two_hundred_that_flood() -> None:
    """The flooding clients have used more, so the other's command is carried out as it comes, or is the next slice."""
    loop = Loop()
    hostile = [Client(loop, f"10.0.0.1:{number}") for number in range(200)]
    for client in hostile:
        client.arrivals.came(bytes(100_000))
    for _ in range(2 * len(hostile)):
        loop.turn()
    honest = Client(loop, "10.0.0.2:1")
    for _ in range(50):
        before = sum(len(client.done) for client in hostile)
        honest.arrivals.came(b"a")
        if honest.arrivals.behind:
            loop.turn()
        assert not honest.arrivals.behind
        assert sum(len(client.done) for client in hostile) - before <= A_TURN + A_SLICE + 1
        loop.turn()


@given(st.lists(st.binary(max_size=3 * A_SLICE), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_commands_keep_their_order_whatever_comes_when(pieces: list[bytes], turns: list[int]) -> None:
    """Also behind a large command, which is carried out in steps, and if the client leaves before they are done."""
    loop = Loop()
    client = Client(loop)
    steps: list[tuple[int, int]] = []
    large = [0]

    def in_steps(command: int) -> Iterator[None] | None:
        if command % 50:
            return None
        large[0] += 1
        return stepping(large[0])

    def stepping(number: int) -> Iterator[None]:
        for step in range(A_SLICE):
            assert number == large[0], "the next large command has begun before this one is done"
            steps.append((number, step))
            loop.now += COMMAND_SECONDS
            yield

    client.on_command = in_steps
    for number, piece in enumerate(pieces):
        client.arrivals.came(piece)
        for _ in range(turns[number] if number < len(turns) else 0):
            loop.turn()
    client.arrivals.left([])
    while not client.is_over:
        assert loop.calls, "it is never over"
        loop.turn()
    assert bytes(client.done) == b"".join(pieces)
    assert steps == [(number + 1, step) for number in range(large[0]) for step in range(A_SLICE)]


def test_what_a_client_sent_before_it_left_is_carried_out_and_then_it_is_over() -> None:
    loop = Loop()
    client = Client(loop)
    client.arrivals.came(b"a" * 10_000)
    client.arrivals.came(b"b" * 10)
    client.arrivals.left([b"c" * 5_000, b"d"])
    assert not client.is_over
    while not client.is_over:
        loop.turn()
    assert bytes(client.done) == b"a" * 10_000 + b"b" * 10 + b"c" * 5_000 + b"d"


def test_a_client_of_which_nothing_is_left_is_over_at_once() -> None:
    client = Client(Loop())
    client.arrivals.came(b"a")
    client.arrivals.left([])
    assert client.is_over


def test_nothing_more_is_carried_out_of_a_connection_that_this_side_ended() -> None:
    loop = Loop()
    client = Client(loop)
    client.arrivals.came(b"a" * 10_000)
    done = len(client.done)
    client.arrivals.drop()
    client.arrivals.came(b"b")
    client.arrivals.left([b"c"])
    while not client.is_over:
        loop.turn()
    assert len(client.done) == done


def test_a_command_that_breaks_the_protocol_ends_the_connection_and_no_command_behind_it_counts() -> None:
    loop = Loop()
    client = Client(loop)

    def broken(command: int) -> None:
        if command == ord("b"):
            raise OutOfOrder("so not")

    client.on_command = broken
    client.arrivals.came(b"a" * 1_000 + b"b" + b"c" * 1_000)
    while not client.failed:
        loop.turn()
    for _ in range(5):
        loop.turn()
    assert client.failed == ["so not"]
    assert bytes(client.done) == b"a" * 1_000 + b"b"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_bug_in_a_command_that_waited_ends_that_connection_and_no_other(leaves: bool) -> None:
    loop = Loop()
    client, other = Client(loop), Client(loop, "10.0.0.2:1")

    def broken(command: int) -> None:
        if command == ord("b"):
            raise RuntimeError("a bug")

    client.on_command = broken
    client.arrivals.came(b"a" * 1_000 + b"b")
    other.arrivals.came(b"a" * 1_000)
    if leaves:
        client.arrivals.left([])
    for _ in range(50):
        loop.turn()
    assert client.failed == ["a command failed"]
    assert client.is_over is leaves
    assert len(other.done) == 1_000


def test_carrying_out_stops_while_the_client_takes_no_answers_and_goes_on_when_it_does() -> None:
    loop = Loop()
    client = Client(loop)

    def floods(command: int) -> None:
        client.outgoing.flooded = client.outgoing.flooded or command == ord("b")

    client.on_command = floods
    client.arrivals.came(b"a" * 200 + b"b" + b"a" * 200)
    for _ in range(20):
        loop.turn()
    assert bytes(client.done) == b"a" * 200 + b"b"
    assert not client.reads
    client.outgoing.flooded = False
    client.arrivals.go_on()
    client.arrivals.go_on()  # it waits for its turn once
    for _ in range(20):
        loop.turn()
    assert len(client.done) == 401
    assert client.reads


def test_a_flooded_client_that_leaves_is_heard_to_its_end() -> None:
    """Nobody waits for the answers any more, but what it acknowledged counts."""
    loop = Loop()
    client = Client(loop)

    def floods(command: int) -> None:
        client.outgoing.flooded = client.outgoing.flooded or command == ord("b")

    client.on_command = floods
    client.arrivals.came(b"ab" + b"a" * 200)
    client.arrivals.left([])
    for _ in range(20):
        loop.turn()
    assert client.is_over
    assert len(client.done) == 202


def test_a_client_that_used_much_lately_waits_while_others_do() -> None:
    loop = Loop()
    client, other = Client(loop), Client(loop, "10.0.0.2:1")
    loop.now += 2 * LIGHT_SECONDS
    loop.turns.spend(client.share, 2 * LIGHT_SECONDS, loop.now)
    loop.turn()
    other.arrivals.came(bytes(1_000))
    client.arrivals.came(b"a")
    assert client.done == []
    for _ in range(50):
        loop.turn()
    assert client.done == [ord("a")]
