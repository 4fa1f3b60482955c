"""A mesh under traffic loses a disk at random moments, and nothing is lost that another cluster had.

Invariants (DESIGN §3): 2, 5, 12 and 13. Workers are processes that are killed. ``make soak`` runs this; each case has
:data:`MOMENTS` moments of :data:`SEED`. ``test_lost_disk.py`` has the same in one process, without kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from backup_support import MESH, ORDERS, Mesh
from failover_support import deployment
from postgres_support import databases_of
from security_support import Secrets

from replicator.client import (
    AuthenticationToken,
    Client,
    ConsumerType,
    InitialPosition,
    PulsarException,
    Timeout,
)

pytestmark = pytest.mark.skipif("SOAK" not in os.environ, reason="minutes: make soak runs it")

SEED = int(os.environ.get("LOST_DISK_SEED", "1"))
MOMENTS = int(os.environ.get("LOST_DISK_MOMENTS", "10"))
TOLD_SECONDS = 1.0
"""Acknowledgements older than this at the kill must not be repeated."""
QUIET_MILLIS = 1_000
KEPT_EVERY = 5
"""Every so many-th message is left unacknowledged."""


_numbers = count()


class Losing(Mesh):
    """Clusters A, B and C, whose disks are lost. ``more`` is added to the topology."""

    more: ClassVar[dict[str, Any]] = {}
    token: ClassVar[str] = ""

    def write(self, links: str, file: str = "topology.yaml") -> Path:
        path = super().write(links, file)
        added = {"store": {"ask_peers_seconds": 1}, **self.more}
        text = path.read_text() + "".join(f"{name}: {json.dumps(value)}\n" for name, value in added.items())
        path.write_text(text)
        return path

    def get(self, name: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with urllib.request.urlopen(urllib.request.Request(self.url(name, path), headers=headers), timeout=10) as found:
            return json.load(found)

    def client(self, name: str) -> Client:
        shown = AuthenticationToken(self.token) if self.token else None
        return Client(self.client_url(name), authentication=shown, reconnect=False)


@dataclass
class Traffic:
    """Messages of one moment: those confirmed, and when each acknowledgement was confirmed."""

    topic: str
    confirmed: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, float] = field(default_factory=dict)
    under_way: bytes | None = None
    """Message whose acknowledgement is not confirmed yet. The cluster may have it, and have told it to others."""

    async def produce(self, client: Client) -> None:
        producer = await client.create_producer(self.topic, batching_max_publish_delay_ms=1)
        number = 0
        while True:
            content = b"%06d" % number
            await producer.send(content)
            self.confirmed.append(content)
            number += 1
            await asyncio.sleep(0.001)

    async def consume(self, client: Client) -> None:
        consumer = await subscribe(client, self.topic, "sub")
        while True:
            message = await consumer.receive()
            if int(message.data()) % KEPT_EVERY:
                self.under_way = message.data()
                await consumer.acknowledge(message)
                self.acknowledged[message.data()] = time.monotonic()
                self.under_way = None


async def subscribe(client: Client, topic: str, name: str, *, replicated: bool = True) -> Any:
    return await client.subscribe(
        topic,
        name,
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        replicate_subscription_state_enabled=replicated,
        # An acknowledgement counts from when the cluster has it, and not from when a busy client gathered it.
        ack_receipt_enabled=True,
        acknowledgement_group_time_ms=0,
    )


async def drained(mesh: Losing, name: str, topic: str, subscription: str, *, replicated: bool = True) -> list[bytes]:
    """Receive and acknowledge until nothing comes any more."""
    found: list[bytes] = []
    async with mesh.client(name) as client:
        consumer = await subscribe(client, topic, subscription, replicated=replicated)
        while True:
            try:
                message = await consumer.receive(timeout_millis=QUIET_MILLIS)
            except Timeout:
                return found
            found.append(message.data())
            await consumer.acknowledge(message)


def traffic_until(mesh: Losing, topic: str, seconds: float, lost: Sequence[str]) -> tuple[Traffic, float]:
    """Have clients work at A for ``seconds``; then kill the workers ``lost``. Return what happened, and when."""
    traffic = Traffic(topic)

    async def work() -> float:
        async with mesh.client("A") as client:
            await (await subscribe(client, topic, "keep")).close()
        while not all((mesh.topic(name, topic) or {}).get("subscriptions") for name in "BC"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the other clusters know it
        async with mesh.client("A") as producing, mesh.client("A") as consuming:
            tasks = [
                asyncio.ensure_future(traffic.produce(producing)),
                asyncio.ensure_future(traffic.consume(consuming)),
            ]
            done, _ = await asyncio.wait(tasks, timeout=seconds)
            assert not done, "clients were served until the kill"
            at = time.monotonic()
            for name in lost:
                mesh.kill(name)
            for task in tasks:
                task.cancel()
            for each in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(each, PulsarException | OSError | asyncio.CancelledError), each
            return at

    killed_at = asyncio.run(work())
    return traffic, killed_at


def check(mesh: Losing, traffic: Traffic, killed_at: float, had: set[bytes]) -> None:
    """Check that A has all of ``had``, once, and repeats nothing that was acknowledged long enough before."""
    topic = traffic.topic
    mesh.until(lambda: mesh.messages("A", topic) >= len(had), "all that others had")
    again = asyncio.run(drained(mesh, "A", topic, "sub"))
    late = [each for each in again if traffic.acknowledged.get(each, killed_at) < killed_at - TOLD_SECONDS]
    ages = {each: round(killed_at - traffic.acknowledged[each], 2) for each in late}
    assert late == [], f"acknowledged more than a second before: {ages}, of {len(again)} that came again"
    unacknowledged = had - traffic.acknowledged.keys() - {traffic.under_way}
    assert unacknowledged <= set(again), "what nobody acknowledged is delivered"
    kept = asyncio.run(drained(mesh, "A", topic, "keep"))
    assert len(set(kept)) == len(kept), "nothing is there twice"
    assert had <= set(kept), "nothing is lost that another cluster had"


def had_at(mesh: Losing, topic: str, names: str) -> set[bytes]:
    """Return what these clusters have of a topic."""
    return {each for name in names for each in asyncio.run(drained(mesh, name, topic, "look", replicated=False))}


def moments(name: str) -> Iterator[tuple[str, random.Random]]:
    for number in range(MOMENTS):
        yield f"{ORDERS}-{name}-{number}", random.Random(f"{SEED} {name} {number}")


@contextmanager
def mesh_of(path: Path, server: str, more: dict[str, Any], token: str = "") -> Iterator[Losing]:
    kind: type[Losing] = type("With", (Losing,), {"more": more, "token": token})
    with (
        databases_of("ABC", server, f"moments_{next(_numbers)}") as databases,
        deployment(path, *databases, links=MESH, databases=databases, kind=kind) as deployed,
    ):
        yield deployed


@pytest.mark.parametrize("case", ["retention 0", "authentication"])
def test_a_disk_that_is_lost_under_traffic_heals(tmp_path: Path, postgres_server: str, case: str) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    more: dict[str, Any] = {"policies": {"retention": {"age": 0, "size": 0}}}
    token = ""
    if case == "authentication":
        more, token = {"auth": secrets.auth()}, secrets.token("operator")
    with mesh_of(tmp_path, postgres_server, more, token) as mesh:
        for topic, source in moments(case.replace(" ", "-")):
            traffic, killed_at = traffic_until(mesh, topic, source.uniform(0.3, 2.5), "A")
            had = had_at(mesh, topic, "BC")
            shutil.rmtree(mesh.data("A"))
            mesh.start("A")
            assert mesh.status("A")["start"]["how"] == "reclaimed"
            check(mesh, traffic, killed_at, had)


def test_a_disk_that_is_lost_while_a_peer_is_down_heals(tmp_path: Path, postgres_server: str) -> None:
    with mesh_of(tmp_path, postgres_server, {}) as mesh:
        for topic, source in moments("peer-down"):
            traffic, killed_at = traffic_until(mesh, topic, source.uniform(0.3, 2.5), "AC")
            had = had_at(mesh, topic, "B")
            shutil.rmtree(mesh.data("A"))
            mesh.start("A")
            assert set(mesh.status("A")["start"]["unasked"]) == {"C"}
            check(mesh, traffic, killed_at, had)
            mesh.start("C")
            only_there = had_at(mesh, topic, "C") - had
            if only_there:
                mesh.until(lambda topic=topic: f"C {topic}" in mesh.halted("A"), "the gap is named")  # type: ignore[misc]
                mesh.run_links("resolve", "A", "C", "--topic", topic, "--policy", "keep-both")
            mesh.until_nothing_halts()


def test_a_reclaim_that_is_killed_again_and_again_loses_nothing(tmp_path: Path, postgres_server: str) -> None:
    with mesh_of(tmp_path, postgres_server, {}) as mesh:
        for topic, source in moments("killed"):
            traffic, killed_at = traffic_until(mesh, topic, source.uniform(0.3, 2.5), "A")
            had = had_at(mesh, topic, "BC")
            shutil.rmtree(mesh.data("A"))
            for _ in range(source.randint(1, 3)):
                mesh.launch("A")
                time.sleep(source.uniform(0, 1.5))  # a moment of the start, of the reclaim, or after it
                mesh.kill("A")
            mesh.start("A")
            check(mesh, traffic, killed_at, had)


def test_workers_that_start_at_once_after_some_lost_their_disks_lose_nothing(
    tmp_path: Path, postgres_server: str
) -> None:
    with mesh_of(tmp_path, postgres_server, {}) as mesh:
        for topic, source in moments("at-once"):
            lost = source.choice([("A",), ("A", "B"), ("A", "C"), ("A", "B", "C")])
            left = "".join(name for name in "ABC" if name not in lost)
            traffic, killed_at = traffic_until(mesh, topic, source.uniform(0.3, 2.5), "ABC")
            for name in lost:
                shutil.rmtree(mesh.data(name))
            mesh.start("A", "B", "C")
            if left:
                check(mesh, traffic, killed_at, had_at(mesh, topic, left))
            else:
                assert mesh.topic("A", topic) is None
                assert "reclaimed" not in {mesh.status(name)["start"]["how"] for name in "ABC"}
            mesh.until_nothing_halts()
