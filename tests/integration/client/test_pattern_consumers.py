"""Consumers of a pattern of topics, over both transports, through lost notifications, and across a link."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from channel_support import served
from engine_support import eventually, opened, serving
from engine_support import message as entry
from engine_support import subscribed as engine_subscribed
from topic_proxy import TopicProxy, topic_proxy

from replicator.client import Client, ConsumerType, InitialPosition, Message, PatternConsumer
from replicator.client.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidConfiguration,
    PulsarException,
    ServiceUnitNotReady,
    TopicNotFound,
)
from replicator.client.settings import ConsumerDeadLetterPolicy
from replicator.client.wire.embedded_channel import EmbeddedConnector
from replicator.engine.engine import Engine
from replicator.engine.topics import topic_watch
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.types import SubscriptionType
from replicator.links.link import Link

DEADLINE_SECONDS = 60
PATTERN = re.compile("persistent://public/default/orders-.*")


def full(*locals_: str) -> set[str]:
    return {f"persistent://public/default/{local}" for local in locals_}


@asynccontextmanager
async def cluster(transport: str, path: Path) -> AsyncIterator[tuple[Engine, Client]]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(DEADLINE_SECONDS))
        if transport == "embedded":
            client = await stack.enter_async_context(Client(f"embedded:{path}", cluster="us-east"))
            assert isinstance(client._connector, EmbeddedConnector)
            yield await client._connector.engine(), client
            return
        engine = await stack.enter_async_context(opened(path))
        url = await stack.enter_async_context(served(engine))
        yield engine, await stack.enter_async_context(Client(url))


Scenario = Callable[[Engine, Client], Awaitable[None]]


@pytest.fixture(params=["embedded", "broker"])
def in_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario with an engine, and a client of it over either transport."""

    async def run(scenario: Scenario) -> None:
        async with cluster(request.param, tmp_path) as (engine, client):
            await scenario(engine, client)

    return lambda scenario: asyncio.run(run(scenario))


def over_proxy(path: Path, scenario: Callable[[Engine, Client, TopicProxy], Awaitable[None]]) -> None:
    """Runs a scenario with a client behind a proxy."""

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            opened(path) as engine,
            served(engine) as url,
            topic_proxy(url) as proxy,
            Client(proxy.url) as client,
        ):
            await scenario(engine, client, proxy)

    asyncio.run(main())


async def subscribed(
    client: Client, pattern: re.Pattern[str] | str = PATTERN, name: str = "s", **settings: Any
) -> PatternConsumer:
    settings.setdefault("consumer_type", ConsumerType.Shared)
    consumer = await client.subscribe(pattern, name, is_pattern_topic=isinstance(pattern, str), **settings)
    assert isinstance(consumer, PatternConsumer)
    return consumer


async def consumes(consumer: PatternConsumer, *locals_: str) -> None:
    """Wait until it consumes exactly these topics and partitions."""
    await eventually(
        lambda: set(consumer.topics()) == full(*locals_) and consumer._core.settled,
        f"{locals_} (has {consumer.topics()})",
    )
    assert len(consumer.topics()) == len(consumer._turns) == len(locals_), "each once"


async def publish(client: Client, topic: str, *contents: bytes) -> None:
    producer = await client.create_producer(topic)
    await asyncio.gather(*(producer.send(content) for content in contents))
    await producer.close()


async def received(consumer: PatternConsumer, count: int) -> list[Message]:
    messages = []
    for _ in range(count):
        messages.append(await consumer.receive(20_000))
        await consumer.acknowledge(messages[-1])
    return messages


# In one cluster.


def test_subscribe_before_topics_exist_and_get_their_first_messages(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        consumer = await subscribed(client)
        assert consumer.topics() == []
        assert consumer.is_connected()
        for number in range(10):
            await publish(client, f"orders-{number}", b"%d" % number)
            await publish(client, f"invoices-{number}", b"none of ours")
        messages = await received(consumer, 10)
        assert {message.data() for message in messages} == {b"%d" % number for number in range(10)}
        assert {message.topic_name() for message in messages} == full(*(f"orders-{number}" for number in range(10)))

    in_cluster(scenario)


def test_topics_that_are_there_are_consumed_from_where_the_user_said(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await publish(client, "orders-1", b"old")
        latest = await subscribed(client, name="latest")
        earliest = await subscribed(client, name="earliest", initial_position=InitialPosition.Earliest)
        await consumes(latest, "orders-1")
        await publish(client, "orders-1", b"new")
        assert [message.data() for message in await received(latest, 1)] == [b"new"]
        assert [message.data() for message in await received(earliest, 2)] == [b"old", b"new"]

    in_cluster(scenario)


def test_topics_added_deleted_and_added_again(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        consumer = await subscribed(client)
        await engine.making.create("orders-1")
        await engine.making.create("orders-2")
        await consumes(consumer, "orders-1", "orders-2")
        await publish(client, "orders-1", b"first life")
        message = await consumer.receive(20_000)
        await engine.deleting.delete("orders-1", force=True)
        await consumes(consumer, "orders-2")
        await consumer.acknowledge(message)  # of a topic that is gone: nothing happens
        await consumer.negative_acknowledge(message)
        consumer.acknowledge_many([message])
        assert engine.find("orders-1") is None, "nobody made it again"
        await publish(client, "orders-1", b"second life")
        assert [message.data() for message in await received(consumer, 1)] == [b"second life"]
        await consumes(consumer, "orders-1", "orders-2")

    in_cluster(scenario)


def test_a_topic_that_is_deleted_and_made_anew_at_once_is_picked_up_with_its_first_message(
    in_cluster: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await engine.making.create("orders-1")
        consumer = await subscribed(client)
        for life in range(5):
            await engine.deleting.delete("orders-1", force=True)
            await publish(client, "orders-1", b"%d" % life)
            assert [message.data() for message in await received(consumer, 1)] == [b"%d" % life]
        await consumes(consumer, "orders-1")

    in_cluster(scenario)


def test_acknowledging_what_is_gone_says_so_to_those_who_want_receipts(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster("broker", tmp_path) as (engine, client):
            consumer = await subscribed(client, ack_receipt_enabled=True)
            await publish(client, "orders-1", b"a")
            message = await consumer.receive(20_000)
            await engine.deleting.delete("orders-1", force=True)
            await consumes(consumer)
            with pytest.raises(TopicNotFound):
                await consumer.acknowledge(message)

    asyncio.run(main())


def test_partitioned_topics_are_consumed_whole_and_as_they_grow(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await engine.partitioned.create("orders-1", 2)
        consumer = await subscribed(client)
        await consumes(consumer, "orders-1-partition-0", "orders-1-partition-1")
        await engine.partitioned.create("orders-2", 1)
        await consumes(consumer, "orders-1-partition-0", "orders-1-partition-1", "orders-2-partition-0")
        await engine.partitioned.grow("orders-2", 3)
        await publish(client, "orders-2-partition-2", b"in the new partition")
        assert [message.data() for message in await received(consumer, 1)] == [b"in the new partition"]
        await consumes(
            consumer,
            *(f"orders-1-partition-{index}" for index in (0, 1)),
            *(f"orders-2-partition-{i}" for i in range(3)),
        )
        await engine.partitioned.delete("orders-2", force=True)
        await consumes(consumer, "orders-1-partition-0", "orders-1-partition-1")
        await engine.partitioned.create("orders-2", 1)
        await consumes(consumer, "orders-1-partition-0", "orders-1-partition-1", "orders-2-partition-0")

    in_cluster(scenario)


def test_a_precise_pattern_takes_one_topic(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        plain = await subscribed(client, re.compile("persistent://public/default/orders-1$"))
        partitioned = await subscribed(client, re.compile("persistent://public/default/orders-2$"))
        for topic in ("orders-1", "orders-11", "my-orders-1"):
            await engine.making.create(topic)
        await engine.partitioned.create("orders-2", 2)
        await consumes(plain, "orders-1")
        await consumes(partitioned, "orders-2-partition-0", "orders-2-partition-1")

    in_cluster(scenario)


def test_internal_topics_and_other_namespaces_are_hidden(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await engine.making.create("__before")
        consumer = await subscribed(client, re.compile(".*"))
        await engine.making.create("__change_events")
        await engine.making.create("persistent://public/other/orders-1")
        await engine.making.create("shown")
        await consumes(consumer, "shown")

    in_cluster(scenario)


def test_a_pattern_as_text_with_a_flag_and_over_another_namespace(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        text = await subscribed(client, "t/n/a|b")
        anycase = await subscribed(client, re.compile("t/n/A", re.IGNORECASE), "other")
        for topic in ("a", "b", "ab", "A"):
            await engine.making.create(f"t/n/{topic}")
        await eventually(lambda: set(text.topics()) == {"persistent://t/n/a", "persistent://t/n/b"}, "a and b")
        await eventually(lambda: set(anycase.topics()) == {"persistent://t/n/a", "persistent://t/n/A"}, "a and A")

    in_cluster(scenario)


def test_messages_of_all_topics_come_through_seek_redelivery_and_unsubscribing(
    in_cluster: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        consumer = await subscribed(client, negative_ack_redelivery_delay_ms=10)
        for topic in ("orders-1", "orders-2"):
            await publish(client, topic, topic.encode())
        first = [await consumer.receive(20_000) for _ in range(2)]
        for message in first:
            await consumer.negative_acknowledge(message)
        assert {message.data() for message in await received(consumer, 2)} == {b"orders-1", b"orders-2"}
        await consumer.seek(0)
        assert {message.data() for message in await received(consumer, 2)} == {b"orders-1", b"orders-2"}
        await consumer.unsubscribe()
        assert all(not topic.subscriptions for topic in engine.topics())
        await engine.making.create("orders-3")
        with pytest.raises(AlreadyClosed):
            await consumer.receive()
        assert not (await engine.topic("orders-3")).subscriptions

    in_cluster(scenario)


def test_topics_that_come_while_one_unsubscribes_get_no_subscription(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        for round_ in range(5):
            consumer = await subscribed(client, re.compile(f"orders-{round_}-.*"))
            for number in range(3):
                await engine.making.create(f"orders-{round_}-{number}")
            await consumes(consumer, *(f"orders-{round_}-{number}" for number in range(3)))
            unsubscribing = asyncio.create_task(consumer.unsubscribe())
            for number in range(3, 9):
                await engine.making.create(f"orders-{round_}-{number}")
            await unsubscribing
            await engine.making.create(f"orders-{round_}-9")
        assert [topic.name for topic in engine.topics() if topic.subscriptions] == []

    in_cluster(scenario)


def test_a_partitioned_topic_that_becomes_a_plain_one_is_consumed_as_such(
    in_cluster: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await engine.partitioned.create("orders-1", 3)
        consumer = await subscribed(client)
        parts = list(consumer._turns)
        await engine.partitioned.delete("orders-1", force=True)
        await publish(client, "orders-1", b"plain")
        assert [message.data() for message in await received(consumer, 1)] == [b"plain"]
        await consumes(consumer, "orders-1")
        await eventually(lambda: all(isinstance(part.over, AlreadyClosed) for part in parts), "what ended is closed")

    in_cluster(scenario)


def test_a_listener_hears_of_every_topic(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        heard: list[bytes] = []
        await subscribed(client, message_listener=lambda consumer, message: heard.append(message.data()))
        for number in range(5):
            await publish(client, f"orders-{number}", b"%d" % number)
        await eventually(lambda: sorted(heard) == [b"%d" % number for number in range(5)], "all of them")

    in_cluster(scenario)


def test_its_own_dead_letters_are_not_consumed(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        consumer = await subscribed(
            client,
            re.compile(".*"),
            dead_letter_policy=ConsumerDeadLetterPolicy(1, initial_subscription_name="undertaker"),
            negative_ack_redelivery_delay_ms=5,
        )
        await publish(client, "orders-1", b"poison")
        for _ in range(2):
            await consumer.negative_acknowledge(await consumer.receive(20_000))
        await eventually(lambda: engine.find("orders-1-s-DLQ") is not None, "a dead letter topic")
        await engine.making.create("orders-2")
        await consumes_all_but_letters(consumer)

    async def consumes_all_but_letters(consumer: PatternConsumer) -> None:
        await eventually(lambda: set(consumer.topics()) == full("orders-1", "orders-2"), "no letters")
        assert full("orders-1-s-DLQ") < consumer._core.names

    in_cluster(scenario)


def test_what_cannot_be_subscribed_to_at_first_fails_the_whole_and_leaves_nothing(
    in_cluster: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        await engine.making.create("orders-1")
        await engine.making.create("orders-2")
        holder = await client.subscribe("orders-2", "s", ConsumerType.Exclusive)
        with pytest.raises(ConsumerBusy):
            await subscribed(client, consumer_type=ConsumerType.Exclusive)
        assert not (await engine.topic("orders-1")).subscriptions["s"].consumers
        await holder.close()
        await consumes(await subscribed(client, consumer_type=ConsumerType.Exclusive), "orders-1", "orders-2")

    in_cluster(scenario)


def test_what_cannot_be_subscribed_to_later_is_tried_again(tmp_path: Path) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        proxy.fault = lambda frame: []  # so that the holder is there first
        consumer = await subscribed(client, consumer_type=ConsumerType.Exclusive, pattern_auto_discovery_period=0.5)
        holder, _ = await engine_subscribed(await engine.making.create("orders-1"), "s", SubscriptionType.EXCLUSIVE)
        await publish(client, "orders-2", b"not in the way")
        assert [message.data() for message in await received(consumer, 1)] == [b"not in the way"]
        assert not consumer._core.settled
        holder.close()
        await consumes(consumer, "orders-1", "orders-2")

    over_proxy(tmp_path, scenario)


def test_more_topics_than_a_pool_of_connections_has_by_default(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster("broker", tmp_path) as (engine, client):
            topics = [f"orders-{number}" for number in range(150)]
            await asyncio.gather(*(engine.making.create(topic) for topic in topics[:120]))
            consumer = await subscribed(client, max_total_receiver_queue_size_across_partitions=600)
            await asyncio.gather(*(engine.making.create(topic) for topic in topics[120:]))
            await consumes(consumer, *topics)
            assert 0 <= consumer._queue_size_left <= 600 - 150

    asyncio.run(main())


def test_closing_while_topics_come_leaves_no_consumer(in_cluster: Callable[[Scenario], None]) -> None:
    async def scenario(engine: Engine, client: Client) -> None:
        for round_ in range(5):
            consumer = await subscribed(client, name=f"s{round_}")
            creating = [asyncio.create_task(engine.making.create(f"orders-{round_}-{n}")) for n in range(10)]
            await asyncio.sleep(0.004 * round_)  # somewhere in the middle
            await consumer.close()
            await asyncio.gather(*creating)
            await eventually(
                lambda name=f"s{round_}": all(  # type: ignore[misc]
                    not topic.subscriptions[name].consumers for topic in engine.topics() if name in topic.subscriptions
                ),
                "no consumer",
            )

    in_cluster(scenario)


# Watchers.


def test_many_watchers_hear_of_a_topic_over_one_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster("broker", tmp_path) as (_, client):
            consumers = await asyncio.gather(*(subscribed(client, name=f"s{number}") for number in range(100)))
            await publish(client, "orders-1", b"to all")
            assert [(await received(each, 1))[0].data() for each in consumers] == [b"to all"] * 100

    asyncio.run(main())


def test_a_connection_watches_so_many_patterns_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "WATCHES_PER_CONNECTION_MAX", 2)

    async def main() -> None:
        async with cluster("broker", tmp_path) as (engine, client):
            first, second = await subscribed(client, "a.*"), await subscribed(client, "b.*")
            with pytest.raises(ServiceUnitNotReady, match="over this connection"):
                await client._connector.open_topic_watch("c.*", topic_list_hash(()))
            await first.close()
            third = await subscribed(client, "c.*")
            await engine.making.create("b1")
            await engine.making.create("c1")
            await consumes(second, "b1")
            await consumes(third, "c1")

    asyncio.run(main())


def test_a_watcher_that_is_lost_comes_back_and_finds_what_it_missed(tmp_path: Path) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        await engine.making.create("orders-1")
        consumer = await subscribed(client)
        for number in range(2, 5):
            await proxy.cut()
            await publish(client, f"orders-{number}", b"%d" % number)
            assert [message.data() for message in await received(consumer, 1)] == [b"%d" % number]
        await proxy.cut()
        await engine.deleting.delete("orders-1", force=True)
        await consumes(consumer, "orders-2", "orders-3", "orders-4")
        assert consumer.is_connected()

    over_proxy(tmp_path, scenario)


def test_a_worker_that_restarts_finds_its_pattern_consumers_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as clients:
            consumer: PatternConsumer | None = None
            client: Client | None = None
            proxy: TopicProxy | None = None
            for life in range(3):
                async with opened(tmp_path) as engine, served(engine) as url:
                    await engine.making.create(f"orders-{life}")
                    if proxy is None:
                        proxy = await clients.enter_async_context(topic_proxy(url))
                        client = await clients.enter_async_context(Client(proxy.url))
                        consumer = await subscribed(client)
                    proxy.target = url
                    assert consumer is not None
                    await consumes(consumer, *(f"orders-{number}" for number in range(life + 1)))
                    await eventually(consumer.is_connected, "all connections")

    asyncio.run(main())


def test_with_notifications_dropped_the_next_poll_repairs_the_list(tmp_path: Path) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        proxy.fault = lambda frame: []
        await engine.making.create("orders-0")
        consumer = await subscribed(client, pattern_auto_discovery_period=0.2)
        await publish(client, "orders-1", b"late, but not lost")
        assert [message.data() for message in await received(consumer, 1)] == [b"late, but not lost"]
        await engine.deleting.delete("orders-0", force=True)
        await consumes(consumer, "orders-1")
        assert proxy.frames["WATCH_TOPIC_UPDATE"] >= 1, "there was something to drop"

    over_proxy(tmp_path, scenario)


def test_a_topic_that_is_made_anew_while_its_consumer_is_away_is_consumed_from_its_first_message(
    tmp_path: Path,
) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        proxy.fault = lambda frame: []
        before = await engine.making.create("orders-1")
        consumer = await subscribed(client)
        proxy.refusing = True
        await proxy.cut()
        await eventually(lambda: not before.subscriptions["s"].consumers, "it is away")
        await engine.deleting.delete("orders-1")
        topic = await engine.making.create("orders-1")
        await topic.publish([entry(b"while it was away")])
        proxy.refusing = False
        assert [message.data() for message in await received(consumer, 1)] == [b"while it was away"]

    over_proxy(tmp_path, scenario)


def test_an_unchanged_list_is_answered_without_names(tmp_path: Path) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        for topic in ("orders-2", "orders-1", "invoices-1"):
            await engine.making.create(topic)
        names = sorted(full("orders-1", "orders-2"))
        known = topic_list_hash(names)
        heard = Heard()
        watch = await client._connector.open_topic_watch(PATTERN.pattern, topic_list_hash(()))
        watch.start(heard)
        assert heard.lists == [(names, known)], "filtered by the worker"
        watch.poll(known)
        await eventually(lambda: len(heard.lists) == 2, "the second list")
        watch.poll("00000000")
        await eventually(lambda: len(heard.lists) == 3, "the third list")
        assert heard.lists[1:] == [(None, known), (names, known)]
        await watch.close()

    over_proxy(tmp_path, scenario)


class Heard:
    """Recorder of the answers to a watcher's polls."""

    def __init__(self) -> None:
        self.lists: list[tuple[Sequence[str] | None, str]] = []

    def on_topics(self, names: Sequence[str] | None, names_hash: str) -> None:
        self.lists.append((names, names_hash))

    def on_topics_changed(self, added: Sequence[str], deleted: Sequence[str], names_hash: str) -> None: ...

    def on_poll_refused(self, error: PulsarException) -> None: ...

    def on_lost(self, error: PulsarException) -> None: ...


@pytest.mark.parametrize("pattern", ["a(", "t/.*/a", "a" * 1_001])
def test_a_pattern_that_makes_no_sense_is_refused_and_costs_nothing_else(tmp_path: Path, pattern: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine, served(engine) as url, Client(url) as client:
            with pytest.raises(InvalidConfiguration):
                await client._connector.open_topic_watch(pattern, topic_list_hash(()))
            watch = await client._connector.open_topic_watch("a", topic_list_hash(()))
            await watch.close()

    asyncio.run(main())


def test_watchers_end_with_their_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine, served(engine) as url:
            watchers = [each for each in engine.loaded.listeners if type(each).__name__ == "TopicWatchers"]
            async with Client(url) as client:
                consumers = [await subscribed(client, name=f"s{number}") for number in range(3)]
                assert [len(each) for each in watchers] == [3]  # type: ignore[arg-type]
                await consumers[0].close()
                await eventually(lambda: [len(each) for each in watchers] == [2], "one less")  # type: ignore[arg-type]
            await eventually(lambda: [len(each) for each in watchers] == [0], "none")  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_notifications_after_one_poll_the_topics_are_those_of_the_cluster(
    tmp_path: Path, seed: int
) -> None:
    async def scenario(engine: Engine, client: Client, proxy: TopicProxy) -> None:
        chance = random.Random(seed)
        held: list[bytes] = []

        def fault(frame: bytes) -> list[bytes]:
            match chance.randrange(4):
                case 0:
                    return []
                case 1:
                    return [frame, frame]
                case 2:
                    held.append(frame)
                    return []
            late, held[:] = held[::-1], []
            return [frame, *late]

        proxy.fault = fault
        consumer = await subscribed(client, pattern_auto_discovery_period=600)
        model: dict[str, int] = {}
        for step in range(60):
            local = f"orders-{chance.randrange(8)}"
            match chance.randrange(8):
                case 0:
                    await proxy.cut()
                case 1:
                    await asyncio.sleep(0.03)
                case _ if local not in model:
                    await engine.making.create(local)
                    model[local] = step
                case _:
                    await engine.deleting.delete(local, force=True)
                    del model[local]
        await eventually(lambda: consumer._watch is not None, "a watcher")
        # Everybody takes what is on its way, then comes one poll.
        await eventually(lambda: consumer._core._asked_at is None, "no poll on its way")
        consumer._core._period_over_at = 0.0
        consumer._tick()
        await consumes(consumer, *model)
        for local, step in model.items():
            await publish(client, local, b"%d" % step)
        assert {message.data() for message in await received(consumer, len(model))} == {
            b"%d" % step for step in model.values()
        }

    over_proxy(tmp_path, scenario)


# Across clusters.


def test_a_topic_that_appears_through_a_link_is_found_by_a_pattern_consumer_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(DEADLINE_SECONDS))
            east = await stack.enter_async_context(opened(tmp_path / "us-east"))
            west = await stack.enter_async_context(opened(tmp_path / "eu-west", "eu-west"))
            data_plane = await stack.enter_async_context(serving(west, {"us-east"}))
            link = Link(east, "eu-west", data_plane.address)
            link.start()
            stack.push_async_callback(link.stop)
            here = await stack.enter_async_context(Client(await stack.enter_async_context(served(east))))
            there = await stack.enter_async_context(Client(await stack.enter_async_context(served(west))))
            consumer = await subscribed(there)
            for number in range(10):
                await publish(here, f"orders-{number}", b"%d" % number)
            assert {message.data() for message in await received(consumer, 10)} == {b"%d" % n for n in range(10)}
            await east.partitioned.create("orders-whole", 2)
            await publish(here, "orders-whole-partition-1", b"in a partition")
            assert [message.data() for message in await received(consumer, 1)] == [b"in a partition"]

    asyncio.run(main())
