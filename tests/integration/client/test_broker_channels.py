"""Channels over a real network: producers that wait on a live connection, clients that vanish, and shared
connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from channel_support import Received, Sent, served
from engine_support import TOPIC, eventually, message, opened
from gateway_support import ServedEngine

from replicator.client import Client, MessageId
from replicator.client.errors import ConnectError, InvalidSeek
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire import connection as client_connection
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.consumer_channel import BrokerConsumerChannel
from replicator.engine.engine import Engine
from replicator.engine.producing.topic_writing import TopicWriting
from replicator.engine.types import AccessMode, Ack, InitialPosition, ProducerOptions, SubscriptionType
from replicator.protocol import server
from replicator.protocol.commands_pb2 import BaseCommand, CommandCloseConsumer
from snapshots.position import BEFORE_ALL, Position

DEADLINE_SECONDS = 20
WAITING = ProducerSettings(TOPIC, "waits", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
CONSUMER = ConsumerSettings(TOPIC, "s", "c", SubscriptionType.SHARED, InitialPosition.EARLIEST)


def with_engine(path: Path, scenario: Callable[[Engine, BrokerConnector], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), opened(path) as engine, served(engine) as url:
            connector = BrokerConnector(url, connection_timeout_seconds=5, operation_timeout_seconds=5)
            try:
                await scenario(engine, connector)
            finally:
                await connector.close()

    asyncio.run(main())


def connections(connector: BrokerConnector) -> list[client_connection.Connection]:
    return connector._connections.all()


def test_a_producer_that_waits_is_kept_alive_by_the_pings_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(client_connection, "KEEP_ALIVE_SECONDS", 0.1)

    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        owner = await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE))
        waiting = asyncio.create_task(connector.open_producer(WAITING))
        await eventually(lambda: topic.producers.registry.waiting == 1, "a producer that waits")
        await asyncio.wait([waiting], timeout=1)  # ten pings
        assert not waiting.done()
        owner.close()
        channel = await waiting
        assert channel.ready.topic_epoch == 1
        await channel.close()

    with_engine(tmp_path, scenario)


def test_a_broker_that_falls_silent_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "KEEP_ALIVE_SECONDS", 0.1)

    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        channel = await connector.open_producer(ProducerSettings(TOPIC, "p"))
        channel.start(sent := Sent())
        (connection,) = connections(connector)
        assert connection._transport is not None
        connection._transport.pause_reading()  # as if nothing came
        await eventually(lambda: sent.lost, "the loss")
        assert type(sent.lost[0]) is ConnectError
        assert "does not answer" in str(sent.lost[0])

    with_engine(tmp_path, scenario)


def test_a_waiting_producer_whose_client_vanishes_leaves_the_queue(tmp_path: Path) -> None:
    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE))
        waiting = asyncio.create_task(connector.open_producer(WAITING))
        await eventually(lambda: topic.producers.registry.waiting == 1, "a producer that waits")
        (connection,) = connections(connector)
        assert connection._transport is not None
        connection._transport.abort()
        await eventually(lambda: topic.producers.registry.waiting == 0, "nobody waits any more")
        with pytest.raises(ConnectError):
            await waiting

    with_engine(tmp_path, scenario)


def test_a_fenced_producer_has_the_receipt_of_everything_that_was_stored_before_it_hears_of_it(
    tmp_path: Path,
) -> None:
    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        channel = await connector.open_producer(ProducerSettings(TOPIC, "p"))
        channel.start(sent := Sent())
        for index in range(200):
            channel.publish(index, message(b"%d" % index))
        await eventually(lambda: topic.log.messages > 0, "the first message")
        await topic.producers.create(ProducerOptions("owner", AccessMode.EXCLUSIVE_WITH_FENCING))
        await eventually(lambda: sent.lost, "the loss")
        assert list(sent.receipts) == list(range(topic.log.messages))
        assert {error.error() for error in [*sent.lost, *sent.refusals.values()]} == {"ProducerFenced"}

    with_engine(tmp_path, scenario)


def test_who_moves_hears_first_of_what_was_stored_and_sends_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a producer that follows a failover would send stored messages again elsewhere."""

    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        begun, release, publish = asyncio.Event(), asyncio.Event(), TopicWriting.publish

        async def slow(*arguments: Any) -> Any:
            begun.set()
            await release.wait()
            return await publish(*arguments)

        monkeypatch.setattr(TopicWriting, "publish", slow)
        monkeypatch.setattr(TopicWriting, "begin_publish", lambda *_: None)
        channel = await connector.open_producer(ProducerSettings(TOPIC, "p"))
        channel.start(sent := Sent())
        channel.publish(0, message(b"in flight"))
        await begun.wait()
        moving = asyncio.ensure_future(connector.lose_all(ConnectError("served elsewhere")))
        await asyncio.sleep(0)
        channel.publish(1, message(b"for the next cluster"))
        release.set()
        await moving
        assert (list(sent.receipts), len(sent.lost)) == ([0], 1)
        assert topic.log.messages == 1

    with_engine(tmp_path, scenario)


def test_a_slow_reader_of_a_subscription_that_is_put_elsewhere_gets_the_new_place_for_its_permits(
    tmp_path: Path,
) -> None:
    """A seek for it waits until it heard of the restart, so that everything after it is of the new place."""

    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        for _ in range(10):
            await topic.publish([message(bytes(1024 * 1024))] * 6)
        channel = await connector.open_consumer(CONSUMER)
        channel.start(received := Received())
        (connection,) = connections(connector)
        assert connection._transport is not None
        connection._transport.pause_reading()
        channel.flow(60)
        (subscription,) = topic.subscriptions.values()
        await eventually(lambda: subscription.status()["consumers"][0]["unacked_entries"] >= 8, "a full socket")
        seeking = asyncio.ensure_future(channel.seek(BEFORE_ALL))
        await asyncio.sleep(0)
        connection._transport.resume_reading()
        await seeking
        assert received.told.count("restarted") == 1
        before = received.told.index("restarted")
        assert before < 60
        await eventually(lambda: len(received.deliveries) == 60, "what the permits are for")
        channel.flow(before)  # those that it got before the restart are to be paid for, and nothing else
        await eventually(lambda: len(received.deliveries) == 60 + before, "all again")
        again = [delivery.position.entry for delivery in received.deliveries[before:]]
        assert again == list(range(60))

    with_engine(tmp_path, scenario)


def test_acknowledgements_count_again_once_the_restart_is_seen(tmp_path: Path) -> None:
    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        topic = await engine.topic(TOPIC)
        (position,) = await topic.publish([message()])
        channel = await connector.open_consumer(CONSUMER)
        channel.start(received := Received())
        (subscription,) = topic.subscriptions.values()
        await subscription.moves.seek(BEFORE_ALL)
        channel.acknowledge(1, [Ack(position)])  # before the news of the restart has come
        await eventually(lambda: received.confirmed == [1], "the answer")
        assert received.told == ["restarted"]
        assert not subscription.cursor.is_consumed(position)
        channel.acknowledge(2, [Ack(position)])
        await eventually(lambda: received.confirmed == [1, 2], "the second answer")
        assert subscription.cursor.is_consumed(position)

    with_engine(tmp_path, scenario)


def test_all_channels_of_a_client_share_a_connection_until_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.client.wire.connector.SESSIONS_PER_CONNECTION", 2)

    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        channels = [await connector.open_producer(ProducerSettings(TOPIC, f"p{number}")) for number in range(4)]
        assert len(connections(connector)) == 2
        for channel in channels:
            await channel.close()
        assert [connection.sessions for connection in connections(connector)] == [0, 0]

    with_engine(tmp_path, scenario)


def test_those_who_connect_at_once_wait_for_one_connection(tmp_path: Path) -> None:
    async def scenario(engine: Engine, connector: BrokerConnector) -> None:
        settings = [ProducerSettings(TOPIC, f"p{number}") for number in range(20)]
        await asyncio.gather(*(connector.open_producer(each) for each in settings))
        assert len(connections(connector)) == 1

    with_engine(tmp_path, scenario)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x0a"]
)
def test_an_answer_that_no_broker_gives_is_a_connect_error(answer: bytes) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            writer.close()

        strange = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"pulsar://127.0.0.1:{strange.sockets[0].getsockname()[1]}"
        connector = BrokerConnector(url, connection_timeout_seconds=5, operation_timeout_seconds=5)
        try:
            with pytest.raises(ConnectError, match=r"127\.0\.0\.1"):
                await connector.partitions("t")
        finally:
            await connector.close()
            strange.close()

    asyncio.run(main())


def let_go(gateway: ServedEngine) -> int:
    """Close all consumers without telling them; return how many there were."""

    def close() -> int:
        sessions = [session for each in gateway.gateway._connections for session in each.state.consumers.clear()]
        for session in sessions:
            session.close()
        return len(sessions)

    return gateway.ask(close)


def test_a_consumer_that_another_broker_lets_go_of_as_it_comes_back_from_a_seek_connects_once_more(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it waits for ever: the broker closed it in the same moment as it answered."""
    monkeypatch.setattr(client_connection.Connection, "cluster", property(lambda _: ""))
    subscribe, times = BrokerConsumerChannel.subscribe, 0

    async def subscribe_and_be_let_go_of(channel: BrokerConsumerChannel, start: Position | None = None) -> None:
        nonlocal times
        await subscribe(channel, start)
        times += 1
        if times == 2:  # of the seek
            assert await asyncio.to_thread(let_go, gateway) == 1
            closing = CommandCloseConsumer(consumer_id=channel._id, request_id=0)
            channel.on_command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=closing))

    monkeypatch.setattr(BrokerConsumerChannel, "subscribe", subscribe_and_be_let_go_of)

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), Client(f"pulsar://127.0.0.1:{gateway.port}") as client:
            consumer = await client.subscribe(topic, "s")
            producer = await client.create_producer(topic)
            wanted = [b"%d" % number for number in range(5)]
            await producer.send_many(wanted)
            for _ in range(2):
                assert [(await consumer.receive(timeout_millis=10_000)).data() for _ in wanted] == wanted
                if times == 1:
                    await consumer.seek(MessageId.earliest)

    asyncio.run(main())
    assert times == 3


def test_at_another_broker_a_consumer_that_is_gone_unsaid_connects_again_before_it_knows_the_last_message(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that seeks lets go of the subscription's consumers, at times of one that has come back already."""
    monkeypatch.setattr(client_connection.Connection, "cluster", property(lambda _: ""))

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), Client(f"pulsar://127.0.0.1:{gateway.port}") as client:
            producer = await client.create_producer(topic)
            sent = await producer.send(b"the last one")
            reader = await client.create_reader(topic, MessageId.earliest)
            assert await asyncio.to_thread(let_go, gateway) == 1
            assert await reader.get_last_message_id() == sent
            assert (await reader.read_next(timeout_millis=10_000)).data() == b"the last one"

    asyncio.run(main())


def test_at_another_broker_an_acknowledgement_made_during_a_seek_takes_nothing_of_the_new_place(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledgements are sent together a little later: at times when the consumer has just come back from a seek."""
    monkeypatch.setattr(client_connection.Connection, "cluster", property(lambda _: ""))
    subscribe, times = BrokerConsumerChannel.subscribe, 0
    sent: list[MessageId] = []

    async def subscribe_and_acknowledge(channel: BrokerConsumerChannel, start: Position | None = None) -> None:
        nonlocal times
        await subscribe(channel, start)
        times += 1
        if times == 2:  # of the seek
            channel.acknowledge_cumulative(1, sent[-1].position(), None)

    monkeypatch.setattr(BrokerConsumerChannel, "subscribe", subscribe_and_acknowledge)

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), Client(f"pulsar://127.0.0.1:{gateway.port}") as client:
            producer = await client.create_producer(topic, batching_enabled=False)
            wanted = [b"%d" % number for number in range(5)]
            sent.extend(await producer.send_many(wanted))
            reader = await client.create_reader(topic, MessageId.earliest)
            for _ in range(2):
                assert [(await reader.read_next(timeout_millis=5_000)).data() for _ in wanted] == wanted
                if times == 1:
                    await reader.seek(MessageId.earliest)

    asyncio.run(main())
    assert times == 2


def test_at_another_broker_an_acknowledgement_made_during_a_seek_that_fails_counts(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection.Connection, "cluster", property(lambda _: ""))
    ask = BrokerConsumerChannel._ask
    sent: list[MessageId] = []

    async def acknowledge_and_fail(channel: BrokerConsumerChannel, make: Any, what: str) -> Any:
        if what != "seek":
            return await ask(channel, make, what)
        channel.acknowledge_cumulative(1, sent[-1].position(), None)
        raise InvalidSeek("a test refuses it")

    monkeypatch.setattr(BrokerConsumerChannel, "_ask", acknowledge_and_fail)

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), Client(f"pulsar://127.0.0.1:{gateway.port}") as client:
            consumer = await client.subscribe(topic, "s")
            producer = await client.create_producer(topic, batching_enabled=False)
            sent.extend(await producer.send_many([b"0", b"1"]))
            with pytest.raises(InvalidSeek):
                await consumer.seek(MessageId.earliest)
            await consumer.close()
            consumer = await client.subscribe(topic, "s")
            await producer.send(b"new")
            assert (await consumer.receive(timeout_millis=5_000)).data() == b"new"

    asyncio.run(main())
