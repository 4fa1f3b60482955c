"""Walks through a log end, whatever was appended, marked, found to be a duplicate, compacted and trimmed.

Each walk is compared with what looking at every position finds. It has a limit of steps: one without an end fails.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from compaction_support import keyed
from duplicates_support import ON, copy, numbered
from engine_support import TOPIC, marker, opened
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from step_limit import at_most_steps

from replicator.api.admin.peeking import _nth
from replicator.engine.engine import Engine
from replicator.engine.log.last_message import last_message
from replicator.engine.log.log_index import LogIndex, ViewIndex
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.merging import Merging
from replicator.engine.topic import Topic
from replicator.failover.positions import Positions
from replicator.links.gaps import Mark
from replicator.links.route import Route
from replicator.links.start_positions import StartPositions
from replicator.sync.marker_log import Counters, MarkerLog
from replicator.topology import Link, Topology
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

WALK_LINES_MAX = 20_000
"""Lines of Python that one walk of these small logs may take; they take some hundreds."""

numbers = st.integers(0, 30)
shape_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["messages", "markers"]), st.integers(1, 4)),
        st.tuples(st.just("ledger"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["trim", "ack", "ack through", "seek", "compact"]), numbers),
        st.tuples(st.just("duplicate"), st.integers(0, 30)),
    ),
    max_size=25,
)


@dataclass
class Shape:
    """Log as the list of its positions, with its index and a cursor in it."""

    read_compacted: bool
    index: LogIndex = field(default_factory=LogIndex)
    here: list[Position] = field(default_factory=list)
    markers: set[Position] = field(default_factory=set)
    chains: list[list[Position]] = field(default_factory=list)
    consumed: set[Position] = field(default_factory=set)
    at: Position = field(default_factory=lambda: Position(1, 0))

    def __post_init__(self) -> None:
        self.cursor = Cursor(self.index, CursorState(read_compacted=self.read_compacted))

    @property
    def messages(self) -> list[Position]:
        return [each for each in self.here if each not in self.markers]

    @property
    def shown(self) -> list[Position]:
        hidden = {later for chain in self.chains for later in chain[1:]}
        return [each for each in self.messages if each not in hidden]

    def do(self, step: str, number: int) -> None:
        if step == "ledger":
            self.at = Position(self.at.ledger + 1, number)
        elif step in ("messages", "markers"):
            self.append(number, marker=step == "markers")
        elif step == "trim" and len(self.here) > 1:
            self.trim(self.here[number % (len(self.here) - 1)])
        elif step == "duplicate" and len(self.messages) > 1:
            self.duplicate(self.messages[number % (len(self.messages) - 1)])
        elif step == "ack" and self.messages:
            self.consume([position := self.messages[number % len(self.messages)]])
            self.cursor.acknowledge(position, None, 1)
        elif step == "ack through" and self.messages:
            position = self.messages[number % len(self.messages)]
            self.consume([each for each in self.messages if each <= position])
            self.cursor.acknowledge_cumulative(position, None, 1)
        elif step == "seek" and self.here:
            position = self.here[number % len(self.here)]
            self.consumed.clear()
            self.consume([each for each in self.messages if each <= position])
            self.cursor.restart(position)
        elif step == "compact" and self.read_compacted and self.messages:
            horizon = self.here[number % len(self.here)]
            if horizon > self.index.view.horizon:
                kept = [each for each in self.shown if each <= horizon][::2]
                self.index.view = ViewIndex(horizon, PositionSet(kept))
                self.cursor.advance()

    def append(self, entries: int, *, marker: bool) -> None:
        added = [Position(self.at.ledger, self.at.entry + each) for each in range(entries)]
        self.index.append(self.at, entries, marker=marker)
        self.here += added
        self.markers |= set(added) if marker else set()
        self.at = Position(self.at.ledger, self.at.entry + entries)
        self.cursor.advance()

    def trim(self, upto: Position) -> None:
        self.index.trim(upto)
        self.here = [each for each in self.here if each > upto]
        self.chains = [chain for chain in ([e for e in chain if e > upto] for chain in self.chains) if len(chain) > 1]
        self.cursor.advance()

    def duplicate(self, earlier: Position) -> None:
        """Make the next entry that is in no chain of duplicates one of the message at ``earlier``."""
        chain = next((chain for chain in self.chains if earlier in chain), [earlier])
        free = [e for e in self.messages if e > chain[-1] and not any(e in other for other in self.chains)]
        if not free:
            return
        pairs = self.index.link_duplicates([(chain[-1], free[0])])
        if chain not in self.chains:
            self.chains.append(chain)
        chain.append(free[0])
        if self.consumed & set(chain):
            self.consumed |= set(chain)
            self.cursor.acknowledge(chain[-1], None, 1)
        self.cursor.join_duplicates(pairs)

    def consume(self, positions: Sequence[Position]) -> None:
        self.consumed |= set(positions)
        for chain in self.chains:
            if self.consumed & set(chain):
                self.consumed |= set(chain)


@settings(max_examples=examples(300), deadline=None)
@example([("messages", 3), ("markers", 1), ("trim", 2)], False)
@example([("messages", 2), ("markers", 1), ("ledger", 2), ("markers", 2), ("trim", 1)], False)
@given(shape_steps, st.booleans())
def test_every_walk_through_the_shape_of_a_log_ends_and_finds_what_looking_at_each_position_finds(
    steps: list[tuple[str, int]], read_compacted: bool
) -> None:
    shape = Shape(read_compacted)
    for step in steps:
        with at_most_steps(WALK_LINES_MAX):
            shape.do(*step)
        with at_most_steps(WALK_LINES_MAX):
            check_shape(shape)


def check_shape(shape: Shape) -> None:
    log, here = shape.index, shape.here
    assert last_message(log) == max(shape.shown, default=BEFORE_ALL)
    probes = [
        *here,
        *(Position(each.ledger, -1) for each in here),
        *(Position(each.ledger, each.entry + 1) for each in here[-1:]),
        log.trimmed,
        BEFORE_ALL,
        Position(shape.at.ledger + 1, 0),
    ]
    for probe in probes:
        assert log.last_before(probe) == max((each for each in here if each < probe), default=None)
        assert log.next_after(probe) == min((each for each in here if each > probe), default=None)
        assert log.clamp(probe) == max((each for each in here if each <= probe), default=log.trimmed)
    assert walked_back(log) == here[::-1]
    assert [
        Position(ledger, each) for ledger, first, last in log.ledgers_back() for each in range(last, first - 1, -1)
    ] == here[::-1]
    if shape.read_compacted:
        return
    reached = log.trimmed
    for position in here:
        if position not in shape.consumed | shape.markers:
            break
        reached = position
    assert shape.cursor.mark_delete == reached
    merging = Merging(cast(Any, SimpleNamespace(cursor=shape.cursor, topic=SimpleNamespace(log=log))))
    for probe in here:
        passed = takewhile(lambda each: each in shape.markers, (each for each in here if each > probe))
        assert merging._over_markers(probe) == max(passed, default=probe)


def walked_back(log: LogIndex) -> list[Position]:
    found: list[Position] = []
    position = log.last_before(Position(2**40, 0))
    while position is not None:
        found.append(position)
        position = log.last_before(position)
    return found


# Walks that read a real log.

log_steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["marker", "trim", "compact", "restart", "consume all", "duplicates"]), st.none()),
        st.tuples(st.just("consume"), numbers),
    ),
    max_size=14,
)
FAN = Topology((), (Link("us-east", "eu-west"),))


@settings(max_examples=examples(40), deadline=None)
@example([("publish", ["a", "b"]), ("marker", None), ("consume all", None), ("trim", None)])
@example([("publish", ["a", "b"]), ("marker", None), ("compact", None), ("consume all", None), ("trim", None)])
@example([("publish", ["a"]), ("restart", None), ("marker", None), ("consume all", None), ("trim", None)])
@example([("publish", ["a"]), ("restart", None), ("publish", ["b"])])
@given(log_steps)
def test_every_walk_through_a_log_that_is_read_ends(script: list[tuple[str, Any]]) -> None:
    async def main(path: Path, beside: Path) -> None:
        remaining = list(script)
        async with opened(beside, cluster="eu-west", settings=ON) as other:
            numbers_used = 0
            while remaining is not None:
                async with opened(path, settings=ON) as engine:
                    topic = await engine.topic(TOPIC)
                    for name in ("plain", "compacted"):
                        await topic.subscriptions.create(name, BEFORE_ALL, replicated=False)
                    while remaining:
                        step, argument = remaining.pop(0)
                        if step == "restart":
                            break
                        numbers_used += 1
                        with at_most_steps(2_000_000):
                            await do(engine, other, topic, step, argument, numbers_used)
                        await check_log(engine, topic)
                    else:
                        return

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory, "a"), Path(directory, "b")))


async def do(engine: Engine, other: Engine, topic: Topic, step: str, argument: Any, number: int) -> None:
    log = topic.log
    if step == "publish":
        await topic.publish([keyed(key, b"x") for key in argument])
    elif step == "marker":
        await topic.writing.marker(marker())
    elif step == "duplicates":  # one message reaches both clusters, and each copy comes here
        there = await other.topic(TOPIC)
        await topic.publish([numbered(number)])
        await there.publish([numbered(number)])
        await copy(there, topic)
    elif step == "trim":
        await topic.policies.set(TopicPolicies(retention=Retention(0, 0), deduplication=True))
        await engine.maintenance.run_once()
    elif step == "compact":
        await topic.compaction.run()
    elif log.first is not None:
        through = log.last if step == "consume all" else (log.next_after(log.trimmed) or log.last)
        for each in topic.subscriptions.values():
            await each.moves.consume_through(through)


async def check_log(engine: Engine, topic: Topic) -> None:
    log = topic.log
    entries = topic.reading.entries(BEFORE_ALL, None, 10**6, 10**9)
    hidden = PositionSet() if log.duplicates is None else log.duplicates.hidden
    messages = [each.position for each in entries if not each.marker]
    shown = [each for each in messages if each not in hidden]
    with at_most_steps(WALK_LINES_MAX):
        assert last_message(log) == max(shown, default=BEFORE_ALL)
    for number in range(1, len(shown) + 2):
        for from_start in (True, False):
            order = shown if from_start else shown[::-1]
            expected = order[number - 1] if number <= len(order) else (order[-1] if from_start and order else None)
            with at_most_steps(WALK_LINES_MAX):
                assert await _nth(topic, number, from_start=from_start) == expected
    markers = MarkerLog(topic, Counters())
    with at_most_steps(WALK_LINES_MAX):
        assert markers.last_message() >= max(messages, default=BEFORE_ALL)
        assert sum(len(list(each)) for each in markers.pages(BEFORE_ALL, log.last)) <= len(entries)
        assert all(stored.header.entries for stored in markers.newest_first())
    starts = StartPositions(engine, Route.of(FAN, FAN.links[0]))
    marks = [log.last, log.trimmed, *(Position(log.last.ledger, entry) for entry in (0, 2**31))]
    for have in [BEFORE_ALL, log.trimmed, *messages[:-1]]:
        for mark in [*marks, Position(have.ledger, 2**31)]:  # neither need exist here any more
            for beyond in (0, 2**30):
                there = {engine.cluster: Mark(topic.incarnation, Position(have.ledger, have.entry + beyond))}
                with at_most_steps(WALK_LINES_MAX):
                    starts.lost(topic, there, mark, accepted={})
    clients = SimpleNamespace(origin=engine.cluster, in_log=lambda _, position: position)
    for after in marks:
        with at_most_steps(WALK_LINES_MAX):
            await Positions(engine, cast(Any, clients))._count(topic, after, Position(log.last.ledger, 2**31))
        with at_most_steps(WALK_LINES_MAX):
            await topic.compaction.position_at_time(2**40)
            await topic.reading.position_at_time(2**40, after=log.trimmed)
