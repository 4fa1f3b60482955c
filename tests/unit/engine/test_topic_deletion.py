"""Deleting topics: gone at once and for good, with every row, whatever was on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from catalog_support import Follower, rows_of_nobody
from engine_support import TOPIC, batch, eventually, make_block, message, opened, subscribed

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import EngineError, NotAllowedError, StoreFull, TopicBusy, TopicNotFound
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.store_tables import TABLES_OF_TOPICS, TOPIC_KEY
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topics import topic_deletion, topic_sweeper
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.types import AccessMode, Ack, ProducerOptions, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position


def keyed(number: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=f"key-{number}")
    return encode_entry(metadata, b"payload")


async def with_rows_everywhere(engine: Engine, name: str = TOPIC) -> Topic:
    """Make a topic that has rows in every table for topics."""
    topic = await engine.topic(name)
    await topic.policies.set(TopicPolicies(deduplication=True, compaction_threshold_bytes=0))
    producer = await topic.producers.create(ProducerOptions(name="p", access_mode=AccessMode.EXCLUSIVE))
    for number in range(8):
        await producer.publish([keyed(number)])
    copied = make_block(Position(1, 1), [batch([b"a", b"b", b"c"])], origin="x", batch_sizes=[3], absent={0: [2]})
    await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied, left_out=True)])
    again = make_block(Position(1, 2), [keyed(5)], origin="x")  # the producer sent it to both clusters
    await topic.writing.copy([CopiedBlock(Position(1, 1), again)])
    await topic.writing.marker(message(b"marker"))
    consumer, inbox = await subscribed(topic)
    await inbox.holds(9)
    await consumer.acknowledge([Ack(inbox.positions[0]), Ack(inbox.positions[3]), Ack(inbox.positions[8], (1,))])
    consumer.close()
    producer.close()
    await topic.subscriptions.bury("buried", 2)
    await topic.compaction.run()
    await topic.trimming.trim(inbox.positions[0])
    of_others = ("pending_acks", "link_marks", "published", "broker_cursors", "broker_notes")  # the engine writes none
    for of_workers in of_others:
        await topic.writer.put(of_workers, TOPIC_KEY.pack(topic.topic_id) + b"x", b"x")
    row = b'{"stores": {}, "deleted": {}}'
    await topic.writer.put("lineage", TOPIC_KEY.pack(topic.topic_id) + b"x", row)
    await engine.remember(f"markers handled {topic.topic_id}", [1, 2])
    await topic.terminate()
    return topic


async def leaving(topic: Topic) -> None:
    """Return when the topic's deletion has begun, and the store has not answered yet."""
    while topic.deleted is None:  # noqa: ASYNC110
        await asyncio.sleep(0)


def tables_of(engine: Engine, topic_id: int) -> set[str]:
    return {table for table in TABLES_OF_TOPICS if engine.store.has_rows(table, topic_id)}


def test_nothing_is_left_of_a_deleted_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletion, "SWEEP_ROWS_MAX", 2)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await with_rows_everywhere(engine)
            kept = await with_rows_everywhere(engine, "kept")
            before = tables_of(engine, kept.topic_id)
            assert tables_of(engine, topic.topic_id) == before == set(TABLES_OF_TOPICS), "the test sees every table"
            await engine.deleting.delete(TOPIC)
            assert engine.find(TOPIC) is None
            await engine.deleting.sweeper.swept()
            assert rows_of_nobody(engine.store) == set()
            assert tables_of(engine, kept.topic_id) == before
            assert engine.store.meta(f"markers handled {kept.topic_id}") == [1, 2]

    asyncio.run(main())


def test_a_worker_that_starts_finishes_what_another_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletion, "SWEEP_ROWS_MAX", 1)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await with_rows_everywhere(engine)
            await engine.deleting.delete(TOPIC)
            await engine.topic(TOPIC)
        async with opened(tmp_path) as engine:
            anew = engine.find(TOPIC)
            assert anew is not None
            assert anew.topic_id > topic.topic_id
            assert (anew.log.messages, dict(anew.subscriptions), anew.policies.own) == (0, {}, None)
            await engine.deleting.sweeper.swept()
            assert rows_of_nobody(engine.store) == set()

    asyncio.run(main())


def test_a_full_store_delays_the_deletion_of_rows_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_sweeper, "FULL_PAUSE_SECONDS", 0.01)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            await with_rows_everywhere(engine)
            sweep, refusals = engine.writer.sweep, [StoreFull("no space is left on the disk")] * 2

            async def full_at_first(topic_id: int) -> None:
                if refusals:
                    raise refusals.pop()
                await sweep(topic_id)

            monkeypatch.setattr(engine.writer, "sweep", full_at_first)
            await engine.deleting.delete(TOPIC)
            await engine.deleting.sweeper.swept()
            assert refusals == []
            assert rows_of_nobody(engine.store) == set()

    asyncio.run(main())


def test_a_topic_made_anew_is_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            old = await with_rows_everywhere(engine)
            last = old.log.last
            await engine.deleting.delete(TOPIC)
            anew = await engine.making.create(TOPIC)
            assert anew.incarnation > old.incarnation
            assert (anew.log.messages, dict(anew.subscriptions), anew.origins.vector()) == (0, {}, {})
            (position,) = await anew.publish([message(b"new")])
            assert position > last, "positions are never used again (invariant 10)"
            _, inbox = await subscribed(anew)
            await inbox.holds(1)
            assert [bytes(each.entry) for each in inbox.deliveries] == [message(b"new")]

    asyncio.run(main())


def test_who_asks_for_a_topic_while_it_is_deleted_gets_a_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            old = await engine.topic(TOPIC)
            deletion = asyncio.ensure_future(engine.deleting.delete(TOPIC))
            await leaving(old)
            assert engine.find(TOPIC) is None
            assert engine.topics() == []
            anew = await engine.topic(TOPIC)
            assert deletion.done()
            assert anew.incarnation > old.incarnation
            await anew.publish([message()])

    asyncio.run(main())


def test_consumers_and_producers_are_sent_away_and_told_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            told: list[tuple[str, str]] = []
            consumer, _ = await subscribed(topic)
            producer = await topic.producers.create(ProducerOptions(name="p"))
            consumer.on_closed = producer.on_closed = lambda code, reason: told.append((code, reason))
            with pytest.raises(TopicBusy, match="1 producers and 1 consumers"):
                await engine.deleting.delete(TOPIC)
            await engine.deleting.delete(TOPIC, force=True)
            await eventually(lambda: len(told) == 2)
            assert {code for code, _ in told} == {"TopicNotFound"}
            assert all("was deleted" in reason for _, reason in told)

    asyncio.run(main())


def test_what_is_still_on_its_way_to_a_deleted_topic_is_refused_and_leaves_no_row(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message(b"%d" % n) for n in range(20)])
            _, inbox = await subscribed(topic)
            await inbox.holds(20)
            subscription = topic.subscriptions["sub"]
            deletion = asyncio.ensure_future(engine.deleting.delete(TOPIC, force=True))
            results: list[object] = []
            options = SubscribeOptions(SubscriptionType.SHARED, "c")
            while not deletion.done():
                calls = [
                    topic.publish([message()]),
                    topic.writing.marker(message()),
                    topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(9, 0), [message()], origin="x"))]),
                    topic.subscriptions.create("other", BEFORE_ALL, replicated=False),
                    topic.subscribe("third", options, inbox),
                    topic.producers.create(ProducerOptions()),
                    topic.policies.set(TopicPolicies(max_producers=3)),
                    subscription.acknowledge([Ack(positions[5])]),
                    subscription.moves.consume_through(positions[7]),
                    topic.trimming.trim(positions[9]),
                ]
                results += await asyncio.gather(*calls, return_exceptions=True)
                await asyncio.sleep(0)
            await deletion
            after = [
                topic.trimming.trim(positions[12]),
                topic.policies.set(None),
                subscription.moves.consume_through(positions[11]),
                subscription.moves.seek(positions[2]),
                topic.publish([message()]),
            ]
            await engine.deleting.sweeper.swept()
            refused = await asyncio.gather(*after, return_exceptions=True)
            assert [type(each) for each in refused] == [type(None), *[TopicNotFound] * 4]
            assert all(isinstance(each, EngineError) for each in results if isinstance(each, Exception)), results
            await engine.deleting.sweeper.swept()
            assert rows_of_nobody(engine.store) == set()
            assert engine.topics() == []

    asyncio.run(main())


def test_a_deletion_goes_on_when_its_caller_gives_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            follower = Follower()
            follower.names = {TOPIC}
            engine.add_listener(follower)
            deletion = asyncio.ensure_future(engine.deleting.delete(TOPIC))
            await leaving(topic)
            deletion.cancel()
            await asyncio.wait([deletion])
            await eventually(lambda: follower.deleted == [TOPIC])
            assert engine.store.topic(TOPIC) is None

    asyncio.run(main())


def test_a_topic_whose_making_was_given_up_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            making = asyncio.ensure_future(engine.topic(TOPIC))
            await asyncio.sleep(0)
            making.cancel()
            await asyncio.wait([making])
            await eventually(lambda: engine.find(TOPIC))
            assert engine.catalog.subscribable("public/default") == [TOPIC]

    asyncio.run(main())


def test_a_topic_that_the_store_does_not_delete_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)

            async def refuse(*_: object, **__: object) -> None:
                raise EngineError("not now")

            with monkeypatch.context() as patch:
                patch.setattr(engine.writer, "delete_topics", refuse)
                with pytest.raises(EngineError, match="not now"):
                    await engine.deleting.delete(TOPIC)
            assert engine.find(TOPIC) is topic
            (position,) = await topic.publish([message()])
            await topic.subscriptions["sub"].acknowledge([Ack(position)])
            await engine.deleting.delete(TOPIC)

    asyncio.run(main())


def test_a_partitioned_topic_goes_with_all_its_partitions_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.partitioned.create(TOPIC, 3)
            consumer, _ = await subscribed(await engine.topic(f"{TOPIC}-partition-2"))
            with pytest.raises(TopicBusy):
                await engine.partitioned.delete(TOPIC)
            with pytest.raises(NotAllowedError, match="3 partitions"):
                await engine.deleting.delete(TOPIC)
            assert len(engine.topics()) == engine.partitioned.count(TOPIC) == 3
            consumer.close()
            await engine.partitioned.delete(TOPIC)
            assert engine.topics() == []
            assert engine.partitioned.count(TOPIC) == 0
            with pytest.raises(TopicNotFound):
                await engine.partitioned.delete(TOPIC)
            await engine.topic(TOPIC)
        async with opened(tmp_path) as engine:
            assert [topic.name for topic in engine.topics()] == [TOPIC]

    asyncio.run(main())


def test_listeners_hear_of_every_log_that_is_deleted(tmp_path: Path) -> None:
    class Logs(TopicListener[Topic]):
        def __init__(self) -> None:
            self.deleted: list[str] = []

        def on_log_deleted(self, topic: Topic) -> None:
            self.deleted.append(topic.name)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.partitioned.create(TOPIC, 2)
            logs = Logs()
            engine.add_listener(logs)
            await engine.partitioned.delete(TOPIC)
            assert logs.deleted == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
            engine.remove_listener(logs)
            await engine.topic(TOPIC)
            await engine.deleting.delete(TOPIC)
            assert len(logs.deleted) == 2

    asyncio.run(main())


def test_maintenance_passes_over_topics_that_are_deleted_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        policies = TopicPolicies(message_ttl_seconds=0)
        settings = EngineSettings(policies=policies, maintenance_seconds=0.001)
        async with opened(tmp_path, settings=settings) as engine:
            for number in range(20):
                topic = await engine.topic(f"topic-{number}")
                await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
                await topic.publish([message()])
                await engine.deleting.delete(topic.name)
            await engine.deleting.sweeper.swept()
            assert rows_of_nobody(engine.store) == set()

    asyncio.run(main())


def test_a_namespace_that_makes_no_subscriptions_lets_consumers_use_those_that_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.catalog.create_namespace("public/default", NamespacePolicies(auto_subscription_creation=False))
            topic = await engine.topic(TOPIC)
            with pytest.raises(EngineError, match="auto_subscription_creation"):
                await subscribed(topic)
            assert topic.subscriptions == {}
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            await subscribed(topic)
            await subscribed(topic, "a reader".replace(" ", "-"), durable=False)

    asyncio.run(main())


def test_who_is_just_subscribing_to_a_topic_that_is_deleted_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            options = SubscribeOptions(SubscriptionType.SHARED, "c")
            subscribing = asyncio.ensure_future(topic.subscribe("sub", options, lambda _: None))
            while "sub" not in topic.subscriptions:  # noqa: ASYNC110 - it is stored next
                await asyncio.sleep(0)
            deletion = asyncio.ensure_future(engine.deleting.delete(TOPIC))
            with pytest.raises(TopicNotFound):
                await subscribing
            await deletion
            assert topic.busy is None

    asyncio.run(main())
