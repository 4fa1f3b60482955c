"""The drill's producers, one for each topic."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from replicator.drills.input import InputMessage
from replicator.drills.traffic.active import Drill
from replicator.drills.traffic.clients import ClientLost, DrillMessage, DrillProducer
from replicator.running.timeouts import timeout
from snapshots.position import Position

PACE_SECONDS: Final = 0.01
PACE_SECONDS_MAX: Final = 0.25
"""Longest time in which a publisher does not look whether a message is due."""


class Publishers:
    """The publishers of all topics, which share the input and the rate evenly."""

    def __init__(self, drill: Drill, messages: Iterable[InputMessage], rate: int, count: int) -> None:
        topics = len(drill.topics)
        source, progressed = iter(messages), asyncio.Event()
        self._progressed = progressed
        self._count = count
        self._of_topics = [
            Publisher(
                drill,
                number,
                source,
                rate / topics,
                progressed,
                # One topic publishes whatever the input has.
                quota=None if topics == 1 else count // topics + (number < count % topics),
                head_start=number / topics,
            )
            for number in range(topics)
        ]

    def __iter__(self) -> Iterator[Publisher]:
        return iter(self._of_topics)

    @property
    def published(self) -> int:
        return sum(each.published for each in self._of_topics)

    @property
    def confirmed(self) -> int:
        return sum(each.confirmed for each in self._of_topics)

    def limit(self, room: float | None) -> None:
        """Let each topic publish at most the share ``room`` of its messages, rounded up. None means all messages."""
        for each in self._of_topics:
            quota = self._count if each.quota is None else each.quota
            each.messages_max = None if room is None else math.ceil(room * quota)

    def limit_first(self, count: int) -> None:
        """Limit all topics together to ``count`` messages, shared evenly and rounded up."""
        for each in self._of_topics:
            each.messages_max = math.ceil(count / len(self._of_topics))

    async def wait_until_confirmed(self, count: int) -> None:
        while self.confirmed < count:
            self._progressed.clear()
            await self._progressed.wait()

    async def wait_until_at(self, cluster: str) -> None:
        """Wait until every publisher that is not finished publishes to ``cluster``."""
        while any(each.at not in (cluster, None) for each in self._of_topics):
            self._progressed.clear()
            await self._progressed.wait()


class Publisher:
    """Publishes to one topic at ``rate`` messages a second, in producer batches, in order, each confirmed once.

    It takes at most ``quota`` messages from the input, which it may share with others. ``head_start`` is a share of
    the time between two messages, so that many topics do not publish all at once.
    """

    def __init__(
        self,
        drill: Drill,
        topic: int,
        messages: Iterator[InputMessage],
        rate: float,
        progressed: asyncio.Event,
        *,
        quota: int | None,
        head_start: float,
    ) -> None:
        self._drill = drill
        self._topic = topic
        self._messages = messages
        self._rate = rate
        self._head_start = head_start
        # Few wakes where many topics have few messages each: half of the time between two of them.
        self._pace_seconds = min(max(PACE_SECONDS, 0.5 / rate), PACE_SECONDS_MAX)
        self._unconfirmed: dict[int, DrillMessage] = {}
        self._progressed = progressed
        self.quota = quota
        self.at: str | None = drill.active.name
        self.messages_max: int | None = 0
        """Number of messages after which the publisher waits, so that the operator keeps up; None: publish all."""
        self.published = 0
        self.confirmed = 0

    async def run(self) -> None:
        """Publish this topic's part of the input, and return when every message is confirmed."""
        more = True
        while more or self._unconfirmed:
            cluster = self.at = self._drill.active.name
            self._progressed.set()
            try:
                async with self._drill.clients.producer(cluster, self._drill.topics[self._topic]) as producer:
                    for message in list(self._unconfirmed.values()):
                        self._send(producer, message, cluster)
                    more = await self._publish(producer, cluster)
                    await producer.flush()
            except ClientLost:
                await self._drill.active.moved_from(cluster)
        self.at = None
        self._progressed.set()

    async def _publish(self, producer: DrillProducer, cluster: str) -> bool:
        """Send what is new, at the set rate, until clients are to go elsewhere.

        Returns False when the input has ended.
        """
        started, taken = time.monotonic(), 0
        while self._drill.active.name == cluster:
            due = int((time.monotonic() - started) * self._rate + self._head_start) - taken
            room = due if self.messages_max is None else max(self.messages_max - self.published, 0)
            taken += max(due - room, 0)  # what was held up is not made up for in a burst
            for _ in range(min(due, room)):
                message = None if self.published == self.quota else next(self._messages, None)
                if message is None:
                    return False
                taken += 1
                self.published += 1
                message_id = self._drill.observations.add_message(message.key, self._topic)
                outgoing = self._unconfirmed[message_id] = DrillMessage(message_id, message.key, message.payload)
                await producer.room()
                self._send(producer, outgoing, cluster)
            if self.published == self.quota:
                return False
            await self._pause(cluster)
        return True

    async def _pause(self, cluster: str) -> None:
        """Wait until something is due; a move ends a long wait."""
        if self._pace_seconds <= PACE_SECONDS:
            await asyncio.sleep(PACE_SECONDS)
            return
        with suppress(TimeoutError):
            async with timeout(self._pace_seconds):
                await self._drill.active.moved_from(cluster)

    def _send(self, producer: DrillProducer, message: DrillMessage, cluster: str) -> None:
        def confirmed(message_id: int, position: Position, batch_index: int) -> None:
            del self._unconfirmed[message_id]
            self.confirmed += 1
            self._progressed.set()
            self._drill.observations.confirmed(message_id, cluster, position, batch_index, time.monotonic())

        producer.send(message, confirmed)
        self._drill.observations.sent(message.message_id, time.monotonic())
