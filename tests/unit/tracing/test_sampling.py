"""Sampling of messages: at the given rate, at most so many a second, by one comparison per call."""

from __future__ import annotations

import random

import pytest

from replicator.tracing.sampling import Sampler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def sampler(rate: float, *, per_second: int = 1_000_000, seed: int = 1, clock: Clock | None = None) -> Sampler:
    return Sampler(rate, per_second, clock or Clock(), random.Random(seed).random)


@pytest.mark.parametrize("calls", [1, 7, 1000])
def test_a_rate_holds_however_many_messages_come_in_a_call(calls: int) -> None:
    made = sampler(0.01)
    picked = sum(len(made.pick(calls)) for _ in range(1_000_000 // calls))
    assert 9_600 < picked < 10_400  # four standard deviations


def test_calls_of_any_size_pick_the_same_messages() -> None:
    whole, in_parts = sampler(0.1, seed=5), sampler(0.1, seed=5)
    expected = whole.pick(1000)
    found, first = [], 0
    sizes = random.Random(7)
    while first < 1000:
        size = min(sizes.randint(1, 50), 1000 - first)
        found += [first + number for number in in_parts.pick(size)]
        first += size
    assert found == list(expected)
    assert len(found) > 50


def test_all_and_none() -> None:
    assert sampler(1).pick(3) == [0, 1, 2]
    never = sampler(0)
    assert not any(never.pick(10**9) for _ in range(100))


def test_another_rate_holds_at_once() -> None:
    made = sampler(0)
    made.pick(10)
    made.change(1, 5)
    assert made.pick(2) == [0, 1]
    assert made.admit(9) == 5


def test_no_more_are_traced_in_a_second_than_may_be() -> None:
    clock = Clock()
    made = sampler(1, per_second=10, clock=clock)
    assert [made.admit(4) for _ in range(4)] == [4, 4, 2, 0]
    clock.now = 0.5
    assert made.admit(100) == 5
    clock.now = 100.0
    assert made.admit(100) == 10
    assert (made.traced, made.skipped) == (25, 6 + 95 + 90)
