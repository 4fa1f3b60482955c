from __future__ import annotations

from typing import Any

from replicator.pipeline.live.supervision import (
    HEALTHY_SECONDS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    Start,
    Stop,
    Supervisor,
)


def link(key: str = "a>b", **fields: Any) -> dict[str, Any]:
    return {"key": key, "address": "there:1", "state": "idle", "detail": "", **fields}


def started(actions: list[Start | Stop]) -> list[str]:
    return [action.key for action in actions if isinstance(action, Start)]


def test_a_listed_link_is_started_once() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link(), link("a>c")])
    assert started(supervisor.actions(0)) == ["a>b", "a>c"]
    supervisor.on_links([link(), link("a>c")])
    assert supervisor.actions(1) == []


def test_a_link_that_is_not_listed_any_more_is_stopped() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link()])
    supervisor.actions(0)
    supervisor.on_links([])
    assert supervisor.actions(1) == [Stop("a>b")]
    assert supervisor.actions(2) == []


def test_a_link_that_is_listed_otherwise_is_stopped_and_started_as_it_is_now() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link()])
    supervisor.actions(0)
    supervisor.on_links([link(address="elsewhere:1")])
    stop, start = supervisor.actions(1)
    assert stop == Stop("a>b")
    assert isinstance(start, Start)
    assert start.link["address"] == "elsewhere:1"


def test_a_link_whose_state_changes_is_left_alone() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link()])
    supervisor.actions(0)
    supervisor.on_links([link(state="copying", detail="something")])
    assert supervisor.actions(1) == []


def test_a_query_that_fails_waits_twice_as_long_each_time_up_to_a_limit_and_begins_anew_after_a_healthy_run() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link()])
    now = 0.0
    supervisor.actions(now)
    for failure in range(12):
        supervisor.on_ended("a>b", now)
        pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2**failure)
        assert supervisor.actions(now + pause - 0.01) == []
        now += pause
        assert started(supervisor.actions(now)) == ["a>b"]
    now += HEALTHY_SECONDS
    supervisor.on_ended("a>b", now)
    assert started(supervisor.actions(now + PAUSE_SECONDS_MIN)) == ["a>b"]


def test_a_failed_link_that_is_listed_otherwise_does_not_wait() -> None:
    supervisor = Supervisor()
    supervisor.on_links([link(where="broken")])
    supervisor.actions(0)
    supervisor.on_ended("a>b", 0)
    supervisor.on_links([link(where="mended")])
    assert started(supervisor.actions(0)) == ["a>b"]
