"""The copy state machine of one link: what to read next, and what may be in flight. Pure; no clock, no I/O.

Invariants (DESIGN §3): 2, each entry is copied at most once and in the end once: the destination decides, this
machine only starts where the destination's high-water mark is; 3, blocks of a topic are sent in log order;
4, only the source's own blocks are read; 11, the bytes in flight are bounded.

1. Connected: for each topic the destination says the highest origin position that it has. Reading starts after it.
2. While there is room in the window, take the next topic that has more than was read, in turn, and read a piece.
3. Each block is sent with the position that was sent before it. The destination refuses a block whose predecessor
   it does not have, so frames that overtake each other or a destination that lost its data cannot make a hole.
4. Disconnected: forget all but the topics; the next connection starts at 1. The link itself stores nothing.
5. A topic that is deleted at the source is forgotten. Made anew, it is another: it starts at its beginning.
6. A refusal that will not heal by trying again (another incarnation, a corrupt block) halts that topic, loudly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snapshots.position import BEFORE_ALL, Position

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Large enough that the cost of a frame is small, small enough that one commit of it is short."""
WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Sent and not yet acknowledged; at 100 ms of round trip this allows 320 MB/s."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the source's own blocks of ``topic`` after position ``after``."""

    topic: str
    after: Position
    bytes_max: int


@dataclass(slots=True)
class TopicCopy:
    """How far one topic is. ``sent`` is the origin position of the last entry that was sent."""

    last: Position
    """The source's LAC."""
    read: Position = BEFORE_ALL
    sent: Position = BEFORE_ALL
    halted: str | None = None


@dataclass(frozen=True, slots=True)
class _Frame:
    size_bytes: int


class Copier:
    """Decides for one link. Events come in by the methods; :meth:`next_read` says what to do."""

    def __init__(self, *, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.topics: dict[str, TopicCopy] = {}
        self.connected = False
        self._window_bytes_max = window_bytes_max
        self._in_flight: deque[_Frame] = deque()
        self._in_flight_bytes = 0
        self._behind: deque[str] = deque()
        self._queued: set[str] = set()

    @property
    def in_flight(self) -> int:
        """Frames that are sent and not acknowledged."""
        return len(self._in_flight)

    def topic_moved(self, topic: str, last: Position) -> None:
        """The source's LAC of ``topic`` is now ``last``."""
        state = self.topics.get(topic)
        if state is None:
            state = self.topics[topic] = TopicCopy(last)
        assert last >= state.last, f"the LAC of {topic} went back from {state.last} to {last}"
        state.last = last
        self._queue_if_behind(topic, state)

    def on_connected(self, high_water: Mapping[str, Position]) -> None:
        """The destination has, of this source, all up to ``high_water``; topics not named it has nothing of."""
        assert not self.connected
        self.connected = True
        for topic, state in self.topics.items():
            state.read = state.sent = high_water.get(topic, BEFORE_ALL)
            state.halted = None
            self._queue_if_behind(topic, state)

    def on_disconnected(self) -> None:
        """Nothing that was in flight counts as arrived."""
        self.connected = False
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._behind.clear()
        self._queued.clear()

    def next_read(self, frame_bytes: int = 0) -> Read | None:
        """What to read next for a frame that has ``frame_bytes`` already; None if there is nothing or no room."""
        if not self.connected or self._in_flight_bytes >= self._window_bytes_max:
            return None
        while self._behind and frame_bytes < FRAME_BYTES_TARGET:
            topic = self._behind.popleft()
            self._queued.discard(topic)
            state = self.topics.get(topic)
            if state is not None and state.halted is None and state.read < state.last:
                return Read(topic, state.read, FRAME_BYTES_TARGET - frame_bytes)
        return None

    def on_read(self, topic: str, reached: Position) -> None:
        """The log of ``topic`` was read up to ``reached``, whether or not something there is to be copied."""
        state = self.topics[topic]
        assert reached > state.read, f"reading {topic} after {state.read} reached {reached}"
        state.read = reached
        self._queue_if_behind(topic, state)

    def on_block(self, topic: str, last: Position) -> Position:
        """A block that ends at origin position ``last`` goes into the frame; returns what was sent before it."""
        state = self.topics[topic]
        previous = state.sent
        assert last > previous, f"block up to {last} of {topic} after {previous}"
        state.sent = last
        return previous

    def on_sent(self, size_bytes: int) -> None:
        self._in_flight.append(_Frame(size_bytes))
        self._in_flight_bytes += size_bytes

    def on_acknowledged(self) -> None:
        """The oldest frame in flight is durable at the destination, but for what it refused."""
        self._in_flight_bytes -= self._in_flight.popleft().size_bytes

    def topic_gone(self, topic: str) -> TopicCopy | None:
        """The source has no such topic any more, or it is not to be copied; returns how far it was."""
        return self.topics.pop(topic, None)

    def on_resumed(self, topic: str, high_water: Position) -> None:
        """What halted ``topic`` is over: the destination has all up to ``high_water``."""
        state = self.topics[topic]
        state.read = state.sent = high_water
        state.halted = None
        self._queue_if_behind(topic, state)

    def on_halted(self, topic: str, reason: str) -> None:
        """``topic`` cannot go on until someone acts; other topics do. It may have nothing to copy yet."""
        self.topics.setdefault(topic, TopicCopy(BEFORE_ALL)).halted = reason

    def _queue_if_behind(self, topic: str, state: TopicCopy) -> None:
        if self.connected and state.halted is None and state.read < state.last and topic not in self._queued:
            self._queued.add(topic)
            self._behind.append(topic)
