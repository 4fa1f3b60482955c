"""The contract of live copy, the same for both engines: carried by the worker itself, and by plans.

With ``spark`` the plans are asked for and carried by what Spark's tasks do (:mod:`carrier_support`), over HTTP and by
the code that they run, but without a JVM, which would take minutes; with ``SOAK`` set, Spark itself carries.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import link_support
import pytest
from carrier_support import SparkItself
from engine_support import TOPIC, CuttingProxy, entries_of, eventually, logged, marker, message
from link_support import ENGINES, Web, carrier_of, link_of, web

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.block import BlockHeader, verify_block
from replicator.engine.log.commit import new_blocks
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.links.link import Link
from replicator.links.route import Route
from replicator.topology import EMBEDDED, SPARK, PipelineSettings, Topology
from replicator.topology import Link as LinkSpec
from replicator.worker.running_links import RunningLinks
from snapshots.position import BEFORE_ALL, Position

NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(age_seconds_max=0, bytes_max=0)))
A_TO_B = LinkSpec("a", "b")

pytestmark = [pytest.mark.parametrize("engine", ENGINES), pytest.mark.usefixtures("shortest_link_pauses")]


@pytest.fixture(autouse=True)
def spark_itself(request: pytest.FixtureRequest, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carries in the place of its stand-in, if there is time for that."""
    if engine != SPARK or not os.environ.get("SOAK"):
        return
    spark = request.getfixturevalue("spark")

    def carrier(made: Web, spec: LinkSpec, address: str = "", name: str = "") -> Any:
        del address, name  # the link says to where
        return SparkItself(spark, f"http://{made.servers[spec.source].address}", spec.key, tmp_path)

    monkeypatch.setattr(link_support, "carrier_of", carrier)
    monkeypatch.setitem(globals(), "carrier_of", carrier)
    monkeypatch.setattr(eventually, "__defaults__", ("the condition", 180.0))


def everything(made: Web, cluster: str, topic: str = TOPIC) -> list[tuple[bool, bytes]]:
    """Return the entries that came from ``a``, markers and all, in log order."""
    found = made.engines[cluster].find(topic)
    if found is None:
        return []
    read = found.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
    return [(entry.marker, bytes(entry.entry)) for entry in read if entry.origin == "a"]


def test_messages_and_markers_of_many_topics_come_once_and_in_order(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], engine=engine) as made:
            names = [f"topic-{number}" for number in range(20)]
            for first in range(0, 30, 6):
                for name in names:
                    await made.publish("a", first, 6, name)
                    topic = await made.engines["a"].topic(name)
                    await topic.writing.marker(marker(b"%d" % first))
            for name in names:
                await eventually(lambda name=name: everything(made, "b", name) == everything(made, "a", name), name)
                assert [each for each, _ in everything(made, "b", name)].count(True) == 5
            link = made.links["a>b"]
            await eventually(lambda: link.status()["backlog_entries"] == 0)
            assert link.figures.entries == 20 * 35
            assert link.figures.messages == 20 * 30
            assert link.figures.wire_bytes > link.figures.bytes > 0

    asyncio.run(main())


def test_a_link_whose_connections_break_again_and_again_loses_and_repeats_nothing(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], engine=engine, started=False) as made:
            proxy = CuttingProxy(made.servers["b"].port, seed=5, bytes_max=60_000)
            async with proxy:
                link = made.links["a>b"] = Link(
                    made.engines["a"], "b", proxy.address, route=Route.of(made.topology, A_TO_B)
                )
                if engine == SPARK:
                    await made.carriers["a>b"].stop()
                    made.carriers["a>b"] = carrier_of(made, A_TO_B, proxy.address)
                    made.carriers["a>b"].start()
                link.start()
                entries: list[bytes] = []
                for first in range(0, 400, 40):
                    entries += await made.publish("a", first, 40)
                    await asyncio.sleep(0.03)
                while proxy.cuts <= 3:
                    entries += await made.publish("a", len(entries), 40)
                    await asyncio.sleep(0.03)
                proxy.cutting = False
                await eventually(lambda: made.entries("b", "a") == entries)
                await made.links["a>b"].stop()
                if engine == SPARK:
                    await made.carriers["a>b"].stop()

    asyncio.run(main())


def test_a_destination_that_is_restarted_under_load_gets_everything_once(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], engine=engine) as made:
            entries: list[bytes] = []
            for round_ in range(4):
                for first in range(0, 60, 6):
                    entries += await made.publish("a", 60 * round_ + first, 6)
                await made.servers["b"].stop()
                entries += await made.publish("a", 1000 + round_, 1)
                await made.servers["b"].start()
            await eventually(lambda: made.entries("b", "a") == entries)
            await eventually(lambda: made.links["a>b"].status()["backlog_entries"] == 0)

    asyncio.run(main())


def test_a_paused_link_copies_nothing_until_it_is_resumed(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], settings=NOTHING_KEPT, engine=engine) as made:
            copied = await made.publish("a", 0, 6)
            await eventually(lambda: made.entries("b", "a") == copied)
            link = made.links["a>b"]
            await eventually(lambda: link.state == "idle")
            await link.pause()
            await eventually(lambda: link.state == "paused")
            waiting = await made.publish("a", 6, 6)
            await made.engines["a"].maintenance.run_once()
            await asyncio.sleep(0.1)
            assert made.entries("b", "a") == copied
            assert made.entries("a", "a")[-6:] == waiting, "it is held back from retention"
            await link.resume()
            await eventually(lambda: made.entries("b", "a") == copied + waiting)

    asyncio.run(main())


def test_invariants_2_and_5_messages_for_some_clusters_come_to_those_alone_and_the_others_know_what_they_lack(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over connections that break; what is left out ends with the last message, so nothing follows it."""
    random = Random(7)
    arrived: set[frozenset[str] | None] = set()

    def noted(block: bytes) -> BlockHeader:
        header = verify_block(block)
        arrived.add(header.only)
        return header

    monkeypatch.setattr(new_blocks, "verify_block", noted)
    kinds: list[list[str]] = [[], ["b"], ["c"], ["b", "c"], ["__local__"], ["elsewhere"]]

    async def main() -> None:
        async with web(tmp_path, [A_TO_B, LinkSpec("a", "c")], engine=engine, started=False) as made:
            proxy = CuttingProxy(made.servers["b"].port, seed=3, bytes_max=20_000)
            async with proxy:
                spec = A_TO_B
                link = made.links["a>b"] = Link(
                    made.engines["a"], "b", proxy.address, route=Route.of(made.topology, spec)
                )
                if engine == SPARK:
                    await made.carriers["a>b"].stop()
                    made.carriers["a>b"] = carrier_of(made, spec, proxy.address)
                    made.carriers["a>b"].start()
                link.start()
                made.links["a>c"].start()
                topic = await made.engines["a"].topic(TOPIC)
                expected: dict[str, list[bytes]] = {"b": [], "c": []}
                lacking: dict[str, set[Position]] = {"b": set(), "c": set()}
                for number in range(120):
                    named = random.choice(kinds) if number < 118 else ["__local__"]
                    entries = [message(b"%d %d " % (number, each) + bytes(100), clusters=named) for each in range(3)]
                    positions = await topic.publish(entries)
                    for name in expected:
                        if not named or name in named:
                            expected[name] += entries
                        else:
                            lacking[name] |= set(positions)
                    if number % 20 == 0:
                        await asyncio.sleep(0.02)
                proxy.cutting = False
                for name, entries in expected.items():
                    await eventually(lambda name=name, entries=entries: made.entries(name, "a") == entries, name)
                    there = made.engines[name]
                    await eventually(lambda there=there: high_water(there) == topic.log.last, "the end is known")
                    found = there.find(TOPIC)
                    assert found is not None
                    holes = found.origins.left_out("a")
                    assert {each for each in positions_of(topic) if lies_in(each, holes)} == lacking[name]
                await eventually(lambda: all(not each.status()["backlog_entries"] for each in made.links.values()))
                for_nobody_else = [each for each in arrived if each is not None and not each & {"b", "c"}]
                assert for_nobody_else == [], "what is for neither has left its cluster"
                await link.stop()
                if engine == SPARK:
                    await made.carriers["a>b"].stop()

    asyncio.run(main())


def high_water(engine: Engine) -> Position | None:
    topic = engine.find(TOPIC)
    mark = None if topic is None else topic.origins.high_water("a")
    return None if mark is None else mark.position


def positions_of(topic: Topic) -> list[Position]:
    return [entry.position for entry in topic.reading.entries(BEFORE_ALL, None, 10**6, 10**9)]


def lies_in(position: Position, holes: Iterable[tuple[Position, Position]]) -> bool:
    return any(after < position <= upto for after, upto in holes)


def test_a_rate_is_kept(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        spec = replace(A_TO_B, rate_bytes=400_000)
        async with web(tmp_path, [spec], engine=engine) as made:
            topic = await made.engines["a"].topic(TOPIC)
            await topic.publish([message(b"first")])
            await eventually(lambda: made.links["a>b"].status()["backlog_entries"] == 0, "the carrier is there")
            started = asyncio.get_running_loop().time()
            for number in range(12):
                await topic.publish([message(b"%d" % number + b"x" * 50_000)])
                await eventually(lambda: made.links["a>b"].status()["backlog_entries"] == 0)
            seconds = asyncio.get_running_loop().time() - started
            assert 0.9 < seconds < 6, "600 kB at 400 kB a second, less a burst and one frame"

    asyncio.run(main())


def test_a_gap_stops_its_topic_alone_until_an_operator_goes_over_it(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], settings=NOTHING_KEPT, engine=engine) as made:
            copied = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == copied)
            await made.links["a>b"].stop()
            await made.publish("a", 3, 3)
            left = await made.publish("a", 6, 3)
            made.links["a>b"].detach()
            await made.engines["a"].maintenance.run_once()
            assert made.entries("a", "a") == left
            link = made.links["a>b"] = link_of(made, A_TO_B)
            link.start()
            await eventually(lambda: [gap["kind"] for gap in link.status()["gaps"]] == ["trimmed"])
            other = await made.publish("a", 0, 3, "other")
            await eventually(lambda: made.entries("b", "a", "other") == other)
            assert made.entries("b", "a") == copied
            await link.resolve(TOPIC, "skip-and-record")
            await eventually(lambda: made.entries("b", "a") == copied + left)
            (hole,) = made.engines["b"].find(TOPIC).origins.left_out("a")  # type: ignore[union-attr]
            assert hole[0].entry == 2
            await link.stop()

    asyncio.run(main())


def test_forwarding_brings_every_origin_once_and_takes_nothing_back(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        ring = [LinkSpec(*ends, forward=True) for ends in (("a", "b"), ("b", "c"), ("c", "a"))]
        async with web(tmp_path, ring, engine=engine) as made:
            published = {cluster: await made.publish(cluster, 0, 9) for cluster in "abc"}
            await eventually(lambda: made.everywhere(published))
            await eventually(lambda: sum(made.sent().values()) == 2 * 27, "every message went over two links")

    asyncio.run(main())


def test_links_of_one_pair_share_the_topics_by_their_filters(tmp_path: Path, engine: str) -> None:
    async def main() -> None:
        orders = LinkSpec("a", "b", name="orders", topics=("public/default/orders-.*",), compression="lz4")
        rest = LinkSpec("a", "b", name="rest", exclude=("public/default/secret",))
        async with web(tmp_path, [orders, rest], engine=engine) as made:
            ordered = await made.publish("a", 0, 6, "orders-1")
            other = await made.publish("a", 0, 6, "other")
            await made.publish("a", 0, 6, "secret")
            await eventually(lambda: made.entries("b", "a", "orders-1") == ordered)
            await eventually(lambda: made.entries("b", "a", "other") == other)
            await eventually(lambda: dict(made.sent()) == {"a>b#orders": 6, "a>b#rest": 6})
            assert made.entries("b", "a", "secret") == []

    asyncio.run(main())


def test_a_topic_that_the_destination_refuses_for_a_while_goes_on_and_holds_no_other_up(
    tmp_path: Path, engine: str
) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], engine=engine) as made:
            name = "persistent://public/closing/refused"
            deleting = made.engines["b"].catalog._closing
            deleting.add("public/closing")
            refused = await made.publish("a", 0, 3, name)
            other = await made.publish("a", 0, 3, "other")
            await eventually(lambda: made.entries("b", "a", "other") == other)
            link = made.links["a>b"]
            await eventually(lambda: "NamespaceNotFound" in link.status()["halted"].get(name, ""))
            deleting.discard("public/closing")
            await eventually(lambda: made.entries("b", "a", name) == refused)
            await eventually(lambda: link.status()["halted"] == {})

    asyncio.run(main())


def test_the_engine_of_a_link_is_switched_under_load_and_nothing_is_lost_or_repeated(
    tmp_path: Path, engine: str
) -> None:
    """``engine`` is the first of the two; a carrier is there all the time, and asks whether or not it is needed."""

    async def main() -> None:
        async with web(tmp_path, [A_TO_B], started=False) as made:
            running = RunningLinks(made.engines["a"])
            carrier = carrier_of(made, A_TO_B)
            stopping = asyncio.Event()
            entries: list[bytes] = []

            async def publish() -> None:
                first = 0
                while not stopping.is_set():
                    entries.extend(await made.publish("a", first, 6))
                    first += 6
                    await asyncio.sleep(0.001)

            async def switch_to(name: str) -> None:
                await running.change(Topology(made.clusters(tmp_path), (A_TO_B,), PipelineSettings(engine=name)))
                (link,) = running
                made.links["a>b"] = link
                before = link.figures.entries
                await eventually(lambda: link.figures.entries > before + 30, f"{name} carries")

            other = EMBEDDED if engine == SPARK else SPARK
            carrier.start()
            publishing = asyncio.create_task(publish())
            for _round in range(2):
                await switch_to(engine)
                await switch_to(other)
            stopping.set()
            await publishing
            await eventually(lambda: made.entries("b", "a") == entries)
            topic = made.engines["b"].find(TOPIC)
            assert topic is not None
            assert len(logged(topic)) == len(entries_of(topic, "a")) == len(entries)
            await carrier.stop()
            await running.stop()

    asyncio.run(main())
