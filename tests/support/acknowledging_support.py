"""Raw commands of consumers, and what a gateway answers to them."""

from __future__ import annotations

from typing import Any

from gateway_support import BareClient, ServedEngine

from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.subscriptions.subscription import Subscription
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.protocol.client import Response
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
)
from replicator.protocol.frames import encode_head

T = BaseCommand.Type


SubType = CommandSubscribe.SubType


def connected(client: BareClient, topic: str, kind: SubType, number: int = 1) -> None:
    """Connect a producer and a consumer, both with the id ``number``, to a topic."""
    client.request(
        lambda request_id: BaseCommand(
            type=T.PRODUCER, producer=CommandProducer(topic=topic, producer_id=number, request_id=request_id)
        )
    )
    subscribe = CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=kind,
        consumer_id=number,
        initialPosition=CommandSubscribe.InitialPosition.Earliest,
    )

    def subscribing(request_id: int) -> BaseCommand:
        subscribe.request_id = request_id
        return BaseCommand(type=T.SUBSCRIBE, subscribe=subscribe)

    client.request(subscribing)
    client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=number, messagePermits=100)))


def send(sequence_id: int, number: int = 1, messages: int = 1) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    body = bytearray(b"m")
    if messages > 1:
        metadata.num_messages_in_batch = messages
        body.clear()
        for _ in range(messages):
            append_to_batch(body, SingleMessageMetadata(payload_size=0), b"m")
    entry = encode_entry(metadata, body)
    command = CommandSend(producer_id=number, sequence_id=sequence_id, num_messages=messages)
    return encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry


def subscription_of(gateway: ServedEngine, topic: str) -> Subscription:
    found = gateway.engine.find(topic)
    assert found is not None
    return found.subscriptions["s"]


def received(client: BareClient, count: int) -> list[MessageIdData]:
    return [client.next(T.MESSAGE).command.message.message_id for _ in range(count)]


def answers(client: BareClient, numbers: list[int]) -> dict[int, Any]:
    """Return the answer to each request."""
    found: dict[int, Any] = {}
    while len(found) < len(numbers):
        for at, step in enumerate(client._steps):
            if isinstance(step, Response) and step.request_id in numbers:
                found[step.request_id] = step.answer
                del client._steps[at]
                break
        else:
            client._receive()
    return found
