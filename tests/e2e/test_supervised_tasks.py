"""Every long-lived task of two linked workers under load is ended from outside: all goes on, and each end is seen.

The tasks come from the supervisors themselves, so that a new one cannot be forgotten here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from engine_support import Inbox, eventually, message
from test_cli_mapping import NAMES

from replicator.drills.ports import free_ports
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.running.ending import TaskEnder
from replicator.running.supervisor import SupervisedTask, Supervisor
from replicator.topology import Topology, load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker

TOPIC = "persistent://public/default/orders"
ENDED = "task ended; it starts again"
ELSEWHERE = {
    "pipeline driver",  # test_pipeline_driver.py
    "reload",  # started by SIGHUP alone
    "states",  # only after messages were taken back: test_states_taken.py
    "topic watchers",  # a turn of the event loop long
    "commit publishing",  # not without Spark
}


class Lines:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, /, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = error

    def ends(self) -> Counter[str]:
        return Counter(fields["task"] for event, fields in self.lines if event == ENDED)


class Cluster:
    """A worker whose tasks can be ended, and traffic in it."""

    def __init__(self, worker: Worker, supervisor: Supervisor, ender: TaskEnder, lines: Lines, address: str) -> None:
        self.worker = worker
        self.supervisor = supervisor
        self.ender = ender
        self.lines = lines
        self.address = address
        self.inbox = Inbox()
        self.acknowledged = 0
        self.made: Counter[str] = Counter()
        """Number of ends that the test made, by kind."""

    @property
    def topic(self) -> Topic:
        topic = self.worker.parts.engine.find(TOPIC)
        assert topic is not None
        return topic

    async def end(self, task: SupervisedTask, *, by_error: bool) -> bool:
        """End a task, and wait until it runs again, or is done; False if it did not run any more."""
        before, inner = task.restarts, task.inner
        if inner is None:
            return False
        for _ in range(10):
            if not self.ender.end(task, by_error=by_error):
                return False
            await asyncio.wait([inner], timeout=2)
            if inner.done():
                break
            # A library made another error of it, which the task takes for one of a service that is away, and goes on:
            # the driver of Postgres does, where it is thrown into a statement.
        assert inner.done(), f"{task.name} goes on"
        if task.restarts == before:  # it was done before it heard of that
            return False
        self.made[task.kind] += 1
        await eventually(lambda: not task.pausing, f"the start of {task.name}", seconds=60)
        return True


def written(path: Path, addresses: dict[str, str]) -> Topology:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)  # as root, the server of the database runs as another user
    file = path / "topology.yaml"
    clusters = "".join(f"  {name}: {{address: '{addresses[name]}', data: {path / name}}}\n" for name in NAMES)
    file.write_text(
        f"clusters:\n{clusters}links:\n  - {{from: us-east, to: eu-west}}\n  - {{from: eu-west, to: us-east}}\n"
        "pipeline: {engine: embedded}\n"
        "store: {on_empty_store: start}\n"  # one starts after the other: the first would wait for the second
    )
    return load_topology(file)


@asynccontextmanager
async def two_clusters(path: Path) -> AsyncIterator[dict[str, Cluster]]:
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)}
    topology = written(path, addresses)
    running: dict[str, Cluster] = {}
    try:
        for number, name in enumerate(NAMES):
            ender, lines = TaskEnder(random.Random(number)), Lines()
            supervisor = Supervisor(log=lines, around=ender.around)
            worker = await start_worker(topology, name, supervisor)
            running[name] = Cluster(worker, supervisor, ender, lines, addresses[name])
        yield running
    finally:
        for cluster in running.values():
            await cluster.worker.stop()
            assert not cluster.supervisor.running()


class Traffic:
    """Publishes in both clusters, consumes in one, and deletes a topic now and then, until it is told to end."""

    def __init__(self, clusters: dict[str, Cluster]) -> None:
        self._clusters = clusters
        self.published = 0
        self._over = False

    async def run(self) -> None:
        consuming = self._clusters["us-east"]
        options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=True)
        for cluster in self._clusters.values():
            await cluster.worker.parts.engine.topic(TOPIC)
        consumer = await consuming.topic.subscribe("sub", options, consuming.inbox)
        consumer.flow(1_000_000)
        rounds = 0
        while not self._over:
            for cluster in self._clusters.values():
                await cluster.topic.publish([message(b"m")] * 3)
                self.published += 3
                if rounds % 20 == 0:
                    engine = cluster.worker.parts.engine
                    await engine.topic("gone")
                    await engine.deleting.delete("gone", force=True)
            await self.acknowledge(consumer)
            rounds += 1
            await asyncio.sleep(0.005)
        await eventually(self._all_copied, f"{self.published} messages in both", seconds=60)
        await consuming.inbox.holds(self.published)
        await self.acknowledge(consumer)

    async def acknowledge(self, consumer: Any) -> None:
        consuming = self._clusters["us-east"]
        positions = consuming.inbox.positions[consuming.acknowledged :]
        consuming.acknowledged += len(positions)
        if positions:
            await consumer.acknowledge([Ack(position) for position in positions])

    def _all_copied(self) -> bool:
        return all(cluster.topic.log.messages == self.published for cluster in self._clusters.values())

    def end(self) -> None:
        self._over = True


async def settled(clusters: dict[str, Cluster], traffic: Traffic, running: asyncio.Task[None]) -> None:
    """Wait for the end of the traffic; check that nothing was lost or repeated."""
    traffic.end()
    await running
    us = clusters["us-east"]
    assert len(us.inbox.positions) == len(set(us.inbox.positions)) == traffic.published
    for name, cluster in clusters.items():
        assert cluster.topic.log.messages == traffic.published
        subscriptions = cluster.topic.subscriptions
        await eventually(
            lambda subs=subscriptions: "sub" in subs and subs["sub"].cursor.backlog_entries() == 0,
            f"all consumed in {name}",
            seconds=60,
        )


async def check_seen(cluster: Cluster) -> None:
    """Check that each end is in the log once, in the metric, and, where there were many, in the body of /readyz."""
    await eventually(lambda: cluster.lines.ends().total() >= cluster.made.total(), "the ends in the log")
    assert cluster.lines.ends().total() == cluster.made.total()
    assert {kind: count for kind, count in cluster.supervisor.restarts().items() if count} == cluster.made
    async with aiohttp.ClientSession(f"http://{cluster.address}") as session:
        async with session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        for kind, count in cluster.made.items():
            name = cluster.worker.parts.cluster
            assert f'replicator_task_restarts_total{{cluster="{name}",task="{kind}"}} {count:.1f}' in lines
        async with session.get("/readyz") as response:
            assert response.status == 200
            body = await response.json()
    failing = {task.name for task in cluster.supervisor.failing()}
    assert {task["name"] for task in body.get("failing_tasks", ())} == failing


def test_each_task_is_ended_in_both_ways_and_all_goes_on(data_dir: Path) -> None:
    async def main() -> None:
        async with two_clusters(data_dir) as clusters:
            traffic = Traffic(clusters)
            running = asyncio.get_running_loop().create_task(traffic.run())
            await eventually(lambda: traffic.published > 300 or running.done(), "traffic")
            for cluster in clusters.values():
                for by_error in (False, True):
                    ended: set[tuple[str, str]] = set()
                    async with asyncio.timeout(60):
                        while missing := self_names(cluster) - ended:
                            assert not running.done(), running.result()
                            for task in cluster.supervisor.running():
                                if (task.kind, task.name) in missing and await cluster.end(task, by_error=by_error):
                                    ended.add((task.kind, task.name))
                            await asyncio.sleep(0)
            await settled(clusters, traffic, running)
            for cluster in clusters.values():
                never = {kind for kind in cluster.supervisor.restarts() if not cluster.made[kind]}
                assert never <= ELSEWHERE | {"topic sweeper"}
                assert cluster.made["sync"] >= 2
                await check_seen(cluster)

    def self_names(cluster: Cluster) -> set[tuple[str, str]]:
        """The tasks that run now, and the sync of the topic, which runs while there is something to do."""
        names = {(task.kind, task.name) for task in cluster.supervisor.running() if task.kind not in ELSEWHERE}
        lasting = {(kind, name) for kind, name in names if kind not in ("topic sweeper", "sync")}
        return lasting | {("sync", f"sync {TOPIC}")}

    asyncio.run(main())


def test_tasks_are_ended_at_random_and_nothing_is_lost_or_repeated(data_dir: Path) -> None:
    async def main() -> None:
        async with two_clusters(data_dir) as clusters:
            traffic = Traffic(clusters)
            running = asyncio.get_running_loop().create_task(traffic.run())
            await eventually(lambda: traffic.published > 300 or running.done(), "traffic")
            chance = random.Random(13)
            before = 0
            for _ in range(60):
                cluster = chance.choice(list(clusters.values()))
                tasks = [task for task in cluster.supervisor.running() if not task.pausing]
                await cluster.end(chance.choice(tasks), by_error=chance.random() < 0.5)
                before = traffic.published
                with suppress(AssertionError):
                    await eventually(lambda before=before: traffic.published > before, "more", seconds=1)
                assert not running.done(), running.result()
            await settled(clusters, traffic, running)
            for cluster in clusters.values():
                await check_seen(cluster)
            assert sum(cluster.made.total() for cluster in clusters.values()) >= 40

    asyncio.run(main())
