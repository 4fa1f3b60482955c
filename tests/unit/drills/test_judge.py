"""The verdict of a drill by its report alone."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.drills.judge import failures


def subscription(name: str = "drill-shared", *, cumulative: bool = False, **changes: Any) -> dict[str, Any]:
    counts = ("lost", "out_of_order", "repeated_acked_over_1s_before_kill", "repeated_acked_before_planned")
    return {"name": name, "cumulative": cumulative} | dict.fromkeys(counts, 0) | changes


def phase(name: str, *, updates: float = 10, mappings: float = 4, confirmed: float = 1000, **others: float) -> Any:
    back = others.get("back", 0)
    return {
        "name": name,
        "confirmed_per_second": confirmed,
        "seconds": 8.0,
        "copied_per_second": confirmed,
        "copy_lag_ms": {"p50": 5, "p99": others.get("copy", 20)},
        "sync_lag_ms": {"p50": 5, "p99": others.get("sync", 150), "samples": others.get("told", 40_000)},
        "counts_per_second": {
            "updates_sent": {"a": updates, "b": back},
            "updates_applied": {"a": back, "b": others.get("applied", updates)},
            "mappings": {"a": mappings, "b": mappings},
        },
    }


def report(**changes: Any) -> dict[str, Any]:
    return {
        "published": 10,
        "confirmed": 10,
        "late": 0,
        "rpo_messages": 0,
        "sync": "exact",
        "subscriptions": [subscription()],
        "failovers": [],
        "phases": [phase("before"), phase("during", mappings=2)],
        "verify": {"missing": 0},
        "clusters": ["a", "b", "c"],
        "pair": ["a", "b"],
        "databases": {"a": "up", "b": "up"},
        "snapshot_mappings": 3,
    } | changes


def test_a_clean_report_has_nothing_against_it() -> None:
    assert list(failures(report(judged=["TRAFFIC_GOES_ON", "SYNC_GOES_ON", "DATABASES_BACK"]))) == []


@pytest.mark.parametrize("field", ["repeated_acked_over_1s_before_kill", "repeated_acked_before_planned"])
def test_with_exact_sync_no_subscription_may_get_again_what_it_had_acknowledged(field: str) -> None:
    found = list(failures(report(subscriptions=[subscription(**{field: 7})])))
    assert len(found) == 1
    assert found[0].startswith("7 messages were repeated to drill-shared")


def test_with_mark_delete_sync_only_cumulative_subscriptions_are_judged_so() -> None:
    repeated = {"repeated_acked_over_1s_before_kill": 7000, "repeated_acked_before_planned": 7000}
    shown = report(sync="mark-delete", subscriptions=[subscription(**repeated)])
    assert list(failures(shown)) == []
    shown["subscriptions"].append(subscription("drill-exclusive", cumulative=True, **repeated))
    assert ["drill-exclusive" in failure for failure in failures(shown)] == [True]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"confirmed": 0, "published": 0}, "nothing was tried"),
        ({"confirmed": 9}, "1 messages were sent and never confirmed"),
        ({"subscriptions": [subscription(lost=3)]}, "3 confirmed messages never reached"),
        ({"subscriptions": [subscription(out_of_order=3)]}, "out of order"),
        ({"late": 2, "rpo_messages": 1}, "came late"),
        ({"verify": {"missing": None}}, "did not report"),
        ({"verify": {"missing": 4}}, "verify found 4 missing"),
        ({"worker_tracebacks": {"a": 0, "b": 2}}, "the worker of b logged 2 unexpected errors"),
        ({"unsettled": "a backlog"}, "not settled in time: a backlog"),
        ({"failovers": [{"kind": "planned", "cluster": "a", "rpo_messages": 2}]}, "by a planned failover"),
        ({"judged": ["DATABASES_BACK"], "databases": {"a": "down"}}, "the database of a is down"),
        ({"judged": ["DATABASES_BACK"], "snapshot_mappings": 0}, "hold no mappings"),
        ({"judged": ["TRAFFIC_GOES_ON"], "phases": []}, "were not recorded"),
        (
            {"judged": ["TRAFFIC_GOES_ON"], "phases": [phase("before"), phase("during", confirmed=700)]},
            "messages confirmed went on at 700.0 a second, 1,000.0 before",
        ),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], named: str) -> None:
    found = list(failures(report(**changes)))
    assert len([failure for failure in found if named in failure]) == 1, found


@pytest.mark.parametrize(
    ("during", "named"),
    [
        (phase("during", mappings=0), "mappings at a stood still"),
        (phase("during", updates=0, applied=10), "updates_sent at a stood still"),
        (phase("during", applied=0), "updates_applied at b stood still"),
        (phase("during", told=29_000), "acknowledgements told went on at 3,625.0 a second, 5,000.0 before"),
        (phase("during", mappings=2, sync=600), "sync_lag_ms p99"),
        (phase("during", mappings=2, copy=300), "copy_lag_ms p99"),
    ],
)
def test_when_one_of_three_is_lost_the_others_go_on_at_the_rate_and_the_lags_of_before(during: Any, named: str) -> None:
    found = list(failures(report(judged=["SYNC_GOES_ON"], phases=[phase("before"), during])))
    assert any(named in failure for failure in found), found


def test_how_many_updates_and_mappings_a_worker_needs_is_its_own_choice() -> None:
    """A busy worker gathers more for each of them."""
    phases = [phase("before"), phase("during", mappings=0.5, updates=3)]
    assert list(failures(report(judged=["SYNC_GOES_ON"], phases=phases))) == []


def test_what_goes_back_to_where_the_consumers_are_has_no_rate() -> None:
    """After a link is made anew, each subscription is told of only once."""
    phases = [phase("before", back=1.3), phase("during", mappings=2)]
    assert list(failures(report(judged=["SYNC_GOES_ON"], phases=phases))) == []


def test_rates_are_not_compared_where_workers_end_their_own_tasks_and_all_else_is() -> None:
    phases = [phase("before"), phase("during", confirmed=1, mappings=0, updates=0, sync=30_000)]
    ended = report(judged=["TRAFFIC_GOES_ON", "SYNC_GOES_ON", "DATABASES_BACK"], phases=phases, tasks_ended="11:10")
    assert list(failures(ended)) == []
    assert len(list(failures(ended | {"tasks_ended": None}))) > 1
    assert len(list(failures(ended | {"subscriptions": [subscription(lost=3)], "databases": {"a": "down"}}))) == 2


def test_the_second_in_which_acknowledgements_travel_is_not_judged_where_workers_end_their_own_tasks() -> None:
    after_kill = report(subscriptions=[subscription(repeated_acked_over_1s_before_kill=7)])
    assert len(list(failures(after_kill))) == 1
    assert list(failures(after_kill | {"tasks_ended": "13:5"})) == []
    # A planned switch waits for all of them, however long that takes.
    after_planned = report(subscriptions=[subscription(repeated_acked_before_planned=7)], tasks_ended="13:5")
    assert len(list(failures(after_planned))) == 1


def test_an_unplanned_failover_may_strand_messages() -> None:
    assert list(failures(report(failovers=[{"kind": "kill", "cluster": "a", "rpo_messages": 5}], rpo_messages=5))) == []
