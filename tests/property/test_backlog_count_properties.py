"""The backlog of a subscription is exact, however its holes lie: over batches, markers, several ledgers, trimmed logs.

The count is compared with the sum over all entries that are not consumed, and counts of scattered positions with a
walk over all blocks.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from engine_support import TOPIC, batch, marker, message, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from replicator.engine.log.store import Store
from replicator.engine.log.stored_blocks import blocks_after
from replicator.engine.subscriptions.backlog import Backlog
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

BATCH_SIZES = st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1, max_size=6)
BLOCKS = st.lists(st.one_of(BATCH_SIZES, st.just([1]), st.just([1]), st.none()), min_size=1, max_size=12)
"""Blocks by the batch sizes of their entries. None is a block of one marker."""
SHARES = st.lists(st.integers(0, 9), min_size=1, max_size=30)
"""A digit for each entry, repeated: the round in which it is acknowledged."""


def walked(store: Store, topic_id: int, positions: PositionSet) -> int:
    """Return the messages at ``positions``, found by reading every block."""
    total = 0
    with store.reading_blocks() as txn:
        for first, row in blocks_after(txn.cursor(), topic_id, BEFORE_ALL):
            sizes_at = row.header.columns_at + 4 * row.header.entries
            for index in range(row.header.entries):
                if Position(first.ledger, first.entry + index) in positions:
                    at = sizes_at + 4 * index
                    total += int.from_bytes(row.head[at : at + 4], "little")
    return total


def check(topic: Topic, subscription: Subscription, sizes: dict[Position, int]) -> None:
    cursor = subscription.cursor
    left = sum(size for each, size in sizes.items() if each in topic.log and not cursor.is_consumed(each))
    assert Backlog(topic, cursor).messages() == left, "counted anew"
    assert subscription.backlog_messages() == left, "counted on from the last question"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=3), SHARES, st.integers(0, 60), st.booleans())
def test_the_backlog_is_exact_whatever_holes_the_merged_acknowledgements_leave(
    lives: list[list[list[int] | None]], rounds: list[int], trimmed: int, part_of_batches: bool
) -> None:
    async def main(path: Path) -> None:
        sizes: dict[Position, int] = {}
        for number, life in enumerate(lives):
            async with opened(path) as engine:
                topic = await engine.topic(TOPIC)
                for part in life:
                    if part is None:
                        await topic.writing.marker(marker())
                        continue
                    entries = [batch([b"x"] * size) if size > 1 else message() for size in part]
                    sizes.update(zip(await topic.publish(entries), part, strict=True))
                if number == len(lives) - 1 and sizes:
                    await acknowledge(topic, sizes, engine.store)

    async def acknowledge(topic: Topic, sizes: dict[Position, int], store: Store) -> None:
        subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        check(topic, subscription, sizes)
        positions = sorted(sizes)
        share = {each: rounds[index % len(rounds)] for index, each in enumerate(positions)}
        for number in range(3):
            chosen = PositionSet(each for each in positions if share[each] == number)
            whole = walked(store, topic.topic_id, chosen)
            assert topic.reading.messages_in(chosen) == whole == sum(sizes[each] for each in chosen)
            batches: dict[Position, BitMap] = {}
            if part_of_batches:  # the first message of each batch now, the others in the next round: then it is whole
                later = [each for each in positions if share[each] in (number, number - 1) and sizes[each] > 1]
                batches = {each: BitMap([0] if share[each] == number else range(1, sizes[each])) for each in later}
                for each in batches:
                    chosen.discard(each)
            subscription.merging.acks(chosen, batches, announce=False)
            check(topic, subscription, sizes)
            if number == 0:
                await topic.trimming.trim(positions[trimmed % len(positions)])
                check(topic, subscription, sizes)
            (more,) = await topic.publish([message()])
            sizes[more] = 1
            check(topic, subscription, sizes)

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(main(Path(path)))
