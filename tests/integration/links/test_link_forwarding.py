"""Messages over several links, between real engines over real HTTP: everywhere once, in order, and never back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from engine_support import TOPIC, CuttingProxy, entries_of, eventually, marker
from link_support import link_of, web

from replicator.api.linked_sources import IncomingLink
from replicator.links import copier
from replicator.links.link import Link
from replicator.links.route import Route
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")


def ring(names: str) -> list[LinkSpec]:
    return [LinkSpec(here, there, forward=True) for here, there in [*pairwise(names), (names[-1], names[0])]]


def both(names: Iterator[tuple[str, str]], *, forward: bool) -> list[LinkSpec]:
    return [LinkSpec(here, there, forward=forward) for here, there in names]


SHAPES = {
    "ring of three": ring("abc"),
    "ring of five": ring("abcde"),
    "chain": both(pairwise("abcd"), forward=True),
    "two-way chain": both(iter([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]), forward=True),
    "hub and spokes": [LinkSpec(spoke, "a") for spoke in "bcd"]
    + [LinkSpec("a", spoke, forward=True) for spoke in "bcd"],
    "mesh without forwarding": both(permutations("abcd", 2), forward=False),  # type: ignore[arg-type]
    "mesh with forwarding": both(permutations("abc", 2), forward=True),  # type: ignore[arg-type]
    "diamond": both(iter([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]), forward=True),
    "chain that does not forward": both(pairwise("abc"), forward=False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_invariants_2_3_and_4_every_entry_is_once_everywhere_it_can_come_to(tmp_path: Path, shape: str) -> None:
    async def main() -> None:
        async with web(tmp_path, SHAPES[shape]) as made:
            published: dict[str, list[bytes]] = {name: [] for name in made.engines}
            for first in (0, 7, 14):  # some before the links have met, some at the same time everywhere
                for name in made.engines:
                    published[name] += await made.publish(name, first, 7)
            await eventually(lambda: made.everywhere(published), shape)
            await eventually(lambda: all(link.state == "idle" for link in made.links.values()))
            for name, engine in made.engines.items():
                reaching = made.topology.reaching(name) | {name}
                assert engine.find(TOPIC).log.entries == sum(len(published[origin]) for origin in reaching)  # type: ignore[union-attr]
            for key, link in made.links.items():
                assert link.to not in link.route.origins
                assert link.status()["halted"] == {}, key
                assert link.figures.reconnects == 0, key

    asyncio.run(main())


def test_markers_are_forwarded_and_local_ones_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, both(pairwise("abc"), forward=True)) as made:
            topic = await made.engines["a"].topic(TOPIC)
            await topic.writing.marker(marker(b"shared"))
            await topic.writing.marker(marker(b"local"), local=True)
            published = await made.publish("a", 0, 1)
            await eventually(lambda: made.entries("c", "a") == published)
            found = made.engines["c"].find(TOPIC).reading.entries(BEFORE_ALL, None, 10, 10**6)  # type: ignore[union-attr]
            assert [bytes(entry.entry) for entry in found if entry.marker] == [marker(b"shared")]

    asyncio.run(main())


def test_a_forwarding_link_resumes_where_each_origin_is_after_its_cluster_was_away(tmp_path: Path) -> None:
    """Links are stopped and made anew, servers go away, and meanwhile all clusters publish."""

    async def main() -> None:
        async with web(tmp_path, ring("abc")) as made:
            published: dict[str, list[bytes]] = {name: [] for name in made.engines}
            for round_number, victim in enumerate("abcab"):
                await made.servers[victim].stop()
                key = next(key for key in made.links if key.startswith(victim))
                await made.links[key].stop()
                made.links[key].detach()
                for name in made.engines:
                    published[name] += await made.publish(name, 10 * round_number, 10)
                await made.servers[victim].start()
                made.links[key] = link_of(made, made.links[key].spec)
                made.links[key].start()
            try:
                await eventually(lambda: made.everywhere(published))
            finally:
                for link in made.links.values():
                    await link.stop()

    asyncio.run(main())


@pytest.mark.parametrize("seed", [1, 2])
def test_invariant_2_what_is_forwarded_arrives_once_through_connections_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(copier, "FRAME_BYTES_TARGET", 2_000)  # many frames in flight at each cut

    async def main() -> None:
        specs = [LinkSpec("a", "b"), LinkSpec("b", "a"), LinkSpec("b", "c", forward=True, compression="lz4")]
        async with (
            web(tmp_path, specs, started=False) as made,
            CuttingProxy(made.servers["c"].port, seed=seed, bytes_max=9_000) as proxy,
        ):
            made.links["b>c"].address = proxy.address
            for link in made.links.values():
                link.start()
            published: dict[str, list[bytes]] = {"a": [], "b": []}
            async with asyncio.timeout(20):
                while proxy.cuts < 12:
                    for name, entries in published.items():
                        entries += await made.publish(name, len(entries), 6)
            proxy.cutting = False
            await eventually(lambda: made.everywhere(published))
            assert made.engines["c"].find(TOPIC).log.entries == sum(map(len, published.values()))  # type: ignore[union-attr]
            assert made.links["b>c"].status()["halted"] == {}
            for name in "ab":
                assert made.engines["c"].find(TOPIC).origins.left_out(name) == []  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_link_starts_above_what_came_to_its_destination_on_another_way(tmp_path: Path) -> None:
    """The destination has everything of a when the second way opens: nothing of it is read again."""

    async def main() -> None:
        specs = [LinkSpec("a", "b"), LinkSpec("a", "c"), LinkSpec("b", "c", forward=True)]
        async with web(tmp_path, specs, started=False) as made:
            published = await made.publish("a", 0, 30)
            made.links["a>b"].start()
            made.links["a>c"].start()
            await eventually(lambda: made.entries("b", "a") == made.entries("c", "a") == published)
            made.links["b>c"].start()
            own = await made.publish("b", 0, 2)
            await eventually(lambda: made.entries("c", "b") == own)
            assert made.links["b>c"].figures.entries == 2

    asyncio.run(main())


def test_what_a_link_brings_is_what_the_path_check_allows(tmp_path: Path) -> None:
    """The source believes that it forwards, the destination's topology says that it does not."""

    async def main() -> None:
        async with web(tmp_path, both(pairwise("abc"), forward=True)) as made:
            made.servers["c"]._linked_sources.replace([IncomingLink("b", origins=frozenset({"b"}))])
            await made.publish("a", 0, 3)
            link = made.links["b>c"]
            await eventually(lambda: TOPIC in link.status()["halted"])
            assert "not those of 'a'" in link.status()["halted"][TOPIC]
            assert made.engines["c"].find(TOPIC) is None or entries_of(made.engines["c"].find(TOPIC), "a") == []  # type: ignore[arg-type]
            made.servers["c"]._linked_sources.replace([IncomingLink("b", origins=frozenset({"a", "b"}))])
            more = await made.publish("b", 0, 3)
            await eventually(lambda: link.status()["halted"] == {}, "it goes on when the destination has read the same")
            await eventually(lambda: made.entries("c", "a") and made.entries("c", "b") == more)
            assert link.status()["reconnects"] == 0

    asyncio.run(main())


def test_several_links_of_one_pair_share_the_topics_by_their_patterns(tmp_path: Path) -> None:
    async def main() -> None:
        specs = [
            LinkSpec("a", "b", name="orders", topics=("public/default/orders.*",), compression="zstd"),
            LinkSpec("a", "b", name="rest", exclude=("public/default/secret",), compression="lz4"),
        ]
        async with web(tmp_path, specs) as made:
            everything = {
                topic: await made.publish("a", 0, 9, topic)
                for topic in ("orders", "orders-2", "other", "orders-partition-3", "secret")
            }
            secret = everything.pop("secret")
            for topic, entries in everything.items():
                await eventually(lambda topic=topic, entries=entries: made.entries("b", "a", topic) == entries, topic)
            assert made.links["a>b#orders"].figures.entries == 27
            assert made.links["a>b#rest"].figures.entries == 9
            assert secret
            assert made.engines["b"].find("secret") is None
            assert "secret" not in str(made.links["a>b#rest"]._copier.topics)
            assert made.engines["a"].find("secret").holds.positions == {}  # type: ignore[union-attr]

    asyncio.run(main())


def test_who_lost_what_it_had_is_told_from_who_is_only_behind(tmp_path: Path) -> None:
    """c is behind in what a published, which lies below entries of b that it has; later it lost the topic."""

    async def main() -> None:
        specs = [LinkSpec("a", "b"), LinkSpec("b", "c", forward=True)]
        async with web(tmp_path, specs) as made:
            lost: list[str] = []

            async def again() -> None:
                before = made.links["b>c"]
                await before.stop()
                before.detach()
                route, address = Route.of(made.topology, specs[1]), made.servers["c"].address
                made.links["b>c"] = Link(made.engines["b"], "c", address, route=route, on_lost_copy=lost.append)

            await again()
            made.links["b>c"].start()
            of_a = await made.publish("a", 0, 2)
            await eventually(lambda: made.entries("c", "a") == of_a)
            of_b = await made.publish("b", 0, 9)
            await eventually(lambda: made.entries("c", "b") == of_b)
            await again()
            of_a += await made.publish("a", 2, 2)
            await eventually(lambda: made.entries("b", "a") == of_a)
            made.links["b>c"].start()
            await eventually(lambda: made.entries("c", "a") == of_a)
            assert lost == []
            await again()
            await made.engines["c"].deleting.delete(TOPIC)
            made.links["b>c"].start()
            await eventually(lambda: made.entries("c", "a") == of_a and made.entries("c", "b") == of_b)
            assert lost == [TOPIC]
            await made.links["b>c"].stop()

    asyncio.run(main())
