"""How many bytes a topic and the backlogs of its subscriptions take, for figures that are asked for.

The store counts messages, not bytes, so the first question for a topic reads the headers of its blocks once, in pages
between which others have their turn; later ones read what is new. Nothing is measured for topics that nobody asks of.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from replicator.engine.log.log_sizes import SAMPLE_BLOCKS, LogSizes
from replicator.engine.log.store import Store
from replicator.engine.topic import Topic
from snapshots.position import Position

PAGE_BLOCKS: Final = 1_000
"""Headers that are read in one go: some milliseconds."""
TOPICS_MAX: Final = 10_000
"""Limit of topics for which sums are kept. The topic that was asked for longest ago is dropped first."""


class TopicSizes:
    """Measures topics of one store. Lives on the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: OrderedDict[int, LogSizes] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def measure(self, topic: Topic) -> LogSizes:
        """Return the sums of the topic's log up to its LAC."""
        async with self._one_at_a_time:
            sizes = self._sizes.get(topic.topic_id)
            if sizes is None or sizes.start != topic.log.trimmed:
                sizes = self._sizes[topic.topic_id] = LogSizes(topic.log.trimmed)
            self._sizes.move_to_end(topic.topic_id)
            if len(self._sizes) > TOPICS_MAX:
                self._sizes.popitem(last=False)
            while page := self._store.block_spans(topic.topic_id, sizes.reached, blocks_max=PAGE_BLOCKS):
                for block in page:
                    sizes.add(block)
                if len(page) < PAGE_BLOCKS:
                    break
                await asyncio.sleep(0)
            return sizes

    def bytes_after(self, topic: Topic, sizes: LogSizes, position: Position) -> int:
        """Return the size in bytes of the blocks that hold anything above ``position``."""
        reached, size_bytes = sizes.sample(position)
        while page := self._store.block_spans(topic.topic_id, reached, blocks_max=SAMPLE_BLOCKS):
            for block in page:
                if block.last > position:
                    return sizes.size_bytes - size_bytes
                size_bytes += block.size_bytes
            reached = page[-1].last
        return sizes.size_bytes - size_bytes
