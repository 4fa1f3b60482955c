"""Consumers of every kind against the real engine, in process and over the network."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from client_support import running_worker
from engine_support import eventually

from replicator.client import Client, Consumer, ConsumerType, InitialPosition, Message, MessageId, ProducerAccessMode
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.consuming.negative_acks import MultiplierRedeliveryBackoff
from replicator.client.consuming.receiving import Receiver
from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidAck,
    InvalidConfiguration,
    InvalidMessage,
    InvalidSeek,
    NotAllowedError,
    OperationNotSupported,
    SubscriptionNotFound,
    Timeout,
)
from replicator.client.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    KeySharedMode,
)

DEADLINE_SECONDS = 30
TOPIC = "flights"
FULL = f"persistent://public/default/{TOPIC}"

Scenario = Callable[[Client], Awaitable[None]]
WithClient = Callable[[Scenario], None]


@pytest.fixture(params=["embedded", "socket"])
def with_client(request: pytest.FixtureRequest, tmp_path: Path) -> WithClient:
    """Runs a scenario with a client of either transport."""

    async def run(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            if request.param == "embedded":
                async with Client(f"embedded:{tmp_path / 'engine'}", cluster="us-east") as client:
                    await scenario(client)
                return
            async with running_worker(tmp_path / "engine") as worker, Client(worker.url) as client:
                await scenario(client)

    return lambda scenario: asyncio.run(run(scenario))


async def publish(client: Client, *contents: bytes, topic: str = TOPIC, batch: bool = False, **send: Any) -> None:
    """Publish all messages in one batch, or each by itself."""
    producer = await client.create_producer(
        topic, batching_enabled=batch, batching_max_messages=len(contents), batching_max_publish_delay_ms=1_000
    )
    await asyncio.gather(*(producer.send(content, **send) for content in contents))
    await producer.close()


async def subscribe(
    client: Client,
    topic: str | list[str] = TOPIC,
    consumer_type: ConsumerType = ConsumerType.Shared,
    name: str = "s",
    **options: Any,
) -> Any:
    return await client.subscribe(
        topic, name, consumer_type, **{"initial_position": InitialPosition.Earliest, **options}
    )


async def receive(consumer: Receiver, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=5_000) for _ in range(count)]


def contents(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


async def nothing_comes(consumer: Receiver, milliseconds: int = 100) -> None:
    with pytest.raises(Timeout):
        await consumer.receive(timeout_millis=milliseconds)


# Redelivery.


def test_a_message_that_is_not_acknowledged_in_time_comes_again_with_its_count(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b")
        consumer = await subscribe(client, unacked_messages_timeout_ms=200, tick_duration_in_ms=50)
        begun = time.monotonic()
        first, second = await receive(consumer, 2)
        await consumer.acknowledge(first)
        again = await consumer.receive(timeout_millis=5_000)
        assert again.data() == second.data()
        assert again.redelivery_count() == 1
        assert time.monotonic() - begun >= 0.2
        await consumer.acknowledge(again)
        await consumer.flush_acknowledgements()
        await nothing_comes(consumer, 400)
        assert consumer.stats().ack_timeouts == 1

    with_client(scenario)


def test_a_prefetched_message_does_not_time_out(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c")
        consumer = await subscribe(client, unacked_messages_timeout_ms=100, tick_duration_in_ms=10)
        await eventually(lambda: consumer.stats().prefetched_messages == 3)
        first = await consumer.receive()
        await consumer.acknowledge(first)
        await nothing_timed_out(consumer, 300)
        assert [message.redelivery_count() for message in await receive(consumer, 2)] == [0, 0]

    async def nothing_timed_out(consumer: Consumer, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)  # three timeouts long
        assert consumer.stats().ack_timeouts == 0

    with_client(scenario)


def test_a_growing_back_off_makes_a_rejected_message_wait_longer_each_time(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        consumer = await subscribe(client, negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(50, 10_000, 4.0))
        waits: list[float] = []
        for count in range(3):
            message = await consumer.receive(timeout_millis=5_000)
            assert message.redelivery_count() == count
            begun = time.monotonic()
            await consumer.negative_acknowledge(message)
            await eventually(lambda: consumer.stats().prefetched_messages == 1)
            waits.append(time.monotonic() - begun)
        assert waits[0] >= 0.05
        assert waits[1] >= 0.2
        assert waits[2] >= 0.8

    with_client(scenario)


def test_negative_acknowledgements_of_one_batch_ask_for_it_once(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, *(b"%d" % index for index in range(10)), batch=True)
        consumer = await subscribe(client, negative_ack_redelivery_delay_ms=50)
        messages = await receive(consumer, 10)
        await consumer.acknowledge(messages[3])
        for message in messages[4:]:
            await consumer.negative_acknowledge(message)
        again = await receive(consumer, 9)
        assert contents(again) == [b"%d" % index for index in range(10) if index != 3]
        assert {message.redelivery_count() for message in again} == {1}
        assert consumer.stats().entries_redelivered == 1

    with_client(scenario)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_rejected_forgotten_or_cut_off_every_message_is_acknowledged_in_the_end(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    async def consume(consumer: Consumer, acknowledged: dict[bytes, int], total: int) -> None:
        while len(acknowledged) < total:
            try:
                message = await consumer.receive(timeout_millis=50)
            except Timeout:
                continue
            match chance.random():
                case luck if luck < 0.2:
                    await consumer.negative_acknowledge(message)
                case luck if luck < 0.3:
                    pass  # forgotten: it times out
                case _:
                    await consumer.acknowledge(message)
                    acknowledged[message.data()] = acknowledged.get(message.data(), 0) + 1

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            running_worker(tmp_path / "engine") as worker,
            Client(worker.url) as client,
        ):
            numbers = [b"%d" % index for index in range(300)]
            await publish(client, *numbers[:200], batch=True)
            await publish(client, *numbers[200:])
            options: dict[str, Any] = {
                "negative_ack_redelivery_delay_ms": 20,
                "unacked_messages_timeout_ms": 100,
                "tick_duration_in_ms": 20,
                "acknowledgement_group_time_ms": 5,
                "receiver_queue_size": 16,
            }
            consumers = [await subscribe(client, **options) for _ in range(2)]
            acknowledged: dict[bytes, int] = {}
            running = [asyncio.create_task(consume(each, acknowledged, len(numbers))) for each in consumers]
            for progress in (60, 180):
                await eventually(lambda progress=progress: len(acknowledged) >= progress)
                await worker.cut_off()
                await worker.serve()
            await asyncio.gather(*running)
            assert sorted(acknowledged) == sorted(numbers)
            for consumer in consumers:
                await consumer.close()
            left = await subscribe(client)
            await nothing_comes(left)

    asyncio.run(main())


# Dead letters and retries.


def test_a_message_goes_to_the_dead_letter_topic_after_its_last_redelivery_and_is_acknowledged(
    with_client: WithClient,
) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"poison", properties={"own": "1"}, partition_key="k", event_timestamp=7)
        await publish(client, b"good")
        consumer = await subscribe(
            client, negative_ack_redelivery_delay_ms=20, dead_letter_policy=ConsumerDeadLetterPolicy(2)
        )
        shown: list[Message] = []
        while len(shown) < 3:
            message = await consumer.receive(timeout_millis=5_000)
            if message.data() == b"good":
                await consumer.acknowledge(message)
            else:
                shown.append(message)
                await consumer.negative_acknowledge(message)
        assert [message.redelivery_count() for message in shown] == [0, 1, 2]
        dead = await subscribe(client, f"{TOPIC}-s-DLQ", name="dead")
        letter = await dead.receive(timeout_millis=5_000)
        position = f"{shown[0].message_id().ledger_id()}:{shown[0].message_id().entry_id()}:-1"
        assert letter.data() == b"poison"
        assert letter.partition_key() == "k"
        assert letter.event_timestamp() == 7
        assert letter.properties() == {
            "own": "1",
            "REAL_TOPIC": FULL,
            "REAL_SUBSCRIPTION": "s",
            "ORIGIN_MESSAGE_ID": position,
            "ORIGIN_MESSAGE_IDY_TIME": position,
        }
        await eventually(lambda: consumer.stats().dead_letters == 1)
        await consumer.close()
        await nothing_comes(await subscribe(client))

    with_client(scenario)


def test_of_a_batch_only_what_was_rejected_is_given_up(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c", batch=True)
        consumer = await subscribe(
            client,
            negative_ack_redelivery_delay_ms=20,
            dead_letter_policy=ConsumerDeadLetterPolicy(1, dead_letter_topic="cemetery"),
        )
        for message in await receive(consumer, 3):
            await consumer.negative_acknowledge(message)
        a, b, c = await receive(consumer, 3)
        await consumer.negative_acknowledge(b)
        dead = await subscribe(client, "cemetery", name="dead")
        assert contents(await receive(dead, 1)) == [b"b"]
        await consumer.acknowledge(a)
        await consumer.negative_acknowledge(c)
        assert contents(await receive(dead, 1)) == [b"c"]
        await consumer.close()
        await nothing_comes(await subscribe(client))
        await nothing_comes(dead, 50)

    with_client(scenario)


def test_messages_that_time_out_too_often_are_given_up_too(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        consumer = await subscribe(
            client,
            unacked_messages_timeout_ms=50,
            tick_duration_in_ms=10,
            dead_letter_policy=ConsumerDeadLetterPolicy(1),
        )
        await receive(consumer, 2)
        dead = await subscribe(client, f"{TOPIC}-s-DLQ", name="dead")
        assert contents(await receive(dead, 1)) == [b"a"]

    with_client(scenario)


def test_the_dead_letter_topic_gets_its_initial_subscription_before_its_first_message(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="undertaker")
        consumer = await subscribe(client, negative_ack_redelivery_delay_ms=10, dead_letter_policy=policy)
        for message in await receive(consumer, 1):
            await consumer.negative_acknowledge(message)
        for message in await receive(consumer, 1):
            await consumer.negative_acknowledge(message)
        await eventually(lambda: consumer.stats().dead_letters == 1)
        late = await subscribe(client, f"{TOPIC}-s-DLQ", name="undertaker", initial_position=InitialPosition.Latest)
        assert contents(await receive(late, 1)) == [b"a"]

    with_client(scenario)


def test_whoever_awaits_letters_may_subscribe_exclusively_while_the_first_one_is_sent(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        async def lose(topic: str) -> bytes:
            await publish(client, b"a", topic=topic)
            policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead", initial_subscription_name="undertaker")
            consumer = await subscribe(client, topic, negative_ack_redelivery_delay_ms=1, dead_letter_policy=policy)
            for _ in range(2):
                await consumer.negative_acknowledge(await consumer.receive(5_000))
            letters = await subscribe(client, f"{topic}-dead", ConsumerType.Exclusive, name="undertaker")
            return (await letters.receive(5_000)).data()

        assert await asyncio.gather(*(lose(f"t{index}") for index in range(20))) == [b"a"] * 20

    with_client(scenario)


def test_a_message_for_later_comes_from_the_retry_topic_after_its_delay_and_is_given_up_after_its_last(
    with_client: WithClient,
) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", properties={"own": "1"})
        consumer = await subscribe(client, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(2))
        first = await consumer.receive(timeout_millis=5_000)
        begun = time.monotonic()
        await consumer.reconsume_later(first, 300, {"why": "busy"})
        second = await consumer.receive(timeout_millis=5_000)
        assert time.monotonic() - begun >= 0.29
        assert second.topic_name() == f"{FULL}-s-RETRY"
        properties = second.properties()
        assert (properties["own"], properties["why"]) == ("1", "busy")
        assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"]) == ("1", "300")
        assert (properties["REAL_TOPIC"], properties["REAL_SUBSCRIPTION"]) == (FULL, "s")
        await consumer.reconsume_later(second, 0)
        third = await consumer.receive(timeout_millis=5_000)
        assert third.properties()["RECONSUMETIMES"] == "2"
        assert third.properties()["ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]
        await consumer.reconsume_later(third, 0)
        dead = await subscribe(client, f"{TOPIC}-s-DLQ", name="dead")
        letter = await dead.receive(timeout_millis=5_000)
        assert letter.properties()["RECONSUMETIMES"] == "3"
        stats = consumer.stats()
        assert (stats.retry_letters, stats.dead_letters) == (2, 1)
        await consumer.flush_acknowledgements()
        await nothing_comes(consumer)

    with_client(scenario)


def test_without_retries_nothing_can_be_consumed_later(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        consumer = await subscribe(client)
        with pytest.raises(NotAllowedError, match="enable_retry"):
            await consumer.reconsume_later(await consumer.receive(), 10)

    with_client(scenario)


def test_letters_go_on_when_who_took_the_dead_letter_topic_away_has_left(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        policy = ConsumerDeadLetterPolicy(1)
        consumer = await subscribe(client, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=20)
        dead = await subscribe(client, f"{TOPIC}-s-DLQ", name="dead")

        async def give_up(content: bytes) -> None:
            await publish(client, content)
            for _ in range(2):
                await consumer.negative_acknowledge(await consumer.receive(timeout_millis=5_000))

        await give_up(b"a")
        assert (await dead.receive(timeout_millis=5_000)).data() == b"a"
        owner = await client.create_producer(f"{TOPIC}-s-DLQ", access_mode=ProducerAccessMode.ExclusiveWithFencing)
        await owner.close()
        await give_up(b"b")
        assert (await dead.receive(timeout_millis=5_000)).data() == b"b"

    with_client(scenario)


def test_while_the_dead_letter_topic_takes_nothing_the_message_stays_and_is_buried_unseen_later(
    with_client: WithClient,
) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        owner = await client.create_producer(f"{TOPIC}-s-DLQ", access_mode=ProducerAccessMode.Exclusive)
        consumer = await subscribe(
            client, negative_ack_redelivery_delay_ms=20, dead_letter_policy=ConsumerDeadLetterPolicy(1)
        )
        for count in range(2):
            (message,) = await receive(consumer, 1)
            assert message.redelivery_count() == count
            await consumer.negative_acknowledge(message)
        await eventually(lambda: consumer.stats().entries_redelivered >= 3, "a few attempts")
        assert consumer.stats().messages_received == 2
        await owner.close()
        dead = await subscribe(client, f"{TOPIC}-s-DLQ", name="dead")
        assert contents(await receive(dead, 1)) == [b"a"]
        await consumer.close()
        await nothing_comes(await subscribe(client))

    with_client(scenario)


# Receiving.


def test_without_a_queue_one_message_comes_for_each_receive_and_none_before(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c")
        one = await subscribe(client, receiver_queue_size=0)
        other = await subscribe(client, receiver_queue_size=0)
        assert contents(await receive(one, 1)) == [b"a"]
        assert contents(await receive(other, 2)) == [b"b", b"c"]
        assert one.stats().prefetched_messages == 0
        late = asyncio.create_task(one.receive())
        await publish(client, b"d")
        assert (await late).data() == b"d"
        with pytest.raises(NotAllowedError, match="receiver_queue_size"):
            await one.batch_receive()

    with_client(scenario)


def test_without_a_queue_a_batch_is_refused_and_left_to_others(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", batch=True)
        consumer = await subscribe(client, receiver_queue_size=0)
        with pytest.raises(InvalidMessage, match="receiver_queue_size=0"):
            await consumer.receive(timeout_millis=5_000)
        other = await subscribe(client)
        assert contents(await receive(other, 2)) == [b"a", b"b"]

    with_client(scenario)


def test_a_listener_without_a_queue_gets_one_message_after_the_other(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        heard: list[bytes] = []

        async def listener(consumer: Consumer, message: Message) -> None:
            heard.append(message.data())
            await consumer.acknowledge(message)

        await publish(client, b"a", b"b", b"c")
        await subscribe(client, receiver_queue_size=0, message_listener=listener)
        await eventually(lambda: heard == [b"a", b"b", b"c"])

    with_client(scenario)


def test_a_batch_receive_returns_at_the_first_limit_that_is_reached(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, *(b"%04d" % index for index in range(10)))
        by_count = await subscribe(client, name="c", batch_receive_policy=ConsumerBatchReceivePolicy(4, -1, 60_000))
        assert len(await by_count.batch_receive()) == 4
        by_bytes = await subscribe(client, name="b", batch_receive_policy=ConsumerBatchReceivePolicy(-1, 9, 60_000))
        assert len(await by_bytes.batch_receive()) == 2
        by_time = await subscribe(client, name="t", batch_receive_policy=ConsumerBatchReceivePolicy(11, -1, 200))
        assert len(await by_time.batch_receive()) == 10
        assert await by_time.batch_receive() == []

    with_client(scenario)


def test_a_batch_receive_that_is_cancelled_takes_nothing_with_it(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b")
        consumer = await subscribe(client, batch_receive_policy=ConsumerBatchReceivePolicy(3, -1, 60_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await consumer.batch_receive()
        assert contents(await receive(consumer, 2)) == [b"a", b"b"]

    with_client(scenario)


def test_a_listener_hears_messages_in_order_until_it_is_paused(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        heard: list[bytes] = []

        def listener(_: Consumer, message: Message) -> None:
            heard.append(message.data())

        consumer = await subscribe(client, consumer_type=ConsumerType.Exclusive, message_listener=listener)
        with pytest.raises(InvalidConfiguration, match="message_listener"):
            await consumer.receive()
        await publish(client, b"a", b"b")
        await eventually(lambda: heard == [b"a", b"b"])
        consumer.pause_message_listener()
        await publish(client, b"c")
        await eventually(lambda: consumer.stats().prefetched_messages == 1)
        assert heard == [b"a", b"b"]
        consumer.resume_message_listener()
        await eventually(lambda: heard == [b"a", b"b", b"c"])

    with_client(scenario)


def test_a_message_at_which_the_listener_fails_comes_again(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        heard: list[tuple[bytes, int]] = []

        async def listener(consumer: Consumer, message: Message) -> None:
            heard.append((message.data(), message.redelivery_count()))
            if message.redelivery_count() == 0 and message.data() == b"a":
                raise ValueError("not today")
            await consumer.acknowledge(message)

        await publish(client, b"a", b"b")
        await subscribe(client, message_listener=listener, negative_ack_redelivery_delay_ms=20)
        await eventually(lambda: heard == [(b"a", 0), (b"b", 0), (b"a", 1)])

    with_client(scenario)


# Seeking.


def test_a_seek_goes_on_after_the_message_or_with_it(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c")
        await publish(client, b"d", b"e", b"f", batch=True)
        for inclusive in (False, True):
            consumer = await subscribe(
                client, consumer_type=ConsumerType.Exclusive, start_message_id_inclusive=inclusive
            )
            messages = await receive(consumer, 6)
            everything = contents(messages)
            for at, message in enumerate(messages):
                await consumer.seek(message.message_id())
                wanted = everything[at if inclusive else at + 1 :]
                assert contents(await receive(consumer, len(wanted))) == wanted
            await consumer.unsubscribe()

    with_client(scenario)


def test_a_seek_reaches_both_ends_and_publish_times(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await subscribe(client, consumer_type=ConsumerType.Exclusive)
        assert await consumer.get_last_message_id() == MessageId.earliest
        await publish(client, b"a")
        first = await consumer.receive(timeout_millis=5_000)
        await eventually(lambda: time.time_ns() // 1_000_000 > first.publish_timestamp())
        between_ms = time.time_ns() // 1_000_000
        await publish(client, b"b")
        await receive(consumer, 1)
        await consumer.seek(MessageId.earliest)
        assert contents(await receive(consumer, 2)) == [b"a", b"b"]
        await consumer.seek(between_ms)
        assert contents(await receive(consumer, 1)) == [b"b"]
        await consumer.seek(MessageId.latest)
        await publish(client, b"c")
        assert contents(await receive(consumer, 1)) == [b"c"]
        last = await consumer.get_last_message_id()
        with pytest.raises(InvalidSeek):
            await consumer.seek(MessageId(-1, last.ledger_id(), last.entry_id() + 5))

    with_client(scenario)


def test_acknowledgements_that_are_on_their_way_at_a_seek_are_void(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b")
        consumer = await subscribe(client, consumer_type=ConsumerType.Exclusive, acknowledgement_group_time_ms=60_000)
        for message in await receive(consumer, 2):
            await consumer.acknowledge(message)
        await consumer.seek(MessageId.earliest)
        assert contents(await receive(consumer, 2)) == [b"a", b"b"]
        await consumer.flush_acknowledgements()
        await consumer.close()
        assert contents(await receive(await subscribe(client), 2)) == [b"a", b"b"]

    with_client(scenario)


def test_a_consumer_goes_on_receiving_after_many_seeks(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        numbers = [b"%d" % index for index in range(40)]
        await publish(client, *numbers, batch=True)
        await publish(client, *numbers)
        consumer = await subscribe(client, consumer_type=ConsumerType.Exclusive, receiver_queue_size=7)
        for taken in (1, 5, 39, 40, 41, 60, 80, 80):
            assert contents(await receive(consumer, taken)) == (numbers * 2)[:taken]
            await consumer.seek(MessageId.earliest)

    with_client(scenario)


# Types.


def test_a_cumulative_acknowledgement_is_for_failover_too_and_for_no_shared_type(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c")
        failover = await subscribe(client, consumer_type=ConsumerType.Failover, name="f")
        messages = await receive(failover, 3)
        await failover.acknowledge_cumulative(messages[1])
        await failover.close()
        assert contents(await receive(await subscribe(client, name="f"), 1)) == [b"c"]
        for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
            consumer = await subscribe(client, consumer_type=kind, name=kind.name)
            with pytest.raises(CumulativeAcknowledgementNotAllowedError, match=kind.value):
                await consumer.acknowledge_cumulative(messages[0])

    with_client(scenario)


def test_failover_listeners_hear_who_is_active(with_client: WithClient) -> None:
    class Heard:
        def __init__(self) -> None:
            self.events: list[tuple[str, int]] = []

        def became_active(self, consumer: Receiver, partition: int) -> None:
            self.events.append(("active", partition))

        def became_inactive(self, consumer: Receiver, partition: int) -> None:
            self.events.append(("inactive", partition))

    async def scenario(client: Client) -> None:
        one, two = Heard(), Heard()
        kind = ConsumerType.Failover
        first = await subscribe(client, consumer_type=kind, consumer_name="a", consumer_event_listener=one)
        await eventually(lambda: one.events == [("active", -1)])
        second = await subscribe(client, consumer_type=kind, consumer_name="b", consumer_event_listener=two)
        await publish(client, b"a", b"b")
        assert contents(await receive(first, 2)) == [b"a", b"b"]
        await first.close()
        assert contents(await receive(second, 2)) == [b"a", b"b"]
        await eventually(lambda: ("active", -1) in two.events)

    with_client(scenario)


def test_sticky_consumers_get_their_own_ranges_and_a_gap_is_refused_by_name(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        def sticky(*ranges: tuple[int, int]) -> dict[str, Any]:
            return {
                "consumer_type": ConsumerType.KeyShared,
                "key_shared_policy": ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges),
            }

        low = await subscribe(client, **sticky((0, 32_767)))
        high = await subscribe(client, **sticky((32_768, 65_535)))
        with pytest.raises(InvalidConfiguration):
            await subscribe(client, **sticky((100, 200)))
        for index in range(20):
            await publish(client, b"%d" % index, partition_key=f"key-{index}")
        await eventually(
            lambda: low.stats().prefetched_messages + high.stats().prefetched_messages == 20,
            "all messages at their consumers",
        )
        assert low.stats().prefetched_messages > 0
        assert high.stats().prefetched_messages > 0

    with_client(scenario)


def test_an_entry_is_acknowledged_when_all_its_messages_are_without_batch_index_acks(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b", b"c", batch=True)
        options: dict[str, Any] = {"batch_index_ack_enabled": False}
        consumer = await subscribe(client, **options)
        for message in (await receive(consumer, 3))[:2]:
            await consumer.acknowledge(message)
        await consumer.close()
        consumer = await subscribe(client, **options)
        messages = await receive(consumer, 3)
        assert contents(messages) == [b"a", b"b", b"c"]
        for message in messages:
            await consumer.acknowledge(message)
        await consumer.close()
        await nothing_comes(await subscribe(client, **options))

    with_client(scenario)


def test_a_forced_unsubscribe_takes_the_subscription_from_its_other_consumers(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        one = await subscribe(client)
        two = await subscribe(client)
        with pytest.raises(NotAllowedError):
            await one.unsubscribe()
        await one.unsubscribe(force=True)
        with pytest.raises(AlreadyClosed):
            await one.receive()
        with pytest.raises(SubscriptionNotFound, match="deleted"):  # it does not make the subscription anew
            await two.receive(5_000)
        await two.close()

    with_client(scenario)


@pytest.mark.parametrize("topics", [TOPIC, [TOPIC, "quiet"]], ids=["one topic", "many topics"])
def test_a_seek_takes_away_what_a_batch_receive_has_gathered(with_client: WithClient, topics: str | list[str]) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b")
        consumer = await subscribe(client, topics, batch_receive_policy=ConsumerBatchReceivePolicy(3, -1, 1_000))
        await eventually(lambda: consumer.stats().prefetched_messages == 2)
        gathering = asyncio.create_task(consumer.batch_receive())
        await eventually(lambda: consumer.stats().prefetched_messages == 0)
        await consumer.seek(MessageId.latest)
        await publish(client, b"c")
        assert contents(await gathering) == [b"c"]

    with_client(scenario)


# Calls that are cancelled.


async def cancelled_after(turns: int, call: Coroutine[Any, Any, Any]) -> Any:
    """Let ``call`` run for some turns of the event loop, then cancel it; its result if it was done before."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0]


def test_a_close_that_is_cancelled_lets_go_of_the_subscription_all_the_same(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        for turns in range(12):
            consumer = await subscribe(client, consumer_type=ConsumerType.Exclusive, name=f"s{turns}")
            await cancelled_after(turns, consumer.close())
            await consumer.close()
            with pytest.raises(AlreadyClosed):
                await consumer.receive()
            await (await subscribe(client, consumer_type=ConsumerType.Exclusive, name=f"s{turns}")).close()

    with_client(scenario)


def test_subscribing_to_many_topics_that_is_cancelled_leaves_none_connected(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        topics = [f"t{index}" for index in range(4)]
        await (await subscribe(client, topics, ConsumerType.Exclusive)).close()
        for turns in range(0, 60, 3):
            made = await cancelled_after(turns, subscribe(client, topics, ConsumerType.Exclusive))
            if isinstance(made, MultiTopicsConsumer):
                await made.close()

            async def free() -> None:
                async with asyncio.timeout(5):
                    while True:  # the worker may hear of it a little later
                        try:
                            await (await subscribe(client, topics, ConsumerType.Exclusive)).close()
                            return
                        except ConsumerBusy:
                            await asyncio.sleep(0.01)

            await free()

    with_client(scenario)


# Chunks.


def test_a_message_in_chunks_comes_whole_and_all_its_chunks_are_acknowledged(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer(
            TOPIC, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=1_000
        )
        large = bytes(range(256)) * 40
        await producer.send(b"before")
        await producer.send(large)
        await producer.send(b"after")
        consumer = await subscribe(client, negative_ack_redelivery_delay_ms=20)
        before, whole, after = await receive(consumer, 3)
        assert contents([before, whole, after]) == [b"before", large, b"after"]
        await consumer.negative_acknowledge(whole)
        again = await consumer.receive(timeout_millis=5_000)
        assert again.data() == large
        for message in (before, again, after):
            await consumer.acknowledge(message)
        await consumer.close()
        await nothing_comes(await subscribe(client))

    with_client(scenario)


# Several topics.


def test_a_list_of_topics_is_received_fairly_and_acknowledged_by_topic(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, *(b"busy" for _ in range(50)), topic="one")
        await publish(client, b"quiet", topic="two")
        consumer = await subscribe(client, ["one", "two"])
        assert isinstance(consumer, MultiTopicsConsumer)
        await eventually(lambda: consumer.stats().prefetched_messages == 51)
        messages = await receive(consumer, 51)
        assert b"quiet" in contents(messages[:2])
        with pytest.raises(InvalidAck, match="message itself"):
            await consumer.acknowledge(messages[0].message_id())
        for message in messages:
            await consumer.acknowledge(message)
        await consumer.close()
        again = await subscribe(client, ["one", "two"])
        await nothing_comes(again)
        await again.seek(MessageId.earliest)
        assert len(await receive(again, 51)) == 51
        with pytest.raises(OperationNotSupported):
            await again.seek(messages[0].message_id())
        await again.unsubscribe()

    with_client(scenario)


def test_a_consumer_of_many_topics_waits_for_all_of_them_at_once(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await subscribe(client, ["one", "two", "three"])
        for topic in ("two", "three", "one"):
            waiting = asyncio.create_task(consumer.receive())
            await publish(client, topic.encode(), topic=topic)
            assert (await waiting).data() == topic.encode()

    with_client(scenario)


def test_if_one_topic_cannot_be_subscribed_to_none_is(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        taken = await subscribe(client, "two", consumer_type=ConsumerType.Exclusive)
        with pytest.raises(ConsumerBusy):
            await subscribe(client, ["one", "two"], consumer_type=ConsumerType.Exclusive)
        await subscribe(client, "one", consumer_type=ConsumerType.Exclusive)
        await taken.close()

    with_client(scenario)


def test_a_partitioned_topic_is_consumed_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), running_worker(tmp_path / "engine") as worker:
            await worker.engine.partitioned.create(FULL, 3)
            async with Client(worker.url) as client:
                producer = await client.create_producer(TOPIC)
                await asyncio.gather(*(producer.send(b"%d" % n, partition_key=f"k{n}") for n in range(30)))
                consumer = await subscribe(client, max_total_receiver_queue_size_across_partitions=9)
                assert isinstance(consumer, MultiTopicsConsumer)
                messages = await receive(consumer, 30)
                assert sorted(int(message.data()) for message in messages) == list(range(30))
                assert len({message.message_id().partition() for message in messages}) > 1
                for message in messages:
                    await consumer.acknowledge(message.message_id())
                await consumer.close()
                await nothing_comes(await subscribe(client))
                with pytest.raises(OperationNotSupported, match="partitioned"):
                    await client.create_reader(TOPIC, MessageId.earliest)

    asyncio.run(main())


def test_the_loss_of_one_topic_surfaces_where_nothing_reconnects(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            running_worker(tmp_path / "engine") as worker,
            Client(worker.url, reconnect=False) as client,
        ):
            consumer = await subscribe(client, ["one", "two"])
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            await worker.cut_off()
            with pytest.raises(ConnectError):
                await waiting
            with pytest.raises(ConnectError):
                await consumer.batch_receive()

    asyncio.run(main())


def test_a_listener_of_many_topics_may_be_paused_and_its_failures_come_again(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        heard: list[tuple[bytes, int]] = []

        async def listener(consumer: MultiTopicsConsumer, message: Message) -> None:
            heard.append((message.data(), message.redelivery_count()))
            if message.redelivery_count() == 0:
                raise ValueError("not today")
            await consumer.acknowledge(message)

        consumer = await subscribe(
            client, ["one", "two"], message_listener=listener, negative_ack_redelivery_delay_ms=20
        )
        for topic in ("one", "two"):
            await publish(client, topic.encode(), topic=topic)
        await eventually(lambda: len(heard) == 4)
        assert sorted(heard) == [(b"one", 0), (b"one", 1), (b"two", 0), (b"two", 1)]
        consumer.pause_message_listener()
        await publish(client, b"late", topic="one")
        await eventually(lambda: consumer.stats().prefetched_messages == 1)
        assert len(heard) == 4
        consumer.resume_message_listener()
        await eventually(lambda: len(heard) == 6)

    with_client(scenario)


# Readers.


def test_a_reader_begins_where_it_is_told_and_leaves_no_subscription(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a")
        await publish(client, b"b", batch=True)  # a batch of one
        await publish(client, b"c", b"d", batch=True)
        await publish(client, b"e", batch=True)
        reader = await client.create_reader(TOPIC, MessageId.earliest)
        read: list[Message] = []
        while await reader.has_message_available():
            read.append(await reader.read_next(timeout_millis=5_000))
        assert contents(read) == [b"a", b"b", b"c", b"d", b"e"]
        for inclusive in (False, True):
            for at, message in enumerate(read):
                own = await client.create_reader(TOPIC, message.message_id(), start_message_id_inclusive=inclusive)
                wanted = contents(read)[at if inclusive else at + 1 :]
                assert [(await own.read_next(timeout_millis=5_000)).data() for _ in wanted] == wanted
                assert not await own.has_message_available()
                await own.close()
        await reader.seek(read[0].message_id())
        assert (await reader.read_next(timeout_millis=5_000)).data() == b"b"
        await reader.seek(0)
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_millis=5_000)).data() == b"a"

    with_client(scenario)


def test_a_reader_of_what_comes_sees_nothing_older(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"old")
        async with await client.create_reader(TOPIC, MessageId.latest) as reader:
            assert not await reader.has_message_available()
            await publish(client, b"new")
            assert await reader.has_message_available()
            assert (await reader.read_next(timeout_millis=5_000)).data() == b"new"

    with_client(scenario)


def test_a_reader_goes_on_where_it_was_after_the_loss_of_its_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            running_worker(tmp_path / "engine") as worker,
            Client(worker.url) as client,
        ):
            await publish(client, b"a", b"b")
            await publish(client, b"c", b"d", b"e", batch=True)
            reader = await client.create_reader(TOPIC, MessageId.earliest)
            assert [(await reader.read_next()).data() for _ in range(3)] == [b"a", b"b", b"c"]
            await worker.cut_off()
            await eventually(lambda: not reader.is_connected())
            await worker.serve()
            assert [(await reader.read_next()).data() for _ in range(2)] == [b"d", b"e"]

    asyncio.run(main())


def test_a_reader_listener_is_called_with_each_message(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await publish(client, b"a", b"b")
        heard: list[bytes] = []
        await client.create_reader(
            TOPIC, MessageId.earliest, reader_listener=lambda _, message: heard.append(message.data())
        )
        await eventually(lambda: heard == [b"a", b"b"])

    with_client(scenario)
