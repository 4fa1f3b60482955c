"""The copy state machine with lanes, as plans use it: frames are acknowledged in any order, or never, and those that
were given up may arrive all the same, late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_copier_machine import CARRIED, FORWARDED, OTHER, OWN, Block, Sent, Source

from replicator.links.copier import Copier, Start
from snapshots.position import BEFORE_ALL, Position

TOPICS = ("a", "b", "c")
WINDOW_BYTES = 30
FRAME_BYTES = 6


@dataclass
class Frame:
    number: int
    lane: int
    size_bytes: int
    blocks: list[Sent]


class PlannedCopierMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.copier = Copier(window_bytes_max=WINDOW_BYTES)
        self.sources = {topic: Source() for topic in TOPICS}
        self.arrived: dict[str, list[Block]] = {topic: [] for topic in TOPICS}
        self.in_flight: list[Frame] = []
        self.unknown: list[Frame] = []
        """Given up, and perhaps still on their way."""

    @rule(
        topic=st.sampled_from(TOPICS),
        blocks=st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from((OWN, FORWARDED, OTHER))),
            min_size=1,
            max_size=8,
        ),
    )
    def publish(self, topic: str, blocks: list[tuple[int, int, str]]) -> None:
        for entries, size_bytes, origin in blocks:
            self.sources[topic].publish(entries, size_bytes, origin)
        self.copier.topic_moved(topic, self.sources[topic].log[-1].last, CARRIED)

    @precondition(lambda self: not self.copier.connected)
    @rule()
    def connect(self) -> None:
        self.copier.on_connected({topic: self._start(topic) for topic in TOPICS})

    @precondition(lambda self: self.copier.connected)
    @rule()
    def disconnect(self) -> None:
        self.copier.on_disconnected()
        self.unknown += self.in_flight
        self.in_flight.clear()

    @precondition(lambda self: not self.in_flight)
    @rule(lanes=st.integers(1, 3), some=st.booleans())
    def deal(self, lanes: int, some: bool) -> None:
        self.copier.deal(lanes, (lambda topic: topic < "c") if some else None)

    @precondition(lambda self: self.copier.connected)
    @rule(data=st.data(), times=st.integers(1, 4))
    def hand_out(self, data: Any, times: int) -> None:
        lane = data.draw(st.integers(0, self.copier.lanes - 1))
        for _ in range(times):
            self._hand_out(lane)

    def _hand_out(self, lane: int) -> bool:
        assert sum(frame.size_bytes for frame in self.in_flight if frame.lane == lane) < WINDOW_BYTES + FRAME_BYTES + 20
        blocks: list[Sent] = []
        size_bytes = 0
        while read := self.copier.next_read(size_bytes, lane=lane, frame_bytes_max=FRAME_BYTES):
            found, reached = self.sources[read.topic].read(read, read.bytes_max)
            for block in found:
                send = self.copier.on_block(read.topic, block.origin, block.origin_last)
                if send is not None:
                    assert hasattr(send, "previous")
                    blocks.append((read.topic, send.previous, send.left_out, block))
                    size_bytes += block.size_bytes
            self.copier.on_read(read.topic, reached)
        if blocks:
            number = self.copier.on_sent(size_bytes, lane=lane)
            self.in_flight.append(Frame(number, lane, size_bytes, blocks))
        else:
            self._check(self.copier.on_idle(lane=lane))
        return bool(blocks)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def report(self, data: Any) -> None:
        """Report one of the frames in flight, in any order, also within a lane. It arrives, or its topic is refused."""
        frame = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(frame)
        for topic in self._arrive(frame):
            if not self.copier.is_stale(topic, frame.number):
                self.copier.on_halted(topic, "refused")
        self._check(self.copier.on_acknowledged(frame.number))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        frame = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(frame)
        self.unknown.append(frame)
        for topic in self.copier.on_given_up(frame.number):
            self.copier.on_halted(topic, "it is not known what the destination has")

    @precondition(lambda self: self.unknown)
    @rule(data=st.data(), parts=st.integers(0, 3))
    def arrive_late(self, data: Any, parts: int) -> None:
        frame = data.draw(st.sampled_from(self.unknown))
        self.unknown.remove(frame)
        frame.blocks = frame.blocks[: len(frame.blocks) - parts]
        self._arrive(frame)

    @precondition(lambda self: self.copier.connected)
    @rule(probing=st.booleans())
    def settle(self, probing: bool) -> None:
        for topic, copy in self.copier.topics.items():
            if copy.halted is not None:
                self.copier.on_resumed(topic, self._start(topic), probing=probing)

    def _have(self, topic: str) -> dict[str, Position]:
        return {block.origin: block.origin_last for block in self.arrived[topic]}

    def _start(self, topic: str) -> Start:
        have, log = self._have(topic), self.sources[topic].log
        place = log[-1].last if log else BEFORE_ALL
        for index, block in enumerate(log):
            if block.origin in CARRIED and block.origin_last > have.get(block.origin, BEFORE_ALL):
                place = log[index - 1].last if index else BEFORE_ALL
                break
        return Start(place, have)

    def _arrive(self, frame: Frame) -> set[str]:
        """Apply the destination's rule: refuse a block with a hole before it, and its topic; drop a block that is
        here."""
        refused: set[str] = set()
        for topic, previous, _, block in frame.blocks:
            have = self._have(topic).get(block.origin, BEFORE_ALL)
            if topic in refused or previous > have:
                refused.add(topic)
            elif block.origin_last > have:
                self.arrived[topic].append(block)
        return refused

    def _check(self, moved: dict[str, Position]) -> None:
        """Check that the destination has everything that is acknowledged, since retention may take it."""
        for topic, place in moved.items():
            have = self._have(topic)
            for block in self.sources[topic].log:
                if block.last <= place and block.origin in CARRIED:
                    assert block.origin_last <= have.get(block.origin, BEFORE_ALL), (topic, place, block)

    @invariant()
    def invariants_2_and_3_each_origin_arrives_once_whole_and_in_its_order(self) -> None:
        for topic, blocks in getattr(self, "arrived", {}).items():
            for origin in CARRIED:
                here = [block for block in blocks if block.origin == origin]
                there = [block for block in self.sources[topic].log if block.origin == origin]
                assert here == there[: len(here)]

    def teardown(self) -> None:
        """Check invariant 2: once the link stays up and lanes report, everything arrives."""
        if not hasattr(self, "copier"):
            return
        if self.copier.connected:
            self.disconnect()
        self.copier.deal(3)
        self.connect()
        while any([self._hand_out(lane) for lane in range(3)]):  # noqa: C419 - every lane has its turn
            for frame in self.in_flight:
                assert self._arrive(frame) == set()
                self._check(self.copier.on_acknowledged(frame.number))
            self.in_flight.clear()
        for topic, source in self.sources.items():
            assert {block for block in source.log if block.origin in CARRIED} == set(self.arrived[topic])
            if source.log:
                assert self.copier.topics[topic].acknowledged == source.log[-1].last


TestPlannedCopierMachine = PlannedCopierMachine.TestCase
TestPlannedCopierMachine.settings = settings(max_examples=examples(30), stateful_step_count=40)
