"""Links and the catalog: partitions are the same at both ends, and a topic that is deleted stops alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_support import TOPIC, entries_of, eventually, make_block, message, opened, serving

from replicator.engine.engine import Engine
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.links import link as links
from replicator.links.gaps import Mark
from replicator.links.link import Link
from replicator.links.link_topics import LinkTopics
from replicator.links.route import Route
from replicator.links.transport import HttpTransport
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL, Position

PARTED = "persistent://public/default/parted"
NAMESPACE = "public/default"


@asynccontextmanager
async def linked(source: Engine, destination: Engine) -> AsyncIterator[Link]:
    async with serving(destination, {source.cluster}) as server:
        link = Link(source, destination.cluster, server.address)
        link.start()
        try:
            yield link
        finally:
            await link.stop()


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    async with opened(path / "us-east") as east, opened(path / "eu-west", "eu-west") as west:
        yield east, west


async def copied(topic: Topic, west: Engine, entries: list[bytes]) -> None:
    await eventually(
        lambda: (there := west.find(topic.name)) is not None and entries_of(there, topic.cluster) == entries,
        f"{len(entries)} entries of {topic.name} at the destination",
    )


def test_an_answer_from_before_the_destination_made_a_topic_anew_does_not_count(tmp_path: Path) -> None:
    """If it counted, the link would take the new copy for the old one, and copy nothing until the next message."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            before = {topic.cluster: Mark(topic.incarnation, topic.log.last)}
            topics = LinkTopics(engine, Route.single(LinkSpec(topic.cluster, "eu-west")))
            keeper = HttpTransport(topic.cluster, "eu-west", "127.0.0.1:1")
            topics.on_connected({topic.name: before})
            topics.ask([topic.name])
            topics.note_question([topic.name])
            made: asyncio.Queue[str] = asyncio.Queue()
            made.put_nowait(topic.name)
            hearing = asyncio.ensure_future(topics.watch_created_topics(made.get))
            await eventually(made.empty)
            assert not await topics.settle(topic.name, before, "", keeper)
            assert topics.to_settle() == [topic.name]
            topics.note_question([topic.name])
            assert await topics.settle(topic.name, before, "", keeper)
            hearing.cancel()

    asyncio.run(main())


def test_a_link_that_carried_a_topic_before_asks_how_far_it_came_before_it_goes_on(tmp_path: Path) -> None:
    """A message comes in the moment in which the destination is allowed again, before the link looks at the topic. The
    link would begin at the first message, and take what was trimmed meanwhile for a gap."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            topics = LinkTopics(engine, Route.single(LinkSpec(topic.cluster, "eu-west")))
            topics.memory.moved(topic.topic_id, topic.log.last)
            await engine.catalog.set_namespace(NAMESPACE, NamespacePolicies(replication_clusters=(topic.cluster,)))
            topics.look_again(topic.name)
            assert not topics.moved(topic, [])
            await engine.catalog.set_namespace(NAMESPACE, NamespacePolicies())
            topics.carried.look_again(topic.name)
            assert topics.moved(topic, [])
            assert topics.to_settle() == [topic.name]

    asyncio.run(main())


def test_a_partitioned_topic_has_the_same_partitions_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            await east.partitioned.create("before", 3)
            async with linked(east, west) as link:
                await eventually(lambda: west.partitioned.count("before") == 3)
                await east.partitioned.create("while", 2)
                await eventually(lambda: west.partitioned.count("while") == 2)
                await eventually(lambda: len(west.topics()) == 5)
                assert west.catalog.subscribable(NAMESPACE) == east.catalog.subscribable(NAMESPACE)
                assert link.status()["halted"] == {}

    asyncio.run(main())


def test_partitions_grow_everywhere_while_they_are_copied(tmp_path: Path) -> None:
    """A block of a new partition never comes before the destination knows of the partition."""

    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            names: list[str] = []

            async def publish(partition: int, number: int) -> None:
                topic = await east.topic(f"{PARTED}-partition-{partition}")
                await topic.publish([message(b"%d" % number)])

            west_heard: list[str] = []
            await east.partitioned.create(PARTED, 1)
            async with linked(east, west) as link:
                for partitions in range(2, 12):
                    growing = asyncio.ensure_future(east.partitioned.grow(PARTED, partitions))
                    while east.partitioned.count(PARTED) < partitions:
                        await publish(0, partitions)
                    await publish(partitions - 1, partitions)
                    await growing
                for partition in range(11):
                    topic = east.find(f"{PARTED}-partition-{partition}")
                    assert topic is not None
                    names.append(topic.name)
                    if topic.log.messages:
                        await copied(topic, west, entries_of(topic, "us-east"))
                assert west.partitioned.count(PARTED) == 11
                assert west.catalog.subscribable(NAMESPACE) == [PARTED]
                assert (link.figures.reconnects, link.status()["halted"], west_heard) == (0, {}, [])

    asyncio.run(main())


def test_the_larger_number_wins_at_both_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            await east.partitioned.create("more-here", 5)
            await west.partitioned.create("more-here", 2)
            await east.partitioned.create("more-there", 2)
            await west.partitioned.create("more-there", 5)
            async with linked(east, west):
                for engine in (east, west):
                    for name in ("more-here", "more-there"):
                        await eventually(lambda e=engine, n=name: e.partitioned.count(n) == 5)
                await eventually(lambda: len(east.topics()) == len(west.topics()) == 10)

    asyncio.run(main())


def test_a_name_that_is_no_partitioned_topic_there_is_named_and_holds_up_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            await west.topic(PARTED)
            await east.partitioned.create(PARTED, 2)
            sound = await east.topic("sound")
            async with linked(east, west) as link:
                await sound.publish([message()])
                await copied(sound, west, [message()])
                assert list(link.status()["halted"]) == [PARTED]
                assert "without partitions" in link.status()["halted"][PARTED]
                await east.partitioned.delete(PARTED)
                assert link.status()["halted"] == {}

    asyncio.run(main())


def test_a_topic_that_is_deleted_at_the_source_stops_alone_and_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            sound, going = await east.topic("sound"), await east.topic("going")
            async with linked(east, west) as link:
                await going.publish([message(b"kept there")])
                await copied(going, west, [message(b"kept there")])
                publishing = asyncio.ensure_future(going.publish([message(b"%d" % n) for n in range(100)]))
                await east.deleting.delete("going")
                await asyncio.wait([publishing])
                await sound.publish([message()])
                await copied(sound, west, [message()])
                assert link.status()["deleted_here"] == [going.name]
                assert (link.figures.reconnects, link.status()["halted"]) == (0, {})
                kept = west.find("going")
                assert kept is not None
                assert entries_of(kept, "us-east")[:1] == [message(b"kept there")]
            async with linked(east, west) as link:  # also one that starts later
                await eventually(lambda: link.state == "idle")
                assert link.status()["deleted_here"] == [going.name]

    asyncio.run(main())


@pytest.mark.parametrize("connected", [True, False], ids=["while connected", "between two connections"])
def test_a_topic_made_anew_waits_alone_until_the_old_one_is_deleted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)

    async def make_anew(east: Engine) -> Topic:
        await east.deleting.delete("orders")
        topic = await east.topic("orders")
        await topic.publish([message(b"new")])
        return topic

    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            old, sound = await east.topic("orders"), await east.topic("sound")
            await old.publish([message(b"old")])
            async with linked(east, west):
                await copied(old, west, [message(b"old")])
                if connected:
                    await make_anew(east)
            if not connected:
                await make_anew(east)
            anew = east.find("orders")
            assert anew is not None
            assert anew.incarnation > old.incarnation
            async with linked(east, west) as link:
                await eventually(lambda: "keep-both" in link.status()["halted"].get(anew.name, ""))
                await sound.publish([message()])
                await copied(sound, west, [message()])
                assert list(link.status()["halted"]) == [anew.name]
                await west.deleting.delete("orders")
                await copied(anew, west, [message(b"new")])
                await anew.publish([message(b"newer")])
                await copied(anew, west, [message(b"new"), message(b"newer")])
                assert (link.figures.reconnects, link.status()["halted"]) == (0, {})

    asyncio.run(main())


def test_a_topic_that_is_made_anew_while_connected_is_told_apart_at_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)

    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            old = await east.topic("orders")
            async with linked(east, west) as link:
                await old.publish([message(b"old")])
                await copied(old, west, [message(b"old")])
                await east.deleting.delete("orders")
                anew = await east.topic("orders")
                await anew.publish([message(b"new")])
                await eventually(lambda: "another life of the topic" in link.status()["halted"].get(anew.name, ""))
                await west.deleting.delete("orders")
                await copied(anew, west, [message(b"new")])
                assert link.figures.reconnects == 0

    asyncio.run(main())


def test_a_topic_that_is_deleted_at_both_ends_and_made_anew_is_copied_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            old = await east.topic("orders")
            async with linked(east, west) as link:
                await old.publish([message(b"old")])
                await copied(old, west, [message(b"old")])
                await east.deleting.delete("orders")
                assert link.status()["topics"] == 0
                await west.deleting.delete("orders")
                anew = await east.topic("orders")
                await anew.publish([message(b"new")])
                await copied(anew, west, [message(b"new")])
                assert (link.figures.reconnects, link.status()["halted"]) == (0, {})

    asyncio.run(main())


def test_a_topic_that_is_deleted_at_the_destination_comes_back_with_all_that_the_source_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            topic = await east.topic("orders")
            async with linked(east, west):
                await topic.publish([message(b"1")])
                await copied(topic, west, [message(b"1")])
                await west.deleting.delete("orders", force=True)
                await topic.publish([message(b"2")])
                await copied(topic, west, [message(b"1"), message(b"2")])

    asyncio.run(main())


@pytest.mark.parametrize("has_own", [False, True], ids=["copies alone", "messages of its own"])
def test_a_topic_that_the_destination_deletes_and_makes_anew_gets_all_at_once(tmp_path: Path, has_own: bool) -> None:
    """The link copies the messages again without waiting for a new one: the source publishes nothing more."""

    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            topic = await east.topic("orders")
            async with linked(east, west) as link:
                await topic.publish([message(b"1"), message(b"2")])
                await copied(topic, west, [message(b"1"), message(b"2")])
                there = west.find("orders")
                assert there is not None
                if has_own:
                    await there.publish([message(b"theirs")])
                await west.deleting.delete("orders", force=True)
                assert west.find("orders") is None
                await west.topic("orders")
                await copied(topic, west, [message(b"1"), message(b"2")])
                await topic.publish([message(b"3")])
                await copied(topic, west, [message(b"1"), message(b"2"), message(b"3")])
                assert (link.figures.reconnects, link.status()["halted"]) == (0, {})

    asyncio.run(main())


def test_a_link_asks_about_a_topic_that_is_made_there_only_if_it_brought_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = LinkTopics.ask

    def noted(self: LinkTopics, names: Iterable[str], *, halted_too: bool = False) -> None:
        asked.extend(names := list(names))
        ask(self, names, halted_too=halted_too)

    monkeypatch.setattr(LinkTopics, "ask", noted)

    async def main() -> None:
        async with pair(tmp_path) as (east, west), linked(east, west):
            topic = await east.topic("orders")
            await topic.publish([message(b"1")])
            await copied(topic, west, [message(b"1")])
            await west.topic("of-their-own")
            await west.deleting.delete("orders", force=True)
            await west.topic("orders")
            await copied(topic, west, [message(b"1")])

    asyncio.run(main())
    assert asked == ["persistent://public/default/orders"]


def test_a_partitioned_topic_made_anew_is_partitioned_again_where_the_old_one_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination forgot the partitions with the old topic: it is told again, before it gets blocks of the new."""
    monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)

    async def main() -> None:
        async with pair(tmp_path) as (east, west), linked(east, west) as link:

            async def publish(payload: bytes) -> list[Topic]:
                topics = [await east.topic(f"{PARTED}-partition-{index}") for index in range(2)]
                for topic in topics:
                    await topic.publish([message(payload)])
                return topics

            await east.partitioned.create(PARTED, 2)
            for topic in await publish(b"old"):
                await copied(topic, west, [message(b"old")])
            await east.partitioned.delete(PARTED)
            await east.partitioned.create(PARTED, 2)
            anew = await publish(b"new")
            await eventually(lambda: len(link.status()["halted"]) == 2, "the new partitions wait")
            await west.partitioned.delete(PARTED)
            for topic in anew:
                await copied(topic, west, [message(b"new")])
            assert west.partitioned.count(PARTED) == 2
            assert west.catalog.subscribable(NAMESPACE) == [PARTED]

    asyncio.run(main())


def test_the_first_block_of_a_partition_never_makes_a_topic_of_its_own(tmp_path: Path) -> None:
    """The destination deleted the partitioned topic while it had no blocks yet, so nothing else tells it again."""

    async def main() -> None:
        async with pair(tmp_path) as (east, west), linked(east, west):
            await east.partitioned.create(PARTED, 3)
            await eventually(lambda: len(west.topics()) == 3)
            await west.partitioned.delete(PARTED)
            topic = await east.topic(f"{PARTED}-partition-2")
            await topic.publish([message()])
            await copied(topic, west, [message()])
            assert west.partitioned.count(PARTED) == 3
            assert west.catalog.subscribable(NAMESPACE) == [PARTED]

    asyncio.run(main())


def test_a_namespace_is_copied_to_the_clusters_of_its_policies_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            await east.catalog.create_namespace("acme/home", NamespacePolicies(replication_clusters=("ap-south",)))
            home, away = await east.topic("acme/home/orders"), await east.topic("acme/away/orders")
            await east.partitioned.create("acme/home/parted", 2)
            async with linked(east, west) as link:
                for topic in (home, away):
                    await topic.publish([message(b"1")])
                await copied(away, west, [message(b"1")])
                assert west.catalog.tenants() == ["acme"]
                assert west.catalog.namespaces("acme") == ["acme/away"]
                assert home.holds.positions == {}
                await east.catalog.set_namespace("acme/home", NamespacePolicies())
                await copied(home, west, [message(b"1")])
                await eventually(lambda: west.partitioned.count("acme/home/parted") == 2)
                await east.catalog.set_namespace("acme/home", NamespacePolicies(replication_clusters=()))
                assert home.holds.positions == {}
                for topic in (home, away):
                    await topic.publish([message(b"2")])
                await copied(away, west, [message(b"1"), message(b"2")])
                await copied(home, west, [message(b"1")])
                await east.catalog.set_namespace("acme/home", NamespacePolicies(replication_clusters=("eu-west",)))
                await copied(home, west, [message(b"1"), message(b"2")])
                assert (link.figures.reconnects, link.status()["halted"]) == (0, {})

    asyncio.run(main())


def test_links_bring_topics_also_where_their_use_makes_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            await west.catalog.create_namespace(NAMESPACE, NamespacePolicies(auto_topic_creation=False))
            topic = await east.topic("orders")
            async with linked(east, west):
                await topic.publish([message()])
                await copied(topic, west, [message()])

    asyncio.run(main())


def test_a_source_that_lost_a_topic_names_what_the_destination_has_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (east, west):
            block = make_block(Position(1, 0), [message(b"only there")], incarnation=3)
            there = await west.topic("lost")
            await there.writing.copy([CopiedBlock(BEFORE_ALL, block)])
            async with linked(east, west) as link:
                await eventually(lambda: link.state == "idle")
                assert link.status()["deleted_here"] == [there.name]

    asyncio.run(main())


def test_a_topic_that_is_refused_for_long_holds_up_nothing_else_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A namespace that is being deleted at the destination takes no topics, which may last."""

    async def main() -> None:
        async with pair(tmp_path) as (east, west), linked(east, west) as link:
            monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)
            refused, other = await east.topic("public/closing/refused"), await east.topic("public/default/other")
            deleting = west.catalog._closing
            deleting.add("public/closing")
            wanted = [message(b"wanted %d" % number) for number in range(3)]
            await refused.publish(wanted)
            await eventually(lambda: refused.name in link.status()["halted"])
            assert "NamespaceNotFound" in link.status()["halted"][refused.name]
            asked_again, entries = link.status()["entries"], [message(b"%d" % number) for number in range(20)]
            for entry in entries:
                await other.publish([entry])
                await copied(other, west, entries[: entries.index(entry) + 1])
            assert link.status()["reconnects"] == 0
            await eventually(lambda: link.status()["entries"] > asked_again + 20, "it is tried again, now and then")
            deleting.discard("public/closing")
            await copied(refused, west, wanted)
            await eventually(lambda: link.status()["halted"] == {} and link.backlog_entries() == 0)
            assert link.status()["reconnects"] == 0

    asyncio.run(main())
    said = capsys.readouterr().out
    assert said.count("link halted a topic") == said.count("link copies a topic again") == 1
