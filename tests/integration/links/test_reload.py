"""Workers that take another topology while messages flow: nothing is restarted, lost or repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from engine_support import TOPIC, entries_of, eventually, message, subscribed
from sqlalchemy import make_url
from topology_files import topology_of, write

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.index.database import Database
from replicator.links.link import Link as RunningLink
from replicator.operating.rollout import ask_workers, carry_out
from replicator.running.supervisor import Supervisor
from replicator.topology import Link, PolicySettings, SyncSettings, Topology, TopologyError, load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker
from snapshots.position import BEFORE_ALL

NAMES = ("us-east", "eu-west", "ap-south")
_names = count()


@pytest.fixture
def topology(postgres_server: str, tmp_path: Path) -> Iterator[Topology]:
    """Three clusters, each linked with each, each with a database of its own."""
    names = [f"reload_{next(_names)}_{index}" for index in range(len(NAMES))]
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE DATABASE {name}")
        urls = [
            make_url(postgres_server).set(drivername="postgresql", database=name).render_as_string(hide_password=False)
            for name in names
        ]
        three = topology_of(tmp_path, *NAMES)
        clusters = (each.model_copy(update={"database": url}) for each, url in zip(three.clusters, urls, strict=True))
        paces = SyncSettings(snapshot_interval_ms=20, update_interval_ms=10)
        yield replace(three, clusters=tuple(clusters), sync=paces)
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def only(topology: Topology, *names: str) -> Topology:
    """Return the part of a topology with these clusters."""
    clusters = tuple(each for each in topology.clusters if each.name in names)
    links = tuple(link for link in topology.links if link.source in names and link.destination in names)
    return replace(topology, clusters=clusters, links=links)


class Region:
    """A running worker, and a look inside it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def engine(self) -> Engine:
        return self.worker.parts.engine

    @property
    def links(self) -> dict[str, RunningLink]:
        return {link.to: link for link in self.worker.parts.links}

    def topic(self, name: str = TOPIC) -> Topic:
        topic = self.engine.find(name)
        assert topic is not None
        return topic

    def has(self, origin: str, entries: list[bytes], name: str = TOPIC) -> bool:
        topic = self.engine.find(name)
        return entries_of(topic, origin) == entries if topic is not None else not entries


class Regions:
    """The workers of a file, which can be written anew and brought to them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.by_name: dict[str, Region] = {}

    def __getitem__(self, name: str) -> Region:
        return self.by_name[name]

    async def start(self, name: str) -> Region:
        self.by_name[name] = Region(await start_worker(load_topology(self.file), name))
        return self.by_name[name]

    async def stop(self, name: str) -> None:
        await self.by_name.pop(name).worker.stop()

    async def apply(self, topology: Topology) -> dict[str, tuple[str, ...]]:
        """Apply a topology as the command does; return the changes that the workers report."""
        rollout = await ask_workers(write(topology, self.file))
        for dry_run in (True, False):
            outcomes = await carry_out(rollout, dry_run=dry_run)
            assert [outcome.problems for outcome in outcomes] == [()] * len(outcomes)
        return {outcome.cluster: outcome.changed for outcome in outcomes}


@asynccontextmanager
async def running(topology: Topology, path: Path) -> AsyncIterator[Regions]:
    regions = Regions(path / "topology.yaml")
    write(topology, regions.file)
    try:
        for name in topology.names:  # one after another: two migrations do not fit into one process
            await regions.start(name)
        yield regions
    finally:
        await asyncio.gather(*(region.worker.stop() for region in regions.by_name.values()))


class Load:
    """Publishes to a topic at one cluster until it is stopped."""

    def __init__(self, region: Region, name: str = TOPIC) -> None:
        self.published: list[bytes] = []
        self._region = region
        self._name = name
        self._stopping = False
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        topic = await self._region.engine.topic(self._name)
        while not self._stopping:
            sent = len(self.published)
            entries = [message(b"%s %d" % (topic.cluster.encode(), sent + n)) for n in range(10)]
            await topic.publish(entries)
            self.published += entries
            await asyncio.sleep(0.002)

    async def goes_on(self, entries: int = 200) -> None:
        upto = len(self.published) + entries
        await eventually(lambda: self._task.done() or len(self.published) >= upto, "more of the load")

    async def stop(self) -> list[bytes]:
        self._stopping = True
        await self._task
        return self.published


@contextmanager
def undisturbed(link: RunningLink) -> Iterator[None]:
    """Check that the link is the same one afterwards, and did not lose its connection."""
    before = link.figures.reconnects
    yield
    assert link.figures.reconnects == before


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def test_a_third_cluster_joins_two_that_are_under_load(topology: Topology, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(only(topology, "us-east", "eu-west"), tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            loads = {"us-east": Load(us), "eu-west": Load(eu)}
            await loads["us-east"].goes_on()
            consumer, inbox = await subscribed(us.topic(), "sub", permits=150, replicated=True)
            await inbox.holds(150)
            for delivery in inbox.deliveries[:100]:
                await consumer.acknowledge([Ack(delivery.position)])
            started = us.engine.started_at_ms, eu.engine.started_at_ms
            link = us.links["eu-west"]
            await eventually(lambda: link.state in ("idle", "copying"))
            with undisturbed(link):
                write(topology, regions.file)
                ap = await regions.start("ap-south")
                changed = await regions.apply(topology)
                assert f"cluster ap-south: added, at {topology.cluster('ap-south').address}" in changed["us-east"]
                assert "link us-east → ap-south: added" in changed["us-east"]
                assert changed["ap-south"] == ()
                assert us.links["eu-west"] is link
                loads["ap-south"] = Load(ap)
                for load in loads.values():
                    await load.goes_on()
                for delivery in inbox.deliveries[100:120]:
                    await consumer.acknowledge([Ack(delivery.position)])
                published = {name: await load.stop() for name, load in loads.items()}
                for region in (us, eu, ap):
                    for origin, entries in published.items():
                        await eventually(
                            lambda r=region, o=origin, e=entries: r.has(o, e),
                            f"what {origin} published, once and in order, at {region.engine.cluster}",
                        )
            assert (us.engine.started_at_ms, eu.engine.started_at_ms) == started

            def backlogs() -> list[int | None]:
                there = [region.topic().subscriptions.get("sub") for region in (us, eu, ap)]
                return [None if each is None else each.cursor.backlog_entries() for each in there]

            await eventually(lambda: len(set(backlogs())) == 1, f"the same backlog everywhere: {backlogs()}")
            assert backlogs()[0] == sum(map(len, published.values())) - 120

    run(main)


def test_a_cluster_that_was_alone_tells_the_first_that_is_linked_what_was_consumed(
    topology: Topology, tmp_path: Path
) -> None:
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(replace(two, links=()), tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % n) for n in range(30)])
            consumer, inbox = await subscribed(topic, "sub", replicated=True)
            await inbox.holds(30)
            for delivery in inbox.deliveries[::3]:
                await consumer.acknowledge([Ack(delivery.position)])
            await regions.apply(two)

            def backlog() -> int | None:
                there = eu.engine.find(TOPIC)
                subscription = None if there is None else there.subscriptions.get("sub")
                return None if subscription is None else subscription.cursor.backlog_entries()

            await eventually(lambda: backlog() == 20, "what was acknowledged before there was a link")

    run(main)


def test_a_worker_tells_a_cluster_that_lost_a_topic_what_its_own_consumers_had_acknowledged(
    topology: Topology, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running(only(topology, "us-east", "eu-west"), tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % n) for n in range(30)])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)

            def backlog(region: Region) -> int | None:
                here = region.engine.find(TOPIC)
                subscription = None if here is None or here.log.messages < 30 else here.subscriptions.get("sub")
                return None if subscription is None else subscription.cursor.backlog_entries()

            await eventually(lambda: backlog(eu) == 30, "the subscription in eu-west")
            consumer, inbox = await subscribed(eu.topic(), "sub")
            await inbox.holds(30)
            await consumer.acknowledge([Ack(delivery.position) for delivery in inbox.deliveries[::3]])
            await eventually(lambda: backlog(us) == 20, "what eu-west acknowledged, in us-east")
            await eu.engine.deleting.delete(TOPIC, force=True)
            await topic.publish([message(b"new")])
            await eventually(lambda: backlog(eu) == 21, "the same in eu-west again, and the new one")

    run(main)


def test_a_link_that_is_taken_away_and_added_again_goes_on_where_it_was(topology: Topology, tmp_path: Path) -> None:
    two = only(topology, "us-east", "eu-west")
    one_way = replace(two, links=(Link("eu-west", "us-east"),))

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            load, back = Load(us), Load(eu)
            await load.goes_on()
            await eventually(lambda: us.topic().holds.positions, "the log held back for the link")
            changed = await regions.apply(one_way)
            assert changed["us-east"] == changed["eu-west"] == ("link us-east → eu-west: removed",)
            assert us.links == {}
            assert us.topic().holds.positions == {}
            await back.goes_on()  # what the link had handed to eu-west's log before it ended is in it
            there = len(entries_of(eu.topic(), "us-east"))
            assert there < len(load.published)
            await load.goes_on()
            assert len(entries_of(eu.topic(), "us-east")) == there
            await regions.apply(two)
            await load.goes_on()
            published, published_back = await load.stop(), await back.stop()
            await eventually(lambda: eu.has("us-east", published), "all of us-east, once and in order")
            await eventually(lambda: us.has("eu-west", published_back), "all of eu-west, once and in order")

    run(main)


def test_the_index_forgets_a_link_that_is_taken_away_and_has_what_operators_did(
    topology: Topology, tmp_path: Path
) -> None:
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            index = us.worker.parts.index

            async def topics_of(key: str) -> list[str]:
                await index.flush()
                return [state.topic for state in await index.repository().link_states(key)]

            entries = [message(b"%d" % number) for number in range(3)]
            await (await us.engine.topic(TOPIC)).publish(entries)
            await eventually(lambda: eu.has("us-east", entries))
            await us.links["eu-west"].pause()
            await us.links["eu-west"].resume()
            us.links["eu-west"].update_index()
            assert await topics_of("us-east>eu-west") == [TOPIC]
            await regions.apply(replace(two, links=(Link("us-east", "eu-west", name="other"),)))
            assert await topics_of("us-east>eu-west") == []
            assert await topics_of("us-east>eu-west#other") == [TOPIC], "though it does not move"
            await regions.apply(two)
            assert await topics_of("us-east>eu-west#other") == []
            done = [(each.actor, each.action, each.subject) for each in await index.repository().audit_log()]
            assert sorted(done) == [
                ("operator", "pause", "link us-east>eu-west"),
                ("operator", "reload", "topology"),
                ("operator", "reload", "topology"),
                ("operator", "resume", "link us-east>eu-west"),
            ]

    run(main)


def is_maintained(supervisor: Supervisor) -> bool:
    return any(task.kind == "maintenance" for task in supervisor.running())


def test_nothing_is_trimmed_while_a_worker_starts_and_its_links_do_not_hold_the_log_back_yet(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database may take longer to be reached than maintenance waits for its first pass."""
    one = only(topology, "us-east")
    seen: list[bool] = []
    start = Database.start

    async def main() -> None:
        async with running(one, tmp_path) as regions:
            await regions["us-east"].worker.stop()
            supervisor = Supervisor()

            async def looking(database: Database) -> None:
                seen.append(is_maintained(supervisor))
                await start(database)

            monkeypatch.setattr(Database, "start", looking)
            again = await start_worker(load_topology(regions.file), "us-east", supervisor)
            seen.append(is_maintained(supervisor))
            assert again.parts.engine.maintenance.running
            await again.stop()
            monkeypatch.undo()
            await regions.start("us-east")

    run(main)
    assert seen == [False, True]


def test_a_cluster_that_is_removed_is_cut_off_and_does_not_take_the_file(topology: Topology, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(topology, tmp_path) as regions:
            us, eu, ap = (regions[name] for name in NAMES)
            load = Load(us)
            await load.goes_on()
            left = await ap.engine.topic("left-behind")
            await left.publish([message(b"before")])
            await eventually(lambda: us.has("ap-south", [message(b"before")], "left-behind"))
            changed = await regions.apply(only(topology, "us-east", "eu-west"))
            assert "cluster ap-south: removed" in changed["us-east"]
            assert "ap-south" not in changed
            assert (list(us.links), list(eu.links)) == (["eu-west"], ["us-east"])
            with pytest.raises(TopologyError, match="does not name this cluster any more; stop its worker"):
                await ap.worker.reload_file()
            assert set(ap.links) == {"us-east", "eu-west"}
            await left.publish([message(b"after")])
            await eventually(lambda: "no link from 'ap-south'" in ap.links["us-east"].detail, "a refused link")
            await regions.stop("ap-south")
            published = await load.stop()
            await eventually(lambda: eu.has("us-east", published))
            assert us.has("ap-south", [message(b"before")], "left-behind")

    run(main)


def test_a_link_that_its_destination_does_not_know_yet_waits_until_it_does(topology: Topology, tmp_path: Path) -> None:
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(replace(two, links=()), tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message()])
            both = write(two, regions.file)
            await us.worker.reload(both)
            link = us.links["eu-west"]
            await eventually(lambda: "no link from 'us-east'" in link.detail, "a refusal")
            await eventually(lambda: link.figures.reconnects >= 3, "more than one try")
            await eu.worker.reload(both)
            await eventually(lambda: eu.has("us-east", [message()]), "what is copied")

    run(main)


def test_filters_change_under_load_and_what_was_left_out_comes_when_it_is_carried_again(
    topology: Topology, tmp_path: Path
) -> None:
    two = only(topology, "us-east", "eu-west")
    back = Link("eu-west", "us-east")
    kept, dropped = "persistent://public/default/kept", "persistent://public/default/dropped"

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            loads = {name: Load(us, name) for name in (kept, dropped)}
            for load in loads.values():
                await load.goes_on()
            await eventually(lambda: eu.engine.find(dropped) is not None)
            filtered = Link(
                "us-east", "eu-west", topics=("public/default/kept",), rate_bytes=1 << 30, compression="zstd"
            )
            changed = await regions.apply(replace(two, links=(filtered, back)))
            assert changed["us-east"] == (
                "link us-east → eu-west: topics: default → [public/default/kept]",
                "link us-east → eu-west: rate: default → 1GiB",
                "link us-east → eu-west: compression: default → zstd",
            )
            there = len(entries_of(eu.topic(dropped), "us-east"))
            for load in loads.values():
                await load.goes_on()
            await eventually(lambda: len(entries_of(eu.topic(kept), "us-east")) > there + 200, "what is carried")
            assert len(entries_of(eu.topic(dropped), "us-east")) == there
            await regions.apply(two)
            for name, load in loads.items():
                published = await load.stop()
                await eventually(lambda n=name, p=published: eu.has("us-east", p, n), f"all of {name}")

    run(main)


def test_a_hub_forwards_what_a_link_that_was_added_brings_it(topology: Topology, tmp_path: Path) -> None:
    onwards = Link("eu-west", "ap-south", forward=True)

    async def main() -> None:
        async with running(replace(topology, links=(onwards,)), tmp_path) as regions:
            us, eu, ap = (regions[name] for name in NAMES)
            loads = {"us-east": Load(us), "eu-west": Load(eu)}
            for load in loads.values():
                await load.goes_on()
            changed = await regions.apply(replace(topology, links=(Link("us-east", "eu-west"), onwards)))
            assert changed["us-east"] == changed["eu-west"] == ("link us-east → eu-west: added",)
            assert changed["ap-south"] == ()
            for load in loads.values():
                await load.goes_on()
            for origin, load in loads.items():
                published = await load.stop()
                await eventually(lambda o=origin, p=published: ap.has(o, p), f"all of {origin} behind the hub")

    run(main)


def test_links_find_a_worker_that_was_restarted_at_another_address(topology: Topology, tmp_path: Path) -> None:
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us = regions["us-east"]
            load = Load(us)
            await load.goes_on()
            moved = two.clusters[1].model_copy(update={"address": topology.cluster("ap-south").address})
            after = replace(two, clusters=(two.clusters[0], moved))
            await regions.stop("eu-west")
            write(after, regions.file)
            eu = await regions.start("eu-west")
            changed = await regions.apply(after)
            assert changed["us-east"] == (f"cluster eu-west: address: {two.clusters[1].address} → {moved.address}",)
            await load.goes_on()
            published = await load.stop()
            await eventually(lambda: eu.has("us-east", published), "all of us-east, once and in order")

    run(main)


def test_policies_and_paces_hold_at_once(topology: Topology, tmp_path: Path) -> None:
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us, eu = regions["us-east"], regions["eu-west"]
            topic = await us.engine.topic(TOPIC)
            policies = PolicySettings.model_validate({"max_consumers": 7})
            own = two.clusters[0].model_copy(update={"policies": policies})
            after = replace(two, clusters=(own, two.clusters[1]), sync=SyncSettings(update_interval_ms=70))
            changed = await regions.apply(after)
            assert "policies of us-east: max_consumers: default → 7" in changed["us-east"]
            assert "sync.update_interval_ms: 10 → 70" in changed["eu-west"]
            assert not any("policies" in line for line in changed["eu-west"])
            assert topic.policies.effective.max_consumers == 7
            assert eu.engine.loaded.default_policies.max_consumers is None
            assert us.worker.parts.sync.settings.update_interval_ms == 70
            url = f"http://{two.clusters[0].address}/replication/v1/topology"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                said = await response.json()
            assert (said["cluster"], said["reloads"], said["file"]) == ("us-east", 1, str(regions.file))
            assert "max_consumers: 7" in said["text"]

    run(main)


def test_between_a_link_and_the_one_that_replaces_it_nothing_is_trimmed(topology: Topology, tmp_path: Path) -> None:
    """The destination is away, so that the new link does not learn soon how far the old one was."""
    two = only(topology, "us-east", "eu-west")

    async def main() -> None:
        async with running(two, tmp_path) as regions:
            us = regions["us-east"]
            await regions.stop("eu-west")
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % n) for n in range(10)])
            before = us.links["eu-west"]
            held: list[dict[str, Any]] = []
            watching = asyncio.create_task(_note_each_turn(lambda: held.append(dict(topic.holds.positions))))
            faster = Link("us-east", "eu-west", compression="lz4")
            await us.worker.reload(write(replace(two, links=(faster, two.links[1])), regions.file))
            watching.cancel()
            assert us.links["eu-west"] is not before
            assert held
            assert all(list(each.values()) == [BEFORE_ALL] for each in held)

    run(main)


async def _note_each_turn(note: Callable[[], None]) -> None:
    while True:
        note()
        await asyncio.sleep(0)
