"""The copy state machine between a model source and a model destination, with connections cut at any moment.

The source forwards one origin besides its own, and has copied another that the link must not carry. The forwarded
origin also comes to the destination on another way, and messages of it may be trimmed at the source.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.links.copier import Copier, Read, Start
from replicator.links.gaps import Gap
from snapshots.position import BEFORE_ALL, Position

TOPICS = ("a", "b", "c")
OWN, FORWARDED, OTHER = "own", "forwarded", "other"
CARRIED = frozenset({OWN, FORWARDED})
WINDOW_BYTES = 50
FRAME_BYTES_TARGET = 12
"""Target size for the model; the machine's own target only bounds a read, which the model source does by itself."""


@dataclass(frozen=True)
class Block:
    """Block of the source's log. ``origin_last`` is its last position at its origin, ``last`` that in this log."""

    last: Position
    size_bytes: int
    origin: str
    origin_last: Position


Sent = tuple[str, Position, bool, Block]


@dataclass
class Source:
    log: list[Block] = field(default_factory=list)
    ledger: int = 1
    following: int = 0
    published: dict[str, int] = field(default_factory=lambda: dict.fromkeys((FORWARDED, OTHER), 0))
    trimmed: dict[str, Position] = field(default_factory=dict)
    every: list[Block] = field(default_factory=list)
    """Also what was trimmed."""

    def publish(self, entries: int, size_bytes: int, origin: str) -> None:
        self.following += entries
        last = origin_last = Position(self.ledger, self.following - 1)
        if origin != OWN:
            self.published[origin] += entries
            origin_last = Position(9, self.published[origin] - 1)
        block = Block(last, size_bytes, origin, origin_last)
        self.log.append(block)
        self.every.append(block)

    def read(self, read: Read, bytes_max: int) -> tuple[list[Block], Position]:
        """Read as the store does: carried blocks up to a size but at least one. Return them, and how far the log was
        looked at."""
        found: list[Block] = []
        reached = read.after
        for block in self.log:
            if block.last <= read.after:
                continue
            if block.origin in read.origins:
                if found and sum(b.size_bytes for b in found) + block.size_bytes > bytes_max:
                    break
                found.append(block)
            reached = block.last
        return found, reached


class CopierMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.copier = Copier(window_bytes_max=WINDOW_BYTES)
        self.sources = {topic: Source() for topic in TOPICS}
        self.arrived: dict[str, list[Block]] = {topic: [] for topic in TOPICS}
        self.in_flight: deque[tuple[list[Sent], int]] = deque()
        self.halted: set[str] = set()

    @rule(
        topic=st.sampled_from(TOPICS),
        blocks=st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 30), st.sampled_from((OWN, FORWARDED, OTHER))),
            min_size=1,
            max_size=8,
        ),
    )
    def publish(self, topic: str, blocks: list[tuple[int, int, str]]) -> None:
        source = self.sources[topic]
        for entries, size_bytes, origin in blocks:
            source.publish(entries, size_bytes, origin)
        last = source.log[-1].last
        if topic in self.copier.topics and all(origin == OTHER for _, _, origin in blocks):
            for passed, place in self.copier.topic_passed(topic, last).items():
                self._check_acknowledged(passed, place)
        else:
            self.copier.topic_moved(topic, last, CARRIED)

    @rule(topic=st.sampled_from(TOPICS))
    def open_ledger(self, topic: str) -> None:
        self.sources[topic].ledger += 1
        self.sources[topic].following = 0

    @rule(topic=st.sampled_from(TOPICS), blocks=st.integers(1, 4))
    def trim(self, topic: str, blocks: int) -> None:
        """Trim the source's first ``blocks`` blocks of a topic, though the link has not copied them. The last stays."""
        source = self.sources[topic]
        gone, source.log = source.log[:-1][:blocks], source.log[:-1][blocks:] + source.log[-1:]
        for block in gone:
            source.trimmed[block.origin] = block.origin_last

    @rule(topic=st.sampled_from(TOPICS), blocks=st.integers(1, 3))
    def arrive_on_another_way(self, topic: str, blocks: int) -> None:
        """Bring forwarded entries to the destination from their origin, too, in order."""
        have = self._have(topic).get(FORWARDED, BEFORE_ALL)
        new = [each for each in self.sources[topic].every if each.origin == FORWARDED and each.origin_last > have]
        self.arrived[topic] += new[:blocks]

    @precondition(lambda self: not self.copier.connected)
    @rule()
    def connect(self) -> None:
        self.copier.on_connected({topic: self._start(topic) for topic in TOPICS})
        self.halted.clear()

    def _have(self, topic: str) -> dict[str, Position]:
        return {block.origin: block.origin_last for block in self.arrived[topic]}

    def _start(self, topic: str) -> Start:
        """Return the lowest place that a carried origin needs; everything that is missing now may be left out."""
        have, source = self._have(topic), self.sources[topic]
        place = source.log[-1].last if source.log else BEFORE_ALL
        for index, block in enumerate(source.log):
            if block.origin in CARRIED and block.origin_last > have.get(block.origin, BEFORE_ALL):
                place = source.log[index - 1].last if index else BEFORE_ALL
                break
        return Start(place, have, dict(source.trimmed))

    @precondition(lambda self: self.copier.connected)
    @rule(reach=st.integers(0, 8))
    def cut(self, reach: int) -> None:
        """Cut the connection. Some of the frames in flight arrive nevertheless; their answers do not."""
        self.copier.on_disconnected()
        for _ in range(min(reach, len(self.in_flight))):
            self._arrive()
        self.in_flight.clear()

    @precondition(lambda self: self.copier.connected)
    @rule()
    def send(self) -> None:
        self._send()

    def _send(self) -> bool:
        """Send one frame as the link's shell does. Return whether there was one to send."""
        window_was_open = sum(size for _, size in self.in_flight) < WINDOW_BYTES
        frame: list[Sent] = []
        size_bytes = 0
        while size_bytes < FRAME_BYTES_TARGET and (read := self.copier.next_read(size_bytes)) is not None:
            assert window_was_open, "read although the window was full"
            assert read.topic not in self.halted
            size_bytes += self._read(read, FRAME_BYTES_TARGET - size_bytes, frame)
        if frame:
            self.copier.on_sent(size_bytes)
            self.in_flight.append((frame, size_bytes))
        return bool(frame)

    def _read(self, read: Read, bytes_max: int, frame: list[Sent]) -> int:
        source = self.sources[read.topic]
        blocks, reached = source.read(read, bytes_max)
        size_bytes = 0
        for block in blocks:
            missing = source.trimmed.get(block.origin, BEFORE_ALL)
            send = self.copier.on_block(read.topic, block.origin, block.origin_last, missing)
            if isinstance(send, Gap):
                self.copier.on_halted(read.topic, send.detail, send)
                self.halted.add(read.topic)
                return size_bytes
            if send is not None:
                frame.append((read.topic, send.previous, send.left_out, block))
                size_bytes += block.size_bytes
        self.copier.on_read(read.topic, reached)
        return size_bytes

    @precondition(lambda self: self.in_flight)
    @rule()
    def acknowledge(self) -> None:
        self._arrive()
        for topic, place in self.copier.on_acknowledged().items():
            self._check_acknowledged(topic, place)

    @precondition(lambda self: self.copier.connected)
    @rule()
    def idle(self) -> None:
        for topic, place in self.copier.on_idle().items():
            self._check_acknowledged(topic, place)

    def _check_acknowledged(self, topic: str, place: Position) -> None:
        """Check that the destination has all blocks of the source's log up to ``place``: retention may take them."""
        have = self._have(topic)
        for block in self.sources[topic].log:
            if block.last <= place and block.origin in CARRIED:
                assert block.origin_last <= have.get(block.origin, BEFORE_ALL)

    def _arrive(self) -> None:
        """Apply the destination's rule: refuse a block with a hole before it, drop one that is here."""
        frame, _ = self.in_flight.popleft()
        for topic, previous, left_out, block in frame:
            have = self._have(topic).get(block.origin, BEFORE_ALL)
            assert previous <= have, "a block came whose predecessor is not here"
            assert block.origin in CARRIED, "a link carried what it must not"
            if block.origin_last > have:
                self._check_nothing_is_passed_over(topic, have, block, left_out)
                self.arrived[topic].append(block)

    def _check_nothing_is_passed_over(self, topic: str, have: Position, block: Block, left_out: bool) -> None:
        between = [
            each
            for each in self.sources[topic].every
            if each.origin == block.origin and have < each.origin_last < block.origin_last
        ]
        assert left_out or not between, f"{between} were passed over in silence before {block}"

    @precondition(lambda self: self.copier.connected and self.copier.topics)
    @rule(data=st.data())
    def halt(self, data: Any) -> None:
        topic = data.draw(st.sampled_from(sorted(self.copier.topics)))
        self.copier.on_halted(topic, "as the test says")
        self.halted.add(topic)

    @invariant()
    def invariant_3_each_origin_arrives_once_and_in_its_order(self) -> None:
        if not hasattr(self, "copier"):
            return
        for blocks in self.arrived.values():
            for origin in CARRIED:
                places = [block.origin_last for block in blocks if block.origin == origin]
                assert places == sorted(set(places))

    @invariant()
    def invariant_11_no_more_is_in_flight_than_the_window_and_one_frame(self) -> None:
        if not hasattr(self, "copier"):
            return
        assert self.copier.in_flight == len(self.in_flight)
        largest_frame = FRAME_BYTES_TARGET + 30
        assert sum(size for _, size in self.in_flight) < WINDOW_BYTES + largest_frame

    def teardown(self) -> None:
        """Check invariant 2: once the link stays up, everything in the source's log arrives."""
        if not hasattr(self, "copier"):
            return
        if self.copier.connected:
            self.cut(0)
        self.connect()
        while self._send() or self.in_flight:
            while self.in_flight:
                self.acknowledge()
        self.idle()
        for topic, source in self.sources.items():
            here = [block for block in source.log if block.origin in CARRIED]
            assert set(here) <= set(self.arrived[topic])
            if source.log:
                assert self.copier.topics[topic].acknowledged == source.log[-1].last
        assert self.copier.next_read() is None


TestCopierMachine = CopierMachine.TestCase
TestCopierMachine.settings = settings(max_examples=examples(75), stateful_step_count=40)
