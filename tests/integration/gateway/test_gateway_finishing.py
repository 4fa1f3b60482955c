"""A planned switch at the gateway: what is on its way when it begins is taken, and answered.

:class:`LikeGo` does what the clients in Java and Go do: it looks its producer up again, and closes the connection where
the answer is that the cluster is not ready. The switch is the one of a failover, :class:`EngineClients`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from engine_support import message
from gateway_support import DEADLINE_SECONDS, BareClient, ServedEngine

from replicator.engine.gate import Closed, Gate
from replicator.engine.log.requests import Answer
from replicator.engine.producing.publish_order import OrderTicket
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.failover.engine_clients import EngineClients
from replicator.protocol.client import Response
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConsumerStats,
    CommandFlow,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from replicator.protocol.frames import Frame, encode_head
from snapshots.position import Position

T = BaseCommand.Type
LookupType = CommandLookupTopicResponse.LookupType
OPEN = Gate(None, None, "A", 0)
SWITCHING = Gate(Closed.SWITCHING, Closed.SWITCHING, "B", 0)
FENCED = Gate(Closed.FENCED, Closed.FENCED, "B", 1)


class LikeGo(BareClient):
    """A producer and a consumer of one connection."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(port)
        self.topic = topic
        self.request(
            lambda number: BaseCommand(
                type=T.PRODUCER, producer=CommandProducer(topic=topic, producer_id=1, request_id=number)
            )
        )
        self.request(
            lambda number: BaseCommand(
                type=T.SUBSCRIBE,
                subscribe=CommandSubscribe(
                    topic=topic,
                    subscription="s",
                    subType=CommandSubscribe.Exclusive,
                    consumer_id=1,
                    request_id=number,
                    initialPosition=CommandSubscribe.InitialPosition.Earliest,
                ),
            )
        )
        self.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=100)))

    def received(self) -> MessageIdData:
        """Return the id of the next message."""
        found: MessageIdData = self.next(T.MESSAGE).command.message.message_id
        return found

    def publish(self, entry: bytes) -> None:
        send = BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=0))
        self.socket.sendall(encode_head(send, len(entry)) + entry)

    def acknowledge(self, *messages: MessageIdData, request_id: int | None = None) -> None:
        ack = CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=messages, request_id=request_id)
        self.send(BaseCommand(type=T.ACK, ack=ack))

    def look_up(self) -> int:
        """Ask where the topic is; the answer is :meth:`answer`."""
        number = self.state.request_id()
        lookup = CommandLookupTopic(topic=self.topic, request_id=number)
        self.send(BaseCommand(type=T.LOOKUP, lookupTopic=lookup))
        return number

    def answer(self, number: int) -> CommandLookupTopicResponse:
        while True:
            for step in self._steps:
                if isinstance(step, Response) and step.request_id == number:
                    assert isinstance(step.answer, CommandLookupTopicResponse)
                    return step.answer
            self._receive()

    def reached(self) -> None:
        """Return when the server has begun with everything sent before."""
        self.request(
            lambda number: BaseCommand(
                type=T.CONSUMER_STATS, consumerStats=CommandConsumerStats(consumer_id=1, request_id=number)
            )
        )

    def heard(self) -> list[str]:
        """Return the names of the received commands and answers that no request has taken yet, in order."""
        return [
            T.Name(step.command.type) if isinstance(step, Frame) else type(step.answer).__name__ for step in self._steps
        ]


class Switch:
    """Planned switches of the cluster behind ``gateway``."""

    def __init__(self, gateway: ServedEngine) -> None:
        self.gateway = gateway
        self.clients = EngineClients(gateway.engine)

    def put(self, gate: Gate) -> None:
        self.gateway.ask(lambda: self.clients.set_gate(gate))

    def begin(self) -> Future[int]:
        """Begin a switch; return when consumers get nothing more. The result is what they held when they were let go
        of."""

        async def begun() -> asyncio.Task[int]:
            self.clients.set_gate(SWITCHING)
            settling = asyncio.create_task(self.clients.settle("op", keep_consumers=False))
            await asyncio.sleep(0)  # it has begun then
            assert self.gateway.engine.admission.dispatch_paused
            return settling

        async def ended(settling: asyncio.Task[int]) -> int:
            return await settling

        settling = self.gateway.run(begun())
        return asyncio.run_coroutine_threadsafe(ended(settling), self.gateway.loop)


@pytest.fixture
def switch(gateway: ServedEngine) -> Iterator[Switch]:
    """Yield a switch; at its end the cluster takes everybody again."""
    switched = Switch(gateway)
    yield switched
    switched.put(OPEN)


def topic_of(gateway: ServedEngine, topic: str) -> Topic:
    found = gateway.engine.find(topic)
    assert found is not None
    return found


def subscription(gateway: ServedEngine, topic: str) -> Subscription:
    return topic_of(gateway, topic).subscriptions["s"]


def publish(gateway: ServedEngine, topic: str, count: int = 1) -> None:
    async def published() -> None:
        await (await gateway.engine.topic(topic)).publish([message(b"m")] * count)

    gateway.run(published())


def test_an_acknowledgement_on_its_way_counts_though_the_producer_beside_it_asks_where_to_go(
    gateway: ServedEngine, switch: Switch, topic: str
) -> None:
    publish(gateway, topic)
    with LikeGo(gateway.port, topic) as client:
        received = client.received()
        settling = switch.begin()
        client.next(T.CLOSE_PRODUCER)
        lookup = client.look_up()
        client.acknowledge(received)
        answer = client.answer(lookup)
        assert (answer.response, answer.error) == (LookupType.Failed, ServerError.ServiceNotReady)
        assert client.heard() == ["CLOSE_CONSUMER", "CommandLookupTopicResponse"]
    assert settling.result(DEADLINE_SECONDS) == 0
    assert gateway.ask(subscription(gateway, topic).backlog_messages) == 0


def test_an_acknowledgement_after_the_consumer_was_let_go_of_is_not_confirmed(
    gateway: ServedEngine, switch: Switch, topic: str
) -> None:
    publish(gateway, topic)
    with LikeGo(gateway.port, topic) as client:
        received = client.received()
        assert switch.begin().result(DEADLINE_SECONDS) == 1
        client.acknowledge(received, request_id=client.state.request_id())
        client.reached()
        assert "CommandAckResponse" not in client.heard()
    assert gateway.ask(subscription(gateway, topic).backlog_messages) == 1


def test_a_receipt_that_comes_late_is_there_before_the_consumer_hears_that_it_is_to_look_elsewhere(
    gateway: ServedEngine, switch: Switch, topic: str
) -> None:
    """Otherwise the producer sends a stored message again, and it is stored twice."""
    stored, receipt = asyncio.Event(), asyncio.Event()
    with LikeGo(gateway.port, topic) as client:
        (producer,) = gateway.ask(lambda: topic_of(gateway, topic).producers.publishers())
        begin_now = producer.begin_publish

        def begin_late(entries: Sequence[bytes], turn: OrderTicket, answer: Answer) -> asyncio.Task[list[Position]]:
            begun: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
            begin_now(entries, turn, begun)

            async def confirmed_late() -> list[Position]:
                positions = await begun
                stored.set()
                await receipt.wait()
                answer.set_result(positions)
                return positions

            return asyncio.ensure_future(confirmed_late())

        producer.begin_publish = begin_late  # type: ignore[method-assign]
        client.publish(message(b"m"))
        gateway.run(stored.wait())  # type: ignore[arg-type]
        client.acknowledge(client.received())
        assert switch.begin().result(DEADLINE_SECONDS) == 0
        client.next(T.CLOSE_CONSUMER)
        lookup = client.look_up()
        client.reached()
        gateway.ask(receipt.set)
        answer = client.answer(lookup)
        assert (answer.response, answer.error) == (LookupType.Failed, ServerError.ServiceNotReady)
        assert client.heard() == ["SEND_RECEIPT", "CLOSE_PRODUCER", "CommandLookupTopicResponse"]


def test_a_connection_without_consumers_is_answered_at_once(gateway: ServedEngine, switch: Switch, topic: str) -> None:
    publish(gateway, topic)
    with LikeGo(gateway.port, topic) as client, BareClient(gateway.port) as other:
        received = client.received()
        settling = switch.begin()
        other.ping()
        assert not settling.done()
        client.acknowledge(received)
        assert settling.result(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("gate", [OPEN, FENCED])
def test_a_lookup_is_answered_when_the_switch_ends_before_consumers_have_finished(
    gateway: ServedEngine, switch: Switch, topic: str, gate: Gate
) -> None:
    """The switch was given up, or the target's epoch came."""
    publish(gateway, topic)
    with LikeGo(gateway.port, topic) as client:
        client.received()
        settling = switch.begin()
        lookup = client.look_up()
        client.reached()
        switch.put(gate)
        expected = LookupType.Connect if gate is OPEN else LookupType.Failed
        assert client.answer(lookup).response == expected
        assert ("CLOSE_CONSUMER" in client.heard()) is (gate is FENCED)
    settling.result(DEADLINE_SECONDS)
    assert not gateway.ask(lambda: gateway.engine.admission.dispatch_paused)
