"""The index writer on a real server that comes, goes, and comes back different."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from replicator.index import waiting
from replicator.index import writer as index_writer
from replicator.index.database import Database, DatabaseUnavailable
from replicator.index.writer import IndexWriter
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import RepositoryUnavailable, SnapshotRepository, SubscriptionState

TOPIC = "persistent://public/default/flights"
WAIT_SECONDS_MAX = 60.0


def mapping(entry: int) -> SnapshotMapping:
    return SnapshotMapping(f"s{entry}", Position(1, entry), "eu-west", Position(1, entry))


class FakeWorker:
    """Stand-in for a worker's knowledge; a resync gives all of it to the writer."""

    def __init__(self) -> None:
        self.writer: IndexWriter | None = None
        self.mappings: dict[int, SnapshotMapping] = {}
        self.marks: dict[str, int] = {}
        self.resyncs = 0

    def resync(self) -> None:
        assert self.writer is not None
        self.resyncs += 1
        for item in self.mappings.values():
            self.writer.changes.mapping_recorded(TOPIC, item)
        for name, entry in self.marks.items():
            self.writer.changes.subscription_moved(TOPIC, name, 1, Position(1, entry), replicated=True)

    def kept(self, topic: str, peer: str) -> list[Position]:
        return [item.local for item in self.mappings.values() if (topic, peer) == (TOPIC, item.peer)]

    def record(self, *entries: int) -> None:
        assert self.writer is not None
        for entry in entries:
            self.mappings[entry] = mapping(entry)
            self.writer.changes.mapping_recorded(TOPIC, self.mappings[entry])

    def move(self, name: str, entry: int) -> None:
        assert self.writer is not None
        self.marks[name] = entry
        self.writer.changes.subscription_moved(TOPIC, name, 1, Position(1, entry), replicated=True)


@asynccontextmanager
async def running(setting: str, data: Path, worker: FakeWorker) -> AsyncIterator[tuple[Database, SnapshotRepository]]:
    database = Database(setting, data, cluster="us-east", known_good=False)
    await database.start()
    assert database.engine is not None
    worker.writer = IndexWriter(database, cluster="us-east", resync=worker.resync, kept=worker.kept)
    worker.writer.start()
    try:
        yield database, SnapshotRepository(database.engine, "us-east")
    finally:
        await worker.writer.stop()
        await database.stop()


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "did not come to hold"
        await asyncio.sleep(0.02)


def rows(url: str, table: str = "snapshot_mappings") -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def test_what_changes_is_in_the_index_a_moment_later(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker) as (_, repository):
            assert worker.writer is not None
            worker.record(*range(20))
            for entry in range(500):
                worker.move("s", entry)
            worker.move("gone", 1)
            await until(lambda: rows(postgres_url) == 20 and rows(postgres_url, "subscription_states") == 2)
            del worker.marks["gone"]
            worker.writer.changes.subscription_deleted(TOPIC, "gone")
            await until(lambda: rows(postgres_url, "subscription_states") == 1)
            newest = SubscriptionState(TOPIC, "s", 1, Position(1, 499), replicated=True)
            assert await repository.subscription_states() == [newest]
            assert await worker.writer.mappings(TOPIC) == [mapping(entry) for entry in range(20)]

    asyncio.run(main())


def test_rows_of_many_subscriptions_are_written_seldom_and_what_is_urgent_takes_them_along(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_writer, "ROWS_A_SECOND", 0.01)
    monkeypatch.setattr(index_writer, "THINNED_SECONDS_MAX", 1_000.0)

    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker) as (_, repository):
            assert worker.writer is not None
            await until(lambda: worker.resyncs == 1)
            for number in range(20):
                worker.move(f"s{number}", 1)
            await until(lambda: rows(postgres_url, "subscription_states") == 20)
            worker.move("s0", 2)
            await asyncio.sleep(0.5)  # five times what changes gather for at least
            assert {state.mark_delete.entry for state in await repository.subscription_states()} == {1}
            worker.writer.changes.audit("somebody", "did", "something")
            await until(lambda: rows(postgres_url, "audit_log") == 1)
            assert max(state.mark_delete.entry for state in await repository.subscription_states()) == 2

    asyncio.run(main())


def test_nothing_is_left_of_a_deleted_topic_and_all_of_the_one_made_anew_is_there(
    postgres_url: str, data_dir: Path
) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker) as (_, repository):
            assert worker.writer is not None
            other = TOPIC + "-2"
            await until(lambda: worker.resyncs == 1)
            worker.record(*range(20))
            worker.move("s", 1)
            worker.writer.changes.mapping_recorded(other, mapping(1))
            await until(lambda: rows(postgres_url) == 21 and rows(postgres_url, "subscription_states") == 1)
            worker.record(20)  # waits when the topic is deleted
            worker.move("gone", 1)
            worker.writer.changes.topic_deleted(TOPIC)
            worker.record(30)
            worker.move("s", 2)
            assert await worker.writer.mappings(TOPIC) == [mapping(30)]
            assert await worker.writer.mappings(other) == [mapping(1)]
            assert [state.subscription for state in await repository.subscription_states()] == ["s"]
            worker.record(40)
            worker.writer.changes.topic_deleted(TOPIC)
            worker.writer.changes.topic_deleted(other)
            await until(lambda: rows(postgres_url) == rows(postgres_url, "subscription_states") == 0)

    asyncio.run(main())


def test_rows_of_a_topic_made_anew_are_not_deleted_with_the_old_ones(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are deleted and made anew all the time, while the database takes one row after another."""
    monkeypatch.setattr(waiting, "BATCH_MAX", 1)
    monkeypatch.setattr(index_writer, "GATHER_SECONDS", 0.001)
    monkeypatch.setattr(index_writer, "GATHER_TIMES", 0)

    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker):
            assert worker.writer is not None
            await until(lambda: worker.resyncs == 1)
            for life in range(50):
                worker.record(*range(100, 110))
                await asyncio.sleep(0.002 + life % 5 / 1000)  # some of them are written
                worker.writer.changes.topic_deleted(TOPIC)
                worker.mappings.clear()
                worker.record(*range(life, life + 5))
                assert await worker.writer.mappings(TOPIC) == list(worker.mappings.values())

    asyncio.run(main())


def test_what_waits_is_written_before_the_writer_stops(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker):
            await until(lambda: worker.resyncs == 1)
            worker.record(1, 2, 3)

    asyncio.run(main())
    assert rows(postgres_url) == 3


def test_a_start_brings_an_index_of_the_past_up_to_date(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        before = FakeWorker()
        async with running(postgres_url, data_dir, before):
            before.record(*range(10))
            before.move("deleted while the database was away", 1)
            await until(lambda: rows(postgres_url) == 10)
        # The log has thinned some, and knows some that were never written.
        worker = FakeWorker()
        worker.mappings = {entry: mapping(entry) for entry in range(5, 15)}
        async with running(postgres_url, data_dir, worker) as (_, repository):
            await until(lambda: rows(postgres_url, "subscription_states") == 0)
            assert await repository.mappings(TOPIC) == [mapping(entry) for entry in range(5, 15)]

    asyncio.run(main())


def test_a_server_that_dies_is_started_again_and_gets_what_it_missed(data_dir: Path) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running("embedded", data_dir, worker) as (database, _):
            assert worker.writer is not None
            worker.record(1, 2)
            await until(lambda: worker.resyncs == 1)
            assert len(await worker.writer.mappings(TOPIC)) == 2
            for round_ in range(2):
                pid = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
                psutil.Process(pid).kill()
                worker.record(10 + round_)
                await until(lambda: database.state == "up" and worker.resyncs == 2 + round_)  # noqa: B023
                known = sorted(worker.mappings.values(), key=lambda item: item.local)
                assert await worker.writer.mappings(TOPIC) == known
            assert database.detail == ""

    asyncio.run(main())


def _empty(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def test_a_database_that_comes_back_empty_is_filled_again(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker):
            worker.record(*range(10))
            await until(lambda: rows(postgres_url) == 10)
            # On a thread: the writer may be in a transaction, which can only end while the event loop runs.
            await asyncio.to_thread(_empty, postgres_url)
            worker.record(10)
            await until(lambda: worker.resyncs == 2)
            await until(lambda: rows(postgres_url) == 11)

    asyncio.run(main())


def test_while_the_database_is_away_reading_fails_at_once_and_says_why(data_dir: Path) -> None:
    async def main() -> None:
        nobody = Database("postgresql://user:secret@127.0.0.1:1/x", data_dir, cluster="us-east", known_good=True)
        with pytest.raises(Exception, match="is away"):
            await nobody.start()
        worker = FakeWorker()
        worker.writer = IndexWriter(nobody, cluster="us-east", resync=worker.resync)
        worker.writer.start()
        worker.record(1)
        with pytest.raises(RepositoryUnavailable, match="is away") as caught:
            await worker.writer.mappings(TOPIC)
        assert "secret" not in str(caught.value)
        assert nobody.state == "down"
        await worker.writer.stop()
        await nobody.stop()

    asyncio.run(main())


def test_more_than_the_writer_keeps_is_written_anew_and_not_lost(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 10)

    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker):
            await until(lambda: worker.resyncs == 1)
            worker.record(*range(100))
            await until(lambda: rows(postgres_url) == 100)
            assert worker.resyncs == 2

    asyncio.run(main())


def test_mappings_that_memory_thinned_leave_the_index_without_writing_all_anew(
    postgres_url: str, data_dir: Path
) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker):
            worker.record(*range(40))
            await until(lambda: rows(postgres_url) == 40)
            for entry in range(0, 40, 2):
                del worker.mappings[entry]
            worker.record(*range(40, 40 + index_writer.MAPPINGS_BETWEEN_THINNINGS))
            await until(lambda: rows(postgres_url) == 20 + index_writer.MAPPINGS_BETWEEN_THINNINGS)
            assert worker.resyncs == 1

    asyncio.run(main())


def test_a_row_that_the_database_never_takes_does_not_keep_the_others_out(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        worker = FakeWorker()
        async with running(postgres_url, data_dir, worker) as (database, _):
            assert worker.writer is not None
            worker.move("with a NUL \0", 1)
            worker.move("fine", 2)
            worker.record(1)
            await until(lambda: rows(postgres_url, "subscription_states") == 1 and rows(postgres_url) == 1)
            await until(lambda: worker.writer is not None and worker.writer.rows_refused == 1)
            assert database.state == "up"

    asyncio.run(main())


def test_an_idle_worker_notices_that_its_database_has_gone(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.index.writer.PROBE_SECONDS", 0.2)

    async def main() -> None:
        async with running("embedded", data_dir, FakeWorker()) as (database, _):
            await until(lambda: database.state == "up")
            monkeypatch.setattr(database, "recover", refuse)
            pid = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)
            await until(lambda: database.state == "down")

    async def refuse() -> None:
        raise DatabaseUnavailable("still away")

    asyncio.run(main())
