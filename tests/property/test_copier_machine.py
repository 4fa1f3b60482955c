"""The copy state machine between a model source and a model destination, with connections cut at any moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.links.copier import Copier
from snapshots.position import BEFORE_ALL, Position

TOPICS = ("a", "b", "c")
WINDOW_BYTES = 50
FRAME_BYTES_TARGET = 12
"""For the model; the machine's own target only bounds a read, which the model source does by itself."""


@dataclass(frozen=True)
class Block:
    """A block of the source's log; only its own are to be copied."""

    last: Position
    size_bytes: int
    own: bool


Sent = tuple[str, Position, Block]


@dataclass
class Source:
    log: list[Block] = field(default_factory=list)
    ledger: int = 1
    following: int = 0

    def read(self, after: Position, bytes_max: int) -> tuple[list[Block], Position]:
        """As the store reads: own blocks up to a size but at least one, and how far the log was looked at."""
        found: list[Block] = []
        reached = after
        for block in self.log:
            if block.last <= after:
                continue
            if block.own:
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
        blocks=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30), st.booleans()), min_size=1, max_size=8),
    )
    def publish(self, topic: str, blocks: list[tuple[int, int, bool]]) -> None:
        source = self.sources[topic]
        for entries, size_bytes, copied_here in blocks:
            source.following += entries
            source.log.append(Block(Position(source.ledger, source.following - 1), size_bytes, not copied_here))
        self.copier.topic_moved(topic, source.log[-1].last)

    @rule(topic=st.sampled_from(TOPICS))
    def open_ledger(self, topic: str) -> None:
        self.sources[topic].ledger += 1
        self.sources[topic].following = 0

    @precondition(lambda self: not self.copier.connected)
    @rule()
    def connect(self) -> None:
        self.copier.on_connected({topic: blocks[-1].last for topic, blocks in self.arrived.items() if blocks})
        self.halted.clear()

    @precondition(lambda self: self.copier.connected)
    @rule(reach=st.integers(0, 8))
    def cut(self, reach: int) -> None:
        """Some of the frames in flight arrive nevertheless; their answers do not."""
        self.copier.on_disconnected()
        for _ in range(min(reach, len(self.in_flight))):
            self._arrive()
        self.in_flight.clear()

    @precondition(lambda self: self.copier.connected)
    @rule()
    def send(self) -> None:
        self._send()

    def _send(self) -> bool:
        """What the link's shell does for one frame."""
        window_was_open = sum(size for _, size in self.in_flight) < WINDOW_BYTES
        frame: list[Sent] = []
        size_bytes = 0
        while size_bytes < FRAME_BYTES_TARGET and (read := self.copier.next_read(size_bytes)) is not None:
            assert window_was_open, "read although the window was full"
            assert read.topic not in self.halted
            blocks, reached = self.sources[read.topic].read(read.after, FRAME_BYTES_TARGET - size_bytes)
            for block in blocks:
                frame.append((read.topic, self.copier.on_block(read.topic, block.last), block))
                size_bytes += block.size_bytes
            self.copier.on_read(read.topic, reached)
        if frame:
            self.copier.on_sent(size_bytes)
            self.in_flight.append((frame, size_bytes))
        return bool(frame)

    @precondition(lambda self: self.in_flight)
    @rule()
    def acknowledge(self) -> None:
        self._arrive()
        self.copier.on_acknowledged()

    def _arrive(self) -> None:
        """The destination's rule: refuse what has a hole before it, drop what is here."""
        frame, _ = self.in_flight.popleft()
        for topic, previous, block in frame:
            have = self.arrived[topic][-1].last if self.arrived[topic] else BEFORE_ALL
            assert previous <= have, "a block came whose predecessor is not here"
            assert block.own, "a link carried what its source did not originate"
            if block.last > have:
                self.arrived[topic].append(block)

    @precondition(lambda self: self.copier.connected and self.copier.topics)
    @rule(data=st.data())
    def halt(self, data: Any) -> None:
        topic = data.draw(st.sampled_from(sorted(self.copier.topics)))
        self.copier.on_halted(topic, "as the test says")
        self.halted.add(topic)

    @invariant()
    def invariant_3_what_arrived_is_a_prefix_of_what_was_published(self) -> None:
        if not hasattr(self, "copier"):
            return
        for topic, blocks in self.arrived.items():
            own = [block for block in self.sources[topic].log if block.own]
            assert blocks == own[: len(blocks)]

    @invariant()
    def invariant_11_no_more_is_in_flight_than_the_window_and_one_frame(self) -> None:
        if not hasattr(self, "copier"):
            return
        assert self.copier.in_flight == len(self.in_flight)
        largest_frame = FRAME_BYTES_TARGET + 30
        assert sum(size for _, size in self.in_flight) < WINDOW_BYTES + largest_frame

    def teardown(self) -> None:
        """Invariant 2: when the link is up and stays up, everything arrives."""
        if not hasattr(self, "copier"):
            return
        if self.copier.connected:
            self.cut(0)
        self.connect()
        while self._send() or self.in_flight:
            while self.in_flight:
                self.acknowledge()
        for topic, source in self.sources.items():
            assert self.arrived[topic] == [block for block in source.log if block.own]
        assert self.copier.next_read() is None


TestCopierMachine = CopierMachine.TestCase
TestCopierMachine.settings = settings(max_examples=150, stateful_step_count=40)
