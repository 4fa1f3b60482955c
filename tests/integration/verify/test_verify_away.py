"""A cluster that goes away while verify waits for it is named, and what was found before is still counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from wire_worker import ScriptedTopic, WireWorker, single_entry

from replicator.pipeline.verify import verify
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.pipeline.verify.verify import VerifyReport, VerifySettings
from replicator.topology import Link
from snapshots.position import Position

TOPIC = "persistent://public/default/flights"
OTHER = "persistent://public/default/trains"
BOTH_WAYS = (Link("us", "eu"), Link("eu", "us"))


class Two:
    """Clusters us and eu with five messages of us each. The worker of eu can be stopped."""

    def __init__(self) -> None:
        self.us, self.eu = WireWorker("us"), WireWorker("eu")
        for each in (self.us, self.eu):
            each.__enter__()
        self.a, self.b = self.us.topic(TOPIC), self.eu.topic(TOPIC)
        self.gone = False

    def fill(self, topic: tuple[ScriptedTopic, ScriptedTopic], *, lost: int | None = None, copied: int = 5) -> None:
        a, b = topic
        for number in range(5):
            block = a.publish(single_entry(b"%d" % number))
            if number == lost:
                b.next = Position(3, number + 1)
            elif number < copied:
                b.store(block)

    def stop_eu(self) -> None:
        if not self.gone:
            self.gone = True
            self.eu.__exit__()

    def look(self, settle_seconds: float = 0.5) -> VerifyReport:
        urls = {"us": self.us.url, "eu": self.eu.url}
        return verify.verify(None, urls, BOTH_WAYS, settings=VerifySettings(settle_seconds=settle_seconds))


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.stop_eu()
    with suppress(RuntimeError):
        made.us.__exit__()


def before(monkeypatch: pytest.MonkeyPatch, whose: Any, name: str, act: Callable[[], None]) -> None:
    """Do ``act`` before each call of a function."""
    real = getattr(whose, name)

    def wrapped(*arguments: Any) -> Any:
        act()
        return real(*arguments)

    monkeypatch.setattr(whose, name, wrapped)


def test_acknowledgements_that_differed_are_counted_though_the_cluster_went_away(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.fill((two.a, two.b))
    two.a.subscribe("s", Position(3, 3))
    two.b.subscribe("s", Position(3, 0))

    def act() -> None:
        two.stop_eu()
        two.a.subscriptions[0]["mark_delete"] = "3:4"  # a consumer goes on

    before(monkeypatch, verify, "read_again", act)
    report = two.look()
    assert (report.ack_mismatch, list(report.unreachable), report.exit_status) == (3, ["eu"], 1)
    assert "went away" in report.unreachable["eu"]


def test_lost_messages_are_counted_though_the_cluster_went_away_and_the_other_trimmed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.fill((two.a, two.b), lost=2)

    def act() -> None:
        two.stop_eu()
        two.a.cut = {"trimmed": "3:0", "trimmed_of": {"us": "3:0"}}
        two.a.trim(Position(3, 0))

    before(monkeypatch, verify, "read_again", act)
    report = two.look()
    assert (report.missing, list(report.unreachable), report.exit_status) == (1, ["eu"], 1)


def test_a_cluster_that_is_back_before_the_wait_ends_is_compared_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.fill((two.a, two.b))
    two.a.subscribe("s", Position(3, 3))
    two.b.subscribe("s", Position(3, 0))
    looks = iter(range(100))

    def act() -> None:
        number = next(looks)
        two.eu.refuse = {"topics": 503} if number == 0 else {}
        if number == 2:
            two.b.subscriptions[0]["mark_delete"] = "3:3"

    before(monkeypatch, verify, "read_again", act)
    report = two.look()
    assert (report.ack_mismatch, dict(report.unreachable), report.exit_status) == (0, {}, 0)


def test_what_a_destination_that_went_away_does_not_have_is_missing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.fill((two.a, two.b), copied=2)
    two.a.cut = {"high_water": {"us": [7, "3:4"]}}
    two.b.cut = {"high_water": {"us": [7, "3:1"]}}
    before(monkeypatch, verify._Verification, "_stalled_pairs", two.stop_eu)
    report = two.look()
    assert (report.missing, report.behind, list(report.unreachable), report.exit_status) == (3, 0, ["eu"], 1)


def test_a_cluster_that_went_away_before_its_exact_mapping_was_asked_is_named(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.fill((two.a, two.b))
    before(monkeypatch, VerifyPlane, "place", two.stop_eu)
    report = two.look()
    assert (report.clean, list(report.unreachable), report.exit_status) == (True, ["eu"], 3)
