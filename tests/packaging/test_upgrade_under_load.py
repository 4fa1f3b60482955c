"""Upgrade from the version before and back, one end of a link at a time, while both clusters are published to and
consumed from. Nothing is lost, nothing that was acknowledged comes again, and verify finds nothing.

Workers are stopped by SIGTERM, as an upgrade does. A message that was delivered and whose acknowledgement was not yet
confirmed when its worker stopped may come again; what was confirmed may not.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from environments import Interpreter, environment, has_commit, wheel_of
from failover_support import free_ports
from installed import Installed
from test_wheel import JUDGED, topology

from replicator.client import Client, ConsumerType, InitialPosition, PulsarException
from replicator.operating.status import fetch
from replicator.security.asking import worker_session

BEFORE = "af2a6c0da2cf7a489c0f71662abccbd05675dff1"
"""The version before this one. A release puts its own commit here when the next one begins."""
CLUSTERS = ("us-east", "eu-west")
MESSAGES_PER_PAUSE = 20
PAUSE_SECONDS = 0.05
"""400 messages a second at each cluster."""
QUEUE = 100
LATE = 20
IN_HAND_MAX = 2 * QUEUE + LATE
"""Messages that one consumer may get again after its worker stops: those fetched ahead, received and not yet
acknowledged, or acknowledged and not yet confirmed."""
STEP_SECONDS = 6.0
"""Time of traffic between two stops."""
STEPS = (
    ("eu-west", "new"),
    ("us-east", "new"),
    ("us-east", "old"),
    ("eu-west", "old"),
    ("us-east", "new"),
    ("eu-west", "new"),
)
"""Upgrade, downgrade, and upgrade with the other end first: each end is the older one once."""
READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
DRAIN_SECONDS_MAX = 120.0


@pytest.fixture
def before(pythons: list[Interpreter]) -> Iterator[Path]:
    """An environment with the wheel of the version before; its ``bin``."""
    if not has_commit(BEFORE):
        assert os.environ.get("REPLICATOR_PACKAGES") != "required", f"the history lacks {BEFORE}: a shallow clone?"
        pytest.skip(f"this clone's history lacks {BEFORE}")
    with environment(pythons[0], wheel_of(BEFORE), name="before") as binaries:
        yield binaries


@dataclass
class Ledger:
    """Messages as clients saw them."""

    confirmed: dict[str, set[bytes]] = field(default_factory=lambda: {each: set() for each in CLUSTERS})
    """Payloads confirmed to producers, by the cluster where they were published."""
    deliveries: dict[tuple[str, str], Counter[bytes]] = field(default_factory=dict)
    """Count of deliveries, by the cluster where a message was published and the one where it was consumed."""
    acknowledged: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    """Payloads whose acknowledgement was confirmed."""
    settled: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    """Payloads that were acknowledged when a worker was last told to stop."""
    came_again: list[tuple[tuple[str, str], bytes]] = field(default_factory=list)
    """Deliveries of messages that were ``settled`` already."""

    def settle(self) -> None:
        self.settled = {way: set(payloads) for way, payloads in self.acknowledged.items()}


class Workers:
    """The workers of both clusters, each of one version or the other."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.ports = ports
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self, cluster: str, installed: Installed) -> None:
        with (self._folder / f"{cluster}.log").open("ab") as log:
            self._running[cluster] = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds
                [*installed.command("worker", "--cluster", cluster, "--file", self._folder / "topology.yaml")],
                cwd=installed.folder,
                env=installed.environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while "error" in await self.status(cluster):
            assert self._running[cluster].poll() is None, self.log(cluster)
            assert time.monotonic() < deadline, self.log(cluster)
            await asyncio.sleep(0.1)

    async def status(self, cluster: str) -> Any:
        async with worker_session() as session:
            return await fetch(session, f"127.0.0.1:{self.ports[cluster]}")

    async def stop(self, cluster: str) -> None:
        process = self._running.pop(cluster)
        process.terminate()
        assert await asyncio.to_thread(process.wait, STOP_SECONDS_MAX) == 0, self.log(cluster)

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def log(self, cluster: str) -> str:
        return (self._folder / f"{cluster}.log").read_text()[-3000:]


async def publish(client: Client, cluster: str, ledger: Ledger, stopping: asyncio.Event) -> None:
    """Publish to the topic of ``cluster`` there until told to stop, and note what was confirmed."""
    producer = await client.create_producer(f"from-{cluster}", send_timeout_millis=0)
    number = 0
    while not stopping.is_set():
        payloads = [b"%s %d" % (cluster.encode(), number + each) for each in range(MESSAGES_PER_PAUSE)]
        await asyncio.gather(*(producer.enqueue(payload) for payload in payloads))
        ledger.confirmed[cluster].update(payloads)
        number += MESSAGES_PER_PAUSE
        await asyncio.sleep(PAUSE_SECONDS)
    await producer.close()


async def consume(client: Client, origin: str, here: str, ledger: Ledger) -> None:
    """Consume, at ``here``, what is published at ``origin``, until cancelled. One in ten is acknowledged later, out of
    order."""
    way = (origin, here)
    deliveries = ledger.deliveries.setdefault(way, Counter())
    acknowledged = ledger.acknowledged.setdefault(way, set())
    consumer = await client.subscribe(
        f"from-{origin}",
        f"read-at-{here}",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        ack_receipt_enabled=True,
        receiver_queue_size=QUEUE,
        acknowledgement_group_time_ms=10,
    )
    confirming: set[asyncio.Task[None]] = set()

    async def confirm(message: Any, payload: bytes) -> None:
        # A stop may take the confirmation away: then the message comes again, and is acknowledged again.
        with suppress(PulsarException):
            await consumer.acknowledge(message)
            acknowledged.add(payload)

    late: list[tuple[Any, bytes]] = []
    try:
        while True:
            message = await consumer.receive()
            payload = message.data()
            if payload in ledger.settled.get(way, ()):
                ledger.came_again.append((way, payload))
            deliveries[payload] += 1
            late.append((message, payload))
            now = [late.pop()] if deliveries.total() % 10 else []
            if len(late) >= LATE:
                now, late = [*now, *late], []
            for each in now:
                task = asyncio.create_task(confirm(*each))
                confirming.add(task)
                task.add_done_callback(confirming.discard)
    finally:
        for each in late:
            await confirm(*each)
        await asyncio.gather(*confirming)
        with suppress(PulsarException):
            await consumer.close()


@pytest.mark.timeout(600)
def test_one_end_after_the_other_is_upgraded_and_taken_back_and_nothing_is_lost_or_repeated(
    before: Path, with_spark: Path
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="replicator-upgrade-"))
    folder.chmod(0o755)
    ports = dict(zip(CLUSTERS, free_ports(2), strict=True))
    (folder / "topology.yaml").write_text(topology(list(ports.values()), "pipeline: {engine: embedded}\n"))
    old, new = Installed(before, folder / "old", in_the_way=False), Installed(with_spark, folder / "new")
    installed = {"old": old, "new": new}
    workers, ledger = Workers(folder, ports), Ledger()

    async def main() -> dict[str, Any]:
        stopping = asyncio.Event()
        us, eu = (Client(f"pulsar://127.0.0.1:{ports[each]}") for each in CLUSTERS)
        clients = {"us-east": us, "eu-west": eu}
        await asyncio.gather(*(workers.start(cluster, old) for cluster in CLUSTERS))
        consumers = [
            asyncio.create_task(consume(clients[here], origin, here, ledger))
            for origin in CLUSTERS
            for here in CLUSTERS
        ]
        publishers = [asyncio.create_task(publish(clients[each], each, ledger, stopping)) for each in CLUSTERS]
        for cluster, version in STEPS:
            await asyncio.sleep(STEP_SECONDS)
            check_alive(consumers, publishers)
            published = len(ledger.confirmed[cluster])
            ledger.settle()
            await workers.stop(cluster)
            await workers.start(cluster, installed[version])
            await until(lambda was=published, at=cluster: len(ledger.confirmed[at]) > was)
        await asyncio.sleep(STEP_SECONDS)
        stopping.set()
        await asyncio.gather(*publishers)
        ledger.settle()
        await until(lambda: all(len(seen) == len(ledger.confirmed[way[0]]) for way, seen in ledger.deliveries.items()))
        check_alive(consumers, [])
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        await asyncio.gather(us.close(), eu.close())
        verified = await asyncio.to_thread(new.run, "verify", "-f", folder / "topology.yaml", "--output", "json")
        assert verified.returncode == 0, f"{verified.stdout[-3000:]}\n{verified.stderr[-3000:]}"
        for cluster in CLUSTERS:
            await workers.stop(cluster)
        return dict(json.loads(verified.stdout))

    try:
        report = asyncio.run(main())
    finally:
        workers.kill()
    shutil.rmtree(folder)
    assert {name: report[name] for name in JUDGED} == dict.fromkeys(JUDGED, 0)
    for (origin, here), seen in ledger.deliveries.items():
        assert set(seen) == ledger.confirmed[origin], f"{origin} read at {here}"
        assert ledger.acknowledged[origin, here] <= ledger.confirmed[origin]
    assert ledger.came_again == [], "what was acknowledged before a worker was told to stop is not delivered again"
    repeated = {way: seen.total() - len(seen) for way, seen in ledger.deliveries.items()}
    for (_, here), again in repeated.items():
        assert again <= IN_HAND_MAX * sum(cluster == here for cluster, _ in STEPS), repeated
    published = {cluster: len(payloads) for cluster, payloads in ledger.confirmed.items()}
    print(f"published {published}; delivered again, not yet acknowledged when a worker stopped: {repeated}")
    assert all(published[cluster] > 5 * STEP_SECONDS for cluster in CLUSTERS)


def check_alive(*groups: list[asyncio.Task[None]]) -> None:
    for task in (each for group in groups for each in group):
        if task.done():
            task.result()
            raise AssertionError(f"{task} ended")


async def until(holds: Any) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "what was published did not arrive in time"
        await asyncio.sleep(0.1)
