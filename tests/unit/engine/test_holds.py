"""Holders of a topic's log, and what follows when a link holds more than it may."""

from __future__ import annotations

from replicator.engine.upkeep.hold_quota import HOLD, REFUSE_PRODUCERS, RELEASE
from replicator.engine.upkeep.holds import Holds
from snapshots.position import Position


def test_a_holder_that_is_released_holds_nothing_back_until_it_is_within_its_quota_again() -> None:
    holds = Holds(lambda _: None)
    holds.positions = {"link to a": Position(1, 3), "link to b": Position(1, 7)}
    assert holds.holding() == [Position(1, 3), Position(1, 7)]
    holds.set_exceeded({"link to a": RELEASE, "link to b": HOLD})
    assert holds.holding() == [Position(1, 7)]
    holds.set_exceeded({})
    assert holds.holding() == [Position(1, 3), Position(1, 7)]


def test_publishes_are_refused_while_any_holder_s_policy_says_so() -> None:
    refusing: list[str | None] = []
    holds = Holds(refusing.append)
    holds.set_exceeded({"link to a": HOLD, "link to b": REFUSE_PRODUCERS})
    holds.set_exceeded({"link to a": HOLD})
    assert refusing == ["link to b", None]
    assert holds.exceeded == {"link to a": HOLD}
