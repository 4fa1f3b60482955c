"""The copy state machine of one link: what to read next, and what may be in flight. Pure; no clock, no I/O.

Invariants (DESIGN §3): 2, each entry is copied at most once and in the end once: the destination decides, this
machine only starts where the destination's high-water marks are; 3, blocks of an origin are sent in log order;
4, only blocks of the origins that the link may carry are read; 11, the bytes in flight are bounded.

1. Connected: for each topic the destination says the highest position that it has of every origin that the link
   carries. Reading starts at the lowest place here that any of them needs.
2. While there is room in the window, take the next topic that has more than was read, in turn, and read a piece.
3. A block that the destination has already is passed over. Any other is sent with the position that was sent before
   it of the same origin. The destination refuses a block whose predecessor it does not have, so frames that overtake
   each other or a destination that lost its data cannot make a hole.
4. Where messages of an origin are missing here before a block, it is sent only if they may be left out, and says so;
   else the topic has a gap and stops (:mod:`replicator.links.gaps`).
5. Disconnected: forget all but the topics; the next connection starts at 1. The link itself needs to store nothing.
6. A topic that is deleted at the source is forgotten. Made anew, it is another: it starts at its beginning, and what is
   in flight of the old one says nothing of it.
7. A refusal halts that topic, loudly, and no other. Where it may heal, the topic starts again once the destination was
   asked what it has, with one block; what was in flight of it until then does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.links.gaps import Gap
from snapshots.position import BEFORE_ALL, Position

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Large enough that the cost of a frame is small, small enough that one commit of it is short."""
WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Sent and not yet acknowledged; at 100 ms of round trip this allows 320 MB/s."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the blocks of ``origins`` of ``topic`` after the local position ``after``."""

    topic: str
    after: Position
    bytes_max: int
    origins: frozenset[str]


@dataclass(frozen=True, slots=True)
class Start:
    """Where the copying of a topic starts."""

    read: Position = BEFORE_ALL
    """The local position up to which the destination has everything that the link carries."""
    sent: Mapping[str, Position] = field(default_factory=dict)
    """By origin, what the destination has all up to."""
    passable: Mapping[str, Position] = field(default_factory=dict)
    """By origin, the position up to which what is missing here may be left out."""


@dataclass(frozen=True, slots=True)
class Send:
    """Put the block into the frame; ``previous`` was sent before it of its origin."""

    previous: Position
    left_out: bool


@dataclass(slots=True)
class TopicCopy:
    """How far one topic is."""

    last: Position
    """The source's LAC."""
    origins: frozenset[str]
    read: Position = BEFORE_ALL
    """The local position up to which the log was read."""
    acknowledged: Position = BEFORE_ALL
    """The local position up to which the destination has what it is to have; kept while not connected."""
    sent: dict[str, Position] = field(default_factory=dict)
    """By origin, the origin position of the last entry that was sent."""
    passable: dict[str, Position] = field(default_factory=dict)
    probing: bool = False
    """Whether it is tried with one piece, since what was sent before was refused."""
    halted: str | None = None
    gap: Gap | None = None
    """Why it is halted, if that is a gap."""

    def start(self, start: Start) -> None:
        self.read = self.acknowledged = min(start.read, self.last)
        self.sent, self.passable = dict(start.sent), dict(start.passable)
        self.probing = False
        self.halted = self.gap = None


@dataclass(frozen=True, slots=True)
class _Frame:
    size_bytes: int
    reached: dict[str, Position]
    outdated: set[str] = field(default_factory=set)
    """Topics of which what is in the frame says nothing any more: they were made anew, or started again, since."""


class Copier:
    """Decides for one link. Events come in by the methods; :meth:`next_read` says what to do."""

    def __init__(self, *, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.topics: dict[str, TopicCopy] = {}
        self.connected = False
        self._window_bytes_max = window_bytes_max
        self._in_flight: deque[_Frame] = deque()
        self._in_flight_bytes = 0
        self._reached: dict[str, Position] = {}
        """How far topics were read since the last frame was sent."""
        self._behind: deque[str] = deque()
        self._queued: set[str] = set()

    @property
    def in_flight(self) -> int:
        """Frames that are sent and not acknowledged."""
        return len(self._in_flight)

    def topic_moved(self, topic: str, last: Position, origins: frozenset[str]) -> None:
        """The source's LAC of ``topic``, of which the link carries ``origins``, is now ``last``."""
        state = self.topics.get(topic)
        if state is None:
            state = self.topics[topic] = TopicCopy(last, origins)
        assert last >= state.last, f"the LAC of {topic} went back from {state.last} to {last}"
        state.last = last
        self._queue_if_behind(topic, state)

    def on_connected(self, starts: Mapping[str, Start]) -> None:
        """The destination has what ``starts`` say; topics not named it has nothing of."""
        assert not self.connected
        self.connected = True
        for topic, state in self.topics.items():
            state.start(starts.get(topic, Start()))
            self._queue_if_behind(topic, state)

    def on_disconnected(self) -> None:
        """Nothing that was in flight counts as arrived."""
        self.connected = False
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._reached = {}
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
                bytes_max = 1 if state.probing else FRAME_BYTES_TARGET - frame_bytes
                return Read(topic, state.read, bytes_max, state.origins)
        return None

    def on_block(self, topic: str, origin: str, last: Position, missing: Position = BEFORE_ALL) -> Send | Gap | None:
        """What to do with a block that was read, which ends at position ``last`` of ``origin``; None to pass over it.

        ``missing`` is the newest message of that origin before the block that is not here.
        """
        state = self.topics[topic]
        assert origin in state.origins, f"a block of {origin} in {topic} is not for this link"
        previous = state.sent.get(origin, BEFORE_ALL)
        if last <= previous:
            return None
        left_out = missing > previous
        if left_out and missing > state.passable.get(origin, BEFORE_ALL):
            return Gap.trimmed(origin, previous, missing)
        state.sent[origin] = last
        return Send(previous, left_out)

    def on_read(self, topic: str, reached: Position) -> None:
        """The log of ``topic`` was read up to ``reached``, whether or not something there is to be copied."""
        state = self.topics[topic]
        assert reached > state.read, f"reading {topic} after {state.read} reached {reached}"
        state.read = self._reached[topic] = reached
        self._queue_if_behind(topic, state)

    def on_sent(self, size_bytes: int) -> None:
        """A frame of that many bytes was sent, with all that was read since the one before it."""
        self._in_flight.append(_Frame(size_bytes, self._reached))
        self._in_flight_bytes += size_bytes
        self._reached = {}

    def on_acknowledged(self) -> dict[str, Position]:
        """The oldest frame in flight is durable at the destination, but for what it refused, whose topics are halted.

        Returns by topic up to where the destination now has what it is to have.
        """
        frame = self._in_flight.popleft()
        self._in_flight_bytes -= frame.size_bytes
        return self._advance(frame.reached)

    def outdated(self, topic: str) -> bool:
        """Whether what the oldest frame in flight has of ``topic`` is of no matter any more, and so no refusal of it:
        the topic was forgotten or started again after the frame was sent."""
        return topic in self._in_flight[0].outdated

    def on_idle(self) -> dict[str, Position]:
        """The same for what was read since the last frame, when nothing in it was to be copied."""
        if self._in_flight:
            return {}
        reached, self._reached = self._reached, {}
        return self._advance(reached)

    def _advance(self, reached: Mapping[str, Position]) -> dict[str, Position]:
        moved: dict[str, Position] = {}
        for topic, position in reached.items():
            state = self.topics.get(topic)
            if state is not None and state.halted is None and position > state.acknowledged:
                state.acknowledged = moved[topic] = position
                if state.probing:
                    state.probing = False
                    self._queue_if_behind(topic, state)
        return moved

    def topic_gone(self, topic: str) -> TopicCopy | None:
        """The source has no such topic any more, or it is not to be copied; returns how far it was."""
        self._outdate(topic)
        return self.topics.pop(topic, None)

    def on_resumed(self, topic: str, start: Start, *, probing: bool = False) -> None:
        """What halted ``topic`` is over. What is still in flight of it does not count: it may have been refused. With
        ``probing`` that is to be seen: no more than a block of it is sent before the destination has taken that."""
        state = self.topics[topic]
        state.start(start)
        state.probing = probing
        self._outdate(topic)
        self._queue_if_behind(topic, state)

    def _outdate(self, topic: str) -> None:
        self._reached.pop(topic, None)
        for frame in self._in_flight:
            frame.reached.pop(topic, None)
            frame.outdated.add(topic)

    def on_halted(self, topic: str, reason: str, gap: Gap | None = None) -> bool:
        """``topic`` cannot go on until someone acts; other topics do. Returns whether that is news."""
        state = self.topics[topic]
        news = state.halted != reason
        state.halted, state.gap = reason, gap
        return news

    def _queue_if_behind(self, topic: str, state: TopicCopy) -> None:
        if state.probing and state.read > state.acknowledged:
            return
        if self.connected and state.halted is None and state.read < state.last and topic not in self._queued:
            self._queued.add(topic)
            self._behind.append(topic)
