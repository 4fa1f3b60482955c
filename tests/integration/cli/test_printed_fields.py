"""Commands print JSON with exactly the fields of docs/reference/json.md, each of its type.

Each command that prints more than ``{"done": true}`` is run against two workers, or is named with why it is not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import drill_run_support
import forked_commands
import pytest
import reference_support
from cli_support import VERBS
from engine_support import TOPIC
from printed_fields import problems
from worker_pair import Pair, pair

from replicator.cli.json_types import Done
from replicator.client import Client, ConsumerType
from replicator.drills.run_store import StorePlace

reference = reference_support.module("reference_json")
PRINTED: Final[dict[str, tuple[Any, ...]]] = reference.printed()
PRINTING: Final = {verb for verb, kinds in PRINTED.items() if kinds != (Done,)}
NOT_RUN: Final = {
    "backfill": "it takes Spark; tests/e2e/test_backfill.py looks at its fields",
    "report": "it takes Spark; tests/e2e/test_cli_report.py looks at its fields",
    "drill": "it takes minutes; tests/e2e/test_drill.py looks at its fields",
    "drills show": "it shows what a drill has kept",
    "bridge status": "no cluster is beside brokers; tests/peers/test_apache_bridge.py runs it",
    "bridge renew": "the same",
    "bridge acknowledge-missing": "the same; tests/peers/test_apache_put_back.py runs it",
    "links resolve": "there is no gap; it prints what `links pause` prints",
    "links stays": "there are no two live copies; tests/integration/stores/test_twin_workers.py runs it",
    "pipeline package": "it packs all of Spark; where its fields are made mypy holds them to the type",
}
POLICIES: Final = {
    "message-ttl": "1h",
    "max-producers": "9",
    "max-consumers": "9",
    "max-unacked-per-consumer": "9",
    "max-unacked-per-subscription": "9",
    "compaction-threshold": "1GiB",
    "deduplication": "on",
    "replicate-subscription-state": "on",
    "schema-compatibility": "FULL",
    "schema-auto-update": "on",
    "schema-validation": "off",
    "auto-topic-creation": "on",
}
"""Policies of a namespace: a command for each, with its value."""
COLOURS: Final = "public/default/colours"
ENDED: Final = "public/default/ended"


class Printed:
    """Runs commands, and notes what is wrong with what they print."""

    def __init__(self, directory: Path, file: Path) -> None:
        self.directory, self.file = directory, file
        self.ran: set[str] = set()
        self.wrong: list[str] = []

    async def __call__(self, verb: str, *given: object, status: int = 0) -> Any:
        """Run a command that asks a worker or reads a topology; return what it prints."""
        return await self.alone(verb, *given, "--file", self.file, status=status)

    async def alone(self, verb: str, *given: object, status: int = 0) -> Any:
        asked = [*verb.split(), *map(str, given), "--output", "json"]
        done = await asyncio.to_thread(forked_commands.run, *asked, cwd=self.directory)
        assert done.returncode == status, (asked, done.stderr)
        self.ran.add(verb)
        value = json.loads(done.stdout)
        self.wrong += [f"{verb}: {problem}" for problem in problems(value, PRINTED[verb])]
        return value


@asynccontextmanager
async def busy(both: Pair) -> AsyncIterator[None]:
    """Clients of each kind are connected, and have something that is not acknowledged."""
    await both.published()
    async with Client(f"pulsar://{both.topology.cluster('us-east').address}") as client:
        kinds = (ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover)
        consumers = [await client.subscribe(TOPIC, f"s-{kind.name}", consumer_type=kind) for kind in kinds]
        producer = await client.create_producer(TOPIC)
        for number in range(5):
            await producer.send(b"%d" % number, partition_key=str(number), properties={"n": str(number)})
        for consumer in consumers:
            await consumer.receive()
        yield


async def of_topics(run: Printed) -> None:
    at = ("--cluster", "us-east")
    await run("topics list", *at)
    await run("topics subscriptions", TOPIC, *at)
    await run("topics stats", TOPIC, *at)
    await run("topics stats", TOPIC, "--internal", *at)
    await run("topics policies", TOPIC, *at)
    await run("subscriptions list", TOPIC, *at)
    assert len(await run("subscriptions peek", TOPIC, "s-Shared", "-n", 2, *at)) == 2
    await run("topics compact", TOPIC, *at)
    await run("topics compact", TOPIC, "--status", *at)
    await run("topics create-partitioned", COLOURS, "-p", 2, *at)
    await run("topics stats", COLOURS, *at)
    await run("subscriptions create", COLOURS, "s", *at)
    await run("subscriptions list", COLOURS, *at)
    await run("topics terminate", COLOURS, *at)
    await run("topics create", ENDED, *at)
    await run("topics terminate", ENDED, *at)
    await run("tenants list", *at)
    await run("namespaces list", *at)
    await run("namespaces policies", "public/default", *at)
    for policy, value in POLICIES.items():
        await run(f"namespaces set-{policy}", "public/default", value, *at)
    await run("namespaces set-retention", "public/default", "--age", "1h", "--size", "1GiB", *at)
    await run("namespaces set-backlog-quota", "public/default", "--size", "1GiB", *at)
    await run("namespaces set-backlog-quota", "public/default", "--age", "1h", *at)
    assert "retention_policies" in await run("namespaces policies", "public/default", *at)


async def of_clusters(run: Printed, both: Pair) -> None:
    await run("status")
    await run("store status")
    await run("plan")
    await run("doctor")
    await run("health", "--cluster", "us-east")
    await run("roundtrip", "--cluster", "us-east")
    assert await run("audit list")
    await run("links list")
    await run("links list", "--topics")
    address = (await run("status"))["us-east"]["clients"]["busiest"][0]["address"]
    assert await run("clients close", address, "--cluster", "us-east")
    await run("links twins")
    await run("links pause", "--from", "us-east", "--to", "eu-west")
    await run("links resume", "--from", "us-east", "--to", "eu-west")
    first = next(iter(both.topic("us-east").log.ledgers()))[0]
    asked = ("--from", "us-east", "--to", "eu-west", "--position", f"{first}:0")
    await run("translate", "--topic", TOPIC, *asked)
    await run("mapping rebuild")
    await run("verify", "--settle", "60s")
    both.file.write_text(both.file.read_text() + "sync: {update_interval_ms: 6}\n")
    assert (await run("plan"))["rollout"]["changes"]
    assert (await run("apply", "--yes"))["workers"]
    await run("failover", "--from", "us-east", "--to", "eu-west", "--dry-run")
    assert (await run("failover", "--from", "us-east", "--to", "eu-west"))["outcome"] == "done"
    await run("failover-status")
    await run("failback", "--to", "us-east")
    await run("promote", "--to", "eu-west", "--for", "us-east", "--dry-run")


async def of_stores(run: Printed, both: Pair) -> None:
    """Backups of a worker that runs, and its store when it does not, and the other one does."""
    place, cluster = ("--at", run.directory / "backups"), ("--cluster", "us-east")
    await run("backup create", *place, *cluster)
    await both.workers.pop("us-east").stop()
    for verb in ("store check", "store compact", "store repair"):
        await run(verb, *cluster)
    await run("backup restore", *place, *cluster, "--replace")
    await run("backup reclaim", *cluster)
    assert "error" in (await run("status", status=3))["us-east"]
    assert "error" in (await run("store status", status=3))["us-east"]
    assert "error" in (await run("failover-status", status=3))["clusters"]["us-east"]
    await run("plan")
    await run.alone("backup list", *place)
    await run.alone("backup verify", *place, *cluster)
    await run.alone("backup prune", *place, *cluster, "--keep", 1)
    await run("db upgrade", *cluster)
    await run("db downgrade", *cluster, "--to", "head")


async def of_no_worker(run: Printed) -> None:
    await run.alone("init", "made.yaml", "--yes")
    await run.alone("tokens create-secret-key", "--output-secret-key", "secret.key")
    token = (await run.alone("tokens create", "--secret-key", "secret.key", "--subject", "app"))["token"]
    await run.alone("tokens show", token)
    await run.alone("tokens show", token, "--secret-key", "secret.key")
    place = StorePlace("embedded", run.directory / "kept" / "runs")
    first, second = drill_run_support.two_runs()
    await drill_run_support.keep(place, (first, second))
    at = ("--store", run.directory / "kept")
    assert len(await run.alone("drills list", *at)) == 2
    await run.alone("drills compare", first.id, second.id, *at)


@pytest.mark.timeout(900)  # sixty commands
def test_commands_print_the_documented_fields_and_no_others(tmp_path: Path) -> None:
    async def main() -> Printed:
        async with pair(tmp_path / "pair") as both:
            run = Printed(both.directory, both.file)
            async with busy(both):
                await of_topics(run)
                await of_clusters(run, both)
            await of_no_worker(run)
            await of_stores(run, both)
        return run

    run = asyncio.run(main())
    assert run.wrong == []
    assert PRINTING - run.ran - NOT_RUN.keys() == set()
    assert not run.ran & NOT_RUN.keys()
    assert NOT_RUN.keys() <= VERBS.keys()
