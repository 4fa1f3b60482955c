from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import (
    READ_FROM_DISK,
    TOPIC,
    batch,
    entries_of,
    eventually,
    logged,
    make_block,
    marker,
    message,
    opened,
    subscribed,
)

from replicator import __version__
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt, StoreFailed, StoreUnusable
from replicator.engine.log.block import BlockKind
from replicator.engine.log.store import Store
from replicator.engine.log.store_files import open_environment, open_tables
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX, TABLES
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position


def corrupt(engine: Engine, topic_id: int, block_index: int, change: Callable[[bytearray], None]) -> Position:
    """Change the stored bytes of one block of a topic behind the engine's back; returns the block's position."""
    with engine.store.env.begin(write=True, db=engine.store.tables["blocks"]) as txn:
        keys = [key for key, _ in txn.cursor() if BLOCK_KEY.unpack(key)[0] == topic_id]
        key = keys[block_index]
        value = bytearray(txn.get(key))
        change(value)
        txn.put(key, bytes(value))
        _, ledger, first = BLOCK_KEY.unpack(key)
        return Position(ledger, first)


def flip_last_byte(value: bytearray) -> None:
    value[-1] ^= 0x40


def flip_magic(value: bytearray) -> None:
    value[LOCAL_PREFIX.size] ^= 0x40


# Opening.


async def closed(path: Path, cluster: str = "us-east") -> None:
    async with opened(path, cluster) as engine:
        await (await engine.topic(TOPIC)).publish([message(b"kept")])


def rewrite_head(path: Path, **changes: object) -> None:
    store = Store(path, cluster="us-east", size_max=2**30)
    with store.env.begin(write=True, db=store.tables["meta"]) as txn:
        head = json.loads(txn.get(b"store"))
        txn.put(b"store", json.dumps(head | changes).encode())
    store.close()


def test_a_second_worker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom replicator.engine.engine import Engine\n"
        "from replicator.engine.errors import StoreUnusable\n"
        "try:\n    asyncio.run(Engine.open(Path(sys.argv[1]), cluster='us-east'))\n"
        "except StoreUnusable as error:\n    print(error)\n"
    )

    async def main() -> None:
        async with opened(tmp_path) as engine:
            with pytest.raises(StoreUnusable, match="in use"):
                await Engine.open(tmp_path, cluster="us-east")
            second = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", script, str(tmp_path)],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert "in use by another worker" in second.stdout, second.stderr
            await (await engine.topic(TOPIC)).publish([message()])

    asyncio.run(main())


def test_the_directory_of_another_cluster_is_refused_and_not_changed(tmp_path: Path) -> None:
    async def main() -> None:
        await closed(tmp_path)
        for _ in range(2):
            with pytest.raises(StoreUnusable, match="belongs to cluster 'us-east', not 'eu-west'"):
                await Engine.open(tmp_path, cluster="eu-west")
        async with opened(tmp_path) as engine:
            assert entries_of(await engine.topic(TOPIC), "us-east") == [message(b"kept")]

    asyncio.run(main())


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        await closed(tmp_path)
        rewrite_head(tmp_path, format=3, version="7.0.0")
        before = (tmp_path / "log" / "data.mdb").read_bytes()
        with pytest.raises(
            StoreUnusable, match=r"format 3, written by replicator 7\.0\.0.*reads formats 1 and 2.*upgrade\.md"
        ):
            await Engine.open(tmp_path, cluster="us-east")
        assert (tmp_path / "log" / "data.mdb").read_bytes() == before, "nothing is written before it is refused"

    asyncio.run(main())


def test_a_store_says_which_version_had_it_last(tmp_path: Path) -> None:
    async def main() -> None:
        await closed(tmp_path)
        rewrite_head(tmp_path, version="0.0.9")
        async with opened(tmp_path) as engine:
            assert engine.store.meta("store")["version"] == __version__

    asyncio.run(main())


def test_a_topic_that_cannot_be_loaded_leaves_the_directory_free_for_the_next_try(tmp_path: Path) -> None:
    """A cursor of a newer version is met only after the store is open and its writer runs."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await subscribed(topic)
            with engine.store.env.begin(write=True, db=engine.store.tables["cursors"]) as txn:
                ((key, stored),) = list(txn.cursor())
                txn.put(key, stored.replace(b'"format":2', b'"format":7'))
        for _ in range(2):
            with pytest.raises(StoreUnusable, match="format 7"):
                await Engine.open(tmp_path, cluster="us-east")

    asyncio.run(main())


def test_a_directory_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    places = [tmp_path / "file", tmp_path / "file" / "below", Path("/proc/replicator-test")]
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        places.append(tmp_path / "locked")
    for place in places:
        with pytest.raises(StoreUnusable, match="cannot be used") as caught:
            asyncio.run(Engine.open(place, cluster="us-east"))
        assert str(place) in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_log_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "data.mdb").write_bytes(b"not LMDB" * 4096)
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        asyncio.run(Engine.open(tmp_path, cluster="us-east"))


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"a"), batch([b"b"] * 7), message(b"c")])
            await topic.writing.marker(marker())
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(3, 0), [b"x"], origin="eu-west"))])
            consumer, inbox = await subscribed(topic)
            await inbox.holds(4)
            await consumer.acknowledge([Ack(inbox.positions[1], (1, 3)), Ack(inbox.positions[2])])
            consumer.close()
            await engine.topic("another")
            await engine.remember("database", {"reached": True})
            before = {topic.name: topic.status() for topic in engine.topics()}
            state = topic.subscriptions["sub"].cursor.state
        async with opened(tmp_path) as engine:
            assert {topic.name: topic.status() for topic in engine.topics()} == before
            assert (await engine.topic(TOPIC)).subscriptions["sub"].cursor.state == state
            assert engine.store.meta("database") == {"reached": True}

    asyncio.run(main())


# Reading.


def test_reading_pages_through_a_topic_without_repeating_or_skipping(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, other = await engine.topic(TOPIC), await engine.topic("other")
            for number in range(20):
                await topic.publish([message(b"%d.%d" % (number, index)) for index in range(number % 4 + 1)])
                await other.publish([message(b"other")])
            everything, end = topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)
            assert end == topic.log.last
            assert sum(block.header.entries for block in everything) == topic.log.entries
            for bytes_max in (1, 300, 1000):
                paged, after = [], BEFORE_ALL
                while after < topic.log.last:
                    page, reached = topic.reading.blocks(after, bytes_max=bytes_max)
                    assert page
                    assert len(page) == 1 or sum(len(block.block) for block in page) <= bytes_max
                    assert reached == page[-1].last > after
                    paged += page
                    after = reached
                assert paged == everything

    asyncio.run(main())


def test_a_range_inside_one_block_gives_that_block_and_an_empty_range_gives_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message(b"%d" % number) for number in range(10)])
            (block,), reached = topic.reading.blocks(positions[3], positions[5], bytes_max=1)
            assert (block.position, block.header.entries, reached) == (positions[0], 10, positions[5])
            for after, upto in [(5, 5), (6, 3), (9, 9)]:
                assert topic.reading.blocks(positions[after], positions[upto], bytes_max=1) == ([], positions[after])
            beyond = Position(positions[0].ledger + 1, 0)
            assert topic.reading.blocks(beyond, bytes_max=1) == ([], beyond)
            largest = Position(2**64 - 1, 2**64 - 1)
            assert topic.reading.blocks(largest, bytes_max=1) == ([], largest)
            assert topic.reading.blocks(Position(positions[0].ledger, 2**64 - 1), bytes_max=1)[0] == []

    asyncio.run(main())


def test_a_link_reads_only_what_its_source_originated_and_no_local_markers(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"own")])
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(3, 0), [b"x"], origin="eu-west"))])
            await topic.writing.marker(marker(b"shared"))
            await topic.writing.marker(marker(b"local"), local=True)
            blocks, reached = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6, origins={"us-east"})
            assert [block.header.kind for block in blocks] == [BlockKind.MESSAGES, BlockKind.MARKERS]
            assert reached == topic.log.last

    asyncio.run(main())


@pytest.mark.parametrize("change", [flip_last_byte, flip_magic])
def test_a_rotten_block_is_never_served_nor_handed_to_a_link(tmp_path: Path, change: Callable[..., None]) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=READ_FROM_DISK) as engine:
            topic, other = await engine.topic(TOPIC), await engine.topic("other")
            for number in range(3):
                await topic.publish([message(b"%d" % number)])
                await other.publish([message(b"%d" % number)])
            bad = corrupt(engine, topic.topic_id, 1, change)
            for origins in (None, {"us-east"}):
                with pytest.raises(BlockCorrupt):
                    topic.reading.blocks(BEFORE_ALL, bytes_max=10**6, origins=origins)
            with pytest.raises(BlockCorrupt):
                topic.reading.entries(Position(bad.ledger, bad.entry - 1), None, 10, 10**6)
            assert len(topic.reading.entries(BEFORE_ALL, Position(bad.ledger, bad.entry - 1), 10, 10**6)) == 1
            assert len(topic.reading.blocks(bad, bytes_max=10**6)[0]) == 1 if change is flip_last_byte else True
            assert len(logged(other)) == 3

    asyncio.run(main())


def test_a_subscription_stands_still_at_a_rotten_block_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=READ_FROM_DISK) as engine:
            topic = await engine.topic(TOPIC)
            for number in range(3):
                await topic.publish([message(b"%d" % number)])
            corrupt(engine, topic.topic_id, 1, flip_last_byte)
            _, inbox = await subscribed(topic)
            await eventually(lambda: topic.subscriptions["sub"].dispatching.error)
            assert "checksum" in str(topic.subscriptions["sub"].status()["error"])
            assert len(inbox.deliveries) <= 1

    asyncio.run(main())


def test_a_long_stretch_of_others_blocks_is_passed_over_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.engine.log.store.PASS_OVER_BLOCKS_MAX", 3)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            previous = BEFORE_ALL
            for n in range(10):
                block = make_block(Position(3, n), [message()], origin="eu-west")
                await topic.writing.copy([CopiedBlock(previous, block)])
                previous = Position(3, n)
            (mine,) = await topic.publish([message(b"mine")])
            calls, after = 0, BEFORE_ALL
            while after < topic.log.last:
                blocks, after = topic.reading.blocks(after, bytes_max=1 << 20, origins={"us-east"})
                calls += 1
            assert [stored.position for stored in blocks] == [mine]
            assert calls == 4

    asyncio.run(main())


def test_a_file_that_was_cut_short_is_refused_instead_of_ending_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await (await engine.topic(TOPIC)).publish([message(b"x" * 100_000)])
        file = tmp_path / "log" / "data.mdb"
        with file.open("r+b") as data:
            data.truncate(100_000)
        with pytest.raises(StoreUnusable, match="cut short"):
            await Engine.open(tmp_path, cluster="us-east")

    asyncio.run(main())


def test_invariant_1_nothing_is_confirmed_once_the_file_is_not_the_one_in_the_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            (tmp_path / "log" / "data.mdb").rename(tmp_path / "log" / "moved.mdb")
            with pytest.raises(StoreFailed, match="gone"):
                await topic.publish([message()])
            (tmp_path / "log" / "moved.mdb").rename(tmp_path / "log" / "data.mdb")

    asyncio.run(main())


def test_invariant_10_a_store_put_back_together_with_its_clock_reuses_no_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two lives differ by chance alone, as when a virtual machine is set back to a snapshot."""
    salts = iter([5, 5, 17, 17])
    monkeypatch.setattr("replicator.engine.log.commit.group_commits.secrets.randbelow", lambda _: next(salts))
    settings = EngineSettings(wall_clock_ms=lambda: 1_800_000_000_000)

    async def life() -> Position:
        async with opened(tmp_path / "store", settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            (position,) = await topic.publish([message()])
            return position

    first = asyncio.run(life())
    shutil.rmtree(tmp_path / "store")
    assert asyncio.run(life()) != first


def test_nobody_but_the_owner_reads_the_log(tmp_path: Path) -> None:
    """Also where an older version made it for all to read."""
    directory = tmp_path / "log"

    async def opened_once() -> None:
        async with opened(tmp_path) as engine:
            await (await engine.topic(TOPIC)).publish([message()])

    asyncio.run(opened_once())
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o077 for file in directory.iterdir()} == {0}
    directory.chmod(0o755)
    asyncio.run(opened_once())
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_new_stores_tables_are_made_in_one_transaction(tmp_path: Path) -> None:
    """Each transaction waits for the disk."""
    env = open_environment(tmp_path, 1 << 24, len(TABLES))
    open_tables(env, tmp_path, TABLES)
    assert env.info()["last_txnid"] == 1
    env.close()
    env = open_environment(tmp_path, 1 << 24, len(TABLES))
    open_tables(env, tmp_path, TABLES)
    assert env.info()["last_txnid"] == 1
    env.close()


def test_what_was_just_committed_is_read_without_the_disk_and_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"one"), batch([b"two", b"three"])])
            block = make_block(Position(3, 0), [message(b"four")], origin="eu-west")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
            await topic.writing.marker(marker())
            for origins in (None, {"us-east"}, {"eu-west"}):
                for bytes_max in (1, 10**6):
                    pages = []
                    for from_memory in (True, False):
                        after, page = BEFORE_ALL, []
                        while after < topic.log.last:
                            found, after = topic.reading.blocks(
                                after, bytes_max=bytes_max, origins=origins, from_memory=from_memory
                            )
                            page += [(each.position, each.header, bytes(each.block)) for each in found]
                        pages.append(page)
                    assert pages[0] == pages[1]
            for index in range(3):
                corrupt(engine, topic.topic_id, index, flip_last_byte)
            assert len(topic.reading.entries(BEFORE_ALL, None, 10, 10**6)) == 4
            assert len(topic.reading.blocks(BEFORE_ALL, bytes_max=10**6, from_memory=True)[0]) == 3

    asyncio.run(main())
