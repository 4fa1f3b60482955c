"""The drill's producer."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from replicator.client import BatchingType, Client
from replicator.client.message import MessageId, OutgoingMessage
from replicator.drills.input import InputMessage
from replicator.drills.observations import drill_id_property
from replicator.drills.traffic.active import LOST, Drill
from snapshots.position import Position

MAX_PENDING_MESSAGES: Final = 20_000
PACE_SECONDS: Final = 0.01
PUBLISH_DELAY_MILLIS: Final = 20
KEY_GROUPS: Final = 8
"""A batch goes to one consumer of a Key_Shared subscription, so it holds the keys of one group: its ordering key."""


class Publisher:
    """Publishes the input at ``rate`` messages a second, in producer batches, in order, each confirmed once."""

    def __init__(self, drill: Drill, messages: Iterable[InputMessage], rate: int) -> None:
        self._drill = drill
        self._messages = iter(messages)
        self._rate = rate
        self._unconfirmed: dict[int, OutgoingMessage] = {}
        self._progressed = asyncio.Event()
        self._at: str | None = None
        self.messages_max: int | None = 0
        """It waits when it has published so many, so that the operator is not overtaken; None: publish all."""
        self.published = 0
        self.confirmed = 0

    async def wait_until_confirmed(self, count: int) -> None:
        while self.confirmed < count:
            self._progressed.clear()
            await self._progressed.wait()

    async def wait_until_at(self, cluster: str) -> None:
        """Until it publishes there and nowhere else, or has nothing left to publish."""
        while self._at not in (cluster, None):
            self._progressed.clear()
            await self._progressed.wait()

    async def run(self) -> None:
        """Returns when all of the input is confirmed."""
        more = True
        while more or self._unconfirmed:
            cluster = self._at = self._drill.active.name
            self._progressed.set()
            try:
                async with Client(self._drill.active.url, reconnect=False) as client:
                    producer = await client.create_producer(
                        self._drill.topic,
                        max_pending_messages=MAX_PENDING_MESSAGES,
                        batching_max_publish_delay_ms=PUBLISH_DELAY_MILLIS,
                        batching_type=BatchingType.KeyBased,
                    )
                    send = _Sender(self, producer.enqueue_message, cluster)
                    for message_id, message in list(self._unconfirmed.items()):
                        send(message_id, message)
                    more = await self._publish(send, producer.wait_for_room, cluster)
                    await producer.flush()
            except LOST:
                await self._drill.active.moved_from(cluster)
        self._at = None
        self._progressed.set()

    async def _publish(self, send: _Sender, wait_for_room: Callable[[], Awaitable[None]], cluster: str) -> bool:
        """Send what is new, at the set rate, until clients are to go elsewhere.

        Returns False when the input has ended.
        """
        started, taken = time.monotonic(), 0
        while self._drill.active.name == cluster:
            due = int((time.monotonic() - started) * self._rate) - taken
            room = due if self.messages_max is None else max(self.messages_max - self.published, 0)
            taken += max(due - room, 0)  # what was held up is not made up for in a burst
            for _ in range(min(due, room)):
                message = next(self._messages, None)
                if message is None:
                    return False
                taken += 1
                self.published += 1
                message_id = self._drill.observations.add_message(message.key)
                outgoing = OutgoingMessage(
                    message.payload, drill_id_property(message_id), message.key, _key_group(message.key)
                )
                self._unconfirmed[message_id] = outgoing
                await wait_for_room()
                send(message_id, outgoing)
            await asyncio.sleep(PACE_SECONDS)
        return True

    def on_confirmed(self, message_id: int, cluster: str, place: MessageId) -> None:
        del self._unconfirmed[message_id]
        self.confirmed += 1
        self._progressed.set()
        position = Position(place.ledger_id(), place.entry_id())
        self._drill.observations.confirmed(message_id, cluster, position, place.batch_index(), time.monotonic())

    def on_sent(self, message_id: int) -> None:
        self._drill.observations.sent(message_id, time.monotonic())


def _key_group(key: str) -> str:
    return f"group-{zlib.crc32(key.encode()) % KEY_GROUPS}"


class _Sender:
    """Sends over one producer and records its confirmations; what fails stays unconfirmed."""

    def __init__(
        self, publisher: Publisher, enqueue: Callable[[OutgoingMessage], asyncio.Future[MessageId]], cluster: str
    ) -> None:
        self._publisher = publisher
        self._enqueue = enqueue
        self._cluster = cluster

    def __call__(self, message_id: int, message: OutgoingMessage) -> None:
        confirmation = self._enqueue(message)
        self._publisher.on_sent(message_id)
        confirmation.add_done_callback(lambda done: self._settle(message_id, done))

    def _settle(self, message_id: int, done: asyncio.Future[MessageId]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._publisher.on_confirmed(message_id, self._cluster, done.result())
