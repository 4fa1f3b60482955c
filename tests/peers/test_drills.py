"""A small drill of each other system: its report adds up. How good the system is, is not asserted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest
from peers_support import require_kafka, require_pulsar
from rich.console import Console

from replicator.drills import drill as drill_module
from replicator.drills.drill import run_drill
from replicator.drills.jobs import DrillOptions
from replicator.drills.measures import measure
from replicator.drills.observations import Column, Observations

pytest.importorskip("pulsar")
pytest.importorskip("confluent_kafka")

MESSAGES: Final = 1200
RATE: Final = 200
SYSTEMS: Final = {"pulsar-geo": require_pulsar, "mirrormaker2": require_kafka}
pytestmark = pytest.mark.timeout(400)
"""Limit for a busy machine: each test starts Java programs five times, and may wait a minute for the end state."""


@dataclass(frozen=True)
class Ran:
    report: Mapping[str, Any]
    seen: Observations
    out: Path


@pytest.fixture(params=SYSTEMS)
def ran(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """A drill that ran, with what was recorded in it."""
    SYSTEMS[request.param]()
    kept: list[Observations] = []

    def measured(observations: Observations) -> Any:
        kept.append(observations)
        return measure(observations)

    monkeypatch.setattr(drill_module, "measure", measured)
    options = DrillOptions(MESSAGES, system=request.param, rate=RATE, out_dir=tmp_path / "out", quiet=True)
    report, _ = run_drill(options, Console(quiet=True))
    (seen,) = kept
    return Ran(report, seen, tmp_path / "out")


def of(ran: Ran, subscription: int) -> Column:
    """Return the ids of all deliveries to a subscription."""
    receipts = ran.seen.receipts
    return receipts.column("id")[receipts.column("subscription") == subscription]


def test_the_report_of_another_system_adds_up_and_nothing_of_it_is_left(ran: Ran) -> None:
    report = ran.report
    assert report["published"] == report["confirmed"] == MESSAGES, report["failures"]
    confirmed = ran.seen.confirms.column("id")
    assert sorted(confirmed) == list(range(MESSAGES))
    for code, each in enumerate(report["subscriptions"]):
        delivered = of(ran, code)
        # What was published is what was delivered and what was lost.
        assert each["consumed_unique"] + each["lost"] == report["published"], each
        assert set(delivered) | set(np.setdiff1d(confirmed, delivered)) == set(range(MESSAGES))
        # A delivery is a message's first, or a repeat.
        assert each["deliveries"] == len(delivered) == len(np.unique(delivered)) + each["repeated"]
        assert each["repeated_acked_over_1s_before_kill"] <= each["repeated"]
        assert each["acknowledged"] <= each["consumed_unique"]
    assert report["lost"] == sum(each["lost"] for each in report["subscriptions"])
    assert report["repeated"] == sum(each["repeated"] for each in report["subscriptions"])
    # Everything was at one cluster, then at the other; what was stranded was confirmed at the first.
    (kill,) = report["kills"]
    at_first = ran.seen.confirms.column("cluster") == 0
    assert (kill["cluster"], kill["to"]) == ("us-east", "eu-west")
    assert 0 < at_first.sum() < MESSAGES
    copies, returned = ran.seen.copies, ran.seen.returns.column("time_s")
    in_time = (copies.column("cluster") == 1) & (copies.column("time_s") < (returned[0] if len(returned) else np.inf))
    late_or_never = np.setdiff1d(confirmed[at_first], copies.column("id")[in_time])
    assert len(late_or_never) <= report["rpo_messages"] == kill["rpo_messages"] <= at_first.sum()
    assert report["rto_seconds"] > 0
    assert report["copy_lag_ms"]["samples"] > 0
    # What a system does not have is none, and not 0.
    assert report["snapshot_mappings"] is report["subscription_updates"] is report["worker_tracebacks"] is None
    assert set(report["verify"].values()) == {None}
    assert report["configuration"]["versions"]
    page = (ran.out / "report.html").read_text()
    assert "Configuration" in page
    assert not (ran.out / "data").exists()
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if str(ran.out) in " ".join(each.info["cmdline"] or ())
    ]
