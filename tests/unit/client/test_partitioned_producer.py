"""One producer for all partitions: the router chooses, limits are split, lazy partitions start when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidConfiguration,
    NotAllowedError,
    ProducerBlockedQuotaExceededError,
    ProducerQueueIsFull,
    PulsarException,
)
from replicator.client.message import OutgoingMessage
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.client.producing.producer_making import ProducerMaker
from replicator.client.producing.routing import RoutableMessage, RoutingSettings
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire.channel import ProducerEvents, ProducerReady
from replicator.engine.log.entry import decode_entry
from snapshots.position import Position

TOPIC = "persistent://public/default/t"
PARTITIONS = 3


class HandChannel:
    """A producer channel that keeps what it is given; one that confirms does so on the next tick."""

    def __init__(self, settings: ProducerSettings, *, confirms: bool) -> None:
        self.ready = ProducerReady(settings.producer_name or "chosen", -1, None)
        self.events: ProducerEvents
        self.entries: list[bytes] = []
        self.closed = False
        self._confirms = confirms

    def start(self, events: ProducerEvents) -> None:
        self.events = events

    def publish(self, entry_id: int, entry: bytes) -> None:
        self.entries.append(entry)
        if self._confirms:
            asyncio.get_running_loop().call_soon(self.events.on_receipts, [entry_id], [Position(1, entry_id)])

    async def close(self) -> None:
        self.closed = True


class HandConnector:
    """A cluster with one partitioned topic."""

    def __init__(self, *, confirms: bool = True) -> None:
        self.channels: dict[int, HandChannel] = {}
        self.names: list[str | None] = []
        self.refusals: dict[int, PulsarException] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self._confirms = confirms

    async def partitions(self, topic: str) -> int:
        return PARTITIONS

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> HandChannel:
        await self.gate.wait()
        partition = int(settings.topic.rpartition("-")[2])
        if partition in self.refusals:
            raise self.refusals[partition]
        self.names.append(settings.producer_name)
        self.channels[partition] = HandChannel(settings, confirms=self._confirms)
        return self.channels[partition]

    async def open_consumer(self, settings: ConsumerSettings) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def contents(self) -> dict[int, list[bytes]]:
        return {
            partition: [bytes(decode_entry(entry)[1]) for entry in channel.entries]
            for partition, channel in sorted(self.channels.items())
        }


def by_property(message: RoutableMessage, partitions: int) -> int:
    return int(message.properties().get("to", "0"))


def to(partition: int) -> dict[str, str]:
    return {"to": str(partition)}


def run(
    scenario: Callable[[PartitionedProducer, HandConnector], Awaitable[None]],
    *,
    lazy: bool = False,
    confirms: bool = True,
    routing: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        connector = HandConnector(confirms=confirms)
        maker = ProducerMaker(connector, reconnect=False, operation_timeout_seconds=5)
        producer = await maker.make(
            ProducerSettings(TOPIC, **{"producer_name": None, "batching": None, **settings}),
            RoutingSettings(**{"message_router": by_property, "lazy": lazy, **(routing or {})}),
            None,
            None,
            lambda _: None,
        )
        assert isinstance(producer, PartitionedProducer)
        async with asyncio.timeout(10):
            await scenario(producer, connector)

    asyncio.run(main())


def test_each_message_goes_to_the_partition_that_the_router_says() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        sent = [await producer.send(b"%d" % n, to(n % PARTITIONS)) for n in range(6)]
        assert connector.contents() == {0: [b"0", b"3"], 1: [b"1", b"4"], 2: [b"2", b"5"]}
        assert [message_id.partition() for message_id in sent] == [0, 1, 2, 0, 1, 2]
        assert producer.topic() == TOPIC
        stats = producer.stats()
        assert (stats.messages_sent, stats.messages_confirmed, stats.messages_pending) == (6, 6, 0)
        assert producer.last_sequence_id() == 1

    run(scenario)


def test_without_a_router_a_key_stays_in_its_partition_and_the_others_take_turns() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        keyed = {(await producer.send(b"", partition_key="hello")).partition() for _ in range(4)}
        assert keyed == {99162322 % PARTITIONS}
        assert sorted([(await producer.send(b"")).partition() for _ in range(3)]) == [0, 1, 2]

    run(scenario, routing={"message_router": None})


def test_all_partitions_have_the_name_that_the_cluster_chose_for_the_first() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        assert producer.producer_name() == "chosen"
        assert connector.names == [None, "chosen", "chosen"]

    run(scenario)


def test_pending_messages_across_partitions_are_split_over_them() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        for _ in range(2):
            producer.enqueue(b"", to(1))
        with pytest.raises(ProducerQueueIsFull):
            producer.enqueue(b"", to(1))
        assert producer.is_full()
        producer.enqueue(b"", to(2))
        assert len(producer.pending()) == 3

    run(scenario, confirms=False, routing={"max_pending_messages_across_partitions": 6})


def test_a_lazy_partition_starts_with_its_first_message_and_keeps_the_order_of_those_that_waited() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        assert list(connector.channels) == [0]
        connector.gate.clear()
        waiting = [producer.enqueue(b"%d" % n, to(2)) for n in range(5)]
        assert [message.content for message in producer.pending()] == [b"%d" % n for n in range(5)]
        connector.gate.set()
        assert [(await one).entry_id() for one in waiting] == [1, 2, 3, 4, 5]
        assert connector.contents() == {0: [], 2: [b"%d" % n for n in range(5)]}
        assert connector.names == [None, "chosen"]

    run(scenario, lazy=True)


def test_messages_that_wait_for_a_lazy_partition_are_bounded_too() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        connector.gate.clear()
        for _ in range(2):
            producer.enqueue(b"", to(1))
        with pytest.raises(ProducerQueueIsFull, match="partition 1"):
            producer.enqueue(b"", to(1))
        room = asyncio.create_task(producer.wait_for_room())
        await asyncio.sleep(0)
        assert not room.done()
        connector.gate.set()
        await room
        await producer.flush()

    run(scenario, lazy=True, max_pending_messages=2)


def test_a_lazy_partition_that_cannot_start_fails_its_messages_and_is_tried_again_by_the_next() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        connector.refusals[1] = ConnectError("away")
        with pytest.raises(ConnectError):
            await producer.send(b"a", to(1))
        del connector.refusals[1]
        await producer.send(b"b", to(1))
        assert connector.contents()[1] == [b"b"]

    run(scenario, lazy=True)


def test_if_one_partition_cannot_be_connected_none_stays() -> None:
    async def main() -> None:
        connector = HandConnector()
        connector.refusals[2] = NotAllowedError("no")
        maker = ProducerMaker(connector, reconnect=False, operation_timeout_seconds=5)
        with pytest.raises(NotAllowedError):
            await maker.make(
                ProducerSettings(TOPIC, "p"), RoutingSettings(message_router=by_property), None, None, lambda _: None
            )
        assert sorted(connector.channels) == [0, 1]
        assert all(channel.closed for channel in connector.channels.values())

    asyncio.run(main())


def test_a_flush_waits_for_every_partition_and_tells_the_error_of_any() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        first, second = producer.enqueue(b"a", to(0)), producer.enqueue(b"b", to(1))
        flushing = asyncio.create_task(producer.flush())
        for _ in range(3):
            await asyncio.sleep(0)  # until each partition's flush waits
        connector.channels[0].events.on_refused(1, ProducerBlockedQuotaExceededError("full"))
        await asyncio.sleep(0)
        assert not flushing.done()
        connector.channels[1].events.on_receipts([1], [Position(1, 1)])
        with pytest.raises(ProducerBlockedQuotaExceededError):
            await flushing
        assert isinstance(first.exception(), ProducerBlockedQuotaExceededError)
        assert (await second).partition() == 1

    run(scenario, confirms=False)


def test_send_many_spreads_and_answers_in_the_order_of_its_messages() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        messages = [OutgoingMessage(b"%d" % n, to(n % PARTITIONS)) for n in range(7)]
        assert [one.partition() for one in await producer.send_many(messages)] == [0, 1, 2, 0, 1, 2, 0]

    run(scenario)


def test_a_router_that_returns_no_partition_refuses_the_message_alone() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        with pytest.raises(InvalidConfiguration, match="message_router returned 3"):
            await producer.send(b"", to(3))
        await producer.send(b"", to(2))

    run(scenario)


def test_after_close_nothing_is_taken_and_every_channel_is_let_go() -> None:
    async def scenario(producer: PartitionedProducer, connector: HandConnector) -> None:
        async with producer:
            await producer.send(b"a", to(1))
            assert producer.is_connected()
        await producer.close()
        assert not producer.is_connected()
        assert all(channel.closed for channel in connector.channels.values())
        with pytest.raises(AlreadyClosed):
            producer.enqueue(b"b")

    run(scenario)


def test_a_partition_by_its_own_name_has_a_plain_producer() -> None:
    async def main() -> None:
        maker = ProducerMaker(HandConnector(), reconnect=False, operation_timeout_seconds=5)
        settings = ProducerSettings(f"{TOPIC}-partition-1", "p")
        producer = await maker.make(settings, RoutingSettings(), None, None, lambda _: None)
        assert isinstance(producer, Producer)

    asyncio.run(main())
