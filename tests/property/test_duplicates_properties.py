"""Two clusters, producers that retry and move between them, copies both ways, consumers in both, and restarts.

Whatever the order: each message is delivered once in each cluster's subscription, none is lost, and acknowledging it
settles all entries that have it.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from duplicates_support import ON, chunks_of, copy, ids_of, numbered, numbered_batch
from engine_support import subscribed
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

TOPIC = "orders"
CLUSTERS = ("us-east", "eu-west")
TICKS = 30
"""Turns of the event loop that a test waits; delivering takes a few."""

MessageId = tuple[str, int, int]


@dataclass(slots=True)
class Producer:
    """Producer that sends in order. It sends unconfirmed messages again, to the cluster where it is connected then."""

    name: str
    next_id: int = 0
    pending: list[list[bytes]] = field(default_factory=list)

    def make(self, size: int, *, chunked: bool) -> None:
        first = self.next_id
        self.next_id += 1 if chunked else size
        if chunked and size > 1:
            self.pending.append(chunks_of(first, size, producer=self.name))
        elif size > 1:
            self.pending.append([numbered_batch(first, first + size - 1, producer=self.name)])
        else:
            self.pending.append([numbered(first, producer=self.name)])

    async def flush(self, topic: Topic, confirmed: int, stored: int) -> None:
        """Send until the connection breaks: after ``confirmed`` messages, and others of ``stored`` entries unconfirmed.

        They are stored whole: chunks of a message that breaks off are no duplicates; see test_same_ids_properties.py.
        """
        for message in self.pending[:confirmed]:
            await topic.publish(message)
        del self.pending[:confirmed]
        for message in self.pending:
            if stored < len(message):
                return
            stored -= len(message)
            await topic.publish(message)


class World:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engines: dict[str, Engine] = {}
        self.topics: dict[str, Topic] = {}
        self.producers = [Producer("p"), Producer("q")]
        self.settled: dict[str, set[MessageId]] = {cluster: set() for cluster in CLUSTERS}
        """Messages acknowledged at each cluster's subscription, here or elsewhere."""

    async def open(self, cluster: str) -> None:
        if cluster in self._engines:
            await self._engines[cluster].close()
        engine = await Engine.open(self._directory / cluster, cluster=cluster, settings=ON)
        self._engines[cluster] = engine
        self.topics[cluster] = await engine.topic(TOPIC)
        await self.topics[cluster].subscriptions.create("sub", BEFORE_ALL, replicated=True)

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()

    async def consume(self, cluster: str, mask: int, *, by_index: bool) -> None:
        consumer, inbox = await subscribed(self.topics[cluster], permits=100_000)
        for _ in range(TICKS):
            await asyncio.sleep(0)
        delivered = ids_of(inbox.deliveries)
        assert len(set(delivered)) == len(delivered), "a message was delivered twice"
        assert not self.settled[cluster].intersection(delivered), "a message that was acknowledged came again"
        for at, (delivery, message_id) in enumerate(zip(list(inbox.deliveries), delivered, strict=True)):
            if not mask >> (at % 16) & 1:
                continue
            if by_index and delivery.batch_size > 1:
                acked = BitMap.deserialize(delivery.acked) if delivery.acked is not None else BitMap()
                left = [index for index in range(delivery.batch_size) if index not in acked]
                await consumer.acknowledge([Ack(delivery.position, (left[0],))])
                if len(left) > 1:
                    continue
            else:
                await consumer.acknowledge([Ack(delivery.position)])
            self.settled[cluster].add(message_id)
        consumer.close()

    def sync(self, source: str, destination: str) -> None:
        """Exchange the acknowledgement states by identities, as far as the entries are there."""
        here, there = self.topics[source], self.topics[destination]
        cursor = here.subscriptions["sub"].cursor
        places = {
            (entry.origin, entry.origin_position): entry.position
            for entry in there.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
        }
        consumed, batches = PositionSet(), dict[Position, BitMap]()
        for entry in here.reading.entries(BEFORE_ALL, None, 10**9, 10**12):
            place = places.get((entry.origin, entry.origin_position))
            if place is None:
                continue
            if cursor.is_consumed(entry.position):
                consumed.add(place)
            elif (acked := cursor.acked_indexes(entry.position)) is not None:
                batches[place] = acked
        there.subscriptions["sub"].merging.acks(consumed, batches, announce=False)
        self.note_settled(destination)

    def note_settled(self, cluster: str) -> None:
        topic = self.topics[cluster]
        cursor = topic.subscriptions["sub"].cursor
        entries = topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
        settled = [entry for entry in entries if cursor.is_consumed(entry.position)]
        self.settled[cluster].update(ids_of(settled))
        self.check_alike(topic)

    @staticmethod
    def check_alike(topic: Topic) -> None:
        """Check that all entries of one message are consumed alike, index by index."""
        cursor = topic.subscriptions["sub"].cursor
        states: dict[MessageId, object] = {}
        entries = topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
        for entry, message_id in zip(entries, ids_of(entries), strict=True):
            state = cursor.is_consumed(entry.position) or cursor.acked_indexes(entry.position) or None
            assert states.setdefault(message_id, state) == state, f"{message_id} is acknowledged in one entry only"

    async def finish(self) -> None:
        """Send, copy and acknowledge everything, without further faults."""
        for producer in self.producers:
            await producer.flush(self.topics[CLUSTERS[0]], len(producer.pending), 0)
        await copy(*self.topics.values())
        await copy(*reversed(self.topics.values()))
        sent: set[MessageId] | None = None
        for cluster, topic in self.topics.items():
            _, inbox = await subscribed(topic, "fresh", permits=100_000)
            for _ in range(TICKS):
                await asyncio.sleep(0)
            delivered = ids_of(inbox.deliveries)
            assert len(set(delivered)) == len(delivered), "a new subscription gets a message twice"
            entries = set(ids_of(topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)))
            assert set(delivered) == entries, "a message is never delivered"
            sent = sent if sent is not None else entries
            assert entries == sent
            await self.consume(cluster, 0xFFFF, by_index=False)
            assert self.settled[cluster] == entries
            assert topic.subscriptions["sub"].cursor.mark_delete == topic.log.last
            assert topic.subscriptions["sub"].backlog_messages() == 0
        for producer in self.producers:
            for number in range(producer.next_id):
                assert sent is not None
                covering = [each for each in sent if each[0] == producer.name and each[1] <= number]
                assert covering, "a message was lost"


clusters = st.sampled_from(CLUSTERS)
steps = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(0, 1),
        clusters,
        st.integers(1, 3),
        st.booleans(),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    st.tuples(st.just("copy"), clusters),
    st.tuples(st.just("consume"), clusters, st.integers(0, 0xFFFF), st.booleans()),
    st.tuples(st.just("sync"), clusters),
    st.tuples(st.just("reopen"), clusters),
)


@given(st.lists(steps, max_size=40))
@settings(max_examples=examples(20), deadline=None)
def test_each_message_is_delivered_once_in_each_cluster_and_settled_in_all_its_entries(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    async def main(directory: Path) -> None:
        world = World(directory)
        for cluster in CLUSTERS:
            await world.open(cluster)
        try:
            for step in steps:
                match step:
                    case ("send", who, cluster, size, chunked, confirmed, stored):
                        world.producers[who].make(size, chunked=chunked)
                        await world.producers[who].flush(world.topics[cluster], confirmed, stored)
                    case ("copy", cluster):
                        (other,) = set(CLUSTERS) - {cluster}
                        await copy(world.topics[cluster], world.topics[other])
                        world.note_settled(other)
                    case ("consume", cluster, mask, by_index):
                        await world.consume(cluster, mask, by_index=by_index)
                        world.check_alike(world.topics[cluster])
                    case ("sync", cluster):
                        (other,) = set(CLUSTERS) - {cluster}
                        world.sync(cluster, other)
                    case ("reopen", cluster):
                        await world.open(cluster)
                        world.check_alike(world.topics[cluster])
            await world.finish()
        finally:
            await world.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
