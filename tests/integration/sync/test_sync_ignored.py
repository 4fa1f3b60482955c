"""A subscription that is replicated again reads in the log what it ignored: in slices, and before what comes later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, make_block, message, opened
from restored_support import acked, entry_of, started

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.sync import marker_log
from replicator.sync.service import SubscriptionSync
from snapshots.markers import Marker, SubscriptionsUpdate, SubscriptionUpdate, decode_marker
from snapshots.position import BEFORE_ALL, Position

MARKERS = 4_000
BLOCK = 500
A_TURN = MARKERS // 4
"""Markers that a turn may decode. A slice is a millisecond, in which a fast machine decodes less than 250."""


class Peer:
    """Cluster ``b``, whose markers come into the log of ``a``."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._last = BEFORE_ALL

    async def says(self, *updates: SubscriptionUpdate) -> None:
        """Copy markers into the log, each with one update, in one block."""
        first = Position(1, self._last.entry + 1)
        entries = [entry_of(update) for update in updates]
        block = make_block(first, entries, origin="b", kind=BlockKind.MARKERS)
        await self._topic.writing.copy([CopiedBlock(block=block, previous=self._last)])
        self._last = Position(1, first.entry + len(entries) - 1)

    async def says_much(self, *names: str) -> None:
        """Acknowledge message after message, each in a marker of its own, for one of ``names`` after another."""
        for first in range(0, MARKERS, BLOCK):
            await self.says(*(acked(names[each % len(names)], each) for each in range(first, first + BLOCK)))


class Decoded:
    """Markers that were decoded, counted for each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = 0
        self.by_turn: Counter[int] = Counter()
        self.names: Counter[str] = Counter()
        monkeypatch.setattr(marker_log, "decode_marker", self._decode)

    def _decode(self, marker_type: int, payload: Any) -> Marker | None:
        marker = decode_marker(marker_type, payload)
        if isinstance(marker, SubscriptionsUpdate):
            self.by_turn[self._turn] += 1
            self.names.update(update.subscription for update in marker.updates)
        return marker

    async def count(self) -> None:
        self.by_turn.clear()
        self.names.clear()
        while True:
            await asyncio.sleep(0)
            self._turn += 1


@asynccontextmanager
async def heard_nothing(path: Path, *names: str) -> AsyncIterator[tuple[SubscriptionSync, Topic, Peer]]:
    """Yield a topic with subscriptions that are not replicated."""
    async with opened(path, "a") as engine:
        topic, sync = await started(engine)
        await topic.publish([message()])
        for name in names:
            await topic.subscriptions.create(name, BEFORE_ALL, replicated=False)
        yield sync, topic, Peer(topic)
        await sync.stop()


def heard(sync: SubscriptionSync, subscription: Subscription) -> int:
    """Return how many messages of ``b`` the subscription knows as acknowledged."""
    known = sync.vector(subscription.topic, subscription).origins.get("b")
    return 0 if known is None else len(known.positions)


async def ignored(sync: SubscriptionSync, topic: Topic, number: int) -> None:
    """Return once ``number`` updates came and were ignored, and nothing else is left to do."""
    queue = sync._topics[topic.name]._queue
    await eventually(lambda: queue.is_idle and sync.counted.updates_ignored == number, "updates that are ignored")


async def turned(subscription: Subscription, flags: Sequence[bool]) -> None:
    """Turn replication on and off, faster than any pass over the log begins."""
    await asyncio.gather(*(subscription.set_replicated(flag) for flag in flags))


@pytest.mark.parametrize("flags", [[True], [True, False, True, False, True]])
def test_invariant_11_what_was_ignored_is_read_once_and_in_many_turns_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[bool]
) -> None:
    decoded = Decoded(monkeypatch)

    async def main() -> None:
        async with heard_nothing(tmp_path, "sub", "another") as (sync, topic, peer):
            await peer.says_much("sub", "another")
            await peer.says_much("sub")
            await ignored(sync, topic, 2 * MARKERS)
            counting = asyncio.create_task(decoded.count())
            await asyncio.sleep(0)
            subscription = topic.subscriptions["sub"]
            await turned(subscription, flags)
            await eventually(lambda: heard(sync, subscription) == MARKERS, "all that was ignored")
            counting.cancel()
            assert max(decoded.by_turn.values()) <= A_TURN, "one turn of the event loop read too many markers"
            assert decoded.names == {"sub": MARKERS + MARKERS // 2}, "nobody decodes markers about others"

    asyncio.run(main())


def test_subscriptions_that_are_replicated_again_together_share_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = Decoded(monkeypatch)
    names = [f"sub-{number:02}" for number in range(20)]

    async def main() -> None:
        async with heard_nothing(tmp_path, *names) as (sync, topic, peer):
            await peer.says_much(*names)
            await ignored(sync, topic, MARKERS)
            counting = asyncio.create_task(decoded.count())
            await asyncio.sleep(0)
            subscriptions = [topic.subscriptions[name] for name in names]
            await asyncio.gather(*(each.set_replicated(True) for each in subscriptions))
            share = MARKERS // len(names)
            await eventually(lambda: all(heard(sync, each) == share for each in subscriptions), "what each ignored")
            counting.cancel()
            assert decoded.names == dict.fromkeys(names, share)

    asyncio.run(main())


def test_only_the_newest_markers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoded(monkeypatch)
    monkeypatch.setattr(marker_log, "RESTORE_MARKERS_MAX", 50)

    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (sync, topic, peer):
            for entry in range(120):
                if not entry % 10:
                    await topic.publish([message()])  # so that the markers are in many runs
                await peer.says(acked("sub", entry))
            await ignored(sync, topic, 120)
            decoded.names.clear()
            await turned(topic.subscriptions["sub"], [True])
            await eventually(lambda: heard(sync, topic.subscriptions["sub"]) == 50, "the newest ones")
            assert decoded.names["sub"] == 50

    asyncio.run(main())


def test_a_damaged_block_does_not_keep_what_follows_it_from_being_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (sync, topic, peer):
            for entry in range(3):
                await peer.says(acked("sub", entry))
                await topic.publish([message()])
            damage(sync._shared.engine, topic, sorted(first for first, _ in topic.log.markers.runs())[1])
            topic.reading.discard_through(topic.log.last)  # from memory only
            await turned(topic.subscriptions["sub"], [True])
            await eventually(lambda: heard(sync, topic.subscriptions["sub"]) == 2, "the two that can be read")

    asyncio.run(main())


@pytest.mark.parametrize("damaged", [[0], [2], [4], [1, 2]])
def test_damaged_blocks_are_counted_and_the_rest_of_their_run_of_markers_is_heard(
    tmp_path: Path, damaged: list[int]
) -> None:
    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (sync, topic, peer):
            for entry in range(5):
                await peer.says(acked("sub", entry))
            await ignored(sync, topic, 5)
            pages = topic.reading.pages(BEFORE_ALL, topic.log.last, bytes_max=1 << 20)
            blocks = [stored.position for page, _ in pages for stored in page if stored.header.origin == "b"]
            assert {topic.log.markers.run_end(each) for each in blocks} == {topic.log.markers.run_end(blocks[-1])}
            for each in damaged:
                damage(sync._shared.engine, topic, blocks[each])
            topic.reading.discard_through(topic.log.last)  # from memory only
            await turned(topic.subscriptions["sub"], [True])
            await eventually(lambda: heard(sync, topic.subscriptions["sub"]) == 5 - len(damaged), "those that are left")
            assert sync.counted.markers_corrupt == len(damaged)

    asyncio.run(main())


def damage(engine: Engine, topic: Topic, position: Position) -> None:
    store, key = engine.store, BLOCK_KEY.pack(topic.topic_id, *position)
    with store.env.begin(write=True, db=store.tables["blocks"]) as txn:
        value = bytearray(txn.get(key))
        value[-1] ^= 0x40
        txn.put(key, bytes(value))


def test_invariant_6_an_update_that_comes_while_older_ones_are_read_is_applied_after_them(tmp_path: Path) -> None:
    """Applied before the old deletion, an update of its generation would make the deletion count."""

    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (sync, topic, peer):
            await peer.says_much("sub")
            await peer.says(SubscriptionUpdate("sub", {}, 2, deleted=True))
            subscription = topic.subscriptions["sub"]
            await turned(subscription, [True])
            await peer.says(acked("sub", MARKERS, generation=2))
            await eventually(lambda: subscription.cursor.generation > 1, "the deletion")
            await eventually(lambda: sync._topics[topic.name]._queue.is_idle, "the end of the pass")
            assert topic.subscriptions.get("sub") is subscription
            assert subscription.cursor.generation == 3

    asyncio.run(main())


def test_a_new_deletion_that_comes_while_older_updates_are_read_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (_, topic, peer):
            await peer.says_much("sub")
            await turned(topic.subscriptions["sub"], [True])
            await peer.says(SubscriptionUpdate("sub", {}, 1, deleted=True))
            await eventually(lambda: "sub" not in topic.subscriptions, "the deletion")
            assert topic.subscriptions.tombstones["sub"] == 1

    asyncio.run(main())


def test_nothing_is_applied_once_the_subscription_is_not_replicated_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with heard_nothing(tmp_path, "sub") as (sync, topic, peer):
            await peer.says_much("sub")
            await ignored(sync, topic, MARKERS)
            subscription = topic.subscriptions["sub"]
            await turned(subscription, [True, False])
            await ignored(sync, topic, MARKERS)
            assert heard(sync, subscription) == 0

    asyncio.run(main())
