"""A drill is over when nothing is left that is expected: over one-way links that is less."""

from __future__ import annotations

from typing import Any

from replicator.drills.scenarios.settling import unsettled_work
from replicator.topology import Cluster, Link, Topology

TOPIC = "persistent://public/drill/t"


def topology(*links: str) -> Topology:
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}"})
        for n, name in enumerate("ab")
    )
    return Topology(clusters, tuple(Link(*link) for link in links))


def status(a: str, b: str | None, backlog: int = 0, names: tuple[str, ...] = ("s",)) -> dict[str, Any]:
    """Return the status of a worker that has the two origins up to these positions."""
    high_water = {"a": a} if b is None else {"a": a, "b": b}
    subscriptions = [{"name": name, "backlog_entries": backlog} for name in names]
    return {"topics": [{"name": TOPIC, "high_water": high_water, "subscriptions": subscriptions}]}


def left(links: tuple[str, ...], a: dict[str, Any], b: dict[str, Any], serving: str = "b") -> str | None:
    return unsettled_work(topology(*links), [TOPIC], ["s"], serving, {"a": a, "b": b})


BOTH = ("ab", "ba")


def test_both_ways_everything_is_everywhere_and_settled() -> None:
    assert left(BOTH, status("1:5", "2:7"), status("1:5", "2:7")) is None
    assert left(BOTH, status("1:5", "2:6"), status("1:5", "2:7")) == (
        "messages of b are not all copied to a: 2:7 and 2:6"
    )
    assert left(BOTH, status("1:5", "2:7", backlog=3), status("1:5", "2:7")) == "s has a backlog of 3 entries at a"
    assert left(BOTH, status("1:5", "2:7", names=()), status("1:5", "2:7")) == "s is missing at a"


def test_over_a_one_way_link_nothing_is_expected_to_come_back() -> None:
    assert left(("ab",), status("1:5", None, backlog=9), status("1:5", "2:7")) is None
    assert left(("ab",), status("1:5", None), status("1:4", "2:7")) is not None
    assert left(("ab",), status("1:5", None), status("1:5", "2:7", backlog=1)) == "s has a backlog of 1 entries at b"


def test_a_worker_that_does_not_answer_or_has_no_topic_is_not_settled() -> None:
    assert left(BOTH, {"error": "refused"}, status("1:5", None)) == "a: refused"
    assert left(BOTH, status("1:5", None), {"topics": []}) == f"b has no topic {TOPIC}"


def test_databases_that_were_away_are_waited_for() -> None:
    def of(state: str) -> dict[str, Any]:
        return status("1:5", "2:7") | {"database": {"state": state, "detail": "no answer"}}

    def left_with(first: str) -> str | None:
        statuses = {"a": of(first), "b": of("up")}
        return unsettled_work(topology(*BOTH), [TOPIC], ["s"], "b", statuses, databases=True)

    assert left_with("up") is None
    assert left_with("down") == "the database of a is down: no answer"
