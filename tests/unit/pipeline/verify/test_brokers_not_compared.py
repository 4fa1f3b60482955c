"""Verify at brokers: what cannot be compared is named, and what a bridge that stands still does not bring is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wire_worker import ScriptedTopic, WireWorker, single_entry

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.shown import TopicInternals
from replicator.apache.stamps import Identity
from replicator.pipeline.verify.brokers.acknowledged import acked_at_broker
from replicator.pipeline.verify.brokers.acknowledgements import States, compare_acknowledgements
from replicator.pipeline.verify.brokers.entry_log import Content, EntryLog, EntryRows
from replicator.pipeline.verify.brokers.found import BrokersFound
from replicator.pipeline.verify.brokers.verification import _Verification
from replicator.pipeline.verify.cluster_state import read_picture
from replicator.pipeline.verify.comparison.scope import ReplicaState
from replicator.topology import load_topology
from snapshots.position import Position

TOPIC = "persistent://public/default/t"
TOPOLOGY = """
clusters:
  a:
    kind: pulsar
    address: '127.0.0.1:1'
    data: ./a
    apache: {service_url: 'pulsar://127.0.0.1:2', admin_url: 'http://127.0.0.1:3'}
  b: {address: '127.0.0.1:4', data: ./b}
links: [{between: [a, b]}]
"""


def log_at_brokers(entries: int) -> EntryLog:
    rows = EntryRows()
    for number in range(entries):
        rows.add(Identity("a.pulsar", 7, Position(1, number)), Position(1, number), Content(None, number, 1, 0))
    return rows.log()


@dataclass
class ScriptedBrokers:
    """Brokers whose topic has ten entries."""

    cluster: str = "a"

    async def internals(self, topic: str) -> TopicInternals:
        return TopicInternals(Position(1, 9), 0, "", {}, {1: 9}, frozenset({1}), 10)

    async def read(self, *_: object) -> tuple[EntryLog, Position]:
        return log_at_brokers(10), Position(1, 0)

    async def acknowledged(self, topic: str) -> States:
        return {}


@dataclass
class Bridge:
    """Worker beside the brokers, and what its bridge says of the topic. ``step`` is called for each answer."""

    worker: WireWorker
    read_through: str | None = "1:4"
    waits: bool = False
    published: dict[str, Any] = field(default_factory=dict)
    step: Callable[[], None] = lambda: None

    def status(self, _: Any) -> dict[str, Any]:
        self.step()
        topic = {
            "topic": TOPIC,
            "read_through": self.read_through,
            "published": self.published,
            "publishing_waits": self.waits,
            "errors": {},
            "halted": False,
        }
        return {"apache": {"topics": [topic], "refused": {}}}


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    with WireWorker("a") as worker:
        made = Bridge(worker)
        worker.on_request["status"] = made.status
        yield made


def look(path: Path, bridge: Bridge, **others: str) -> BrokersFound:
    """Compare. ``others`` are addresses of further clusters."""
    path.joinpath("topology.yaml").write_text(TOPOLOGY)
    run = _Verification(load_topology(path / "topology.yaml"), lambda _: True, 0.4, 0, None)

    async def main() -> None:
        run._urls = {"a": bridge.worker.url, **others}
        run._brokers = {"a": ScriptedBrokers()}  # type: ignore[dict-item]
        await run._settle()
        picture = await asyncio.to_thread(read_picture, run._urls, lambda _: True)
        await run._topic(TOPIC, picture)

    asyncio.run(main())
    return run._found


def missing(found: BrokersFound) -> dict[str, int]:
    return {each.copy: each.messages for each in found.differences.get(TOPIC, ()) if each.kind == "missing"}


def spool(bridge: Bridge, entries: int) -> ScriptedTopic:
    topic = bridge.worker.topic(TOPIC)
    topic.cut = {"high_water": {"a.pulsar": [7, f"1:{entries - 1}"]} if entries else {}}
    return topic


def test_what_a_bridge_that_stands_still_has_not_read_is_missing(tmp_path: Path, bridge: Bridge) -> None:
    spool(bridge, 5)
    found = look(tmp_path, bridge)
    assert missing(found)["the spool of a"] == 10  # nothing lies in the log of the scripted worker
    assert found.behind == 0


def test_what_a_bridge_that_never_began_has_not_read_is_missing(tmp_path: Path, bridge: Bridge) -> None:
    bridge.read_through = None
    assert missing(look(tmp_path, bridge)) == {"the spool of a": 10}


def test_what_a_bridge_that_goes_on_has_not_read_is_behind(tmp_path: Path, bridge: Bridge) -> None:
    spool(bridge, 0).publish(single_entry(b"of the worker"))
    places = iter(range(2, 10))
    bridge.step = lambda: setattr(bridge, "read_through", f"1:{next(places, 8)}")
    found = look(tmp_path, bridge)
    assert "the spool of a" not in missing(found)
    assert found.behind == 10


def test_what_a_bridge_that_stands_still_has_not_published_is_missing(tmp_path: Path, bridge: Bridge) -> None:
    bridge.read_through, bridge.waits = "1:9", True
    with WireWorker("b") as b:
        for topic in (bridge.worker.topic(TOPIC), b.topic(TOPIC)):
            topic.cluster = "b"
            topic.cut = {"high_water": {"b": [7, "3:1"]}}
            for payload in (b"one", b"two"):
                topic.publish(single_entry(payload))
        assert missing(look(tmp_path, bridge, b=b.url))["the brokers of a"] == 2


def test_a_log_that_cannot_be_read_is_named_as_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    run = _Verification(load_topology(path), lambda _: True, 0, 0, None)
    run._urls = {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:1"}
    standing = ReplicaState(runs=((3, 0, 4),), high_water={"a.pulsar": (7, Position(1, 4))})
    assert asyncio.run(run._at_worker("b", TOPIC, standing)) is None
    assert asyncio.run(run._at_worker("a", TOPIC, standing)) is None
    assert asyncio.run(run._states("b", TOPIC)) is None
    assert list(run._found.unreachable) == [f"b in {TOPIC}", f"the spool of a in {TOPIC}", "b"]


def test_acknowledgements_that_differed_stay_differences_if_a_cluster_goes_away() -> None:
    log = log_at_brokers(4)
    acked = {"w": acked_at_broker("w", BrokerCursor(Position(1, 3)))}
    answers: dict[str, list[States | None]] = {"A": [acked], "B": [{}, None]}

    async def read(name: str) -> States | None:
        return answers[name].pop(0) if len(answers[name]) > 1 else answers[name][0]

    places = {"A": ("A", log), "B": ("B", log)}
    found, _ = asyncio.run(compare_acknowledgements([("A", "B")], places, {"A": acked}, read, time.monotonic() + 0.3))
    assert [(each.kind, each.entries) for each in found] == [("ack_mismatch", 4)]
