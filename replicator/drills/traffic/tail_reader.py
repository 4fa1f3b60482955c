"""Reads one cluster's topic as it grows."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from replicator.client import Client, InitialPosition
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.drills.observations import drill_id_of
from replicator.drills.traffic.active import LOST, POLL_SECONDS, Drill
from replicator.drills.traffic.clients import RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS, RECEIVER_QUEUE_MESSAGES
from replicator.drills.traffic.showing import NOTHING, ClientAccess

TAIL_SUBSCRIPTION: Final = "drill-tail"


class TailReader:
    """Records when copied messages arrive in a cluster, and at which place."""

    def __init__(
        self, drill: Drill, cluster: str, url: str, running: asyncio.Event, access: ClientAccess = NOTHING
    ) -> None:
        """Make the reader. ``running`` is set while the cluster's worker should answer."""
        self._drill = drill
        self._cluster = cluster
        self._url = url
        self._options = access.own_options()
        self._running = running
        self.copied = 0

    async def run(self) -> None:
        while not self._drill.finished.is_set():
            await self._running.wait()
            try:
                async with Client(self._url, reconnect=False, **self._options) as client:
                    consumer = await client.subscribe(
                        self._drill.topic if len(self._drill.topics) == 1 else list(self._drill.topics),
                        TAIL_SUBSCRIPTION,
                        receiver_queue_size=max(RECEIVER_QUEUE_MESSAGES // len(self._drill.topics), 1),
                        initial_position=InitialPosition.Earliest,
                    )
                    await self._read(consumer)
            except LOST:
                await asyncio.sleep(POLL_SECONDS)  # it may be that nobody has noticed the kill yet

    async def _read(self, consumer: Consumer | MultiTopicsConsumer) -> None:
        while not self._drill.finished.is_set():
            messages = await consumer.receive_many(RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS)
            now = time.monotonic()
            for message in messages:
                if message.origin() != self._cluster:
                    place = message.message_id()
                    self.copied += 1
                    self._drill.observations.observed(
                        self._cluster, drill_id_of(message.properties()), place.position(), place.batch_index(), now
                    )
            for last in {message.topic_name(): message for message in messages}.values():
                await consumer.acknowledge_cumulative(last)
