"""Links between real engines over real HTTP: what is copied, what survives cuts, and whom a fault concerns."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from engine_support import (
    READ_FROM_DISK,
    TOPIC,
    CuttingProxy,
    DataPlaneServer,
    entries_of,
    eventually,
    make_block,
    marker,
    message,
    opened,
    serving,
)

from replicator.api import frame_receiver, link_streams
from replicator.drills.faults import LinkProxy
from replicator.drills.link_fault import LinkFault
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import verify_block
from replicator.engine.log.commit import new_blocks
from replicator.engine.log.origins import Origins
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import Retention, TopicPolicies
from replicator.links import copier, transport
from replicator.links.errors import NotResolved
from replicator.links.link import Link
from replicator.links.transport import SILENCE_SECONDS_MAX
from snapshots.position import BEFORE_ALL, Position

pytestmark = pytest.mark.usefixtures("short_link_pauses")


@asynccontextmanager
async def linked(engine: Engine, to: str, address: str) -> AsyncIterator[Link]:
    link = Link(engine, to, address)
    link.start()
    try:
        yield link
    finally:
        await link.stop()


class Pair:
    """us-east, eu-west with its data plane, and a link from one to the other."""

    def __init__(self, source: Engine, destination: Engine, server: DataPlaneServer, link: Link) -> None:
        self.source, self.destination, self.server, self.link = source, destination, server, link

    def has(self, entries: list[bytes], topic: str = TOPIC) -> bool:
        found = self.destination.find(topic)
        return found is not None and entries_of(found, "us-east") == entries


@asynccontextmanager
async def pair(path: Path, destination: EngineSettings | None = None) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        east = await stack.enter_async_context(opened(path / "us-east"))
        west = await stack.enter_async_context(opened(path / "eu-west", "eu-west", destination))
        server = await stack.enter_async_context(serving(west, {"us-east"}))
        link = await stack.enter_async_context(linked(east, "eu-west", server.address))
        yield Pair(east, west, server, link)


def has(engine: Engine, entries: list[bytes]) -> bool:
    """Return whether a cluster has exactly these messages of us-east."""
    found = engine.find(TOPIC)
    return found is not None and entries_of(found, "us-east") == entries


def numbered(first: int, count: int, size: int = 0) -> list[bytes]:
    return [message(b"%d" % number + b"x" * size) for number in range(first, first + count)]


def test_what_was_and_what_is_published_is_copied_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            topic = await east.topic(TOPIC)
            entries = numbered(0, 50)
            await topic.publish(entries)
            async with serving(west, {"us-east"}) as server, linked(east, "eu-west", server.address) as link:
                await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == entries)
                for number in range(50, 80):
                    entries += (new := numbered(number, 1))
                    await topic.publish(new)
                late = await east.topic("made-later")
                await late.publish(numbered(0, 3))
                await eventually(lambda: entries_of(west.find(TOPIC), "us-east") == entries)
                await eventually(lambda: west.find("made-later"))
                assert west.find(TOPIC).origins.vector() == {"us-east": topic.log.last}
                await eventually(lambda: link.state == "idle")
                status = link.status()
                assert (status["entries"], status["messages"], status["backlog_entries"]) == (83, 83, 0)
                assert (status["to"], status["topics"], status["halted"], status["reconnects"]) == ("eu-west", 2, {}, 0)

    asyncio.run(main())


def test_invariant_4_both_ways_nothing_goes_round_and_local_markers_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            east = await stack.enter_async_context(opened(tmp_path / "us-east"))
            west = await stack.enter_async_context(opened(tmp_path / "eu-west", "eu-west"))
            east_server = await stack.enter_async_context(serving(east, {"eu-west"}))
            west_server = await stack.enter_async_context(serving(west, {"us-east"}))
            await stack.enter_async_context(linked(east, "eu-west", west_server.address))
            await stack.enter_async_context(linked(west, "us-east", east_server.address))
            topic_east, topic_west = await east.topic(TOPIC), await west.topic(TOPIC)
            for number in range(20):
                await topic_east.publish(numbered(number, 1))
                await topic_west.publish(numbered(100 + number, 1))
                await topic_east.writing.marker(marker(b"shared %d" % number))
                await topic_east.writing.marker(marker(b"local %d" % number), local=True)
            await eventually(lambda: topic_west.origins.high_water("us-east").position.entry >= 0)
            await eventually(
                lambda: (
                    entries_of(topic_west, "us-east") == numbered(0, 20)
                    and entries_of(topic_east, "eu-west") == numbered(100, 20)
                )
            )
            await eventually(lambda: len(topic_west.log.markers) == 20)
            assert (topic_east.log.entries, topic_west.log.entries) == (20 + 20 + 40, 20 + 20 + 20)
            assert len(topic_east.log.markers) == 40
            markers = [entry for entry in topic_west.reading.entries(BEFORE_ALL, None, 1000, 10**6) if entry.marker]
            assert [bytes(entry.entry) for entry in markers] == [marker(b"shared %d" % n) for n in range(20)]

    asyncio.run(main())


def test_a_link_resumes_by_itself_when_its_destination_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as both:
            topic = await both.source.topic(TOPIC)
            await topic.publish(numbered(0, 5))
            await eventually(lambda: both.has(numbered(0, 5)))
            for start in (5, 10):
                await both.server.stop()
                await eventually(lambda: both.link.state == "connecting", "an idle link notices", seconds=5)
                assert both.link.detail
                await topic.publish(numbered(start, 5))
                await both.server.start()
                await eventually(lambda start=start: both.has(numbered(0, start + 5)))
            await eventually(lambda: both.link.state == "idle")
            assert both.link.figures.reconnects >= 2

    asyncio.run(main())


def test_a_link_that_starts_before_its_destination_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            server = DataPlaneServer(west, {"us-east"})
            await server.start()
            await server.stop()  # now it has a port on which nobody listens
            async with linked(east, "eu-west", server.address) as link:
                await (await east.topic(TOPIC)).publish(numbered(0, 3))
                await eventually(lambda: link.figures.reconnects >= 3)
                assert link.state == "connecting"
                await server.start()
                await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == numbered(0, 3))
                await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_invariant_2_each_entry_arrives_once_through_connections_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(copier, "FRAME_BYTES_TARGET", 3000)  # many frames in flight at each cut

    async def main() -> None:
        async with AsyncExitStack() as stack:
            east = await stack.enter_async_context(opened(tmp_path / "us-east"))
            west = await stack.enter_async_context(opened(tmp_path / "eu-west", "eu-west"))
            server = await stack.enter_async_context(serving(west, {"us-east"}))
            proxy = await stack.enter_async_context(CuttingProxy(server.port, seed=seed, bytes_max=12_000))
            topics = [await east.topic(name) for name in ("one", "two")]
            link = await stack.enter_async_context(linked(east, "eu-west", proxy.address))
            published = 0
            async with asyncio.timeout(20):
                while link.figures.reconnects < 10:
                    for topic in topics:
                        await topic.publish(numbered(published, 5, size=published % 7 * 50))
                    published += 5
                    await asyncio.sleep(0)
            proxy.cutting = False
            for topic in topics:
                expected = entries_of(topic, "us-east")
                await eventually(
                    lambda topic=topic, expected=expected: (
                        west.find(topic.name) and entries_of(west.find(topic.name), "us-east") == expected
                    ),
                    f"the copy of {topic.name}",
                )
                assert len(expected) == published
                assert west.find(topic.name).log.entries == published
            assert proxy.cuts >= 10

    asyncio.run(main())


def test_a_frame_that_takes_longer_than_the_silence_limit_arrives_over_a_slow_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the link would send the same frame again and again from its first byte."""
    for module in (transport, frame_receiver):
        monkeypatch.setattr(module, "SILENCE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(frame_receiver, "RECEIVING_TOLD_SECONDS", 0.2)
    seconds, rate_bytes = 3, 512 * 1024

    def keep_streams(app: web.Application) -> None:
        app[link_streams.STREAMS] = {}  # a link's new stream ends the one before it, with what the proxy holds of it

    async def main() -> None:
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            entries = numbered(0, seconds, size=rate_bytes)  # one block
            await (await east.topic(TOPIC)).publish(entries)
            server = DataPlaneServer(west, {"us-east"})
            server.also = keep_streams
            await server.start()
            proxy = LinkProxy("127.0.0.1", server.port)
            await proxy.start()
            await proxy.set(LinkFault(rate_bytes=rate_bytes))
            async with linked(east, "eu-west", proxy.address):
                await eventually(lambda: has(west, entries), seconds=60)
            await proxy.stop()
            await server.stop()

    asyncio.run(main())


def test_a_worker_of_another_cluster_at_the_address_gets_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us-east") as east,
            opened(tmp_path / "ap", "ap-south") as south,
            serving(south, {"us-east"}) as server,
            linked(east, "eu-west", server.address) as link,
        ):
            await (await east.topic(TOPIC)).publish(numbered(0, 1))
            await eventually(lambda: link.state == "failed")
            assert "ap-south" in link.detail
            assert "eu-west" in link.detail
            await eventually(lambda: link.figures.reconnects >= 3)
            assert south.topics() == []

    asyncio.run(main())


def test_a_destination_that_has_no_such_link_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us-east") as east,
            opened(tmp_path / "eu-west", "eu-west") as west,
            serving(west, {"ap-south"}) as server,
            linked(east, "eu-west", server.address) as link,
        ):
            await eventually(lambda: link.state == "failed")
            assert "NotAllowedError" in link.detail
            assert "'us-east'" in link.detail

    asyncio.run(main())


def test_invariant_8_a_destination_that_is_away_delays_only_its_own_link(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accepts, and never answers."""
        try:
            await reader.read()
        finally:
            writer.close()

    async def main() -> None:
        black_hole = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = black_hole.sockets[0].getsockname()[1]
        async with (
            pair(tmp_path) as both,
            linked(both.source, "ap-south", "127.0.0.1:1") as away,
            linked(both.source, "sa-west", f"127.0.0.1:{port}") as stuck,
        ):
            topic = await both.source.topic(TOPIC)
            for number in range(30):
                await topic.publish(numbered(number, 1))
            await eventually(lambda: both.has(numbered(0, 30)), seconds=5)
            await eventually(lambda: both.link.state == "idle", seconds=5)
            assert both.link.figures.reconnects == 0
            await eventually(lambda: away.figures.reconnects > 0)
            assert (away.state, stuck.state) == ("connecting", "connecting")
        black_hole.close()

    asyncio.run(main())


def test_a_topic_of_another_incarnation_is_halted_and_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            stale = make_block(Position(1, 0), [message(b"stale")], incarnation=3)
            await (await west.topic("made-anew")).writing.copy([CopiedBlock(BEFORE_ALL, stale)])
            anew, sound = await east.topic("made-anew"), await east.topic("sound")
            async with serving(west, {"us-east"}) as server, linked(east, "eu-west", server.address) as link:
                await eventually(lambda: link.state == "idle")  # connected while the topic is still empty
                for number in range(10):
                    await anew.publish(numbered(number, 1))
                    await sound.publish(numbered(number, 1))
                await eventually(
                    lambda: west.find("sound") and entries_of(west.find("sound"), "us-east") == numbered(0, 10)
                )
                await eventually(lambda: link.status()["halted"])
                assert list(link.status()["halted"]) == [anew.name]
                assert "incarnation" in link.status()["halted"][anew.name]
                assert entries_of(west.find("made-anew"), "us-east") == [message(b"stale")]
                assert link.figures.reconnects == 0

    asyncio.run(main())


def test_a_rotten_block_halts_its_topic_and_is_not_copied(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us-east", settings=READ_FROM_DISK) as east,
            opened(tmp_path / "eu-west", "eu-west") as west,
        ):
            rotten, sound = await east.topic("rotten"), await east.topic("sound")
            for number in range(3):
                await rotten.publish(numbered(number, 1))
            await sound.publish(numbered(0, 3))
            with east.store.env.begin(write=True, db=east.store.tables["blocks"]) as txn:
                key, value = list(txn.cursor())[1]
                txn.put(key, value[:-1] + b"!")
            async with serving(west, {"us-east"}) as server, linked(east, "eu-west", server.address) as link:
                await eventually(lambda: west.find("sound"))
                await eventually(lambda: link.status()["halted"])
                assert "checksum" in link.status()["halted"][rotten.name]
                copied = west.find("rotten")
                assert copied is None or entries_of(copied, "us-east") in ([], numbered(0, 1))

    asyncio.run(main())


@pytest.mark.usefixtures("shortest_link_pauses")
def test_a_topic_that_cannot_be_compared_is_halted_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotten_id: int | None = None
    refused = 0
    newest = Origins.newest_of_earlier_lives

    def damaged(origins: Origins, asked: Collection[str]) -> dict[str, list[Position]]:
        nonlocal refused
        if origins._topic_id == rotten_id:
            refused += 1
            raise BlockCorrupt("its checksum is wrong")
        return newest(origins, asked)

    async def main() -> None:
        nonlocal rotten_id
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            topics = [await east.topic(name) for name in ("rotten", "sound")]

            async def publish(first: int) -> None:
                for topic in topics:
                    await topic.publish(numbered(first, 3))

            def copied(count: int) -> list[bool]:
                found = [west.find(topic.name) for topic in topics]
                return [each is not None and entries_of(each, "us-east") == numbered(0, count) for each in found]

            async with serving(west, {"us-east"}) as server:
                async with linked(east, "eu-west", server.address):
                    await publish(0)
                    await eventually(lambda: copied(3) == [True, True])
                rotten_id = topics[0].topic_id
                monkeypatch.setattr(Origins, "newest_of_earlier_lives", damaged)
                await publish(3)
                async with linked(east, "eu-west", server.address) as link:
                    await eventually(lambda: copied(6) == [False, True])
                    await eventually(lambda: refused > 2, "the topic is looked at again")
                    assert list(link.status()["halted"].values()) == ["its checksum is wrong"]
                    rotten_id = None
                    await eventually(lambda: copied(6) == [True, True])
                    assert link.figures.reconnects == 0

    asyncio.run(main())


def test_a_topic_whose_block_arrived_damaged_goes_on_without_a_reconnect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = 2

    def verified(block: Any) -> Any:
        nonlocal damaged
        if damaged:
            damaged -= 1
            raise BlockCorrupt("its checksum is wrong")
        return verify_block(block)

    async def main() -> None:
        async with pair(tmp_path) as both:
            await eventually(lambda: both.link.state == "idle")
            monkeypatch.setattr(new_blocks, "verify_block", verified)
            await (await both.source.topic(TOPIC)).publish(numbered(0, 3))
            await eventually(lambda: both.has(numbered(0, 3)))
            assert damaged == 0
            assert both.link.figures.reconnects == 0

    asyncio.run(main())


def test_a_destination_that_was_full_gets_the_rest_when_it_has_room(tmp_path: Path) -> None:
    async def main() -> None:
        entries = numbered(0, 8, size=200_000)
        async with opened(tmp_path / "us-east") as east:
            topic = await east.topic(TOPIC)
            async with opened(tmp_path / "eu-west", "eu-west", EngineSettings(store_bytes_max=1024 * 1024)) as west:
                server = DataPlaneServer(west, {"us-east"})
                await server.start()
                async with linked(east, "eu-west", server.address) as link:
                    for entry in entries:
                        await topic.publish([entry])
                    await eventually(lambda: link.state == "failed" and "StoreFull" in link.detail)
                    held = entries_of(west.find(TOPIC), "us-east") if west.find(TOPIC) else []
                    assert held == entries[: len(held)]
                    await server.stop()
                    await west.close()
                    async with opened(tmp_path / "eu-west", "eu-west") as roomy:
                        server.engine = roomy
                        await server.start()
                        # A request that the former server accepted at its very end is answered by nobody.
                        await eventually(
                            lambda: roomy.find(TOPIC) and entries_of(roomy.find(TOPIC), "us-east") == entries,
                            seconds=2 * SILENCE_SECONDS_MAX,
                        )
                        await server.stop()

    asyncio.run(main())


def test_a_destination_restored_from_an_old_copy_gets_again_what_it_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east") as east:
            topic = await east.topic(TOPIC)

            async def copy_all(expected: list[bytes]) -> None:
                async with (
                    opened(tmp_path / "eu-west", "eu-west") as west,
                    serving(west, {"us-east"}) as server,
                    linked(east, "eu-west", server.address),
                ):
                    await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == expected)

            await topic.publish(numbered(0, 3))
            await copy_all(numbered(0, 3))
            shutil.copytree(tmp_path / "eu-west", tmp_path / "old")
            await topic.publish(numbered(3, 3))
            await copy_all(numbered(0, 6))
            shutil.rmtree(tmp_path / "eu-west")
            shutil.copytree(tmp_path / "old", tmp_path / "eu-west")
            await topic.publish(numbered(6, 3))
            await copy_all(numbered(0, 9))

    asyncio.run(main())


def test_invariant_10_a_source_restored_from_an_old_copy_reuses_no_position_and_splices_nothing(tmp_path: Path) -> None:
    """The destination still has what the source lost; going on after it would make one history of two."""

    async def main() -> None:
        async with opened(tmp_path / "eu-west", "eu-west") as west, serving(west, {"us-east"}) as server:

            async def publish(entries: list[bytes], expected: list[bytes]) -> list[Position]:
                async with opened(tmp_path / "us-east") as east, linked(east, "eu-west", server.address):
                    positions = await (await east.topic(TOPIC)).publish(entries)
                    await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == expected)
                    return positions

            await publish(numbered(0, 3), numbered(0, 3))
            shutil.copytree(tmp_path / "us-east", tmp_path / "old")
            lost = await publish(numbered(3, 3), numbered(0, 6))
            shutil.rmtree(tmp_path / "us-east")
            shutil.copytree(tmp_path / "old", tmp_path / "us-east")
            async with opened(tmp_path / "us-east") as east, linked(east, "eu-west", server.address) as link:
                new = await (await east.topic(TOPIC)).publish(numbered(100, 3))
                assert min(new) > max(lost)
                await eventually(lambda: TOPIC in link.status()["halted"], "a halt that says why")
                assert str(lost[-1]) in link.status()["halted"][TOPIC]
                other = await east.topic("other")
                await other.publish(numbered(0, 1))
                await eventually(lambda: (found := west.find("other")) and found.log.messages == 1, "the other topic")
            assert entries_of(west.find(TOPIC), "us-east") == numbered(0, 6)

    asyncio.run(main())


@pytest.mark.parametrize("gone_on", [False, True])
def test_a_source_that_lost_data_goes_on_when_an_operator_says_so_and_never_claims_what_it_lost(
    tmp_path: Path, gone_on: bool
) -> None:
    """No policy of the link does that. Invariants 5 and 10."""

    async def main() -> None:
        async with opened(tmp_path / "eu-west", "eu-west") as west, serving(west, {"us-east"}) as server:
            for first in (0, 3):
                async with opened(tmp_path / "us-east") as east, linked(east, "eu-west", server.address):
                    lost = await (await east.topic(TOPIC)).publish(numbered(first, 3))
                    await eventually(lambda: has(west, numbered(0, first + 3)), "the copies")  # noqa: B023
                if first == 0:
                    shutil.copytree(tmp_path / "us-east", tmp_path / "old")
            new: list[bytes] = []
            async with opened(tmp_path / "old") as east:
                topic = await east.topic(TOPIC)
                if gone_on:
                    new = numbered(100, 3)
                    await topic.publish(new)
                async with linked(east, "eu-west", server.address) as link:
                    await eventually(lambda: TOPIC in link.status()["halted"], "a halt that says why")
                    assert [gap["kind"] for gap in link.status()["gaps"]] == ["lost-data"]
                    with pytest.raises(NotResolved, match="cannot end the gap"):
                        await link.resolve(TOPIC, "copy-anew")
                    await link.resolve(TOPIC, "skip-and-record")
                    new += numbered(200, 2)
                    later = await topic.publish(numbered(200, 2))
                    await eventually(lambda: has(west, [*numbered(0, 6), *new]), "what came later")
                    assert min(later) > max(lost)
                    assert later[0].ledger != lost[0].ledger, "what came next there may be somebody's"
                    assert [skip["kind"] for skip in link.status()["skipped"]] == ["lost-data"]
                ((after, upto),) = topic.origins.left_out("us-east")
                assert after < min(lost)
                assert upto == max(lost)
            async with opened(tmp_path / "old") as east, linked(east, "eu-west", server.address) as link:
                topic = await east.topic(TOPIC)
                assert topic.origins.left_out("us-east") == [(after, upto)]
                await topic.publish(numbered(300, 1))
                await eventually(lambda: has(west, [*numbered(0, 6), *new, *numbered(300, 1)]), "and after a restart")

    asyncio.run(main())


def test_what_a_restored_source_could_not_take_back_is_a_gap_for_who_lacks_it_too(tmp_path: Path) -> None:
    """It is a gap for nobody else: a destination that has it goes on at once."""

    async def main() -> None:
        async with (
            opened(tmp_path / "eu-west", "eu-west") as west,
            serving(west, {"us-east"}) as server,
            opened(tmp_path / "ap-south", "ap-south") as south,
            serving(south, {"us-east"}) as server_south,
        ):
            async with opened(tmp_path / "us-east") as east:
                await (await east.topic(TOPIC)).publish(numbered(0, 3))
            shutil.copytree(tmp_path / "us-east", tmp_path / "old")
            for first, addresses in ((3, (server, server_south)), (4, (server,))):
                async with opened(tmp_path / "us-east") as east, AsyncExitStack() as stack:
                    topic = await east.topic(TOPIC)
                    for each in addresses:
                        await stack.enter_async_context(linked(east, each.engine.cluster, each.address))
                    (last,) = await topic.publish(numbered(first, 1))
                    for each in addresses:
                        await eventually(lambda: has(each.engine, numbered(0, first + 1)), "the copy")  # noqa: B023
            async with opened(tmp_path / "old") as east:
                topic = await east.topic(TOPIC)
                hole = (topic.origins.vector()["us-east"], last)
                await east.writer.reclaim(topic.tail, topic.log.last, (), holes=[hole], upto=last, numbered=False)
            async with (
                opened(tmp_path / "old") as east,
                linked(east, "eu-west", server.address),
                linked(east, "ap-south", server_south.address) as link,
            ):
                await (await east.topic(TOPIC)).publish(numbered(9, 1))
                await eventually(lambda: has(west, [*numbered(0, 5), *numbered(9, 1)]), "who has all of it")
                await eventually(lambda: TOPIC in link.status()["halted"], "a halt that says why")
                assert [gap["kind"] for gap in link.status()["gaps"]] == ["trimmed"]
                await link.resolve(TOPIC, "skip-and-record")
                await eventually(lambda: has(south, [*numbered(0, 4), *numbered(9, 1)]), "what is left")
                found = south.find(TOPIC)
                assert found is not None
                ((_, upto),) = found.origins.left_out("us-east")
                assert upto >= last, "it never claims what it does not have"

    asyncio.run(main())


def test_invariant_11_what_is_in_flight_stays_within_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, frame, block = 60_000, 10_000, 20_100
    monkeypatch.setattr(copier, "FRAME_BYTES_TARGET", frame)
    largest = 0

    async def main() -> None:
        nonlocal largest
        async with pair(tmp_path) as both:
            both.link._copier._window_bytes_max = window
            note_sent: Callable[..., int] = both.link._copier.on_sent

            def on_sent(size_bytes: int, **more: Any) -> int:
                nonlocal largest
                number = note_sent(size_bytes, **more)
                largest = max(largest, both.link._copier.in_flight_bytes)
                return number

            monkeypatch.setattr(both.link._copier, "on_sent", on_sent)
            topic = await both.source.topic(TOPIC)
            entries = numbered(0, 60, size=20_000)
            await asyncio.gather(*(topic.publish([entry]) for entry in entries))
            await eventually(lambda: both.has(entries))

    asyncio.run(main())
    assert 0 < largest < window + max(frame, block * 60)


def test_stopping_a_link_that_never_connected_is_quick_and_leaves_no_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east") as east:
            before = asyncio.all_tasks()
            link = Link(east, "eu-west", "127.0.0.1:1")
            await link.stop()
            link.start()
            await eventually(lambda: link.figures.reconnects >= 1)
            async with asyncio.timeout(5):
                await link.stop()
            assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_a_waiting_link_tries_again_at_once_when_its_destination_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.links.transfer.RETRY_SECONDS_MIN", 1000.0)
    monkeypatch.setattr("replicator.links.transfer.RETRY_SECONDS_MAX", 1000.0)

    async def main() -> None:
        async with opened(tmp_path / "us-east") as east, opened(tmp_path / "eu-west", "eu-west") as west:
            async with serving(west, {"us-east"}) as server:
                address = server.address
            async with linked(east, "eu-west", address) as link:
                await eventually(lambda: link.figures.reconnects > 0, "a failure")
                await (await east.topic(TOPIC)).publish(numbered(0, 3))
                server = DataPlaneServer(west, {"us-east"})
                server.port = int(address.rpartition(":")[2])
                await server.start()
                link.nudge()
                await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == numbered(0, 3))
            await server.stop()

    asyncio.run(main())


# Retention at the source.

NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(0, 0)))


def test_invariant_2_what_was_not_copied_is_held_back_from_retention(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east", settings=NOTHING_KEPT) as east:
            topic = await east.topic(TOPIC)
            for number in range(5):
                await topic.publish(numbered(number, 1))
            link = Link(east, "eu-west", "http://127.0.0.1:9")
            late = await east.topic("made-later")
            for number in range(3):
                await late.publish(numbered(number, 1))
            await east.maintenance.run_once()
            assert entries_of(topic, "us-east") == numbered(0, 5), "the link never reached its destination"
            assert entries_of(late, "us-east") == numbered(0, 3)
            async with opened(tmp_path / "eu-west", "eu-west") as west, serving(west, {"us-east"}) as server:
                link.address = server.address
                link.start()
                try:
                    await eventually(lambda: late.holds.positions["link to eu-west"] == late.log.last)
                    await eventually(lambda: topic.holds.positions["link to eu-west"] == topic.log.last)
                    await topic.writing.marker(marker(), local=True)
                    await eventually(lambda: topic.holds.positions["link to eu-west"] == topic.log.last)
                    await east.maintenance.run_once()
                    assert entries_of(topic, "us-east") == []
                    assert entries_of(west.find(TOPIC), "us-east") == numbered(0, 5)  # type: ignore[arg-type]
                finally:
                    await link.stop()

    asyncio.run(main())


def test_a_link_resumes_after_the_source_trimmed_what_was_copied(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us-east", settings=NOTHING_KEPT) as east,
            opened(tmp_path / "eu-west", "eu-west") as west,
            serving(west, {"us-east"}) as server,
        ):
            topic = await east.topic(TOPIC)
            async with linked(east, "eu-west", server.address) as link:
                for number in range(4):
                    await topic.publish(numbered(number, 1))
                await eventually(lambda: topic.holds.positions["link to eu-west"] == topic.log.last)
            await topic.publish(numbered(4, 1))
            await east.maintenance.run_once()
            assert topic.log.trimmed == west.find(TOPIC).origins.vector()["us-east"]  # type: ignore[union-attr]
            async with linked(east, "eu-west", server.address) as link:
                await topic.publish(numbered(5, 1))
                await eventually(lambda: entries_of(west.find(TOPIC), "us-east") == numbered(0, 6))  # type: ignore[arg-type]
                assert link.status()["halted"] == {}

    asyncio.run(main())


def test_a_destination_that_lost_its_data_holds_the_source_back_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us-east", settings=NOTHING_KEPT) as east:
            topic = await east.topic(TOPIC)
            await topic.publish(numbered(0, 1))
            held_when_connected: list[Position] = []

            def note(link: Link) -> None:
                if link.state == "idle":
                    held_when_connected.append(topic.holds.positions["link to eu-west"])

            link = Link(east, "eu-west", "http://127.0.0.1:9", on_state=note)
            link.start()
            try:
                for path in ("eu-west", "eu-west-made-anew"):
                    async with opened(tmp_path / path, "eu-west") as west, serving(west, {"us-east"}) as server:
                        held_when_connected.clear()
                        link.address = server.address
                        await eventually(lambda: held_when_connected)
                        assert held_when_connected[0] == BEFORE_ALL
                        await eventually(lambda: topic.holds.positions["link to eu-west"] == topic.log.last)
                        assert entries_of(west.find(TOPIC), "us-east") == entries_of(topic, "us-east")  # type: ignore[arg-type]
            finally:
                await link.stop()

    asyncio.run(main())
