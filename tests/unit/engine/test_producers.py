"""Producers of a real topic: connecting, waiting, being fenced, and what outlives a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, entries_of, eventually, message, opened

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import NotAllowedError, ProducerBusy, ProducerFenced, StoreFailed
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.producers import CLOSED
from replicator.engine.types import AccessMode, ProducerOptions

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode


def options(mode: AccessMode = SHARED, epoch: int | None = None, name: str | None = None) -> ProducerOptions:
    return ProducerOptions(name=name, access_mode=mode, topic_epoch=epoch)


def test_generated_names_are_all_different(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producers = [await topic.producers.create(options()) for _ in range(20)]
            assert len({producer.name for producer in producers}) == 20
            assert {producer.last_sequence_id for producer in producers} == {-1}
            assert {producer.topic_epoch for producer in producers} == {None}

    asyncio.run(main())


def test_a_producer_publishes_until_it_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(options(name="p"))
            assert await producer.publish([message(b"a"), message(b"b")]) == [
                topic.log.first,
                topic.log.last,
            ]
            producer.close()
            producer.close()
            with pytest.raises(NotAllowedError, match="closed"):
                await producer.publish([message()])
            await topic.producers.create(options(name="p"))

    asyncio.run(main())


def test_a_fenced_producer_is_told_and_publishes_no_more(tmp_path: Path) -> None:
    """Upstream: ExclusiveProducerTest.simpleTest."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            old = await topic.producers.create(options(EXCLUSIVE, name="old"))
            told: list[tuple[str, str]] = []
            old.on_closed = lambda code, reason: told.append((code, reason))
            waiting = asyncio.ensure_future(topic.producers.create(options(WAIT, name="waiting")))
            await eventually(lambda: topic.producers.registry.waiting)
            before = asyncio.ensure_future(old.publish([message(b"before")]))
            await asyncio.sleep(0)
            new = await topic.producers.create(options(FENCING, name="new"))
            with pytest.raises(ProducerFenced):
                await old.publish([message(b"after")])
            with pytest.raises(ProducerFenced):
                await waiting
            await before  # what was on its way when it was fenced lies before all of the new owner's
            await new.publish([message(b"new")])
            await eventually(lambda: told)
            assert told[0][0] == "ProducerFenced"
            assert entries_of(topic, "us-east") == [message(b"before"), message(b"new")]
            assert (old.topic_epoch, new.topic_epoch) == (0, 1)

    asyncio.run(main())


def test_one_that_waits_gets_the_topic_when_the_owner_closes(tmp_path: Path) -> None:
    """Upstream: ExclusiveProducerTest.waitForExclusiveTest."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first = await topic.producers.create(options(WAIT))
            second = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            await eventually(lambda: topic.producers.registry.waiting == 1)
            third = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            await eventually(lambda: topic.producers.registry.waiting == 2)
            first.close()
            (await second).close()
            assert (await third).topic_epoch == 2

    asyncio.run(main())


def test_waiting_can_be_given_up_at_any_moment(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            owner = await topic.producers.create(options(EXCLUSIVE))
            gives_up = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            late = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            stays = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            await eventually(lambda: topic.producers.registry.waiting == 3)
            gives_up.cancel()
            await asyncio.wait([gives_up])
            owner.close()  # admits the second,
            late.cancel()  # which does not know of it yet
            await asyncio.wait([late])
            await (await stays).publish([message()])
            assert len(topic.producers.registry) == 1

    asyncio.run(main())


def test_the_epoch_outlives_a_restart_and_fences_who_owned_the_topic_before(tmp_path: Path) -> None:
    """Upstream: ExclusiveProducerTest.producerReconnection, .producerFenced."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first = await topic.producers.create(options(EXCLUSIVE, name="first"))
            first.close()
            second = await topic.producers.create(options(EXCLUSIVE, name="second"))
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(ProducerFenced):
                await topic.producers.create(options(EXCLUSIVE, epoch=first.topic_epoch, name="first"))
            back = await topic.producers.create(options(EXCLUSIVE, epoch=second.topic_epoch, name="second"))
            assert back.topic_epoch == second.topic_epoch == 1
            back.close()
            assert (await topic.producers.create(options(EXCLUSIVE))).topic_epoch == 2

    asyncio.run(main())


def test_when_the_engine_stops_producers_are_told_and_those_that_wait_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        codes: list[str] = []
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            owner = await topic.producers.create(options(EXCLUSIVE))
            owner.on_closed = lambda code, _: codes.append(code)
            waiting = asyncio.ensure_future(topic.producers.create(options(WAIT)))
            await eventually(lambda: topic.producers.registry.waiting)
        with pytest.raises(NotAllowedError, match="stopping"):
            await waiting
        assert codes == [CLOSED]

    asyncio.run(main())


def test_an_owner_that_is_fenced_before_its_epoch_is_stored_never_owns_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first = asyncio.ensure_future(topic.producers.create(options(EXCLUSIVE)))
            await asyncio.sleep(0)
            assert topic.producers.registry.exclusive
            second = await topic.producers.create(options(FENCING))
            with pytest.raises(ProducerFenced):
                await first
            await second.publish([message()])

    asyncio.run(main())


def test_an_owner_whose_epoch_cannot_be_stored_does_not_keep_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            engine.writer.failed = "the disk is gone"
            with pytest.raises(StoreFailed):
                await topic.producers.create(options(EXCLUSIVE))
            engine.writer.failed = None
            assert len(topic.producers.registry) == 0
            await topic.producers.create(options(EXCLUSIVE))

    asyncio.run(main())


def test_the_topics_policies_limit_its_producers(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(policies=TopicPolicies(max_producers=2))
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            await topic.producers.create(options())
            await topic.producers.create(options())
            with pytest.raises(ProducerBusy):
                await topic.producers.create(options())

    asyncio.run(main())
