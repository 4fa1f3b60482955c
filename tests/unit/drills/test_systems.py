"""Drills of other systems: refusals before anything starts, and a report that names missing measures."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.drills.errors import DrillError
from replicator.drills.jobs import DrillOptions
from replicator.drills.judge import failures
from replicator.drills.peers import jvm
from replicator.drills.peers.jvm import PeerFailed
from replicator.drills.peers.together import started_together
from replicator.drills.systems.catalog import SYSTEMS, plan
from replicator.drills.systems.mirrormaker2 import MIRRORMAKER2
from replicator.drills.systems.peer import LACKS, PeerKind, plan_peer
from replicator.drills.systems.pulsar_geo import PULSAR_GEO
from replicator.index.drill_reports import comparison
from replicator.running.extras import ExtraMissing

OPTIONS = DrillOptions(messages=1000)
PEERS = (PULSAR_GEO, MIRRORMAKER2)


def runs_here(kind: PeerKind) -> PeerKind:
    return replace(kind, check=lambda: None)


def test_each_system_has_a_name_and_one_that_is_not_known_is_refused_with_the_list() -> None:
    assert list(SYSTEMS) == ["replicator", "pulsar-geo", "mirrormaker2"]
    with pytest.raises(DrillError, match="'nats' is not known; there are: replicator, pulsar-geo, mirrormaker2"):
        plan(replace(OPTIONS, system="nats"))


@pytest.mark.parametrize("kind", PEERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"topology_file": Path("t.yaml")}, "--topology"),
        ({"against_file": Path("t.yaml")}, "--against"),
        ({"sync": "both"}, "--sync"),
        ({"engine": "embedded"}, "--engine"),
        ({"links": "one-way"}, "--links"),
        ({"client": "own"}, "--client"),
        ({"secure": True}, "--secure"),
        ({"topics": 2}, "--topics"),
        ({"scenario": "planned"}, "no --scenario planned; give kill-primary"),
        ({"scenario": "all"}, "no --scenario all; give kill-primary"),
    ],
)
def test_what_only_the_replicator_has_is_refused(kind: PeerKind, wrong: dict[str, Any], option: str) -> None:
    with pytest.raises(DrillError, match=option):
        plan_peer(runs_here(kind), replace(OPTIONS, **wrong))


def test_a_system_has_its_own_subscriptions() -> None:
    (job,), _ = plan_peer(runs_here(PULSAR_GEO), OPTIONS)
    assert [each.kind for each in job.subscriptions] == ["exclusive", "shared", "key-shared", "failover", "batch-index"]
    (job,), _ = plan_peer(runs_here(MIRRORMAKER2), OPTIONS)
    assert [each.kind for each in job.subscriptions] == ["exclusive", "failover"]
    (job,), _ = plan_peer(runs_here(MIRRORMAKER2), replace(OPTIONS, subscriptions="failover"))
    assert [each.kind for each in job.subscriptions] == ["failover"]
    with pytest.raises(DrillError, match="mirrormaker2 has no shared subscription; there are: exclusive, failover"):
        plan_peer(runs_here(MIRRORMAKER2), replace(OPTIONS, subscriptions="shared,failover"))


@pytest.mark.parametrize("kind", PEERS, ids=lambda kind: kind.name)
def test_without_java_or_jars_one_line_says_what_to_do(
    kind: PeerKind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DrillError) as missing:
        kind.check()
    if jvm.find_java() is not None:
        assert "python -m replicator.drills.peers" in str(missing.value)
    assert f"--system {kind.name}: " in str(missing.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(DrillError, match="needs Java 17 or newer"):
        kind.check()
    assert "\n" not in str(missing.value)


def test_without_its_client_a_system_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from replicator.drills.traffic import kafka_client

    monkeypatch.setattr("replicator.running.extras.find_spec", lambda _package: None)
    with pytest.raises(ExtraMissing, match=r"--system mirrormaker2 needs the extra kafka.*confluent_kafka"):
        kafka_client.load("--system mirrormaker2")


def test_runs_of_other_configurations_have_another_digest() -> None:
    (job,), _ = plan_peer(runs_here(PULSAR_GEO), OPTIONS)
    (other,), _ = plan_peer(replace(runs_here(PULSAR_GEO), configuration={}), OPTIONS)
    assert len({job.digest, other.digest, plan_peer(runs_here(MIRRORMAKER2), OPTIONS)[0][0].digest}) == 3


def report(**fields: Any) -> dict[str, Any]:
    """Return the report of a passed drill, with the fields that the judge and comparisons read."""
    passed: dict[str, Any] = {
        "confirmed": 10, "published": 10, "late": 0, "rpo_messages": 0, "failovers": [], "subscriptions": [],
        "snapshot_mappings": None, "subscription_updates": None, "worker_tracebacks": None, "passed": True,
        "verify": {"missing": None},
    }  # fmt: skip
    return passed | fields


def test_what_a_system_does_not_have_is_not_judged_and_is_none_beside_a_system_that_has_it() -> None:
    peer = report(lacks=list(LACKS), system="pulsar-geo")
    assert list(failures(peer)) == []
    assert list(failures(report())) == ["verify did not report 'missing'"]
    rows = {
        figure: (one, other)
        for figure, one, other in comparison((peer, report(system="replicator", snapshot_mappings=7)))
    }
    assert rows["snapshot_mappings"] == ("none", 7)
    assert rows["system"] == ("pulsar-geo", "replicator")
    assert rows["rpo_messages"] == (0, 0)


def test_programs_that_still_start_when_a_drill_is_stopped_or_another_fails_are_waited_for() -> None:
    under_way, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> None:
        under_way.set()
        assert go_on.wait(60)
        ended.append("slow")

    def fails() -> None:
        assert under_way.wait(60)
        go_on.set()
        raise PeerFailed("no port")

    with pytest.raises(PeerFailed, match="no port"):
        asyncio.run(started_together(slow, fails))
    assert ended == ["slow"]

    async def stopped() -> None:
        starting = asyncio.ensure_future(started_together(slow))
        await asyncio.to_thread(under_way.wait, 60)
        starting.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not starting.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting

    under_way.clear()
    go_on.clear()
    ended.clear()
    asyncio.run(stopped())
    assert ended == ["slow"]
