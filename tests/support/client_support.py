"""Helpers of the tests of the client: a consumer channel that is driven by hand, and deliveries for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine_support import batch, message

from replicator.client.consuming.consumer import Consumer
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerEvents
from replicator.engine.engine import Engine
from replicator.engine.log.delivered import LastMessage
from replicator.engine.types import Ack, Delivery
from replicator.gateway.connection import Addresses
from replicator.gateway.server import Gateway
from snapshots.position import Position

TOPIC = "persistent://public/default/t"


class HandChannel:
    """Consumer channel that records what it is asked, and says only what the test makes it say."""

    def __init__(self, cluster: str = "us-east") -> None:
        self.cluster = cluster
        self.events: ConsumerEvents
        self.asked: list[tuple[Any, ...]] = []
        self.last = Position(1, 99)

    def start(self, events: ConsumerEvents) -> None:
        self.events = events

    def flow(self, permits: int) -> None:
        self.asked.append(("flow", permits))

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        self.asked.append(("acknowledge", request_id, tuple(acks)))

    def acknowledge_cumulative(self, request_id: int, position: Position, batch_index: int | None) -> None:
        self.asked.append(("acknowledge_cumulative", request_id, position, batch_index))

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        self.asked.append(("redeliver", positions))

    async def seek(self, target: Position | int) -> None:
        self.asked.append(("seek", target))
        self.events.on_restarted()

    async def last_message(self) -> LastMessage:
        return LastMessage(self.last, mark_delete=self.last)

    async def unsubscribe(self, *, force: bool = False) -> None:
        self.asked.append(("unsubscribe", force))

    async def close(self) -> None:
        self.asked.append(("close",))

    def asked_for(self, what: str) -> list[tuple[Any, ...]]:
        """Return the recorded calls of a kind, without its name."""
        return [asked[1:] for asked in self.asked if asked[0] == what]

    @property
    def permits(self) -> int:
        """Return the sum of granted permits."""
        return sum(asked[1] for asked in self.asked if asked[0] == "flow")


def delivery(entry: int, *contents: bytes, count: int = 0, acked: bytes | None = None) -> Delivery:
    """Return the delivery of an entry: a batch of these messages, or a message outside a batch if there is one."""
    position = Position(1, entry)
    encoded = batch(contents) if len(contents) > 1 else message(contents[0])
    return Delivery(position, count, len(contents), acked, encoded, "us-east", position)


def run_consumer(
    scenario: Callable[[Consumer, list[HandChannel]], Awaitable[None]],
    made_with: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Run with a consumer, and the list of channels that it has opened; ``made_with`` are its own arguments."""

    async def main() -> None:
        channels: list[HandChannel] = []

        async def open_channel() -> HandChannel:
            channels.append(HandChannel())
            return channels[-1]

        consumer = Consumer(
            ConsumerSettings(TOPIC, "s", "c", **settings),
            open_channel,
            reconnect=True,
            operation_timeout_seconds=5,
            on_close=lambda _: None,
            **(made_with or {}),
        )
        await consumer.connect()
        async with asyncio.timeout(20):
            await scenario(consumer, channels)
        if (listening := consumer._listening) is not None:
            listening.stop()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition is true; fail after some seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0)  # a turn of the event loop, not a wait for time to pass


class Worker:
    """An engine behind its gateway, which can be cut off and come back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.engine: Engine
        self.port = 0
        self.gateway: Gateway | None = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.engine = await Engine.open(self._path, cluster="us-east")
        await self.serve()

    async def serve(self) -> None:
        bound = socket.create_server(("127.0.0.1", self.port))
        self.port = bound.getsockname()[1]
        self.gateway = Gateway(self.engine, Addresses(self.url))
        await self.gateway.listen(bound)

    async def cut_off(self) -> None:
        """Break every connection without a goodbye, and take no new ones."""
        assert self.gateway is not None
        for connection in list(self.gateway._connections):
            connection._transport.abort()
        await self.gateway.stop()
        self.gateway = None

    async def stop(self) -> None:
        if self.gateway is not None:
            await self.gateway.stop()
        await self.engine.close()


@asynccontextmanager
async def running_worker(path: Path) -> AsyncIterator[Worker]:
    worker = Worker(path)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()
