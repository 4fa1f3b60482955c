"""Floods of requests that hostile clients send to a worker. A program: ``KIND PORT CONNECTIONS``.

Each connection sends some bytes, then others again and again, and throws away what comes back. If it ends, another is
made. The kind ``large-messages`` asks once, then only reads; ``burn`` connects to nothing. All runs in a process of its
own, so that it takes nothing from the client that is measured but a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import uvloop

from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import KeyValue, MessageMetadata
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandFlow,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
)
from replicator.protocol.frames import encode, encode_head

T = BaseCommand.Type
TOPIC: Final = "persistent://public/drill/flood"
LIST_IDS: Final = 36_000
"""Number of message ids in one command, about 440 kB."""
REST_MESSAGES: Final = 10_000
SUBSCRIPTIONS: Final = 100
"""Subscriptions of one connection, which asks for everything again on each."""
REDELIVERED: Final = 500
LARGE_TOPIC: Final = "persistent://public/drill/large"
"""Topic of messages that are small only where they are stored, compressed; the benchmark publishes them."""
LARGE_MESSAGES: Final = 30
LARGE_BYTES: Final = 60_000_000
LARGE_READERS: Final = 20
STARTS_SECONDS: Final = 2.0
BURN: Final = "burn"
"""Kind of flood that burns one core in its process, and asks the worker for nothing: for comparison."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes that a connection sends: ``first`` once, then ``again`` until it ends. Without ``again`` it only reads."""

    first: bytes
    again: bytes


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


def _lookups() -> Flood:
    command = BaseCommand(type=T.LOOKUP, lookupTopic=CommandLookupTopic(topic=TOPIC, request_id=2))
    return Flood(_connected(), encode(command) * 10_000)


def _partitions() -> Flood:
    asked = CommandPartitionedTopicMetadata(topic=TOPIC, request_id=2, metadata_auto_creation_enabled=True)
    return Flood(_connected(), encode(BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=asked)) * 10_000)


def _acknowledgements() -> Flood:
    command = CommandAck(consumer_id=1, ack_type=CommandAck.AckType.Individual, message_id=_ids())
    return Flood(_connected(), encode(BaseCommand(type=T.ACK, ack=command)) * 4)


def _redeliveries() -> Flood:
    command = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=_ids()[:20_000])
    frame = BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
    return Flood(_connected(), encode(frame) * 4)


def _properties() -> Flood:
    many = [KeyValue(key="k", value="")] * 100_000
    command = CommandProducer(topic=TOPIC, producer_id=1, request_id=2, metadata=many)
    return Flood(_connected(), encode(BaseCommand(type=T.PRODUCER, producer=command)))


def _rest() -> Flood:
    body = json.dumps({"messages": [{"payload": "x"}] * REST_MESSAGES}).encode()
    path = "/topics/persistent/public/drill/flood"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return Flood(b"", head.encode() + body)


def _dispatch() -> Flood:
    """Return a flood that asks on many subscriptions, again and again, for redelivery of all messages of a topic."""
    entry = encode_entry(MessageMetadata(producer_name="flood", sequence_id=0, publish_time=1), b"x" * 50)
    frames = [
        _connected(),
        encode(BaseCommand(type=T.PRODUCER, producer=CommandProducer(topic=TOPIC, producer_id=1, request_id=3))),
    ]
    again = []
    for number in range(REDELIVERED):
        send = CommandSend(producer_id=1, sequence_id=number)
        frames.append(encode_head(BaseCommand(type=T.SEND, send=send), len(entry)) + entry)
    for number in range(2, SUBSCRIPTIONS + 2):
        subscribe = CommandSubscribe(
            topic=TOPIC,
            subscription=f"flood-{number}",
            subType=CommandSubscribe.SubType.Shared,
            consumer_id=number,
            request_id=number + 2,
            initialPosition=CommandSubscribe.InitialPosition.Earliest,
        )
        frames.append(encode(BaseCommand(type=T.SUBSCRIBE, subscribe=subscribe)))
        redeliver = CommandRedeliverUnacknowledgedMessages(consumer_id=number)
        asked = BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=redeliver)
        flow = CommandFlow(consumer_id=number, messagePermits=1_000)
        again += [encode(BaseCommand(type=T.FLOW, flow=flow)), encode(asked)]
    return Flood(b"".join(frames), b"".join(again))


def _large_messages() -> Flood:
    """Return a flood that asks once by WebSocket for all messages of the large topic, and then only reads."""
    path = f"/ws/v2/reader/{LARGE_TOPIC.replace('://', '/')}?messageId=earliest"
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return Flood(head.encode(), b"")


KINDS: Final[Mapping[str, Callable[[], Flood]]] = {
    "lookups": _lookups,
    "partitions": _partitions,
    "acknowledgements": _acknowledgements,
    "redeliveries": _redeliveries,
    "properties": _properties,
    "rest": _rest,
    "dispatch": _dispatch,
    "large-messages": _large_messages,
}


@asynccontextmanager
async def flooding(kind: str, port: int, connections: int = 1) -> AsyncIterator[None]:
    """Run a process that floods the worker at ``port`` while the context lasts; ``kind`` is a key of :data:`KINDS`."""
    arguments = (sys.executable, "-m", "bench.floods", kind, str(port), str(connections))
    process = await asyncio.create_subprocess_exec(*arguments)
    try:
        await asyncio.sleep(STARTS_SECONDS)
        yield
    finally:
        process.kill()
        await process.wait()


async def _flood(port: int, sent: Flood) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            throwing = asyncio.create_task(_throw_away(reader))
            try:
                writer.write(sent.first)
                if not sent.again:
                    await throwing
                while sent.again:
                    writer.write(sent.again)
                    await writer.drain()
            finally:
                throwing.cancel()
                writer.close()


async def _throw_away(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 20):
            pass


async def _floods(port: int, sent: Flood, connections: int) -> None:
    await asyncio.gather(*(_flood(port, sent) for _ in range(connections)))


if __name__ == "__main__":
    kind, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    while kind == BURN:
        pass
    uvloop.run(_floods(port, KINDS[kind](), connections))
