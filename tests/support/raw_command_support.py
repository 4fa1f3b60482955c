"""Raw commands of one client, for tests that send what official clients do not."""

from __future__ import annotations

from typing import Any

from gateway_support import BareClient

from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandFlow, CommandProducer, CommandSend, CommandSubscribe
from replicator.protocol.frames import encode_head

T = BaseCommand.Type
EARLIEST = CommandSubscribe.InitialPosition.Earliest
SubType = CommandSubscribe.SubType


def subscribe(client: BareClient, topic: str, *, consumer_id: int = 1, name: str = "s", **fields: Any) -> Any:
    fields = {"subType": SubType.Exclusive, "initialPosition": EARLIEST, **fields}
    return client.request(
        lambda request_id: BaseCommand(
            type=T.SUBSCRIBE,
            subscribe=CommandSubscribe(
                topic=topic, subscription=name, consumer_id=consumer_id, request_id=request_id, **fields
            ),
        )
    )


def produce(client: BareClient, topic: str, *, producer_id: int = 1, **fields: Any) -> Any:
    return client.request(
        lambda request_id: BaseCommand(
            type=T.PRODUCER,
            producer=CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id, **fields),
        )
    )


def publish(
    client: BareClient, *, producer_id: int = 1, sequence_id: int = 0, payload: bytes = b"m", at_ms: int = 1
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=at_ms)
    entry = encode_entry(metadata, payload)
    command = CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=1)
    client.socket.sendall(encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry)


def flow(client: BareClient, permits: int, *, consumer_id: int = 1) -> None:
    client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=consumer_id, messagePermits=permits)))
