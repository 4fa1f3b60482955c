"""Segments that were damaged while no worker ran: what is wrong is named and never served, all else goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duplicates_support
import pytest
from engine_support import logged, message, opened, subscribed
from segment_support import SMALL, check_places, segments_of, small_segments

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.commit import compacting
from replicator.engine.log.gathering import gather_blocks
from replicator.engine.log.segments.files import listed, segment_name
from replicator.engine.log.segments.places import Place, read_placed
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)


def served(topic: Topic) -> tuple[dict[Position, bytes], dict[Position, str]]:
    """The entries that can be read, block by block, and why the others cannot be."""
    entries: dict[Position, bytes] = {}
    errors: dict[Position, str] = {}
    at = topic.log.next_after(BEFORE_ALL)
    while at is not None:
        try:
            for entry in topic.reading.entries(Position(at.ledger, at.entry - 1), at, 1, 1):
                entries[entry.position] = bytes(entry.entry)
        except BlockCorrupt as error:
            errors[at] = str(error)
        at = topic.log.next_after(at)
    return entries, errors


async def fill(path: Path) -> dict[str, dict[Position, bytes]]:
    """Two topics, in many segments, some of both. There are subscriptions that are behind."""
    chance = random.Random(3)
    expected: dict[str, dict[Position, bytes]] = {"a": {}, "b": {}}
    async with opened(path, settings=small_segments()) as engine:
        for _ in range(30):
            for name in expected:
                entry = message(chance.randbytes(chance.randrange(500, 9_000)))
                (position,) = await (await engine.topic(name)).publish([entry])
                expected[name][position] = entry
        for name, entries in expected.items():
            consumer, _ = await subscribed(await engine.topic(name), permits=0)
            await consumer.acknowledge([Ack(position) for position in list(entries)[3::2]])
            await (await engine.topic(name)).subscriptions["sub"].saved()
    return expected


def places_of(engine: Engine, topic: Topic) -> dict[Position, Place]:
    with engine.store.env.begin() as txn:
        found = {BLOCK_KEY.unpack(key): place for place, key in read_placed(txn, engine.store.tables["placed"])}
    own = sorted((key[1:], place) for key, place in found.items() if key[0] == topic.topic_id)
    return {Position(*at): place for at, place in own}


def cut_short(directory: Path, number: int) -> Callable[[Place], bool]:
    """Amid a block."""
    file = directory / segment_name(number)
    content = file.read_bytes()
    cut = next(at for at in range(20_001, len(content)) if b"\0" * 8 not in content[at - 200 : at + 200])
    file.write_bytes(content[:cut])
    return lambda place: place.segment == number and place.offset + place.size > cut


def missing(directory: Path, number: int) -> Callable[[Place], bool]:
    (directory / segment_name(number)).unlink()
    return lambda place: place.segment == number


def emptied(directory: Path, number: int) -> Callable[[Place], bool]:
    (directory / segment_name(number)).write_bytes(b"")
    return lambda place: place.segment == number


def swapped(directory: Path, number: int) -> Callable[[Place], bool]:
    one, other, aside = directory / segment_name(number), directory / segment_name(number + 1), directory / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return lambda place: place.segment in (number, number + 1)


def flipped(directory: Path, number: int) -> Callable[[Place], bool]:
    """Flip a bit in each page; return a function that tells whether a place is hit."""
    with (directory / segment_name(number)).open("r+b") as file:
        for at in range(2_000, 65_536, 4_096):
            file.seek(at)
            before = file.read(1)[0]
            file.seek(at)
            file.write(bytes([before ^ 1 << at % 7]))
    hits = range(2_000, 65_536, 4_096)
    return lambda place: place.segment == number and any(place.offset <= at < place.offset + place.size for at in hits)


@pytest.mark.parametrize("damage", [cut_short, missing, emptied, swapped, flipped])
def test_what_is_damaged_is_named_and_never_served_and_the_rest_is(tmp_path: Path, damage: Any) -> None:
    async def main() -> None:
        expected = await fill(tmp_path)
        directory = segments_of(tmp_path)
        assert len(list(listed(directory))) >= 4
        is_hit = damage(directory, 2)
        async with opened(tmp_path, settings=small_segments()) as engine:
            check_places(engine.store)
            hits = 0
            for name, entries in expected.items():
                topic = await engine.topic(name)
                hit = {position for position, place in places_of(engine, topic).items() if is_hit(place)}
                found, errors = served(topic)
                assert errors.keys() == hit
                for position in hit if damage is not flipped else ():
                    with pytest.raises(BlockCorrupt, match=f"topic {topic.topic_id} at {position}"):
                        gather_blocks(engine.store, [(topic.topic_id, *position)], bytes_max=1)
                assert found == {position: entry for position, entry in entries.items() if position not in hit}
                for position, error in errors.items():
                    assert f"topic {topic.topic_id} at {position}" in error
                    if damage is not flipped:
                        assert segment_name(places_of(engine, topic)[position].segment) in error
                hits += len(hit)
            assert hits > 2
            for _ in range(20):  # it goes on, and writes over nothing that is whole
                for name in expected:
                    entry = message(random.Random(hits).randbytes(7_000))
                    (position,) = await (await engine.topic(name)).publish([entry])
                    expected[name][position] = entry
            await engine.writer.compact_segments()
            for name, entries in expected.items():
                found, errors = served(await engine.topic(name))
                assert found == {position: entry for position, entry in entries.items() if position not in errors}
            for name in expected:
                topic = await engine.topic(name)
                await topic.subscriptions.delete("sub")
                await topic.trimming.trim(topic.log.last)
            check_places(engine.store)

    asyncio.run(main())


@pytest.mark.parametrize("step_bytes", [1, compacting.MOVED_BYTES_MAX], ids=["block by block", "at once"])
def test_a_damaged_block_is_not_moved_and_keeps_its_segment_and_others_of_it_are_moved(
    tmp_path: Path, step_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=small_segments()) as engine:
            kept, gone = await engine.topic("kept"), await engine.topic("gone")
            for number in range(3):
                await kept.publish([message(b"%d" % number * 1_000)])
            for _ in range(8):
                await gone.publish([message(random.Random(1).randbytes(20_000))])
            expected = [entry for _, _, entry in logged(kept)]
        with (segments_of(tmp_path) / segment_name(1)).open("r+b") as file:
            file.seek(4096 + 500)  # of the second one
            file.write(b"!")
        async with opened(tmp_path, settings=small_segments()) as engine:
            kept = await engine.topic("kept")
            await (await engine.topic("gone")).publish([message(random.Random(1).randbytes(20_000))])  # in another one
            await engine.deleting.delete("gone")
            await engine.deleting.sweeper.swept()
            for _ in range(3):
                await engine.writer.compact_segments()
            places = list(places_of(engine, kept).items())
            assert [place.segment == 1 for _, place in places] == [False, True, False]
            found, errors = served(kept)
            assert list(found.values()) == [expected[0], expected[2]]
            assert list(errors) == [places[1][0]]
            check_places(engine.store)

    monkeypatch.setattr("replicator.engine.log.writer.COMPACTION_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(compacting, "MOVED_BYTES_MAX", step_bytes)
    asyncio.run(main())


def test_a_sequence_id_that_a_flipped_bit_made_does_not_make_a_new_message_a_duplicate(tmp_path: Path) -> None:
    async def main() -> None:
        settings = replace(duplicates_support.ON, segments=SMALL)
        async with opened(tmp_path / "a", "us-east", settings) as a, opened(tmp_path / "b", "eu-west", settings) as b:
            await (await a.topic("orders")).publish([duplicates_support.numbered(number) for number in (5, 8)])
            await duplicates_support.copy(await a.topic("orders"), await b.topic("orders"))
        place = segments_of(tmp_path / "b") / segment_name(1)
        content = place.read_bytes()
        five, seven = b"\x0a\x01p\x10\x05", b"\x0a\x01p\x10\x07"  # the producer's name and the id, as protobuf has them
        assert content.count(five) == 1
        place.write_bytes(content.replace(five, seven))
        async with opened(tmp_path / "b", "eu-west", settings) as b:
            topic = await b.topic("orders")
            with pytest.raises(BlockCorrupt, match=f"topic {topic.topic_id} at .* is wrong"):
                await topic.publish([duplicates_support.numbered(7)])
            await topic.publish([duplicates_support.numbered(9)])

    asyncio.run(main())
