"""The copy state machine of one link: what to read next, and what may be in flight. Pure; no clock, no I/O.

Invariants (DESIGN §3): 2, each entry is copied at most once and in the end once: the destination decides, this
machine only starts where the destination's high-water marks are; 3, blocks of an origin are sent in log order;
4, only blocks of the origins that the link may carry are read; 11, the bytes in flight are bounded.

1. Connected: for each topic the destination says the highest position that it has of every origin that the link
   carries. Reading starts at the lowest place here that any of them needs.
2. Topics are dealt to lanes by a hash of their names; what follows is each lane's own, so that lanes can be carried
   beside each other. While there is room in the lane's window, take its next topic that has more than was read, in
   turn, and read a piece.
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
8. Frames may be acknowledged in any order. A topic is acknowledged only up to its first frame that is not: of what a
   later frame has of it, the frame before takes charge. A frame that is given up says nothing: its topics start again
   once the destination was asked what it has.
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
"""Large enough that the cost of a frame is small, small enough that one commit of it is short."""
WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a lane, sent and not yet acknowledged; at 100 ms of round trip this allows 320 MB/s."""
LANES_MAX: Final = 64
"""More than a link has use for: a lane carries tens of megabytes a second."""


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
    note: bool = False
    """Not the block itself, which is not for the destination, but a note that it was left out."""


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
    lane: _Lane
    size_bytes: int
    reached: dict[str, Position]
    published_ms: int | None = None
    """When its oldest block was published; None if it has none."""
    outdated: set[str] = field(default_factory=set)
    """Topics of which what is in the frame says nothing any more: they were made anew, or started again, since."""


@dataclass(slots=True)
class _Lane:
    behind: deque[str] = field(default_factory=deque)
    queued: set[str] = field(default_factory=set)
    reached: dict[str, Position] = field(default_factory=dict)
    """How far topics were read since the last frame was sent."""
    in_flight: int = 0
    in_flight_bytes: int = 0


class Copier:
    """Decides for one link. Events come in by the methods; :meth:`next_read` says what to do."""

    def __init__(self, *, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.topics: dict[str, TopicCopy] = {}
        self.connected = False
        self._window_bytes_max = window_bytes_max
        self._lanes = [_Lane()]
        self._only: Callable[[str], bool] | None = None
        self._in_flight: dict[int, _Frame] = {}
        """By number, in the order in which they were sent."""
        self._frames = 0
        """Sent ever; their numbers are not used again."""

    @property
    def in_flight(self) -> int:
        """Frames that are sent and not acknowledged."""
        return len(self._in_flight)

    @property
    def in_flight_bytes(self) -> int:
        return sum(lane.in_flight_bytes for lane in self._lanes)

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def is_behind(self, *, lane: int = 0) -> bool:
        """Return whether topics of the lane have more than was read."""
        return bool(self._lanes[lane].behind)

    def topic_moved(self, topic: str, last: Position, origins: frozenset[str]) -> None:
        """The source's LAC of ``topic``, of which the link carries ``origins``, is now ``last``."""
        state = self.topics.get(topic)
        if state is None:
            state = self.topics[topic] = TopicCopy(last, origins)
        assert last >= state.last, f"the LAC of {topic} went back from {state.last} to {last}"
        state.last = last
        self._queue_if_behind(topic, state)

    def topic_passed(self, topic: str, last: Position) -> dict[str, Position]:
        """As :meth:`topic_moved`, by entries none of which the link carries, of a topic that it knows: where all before
        them was read they count as read, unseen. Returns what :meth:`on_idle` does."""
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
        self._lanes = [_Lane() for _ in self._lanes]

    def deal(self, lanes: int, only: Callable[[str], bool] | None = None) -> None:
        """From now on there are so many lanes, and only the topics that ``only`` lets through are read. Nothing may be
        in flight."""
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
        """What to read next for a frame of ``lane`` that has ``frame_bytes`` already; None if there is nothing or no
        room."""
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

    def on_filtered(self, topic: str, origin: str, upto: Position, missing: Position) -> None:
        """Of that origin the SQL of other links left out what is not here up to ``upto``, all but what is up to
        ``missing``: if none of that is still to be sent, the rest may be left out here too."""
        state = self.topics[topic]
        passable = state.passable.get(origin, BEFORE_ALL)
        if missing <= max(passable, state.sent.get(origin, BEFORE_ALL)):
            state.passable[origin] = max(passable, upto)

    def on_read(self, topic: str, reached: Position) -> None:
        """The log of ``topic`` was read up to ``reached``, whether or not something there is to be copied."""
        state = self.topics[topic]
        assert reached > state.read, f"reading {topic} after {state.read} reached {reached}"
        state.read = self._lane(topic).reached[topic] = reached
        self._queue_if_behind(topic, state)

    def on_sent(self, size_bytes: int, *, lane: int = 0, published_ms: int | None = None) -> int:
        """A frame of that many bytes was sent, with all that was read in its lane since the one before it, of which the
        oldest was published then. Returns its number."""
        dealt = self._lanes[lane]
        self._frames += 1
        self._in_flight[self._frames] = _Frame(dealt, size_bytes, dealt.reached, published_ms)
        dealt.in_flight += 1
        dealt.in_flight_bytes += size_bytes
        dealt.reached = {}
        return self._frames

    def published_ms(self, number: int | None = None) -> int | None:
        """When the oldest block of a frame in flight was published, of the oldest frame if none is named."""
        return self._in_flight[next(iter(self._in_flight)) if number is None else number].published_ms

    def on_acknowledged(self, number: int | None = None) -> dict[str, Position]:
        """A frame in flight, the oldest if none is named, is durable at the destination, but for what it refused, whose
        topics are halted.

        Returns by topic up to where the destination now has what it is to have.
        """
        number = next(iter(self._in_flight)) if number is None else number
        reached = self._landed(number).reached
        before = list(takewhile(lambda each: each < number, self._in_flight))
        for earlier in (self._in_flight[each] for each in reversed(before)):
            for topic in reached.keys() & earlier.reached.keys():
                earlier.reached[topic] = reached.pop(topic)
        return self._advance(reached)

    def on_given_up(self, number: int) -> list[str]:
        """Nobody will say what became of that frame. Returns its topics: they do not go on before they were started
        again."""
        topics = [topic for topic in self._landed(number).reached if topic in self.topics]
        for topic in topics:
            self._outdate(topic)
        return topics

    def _landed(self, number: int) -> _Frame:
        frame = self._in_flight.pop(number)
        frame.lane.in_flight -= 1
        frame.lane.in_flight_bytes -= frame.size_bytes
        return frame

    def outdated(self, topic: str, number: int | None = None) -> bool:
        """Whether what a frame in flight, the oldest if none is named, has of ``topic`` is of no matter any more, and
        so no refusal of it: the topic was forgotten or started again after the frame was sent."""
        number = next(iter(self._in_flight)) if number is None else number
        return topic in self._in_flight[number].outdated

    def on_idle(self, *, lane: int = 0) -> dict[str, Position]:
        """The same for what was read since the lane's last frame, when nothing in it was to be copied."""
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
        self._lane(topic).reached.pop(topic, None)
        for frame in self._in_flight.values():
            frame.reached.pop(topic, None)
            frame.outdated.add(topic)

    def on_halted(self, topic: str, reason: str, gap: Gap | None = None) -> bool:
        """``topic`` cannot go on until someone acts; other topics do. Returns whether that is news."""
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
