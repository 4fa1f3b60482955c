"""Fence at the brokers: a worker keeps clients out as the gate of a failover demands."""

from __future__ import annotations

from replicator.apache.fence import Fence
from replicator.engine.gate import Closed, Gate

OPEN = Gate(None, None, "a", 0)
STARTING = Gate(Closed.STARTING, Closed.STARTING, "a", 0)
SWITCHING = Gate(Closed.SWITCHING, Closed.SWITCHING, "b", 0)
FENCED = Gate(Closed.FENCED, Closed.FENCED, "b", 1)


def test_a_cluster_that_another_serves_keeps_everybody_out() -> None:
    assert Fence().after(FENCED) == Fence(producers=True, consumers=True)


def test_consumers_that_stay_are_not_kept_out() -> None:
    assert Fence().after(Gate(Closed.FENCED, None, "b", 1)) == Fence(producers=True, consumers=False)
    assert Fence().after(Gate(Closed.SWITCHING, None, "b", 0)) == Fence(producers=True, consumers=False)


def test_a_worker_that_starts_leaves_the_brokers_as_they_are() -> None:
    assert Fence().after(STARTING) == Fence()
    assert Fence().after(FENCED).after(STARTING) == Fence().after(FENCED)


def test_consumers_of_a_planned_switch_are_kept_out_after_the_producers() -> None:
    held = Fence().after(SWITCHING)
    assert held == Fence(producers=True, consumers=False)
    assert held.with_consumers() == Fence(producers=True, consumers=True)
    # The topology is read again meanwhile, and then the epoch is written.
    assert held.with_consumers().after(SWITCHING) == held.with_consumers()
    assert held.with_consumers().after(FENCED) == Fence(producers=True, consumers=True)


def test_a_failback_and_a_switch_that_was_given_up_let_everybody_in() -> None:
    assert Fence().after(FENCED).after(OPEN) == Fence()
    assert Fence().after(SWITCHING).after(OPEN).with_consumers() == Fence()
