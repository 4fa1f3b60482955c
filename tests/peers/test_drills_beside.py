"""A small drill of workers beside real Apache Pulsar brokers, and of one cluster of each kind: nothing is lost, order
is kept, and what another cluster knew to be acknowledged is not delivered there again.

How fast acknowledgements travel is measured by the drill, and not asserted: on a machine that does other things too,
each request to a broker takes some tenths of a second, and a drill judges what was acknowledged 1 s before the kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from peers_support import require_pulsar
from rich.console import Console

from replicator.drills import drill as drill_module
from replicator.drills.deliveries import Deliveries
from replicator.drills.drill import run_drill
from replicator.drills.jobs import DrillOptions
from replicator.drills.measures import measure
from replicator.drills.observations import Observations
from replicator.drills.scenarios.run import FIRST_SHARE_MAX
from replicator.drills.timeline import Timeline

pytest.importorskip("pulsar")

MESSAGES: Final = 800
RATE: Final = 50
CUMULATIVE: Final = {"drill-exclusive"}
INDIVIDUAL: Final = {"drill-shared", "drill-key-shared", "drill-failover"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "beside"), [("pulsar", {"us-east", "eu-west"}), ("mixed", {"us-east"})])
def test_a_drill_beside_real_brokers_loses_nothing_and_begins_when_clusters_are_in_step(
    kind: str, beside: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_pulsar()
    kept: list[Observations] = []

    def measured(observations: Observations) -> Any:
        kept.append(observations)
        return measure(observations)

    monkeypatch.setattr(drill_module, "measure", measured)
    out = tmp_path / "out"
    options = DrillOptions(MESSAGES, kind=kind, rate=RATE, out_dir=out, quiet=True)
    report, _ = run_drill(options, Console(quiet=True))
    assert [each for each in report["failures"] if "more than 1 s before the cut" not in each] == []
    assert report["published"] == report["confirmed"] == report["consumed_unique"] == MESSAGES
    assert (report["lost"], report["out_of_order"]) == (0, 0)
    assert report["late"] <= report["rpo_messages"] < MESSAGES / 4
    subscriptions = {each["name"]: each for each in report["subscriptions"]}
    assert {name for name, each in subscriptions.items() if each["cumulative"]} == CUMULATIVE
    assert {name for name, each in subscriptions.items() if not each["cumulative"]} == INDIVIDUAL
    (seen,) = kept
    timeline = Timeline(seen)
    for code, each in enumerate(report["subscriptions"]):
        # Of the first messages all was acknowledged everywhere before anything else was published.
        deliveries = Deliveries(timeline, code)
        there = deliveries.repeat_id[deliveries.repeat_time_s > timeline.failover_s[0]]
        assert not (there < MESSAGES * FIRST_SHARE_MAX).any(), each
    assert report["copy_lag_ms"]["samples"] > 0
    assert report["worker_tracebacks"] == {"us-east": 0, "eu-west": 0}
    assert {name for name, shown in report["kinds"].items() if "broker" in shown} == beside
    assert {each["cluster"]: each["to"] for each in report["kills"]} == {"us-east": "eu-west"}
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(out) in " ".join(each.info["cmdline"] or ())]
