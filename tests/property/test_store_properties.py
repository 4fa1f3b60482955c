"""Promises of the store for random copies: exactly-once copies, right extents, no position used twice."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, batch, logged, make_block, marker, message, opened, subscribed
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import CopyGap
from replicator.engine.log.block import BlockKind, BlockView, read_header
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position


def in_directory(main: Any, *arguments: Any) -> None:
    """Run ``main(directory, …)`` on a loop and a directory of its own: hypothesis runs many in one test."""
    with tempfile.TemporaryDirectory() as directory:
        coroutine: Coroutine[Any, Any, None] = main(Path(directory), *arguments)
        asyncio.run(coroutine)


# Exactly-once copy.

source_logs = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["messages", "markers", "gap", "ledger"])), min_size=1, max_size=10
)
"""Blocks of so many entries; gaps are what a source's local markers leave in its positions."""
sends = st.lists(
    st.tuples(
        st.integers(-4, 1), st.integers(1, 3), st.integers(0, 4), st.sampled_from(["send", "head", "tail", "publish"])
    ),
    max_size=14,
)
"""Sends and publishes. A send is a run of blocks that begins before, at or past the end here, perhaps with its ``head``
or ``tail`` cut off."""


@dataclass(frozen=True)
class SourceBlock:
    block: bytes
    previous: Position

    @property
    def last(self) -> Position:
        return read_header(self.block).origin_last


def make_source(script: list[tuple[int, str]]) -> list[SourceBlock]:
    found: list[SourceBlock] = []
    at, previous = Position(5, 0), BEFORE_ALL
    for entries, kind in script:
        if kind == "gap":
            at = Position(at.ledger, at.entry + entries)
            continue
        if kind == "ledger":
            at = Position(at.ledger + entries, 0)
            continue
        is_marker = kind == "markers"
        name = b"%d:%d." % at
        made = [(marker if is_marker else message)(name + b"%d" % index) for index in range(entries)]
        block = make_block(at, made, kind=BlockKind.MARKERS if is_marker else BlockKind.MESSAGES)
        found.append(SourceBlock(block, previous))
        previous = found[-1].last
        at = Position(at.ledger, at.entry + entries)
    return found


def everything(topic: Topic, origin: str) -> list[tuple[Position, bytes]]:
    """Return the origin positions and bytes of all entries of an origin, markers too, in log order."""
    entries = topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
    return [(entry.origin_position, bytes(entry.entry)) for entry in entries if entry.origin == origin]


def entries_in(source: list[SourceBlock]) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    for block in source:
        first = read_header(block.block).origin_first
        for index, entry in enumerate(BlockView(block.block).entries()):
            found.append((Position(first.ledger, first.entry + index), bytes(entry)))
    return found


async def copy_anyhow(
    path: Path, script: list[tuple[int, str]], sent: list[tuple[int, int, int, str]], reopen_at: int
) -> None:
    source = make_source(script)
    expected = entries_in(source)
    have = BEFORE_ALL
    published = 0
    for part in (sent[:reopen_at], [*sent[reopen_at:], (-len(source), len(source), 0, "send")]):
        async with opened(path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            for offset, length, cut, what in part:
                if what == "publish" or not source:
                    await topic.publish([message(b"local %d" % published)])
                    published += 1
                    continue
                here = sum(block.last <= have for block in source)
                run = source[max(0, min(here + offset, len(source) - 1)) :][:length]
                copied = [CopiedBlock(block.previous, block.block) for block in run]
                upto = run[-1].last
                edge = BlockView(run[0 if what == "head" else -1].block)
                first = edge.header.origin_first
                middle = Position(first.ledger, first.entry + cut - 1)
                if what == "head" and 0 < cut < len(edge):  # what was before it was sent, says the link
                    copied[0] = CopiedBlock(middle, edge.slice(cut, len(edge)))
                elif what == "tail" and 0 < cut < len(edge):
                    copied[-1] = CopiedBlock(run[-1].previous, edge.slice(0, cut))
                    upto = middle
                if copied[0].previous > have:
                    with pytest.raises(CopyGap):
                        await topic.writing.copy(copied)
                else:
                    extents = await topic.writing.copy(copied)
                    new = [position for position, _ in expected if have < position <= upto]
                    assert sum(extent.entries for extent in extents) == len(new)
                    for extent in extents:
                        assert topic.log.clamp(extent.local_first) == extent.local_first
                    have = max(have, upto)
                in_order = [(position, entry) for position, entry in expected if position <= have]
                assert everything(topic, "us-east") == in_order
            if source:
                check_translations(topic, expected, have)
    async with opened(path, "eu-west") as engine:
        topic = await engine.topic(TOPIC)
        assert everything(topic, "us-east") == expected
        own = [entry for origin, _, entry in logged(topic) if origin == "eu-west"]
        assert own == [message(b"local %d" % number) for number in range(published)]


def check_translations(topic: Topic, expected: list[tuple[Position, bytes]], have: Position) -> None:
    """Check that the extents place each stored origin position where it really is, and no other position anywhere."""
    lies_at = {
        entry.origin_position: entry.position
        for entry in topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
        if entry.origin == "us-east"
    }
    assert set(lies_at) == {position for position, _ in expected if position <= have}
    probes = {Position(ledger, entry) for ledger, last in expected_ledgers(expected) for entry in range(last + 3)}
    for probe in probes | {Position(1, 0), Position(99, 0)}:
        assert topic.reading._store.translate(topic.topic_id, "us-east", 7, probe) == lies_at.get(probe)
        assert topic.reading._store.translate(topic.topic_id, "us-east", 8, probe) is None
        assert topic.reading._store.translate(topic.topic_id, "us", 7, probe) is None


def expected_ledgers(expected: list[tuple[Position, bytes]]) -> list[tuple[int, int]]:
    ledgers: dict[int, int] = {}
    for (ledger, entry), _ in expected:
        ledgers[ledger] = entry
    return list(ledgers.items())


@given(source_logs, sends, st.integers(0, 14))
@settings(max_examples=examples(20))
def test_invariants_2_and_3_each_entry_is_here_once_and_in_order_whatever_is_sent(
    script: list[tuple[int, str]], sent: list[tuple[int, int, int, str]], reopen_at: int
) -> None:
    in_directory(copy_anyhow, script, sent, reopen_at)


# No position is used twice.


steps = st.lists(
    st.sampled_from(["publish", "publish", "copy", "topic", "reopen", "back up", "restore", "clock back", "clock on"]),
    min_size=3,
    max_size=16,
)


async def live(directory: Path, script: list[str]) -> None:
    """Live a cluster's life with backups, restores and a clock that jumps; each position handed out is new."""
    path, backup = directory / "live", directory / "backup"
    clock = [10_000_000]
    latest = clock[0]
    given_out: set[tuple[str, Position]] = set()
    incarnations: set[int] = set()
    copied = 0
    settings_ = EngineSettings(wall_clock_ms=lambda: clock[0])

    def note(name: str, positions: list[Position]) -> None:
        for position in positions:
            assert (name, position) not in given_out, "a position was used twice"
            given_out.add((name, position))

    at = 0
    while at < len(script):
        async with opened(path, settings=settings_) as engine:
            while at < len(script) and script[at] not in ("reopen", "back up", "restore"):
                step, at = script[at], at + 1
                topic = await engine.topic(TOPIC)
                if step == "publish":
                    note(topic.name, await topic.publish([message(), message()]))
                elif step == "copy":
                    incoming = make_block(Position(1, copied), [message()], origin="eu-west")
                    before = topic.log.last
                    here = topic.origins.high_water("eu-west")
                    previous = BEFORE_ALL if here is None else here.position
                    await topic.writing.copy([CopiedBlock(previous, incoming)])
                    assert topic.log.last > before
                    note(topic.name, [topic.log.last])
                    copied += 1
                elif step == "topic":
                    made = await engine.topic(f"topic-{len(incarnations)}-{at}")
                    assert made.incarnation not in incarnations, "an incarnation was used twice"
                    incarnations.add(made.incarnation)
                elif step == "clock back":
                    clock[0] -= 5_000
                elif step == "clock on":
                    clock[0] += 700
                latest = max(latest, clock[0])
        if at < len(script):
            step, at = script[at], at + 1
            if step == "back up":
                shutil.rmtree(backup, ignore_errors=True)
                shutil.copytree(path, backup)
            elif step == "restore" and backup.exists():
                shutil.rmtree(path)
                shutil.copytree(backup, path)
                clock[0] = latest = latest + 1_000  # a restore takes a second, on a machine whose clock is right


@given(steps)
@settings(max_examples=examples(17))
def test_invariant_10_no_position_is_used_twice_across_restarts_restores_and_clock_jumps(script: list[str]) -> None:
    in_directory(live, script)


def test_invariant_10_a_restored_store_goes_on_and_its_lost_entries_stay_lost(tmp_path: Path) -> None:
    async def main() -> None:
        path, old = tmp_path / "live", tmp_path / "old"
        async with opened(path) as engine:
            kept = await (await engine.topic(TOPIC)).publish([message(b"kept")])
        shutil.copytree(path, old)
        async with opened(path) as engine:
            lost = await (await engine.topic(TOPIC)).publish([message(b"lost"), message(b"lost too")])
        shutil.rmtree(path)
        shutil.copytree(old, path)
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            new = await topic.publish([message(b"new")])
            assert not set(new) & {*kept, *lost}
            assert min(new) > max(lost), "a peer that has the lost entries would take the new ones for old"
            assert [entry for _, _, entry in logged(topic)] == [message(b"kept"), message(b"new")]

    asyncio.run(main())


# The figures of a subscription.


async def count_backlog(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        consumer, _ = await subscribed(topic, permits=0)
        sizes: dict[Position, int] = {}
        for _ in range(12):
            size = chance.randrange(1, 5)
            if chance.random() < 0.3:
                await topic.writing.marker(marker())
            else:
                for position in await topic.publish([batch([b"x"] * size)] * chance.randrange(1, 4)):
                    sizes[position] = size
            if sizes and chance.random() < 0.7:
                await consumer.acknowledge([Ack(position) for position in chance.choices(list(sizes), k=2)])
            if sizes and chance.random() < 0.2:
                topic.subscriptions["sub"].merging.mark_delete(chance.choice(list(sizes)), 1)
            check_backlog(topic, sizes)
        await topic.subscriptions["sub"].saved()
    async with opened(path) as engine:
        check_backlog(await engine.topic(TOPIC), sizes)


def check_backlog(topic: Topic, sizes: dict[Position, int]) -> None:
    subscription = topic.subscriptions["sub"]
    left = [size for position, size in sizes.items() if not subscription.cursor.is_consumed(position)]
    assert (subscription.cursor.backlog_entries(), subscription.backlog_messages()) == (len(left), sum(left))
    assert topic.log.messages == sum(sizes.values())


@given(st.integers(0, 2**32))
@settings(max_examples=examples(15))
def test_the_backlog_is_what_is_not_consumed_without_markers(seed: int) -> None:
    in_directory(count_backlog, seed)
