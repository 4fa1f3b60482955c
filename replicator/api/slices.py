"""All topics of a worker, looked at in slices between which others have their turn: ten thousand take a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC

SLICE_SECONDS: Final = 0.005


async def topics_in_slices(engine: Engine) -> AsyncIterator[Topic]:
    """Every topic but that of the service itself, and those that are deleted meanwhile."""
    until = time.perf_counter() + SLICE_SECONDS
    for topic in engine.topics():
        if topic.deleted is None and topic.name != EPOCHS_TOPIC:
            yield topic
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
