"""Helpers of the tests of backups: a mesh of workers, the command, and traffic."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked_commands
from failover_support import Deployment

from replicator.client import Client, ConsumerType, InitialPosition

MESH = "[{between: [A, B]}, {between: [A, C]}, {between: [B, C]}]"
ORDERS = "persistent://public/default/orders"
TAKEN_AT_ONCE = 1_000
"""Number of messages that a consumer receives before it acknowledges some of them."""


class Mesh(Deployment):
    """Clusters A, B and C, and a directory for backups."""

    @property
    def backups(self) -> Path:
        return self.path / "backups"

    def data(self, name: str) -> Path:
        return self.path / f"data-{name}"

    def backup(self, verb: str, *arguments: str, status: int = 0) -> str:
        """Run ``replicator backup VERB …``; return what it prints."""
        done = self.run_backup(verb, *arguments)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run_backup(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked_commands.run("backup", verb, *arguments, cwd=self.path)

    def create(self, name: str) -> str:
        return self.backup("create", "-f", "topology.yaml", "-c", name, "--at", "backups")

    def lose(self, name: str) -> None:
        """Kill the worker and delete its disk."""
        self.kill(name)
        shutil.rmtree(self.data(name))

    def restore(self, name: str, *options: str, status: int = 0) -> str:
        return self.backup("restore", "-f", "topology.yaml", "-c", name, "--at", "backups", *options, status=status)

    def reclaim(self, name: str, *options: str, status: int = 0) -> str:
        return self.backup("reclaim", "-f", "topology.yaml", "-c", name, *options, status=status)

    def start_refused(self, name: str) -> str:
        """Return the error of a worker that refuses to start because of the state of its directory."""
        done = forked_commands.run("worker", "--cluster", name, "-f", "topology.yaml", cwd=self.path)
        assert done.returncode == 2, done.stderr
        return done.stderr

    def pause(self, source: str, destination: str) -> None:
        self.run_links("pause", source, destination)

    def run_links(self, verb: str, source: str, destination: str, *options: str) -> None:
        ends = ("--from", source, "--to", destination)
        done = forked_commands.run("links", verb, "-f", "topology.yaml", *ends, *options, cwd=self.path)
        assert done.returncode == 0, done.stderr

    def truncate(self, name: str, topic: str = ORDERS) -> None:
        path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/truncate"
        request = urllib.request.Request(self.url(name, path), method="DELETE")
        urllib.request.urlopen(request, timeout=20).close()

    def status(self, name: str) -> Any:
        return self.get(name, "/replication/v1/status")

    def topic(self, name: str, topic: str = ORDERS) -> Any:
        return next((each for each in self.status(name)["topics"] if each["name"] == topic), None)

    def messages(self, name: str, topic: str = ORDERS) -> int:
        return (self.topic(name, topic) or {"messages": 0})["messages"]

    def halted(self, name: str) -> dict[str, str]:
        return {
            f"{link['to']} {topic}": reason
            for link in self.status(name)["links"]
            for topic, reason in link["halted"].items()
        }

    def until_nothing_halts(self, also: Callable[[], object] = lambda: True) -> None:
        """Wait until no link halts a topic and ``also`` holds; a failure prints each reason."""

        def reasons() -> dict[str, dict[str, str]]:
            return {name: halted for name in "ABC" if (halted := self.halted(name))}

        self.until(lambda: also() and not reasons(), reasons)

    def unconsumed(self, name: str, subscription: str, topic: str = ORDERS) -> dict[str, str] | None:
        """Return a digest, by origin, of a subscription's unconsumed messages in a cluster; None if the cluster has no
        such subscription."""
        if self.topic(name, topic) is None:
            return None
        answer = self.get(name, f"/replication/v1/ack-vectors?topic={topic}")
        state = answer["subscriptions"].get(subscription)
        return None if state is None else state["digest"]

    def consumed(self, subscription: str = "sub", topic: str = ORDERS) -> bool:
        """Return whether nothing is left to be consumed in any cluster."""
        return self.agree(subscription, topic) and not any(
            self.left(name, subscription, topic) for name in self._processes
        )

    def left(self, name: str, subscription: str, topic: str) -> int:
        rows = self.topic(name, topic)["subscriptions"]
        return int(next(row["backlog_messages"] for row in rows if row["name"] == subscription))

    def has(self, subscription: str, topic: str = ORDERS) -> dict[str, bool]:
        """Return, by cluster, whether it has the subscription."""
        found = {name: self.topic(name, topic) or {"subscriptions": []} for name in self._processes}
        return {name: any(row["name"] == subscription for row in each["subscriptions"]) for name, each in found.items()}

    def delete_subscription(self, name: str, subscription: str, topic: str = ORDERS) -> None:
        path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/subscription/{subscription}"
        request = urllib.request.Request(self.url(name, path), method="DELETE")
        urllib.request.urlopen(request, timeout=20).close()

    def agree(self, subscription: str, topic: str = ORDERS) -> bool:
        """Return whether all clusters have the same messages and the same unconsumed messages."""
        counts = {self.messages(name, topic) for name in self._processes}
        states = [self.unconsumed(name, subscription, topic) for name in self._processes]
        return len(counts) == 1 and states[0] is not None and all(each == states[0] for each in states)

    def verify(self) -> Any:
        return self.report("verify", "--settle", "0")


async def publish(url: str, contents: Sequence[bytes], topic: str = ORDERS, *, batching_enabled: bool = True) -> None:
    async with Client(url, reconnect=False) as client:
        producer = await client.create_producer(topic, batching_enabled=batching_enabled)
        for start in range(0, len(contents), 1000):
            await producer.send_many(contents[start : start + 1000])


async def take(
    url: str, count: int, *, acknowledge: slice = slice(None), subscription: str = "sub", topic: str = ORDERS
) -> list[bytes]:
    """Receive so many messages of a replicated subscription and acknowledge some; return the acknowledged ones."""
    async with Client(url, reconnect=False) as client:
        consumer = await client.subscribe(
            topic,
            subscription,
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )
        chosen = range(count)[acknowledge]
        taken: list[bytes] = []
        for start in range(0, count, TAKEN_AT_ONCE):
            numbers = range(start, min(count, start + TAKEN_AT_ONCE))
            received = {number: await consumer.receive(timeout_millis=30_000) for number in numbers}
            now = [received[number] for number in numbers if number in chosen]
            await asyncio.gather(*map(consumer.acknowledge, now))
            taken += [message.data() for message in now]
        return taken


def numbered(prefix: str, first: int, last: int) -> list[bytes]:
    return [b"%s-%06d" % (prefix.encode(), number) for number in range(first, last)]


def timed(what: str, since: float) -> float:
    print(f"{what}: {time.monotonic() - since:.1f} s")
    return time.monotonic()
