"""Links tell which store wrote a copy, and which topics were deleted on purpose.

Invariants (DESIGN §3): 12, what may be lost is never taken for deleted; 13, lost data is told from deleted data.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from engine_support import TOPIC, DataPlaneServer, entries_of, eventually, message, opened, serving
from link_support import ENGINES, Web, link_of
from link_support import web as mesh_of

from replicator.api import verifying
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreFull
from replicator.engine.lineage import CopyWriter, Deletion, Judgement, StoreLine
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.restored import RestoredMark, put_mark
from replicator.engine.topics import origin_stores
from replicator.links import lineage_teller
from replicator.links.link import Link
from replicator.peering.lineage import LINEAGE_ROUTE, ROWS_MAX
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(age_seconds_max=0, bytes_max=0)))
RING = [LinkSpec("a", "b", forward=True), LinkSpec("b", "c", forward=True), LinkSpec("c", "a", forward=True)]


@asynccontextmanager
async def linked(
    source: Engine, destination: Engine, *, name: str = TOPIC, earlier_version: bool = False
) -> AsyncIterator[Link]:
    """A link between two engines; the destination may answer as a worker does that knows nothing of stores."""
    async with AsyncExitStack() as stack:
        server = DataPlaneServer(destination, {source.cluster})
        if earlier_version:
            server.also = lambda app: app.middlewares.append(knows_no_stores)
        await server.start()
        stack.push_async_callback(server.stop)
        link = Link(source, destination.cluster, server.address)
        link.start()
        stack.push_async_callback(link.stop)
        yield link
        link.detach()


@web.middleware
async def knows_no_stores(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer as the version before did."""
    if request.path == LINEAGE_ROUTE:
        raise AssertionError("a worker that names no store is told nothing")
    response: web.StreamResponse = await handler(request)
    if not request.path.endswith("/high-water"):
        return response
    assert isinstance(response, web.Response)
    answer = json.loads(response.text or "")
    del answer["store"], answer["predecessors"]
    for marks in answer["topics"].values():
        for mark in marks.values():
            mark.pop("store", None)
            mark.pop("deleted", None)
    return web.json_response(answer)


def store_at(engine: Engine, origin: str, name: str = TOPIC) -> str | None:
    """Return the store of ``origin`` that wrote the newest life of a topic, as ``engine`` knows."""
    topic = engine.find(name)
    mark = None if topic is None else topic.origins.high_water(origin)
    return None if topic is None or mark is None else engine.origin_stores.store_of(topic, origin, mark.incarnation)


def marked(engine: Engine, origin: str, name: str = TOPIC) -> bool:
    """Return whether ``engine`` knows that ``origin`` deleted its messages of a topic."""
    topic = engine.find(name)
    mark = None if topic is None else topic.origins.high_water(origin)
    if topic is None or mark is None:
        return False
    return engine.origin_stores.is_deleted(topic, origin, mark.incarnation, mark.position)


async def publish(engine: Engine, *payloads: bytes, name: str = TOPIC) -> list[bytes]:
    topic = await engine.topic(name)
    entries = [message(payload) for payload in payloads]
    await topic.publish(entries)
    return entries


def has(engine: Engine, origin: str, entries: list[bytes], name: str = TOPIC) -> bool:
    topic = engine.find(name)
    return topic is not None and entries_of(topic, origin) == entries


async def stop(made: Web, key: str) -> None:
    await made.links[key].stop()
    made.links[key].detach()


def start(made: Web, spec: LinkSpec) -> None:
    made.links[spec.key] = link_of(made, spec)
    made.links[spec.key].start()


# Who wrote a copy.


def test_a_copy_remembers_which_store_of_its_origin_wrote_it_also_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a:
            async with opened(tmp_path / "b", "b") as b, linked(a, b):
                await publish(a, b"1")
                await eventually(lambda: store_at(b, "a") == a.origin_stores.store)
                assert b.origin_stores.lines["a"] == a.origin_stores.line
                assert a.origin_stores.store != b.origin_stores.store
            async with opened(tmp_path / "b", "b") as b:
                assert store_at(b, "a") == a.origin_stores.store
                assert b.origin_stores.lines["a"] == a.origin_stores.line

    asyncio.run(main())


def test_answers_name_the_own_store_and_the_store_of_each_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b):
            await publish(a, b"1")
            await publish(b, b"2")
            await eventually(lambda: store_at(b, "a"))
            async with serving(b) as server, ClientSession() as session:
                server.also = verifying.add_verifying
                await server.stop()
                await server.start()
                async with session.get(f"{server.url}/high-water", params={"origins": "a,b", "protocol": "6"}) as got:
                    answer = await got.json()
                async with session.get(f"{server.url}/cuts") as got:
                    cuts = await got.json()
            assert (answer["store"], answer["predecessors"]) == (b.origin_stores.store, [])
            rows = answer["topics"][TOPIC]
            assert rows["a"]["store"] == a.origin_stores.store
            assert rows["b"]["store"] == b.origin_stores.store
            assert "deleted" not in rows["a"]
            incarnation = str(a.find(TOPIC).incarnation)  # type: ignore[union-attr]
            lineage = {"a": {"stores": {incarnation: a.origin_stores.store}, "deleted": {}}}
            assert cuts["topics"][TOPIC]["lineage"] == lineage

    asyncio.run(main())


def test_forwarded_copies_know_the_store_of_their_origin_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh_of(tmp_path, RING) as made:
            a, b, c = (made.engines[name] for name in "abc")
            await publish(a, b"1")
            await eventually(lambda: store_at(c, "a") == store_at(b, "a") == a.origin_stores.store, "a's store")
            await publish(b, b"2")
            await eventually(lambda: store_at(a, "b") == store_at(c, "b") == b.origin_stores.store, "b's store")

    asyncio.run(main())


def test_a_copy_without_a_store_gets_that_of_the_first_store_that_has_or_has_trimmed_it(tmp_path: Path) -> None:
    """An upgrade with retention 0: what was consumed everywhere, and trimmed, is no lost data."""

    async def main() -> None:
        async with (
            opened(tmp_path / "a", "a", NOTHING_KEPT) as a,
            opened(tmp_path / "b", "b") as b,
        ):
            async with linked(a, b, earlier_version=True):
                entries = [*await publish(a, b"1"), *await publish(a, b"2"), *await publish(a, b"3", name="kept")]
                await eventually(lambda: has(b, "a", entries[:2]) and has(b, "a", entries[2:], "kept"))
            assert store_at(b, "a") is None
            topic = a.find(TOPIC)
            assert topic is not None
            topic.holds.positions.clear()
            await a.maintenance.run_once()
            assert topic.log.trimmed >= topic.origins.message_vector()["a"] or topic.log.messages
            async with linked(a, b) as link:
                await eventually(lambda: store_at(b, "a") == store_at(b, "a", "kept") == a.origin_stores.store)
                assert (link.status()["gaps"], link.status()["lost_here"]) == ([], {})

    asyncio.run(main())


def test_a_store_that_does_not_have_a_copy_does_not_claim_it(tmp_path: Path) -> None:
    """The cluster was started on an empty directory: the copy stays one of the store before."""

    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                old = a.origin_stores.store
                await publish(a, b"1")
                await publish(a, b"2", name="other")
                await eventually(lambda: store_at(b, "a") == store_at(b, "a", "other") == old)
            async with opened(tmp_path / "empty", "a") as a, linked(a, b) as link:
                await publish(a, b"new")
                await eventually(lambda: link.status()["gaps"])
                (gap,) = link.status()["gaps"]
                assert (gap["topic"], gap["origin"]) == (TOPIC, "a")
                assert f"another store of a (id {old[:8]}…) wrote the copy at b" in gap["detail"]
                reclaim = gap["detail"].index(
                    "`replicator backup reclaim -f FILE --cluster a`, with the worker of a stopped"
                )
                keep_both = gap["detail"].index("--policy keep-both` before that does no harm")
                assert reclaim < keep_both, "what brings the lost messages back comes first"
                assert "copy-anew" not in gap["detail"], "the copy may be the only one"
                assert list(link.status()["lost_here"]) == ["persistent://public/default/other"]
                assert link.status()["deleted_here"] == [], "it was lost, and not deleted"
                line = StoreLine(a.origin_stores.store)
                await eventually(lambda: b.origin_stores.lines["a"] == line, "what is told first")
                assert store_at(b, "a") == store_at(b, "a", "other") == old

    asyncio.run(main())


def test_a_restored_store_has_a_new_id_names_the_old_one_and_takes_over_the_copies_that_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                old = a.origin_stores.store
                await publish(a, b"1")
                await eventually(lambda: store_at(b, "a") == old)
                put_mark(a.store, RestoredMark("r1", "backup", 1, 2, 3))
            async with opened(tmp_path / "a", "a") as a:
                line = a.origin_stores.line
                assert line.store != old
                assert line.predecessors == (old,)
                async with linked(a, b):
                    await eventually(lambda: store_at(b, "a") == line.store)
                    assert b.origin_stores.lines["a"] == line
                put_mark(a.store, RestoredMark("r2", "backup", 1, 2, 3))
            async with opened(tmp_path / "a", "a") as a:
                assert a.origin_stores.line.predecessors == (line.store, old)

    asyncio.run(main())


def test_a_restored_store_does_not_claim_a_copy_that_has_more_than_it(tmp_path: Path) -> None:
    """Until an operator goes on without: then what is missing is a hole of the store that it knows of."""

    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a:
                await publish(a, b"1")
            shutil.copytree(tmp_path / "a", tmp_path / "saved")
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                old = a.origin_stores.store
                await publish(a, b"2")
                await eventually(lambda: store_at(b, "a") == old and b.find(TOPIC).log.messages == 2)  # type: ignore[union-attr]
            async with opened(tmp_path / "saved", "a") as a:
                put_mark(a.store, RestoredMark("r1", "backup", 1, 2, 3))
            async with opened(tmp_path / "saved", "a") as a, linked(a, b) as link:
                await eventually(lambda: link.status()["gaps"])
                (gap,) = link.status()["gaps"]
                assert gap["kind"] == "lost-data"
                assert f"another store of a (id {old[:8]}…) wrote the copy at b" in gap["detail"]
                await eventually(lambda: b.origin_stores.lines["a"].predecessors == (old,), "what is told first")
                assert store_at(b, "a") == old
                await link.resolve(TOPIC, "skip-and-record")
                await publish(a, b"3")
                await eventually(lambda: store_at(b, "a") == a.origin_stores.store)

    asyncio.run(main())


def test_an_older_store_does_not_take_the_place_of_a_later_one_by_what_others_forward(tmp_path: Path) -> None:
    """``b`` has heard of the restored store of ``a`` by ``a`` itself, ``c`` has not, and forwards what it knows."""

    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b, opened(tmp_path / "a", "a") as a, linked(a, b):
            await publish(a, b"1")
            await eventually(lambda: store_at(b, "a"))
            topic, stores = a.find(TOPIC), b.origin_stores
            assert topic is not None

            def wrote(store: str) -> list[CopyWriter]:
                return [CopyWriter(TOPIC, "a", topic.incarnation, store)]

            restored = StoreLine("new", (a.origin_stores.store,))
            await stores.take("c", {"a": restored}, wrote("new"), [])
            assert store_at(b, "a") == "new"
            await stores.take("c", {"a": a.origin_stores.line}, wrote(a.origin_stores.store), [])
            assert (store_at(b, "a"), stores.lines["a"]) == ("new", restored)
            await stores.take("a", {"a": StoreLine("empty")}, wrote("empty"), [])
            assert store_at(b, "a") == "empty", "the origin itself knows"

    asyncio.run(main())


# Deletions.


@pytest.mark.parametrize("how", ["topic", "partitioned", "namespace"])
def test_a_destination_is_told_that_a_topic_was_deleted_and_keeps_the_copy_with_a_mark(
    tmp_path: Path, how: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b) as link:
            if how == "partitioned":
                await a.partitioned.create(TOPIC, 1)
            name = f"{TOPIC}-partition-0" if how == "partitioned" else TOPIC
            entries = await publish(a, b"1", name=name)
            await eventually(lambda: has(b, "a", entries, name))
            assert not marked(b, "a", name)
            if how == "topic":
                await a.deleting.delete(TOPIC)
            elif how == "partitioned":
                await a.partitioned.delete(TOPIC)
            else:
                await a.catalog.delete_namespace("public/default", force=True)
            await eventually(lambda: marked(b, "a", name))
            assert has(b, "a", entries, name), "the copy stays"
            assert a.find(name) is None
            assert link.status()["deleted_here"] == [name]
            assert link.status()["lost_here"] == {}

    asyncio.run(main())


def test_a_deletion_while_the_link_is_down_is_told_later_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a:
                async with linked(a, b):
                    entries = await publish(a, b"1")
                    await eventually(lambda: has(b, "a", entries) and store_at(b, "a"))
                await a.deleting.delete(TOPIC)
            assert not marked(b, "a")
            async with opened(tmp_path / "a", "a") as a, linked(a, b) as link:
                await eventually(lambda: marked(b, "a"))
                assert link.status()["deleted_here"] == [TOPIC]
                assert link.status()["lost_here"] == {}
        async with opened(tmp_path / "b", "b") as b:
            assert marked(b, "a"), "also over a restart of the destination"

    asyncio.run(main())


def test_a_destination_that_lost_its_mark_is_told_again(tmp_path: Path) -> None:
    """A destination loses it when its directory is put back, which its store's id does not show."""

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b:
            async with linked(a, b):
                entries = await publish(a, b"1")
                await eventually(lambda: has(b, "a", entries))
                await a.deleting.delete(TOPIC)
                await eventually(lambda: marked(b, "a"))
            b.origin_stores._rows.clear()
            b.origin_stores.deletions.clear()
            async with linked(a, b):
                await eventually(lambda: marked(b, "a"))

    asyncio.run(main())


def test_a_gap_of_a_deleted_topic_that_was_put_back_advises_no_reclaim(tmp_path: Path) -> None:
    """A reclaim takes nothing back that was deleted on purpose."""

    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                entries = await publish(a, b"1")
                await eventually(lambda: has(b, "a", entries) and store_at(b, "a"))
            shutil.copytree(tmp_path / "a", tmp_path / "old")
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                entries += await publish(a, b"2")
                await eventually(lambda: has(b, "a", entries))
                await a.deleting.delete(TOPIC)
                await eventually(lambda: marked(b, "a"))
            async with opened(tmp_path / "old", "a") as a, linked(a, b) as link:
                await eventually(lambda: link.status()["gaps"])
                (gap,) = link.status()["gaps"]
                assert gap["kind"] == "lost-data"
                assert "reclaim" not in gap["detail"]
                assert "deleted at a on purpose" in gap["detail"]
                assert f"--topic {TOPIC} --policy skip-and-record`" in gap["detail"]
                await link.resolve(TOPIC, "skip-and-record")
                entries += await publish(a, b"3")
                await eventually(lambda: has(b, "a", entries), "it goes on")

    asyncio.run(main())


def test_a_store_that_is_older_than_a_deleted_life_goes_on_after_the_topic_is_deleted_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b:
            async with opened(tmp_path / "a", "a") as a, linked(a, b):
                old = await publish(a, b"1")
                await eventually(lambda: has(b, "a", old) and store_at(b, "a"))
            shutil.copytree(tmp_path / "a", tmp_path / "old")
            async with opened(tmp_path / "a", "a") as a, linked(a, b) as link:
                await a.deleting.delete(TOPIC)
                second = await publish(a, b"2")
                await eventually(lambda: link.status()["gaps"])
                await link.resolve(TOPIC, "keep-both")
                await eventually(lambda: has(b, "a", old + second))
                await a.deleting.delete(TOPIC)
                await eventually(lambda: marked(b, "a"))
            async with opened(tmp_path / "old", "a") as a, linked(a, b) as link:
                await eventually(lambda: link.status()["gaps"])
                (gap,) = link.status()["gaps"]
                assert gap["kind"] == "lost-data"
                assert "begin a new life of the topic: `replicator backup reclaim -f FILE --cluster a`" in gap["detail"]
                assert "topics delete" not in gap["detail"], "it can have the only copy"
                await a.deleting.delete(TOPIC)
                third = await publish(a, b"3")
                await eventually(lambda: "keep-both" in str(link.status()["gaps"]))
                await link.resolve(TOPIC, "keep-both")
                await eventually(lambda: has(b, "a", old + second + third))

    asyncio.run(main())


def test_in_a_ring_all_copies_are_marked_and_the_deleted_topic_does_not_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh_of(tmp_path, RING) as made:
            a, b, c = (made.engines[name] for name in "abc")
            entries = await publish(a, b"1", b"2")
            await publish(a, b"1", name="at-once")
            await eventually(lambda: has(b, "a", entries) and has(c, "a", entries), "the copies")
            await eventually(lambda: c.find("at-once"), "the copies")
            await a.deleting.delete("at-once")
            await eventually(lambda: marked(b, "a", "at-once") and marked(c, "a", "at-once"), "marks while connected")
            await stop(made, "b>c")
            await a.deleting.delete(TOPIC)
            await eventually(lambda: marked(b, "a"))
            assert not marked(c, "a")
            start(made, RING[1])
            await eventually(lambda: marked(c, "a"), "the mark is forwarded later")
            other = await publish(a, b"3", name="other")  # went once around behind it
            await eventually(lambda: has(c, "a", other, "other"))
            await eventually(lambda: all(link.state == "idle" for link in made.links.values()))
            assert a.find(TOPIC) is None
            assert has(b, "a", entries)
            assert has(c, "a", entries)

    asyncio.run(main())


def test_a_deletion_that_is_told_before_the_last_blocks_marks_those_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b:
            await publish(a, b"1")
            topic = a.find(TOPIC)
            assert topic is not None
            blocks = topic.reading.blocks(topic.log.trimmed, bytes_max=1_000_000)[0]
            await a.deleting.delete(TOPIC)
            await b.origin_stores.take("a", {}, [], list(a.origin_stores.deletions.values()))
            assert b.find(TOPIC) is None
            there = await b.topic(TOPIC, by_link=True)
            await there.writing.copy([CopiedBlock(BEFORE_ALL, blocks[0].block)])
            assert marked(b, "a")

    asyncio.run(main())


def test_a_copy_that_grows_after_its_deletion_is_in_use_again(tmp_path: Path) -> None:
    """A backup brought the topic back, and producers went on with it: what they had confirmed is not to be left."""

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b):
            entries = await publish(a, b"1")
            await eventually(lambda: has(b, "a", entries))
            topic = a.find(TOPIC)
            assert topic is not None
            mark = topic.origins.high_water("a")
            assert mark is not None
            await b.origin_stores.take("a", {}, [], [Deletion(TOPIC, "a", topic.incarnation, mark.position, 1)])
            assert marked(b, "a")
            entries += await publish(a, b"2")
            await eventually(lambda: has(b, "a", entries))
            assert not marked(b, "a")

    asyncio.run(main())


def test_a_copy_that_is_deleted_takes_its_mark_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b):
            await publish(a, b"1")
            await eventually(lambda: store_at(b, "a"))
            await a.deleting.delete(TOPIC)
            await eventually(lambda: marked(b, "a"))
            await b.deleting.delete(TOPIC)
            await b.deleting.sweeper.swept()
            with b.store.env.begin(db=b.store.tables["lineage"]) as txn:
                assert list(txn.cursor()) == []

    asyncio.run(main())


def test_only_a_deletion_that_somebody_asked_for_is_told(tmp_path: Path) -> None:
    """A deletion by which a reclaim makes room is not told, nor one to a copy without messages of the deleting
    cluster."""

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b):
            await publish(a, b"1")
            await publish(a, b"2", name="again")
            await eventually(lambda: b.find(TOPIC) and b.find("again"))
            await b.deleting.delete(TOPIC)
            await a.deleting.delete("again", on_purpose=False)
            assert (a.origin_stores.deletions, b.origin_stores.deletions) == ({}, {})

    asyncio.run(main())


def test_the_history_of_deletions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_stores, "DELETIONS_MAX", 3)

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a:
            for number in range(5):
                await publish(a, b"1", name=f"t{number}")
                await a.deleting.delete(f"t{number}")
            kept = [each.topic.rpartition("/")[2] for each in a.origin_stores.deletions.values()]
            assert kept == ["t2", "t3", "t4"]
        async with opened(tmp_path / "a", "a") as a:
            assert [each.topic.rpartition("/")[2] for each in a.origin_stores.deletions.values()] == kept
            own = a.origin_stores.own_topic(f"{TOPIC.rpartition('/')[0]}/t4")
            assert len(own.deleted) == 1
            assert not a.origin_stores.own_topic(f"{TOPIC.rpartition('/')[0]}/t1").deleted

    asyncio.run(main())


def test_a_deletion_that_no_cluster_can_have_made_is_forgotten_at_the_start(tmp_path: Path) -> None:
    """Earlier versions stored what a link told. Peers refuse each message that has such a number."""

    async def main() -> None:
        real, made_up = (Deletion(TOPIC, "us-east", life, BEFORE_ALL, 1) for life in (7, 2**70))
        async with opened(tmp_path, "eu-west") as engine:
            await engine.writer.put_many([("deletions", *each.row()) for each in (real, made_up)])
        async with opened(tmp_path, "eu-west") as engine:
            assert engine.origin_stores.partitioned_deleted(TOPIC) == {"us-east": 7}
            await engine.origin_stores.save()
            with engine.store.env.begin(db=engine.store.tables["deletions"]) as txn:
                assert [bytes(key) for key, _ in txn.cursor()] == [real.row_key()]

    asyncio.run(main())


def test_what_is_told_is_told_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_teller, "ROWS_MAX", 3)

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b:
            names = [f"persistent://public/default/t{number}" for number in range(8)]
            async with linked(a, b, earlier_version=True):
                for name in names:
                    await publish(a, b"1", name=name)
                await eventually(lambda: all(b.find(name) for name in names))
            for name in names[:4]:
                await a.deleting.delete(name)
            async with linked(a, b):
                await eventually(lambda: all(marked(b, "a", name) for name in names[:4]))
                await eventually(lambda: all(store_at(b, "a", name) for name in names[4:]))

    asyncio.run(main())


def test_a_destination_that_is_full_is_told_when_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_teller, "RETRY_SECONDS", 0.02)

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b) as link:
            entries = await publish(a, b"1")
            await eventually(lambda: has(b, "a", entries) and store_at(b, "a"))
            put_many, refusals = b.writer.put_many, 0

            async def full(writes: Any, **more: Any) -> None:
                nonlocal refusals
                if refusals < 3 and any(table == "lineage" for table, _, _ in writes):
                    refusals += 1
                    raise StoreFull("the disk is full")
                await put_many(writes, **more)

            monkeypatch.setattr(b.writer, "put_many", full)
            await a.deleting.delete(TOPIC)
            await eventually(lambda: marked(b, "a"))
            assert (refusals, link.figures.reconnects) == (3, 0)

    asyncio.run(main())


@pytest.mark.parametrize("engine", ENGINES)
def test_copies_know_their_store_whoever_carries_the_link(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with mesh_of(tmp_path, [LinkSpec("a", "b")], engine=engine) as made:
            a, b = made.engines["a"], made.engines["b"]
            await publish(a, b"1")
            await eventually(lambda: store_at(b, "a") == a.origin_stores.store)
            await a.deleting.delete(TOPIC)
            await eventually(lambda: marked(b, "a"))

    asyncio.run(main())


# Between versions, and what must not be believed.


def test_a_destination_of_an_earlier_version_is_copied_to_and_told_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "a", "a") as a,
            opened(tmp_path / "b", "b") as b,
            linked(a, b, earlier_version=True) as link,
        ):
            entries = await publish(a, b"1")
            await eventually(lambda: has(b, "a", entries))
            await a.deleting.delete(TOPIC)
            other = await publish(a, b"2", name="other")
            await eventually(lambda: has(b, "a", other, "other"))
            assert link.status()["deleted_here"] == [TOPIC]
            assert link.status()["lost_here"] == {}
            assert link.figures.reconnects == 0

    asyncio.run(main())


def test_a_topic_that_an_earlier_version_deleted_is_not_called_lost(tmp_path: Path) -> None:
    """Nobody knows which it was, so the status says what it always said, and no store claims the copy."""

    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b:
            async with linked(a, b, earlier_version=True):
                await publish(a, b"1")
                await eventually(lambda: b.find(TOPIC))
                await a.deleting.delete(TOPIC, on_purpose=False)
            async with linked(a, b) as link:
                await eventually(lambda: link.status()["deleted_here"] == [TOPIC])
                assert link.status()["lost_here"] == {}
                assert store_at(b, "a") is None

    asyncio.run(main())


def test_a_link_tells_only_of_origins_that_it_may_bring(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "b", "b") as b, serving(b, {"a"}) as server, ClientSession() as session:
            url = f"{server.url}/lineage"

            async def told(body: Any, source: str = "a") -> int:
                async with session.post(url, params={"from": source}, json=body) as got:
                    return got.status

            line = {"store": "s", "predecessors": []}
            deletion = {"topic": TOPIC, "origin": "x", "incarnation": 1, "position": "1:1", "at_ms": 1}
            body = {"stores": {"x": line, "a": line}, "copies": [], "deletions": [deletion]}
            assert await told(body, "x") != 200, "no link leads from there"
            assert await told(body) == 200
            assert list(b.origin_stores.lines) == ["a"]
            assert b.origin_stores.deletions == {}
            too_many = {**body, "deletions": [deletion] * (ROWS_MAX + 1)}
            malformed_bodies: list[Any] = [[], {}, {**body, "copies": [{}]}, too_many]
            for malformed in malformed_bodies:
                assert await told(malformed) == 400
            own = {**deletion, "origin": "b"}
            await b.origin_stores.take("a", {}, [], [Deletion.of_json(own)])
            assert b.origin_stores.deletions == {}, "nobody tells a cluster what it deleted itself"

    asyncio.run(main())


def test_a_topic_made_anew_on_purpose_is_said_to_be_that(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a") as a, opened(tmp_path / "b", "b") as b, linked(a, b) as link:
            await publish(a, b"1")
            await eventually(lambda: store_at(b, "a"))
            await a.deleting.delete(TOPIC)
            await publish(a, b"2")
            await eventually(lambda: link.status()["gaps"])
            (gap,) = link.status()["gaps"]
            assert "was deleted at a on purpose; the copy at b stays" in gap["detail"]
            own = a.origin_stores.own_topic(TOPIC)
            assert list(own.deleted) != [own.incarnation]
            assert (
                Judgement.DELETED_ON_PURPOSE
                is link._topics.start_positions.judged(
                    TOPIC,
                    (await link._transport.high_water({"a"}, [TOPIC]))[TOPIC]["a"],  # type: ignore[union-attr]
                )[0]
            )

    asyncio.run(main())


def test_markers_alone_do_not_bring_a_deleted_topic_back(tmp_path: Path) -> None:
    """Invariant 7: what consumers acknowledge at a copy is no reason to make the topic again where it was deleted."""

    async def main() -> None:
        both = [LinkSpec("a", "b"), LinkSpec("b", "a")]
        async with mesh_of(tmp_path, both) as made:
            a, b = made.engines["a"], made.engines["b"]
            entries = await publish(a, b"1")
            await eventually(lambda: has(b, "a", entries), "the copy")
            there = b.find(TOPIC)
            assert there is not None
            await there.writing.marker(message(b"marker"))
            here = a.find(TOPIC)
            assert here is not None
            await eventually(lambda: here.origins.high_water("b"), "the marker")
            await a.deleting.delete(TOPIC)
            await eventually(lambda: marked(b, "a"))
            for number in range(3):
                await there.writing.marker(message(b"marker %d" % number))
            other = await publish(b, b"2", name="other")
            await eventually(lambda: has(a, "b", other, "other"), "what was written behind it")
            await stop(made, "b>a")
            start(made, both[1])
            await there.writing.marker(message(b"marker"))
            other += await publish(b, b"3", name="other")
            await eventually(lambda: has(a, "b", other, "other"), "what was written behind it")
            assert a.find(TOPIC) is None
            assert made.links["b>a"].status()["halted"] == {}
            await publish(b, b"4")
            await eventually(lambda: (found := a.find(TOPIC)) and entries_of(found, "b")[-1:] == [message(b"4")])

    asyncio.run(main())
