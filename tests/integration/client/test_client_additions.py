"""Our client sends what goes beyond Pulsar's protocol only to a server that has said that it is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import eventually, opened
from gateway_support import serving_clients
from google.protobuf.message import Message

from replicator.client import Client, ConsumerType, InitialPosition
from replicator.gateway import connection
from replicator.protocol.commands_pb2 import BaseCommand
from replicator.protocol.data_commands import Acks
from replicator.protocol.frames import Frame
from replicator.protocol.server import ServerConnection

TOPIC = "persistent://public/default/t"
ADDITIONS_FROM = 100


def additions(message: Message) -> Iterator[str]:
    """The fields of our own that are in it, anywhere."""
    for field, value in message.ListFields():
        if field.number >= ADDITIONS_FROM:
            yield field.full_name
        for each in value if isinstance(value, (list, tuple)) or hasattr(value, "add") else [value]:
            if isinstance(each, Message):
                yield from additions(each)


@pytest.mark.parametrize("is_ours", [True, False])
@asynchronous
async def test_a_stranger_gets_nothing_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    sent: list[BaseCommand] = []

    class Recorded(ServerConnection):
        def __init__(self, now: float, **how: Any) -> None:
            super().__init__(now, **{**how, "cluster": how["cluster"] if is_ours else ""})

        def receive(self, data: bytes, now: float) -> Iterator[Any]:
            for step in super().receive(data, now):
                if isinstance(step, Frame):
                    sent.append(step.command)
                elif isinstance(step, Acks):
                    sent.extend(BaseCommand(type=BaseCommand.ACK, ack=each) for each in step.commands)
                yield step

    monkeypatch.setattr(connection, "ServerConnection", Recorded)
    async with opened(tmp_path) as engine, serving_clients(engine) as served, Client(served.url) as client:
        consumer = await client.subscribe(
            TOPIC, "s", consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        producer = await client.create_producer(TOPIC)
        for _ in range(3):
            await producer.send(b"m")
            await consumer.acknowledge(await consumer.receive(30_000))
        await eventually(lambda: any(each.type == BaseCommand.ACK for each in sent), "a seek makes pending ones void")
        await consumer.seek(0)
        await consumer.negative_acknowledge(await consumer.receive(30_000))
        await consumer.unsubscribe()
    assert {BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE, BaseCommand.ACK, BaseCommand.SEEK} <= {
        each.type for each in sent
    }
    found = {name for each in sent for name in additions(each)}
    found |= {BaseCommand.Type.Name(each.type) for each in sent if each.type >= ADDITIONS_FROM}
    assert bool(found) is is_ours, found
