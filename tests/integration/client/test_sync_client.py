"""The synchronous facade: the same behaviour without an event loop of the caller's."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

from replicator.client import AlreadyClosed, ConsumerType, InitialPosition, InvalidTopicName, InvalidUrl, Timeout
from replicator.client.message import Message, MessageId
from replicator.client.sync_client import SyncClient, SyncConsumer

EARLIEST = {"initial_position": InitialPosition.Earliest}


def test_what_is_sent_is_received_acknowledged_and_read_without_an_event_loop(tmp_path: Path) -> None:
    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        producer = client.create_producer("t", producer_name="p")
        sent = [producer.send(b"%d" % index) for index in range(3)]
        producer.flush()
        with client.subscribe("t", "s", ConsumerType.Shared, **EARLIEST) as consumer:
            messages = [consumer.receive(5_000) for _ in range(3)]
            assert [message.message_id() for message in messages] == sent
            consumer.acknowledge_many(messages)
            consumer.flush_acknowledgements()
            with pytest.raises(Timeout):
                consumer.receive(50)
            assert consumer.stats().messages_received == 3
        with client.create_reader("t", MessageId.earliest) as reader:
            read = []
            while reader.has_message_available():
                read.append(reader.read_next(5_000).data())
            assert read == [b"0", b"1", b"2"]


def test_errors_pass_through_and_closing_twice_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl):
        SyncClient("http://localhost:6650")
    client = SyncClient(f"embedded:{tmp_path / 'engine'}")
    with pytest.raises(InvalidTopicName):
        client.create_producer("persistent://a/../b")
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    consumer.close()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.receive()
    client.close()
    client.close()
    producer.close()
    with pytest.raises(AlreadyClosed):
        producer.send(b"late")
    assert not any(thread.name == "replicator-client" for thread in threading.enumerate())


def test_it_works_and_closes_in_a_thread_whose_event_loop_runs_as_in_a_notebook(tmp_path: Path) -> None:
    async def cell() -> None:
        with SyncClient(f"embedded:{tmp_path / 'engine'}") as client, client.create_producer("t") as producer:
            producer.send(b"x")

    asyncio.run(cell())
    assert not any(thread.name == "replicator-client" for thread in threading.enumerate())


def test_a_listener_may_call_the_consumer_that_it_is_given(tmp_path: Path) -> None:
    heard: list[bytes] = []
    done = threading.Event()

    def listener(consumer: SyncConsumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)
        if len(heard) == 2:
            done.set()

    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        client.subscribe("t", "s", message_listener=listener)
        producer = client.create_producer("t")
        producer.send(b"a")
        producer.send(b"b")
        assert done.wait(10)
    assert heard == [b"a", b"b"]


def test_iterating_over_a_consumer_ends_when_another_thread_closes_it(tmp_path: Path) -> None:
    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"a")
        received: list[bytes] = []
        for message in consumer:
            received.append(message.data())
            threading.Timer(0.05, consumer.close).start()
        assert received == [b"a"]


def test_a_send_that_is_waited_for_does_not_wait_for_a_batch_unless_that_is_asked_for(tmp_path: Path) -> None:
    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        alone = client.create_producer("t").send(b"x", None, "key", None, None, None, None, 5)
        assert alone.batch_index() == -1
        assert client.create_producer("t", batching_enabled=True).send(b"x").batch_index() == 0
        read = client.create_reader("t", MessageId.earliest).read_next(5_000)
        assert (read.partition_key(), read.event_timestamp()) == ("key", 5)
        assert client.get_topic_partitions("t") == ["persistent://public/default/t"]


def test_closing_does_not_wait_for_a_listener_that_does_not_return(tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def listen(_: SyncConsumer, __: Message) -> None:
        begun.set()
        released.wait(30)

    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        client.create_producer("t").send(b"x")
        client.subscribe("t", "s", message_listener=listen, **EARLIEST)
        assert begun.wait(5)
    assert not released.is_set()
    assert not any(thread.name == "replicator-client" for thread in threading.enumerate())
    released.set()


def test_a_listener_may_close_its_client(tmp_path: Path) -> None:
    closed = threading.Event()
    client = SyncClient(f"embedded:{tmp_path / 'engine'}")

    def listen(_: SyncConsumer, __: Message) -> None:
        client.close()
        closed.set()

    client.create_producer("t").send(b"x")
    client.subscribe("t", "s", message_listener=listen, **EARLIEST)
    assert closed.wait(5)


def test_a_pattern_of_topics_works_without_an_event_loop(tmp_path: Path) -> None:
    with SyncClient(f"embedded:{tmp_path / 'engine'}") as client:
        consumer = client.subscribe(re.compile("orders-.*"), "s")
        client.create_producer("orders-1").send(b"a")
        message = consumer.receive(20_000)
        assert (message.topic_name(), message.data()) == ("persistent://public/default/orders-1", b"a")
        consumer.acknowledge(message)
