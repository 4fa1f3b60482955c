"""The drill's producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from replicator.drills.input import InputMessage
from replicator.drills.traffic.active import Drill
from replicator.drills.traffic.clients import ClientLost, DrillMessage, DrillProducer
from snapshots.position import Position

PACE_SECONDS: Final = 0.01


class Publisher:
    """Publishes the input at ``rate`` messages a second, in producer batches, in order, each confirmed once."""

    def __init__(self, drill: Drill, messages: Iterable[InputMessage], rate: int) -> None:
        self._drill = drill
        self._messages = iter(messages)
        self._rate = rate
        self._unconfirmed: dict[int, DrillMessage] = {}
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
                async with self._drill.clients.producer(cluster, self._drill.topic) as producer:
                    for message in list(self._unconfirmed.values()):
                        self._send(producer, message, cluster)
                    more = await self._publish(producer, cluster)
                    await producer.flush()
            except ClientLost:
                await self._drill.active.moved_from(cluster)
        self._at = None
        self._progressed.set()

    async def _publish(self, producer: DrillProducer, cluster: str) -> bool:
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
                outgoing = self._unconfirmed[message_id] = DrillMessage(message_id, message.key, message.payload)
                await producer.room()
                self._send(producer, outgoing, cluster)
            await asyncio.sleep(PACE_SECONDS)
        return True

    def _send(self, producer: DrillProducer, message: DrillMessage, cluster: str) -> None:
        def confirmed(message_id: int, position: Position, batch_index: int) -> None:
            del self._unconfirmed[message_id]
            self.confirmed += 1
            self._progressed.set()
            self._drill.observations.confirmed(message_id, cluster, position, batch_index, time.monotonic())

        producer.send(message, confirmed)
        self._drill.observations.sent(message.message_id, time.monotonic())
