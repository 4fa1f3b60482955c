"""Start of copying a topic, by what is here and what the destination has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, make_block, message, opened
from step_limit import at_most_steps

from replicator.engine.log.writer import CopiedBlock
from replicator.links.gaps import Mark
from replicator.links.route import Route
from replicator.links.start_positions import StartPositions
from replicator.topology import Link, Topology, load_topology
from snapshots.position import BEFORE_ALL, Position

HUB = Topology((), (Link("x", "us-east"), Link("us-east", "y", forward=True)))


def test_reading_starts_at_the_lowest_place_that_any_origin_needs(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            own = await topic.publish([message(b"0"), message(b"1")])
            previous = BEFORE_ALL
            places: list[Position] = []
            for number in range(4):  # ledger 8 of x: entries 0 to 7, two in each block
                block = make_block(Position(8, 2 * number), [message(b"x"), message(b"y")], origin="x", incarnation=3)
                (extent,) = await topic.writing.copy([CopiedBlock(previous, block)])
                previous = Position(8, 2 * number + 1)
                places.append(extent.local_first)
                own += await topic.publish([message(b"own %d" % number)])
            starts = StartPositions(engine, Route.of(HUB, HUB.links[1]))

            def read(**there: Position) -> Position:
                incarnations = {"us_east": topic.incarnation, "x": 3}
                marks = {name.replace("_", "-"): Mark(incarnations[name], position) for name, position in there.items()}
                return starts.start(topic, marks).read

            everything = {"us_east": own[-1], "x": Position(8, 7)}
            assert read(**everything) == topic.log.last
            assert read() == read(us_east=own[-1]) == read(x=Position(8, 7)) == BEFORE_ALL
            assert read(us_east=own[3], x=Position(8, 7)) == own[3]
            assert read(us_east=own[-1], x=Position(8, 3)) == Position(places[1].ledger, places[1].entry + 1)
            assert read(us_east=own[-1], x=Position(8, 4)) == places[2], "in the middle of a block"
            assert read(us_east=own[2], x=Position(8, 3)) == min(
                own[2], Position(places[1].ledger, places[1].entry + 1)
            )
            assert read(us_east=own[-1], x=Position(9, 0)) == topic.log.last, "it has more of x than is here"

    asyncio.run(main())


def test_looking_for_what_a_destination_lost_ends_where_a_ledger_does(tmp_path: Path) -> None:
    """A restored store begins a new ledger, while its destination has more of the old one."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (old,) = await topic.publish([message(b"0")])
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (new,) = await topic.publish([message(b"1")])
            assert new.ledger > old.ledger
            starts = StartPositions(engine, Route.of(HUB, HUB.links[1]))
            there = {"us-east": Mark(topic.incarnation, Position(old.ledger, 5))}
            with at_most_steps(10_000):
                assert not starts.lost(topic, there, Position(old.ledger, 7), accepted={})

    asyncio.run(main())


def test_what_a_source_publishes_or_its_brokers_do_comes_on_no_other_way(tmp_path: Path) -> None:
    """Other links of the same two clusters carry other topics. Otherwise a new copy of a topic whose oldest messages
    were trimmed would wait for messages that nobody brings."""
    file = tmp_path / "topology.yaml"
    beside = "kind: pulsar, apache: {service_url: 'pulsar://127.0.0.1:6650', admin_url: 'http://127.0.0.1:8080'}"
    file.write_text(
        "clusters:\n"
        f"  a: {{address: '127.0.0.1:7001', data: a, {beside}}}\n"
        "  b: {address: '127.0.0.1:7002', data: b}\n"
        "  c: {address: '127.0.0.1:7003', data: c}\n"
        "links:\n"
        "  - {from: a, to: b, name: some, topics: ['public/default/some-.*'], where: \"key = 'x'\"}\n"
        "  - {from: a, to: b, forward: true}\n"
        "  - {from: c, to: a, where: \"key = 'x'\"}\n"
        "  - {from: c, to: b}\n"
    )
    topology = load_topology(file)
    routes = [Route.of(topology, link) for link in topology.links]
    assert routes[1].origins == {"a", "a.pulsar", "c"}
    assert [each.elsewhere for each in routes] == [frozenset(), {"c"}, frozenset(), frozenset()]
    assert [each.filtered for each in routes] == [frozenset()] * 4
