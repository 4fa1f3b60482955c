"""Benchmark groups ``many``, ``many-long``, ``many-idle``, ``live`` and ``reconnect``, a small part of each, with real
clients and brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from peers.client_programs import need

from bench import connections, live, many
from bench.brokers import PEER
from bench.measurement import Measurement
from replicator.drills.peers.pulsar.broker import missing

SCALE = 0.01


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    need("go")
    if (why := missing()) is not None:
        pytest.skip(why)
    data_dir.mkdir(mode=0o755)
    monkeypatch.setattr(many, "RUNS", 1)
    monkeypatch.setattr(many, "TOPICS", (1, 10))
    monkeypatch.setattr(many, "WARMING_RUNS", 0)
    monkeypatch.setattr(many, "PYTHON_TOPICS", 10)
    monkeypatch.setattr(many, "SPREAD_TOPICS", (10,))
    monkeypatch.setattr(many, "LONG_PARTS", 2)
    monkeypatch.setattr(many, "IDLE_SECONDS", 5.0)


def units(measured: list[Measurement]) -> dict[str, str]:
    """Return the unit of each figure, once all have been seen to be beside the broker's."""
    for each in measured:
        assert each.peer == PEER, each.name
        if not each.name.endswith("-cpu"):  # a hundred rounds may be less than a tick
            assert each.value > 0, each.name
            assert each.peer_value, each.name
    return {each.name: each.unit for each in measured}


def test_many_topics_are_measured_beside_a_broker_with_both_official_clients(data_dir: Path) -> None:
    said: list[str] = []
    measured = asyncio.run(many.measure_many(data_dir, said.append, SCALE))
    found = units(measured)
    for topics in (1, 10):
        for work in many.WORKS:
            assert found[f"many/{topics}/{work}"] == "rounds/s"
            assert found[f"many/{topics}/{work}/broker-cpu"] == "ms"
    assert found["many/10/spread"] == "msg/s"
    assert found["many/consume/100B/batched"] == "msg/s"
    assert found["many/python/10/acknowledge/p50"] == "ms"
    assert {f"many/batches/{each.name}" for each in many.FAN_OUTS} < set(found)
    assert "synced" in said[0]
    assert len(many.markdown(measured).splitlines()) == 4 + sum(unit.endswith("/s") for unit in found.values())


def test_parts_of_a_long_run_are_measured_one_after_the_other(data_dir: Path) -> None:
    found = units(asyncio.run(many.measure_many_long(data_dir, print, SCALE)))
    assert found["many-long/200/acknowledge/last-of-first"] == "times"


def test_topics_with_little_to_do_are_measured_for_some_seconds(data_dir: Path) -> None:
    assert units(asyncio.run(many.measure_many_idle(data_dir, print, SCALE)))["many-idle/10k/p50"] == "ms"


def test_clients_that_connect_at_once_are_measured_from_more_than_one_address(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Go program fails if a client is not served in one of the runs, or loses its connection later."""
    monkeypatch.setattr(connections, "RUNS", 2)
    measured = asyncio.run(connections.measure_reconnect(data_dir, print, 0.015))
    found = units(measured)
    assert found == {
        "reconnect/10k": "clients/s",
        "reconnect/10k/p50": "ms",
        "reconnect/10k/p99": "ms",
        "reconnect/10k/broker-cpu": "ms",
        "reconnect/10k/client-cpu": "cores",
    }
    assert {len(each.runs) for each in measured} == {2}


def test_replicated_subscriptions_of_linked_clusters_are_measured_beside_two_brokers(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ROWS", (live.Row(10, 100),))
    monkeypatch.setattr(live, "WARMING", live.Row(10, 100))
    monkeypatch.setattr(live, "MESH", live.Row(10, 100, clusters=3))
    monkeypatch.setattr(live, "RUNS", 1)
    measured = asyncio.run(live.measure_live(data_dir, print, 0.25))
    found = {each.name: each for each in measured}
    assert found["live/10x100/cores"].peer == PEER
    for name in ("live/10x100", "live/mesh-3/10x100"):
        assert found[f"{name}/rate"].value > 0
        assert found[f"{name}/cores-a"].value > 0
        assert found[f"{name}/p50"].value > 0
        assert found[f"{name}/markers"].value > 0
        assert found[f"{name}/link-bytes"].value >= 1.0
    assert len(live.live_markdown(measured).splitlines()) == 4
