"""Producers in each other's way over clusters, and what an earlier version hid of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from duplicates_support import ON, chunks_of, copy, numbered, numbered_batch
from engine_support import opened, subscribed

from replicator.engine.producing import duplicate_check
from replicator.engine.producing.conflicts import ACTIVE_MS, CLOCKS_DIFFER_MS_MAX, NAMES_MAX, SharedName
from replicator.engine.producing.contents import Contents
from replicator.engine.producing.duplicate_chains import load_duplicates
from replicator.engine.types import Ack, ProducerOptions

TOPIC = "orders"
FULL_NAME = "persistent://public/default/orders"


class Clock:
    now_ms = 10_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_name_that_is_active_in_two_clusters_is_told_for_a_time(tmp_path: Path) -> None:
    clock = Clock()
    settings = replace(ON, wall_clock_ms=clock)

    async def main() -> None:
        async with (
            opened(tmp_path / "a", "us-east", settings) as east,
            opened(tmp_path / "b", "eu-west", settings) as west,
        ):
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await a.publish([numbered(1)])
            producer = await b.producers.create(ProducerOptions(name="p"))
            clock.now_ms += CLOCKS_DIFFER_MS_MAX
            await a.publish([numbered(2)])
            await copy(a, b)
            assert west.conflicts.shared_names() == [], "these may have been stranded"
            clock.now_ms += 1
            await a.publish([numbered(3)])
            await a.publish([numbered(1, producer="q")])
            await copy(a, b)
            assert west.conflicts.shared_names() == [SharedName(FULL_NAME, "p", "us-east")]
            assert west.conflicts.status()["names"] == [{"topic": FULL_NAME, "producer": "p", "cluster": "us-east"}]
            assert east.conflicts.shared_names() == []
            clock.now_ms += ACTIVE_MS + 1
            assert west.conflicts.status()["shared_names"] == 0
            producer.close()
            await a.publish([numbered(4)])
            await copy(a, b)
            assert west.conflicts.shared_names() == [], "it has moved"

    asyncio.run(main())


def test_invariant_11_names_that_are_kept_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "us-east", ON) as east:
            for number in range(NAMES_MAX + 10):
                east.conflicts._note(SharedName(TOPIC, str(number), "eu-west"))
            assert east.conflicts.status()["shared_names"] == NAMES_MAX
            assert east.conflicts.shared_names()[0].producer == str(NAMES_MAX + 9)

    asyncio.run(main())


def test_messages_with_ids_of_others_and_other_content_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "us-east", ON) as east, opened(tmp_path / "b", "eu-west", ON) as west:
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await a.publish([numbered(1), numbered_batch(2, 4), *chunks_of(5, 2, contents=[b"0", b"1"])])
            await copy(a, b)
            await b.publish([numbered(1, content="b"), numbered_batch(2, 4, content="b")])
            await b.publish(chunks_of(5, 2, contents=[b"x", b"1"]))
            assert west.conflicts.other_content == 5
            await copy(b, a)
            assert east.conflicts.other_content == 5
            assert b.log.messages == a.log.messages == 12

    asyncio.run(main())


async def stored_by_ids_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two stores as a version wrote them that compared nothing but ids."""
    with monkeypatch.context() as earlier:
        earlier.setattr(Contents, "alike", lambda *_: True)
        async with opened(tmp_path / "a", "us-east", ON) as east, opened(tmp_path / "b", "eu-west", ON) as west:
            async with opened(tmp_path / "c", "ap-south", ON) as south:
                a, b, c = [await each.topic(TOPIC) for each in (east, west, south)]
                await a.publish([numbered(1), numbered(2), numbered_batch(3, 5)])
                await b.publish([numbered(1), numbered(2, content="b"), numbered_batch(3, 5, publish_time=2)])
                await c.publish([numbered(1, content="c"), numbered(2)])
                await a.publish(chunks_of(9, 2, uuid="u", contents=[b"0", b"1"]))
                await b.publish(chunks_of(9, 2, uuid="u", contents=[b"0", b"x"]))
                for source in (b, c):
                    await copy(source, a)
            consumer, inbox = await subscribed(a, "sub")
            await inbox.holds(5)
            await consumer.acknowledge([Ack(inbox.positions[0])])


def test_what_an_earlier_version_hid_and_differs_is_delivered_and_what_is_equal_stays_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await stored_by_ids_alone(tmp_path, monkeypatch)
        async with opened(tmp_path / "a", "us-east", ON) as east:
            a = await east.topic(TOPIC)
            # Of id 1 the third cluster's, of id 2 the second one's, and a message whose second chunk differs.
            assert east.conflicts.hidden_differing == 4
            assert a.log.duplicates is not None
            assert len(a.log.duplicates.hidden) == 3
            _, fresh = await subscribed(a, "fresh")
            await fresh.holds(9)
            _, inbox = await subscribed(a, "sub")
            await inbox.holds(7)  # without the two of id 1: they were consumed as one message
        async with opened(tmp_path / "a", "us-east", ON) as east:
            assert east.conflicts.hidden_differing == 0

    asyncio.run(main())


def test_duplicates_are_compared_once_by_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    differing = duplicate_check.differing_duplicates

    def counted(*arguments: object) -> list[object]:
        compared.append(1)
        return differing(*arguments)  # type: ignore[arg-type, return-value]

    async def main() -> None:
        await stored_by_ids_alone(tmp_path, monkeypatch)
        monkeypatch.setattr(duplicate_check, "differing_duplicates", counted)
        for version in ("1", "1", "2"):
            monkeypatch.setattr(duplicate_check, "_RULE", version)
            async with opened(tmp_path / "a", "us-east", ON) as east:
                topic = await east.topic(TOPIC)
                pairs = load_duplicates(east.store, topic.topic_id)
                assert [len(chain) for chain in duplicate_check.group_duplicates(pairs)] == [2, 2, 2]

    asyncio.run(main())
    assert len(compared) == 2
