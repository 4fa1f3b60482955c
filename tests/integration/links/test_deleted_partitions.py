"""A partitioned topic that was deleted on purpose does not come back without a message; one that was made since does.

Invariants (DESIGN §3): 12, what was deleted stays so; 13, a topic in use is not taken for a deleted one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession
from asynchronous import asynchronous
from engine_support import entries_of, eventually, message, opened, serving
from link_support import Web
from link_support import web as mesh_of

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreFull
from replicator.engine.topic import Topic
from replicator.engine.topics.partitions import PartitionedTopic
from replicator.links.partition_announcer import PartitionAnnouncer
from replicator.peering.partitions import PARTITIONS_ROUTE, PartitionsReply, PartitionsReport
from replicator.topology import Link as LinkSpec
from snapshots.position import Position

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

PARTED = "persistent://public/default/parted"
AHEAD_MS = 3_600_000
BOTH = [LinkSpec("a", "b"), LinkSpec("b", "a")]
BACK = [LinkSpec("b", "a")]
MESH = [LinkSpec(one, other) for one in "abc" for other in "abc" if one != other]
RING = [LinkSpec("a", "b", forward=True), LinkSpec("b", "c", forward=True), LinkSpec("c", "a", forward=True)]


def count(engine: Engine) -> int:
    return engine.partitioned.count(PARTED)


def gone(engine: Engine) -> bool:
    """Return whether neither the name nor a partition exists."""
    return count(engine) == 0 and not engine.catalog.index.partitions_here(PARTED)


@asynccontextmanager
async def connected(path: Path, specs: Sequence[LinkSpec]) -> AsyncIterator[Web]:
    """Yield clusters after each link announced all that it announces when it connects."""
    async with mesh_of(path, specs) as made:
        await settled(made)
        yield made


async def settled(made: Web) -> None:
    for link in made.links.values():
        await eventually(lambda link=link: link.state == "idle" and not link._partitions._unannounced)  # type: ignore[misc]
    for source, link in made.links.items():  # a message of its own shows that what was sent before has arrived
        topic = await link.engine.topic(f"probe-{link.engine.origin_stores.store[:8]}")
        await topic.publish([message(source.encode())])
        there, want = made.engines[link.to], topic.log.messages
        await eventually(lambda there=there, name=topic.name, want=want: messages(there, name) >= want)  # type: ignore[misc]


def messages(engine: Engine, name: str) -> int:
    found = engine.find(name)
    return 0 if found is None else found.log.messages


async def published(engine: Engine, *partitions: int, content: bytes = b"1") -> None:
    for index in partitions:
        topic = await engine.topic(f"{PARTED}-partition-{index}")
        await topic.publish([message(content)])


async def made_and_deleted(path: Path, specs: Sequence[LinkSpec]) -> None:
    """Make three partitions at ``a``, one of them with a message, and delete them when all clusters have them."""
    async with connected(path, specs) as made:
        a = made.engines["a"]
        for engine in made.engines.values():
            await engine.partitioned.create(PARTED, 3)
        await published(a, 0)
        await settled(made)
        await a.partitioned.delete(PARTED, force=True)
        await settled(made)
        assert gone(a)


@pytest.mark.parametrize("specs", [BOTH, BACK, RING], ids=["both ways", "back only", "ring"])
@asynchronous
async def test_it_does_not_come_back_when_links_connect_again(tmp_path: Path, specs: Sequence[LinkSpec]) -> None:
    await made_and_deleted(tmp_path, specs)
    for _ in range(2):
        async with connected(tmp_path, specs) as made:
            assert gone(made.engines["a"])
            assert count(made.engines["b"]) == 3, "its copy stays"


@pytest.mark.parametrize("specs", [BOTH, RING], ids=["both ways", "ring"])
@asynchronous
async def test_it_does_not_come_back_by_a_lost_disk(tmp_path: Path, specs: Sequence[LinkSpec]) -> None:
    await made_and_deleted(tmp_path, specs)
    shutil.rmtree(tmp_path / "a")
    async with connected(tmp_path, specs) as made:
        a = made.engines["a"]
        assert gone(a)
        assert "a" in a.origin_stores.partitioned_deleted(PARTED), "the new store learns of the deletion"


@pytest.mark.parametrize("specs", [MESH, RING], ids=["mesh", "ring"])
@asynchronous
async def test_it_does_not_come_back_by_a_cluster_that_gets_it_from_another(
    tmp_path: Path, specs: Sequence[LinkSpec]
) -> None:
    """The third cluster has a new store, and does not know of the deletion before it has the topic."""
    await made_and_deleted(tmp_path, specs)
    for _ in range(2):
        shutil.rmtree(tmp_path / "c")
        async with connected(tmp_path, specs) as made:
            await eventually(lambda: count(made.engines["c"]) == 3)
            await settled(made)
            assert gone(made.engines["a"])


@asynchronous
async def test_it_does_not_come_back_when_two_of_three_disks_are_lost(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, MESH)
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    async with connected(tmp_path, MESH) as made:
        await eventually(lambda: count(made.engines["b"]) == 3)
        await settled(made)
        assert gone(made.engines["a"])


@asynchronous
async def test_a_one_way_link_learns_of_the_deletion_from_the_answer_and_keeps_it_over_a_lost_disk(
    tmp_path: Path,
) -> None:
    await made_and_deleted(tmp_path, BACK)
    async with connected(tmp_path, BACK) as made:
        await eventually(lambda: "a" in made.engines["b"].partitioned.deletions_since(PARTED))
    shutil.rmtree(tmp_path / "a")
    async with connected(tmp_path, BACK) as made:
        assert gone(made.engines["a"])


@pytest.mark.parametrize("learns_first", [True, False])
@asynchronous
async def test_a_later_one_that_is_deleted_does_not_come_back_if_the_clock_was_ahead_at_the_first_deletion(
    tmp_path: Path, learns_first: bool
) -> None:
    """The disk is lost in between. The second topic is made before or after the store learns of the first deletion."""
    async with connected(tmp_path, BOTH) as made:
        await made.engines["a"].partitioned.create(PARTED, 3)
        await eventually(lambda: count(made.engines["b"]) == 3)
    ahead = EngineSettings(wall_clock_ms=lambda: time.time_ns() // 1_000_000 + AHEAD_MS)
    async with opened(tmp_path / "a", "a", ahead) as a:
        await a.partitioned.delete(PARTED, force=True)
        first = a.origin_stores.partitioned_deleted(PARTED)["a"]
    async with connected(tmp_path, BOTH) as made:
        await eventually(lambda: made.engines["b"].origin_stores.partitioned_deleted(PARTED) == {"a": first})
    shutil.rmtree(tmp_path / "a")
    if learns_first:
        async with connected(tmp_path, BOTH) as made:
            assert gone(made.engines["a"])
    async with opened(tmp_path / "a", "a") as a:
        await a.partitioned.create(PARTED, 3)
    async with connected(tmp_path, BOTH) as made:
        a, b = made.engines["a"], made.engines["b"]
        await eventually(lambda: b.partitioned.deletions_since(PARTED) == {})
        await a.partitioned.delete(PARTED, force=True)
        assert a.origin_stores.partitioned_deleted(PARTED)["a"] > first
        await settled(made)
        assert gone(a)
    async with connected(tmp_path, BOTH) as made:
        assert gone(made.engines["a"])


@asynchronous
async def test_one_that_was_made_before_the_store_learned_of_its_deletion_is_in_use_for_all(tmp_path: Path) -> None:
    """A third cluster hears of the deletion, and then that the topic is there again."""
    await made_and_deleted(tmp_path, MESH)
    shutil.rmtree(tmp_path / "a")
    async with opened(tmp_path / "a", "a") as a:
        await a.partitioned.create(PARTED, 3)
    async with connected(tmp_path, MESH) as made:
        a = made.engines["a"]
        await eventually(lambda: "a" in a.origin_stores.partitioned_deleted(PARTED))
        for name in "bc":
            there = made.engines[name]
            await eventually(lambda there=there: there.partitioned.deletions_since(PARTED) == {})  # type: ignore[misc]
        await settled(made)
        assert [made.engines[name].partitioned.deletions_since(PARTED) for name in "bc"] == [{}, {}]


@asynchronous
async def test_an_announcement_that_waits_for_a_deletion_does_not_undo_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", "a") as a, serving(a, {"b"}) as server, ClientSession() as session:
        await a.partitioned.create(PARTED, 3)
        hold = asyncio.Event()

        async def another_change() -> None:
            await hold.wait()

        holding = asyncio.ensure_future(a.catalog.alone(another_change))
        deleting = asyncio.ensure_future(a.partitioned.delete(PARTED))
        await eventually(lambda: len(a._changes._tasks) == 2)
        url, told = f"http://{server.address}{PARTITIONS_ROUTE}", PartitionsReport({PARTED: 3}, True)
        announcing = asyncio.ensure_future(session.post(url, params={"from": "b"}, json=told.as_json()))
        await eventually(lambda: len(a._changes._tasks) == 3)
        hold.set()
        await asyncio.gather(holding, deleting)
        async with await announcing as response:
            reply = PartitionsReply.of_json(await response.json())
        assert gone(a)
        assert list(reply.deleted.values()) == list(a.origin_stores.partitioned_deleted(PARTED).values())


@asynchronous
async def test_it_comes_back_with_the_first_message_and_with_all_its_partitions(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, BOTH)
    async with connected(tmp_path, BOTH) as made:
        a, b = made.engines["a"], made.engines["b"]
        await published(b, 2, content=b"in use")
        await eventually(lambda: messages(a, f"{PARTED}-partition-2") == 1)
        assert count(a) == 3
        assert a.catalog.subscribable("public/default").count(PARTED) == 1
    async with connected(tmp_path, BOTH) as made:
        assert count(made.engines["a"]) == 3


@asynchronous
async def test_markers_alone_do_not_bring_it_back(tmp_path: Path) -> None:
    """Consumers of the copy go on, and their states travel as markers in partitions that had no message of ``a``."""
    await made_and_deleted(tmp_path, BOTH)
    async with connected(tmp_path, BOTH) as made:
        a, b = made.engines["a"], made.engines["b"]
        for index in range(3):
            topic = b.find(f"{PARTED}-partition-{index}")
            assert topic is not None
            await topic.writing.marker(b"a marker")
        await settled(made)
        assert gone(a)
    async with connected(tmp_path, BOTH) as made:
        assert gone(made.engines["a"])


@asynchronous
async def test_one_that_was_made_after_the_deletion_is_made_everywhere_again(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, BOTH)
    async with opened(tmp_path / "b", "b") as b:  # no link is connected
        await b.partitioned.delete(PARTED, force=True)
        await b.partitioned.create(PARTED, 5)
    async with connected(tmp_path, BOTH) as made:
        await eventually(lambda: count(made.engines["a"]) == 5)
        assert len(made.engines["a"].catalog.index.partitions_here(PARTED)) == 5
        await made.engines["a"].partitioned.delete(PARTED, force=True)
        await settled(made)
    async with connected(tmp_path, BOTH) as made:
        assert gone(made.engines["a"]), "the later one was deleted too"


@pytest.mark.parametrize("specs", [BOTH, BACK], ids=["both ways", "back only"])
@asynchronous
async def test_a_cluster_that_made_it_anew_gets_markers_again_and_gets_it_back_after_a_lost_disk(
    tmp_path: Path, specs: Sequence[LinkSpec]
) -> None:
    await made_and_deleted(tmp_path, specs)
    async with connected(tmp_path, specs) as made:
        a, b = made.engines["a"], made.engines["b"]
        await eventually(lambda: "a" in b.partitioned.deletions_since(PARTED))
        await a.partitioned.create(PARTED, 3)
    async with connected(tmp_path, specs) as made:
        b = made.engines["b"]
        await eventually(lambda: b.partitioned.deletions_since(PARTED) == {})
        topic = b.find(f"{PARTED}-partition-1")
        assert topic is not None
        at = await topic.writing.marker(b"a marker")
        there = made.engines["a"].find(topic.name)
        assert there is not None
        await eventually(lambda: reached(there, "b") == at)
    shutil.rmtree(tmp_path / "a")
    async with connected(tmp_path, specs) as made:
        await eventually(lambda: count(made.engines["a"]) == 3)


def reached(topic: Topic, origin: str) -> Position | None:
    mark = topic.origins.high_water(origin)
    return None if mark is None else mark.position


@asynchronous
async def test_one_that_is_made_while_the_link_is_connected_is_made_at_the_other_end_at_once(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, BACK)
    async with connected(tmp_path, BACK) as made:
        a, b = made.engines["a"], made.engines["b"]
        await b.partitioned.delete(PARTED, force=True)
        await b.partitioned.create(PARTED, 2)
        await eventually(lambda: count(a) == 2)


@asynchronous
async def test_a_copy_that_grows_does_not_bring_it_back_and_a_topic_in_use_grows_at_both_ends(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, BOTH)
    async with connected(tmp_path, BOTH) as made:
        a, b = made.engines["a"], made.engines["b"]
        await b.partitioned.grow(PARTED, 4)
        await settled(made)
        assert gone(a)
        await published(b, 3)
        await eventually(lambda: count(a) == 4)
        await a.partitioned.grow(PARTED, 6)
        await eventually(lambda: count(b) == 6)


@asynchronous
async def test_a_deleted_plain_topic_of_the_name_keeps_no_partitioned_one_away(tmp_path: Path) -> None:
    """Two clusters made the name differently. An operator deletes the plain topic, which ends the conflict."""
    async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b:
        plain = await a.topic(PARTED)
        await plain.publish([message(b"plain")])
        await b.partitioned.create(PARTED, 2)
        await a.deleting.delete(PARTED, force=True)
        assert a.origin_stores.deletions
    async with connected(tmp_path, BACK) as made:
        await eventually(lambda: count(made.engines["a"]) == 2)


@asynchronous
async def test_a_source_of_an_earlier_version_is_answered_as_before(tmp_path: Path) -> None:
    await made_and_deleted(tmp_path, BACK)
    async with opened(tmp_path / "a", "a") as a, serving(a, {"b"}) as server, ClientSession() as session:
        url = f"http://{server.address}{PARTITIONS_ROUTE}"
        told = PartitionsReport({PARTED: 3}, True)
        async with session.post(url, params={"from": "b"}, json=told.as_json()) as response:
            reply = PartitionsReply.of_json(await response.json())
            assert (reply.partitions, set(reply.deleted)) == ({PARTED: 0}, {PARTED})
        async with session.post(url, params={"from": "b"}, json={"topics": {PARTED: 3}}) as response:
            assert await response.json() == {"topics": {PARTED: 3}, "refused": {}}
        for wrong in ({"topics": {PARTED: "3"}}, {"topics": {PARTED: 3}, "idle": True, "known": {PARTED: {"a": "x"}}}):
            async with session.post(url, params={"from": "b"}, json=wrong) as response:
                assert response.status == 400


@asynchronous
async def test_an_answer_that_cannot_be_stored_does_not_break_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreFull("no room")

    class Answering:
        async def announce_partitions(self, told: PartitionsReport) -> PartitionsReply:
            return PartitionsReply(dict.fromkeys(told.topics, 0), {}, dict.fromkeys(told.topics, 7))

    async with opened(tmp_path / "b", "b") as b:
        await b.partitioned.create(PARTED, 1)
        announcer = PartitionAnnouncer(b, "a", lambda _: True)
        announcer.on_connected()
        monkeypatch.setattr(b.origin_stores, "take", full)
        await announcer.announce(Answering())
        assert announcer.refused == {}


def test_an_earlier_version_reads_what_is_stored_of_a_partitioned_topic() -> None:
    whole = PartitionedTopic(PARTED, 3, {"a": 7})
    assert json.loads(whole.encode())["partitions"] == 3
    assert PartitionedTopic.decode(PARTED, whole.encode()).known == {"a": 7}
    assert PartitionedTopic.decode(PARTED, b'{"partitions": 3}') == whole
    assert PartitionedTopic(PARTED, 3).encode() == b'{"partitions": 3}'


@asynchronous
async def test_a_deletion_survives_a_restart_and_is_forgotten_with_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "a", "a") as a:
        await a.partitioned.create(PARTED, 1)
        await a.partitioned.delete(PARTED)
    async with opened(tmp_path / "a", "a") as a:
        assert set(a.origin_stores.partitioned_deleted(PARTED)) == {"a"}
        monkeypatch.setattr("replicator.engine.topics.origin_stores.DELETIONS_MAX", 1)
        for name in ("other", "another"):
            topic = await a.topic(name)
            await topic.publish([message(b"1")])
            assert entries_of(topic, "a")
            await a.deleting.delete(name)
        assert a.origin_stores.partitioned_deleted(PARTED) == {}
