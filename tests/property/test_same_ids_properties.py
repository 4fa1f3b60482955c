"""One producer name in two clusters that gives ids out anew, sends again, cuts batches anew, and loses connections.

Whatever the order: each content that was confirmed is delivered in each cluster, and equal entries are delivered once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duplicates_support import ON, batch_of, chunks_of, copy, numbered
from engine_support import all_sent, subscribed
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.log.entry import decode_entry
from replicator.engine.producing.contents import open_entry
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE, Delivery
from replicator.metadata.metadata_pb2 import LZ4, NONE, ZSTD
from snapshots.position import BEFORE_ALL

TOPIC = "orders"
CLUSTERS = ("us-east", "eu-west")
IDS = 12

Content = tuple[int, str]
"""A message: its sequence id, and what tells it from others of that id."""


class World:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engines: dict[str, Engine] = {}
        self.topics: dict[str, Topic] = {}
        self.own_highest = dict.fromkeys(CLUSTERS, -1)
        """The highest id that each cluster confirmed to its own producer: below it ids alone decide."""
        self.confirmed: set[Content] = set()
        self.begun: dict[tuple[str, int, int], Sequence[str]] = {}
        """Contents that each cluster was first sent in chunks under an id; for chunks, ids alone decide."""
        self.cut = False
        """Whether any batch was sent."""

    async def open(self, cluster: str) -> None:
        if cluster in self._engines:
            await self._engines[cluster].close()
        self._engines[cluster] = await Engine.open(self._directory / cluster, cluster=cluster, settings=ON)
        self.topics[cluster] = await self._engines[cluster].topic(TOPIC)

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()

    async def send(self, cluster: str, batch: dict[int, str], codec: Any, time: int) -> None:
        """Send a batch; one that is refused because a part of it is here is sent message by message."""
        if len(batch) > 1:
            self.cut = True
            entry = batch_of(batch, publish_time=time, codec=codec)
        else:
            ((number, content),) = batch.items()
            entry = numbered(number, content=content, publish_time=time, codec=codec)
        try:
            (receipt,) = await self.topics[cluster].publish([entry])
        except NotAllowedError:
            assert len(batch) > 1, "a message by itself is never refused"
            for number, content in batch.items():
                await self.send(cluster, {number: content}, codec, time)
            return
        self._note(cluster, list(batch.items()), stored=receipt != DUPLICATE)

    async def send_chunks(self, cluster: str, number: int, contents: Sequence[str], sent: int, time: int) -> None:
        """Send a message in chunks; only ``sent`` of them arrive. A refused message is not confirmed."""
        if self.begun.setdefault((cluster, number, len(contents)), contents) != contents:
            return
        encoded = [b"%d %s" % (number, content.encode()) for content in contents]
        entries = chunks_of(number, len(contents), uuid=f"p-{number}", contents=encoded, publish_time=time)
        stored = False
        try:
            for entry in entries[:sent]:
                (receipt,) = await self.topics[cluster].publish([entry])
                stored = receipt != DUPLICATE
        except NotAllowedError:
            return
        if sent >= len(entries):
            self._note(cluster, [(number, "+".join(contents))], stored=stored)

    def _note(self, cluster: str, messages: Sequence[Content], *, stored: bool) -> None:
        fresh = [each for each in messages if each[0] > self.own_highest[cluster]]
        assert len(fresh) == len(messages) or not fresh, "a batch of which a part was sent before is refused"
        self.confirmed.update(fresh)
        if stored:
            self.own_highest[cluster] = max(number for number, _ in messages)

    async def finish(self) -> None:
        await copy(*self.topics.values())
        await copy(*reversed(self.topics.values()))
        for cluster, topic in self.topics.items():
            consumer, inbox = await subscribed(topic, "fresh", permits=100_000)
            await all_sent(consumer)
            entries, messages = received(inbox.deliveries)
            assert not self.confirmed - set(messages), f"{cluster} lost {self.confirmed - set(messages)}"
            assert max(entries.values(), default=0) <= 1, "equal entries are delivered twice"
            if not self.cut:
                assert max(messages.values(), default=0) <= 1, "a message is delivered twice"
            stored = topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
            assert len(stored) - len(inbox.deliveries) == (
                len(topic.log.duplicates.hidden) if topic.log.duplicates else 0
            )


def received(deliveries: Sequence[Delivery]) -> tuple[Counter[Any], Counter[Content]]:
    """Return counts of the entries that are no chunks, by content, and of messages, chunked ones put together."""
    entries: Counter[Any] = Counter()
    messages: Counter[Content] = Counter()
    open_chunks: dict[str, list[str]] = {}
    for delivery in deliveries:
        metadata, payload = decode_entry(delivery.entry)
        if metadata.num_chunks_from_msg > 1:
            chunks = open_chunks.setdefault(metadata.uuid, [])
            if metadata.chunk_id == 0:
                chunks.clear()
            if metadata.chunk_id != len(chunks):
                del open_chunks[metadata.uuid]
                continue
            chunks.append(bytes(payload).decode().split(" ")[1])
            if len(chunks) == metadata.num_chunks_from_msg:
                messages[metadata.sequence_id, "+".join(open_chunks.pop(metadata.uuid))] += 1
            continue
        opened = open_entry(delivery.entry)
        assert opened is not None
        entries[metadata.num_messages_in_batch, opened] += 1
        for number, content in plain(delivery.entry):
            messages[number, content] += 1
    return entries, messages


def plain(entry: bytes) -> list[Content]:
    """Return the messages of an entry, by the contents that the tests put into them."""
    opened = open_entry(entry)
    assert opened is not None
    known = {
        (content, number): open_entry(numbered(number, content=content))
        for number in range(2 * IDS)
        for content in "xy"
    }
    by_digest = {found[0].digest: key for key, found in known.items() if found is not None}
    return [(by_digest[each.digest][1], by_digest[each.digest][0]) for each in opened]


clusters = st.sampled_from(CLUSTERS)
contents = st.sampled_from("xy")
steps = st.one_of(
    st.tuples(
        st.just("send"),
        clusters,
        st.integers(0, IDS),
        st.lists(st.lists(contents, min_size=1, max_size=3), min_size=1, max_size=4),
        st.sampled_from([NONE, LZ4, ZSTD]),
        st.integers(1, 3),
    ),
    st.tuples(
        st.just("chunks"),
        clusters,
        st.integers(0, IDS),
        st.lists(contents, min_size=2, max_size=3),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    st.tuples(st.just("copy"), clusters),
    st.tuples(st.just("reopen"), clusters),
)


@given(st.lists(steps, max_size=30))
@settings(max_examples=examples(40), deadline=None)
def test_each_confirmed_content_is_delivered_and_equal_ones_once(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    async def main(directory: Path) -> None:
        world = World(directory)
        for cluster in CLUSTERS:
            await world.open(cluster)
        try:
            for step in steps:
                match step:
                    case ("send", cluster, first, batches, codec, time):
                        for batch in batches:
                            await world.send(cluster, {first + at: each for at, each in enumerate(batch)}, codec, time)
                            first += len(batch)
                    case ("chunks", cluster, number, parts, sent, time):
                        await world.send_chunks(cluster, number, parts, sent, time)
                    case ("copy", cluster):
                        (other,) = set(CLUSTERS) - {cluster}
                        await copy(world.topics[cluster], world.topics[other])
                    case ("reopen", cluster):
                        await world.open(cluster)
            await world.finish()
        finally:
            await world.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
