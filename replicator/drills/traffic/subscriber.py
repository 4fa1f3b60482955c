"""The drill's consumers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from replicator.client import Client, ConsumerType, InitialPosition
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.message import Message, MessageId
from replicator.drills.observations import Receipt, drill_id_of
from replicator.drills.subscriptions import LeftForLater, TestedSubscription
from replicator.drills.traffic.active import LOST, RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS, Drill
from replicator.running.short_tasks import in_background
from snapshots.position import BEFORE_ALL, Position

LEFT_FOR_LATER: Final = 0.10
LATER_SECONDS: Final = 2.0
ACK_GROUP_MILLIS: Final = 20
"""Acknowledgements leave after this time, so that what is measured is the sync and not the grouping."""
RECEIVER_QUEUE_MESSAGES: Final = 5000

_AnyConsumer = Consumer | MultiTopicsConsumer
_Received = tuple[int, MessageId]
"""The drill's id of a message and the id to acknowledge it by; its payload is not kept."""


class Subscriber:
    """One consumer of a subscription under test, at the active cluster, until the drill is finished."""

    def __init__(self, drill: Drill, tested: TestedSubscription, name: str, on_seen: Callable[[int], None]) -> None:
        """``on_seen`` is told the id of each message that arrives."""
        self._drill = drill
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
                async with Client(self._drill.active.url, reconnect=False) as client:
                    consumer = await client.subscribe(
                        self._drill.topic,
                        self._tested.name,
                        ConsumerType(self._tested.observed.type.value),
                        receiver_queue_size=RECEIVER_QUEUE_MESSAGES,
                        consumer_name=self._name,
                        initial_position=InitialPosition.Earliest,
                        replicate_subscription_state_enabled=True,
                        batch_index_ack_enabled=self._tested.batch_index_acks,
                        acknowledgement_group_time_ms=ACK_GROUP_MILLIS,
                        ack_receipt_enabled=True,
                    )
                    await self._consume(consumer, cluster)
                    await asyncio.gather(*self._acking, return_exceptions=True)
            except LOST:
                if not self._drill.finished.is_set():
                    await self._drill.active.moved_from(cluster)
            finally:
                await asyncio.gather(*self._acking, return_exceptions=True)

    async def _consume(self, consumer: _AnyConsumer, cluster: str) -> None:
        """Until the drill is finished, or clients are to go elsewhere: then what is left for later is left."""
        later: list[tuple[float, list[_Received]]] = []
        while self._drill.active.name == cluster and (later or not self._drill.finished.is_set()):
            messages = await consumer.receive_many(RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS)
            now = time.monotonic()
            received = self._record(messages, cluster, now)
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

    def _divide(self, received: list[_Received]) -> tuple[list[_Received], list[_Received]]:
        """What is acknowledged at once, and what is left for later."""
        if self._tested.left_for_later is LeftForLater.MESSAGES:
            draw = self._random.random
            chosen = [draw() < LEFT_FOR_LATER for _ in received]
        else:
            chosen = [self._leaves_entry(place.position()) for _message_id, place in received]
        at_once = [each for each, left in zip(received, chosen, strict=True) if not left]
        return at_once, [each for each, left in zip(received, chosen, strict=True) if left]

    def _leaves_entry(self, position: Position) -> bool:
        """One draw for each entry, also where its messages come in two receptions: the cluster knows an entry as
        acknowledged when all of it is."""
        if position != self._drawn[0]:
            self._drawn = position, self._random.random() < LEFT_FOR_LATER
        return self._drawn[1]

    def _record(self, messages: list[Message], cluster: str, now: float) -> list[_Received]:
        received: list[_Received] = []
        receipts: list[Receipt] = []
        for message in messages:
            message_id, place, origin = drill_id_of(message.properties()), message.message_id(), message.origin()
            self._on_seen(message_id)
            received.append((message_id, place))
            position = message.origin_message_id().position()
            receipts.append(Receipt(message_id, origin, position, place.batch_index(), message.redelivery_count()))
        self._drill.observations.received_many(self._tested.name, self._name, cluster, receipts, now)
        return received

    def _start(self, acknowledging: Coroutine[Any, Any, None]) -> None:
        task = in_background(acknowledging, "acknowledging of a subscriber")
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    async def _acknowledge_cumulative(self, consumer: _AnyConsumer, cluster: str, received: list[_Received]) -> None:
        try:
            await consumer.acknowledge_cumulative(received[-1][1])
        except LOST:
            return
        self._record_acks(cluster, received)

    async def _acknowledge_each(self, consumer: _AnyConsumer, cluster: str, received: list[_Received]) -> None:
        try:
            consumer.acknowledge_many([place for _message_id, place in received])
            await consumer.flush_acknowledgements()
        except LOST:
            return
        self._record_acks(cluster, received)

    def _record_acks(self, cluster: str, received: list[_Received]) -> None:
        ids = [message_id for message_id, _place in received]
        self._drill.observations.acked_many(self._tested.name, cluster, ids, time.monotonic())
