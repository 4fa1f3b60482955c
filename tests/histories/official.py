"""Official Python client, with the methods of the project's own client that histories use.

Only histories without kills use it: it does not wait until a cluster confirms an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import pulsar
import pulsar.asyncio as official

from replicator.client import CompressionType, ConsumerType, InitialPosition, MessageId, Timeout
from replicator.client.errors import UnknownError

MORE_SECONDS: Final = 0.005
"""Time for which a consumer waits for more messages, which come from another thread."""

T = TypeVar("T")


class OfficialClient:
    """Client of one cluster."""

    def __init__(self, service_url: str) -> None:
        self._client = official.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    async def create_producer(self, topic: str, **given: Any) -> OfficialProducer:
        given.pop("chunk_max_message_size", None)
        if (compression := given.get("compression_type")) is not None:
            given["compression_type"] = getattr(pulsar.CompressionType, CompressionType(compression).name)
        async with _our_errors():
            return OfficialProducer(await self._client.create_producer(topic, **given))

    async def subscribe(
        self,
        topic: str,
        name: str,
        consumer_type: ConsumerType,
        *,
        initial_position: InitialPosition,
        replicate_subscription_state_enabled: bool,
        negative_ack_redelivery_delay_ms: int,
        **_: Any,
    ) -> OfficialConsumer:
        async with _our_errors():
            made = await self._client.subscribe(
                topic,
                name,
                getattr(pulsar.ConsumerType, consumer_type.name),
                initial_position=getattr(pulsar.InitialPosition, initial_position.name),
                replicate_subscription_state_enabled=replicate_subscription_state_enabled,
                negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
                batch_index_ack_enabled=True,
            )
        return OfficialConsumer(made)

    async def create_reader(self, topic: str, start: MessageId, *, is_read_compacted: bool) -> OfficialReader:
        async with _our_errors():
            made = await self._client.create_reader(topic, _id(start), is_read_compacted=is_read_compacted)
        return OfficialReader(made)

    async def close(self) -> None:
        async with _our_errors():
            await self._client.close()


class OfficialProducer:
    """Producer of one topic."""

    def __init__(self, producer: official.Producer) -> None:
        self._producer = producer

    async def send(self, content: bytes | None, **given: Any) -> Any:
        async with _our_errors():
            return await self._producer.send(content or b"", **given)  # it knows no null values

    async def close(self) -> None:
        async with _our_errors():
            await self._producer.close()


class _Receiving:
    """Receiver that keeps what came after a time limit for the next call."""

    def __init__(self) -> None:
        self._coming: asyncio.Future[Any] | None = None

    async def _next(self, begin: Any, seconds: float) -> Any:
        """Return the next message, or None if none comes in time. ``begin`` begins to receive one."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(begin())
        done, _ = await asyncio.wait({self._coming}, timeout=seconds)
        if not done:
            return None
        message, self._coming = self._coming, None
        async with _our_errors():
            return message.result()

    def _give_up(self) -> None:
        if self._coming is not None:
            self._coming.cancel()


class OfficialConsumer(_Receiving):
    """Consumer of one subscription."""

    def __init__(self, consumer: official.Consumer) -> None:
        super().__init__()
        self._consumer = consumer

    async def receive_many(self, max_messages: int, timeout_millis: int) -> list[Any]:
        got: list[Any] = []
        seconds = timeout_millis / 1000
        while len(got) < max_messages and (message := await self._next(self._consumer.receive, seconds)) is not None:
            got.append(message)
            seconds = MORE_SECONDS
        return got

    async def acknowledge(self, message: Any) -> None:
        async with _our_errors():
            await self._consumer.acknowledge(message)

    async def acknowledge_cumulative(self, message: Any) -> None:
        async with _our_errors():
            await self._consumer.acknowledge_cumulative(message)

    async def negative_acknowledge(self, message: Any) -> None:
        async with _our_errors():
            await self._consumer.negative_acknowledge(message)

    async def seek(self, to: MessageId) -> None:
        async with _our_errors():
            await self._consumer.seek(_id(to))

    async def close(self) -> None:
        self._give_up()
        async with _our_errors():
            await self._consumer.close()


class OfficialReader(_Receiving):
    """Reader of one topic."""

    def __init__(self, reader: official.Reader) -> None:
        super().__init__()
        self._reader = reader

    async def has_message_available(self) -> bool:
        async with _our_errors():
            return bool(await self._reader.has_message_available())

    async def read_next(self, timeout_millis: int) -> Any:
        message = await self._next(self._reader.read_next, timeout_millis / 1000)
        if message is None:
            raise Timeout("no message came")
        return message

    async def close(self) -> None:
        self._give_up()
        async with _our_errors():
            await self._reader.close()


def _id(of: MessageId) -> Any:
    found = pulsar.MessageId.earliest if of == MessageId.earliest else pulsar.MessageId.latest
    return pulsar.MessageId.wrap(found)


@asynccontextmanager
async def _our_errors() -> AsyncIterator[None]:
    try:
        yield
    except official.PulsarException as error:
        kind = Timeout if error.error() == pulsar.Result.Timeout else UnknownError
        raise kind(str(error)) from error
