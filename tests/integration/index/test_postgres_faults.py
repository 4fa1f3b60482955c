"""Postgres stopped, killed, emptied and restored to the past under two workers with traffic (invariant 9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psycopg
import pytest
from engine_support import TOPIC, Inbox, eventually, message
from worker_pair import NAMES, Pair, pair

from replicator.engine.log.block import BlockKind
from replicator.engine.log.extent_rows import read_headers
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.worker.worker import Worker
from snapshots.position import BEFORE_ALL
from snapshots.repository import RepositoryUnavailable, SnapshotRepository


class Traffic:
    """Messages published at both clusters, and a subscription that is consumed at us-east."""

    def __init__(self, both: Pair) -> None:
        self.both = both
        self.published = 0
        self.inbox = Inbox()
        self.consumer: EngineConsumer | None = None

    async def start(self) -> None:
        topic = await self.both.engine("us-east").topic(TOPIC)
        options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=True)
        self.consumer = await topic.subscribe("sub", options, self.inbox)
        self.consumer.flow(1_000_000)

    async def some(self, count: int = 20) -> None:
        """Publish at both, consume, and wait until both clusters have and know all of it."""
        for _ in range(count):
            for name in NAMES:
                topic = await self.both.engine(name).topic(TOPIC)
                await topic.publish([message()] * 3)
                self.published += 3
        await eventually(
            lambda: {self.both.topic(name).log.messages for name in NAMES} == {self.published}, "all copied"
        )
        await self.inbox.holds(self.published)
        assert self.consumer is not None
        await self.consumer.acknowledge([Ack(position) for position in self.inbox.positions])
        await eventually(lambda: all(self.backlog(name) == 0 for name in NAMES), "all consumed in both")

    def backlog(self, name: str) -> int:
        subscription = self.both.topic(name).subscriptions.get("sub")
        return -1 if subscription is None else subscription.cursor.backlog_entries()


def repository(worker: Worker) -> SnapshotRepository:
    assert worker.parts.database.engine is not None
    return SnapshotRepository(worker.parts.database.engine, worker.parts.cluster)


async def agrees(both: Pair, name: str) -> bool:
    """Return whether the index of a cluster says what its log says."""
    worker, topic = both.workers[name], both.topic(name)
    headers = read_headers(both.engine(name).store, topic.topic_id, BEFORE_ALL, topic.log.last, blocks_max=10**6)
    copied = sum(header.entries for _, header in headers if header.origin != name)
    own = next(h for h in headers if h.header.origin == name and h.header.kind is BlockKind.MESSAGES).local_first
    try:
        rows = repository(worker)
        states = {state.subscription: state.mark_delete for state in await rows.subscription_states()}
        in_memory = {mapping for _, mapping in worker.parts.sync.mappings()}
        in_index = set(await rows.mappings(TOPIC))
        return (
            states == {sub: each.cursor.mark_delete for sub, each in topic.subscriptions.items()}
            and (await rows.count_extents(TOPIC))[2] == copied
            and await rows.to_origin(TOPIC, own) is None
            and in_memory <= in_index
            and all(mapping.snapshot_id != "stale" for mapping in in_index)
        )
    except RepositoryUnavailable:
        return False


async def comes_right(both: Pair) -> None:
    async with asyncio.timeout(60):
        for name in NAMES:
            while not await agrees(both, name):  # noqa: ASYNC110 - the condition is in a database
                await asyncio.sleep(0.05)


@asynccontextmanager
async def traffic(directory: Path) -> AsyncIterator[tuple[Pair, Traffic]]:
    async with pair(directory) as both:
        flow = Traffic(both)
        await flow.start()
        await flow.some()
        await comes_right(both)
        yield both, flow


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.index.writer.PROBE_SECONDS", 0.3)
    monkeypatch.setattr("replicator.index.writer.EXTENTS_SECONDS", 0.2)
    monkeypatch.setattr("replicator.index.writer.RETRY_SECONDS_MAX", 1.0)


def test_invariant_9_while_postgres_stands_still_nothing_else_does_and_then_it_catches_up(data_dir: Path) -> None:
    async def main() -> None:
        async with traffic(data_dir) as (both, flow):
            for name in NAMES:
                both.signal_server(name, signal.SIGSTOP)
            try:
                for _ in range(3):
                    await flow.some()
            finally:
                for name in NAMES:
                    both.signal_server(name, signal.SIGCONT)
            await comes_right(both)

    asyncio.run(main())


def test_a_postgres_that_is_killed_over_and_over_under_load_is_caught_up(data_dir: Path) -> None:
    async def main() -> None:
        async with traffic(data_dir) as (both, flow):
            for _ in range(3):
                for name in NAMES:
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # not up again yet
                        os.kill(both.postmaster(name), signal.SIGKILL)
                await flow.some()
            await comes_right(both)

    asyncio.run(main())


def test_what_operators_change_meanwhile_is_kept_counted_and_written_when_postgres_is_back(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes keep their order. Past the limit the oldest go, which is shown. No change waits for Postgres, or is
    refused."""
    monkeypatch.setattr("replicator.index.waiting.KEPT_MAX", 3)
    monkeypatch.setattr("replicator.index.audit_queue.KEPT_MAX", 3)
    namespace = "acme/orders"
    newest = 12

    async def main() -> None:
        async with pair(data_dir) as both:
            name = NAMES[0]
            worker, base = both.workers[name], f"http://{both.topology.cluster(name).address}"
            both.signal_server(name, signal.SIGSTOP)
            try:
                async with aiohttp.ClientSession() as session:
                    for age in range(1, newest + 1):  # some are on their way to the server already
                        body = {"retentionTimeInMinutes": age, "retentionSizeInMB": age}
                        path = f"{base}/admin/v2/namespaces/{namespace}"
                        async with session.put(path) as made:
                            assert made.status in (204, 409)
                        async with session.post(f"{path}/retention", json=body) as answer:
                            assert answer.status == 204
                        async with session.get(f"{path}/retention") as answer:
                            assert (await answer.json())["retentionTimeInMinutes"] == age, "it counts at once"
                    async with session.get(f"{base}/replication/v1/status") as answer:
                        told = (await answer.json())["audit"]
                    assert told["waiting"] == 3
                    assert told["dropped"] >= 2
            finally:
                both.signal_server(name, signal.SIGCONT)
            await eventually(lambda: worker.parts.index.changes.audit_waiting == 0, "they are written", seconds=60)
            kept = [each.detail for each in await worker.parts.index.audit_log() if each.subject.endswith("/retention")]
            ages = [each["after"]["retentionTimeInMinutes"] for each in kept if each]
            assert ages == sorted(ages, reverse=True)
            assert ages[0] == newest

    asyncio.run(main())


def emptied(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("TRUNCATE extent_segments, snapshot_mappings, subscription_states, link_states")


def dropped(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def older_schema(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """A dump of the first version: fewer tables, and rows of things that are long gone."""
    connection.execute("DROP TABLE extent_segments, link_states, failover_epochs, drill_runs, audit_log, index_heads")
    connection.execute("ALTER TABLE subscription_states DROP acked_beyond, DROP holes, DROP ack_vector, DROP tombstone")
    connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.execute("UPDATE subscription_states SET mark_delete_entry = 0")
    connection.execute(
        "INSERT INTO subscription_states SELECT cluster, topic, 'deleted since', 1, 1, 1, true FROM subscription_states"
    )


@pytest.mark.parametrize("fault", [emptied, dropped, older_schema])
def test_an_index_that_is_emptied_or_dropped_under_load_is_made_again_by_itself(
    data_dir: Path, fault: Callable[[psycopg.Connection[tuple[object, ...]]], None]
) -> None:
    async def main() -> None:
        async with traffic(data_dir) as (both, flow):
            for name in NAMES:
                await asyncio.to_thread(do, both.database(name))
            await flow.some()
            await comes_right(both)

    def do(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SET lock_timeout = '20s'")
            fault(connection)

    asyncio.run(main())


def test_rows_of_an_old_dump_are_replaced_and_those_of_what_is_gone_are_removed(data_dir: Path) -> None:
    """The dump is of the same version, and put back under the worker's feet, without a broken connection."""

    async def main() -> None:
        async with traffic(data_dir) as (both, flow):
            tables = ("extent_segments", "snapshot_mappings", "subscription_states", "link_states", "index_heads")

            def dump(url: str) -> None:
                with psycopg.connect(url) as connection:
                    for table in tables:
                        connection.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")
                    connection.execute(
                        "INSERT INTO old_snapshot_mappings SELECT cluster, topic, peer, 1, 1, 1, 1, 'stale', now() "
                        "FROM old_snapshot_mappings LIMIT 1"
                    )
                    connection.execute("UPDATE old_index_heads SET token = gen_random_uuid()")

            def restore(url: str) -> None:
                with psycopg.connect(url) as connection:
                    connection.execute("SET lock_timeout = '20s'")
                    for table in tables:
                        connection.execute(f"DELETE FROM {table}")
                        connection.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")

            for name in NAMES:
                await asyncio.to_thread(dump, both.database(name))
            await flow.some()
            for name in NAMES:
                await asyncio.to_thread(restore, both.database(name))
            await flow.some()
            await comes_right(both)

    asyncio.run(main())


def test_connections_that_break_all_the_time_only_delay_the_index(data_dir: Path) -> None:
    async def main() -> None:
        async with traffic(data_dir) as (both, flow):
            over = asyncio.Event()

            def cut(url: str) -> None:
                with contextlib.suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND backend_type = 'client backend'"
                    )

            async def cutting() -> None:
                while not over.is_set():
                    for name in NAMES:
                        await asyncio.to_thread(cut, both.database(name))

            cutter = asyncio.ensure_future(cutting())
            for _ in range(3):
                await flow.some()
            over.set()
            await cutter
            await comes_right(both)

    asyncio.run(main())
