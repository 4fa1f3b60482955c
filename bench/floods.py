"""Floods of one client, or of many, and what an honest client waits beside them. A program: ``KIND PORT CONNECTIONS``.

Each connection sends the same bytes again and again, and throws away what comes back. It runs in a process of its own,
so that it takes nothing from the client that is measured but a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandFlow,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    MessageIdData,
)
from replicator.protocol.frames import encode

T = BaseCommand.Type
TOPIC: Final = "persistent://public/drill/flood"
LIST_IDS: Final = 36_000
"""About 440 kB."""
REST_MESSAGES: Final = 10_000
STARTS_SECONDS: Final = 2.0
BURN: Final = "burn"
"""Another process that burns one core, and asks the worker for nothing."""


def _connected() -> bytes:
    subscribe = CommandSubscribe(
        topic=TOPIC, subscription="flood", subType=CommandSubscribe.SubType.Shared, consumer_id=1, request_id=1
    )
    connect = CommandConnect(client_version="flood", protocol_version=19)
    return b"".join(
        encode(each)
        for each in (
            BaseCommand(type=T.CONNECT, connect=connect),
            BaseCommand(type=T.SUBSCRIBE, subscribe=subscribe),
            BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=1_000)),
        )
    )


def _ids() -> list[MessageIdData]:
    return [MessageIdData(ledgerId=1, entryId=number) for number in range(LIST_IDS)]


def _lookups() -> bytes:
    command = BaseCommand(type=T.LOOKUP, lookupTopic=CommandLookupTopic(topic=TOPIC, request_id=2))
    return _connected() + encode(command) * 10_000


def _partitions() -> bytes:
    asked = CommandPartitionedTopicMetadata(topic=TOPIC, request_id=2, metadata_auto_creation_enabled=True)
    return _connected() + encode(BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=asked)) * 10_000


def _acknowledgements() -> bytes:
    command = CommandAck(consumer_id=1, ack_type=CommandAck.AckType.Individual, message_id=_ids())
    return _connected() + encode(BaseCommand(type=T.ACK, ack=command)) * 4


def _redeliveries() -> bytes:
    command = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=_ids()[:20_000])
    frame = BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
    return _connected() + encode(frame) * 4


def _properties() -> bytes:
    many = [KeyValue(key="k", value="")] * 100_000
    command = CommandProducer(topic=TOPIC, producer_id=1, request_id=2, metadata=many)
    return _connected() + encode(BaseCommand(type=T.PRODUCER, producer=command))


def _rest() -> bytes:
    body = json.dumps({"messages": [{"payload": "x"}] * REST_MESSAGES}).encode()
    path = "/topics/persistent/public/drill/flood"
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


KINDS: Final[Mapping[str, Callable[[], bytes]]] = {
    "lookups": _lookups,
    "partitions": _partitions,
    "acknowledgements": _acknowledgements,
    "redeliveries": _redeliveries,
    "properties": _properties,
    "rest": _rest,
}


@asynccontextmanager
async def flooding(kind: str, port: int, connections: int = 1) -> AsyncIterator[None]:
    """While it lasts, a process floods the worker at ``port``."""
    arguments = (sys.executable, "-m", "bench.floods", kind, str(port), str(connections))
    process = await asyncio.create_subprocess_exec(*arguments)
    try:
        await asyncio.sleep(STARTS_SECONDS)
        yield
    finally:
        process.kill()
        await process.wait()


async def _flood(port: int, sent: bytes) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            throwing = asyncio.create_task(_throw_away(reader))
            again = sent.removeprefix(_connected())
            try:
                writer.write(sent)
                while True:
                    await writer.drain()
                    writer.write(again)
            finally:
                throwing.cancel()
                writer.close()


async def _throw_away(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 20):
            pass


async def _floods(port: int, sent: bytes, connections: int) -> None:
    await asyncio.gather(*(_flood(port, sent) for _ in range(connections)))


if __name__ == "__main__":
    kind, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    while kind == BURN:
        pass
    uvloop.run(_floods(port, KINDS[kind](), connections))
