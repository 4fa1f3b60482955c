"""Rates at which topics take in messages. They are counted by block, so that a message costs nothing.

A rate is that of the last minute: :data:`SLOTS` slots of :data:`SLOT_SECONDS`, without the running one. A topic that
nothing is published to has no meter, and none is ever walked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from replicator.engine.log.writer import AppendedBlock
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener

SLOT_SECONDS: Final = 10
SLOTS: Final = 6


class TrafficMeter(TopicListener[Topic]):
    """A listener of the engine that knows the rates of its topics. ``clock_seconds`` must not go back."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self._clock_seconds = clock_seconds
        self._slots: dict[str, deque[tuple[int, int]]] = {}
        """For each topic, the slots with their messages, the newest last."""

    def messages_per_second(self, topic_name: str) -> float:
        """Return the messages per second that came from producers and links over the last minute."""
        now = self._slot()
        slots = self._slots.get(topic_name, ())
        return sum(messages for slot, messages in slots if now - SLOTS <= slot < now) / (SLOTS * SLOT_SECONDS)

    def _slot(self) -> int:
        return int(self._clock_seconds()) // SLOT_SECONDS

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        messages = blocks[0].header.messages if len(blocks) == 1 else sum(block.header.messages for block in blocks)
        if not messages:
            return
        slots = self._slots.get(topic.name)
        if slots is None:
            slots = self._slots[topic.name] = deque(maxlen=SLOTS + 1)
        now = self._slot()
        if slots and slots[-1][0] == now:
            slots[-1] = (now, slots[-1][1] + messages)
        else:
            slots.append((now, messages))

    def on_log_deleted(self, topic: Topic) -> None:
        self._slots.pop(topic.name, None)
