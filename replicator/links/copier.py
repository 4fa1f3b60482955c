"""State machine of one link's copying: it decides what to read next and what may be in flight. Pure; no clock, no I/O.

Invariants (DESIGN §3): 2, each entry is copied at most once and in the end once: the destination decides, this
machine only starts where the destination's high-water marks are; 3, blocks of an origin are sent in log order;
4, only blocks of the origins that the link may carry are read; 11, the bytes in flight are bounded.

1. Connected: for each topic the destination says the highest position that it has of every origin that the link
   carries. Reading starts at the lowest place here that any of them needs.
2. Topics are dealt to lanes by a hash of their names. Each lane does the following steps alone, so lanes can be carried
   in parallel. While the lane's window has room, take in turn its next topic that is not fully read, and read a piece.
3. A block that the destination has already is passed over. Any other is sent together with the previous position of
   the same origin. The destination refuses a block whose predecessor it does not have, so frames that overtake
   each other or a destination that lost its data cannot make a hole.
4. Where messages of an origin are missing here before a block, it is sent only if they may be left out, and says so;
   else the topic has a gap and stops (:mod:`replicator.links.gaps`).
5. Disconnected: forget all but the topics; the next connection starts at 1. The link itself needs to store nothing.
6. A topic that is deleted at the source is forgotten. Made anew, it is another: it starts at its beginning, and what is
   in flight of the old one says nothing of it.
7. A refusal halts that topic, loudly, and no other. Where it may heal, the topic starts again once the destination was
   asked what it has, with one block; what was in flight of it until then does not count.
8. Frames may be acknowledged in any order. A topic counts as acknowledged only up to its first unacknowledged frame.
   A frame that is given up says nothing: its topics start again once the destination was asked what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final
from zlib import crc32

from replicator.links.gaps import Gap
from snapshots.position import BEFORE_ALL, Position

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Size of a frame. It is large enough that a frame's cost is small, and small enough that its commit is short."""
WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of a lane that are sent and not acknowledged. With a round trip of 100 ms this allows 320 MB/s."""
LANES_MAX: Final = 64
"""Most lanes of a link, more than it can use: a lane carries tens of megabytes a second."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the blocks of ``origins`` of ``topic`` after the local position ``after``."""

    topic: str
    after: Position
    bytes_max: int
    origins: frozenset[str]


@dataclass(frozen=True, slots=True)
class Start:
    """Positions at which the copying of a topic starts."""

    read: Position = BEFORE_ALL
    """The local position up to which the destination has everything that the link carries."""
    sent: Mapping[str, Position] = field(default_factory=dict)
    """For each origin, the position up to which the destination has everything."""
    passable: Mapping[str, Position] = field(default_factory=dict)
    """For each origin, the position up to which messages that are missing here may be left out."""


@dataclass(frozen=True, slots=True)
class Send:
    """Decision to put a block into the frame. ``previous`` is the position of its origin that was sent before it."""

    previous: Position
    left_out: bool
    note: bool = False
    """Whether the frame gets only a note that the block was left out, as the block is not for the destination."""


@dataclass(slots=True)
class TopicCopy:
    """State of the copying of one topic: how far it was read, sent and acknowledged, and why it is halted."""

    last: Position
    """Position of the last entry that is durable in the source's log (LAC)."""
    origins: frozenset[str]
    read: Position = BEFORE_ALL
    """The local position up to which the log was read."""
    acknowledged: Position = BEFORE_ALL
    """The local position up to which the destination has everything that it should have. It is kept while
    disconnected."""
    sent: dict[str, Position] = field(default_factory=dict)
    """For each origin, the origin position of the last entry that was sent."""
    passable: dict[str, Position] = field(default_factory=dict)
    probing: bool = False
    """Whether the topic sends one block only, to see if the destination takes it after a refusal."""
    halted: str | None = None
    gap: Gap | None = None
    """Gap that halts the topic; None if another reason does."""

    def start(self, start: Start) -> None:
        self.read = self.acknowledged = min(start.read, self.last)
        self.sent, self.passable = dict(start.sent), dict(start.passable)
        self.probing = False
        self.halted = self.gap = None


@dataclass(frozen=True, slots=True)
class _Frame:
    lane: _Lane
    size_bytes: int
    reached: dict[str, Position]
    published_ms: int | None = None
    """Time at which the oldest block of the frame was published; None if it has no blocks."""
    outdated: set[str] = field(default_factory=set)
    """Topics whose part of the frame does not count any more. They were deleted, made anew or started again since it
    was sent."""


@dataclass(slots=True)
class _Lane:
    behind: deque[str] = field(default_factory=deque)
    queued: set[str] = field(default_factory=set)
    reached: dict[str, Position] = field(default_factory=dict)
    """For each topic, the position up to which it was read since the last frame was sent."""
    in_flight: int = 0
    in_flight_bytes: int = 0


class Copier:
    """State machine of one link. Events come in by its methods, and :meth:`next_read` says what to read."""

    def __init__(self, *, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.topics: dict[str, TopicCopy] = {}
        self.connected = False
        self._window_bytes_max = window_bytes_max
        self._lanes = [_Lane()]
        self._only: Callable[[str], bool] | None = None
        self._in_flight: dict[int, _Frame] = {}
        """Frames in flight by number, in the order in which they were sent."""
        self._frames = 0
        """Number of frames that were sent so far. It is the number of the last frame; no number is used twice."""

    @property
    def in_flight(self) -> int:
        """Number of frames that are sent and not acknowledged."""
        return len(self._in_flight)

    @property
    def in_flight_bytes(self) -> int:
        return sum(lane.in_flight_bytes for lane in self._lanes)

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def is_behind(self, *, lane: int = 0) -> bool:
        """Return whether the lane has topics with entries that were not read yet."""
        return bool(self._lanes[lane].behind)

    def topic_moved(self, topic: str, last: Position, origins: frozenset[str]) -> None:
        """Record that the source's log of ``topic`` now ends at ``last``. The link carries its ``origins``."""
        state = self.topics.get(topic)
        if state is None:
            state = self.topics[topic] = TopicCopy(last, origins)
        assert last >= state.last, f"the LAC of {topic} went back from {state.last} to {last}"
        state.last = last
        self._queue_if_behind(topic, state)

    def topic_passed(self, topic: str, last: Position) -> dict[str, Position]:
        """Record that the log of a known ``topic`` grew up to ``last`` by entries that this link does not carry.

        If all entries before them were read, they count as read. Return the topics whose acknowledged position moved,
        as :meth:`on_idle` does.
        """
        state = self.topics[topic]
        assert last >= state.last, f"the LAC of {topic} went back from {state.last} to {last}"
        before, state.last = state.last, last
        if not self.connected or state.halted is not None or state.read != before:
            self._queue_if_behind(topic, state)
            return {}
        state.read = last
        if state.acknowledged == before:  # nothing of it is in flight
            state.acknowledged = last
            return {topic: last}
        self._lane(topic).reached[topic] = last
        return {}

    def on_connected(self, starts: Mapping[str, Start]) -> None:
        """Start each topic at its position in ``starts``. The destination has nothing of a topic that is not in it."""
        assert not self.connected
        self.connected = True
        for topic, state in self.topics.items():
            state.start(starts.get(topic, Start()))
            self._queue_if_behind(topic, state)

    def on_disconnected(self) -> None:
        """Forget all frames in flight: none of them counts as arrived."""
        self.connected = False
        self._in_flight.clear()
        self._lanes = [_Lane() for _ in self._lanes]

    def deal(self, lanes: int, only: Callable[[str], bool] | None = None) -> None:
        """Distribute the topics over ``lanes`` lanes, and read only the topics that ``only`` accepts. No frame may
        be in flight."""
        assert not self._in_flight, f"{len(self._in_flight)} frames are in flight"
        assert 0 < lanes <= LANES_MAX
        if only is self._only and lanes == len(self._lanes):
            return
        before, self._lanes, self._only = self._lanes, [_Lane() for _ in range(lanes)], only
        for lane in before:
            for topic, position in lane.reached.items():
                self._lane(topic).reached[topic] = position
        for topic, state in self.topics.items():
            self._queue_if_behind(topic, state)

    def next_read(self, frame_bytes: int = 0, *, lane: int = 0, frame_bytes_max: int | None = None) -> Read | None:
        """Return the next read for a frame of ``lane``; None if there is nothing to read or no room.

        The frame has ``frame_bytes`` already.
        """
        dealt = self._lanes[lane]
        frame_bytes_max = FRAME_BYTES_TARGET if frame_bytes_max is None else frame_bytes_max
        if not self.connected or dealt.in_flight_bytes >= self._window_bytes_max:
            return None
        while dealt.behind and frame_bytes < frame_bytes_max:
            topic = dealt.behind.popleft()
            dealt.queued.discard(topic)
            state = self.topics.get(topic)
            if state is not None and state.halted is None and state.read < state.last:
                bytes_max = 1 if state.probing else frame_bytes_max - frame_bytes
                return Read(topic, state.read, bytes_max, state.origins)
        return None

    def on_block(self, topic: str, origin: str, last: Position, missing: Position = BEFORE_ALL) -> Send | Gap | None:
        """Return what to do with a block that was read; None to pass over it.

        The block ends at position ``last`` of ``origin``. ``missing`` is the newest message of that origin before the
        block that this cluster does not have.
        """
        state = self.topics[topic]
        assert origin in state.origins, f"a block of {origin} in {topic} is not for this link"
        previous = state.sent.get(origin, BEFORE_ALL)
        if last <= previous:
            return None
        left_out = missing > previous
        if left_out and missing > state.passable.get(origin, BEFORE_ALL):
            return Gap.trimmed({origin: (previous, missing)})
        state.sent[origin] = last
        return Send(previous, left_out)

    def on_filtered(self, topic: str, origin: str, upto: Position, missing: Position) -> None:
        """Record that other links' SQL left out the missing messages of ``origin`` between ``missing`` and ``upto``.

        If nothing up to ``missing`` is still to be sent, this link may leave them out, too.
        """
        state = self.topics[topic]
        passable = state.passable.get(origin, BEFORE_ALL)
        if missing <= max(passable, state.sent.get(origin, BEFORE_ALL)):
            state.passable[origin] = max(passable, upto)

    def on_read(self, topic: str, reached: Position) -> None:
        """Record that the log of ``topic`` was read up to ``reached``, even if nothing there is to be copied."""
        state = self.topics[topic]
        assert reached > state.read, f"reading {topic} after {state.read} reached {reached}"
        state.read = self._lane(topic).reached[topic] = reached
        self._queue_if_behind(topic, state)

    def on_sent(self, size_bytes: int, *, lane: int = 0, published_ms: int | None = None) -> int:
        """Record that a frame of ``size_bytes`` was sent, and return its number.

        It contains everything that was read in its lane since the frame before. Its oldest block was published at
        ``published_ms``.
        """
        dealt = self._lanes[lane]
        self._frames += 1
        self._in_flight[self._frames] = _Frame(dealt, size_bytes, dealt.reached, published_ms)
        dealt.in_flight += 1
        dealt.in_flight_bytes += size_bytes
        dealt.reached = {}
        return self._frames

    def published_ms(self, number: int | None = None) -> int | None:
        """Return when the oldest block of frame ``number`` was published. Without a number, the oldest frame in
        flight counts."""
        return self._in_flight[next(iter(self._in_flight)) if number is None else number].published_ms

    def on_acknowledged(self, number: int | None = None) -> dict[str, Position]:
        """Record that frame ``number`` is durable at the destination. Without a number, it is the oldest frame in
        flight.

        Topics that the destination refused are halted. Return, for each other topic that moved, the position up to
        which the destination now has everything that it should have.
        """
        number = next(iter(self._in_flight)) if number is None else number
        reached = self._landed(number).reached
        before = list(takewhile(lambda each: each < number, self._in_flight))
        for earlier in (self._in_flight[each] for each in reversed(before)):
            for topic in reached.keys() & earlier.reached.keys():
                earlier.reached[topic] = reached.pop(topic)
        return self._advance(reached)

    def on_given_up(self, number: int) -> list[str]:
        """Record that nobody will report what became of frame ``number``.

        Return its topics. They do not go on before they are started again.
        """
        topics = [topic for topic in self._landed(number).reached if topic in self.topics]
        for topic in topics:
            self._invalidate(topic)
        return topics

    def _landed(self, number: int) -> _Frame:
        frame = self._in_flight.pop(number)
        frame.lane.in_flight -= 1
        frame.lane.in_flight_bytes -= frame.size_bytes
        return frame

    def is_stale(self, topic: str, number: int | None = None) -> bool:
        """Return whether the part of ``topic`` in frame ``number`` does not count any more, so that a refusal does not,
        either.

        That is so if the topic was forgotten or started again after the frame was sent. Without a number, the oldest
        frame in flight counts.
        """
        number = next(iter(self._in_flight)) if number is None else number
        return topic in self._in_flight[number].outdated

    def on_idle(self, *, lane: int = 0) -> dict[str, Position]:
        """Record as acknowledged what was read since the lane's last frame. Call this only if nothing of it is copied.

        Return, for each topic that moved, its new acknowledged position. Nothing moves while a frame of the lane is in
        flight.
        """
        dealt = self._lanes[lane]
        if dealt.in_flight:
            return {}
        reached, dealt.reached = dealt.reached, {}
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
        """Forget ``topic``, which was deleted at the source or is no longer copied. Return its state; None if it is
        unknown."""
        self._invalidate(topic)
        return self.topics.pop(topic, None)

    def on_resumed(self, topic: str, start: Start, *, probing: bool = False) -> None:
        """Resume copying ``topic`` at ``start``: the cause of its halt is gone. Frames in flight no longer count for
        it.

        With ``probing``, the cause may not be gone. Then the next block is sent alone, until the destination has taken
        it.
        """
        state = self.topics[topic]
        state.start(start)
        state.probing = probing
        self._invalidate(topic)
        self._queue_if_behind(topic, state)

    def _invalidate(self, topic: str) -> None:
        self._lane(topic).reached.pop(topic, None)
        for frame in self._in_flight.values():
            frame.reached.pop(topic, None)
            frame.outdated.add(topic)

    def on_halted(self, topic: str, reason: str, gap: Gap | None = None) -> bool:
        """Halt ``topic`` until someone acts; other topics go on. Return whether ``reason`` is new."""
        state = self.topics[topic]
        news = state.halted != reason
        state.halted, state.gap = reason, gap
        return news

    def _lane(self, topic: str) -> _Lane:
        return self._lanes[0] if len(self._lanes) == 1 else self._lanes[crc32(topic.encode()) % len(self._lanes)]

    def _queue_if_behind(self, topic: str, state: TopicCopy) -> None:
        if state.probing and state.read > state.acknowledged:
            return
        if not self.connected or state.halted is not None or state.read >= state.last:
            return
        lane = self._lane(topic)
        if topic not in lane.queued and (self._only is None or self._only(topic)):
            lane.queued.add(topic)
            lane.behind.append(topic)
