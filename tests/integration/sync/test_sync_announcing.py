"""Announced states count as told only once their markers are written, over a real engine whose writes may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, message

from replicator.engine.engine import Engine
from replicator.engine.errors import StoreFull
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import decode_entry
from replicator.engine.producing.topic_writing import TopicWriting
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.sync.marker_log import Counters, MarkerLog
from replicator.sync.service import SubscriptionSync
from snapshots.actions import ControllerSettings, WriteRequest
from snapshots.markers import SnapshotRequest, SubscriptionsUpdate, SubscriptionUpdate, decode_marker
from snapshots.position import BEFORE_ALL, Position

FAST = ControllerSettings(snapshot_interval_ms=5, update_interval_ms=2)


class NoIndex:
    """Nobody reads it here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@asynccontextmanager
async def serviced(path: Path) -> AsyncIterator[tuple[Topic, SubscriptionSync]]:
    engine = await Engine.open(path / "a", cluster="a")
    sync = SubscriptionSync(engine, peers=["b"], settings=FAST, index=NoIndex())
    await sync.start()
    try:
        yield await engine.topic(TOPIC), sync
    finally:
        await sync.stop()
        await engine.close()


@asynccontextmanager
async def syncing(path: Path) -> AsyncIterator[Topic]:
    """Yield a topic whose subscriptions are told to one peer."""
    async with serviced(path) as (topic, _):
        yield topic


class SlowCommits:
    """Writer whose markers wait for :attr:`durable`; entries of ``refused`` find the store full, once each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.durable = asyncio.Event()
        self.came: list[int] = []
        self.refused: set[int] = set()
        self._marker = TopicWriting.marker
        monkeypatch.setattr(TopicWriting, "marker", lambda writing, entry, **how: self._write(writing, entry, **how))

    async def _write(self, writing: TopicWriting, entry: bytes, **how: Any) -> Position:
        number = asked(entry)
        self.came.append(number)
        await self.durable.wait()
        if number in self.refused:
            self.refused.remove(number)
            raise StoreFull("full")
        return await self._marker(writing, entry, **how)


def asked(entry: bytes) -> int:
    """Return the number of a request for a snapshot."""
    metadata, payload = decode_entry(entry, check=False)
    marker = decode_marker(metadata.marker_type, payload)
    assert isinstance(marker, SnapshotRequest)
    return int(marker.snapshot_id)


def requests(topic: Topic) -> list[int]:
    """Return the numbers of the requests in the log, in its order."""
    markers = MarkerLog(topic, Counters())
    return [
        int(marker.snapshot_id)
        for blocks in markers.pages(BEFORE_ALL, topic.log.last)
        for stored in blocks
        for _, marker in markers.markers(stored)
        if isinstance(marker, SnapshotRequest)
    ]


def told(topic: Topic) -> list[SubscriptionUpdate]:
    markers = MarkerLog(topic, Counters())
    return [
        update
        for blocks in markers.pages(BEFORE_ALL, topic.log.last)
        for stored in blocks
        if stored.header.kind is BlockKind.MARKERS
        for _, marker in markers.markers(stored)
        if isinstance(marker, SubscriptionsUpdate)
        for update in marker.updates
    ]


def test_a_subscription_is_told_only_when_every_marker_that_tells_of_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with syncing(tmp_path) as topic:
            first, second, _ = await topic.publish([message()] * 3)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await eventually(lambda: not subscription.cursor.state.to_announce)

            writes: list[asyncio.Event] = []
            write_marker = TopicWriting.marker

            async def slowly(writing: TopicWriting, entry: bytes, **how: Any) -> Position:
                writes.append(asyncio.Event())
                await writes[-1].wait()
                return await write_marker(writing, entry, **how)

            monkeypatch.setattr(TopicWriting, "marker", slowly)
            await subscription.acknowledge([Ack(first)])
            await eventually(lambda: len(writes) == 1)
            await subscription.acknowledge([Ack(second)])
            writes[0].set()
            await eventually(lambda: len(writes) == 2)  # it gathered until the first one was written
            assert subscription.cursor.state.to_announce  # a crash now loses the second marker
            writes[1].set()
            await eventually(lambda: not subscription.cursor.state.to_announce)
            monkeypatch.undo()

    asyncio.run(main())


def test_markers_do_not_wait_for_each_others_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serviced(tmp_path) as (topic, sync):
            commits, queue = SlowCommits(monkeypatch), sync._of(topic)._queue
            queue.add([WriteRequest(SnapshotRequest(str(number), "a")) for number in range(20)])
            await eventually(lambda: len(commits.came) == 20, "all with the writer, though none of them is durable")
            commits.durable.set()
            await eventually(lambda: queue.is_idle)
            assert commits.came == requests(topic) == [*range(20)]

    asyncio.run(main())


def test_a_marker_that_finds_the_store_full_is_tried_again_and_those_behind_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serviced(tmp_path) as (topic, sync):
            commits, queue = SlowCommits(monkeypatch), sync._of(topic)._queue
            commits.refused = {1, 3}
            commits.durable.set()
            queue.add([WriteRequest(SnapshotRequest(str(number), "a")) for number in range(5)])
            await eventually(lambda: queue.is_idle and len(requests(topic)) == 5)
            assert commits.came == [0, 1, 2, 3, 4, 1, 3]
            assert requests(topic) == [0, 2, 4, 1, 3]

    asyncio.run(main())


def test_a_queue_whose_task_is_ended_writes_again_only_what_was_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serviced(tmp_path) as (topic, sync):
            commits, queue = SlowCommits(monkeypatch), sync._of(topic)._queue
            queue.add([WriteRequest(SnapshotRequest(str(number), "a")) for number in range(3)])
            await eventually(lambda: len(commits.came) == 3)
            commits.durable.set()
            await eventually(lambda: queue.is_idle)
            commits.durable.clear()
            queue.add([WriteRequest(SnapshotRequest(str(number), "a")) for number in range(3, 6)])
            await eventually(lambda: len(commits.came) == 6)
            assert queue._task is not None
            queue._task.interrupt()
            commits.durable.set()
            await eventually(lambda: queue.is_idle and len(requests(topic)) == 6)
            assert commits.came == [*range(6), *range(3, 6)]
            assert requests(topic) == [*range(6)]

    asyncio.run(main())


def test_subscriptions_whose_properties_fill_more_than_a_marker_are_told_in_several(tmp_path: Path) -> None:
    async def main() -> None:
        async with syncing(tmp_path) as topic:
            names = [f"sub-{number}" for number in range(20)]
            properties = {"key": "v" * 500_000}
            await topic.publish([message()])
            for name in names:
                await topic.subscriptions.create(name, BEFORE_ALL, replicated=True, properties=properties)
            huge = {str(key): "v" * 1_000_000 for key in range(6)}
            await topic.subscriptions.create("huge", BEFORE_ALL, replicated=True, properties=huge)

            await eventually(lambda: len(told(topic)) == len(names) + 1)

            by_name = {update.subscription: update.properties for update in told(topic)}
            assert by_name == {**dict.fromkeys(names, properties), "huge": {}}

    asyncio.run(main())
