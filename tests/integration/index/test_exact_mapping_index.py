"""The exact mapping in Postgres, written from the store of a real engine: grown, trimmed, lost, wrong, and rebuilt."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from engine_support import TOPIC, eventually, make_block, message
from sqlalchemy import event

from replicator.engine.engine import Engine
from replicator.engine.log.extent_rows import extent_row, read_extents
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.index import extents as index_extents
from replicator.index import rebuild as index_rebuild
from replicator.index.database import Database
from replicator.index.rebuild import IndexRebuild
from replicator.index.subscription_states import SubscriptionStates
from replicator.index.translation import (
    NotCopied,
    OtherIncarnation,
    PositionBeyondEnd,
    PositionIsMarker,
    PositionTrimmed,
    PositionUnknown,
    Translator,
)
from replicator.index.writer import IndexWriter, extents_pause
from snapshots.ack_vector import AckVector
from snapshots.extents import Extent
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository import ExtentKey, RepositoryUnavailable, SnapshotRepository, SubscriptionState

ORIGIN, INCARNATION = "us-east", 7
KEY = ExtentKey(TOPIC, ORIGIN, INCARNATION)


class World:
    """A cluster ``eu-west`` that gets entries of ``us-east``, and publishes some of its own between them."""

    def __init__(self, engine: Engine, writer: IndexWriter, repository: SnapshotRepository) -> None:
        self.engine, self.writer, self.repository = engine, writer, repository
        self.copied = 0
        """Entries of us-east; its ledger is 5."""
        self.lies_at: dict[int, Position] = {}

    async def topic(self) -> Topic:
        return await self.engine.topic(TOPIC)

    async def copy(self, *runs: int) -> None:
        """Runs of so many entries, with one entry of eu-west's own after each."""
        topic = await self.topic()
        for entries in runs:
            previous = Position(5, self.copied - 1) if self.copied else BEFORE_ALL
            block = make_block(Position(5, self.copied), [message()] * entries, incarnation=INCARNATION)
            (extent,) = await topic.writing.copy([CopiedBlock(previous, block)])
            for offset in range(entries):
                local = Position(extent.local_first.ledger, extent.local_first.entry + offset)
                self.lies_at[self.copied + offset] = local
            self.writer.changes.extents_recorded(
                TOPIC, ORIGIN, INCARNATION, extent.origin_first, extent.local_first, entries
            )
            self.copied += entries
            await topic.publish([message()])

    async def translated(self) -> dict[int, Position]:
        """Return the local position of each entry as the database has it, over all segments."""
        found: dict[int, Position] = {}
        for entry in range(self.copied + 2):
            local = await self.repository.to_local(KEY, Position(5, entry))
            if local is not None:
                found[entry] = local
                assert await self.repository.to_origin(TOPIC, local) == (KEY, Position(5, entry))
        return found

    async def written(self) -> None:
        """Wait until the database has all."""
        await self.writer.flush()

    async def reaches_the_index(self) -> None:
        async def complete() -> bool:
            return (await self.repository.count_extents(TOPIC))[2] == len(self.lies_at)

        async with asyncio.timeout(20):
            while not await complete():  # noqa: ASYNC110 - the condition is in the database
                await asyncio.sleep(0.02)


@asynccontextmanager
async def world(url: str, data: Path, *, running: bool = False) -> AsyncIterator[World]:
    database = Database(url, data, cluster="eu-west", known_good=False)
    await database.start()
    assert database.engine is not None
    engine = await Engine.open(data, cluster="eu-west")
    writer = IndexWriter(database, cluster="eu-west", resync=lambda: None, engine=engine)
    if running:
        writer.start()
    try:
        yield World(engine, writer, SnapshotRepository(database.engine, "eu-west"))
    finally:
        await writer.stop()
        await engine.close()
        await database.stop()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of four runs, so that a few blocks make several."""
    monkeypatch.setattr(index_extents, "SEGMENT_RUNS", 4)
    monkeypatch.setattr(index_rebuild, "SEGMENT_RUNS", 4)


def test_every_copied_entry_is_found_in_both_directions_and_others_are_not(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            for runs in ((3, 1, 2), (5,), (1, 1, 1, 1, 1, 1), (2, 2)):
                await w.copy(*runs)
                await w.written()
                assert await w.translated() == w.lies_at
            assert await w.repository.count_extents(TOPIC) == (3, 12, w.copied)
            own = (await w.topic()).log.last
            assert await w.repository.to_origin(TOPIC, own) is None

    asyncio.run(main())


def test_what_is_copied_reaches_the_index_by_itself(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.index.writer.EXTENTS_SECONDS", 0.05)
    monkeypatch.setattr("replicator.index.writer.PROBE_SECONDS", 0.05)

    async def main() -> None:
        async with world(postgres_url, data_dir, running=True) as w:
            for _ in range(5):
                await w.copy(2, 3, 1)
                await w.reaches_the_index()
            assert await w.translated() == w.lies_at

    asyncio.run(main())


def test_where_many_mappings_grow_they_are_written_seldom_and_a_look_up_still_finds_all(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.index.writer.EXTENTS_SECONDS", 0.01)
    monkeypatch.setattr("replicator.index.writer.EXTENTS_A_SECOND", 0.001)  # one mapping stands for 20,000
    monkeypatch.setattr("replicator.index.writer.THINNED_SECONDS_MAX", 1_000.0)
    monkeypatch.setattr("replicator.index.writer.PROBE_SECONDS", 0.05)
    monkeypatch.setattr("replicator.index.writer.GATHER_SECONDS", 0.01)
    monkeypatch.setattr("replicator.index.writer.GATHER_SECONDS_MAX", 0.01)

    async def main() -> None:
        async with world(postgres_url, data_dir, running=True) as w:
            assert w.writer.extents is not None
            await w.copy(6)  # at once: after one write the next one is 1,000 s away
            await w.reaches_the_index()
            written = w.writer.extents.mappings_written
            for _ in range(20):
                await w.copy(1)
                await asyncio.sleep(0.05)
            assert w.writer.extents.mappings_written == written
            last = max(w.lies_at)
            assert await w.writer.to_local(KEY, Position(5, last)) == w.lies_at[last]
            assert await w.translated() == w.lies_at

    asyncio.run(main())


@pytest.mark.parametrize(("written", "seconds"), [(0, 2.0), (40, 2.0), (100, 5.0), (200, 10.0), (10_000, 10.0)])
def test_the_pause_between_two_writes_of_extents_grows_with_what_was_written(written: int, seconds: float) -> None:
    """Each of 200 mappings that grow all the time is written every 10 s, so 20 a second are."""
    assert extents_pause(written) == seconds


def test_a_long_run_takes_one_row_however_long_it_grows(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            topic = await w.topic()
            for first in range(0, 500, 100):
                previous = Position(5, first - 1) if first else BEFORE_ALL
                block = make_block(Position(5, first), [message()] * 100, incarnation=INCARNATION)
                (extent,) = await topic.writing.copy([CopiedBlock(previous, block)])
                w.writer.changes.extents_recorded(
                    TOPIC, ORIGIN, INCARNATION, extent.origin_first, extent.local_first, 100
                )
                await w.written()
            assert await w.repository.count_extents(TOPIC) == (1, 1, 500)

    asyncio.run(main())


def test_small_mappings_of_many_topics_are_written_together(postgres_url: str, data_dir: Path) -> None:
    """Topics that begin at the same time make such mappings: one for each cluster that they have messages of."""

    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.written()
            begun = 0

            def count(*_: object) -> None:
                nonlocal begun
                begun += 1

            assert w.repository._engine is not None
            event.listen(w.repository._engine.sync_engine, "before_cursor_execute", count)
            for first in (0, 1):
                for number in range(30):
                    name = f"persistent://public/default/many-{number}"
                    topic = await w.engine.topic(name)
                    for origin in ("us-east", "ap-south"):
                        previous = Position(5, first - 1) if first else BEFORE_ALL
                        block = make_block(Position(5, first), [message()], origin=origin, incarnation=INCARNATION)
                        (extent,) = await topic.writing.copy([CopiedBlock(previous, block)])
                        places = extent.origin_first, extent.local_first
                        w.writer.changes.extents_recorded(topic.name, origin, INCARNATION, *places, 1)
                await w.writer.flush()
            assert (await w.repository.count_extents())[2] == 120
            assert begun <= 10, "statements"

    asyncio.run(main())


def test_after_a_restart_the_last_segment_goes_on_growing(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        lies_at: dict[int, Position] = {}
        copied = 0
        for _ in range(3):
            async with world(postgres_url, data_dir) as w:
                w.copied, w.lies_at = copied, lies_at
                await w.copy(1, 2, 1)
                await w.written()
                assert await w.translated() == lies_at
                copied = w.copied
                segments, runs, _ = await w.repository.count_extents(TOPIC)
        assert (segments, runs) == (3, 9)

    asyncio.run(main())


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM extent_segments",
        "DELETE FROM extent_segments WHERE origin_entry = 0",
        "DELETE FROM extent_segments WHERE origin_entry = (SELECT max(origin_entry) FROM extent_segments)",
        "DELETE FROM extent_segments WHERE origin_entry NOT IN (SELECT min(origin_entry) FROM extent_segments UNION "
        "SELECT max(origin_entry) FROM extent_segments)",
        "UPDATE extent_segments SET local_last_entry = local_last_entry + 1 WHERE origin_entry > 3",
        "INSERT INTO extent_segments SELECT cluster, topic, 'gone', incarnation, origin_ledger, origin_entry, "
        "origin_last_ledger, origin_last_entry, local_ledger, local_entry, local_last_ledger, local_last_entry, "
        "entries, runs, packed FROM extent_segments",
    ],
)
def test_an_index_of_the_past_or_damaged_comes_right_at_the_next_start(
    postgres_url: str, data_dir: Path, damage: str
) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(*[1] * 14)
            await w.written()
            lies_at, copied = w.lies_at, w.copied
        with psycopg.connect(postgres_url) as connection:
            connection.execute(damage)
        async with world(postgres_url, data_dir) as w:
            w.lies_at, w.copied = lies_at, copied
            await w.written()
            assert await w.translated() == lies_at
            assert await w.repository.count_extents() == (4, 14, 14)
            assert await w.repository.extent_keys() == [KEY]

    asyncio.run(main())


def test_an_index_that_is_right_is_not_written_again_at_a_start(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(*[1] * 14)
            await w.written()
        with psycopg.connect(postgres_url) as connection:
            before = connection.execute("SELECT max(written_at) FROM extent_segments").fetchone()
        async with world(postgres_url, data_dir) as w:
            await w.written()
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute("SELECT max(written_at) FROM extent_segments").fetchone() == before

    asyncio.run(main())


def test_rows_of_a_life_of_the_store_that_was_rolled_back_are_replaced(postgres_url: str, data_dir: Path) -> None:
    """The store is restored from an old copy: us-east's entries are copied again, and lie elsewhere (invariant 10)."""

    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(1, 1, 1, 1, 1)
            await w.written()
            lies_at, copied = dict(w.lies_at), w.copied
        shutil.copytree(data_dir / "log", data_dir.parent / "copy")
        async with world(postgres_url, data_dir) as w:
            w.copied = copied
            await w.copy(1, 1, 1, 1, 1)
            await w.written()
            lost = dict(w.lies_at)
        shutil.rmtree(data_dir / "log")
        shutil.copytree(data_dir.parent / "copy", data_dir / "log")
        async with world(postgres_url, data_dir) as w:
            w.copied, w.lies_at = copied, lies_at
            await w.copy(2, 1, 3)
            assert lies_at[5] != lost[5], "a position was used again"
            await w.written()
            assert await w.translated() == lies_at

    asyncio.run(main())


def test_trimmed_segments_leave_the_index(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(*[1] * 14)
            await w.written()
            topic = await w.topic()
            await topic.trimming.trim(w.lies_at[9])
            w.writer.changes.extents_trimmed(TOPIC, topic.log.trimmed)
            await w.written()
            assert (await w.repository.count_extents(TOPIC))[0] == 2
            await w.copy(1, 1, 1)
            await w.written()
            found = await w.translated()
            assert found.items() <= w.lies_at.items()
            assert set(range(10, 17)) <= set(found)
            await topic.trimming.trim(topic.log.last)
            w.writer.changes.extents_trimmed(TOPIC, topic.log.trimmed)
            await w.written()
            assert await w.repository.count_extents(TOPIC) == (0, 0, 0)
            await w.copy(2)
            await w.written()
            assert (await w.repository.count_extents(TOPIC))[2] == 2

    asyncio.run(main())


def test_extents_of_a_deleted_topic_go_and_those_of_the_one_made_anew_stay(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.written()
            await w.copy(1, 2, 3)
            await w.written()
            await w.engine.deleting.delete(TOPIC)
            w.writer.changes.topic_deleted(TOPIC)
            w.copied, w.lies_at = 0, {}
            await w.copy(2, 1)
            assert await w.writer.to_local(KEY, Position(5, 0)) == w.lies_at[0]
            await w.written()
            assert await w.translated() == w.lies_at
            assert (await w.repository.count_extents(TOPIC))[2] == 3

    asyncio.run(main())


# mapping rebuild


def test_a_rebuild_finds_everything_again_in_the_logs_and_again_changes_nothing(
    postgres_url: str, data_dir: Path
) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(*[1, 2, 3] * 5)
            topic = await w.topic()
            await topic.subscriptions.create("sub", w.lies_at[3], replicated=True)
            await w.written()
            rebuild = IndexRebuild(w.engine, w.writer, mappings=lambda _: ())
            for _ in range(2):
                with psycopg.connect(postgres_url) as connection:
                    connection.execute("UPDATE extent_segments SET packed = '\\x00' WHERE origin_entry > 3")
                    connection.execute("DELETE FROM subscription_states")
                    connection.execute(
                        "UPDATE extent_segments SET topic = 'persistent://public/default/never' WHERE origin_entry = 0"
                    )
                    connection.execute(
                        "INSERT INTO extent_segments SELECT cluster, topic, 'gone', incarnation, 1, 1, 1, 1, 1, 1, 1, "
                        "1, 1, 1, packed FROM extent_segments WHERE origin_entry > 3 LIMIT 1"
                    )
                    connection.execute(
                        "INSERT INTO snapshot_mappings VALUES ('eu-west', %s, 'us-east', 1, 2, 3, 4, 'stale')", (TOPIC,)
                    )
                await rebuild.rebuild()
                assert await w.translated() == w.lies_at
                assert await w.repository.count_extents(TOPIC) == (4, 15, w.copied)
                assert [each.subscription for each in await w.repository.subscription_states()] == ["sub"]
                assert await w.repository.mappings(TOPIC) == []
                assert await w.repository.topics() == [TOPIC]
            assert rebuild.progress.store_rows_repaired == 0
            await w.copy(1)
            await w.written()
            assert await w.translated() == w.lies_at

    asyncio.run(main())


def test_a_rebuild_keeps_tombstones_and_each_peers_own_mappings(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            topic = await w.topic()
            await topic.subscriptions.create("gone", BEFORE_ALL, replicated=True)
            await topic.subscriptions.delete("gone")
            ((_, generation),) = topic.subscriptions.tombstones.items()
            # One local snapshot in the log is for all peers, and lies at the position of the last answer.
            kept = [SnapshotMapping("s", Position(1, at), peer, Position(3, 4)) for peer, at in (("b", 5), ("c", 7))]
            buried = SubscriptionState.buried(TOPIC, "gone", generation)
            await w.repository.record_mappings([(TOPIC, each) for each in kept])
            await w.repository.save_subscription_states([buried])
            await IndexRebuild(w.engine, w.writer, mappings=lambda name: kept if name == TOPIC else []).rebuild()
            assert await w.repository.subscription_states(tombstones=True) == [buried]
            assert await w.repository.mappings(TOPIC) == kept

    asyncio.run(main())


def test_a_rebuild_writes_no_state_of_a_topic_that_is_deleted_while_its_log_is_read(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            topic = await w.topic()
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            asked: list[Topic] = []

            def vector(of: Topic, _: Subscription) -> AckVector:
                asked.append(of)
                return AckVector()

            monkeypatch.setattr(w.writer, "states", SubscriptionStates(w.engine, vector))
            scan = IndexRebuild._scan

            async def scan_and_delete(rebuild: IndexRebuild, of: Topic) -> None:
                await scan(rebuild, of)
                await w.engine.deleting.delete(TOPIC, force=True)
                await w.topic()

            monkeypatch.setattr(IndexRebuild, "_scan", scan_and_delete)
            await IndexRebuild(w.engine, w.writer, mappings=lambda _: ()).rebuild()
            assert await w.repository.subscription_states() == []
            assert asked == []

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["wrong", "missing", "extra", "all", "doubled"])
def test_a_rebuild_repairs_the_stores_extents_by_the_log(postgres_url: str, data_dir: Path, damage: str) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(*[2] * 11)
            topic = await w.topic()

            def stored() -> list[Extent]:
                return read_extents(w.engine.store, topic.topic_id, ORIGIN, INCARNATION, runs_max=100)

            before = stored()
            rows = [extent_row(topic.topic_id, ORIGIN, INCARNATION, extent) for extent in before]
            lie = Extent(before[5].origin_first, before[4].local_first, 2)
            writes: dict[str, list[tuple[str, bytes, bytes | None]]] = {
                "wrong": [("extents", *extent_row(topic.topic_id, ORIGIN, INCARNATION, lie))],
                "missing": [("extents", rows[5][0], None)],
                "extra": [
                    (
                        "extents",
                        *extent_row(
                            topic.topic_id, ORIGIN, INCARNATION, Extent(Position(5, 3), before[1].local_first, 1)
                        ),
                    )
                ],
                "all": [("extents", row, None) for row, _ in rows],
                "doubled": [
                    ("extents", *extent_row(topic.topic_id, ORIGIN, INCARNATION, before[5]._replace(entries=4)))
                ],
            }
            await w.engine.writer.put_many(writes[damage])
            assert stored() != before
            rebuild = IndexRebuild(w.engine, w.writer, mappings=lambda _: ())
            await rebuild.rebuild(TOPIC)
            assert stored() == before
            assert rebuild.progress.store_rows_repaired > 0
            assert await w.translated() == w.lies_at
            await w.copy(1, 1)
            await w.written()
            assert await w.translated() == w.lies_at
            again = IndexRebuild(w.engine, w.writer, mappings=lambda _: ())
            await again.rebuild()
            assert again.progress.store_rows_repaired == 0

    asyncio.run(main())


def test_a_rebuild_works_while_traffic_flows(
    postgres_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.index.writer.EXTENTS_SECONDS", 0.01)
    monkeypatch.setattr(index_rebuild, "HEADERS_AT_ONCE", 3)

    async def main() -> None:
        async with world(postgres_url, data_dir, running=True) as w:
            await w.copy(*[1] * 30)
            rebuild = IndexRebuild(w.engine, w.writer, mappings=lambda _: ())

            async def traffic() -> None:
                for _ in range(40):
                    await w.copy(1, 2)

            copying = asyncio.ensure_future(traffic())
            rounds = 0
            while not copying.done() or rounds < 3:
                assert rebuild.start()
                assert not rebuild.start()
                await eventually(lambda: rebuild.progress.state != "running", "the end of the rebuild")
                assert (rebuild.progress.state, rebuild.progress.store_rows_repaired) == ("done", 0)
                rounds += 1
            await copying
            await w.reaches_the_index()
            assert await w.translated() == w.lies_at

    asyncio.run(main())


def test_a_rebuild_without_its_database_fails_and_says_why(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(1)
            with psycopg.connect(postgres_url) as connection:
                connection.execute("DROP TABLE extent_segments")
            rebuild = IndexRebuild(w.engine, w.writer, mappings=lambda _: ())
            rebuild.start()
            await eventually(lambda: rebuild.progress.state == "failed", "the failure")
            assert "extent_segments" in rebuild.progress.detail

    asyncio.run(main())


# The halves of translate


def test_the_halves_of_a_translation_answer_and_say_where_they_looked(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(2, 2)
            topic = await w.topic()
            await w.written()
            translator = Translator(w.engine, w.writer)
            found = await translator.identity(TOPIC, w.lies_at[3])
            assert (found.origin, found.incarnation, found.position, found.source) == (
                ORIGIN,
                INCARNATION,
                Position(5, 3),
                "postgres",
            )
            place = await translator.place(TOPIC, ORIGIN, INCARNATION, Position(5, 1))
            assert (place.position, place.source) == (w.lies_at[1], "postgres")
            own = topic.log.last
            identity = await translator.identity(TOPIC, own)
            assert (identity.origin, identity.position, identity.source) == ("eu-west", own, "log")
            assert (await translator.place(TOPIC, "eu-west", topic.incarnation, own)).position == own

            async def away(*_: object) -> None:
                raise RepositoryUnavailable("away")

            w.writer.to_local = w.writer.to_origin = away  # type: ignore[method-assign, assignment]
            found = await translator.identity(TOPIC, w.lies_at[3])
            assert (found.position, found.source) == (Position(5, 3), "store")
            place = await translator.place(TOPIC, ORIGIN, INCARNATION, Position(5, 1))
            assert (place.position, place.source) == (w.lies_at[1], "store")

    asyncio.run(main())


def test_what_cannot_be_translated_is_refused_by_its_reason(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with world(postgres_url, data_dir) as w:
            await w.copy(2, 2)
            topic = await w.topic()
            marker = await topic.writing.marker(message())
            last = topic.log.last
            translator = Translator(w.engine, w.writer)
            await w.written()
            with pytest.raises(PositionBeyondEnd, match=f"ends at {last} in eu-west"):
                await translator.identity(TOPIC, Position(last.ledger, last.entry + 1))
            with pytest.raises(PositionUnknown, match="no entry 1:0"):
                await translator.identity(TOPIC, Position(1, 0))
            with pytest.raises(PositionIsMarker, match="is a marker"):
                await translator.identity(TOPIC, marker)
            place = await translator.place(TOPIC, "eu-west", topic.incarnation, marker)
            assert place.position == marker, "another cluster asks for it, to mend its damaged copy"
            with pytest.raises(NotCopied, match="not in eu-west yet: it has us-east up to 5:3"):
                await translator.place(TOPIC, ORIGIN, INCARNATION, Position(5, 4))
            with pytest.raises(NotCopied, match="nothing of ap-south"):
                await translator.place(TOPIC, "ap-south", 1, Position(5, 4))
            with pytest.raises(OtherIncarnation, match="deleted and made anew"):
                await translator.place(TOPIC, ORIGIN, INCARNATION + 1, Position(5, 0))
            with pytest.raises(OtherIncarnation):
                await translator.place(TOPIC, "eu-west", topic.incarnation + 1, last)
            with pytest.raises(NotCopied, match="left out"):
                await translator.place(TOPIC, ORIGIN, INCARNATION, Position(4, 4))
            await topic.trimming.trim(w.lies_at[1])
            for incarnation, position in ((INCARNATION, Position(5, 0)),):
                with pytest.raises(PositionTrimmed):
                    await translator.place(TOPIC, ORIGIN, incarnation, position)
            with pytest.raises(PositionTrimmed, match="trimmed up to"):
                await translator.identity(TOPIC, w.lies_at[0])

    asyncio.run(main())
