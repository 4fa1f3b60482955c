"""Trimming against a model: a list of all published entries, and for each subscription the set of consumed ones."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_support import TOPIC, batch, marker, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.log_index import LogIndex
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position

SUBSCRIPTIONS = ("a", "b")

steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
    st.tuples(st.just("marker"), st.just(None)),
    st.tuples(st.just("ack"), st.tuples(st.sampled_from(SUBSCRIPTIONS), st.lists(st.integers(0, 99), max_size=8))),
    st.tuples(st.just("ack_through"), st.tuples(st.sampled_from(SUBSCRIPTIONS), st.integers(0, 99))),
    st.tuples(st.just("seek"), st.tuples(st.sampled_from(SUBSCRIPTIONS), st.integers(0, 99))),
    st.tuples(st.just("hold"), st.integers(0, 99)),
    st.tuples(st.just("trim"), st.sampled_from([Retention(0, 0), Retention(None, 300), Retention(None, 1_000)])),
    st.tuples(st.just("restart"), st.just(None)),
)


@dataclass
class Model:
    """Model of a log that is trimmed. ``log`` has all positions ever, with batch size (0 for markers) and bytes."""

    log: list[tuple[Position, int, bytes]] = field(default_factory=list)
    consumed: dict[str, set[Position]] = field(default_factory=lambda: {name: set() for name in SUBSCRIPTIONS})
    held: Position | None = None

    def messages(self) -> list[Position]:
        return [position for position, size, _ in self.log if size]

    def wanted_from(self) -> Position | None:
        """Return the lowest position that somebody still needs."""
        needed = [
            position
            for position in self.messages()
            if any(position not in consumed for consumed in self.consumed.values())
            or (self.held is not None and position > self.held)
        ]
        return min(needed, default=None)


async def apply(engine: Engine, model: Model, step: str, argument: Any) -> None:
    topic = await engine.topic(TOPIC)
    messages = model.messages()
    if step == "publish":
        entries = [batch([b"x"] * size) for size in argument]
        positions = await topic.publish(entries)
        model.log += zip(positions, argument, entries, strict=True)
    elif step == "marker":
        model.log.append((await topic.writing.marker(entry := marker()), 0, entry))
    elif step == "trim":
        await topic.policies.set(TopicPolicies(retention=argument))
        await engine.maintenance.run_once()
    elif step == "hold" and messages:
        model.held = messages[argument % len(messages)]
        topic.holds.positions["test"] = model.held
    elif step in ("ack", "ack_through", "seek") and messages:
        name, which = argument
        subscription = topic.subscriptions[name]
        if step == "ack":
            chosen = [messages[index % len(messages)] for index in which]
            model.consumed[name] |= set(chosen)
            await subscription.acknowledge([Ack(position) for position in chosen])
        else:
            position = messages[which % len(messages)]
            if step == "ack_through":
                model.consumed[name] |= {each for each in messages if each <= position}
                await subscription.acknowledge_cumulative(position, None)
            else:
                model.consumed[name] = {each for each in messages if each < max(position, topic.log.first)}
                await subscription.moves.seek(position)


def check(topic: Topic, model: Model) -> None:
    left = [
        (entry.position, entry.batch_size, bytes(entry.entry))
        for entry in topic.reading.entries(BEFORE_ALL, None, 10**6, 10**9)
    ]
    assert left == model.log[len(model.log) - len(left) :], "what is read is not the end of what was written"
    assert left or not model.log, "the last block went"
    wanted = model.wanted_from()
    assert wanted is None or wanted in [position for position, _, _ in left], f"{wanted} was wanted and is gone"
    assert topic.log.messages == sum(size for _, size, _ in model.log)
    for name in SUBSCRIPTIONS:
        unconsumed = [size for position, size, _ in model.log if size and position not in model.consumed[name]]
        subscription = topic.subscriptions[name]
        assert subscription.backlog_messages() == sum(unconsumed)
        assert subscription.cursor.backlog_entries() == len(unconsumed)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(steps, max_size=30))
def test_invariant_5_what_is_wanted_never_goes_and_reading_gives_exactly_the_rest(
    script: list[tuple[str, Any]],
) -> None:
    async def main(path: Path) -> None:
        model, remaining = Model(), list(script)
        while remaining is not None:
            async with opened(path, settings=EngineSettings()) as engine:
                topic = await engine.topic(TOPIC)
                for name in SUBSCRIPTIONS:
                    await topic.subscriptions.create(name, BEFORE_ALL, replicated=False)
                if model.held is not None:
                    topic.holds.positions["test"] = model.held
                check(topic, model)
                while remaining and remaining[0][0] != "restart":
                    await apply(engine, model, *remaining.pop(0))
                    check(topic, model)
            if not remaining:
                return
            remaining.pop(0)

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(main(Path(path)))


runs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.booleans()), min_size=1, max_size=12)
probes = st.builds(Position, st.integers(0, 30), st.integers(-1, 50))


@given(runs, st.data())
def test_a_trimmed_log_answers_as_the_rest_of_a_list_of_positions_would(
    script: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    log, members, markers, ledger = LogIndex(), list[Position](), set[Position](), 0
    for step, entries, is_marker in script:
        ledger += step
        added = [Position(ledger, index) for index in range(entries)]
        log.append(added[0], entries, marker=is_marker)
        members += added
        markers |= set(added) if is_marker else set()
    trimmed = BEFORE_ALL
    for _ in range(2):
        if len(members) > 1:
            trimmed = data.draw(st.sampled_from(members[:-1]))
            log.trim(trimmed)
            members = [member for member in members if member > trimmed]
    probe, other = data.draw(probes), data.draw(probes)
    assert (log.first, log.last, log.entries, log.trimmed) == (members[0], members[-1], len(members), trimmed)
    assert (probe in log) == (probe in members)
    assert log.next_after(probe) == next((member for member in members if member > probe), None)
    assert log.clamp(probe) == max((member for member in members if member <= probe), default=trimmed)
    assert log.entries_between(probe, other) == sum(probe < member <= other for member in members)
    assert set(log.markers) == markers & set(members)
