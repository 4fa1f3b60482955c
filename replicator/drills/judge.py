"""The verdict: what keeps a drill from passing, read from its report. Pure.

What is always judged is in :func:`failures`; what only some scenarios are judged by
(:class:`~replicator.drills.scenarios.catalog.OptionalCheck`) compares the phases "before" and "during". Where workers
end their own tasks at random, rates are not compared (ADR 0043).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from replicator.drills.scenarios.catalog import BEFORE, DURING, OptionalCheck
from replicator.index.drill_reports import EXACT

RATE_SHARE_MIN: Final = 0.75
"""Smallest share of the rate before that counts as the same rate, even on a busy machine."""
LAG_FACTOR_MAX: Final = 2.0
LAG_SLACK_MS: Final = 250.0
"""Growth of a lag that is always allowed, because lags of milliseconds double by chance."""

Report = Mapping[str, Any]


def failures(report: Report) -> Iterator[str]:
    """Yield the reasons for which the drill does not pass, each in one sentence."""
    yield from _of_messages(report)
    yield from _of_disks(report)
    yield from _of_repeats(report)
    if "verify" not in report.get("lacks", ()):
        yield from _of_verify(report)
    if report.get("unsettled"):
        yield f"the clusters had not settled in time: {report['unsettled']}"
    for cluster, count in (report.get("worker_tracebacks") or {}).items():
        if count:
            yield f"the worker of {cluster} logged {count:,} unexpected errors; see its log"
    for name in report.get("judged", ()):
        match OptionalCheck[name]:
            case OptionalCheck.TRAFFIC_GOES_ON | OptionalCheck.SYNC_GOES_ON if report.get("tasks_ended"):
                pass
            case OptionalCheck.TRAFFIC_GOES_ON:
                yield from _of_traffic(report)
            case OptionalCheck.SYNC_GOES_ON:
                yield from _of_sync(report)
            case OptionalCheck.DATABASES_BACK:
                yield from _of_databases(report)


def _of_messages(report: Report) -> Iterator[str]:
    if report["confirmed"] == 0:
        yield "no message was confirmed, so nothing was tried"
    unconfirmed = report["published"] - report["confirmed"]
    if unconfirmed > 0:
        yield f"{unconfirmed:,} messages were sent and never confirmed"
    for each in report["subscriptions"]:
        if lost := each["lost"] - each.get("lost_with_disk", 0):
            yield f"{lost:,} confirmed messages never reached subscription {each['name']}"
        if each["out_of_order"]:
            yield f"{each['out_of_order']:,} messages reached {each['name']} out of order by key within their origin"
    if report["late"] > report["rpo_messages"]:
        yield f"{report['late']:,} messages came late, more than the {report['rpo_messages']:,} that were stranded"


def _of_disks(report: Report) -> Iterator[str]:
    for each in report.get("lost_disks") or ():
        if each["state"] != "serving":
            yield f"{each['cluster']} lost its disk, and its worker says that it is {each['state']}"
        if each.get("differing_messages"):
            yield (
                f"{each['cluster']} lost {each['lost_messages']:,} messages with its disk that no other cluster had, "
                f"and its status names {each['named_messages']:,} as lost; {each['differing_messages']:,} of these are "
                "not in both"
            )
        for loss in each["named_losses"]:
            yield f"{each['cluster']} could not take back what another cluster had: {loss}"


def _of_repeats(report: Report) -> Iterator[str]:
    exact = report.get("sync", EXACT) == EXACT
    in_a_second = not report.get("tasks_ended")  # else whoever tells of acknowledgements may be gone for longer
    for each in report["subscriptions"]:
        # Mark-delete positions do not show acknowledgements beyond them: such messages are repeated, and not judged.
        if in_a_second and (exact or each["cumulative"]) and each["repeated_acked_over_1s_before_kill"]:
            yield (
                f"{each['repeated_acked_over_1s_before_kill']:,} messages were repeated to {each['name']} although it "
                "had acknowledged them more than 1 s before the cut"
            )
        if exact and each["repeated_acked_before_planned"]:
            yield (
                f"{each['repeated_acked_before_planned']:,} messages were repeated to {each['name']} although it had "
                "acknowledged them before a planned failover was begun"
            )
    for each in report["failovers"]:
        if each["kind"] == "planned" and each["rpo_messages"]:
            yield f"{each['rpo_messages']:,} messages were stranded at {each['cluster']} by a planned failover"


def _of_verify(report: Report) -> Iterator[str]:
    for fault, count in report["verify"].items():
        if count is None:
            yield f"verify did not report {fault!r}"
        elif count:
            yield f"verify found {count:,} {fault}"


def _phase(report: Report, name: str) -> Mapping[str, Any] | None:
    return next((phase for phase in report["phases"] if phase["name"] == name), None)


def _of_traffic(report: Report) -> Iterator[str]:
    before, during = _phase(report, BEFORE), _phase(report, DURING)
    if before is None or during is None:
        yield "the phases before and during the disturbance were not recorded"
        return
    yield from _slower("messages confirmed", before["confirmed_per_second"], during["confirmed_per_second"])


def _of_sync(report: Report) -> Iterator[str]:
    """Judge the sync of the pair: messages are copied, and acknowledgements told, at the rate of before, and workers go
    on with updates and mappings.

    Updates and mappings have no rate to compare: a worker decides their number by how busy it is. Updates go from the
    primary, where the consumers are, to the secondary.
    """
    before, during = _phase(report, BEFORE), _phase(report, DURING)
    if before is None or during is None:
        yield "the phases before and during the loss were not recorded"
        return
    yield from _slower("messages copied", before["copied_per_second"], during["copied_per_second"])
    yield from _slower("acknowledgements told", _told_per_second(before), _told_per_second(during))
    primary, secondary = report["pair"]
    counted = {"updates_sent": [primary], "updates_applied": [secondary], "mappings": [primary, secondary]}
    for counter, clusters in counted.items():
        for cluster in clusters:
            now = during["counts_per_second"].get(counter, {}).get(cluster)
            if now is None:
                yield f"{counter} of {cluster} was not counted"
            elif now == 0:
                yield f"{counter} at {cluster} stood still during the loss"
    for lag in ("copy_lag_ms", "sync_lag_ms"):
        was, now = before[lag]["p99"], during[lag]["p99"]
        if was is None or now is None:
            yield f"{lag} was not measured before and during the loss"
        elif now > was * LAG_FACTOR_MAX + LAG_SLACK_MS:
            yield f"{lag} p99 was {was:,.0f} ms before and {now:,.0f} ms during the loss"


def _told_per_second(phase: Mapping[str, Any]) -> float:
    return float(phase["sync_lag_ms"]["samples"] / phase["seconds"]) if phase["seconds"] > 0 else 0.0


def _slower(what: str, before: float, during: float) -> Iterator[str]:
    if during < before * RATE_SHARE_MIN:
        yield f"{what} went on at {during:,.1f} a second, {before:,.1f} before: not the same rate"


def _of_databases(report: Report) -> Iterator[str]:
    for cluster, state in report["databases"].items():
        if state != "up":
            yield f"the database of {cluster} is {state} at the end"
    if not report["snapshot_mappings"]:
        yield "the databases hold no mappings at the end"
