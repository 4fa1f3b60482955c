"""The drill's consumers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from replicator.drills.subscriptions import DeferredAcks, TestedSubscription
from replicator.drills.traffic.active import Drill
from replicator.drills.traffic.clients import ClientLost, DrillConsumer, Received
from replicator.running.short_tasks import in_background
from snapshots.position import BEFORE_ALL, Position

LEFT_FOR_LATER: Final = 0.10
LATER_SECONDS: Final = 2.0


class Subscriber:
    """One consumer of a subscription under test, at the active cluster, until the drill is finished."""

    def __init__(
        self, drill: Drill, topic: str, tested: TestedSubscription, name: str, on_seen: Callable[[int], None]
    ) -> None:
        """Make the consumer. ``on_seen`` is called with the id of each message that arrives."""
        self._drill = drill
        self._topic = topic
        self._tested = tested
        self._name = name
        self._random = random.Random(drill.random.random())
        self._drawn = BEFORE_ALL, False
        self._acking: set[asyncio.Task[None]] = set()
        self._on_seen = on_seen

    async def run(self) -> None:
        while not self._drill.finished.is_set():
            cluster = self._drill.active.name
            try:
                async with self._drill.clients.consumer(cluster, self._topic, self._tested, self._name) as consumer:
                    await self._consume(consumer, cluster)
                    await asyncio.gather(*self._acking, return_exceptions=True)
            except ClientLost:
                if not self._drill.finished.is_set():
                    await self._drill.active.moved_from(cluster)
            finally:
                await asyncio.gather(*self._acking, return_exceptions=True)

    async def _consume(self, consumer: DrillConsumer, cluster: str) -> None:
        """Consume until the drill is finished, or clients are to go elsewhere. Messages left for later then stay
        unacknowledged.
        """
        later: list[tuple[float, list[Received]]] = []
        while self._drill.active.name == cluster and (later or not self._drill.finished.is_set()):
            received = await consumer.receive()
            now = time.monotonic()
            self._record(received, cluster, now)
            if self._tested.observed.cumulative:
                if received:
                    self._start(self._acknowledge_cumulative(consumer, cluster, received))
                continue
            at_once, left = self._divide(received)
            if left:
                later.append((now + LATER_SECONDS, left))
            while later and later[0][0] <= now:
                at_once += later.pop(0)[1]
            if at_once:
                self._random.shuffle(at_once)
                self._start(self._acknowledge_each(consumer, cluster, at_once))
            await asyncio.sleep(0)

    def _divide(self, received: list[Received]) -> tuple[list[Received], list[Received]]:
        """Return the messages to acknowledge at once, and those to leave for later."""
        if self._tested.left_for_later is DeferredAcks.MESSAGES:
            draw = self._random.random
            chosen = [draw() < LEFT_FOR_LATER for _ in received]
        else:
            chosen = [self._leaves_entry(each.entry) for each in received]
        at_once = [each for each, left in zip(received, chosen, strict=True) if not left]
        return at_once, [each for each, left in zip(received, chosen, strict=True) if left]

    def _leaves_entry(self, position: Position) -> bool:
        """Draw once for each entry, even if its messages come in two receptions: an entry is acknowledged only when all
        of it is.
        """
        if position != self._drawn[0]:
            self._drawn = position, self._random.random() < LEFT_FOR_LATER
        return self._drawn[1]

    def _record(self, received: list[Received], cluster: str, now: float) -> None:
        for each in received:
            self._on_seen(each.receipt.message_id)
        receipts = [each.receipt for each in received]
        self._drill.observations.received_many(self._tested.name, self._name, cluster, receipts, now)

    def _start(self, acknowledging: Coroutine[Any, Any, None]) -> None:
        task = in_background(acknowledging, "acknowledging of a subscriber")
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    async def _acknowledge_cumulative(self, consumer: DrillConsumer, cluster: str, received: list[Received]) -> None:
        try:
            await consumer.acknowledge_cumulative(received[-1])
        except ClientLost:
            return
        self._record_acks(cluster, received)

    async def _acknowledge_each(self, consumer: DrillConsumer, cluster: str, received: list[Received]) -> None:
        try:
            acknowledged = await consumer.acknowledge(received)
        except ClientLost:
            return
        self._record_acks(cluster, acknowledged)

    def _record_acks(self, cluster: str, received: Sequence[Received]) -> None:
        ids = [each.receipt.message_id for each in received]
        self._drill.observations.acked_many(self._tested.name, cluster, ids, time.monotonic())
