"""Frames of links: what goes together, in which form, and that nothing is looked up that was just committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, message, opened
from link_support import web

from replicator.api import link_streams
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.link_frame import ROWS_FROM
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.requests import Committed, CopyRequest, Request
from replicator.engine.log.store_tables import Trim
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.links import frame_pace, frame_sender, link_topics, start_positions, transport
from replicator.links.link_topics import LinkTopics
from replicator.links.route import Route
from replicator.links.start_positions import StartPositions
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL, Position

LINK = LinkSpec("a", "b")
NOTHING_KEPT = EngineSettings(policies=TopicPolicies(retention=Retention(age_seconds_max=0, bytes_max=0)))


def topics_of(count: int) -> list[str]:
    return [f"persistent://public/default/t-{number}" for number in range(count)]


async def publish_to(engine: Engine, topics: Sequence[str]) -> None:
    await asyncio.gather(*[(await engine.topic(name)).publish([message()]) for name in topics])


@pytest.mark.parametrize("until", ["answered", "some time is over"])
def test_blocks_that_come_while_a_frame_is_not_answered_go_in_one_frame_and_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    frames: list[list[str]] = []
    release = asyncio.Event()
    outcome = link_streams._outcome

    def noted(blocks: Sequence[Outgoing], notes: bytes = b"") -> Any:
        if blocks:
            frames.append([each.topic for each in blocks])
        return encode_rows(blocks, notes)

    async def held(*arguments: Any) -> bytes:
        await release.wait()
        return await outcome(*arguments)

    async def main() -> None:
        async with web(tmp_path, [LINK]) as made:
            here, there = made.engines["a"], made.engines["b"]
            first, *others = topics_of(21)
            await publish_to(here, [first, *others])
            await eventually(lambda: sum(topic.log.messages for topic in there.topics()) == 21)
            await eventually(lambda: made.links["a>b"].state == "idle")
            monkeypatch.setattr(transport, "encode_rows", noted)
            monkeypatch.setattr(link_streams, "_outcome", held)
            monkeypatch.setattr(frame_pace, "GATHER_SECONDS", 3600.0 if until == "answered" else 0.7)
            monkeypatch.setattr(frame_pace, "MANY_TOPICS", 1000)  # else frames lie 20 ms apart after the first 21
            looked_up: list[str] = []
            for name in ("read_blocks", "block_of"):
                monkeypatch.setattr(here.store, name, lambda *_, name=name, **__: looked_up.append(name))
            commit, copied = there.writer._commits.commit, []

            def counted(group: list[Request], openings: int = 0) -> Committed:
                copied.append(sum(isinstance(each, CopyRequest) for each in group))
                return commit(group, openings)

            monkeypatch.setattr(there.writer._commits, "commit", counted)
            await publish_to(here, [first])
            await eventually(lambda: len(frames) == 1)
            await publish_to(here, others[:10])
            await publish_to(here, others[10:])
            if until == "answered":
                assert len(frames) == 1
                release.set()
            await eventually(lambda: sum(topic.log.messages for topic in there.topics()) == 42)
            assert [sorted(frame) for frame in frames] == [[first], sorted(others)]
            assert [count for count in copied if count] == [1, 20], "a commit for each frame"
            assert looked_up == [], "what was just committed is taken from memory"
            release.set()
            await eventually(lambda: made.links["a>b"].backlog_entries() == 0)

    asyncio.run(main())


@pytest.mark.parametrize("read_from", ["memory", "disk"])
@pytest.mark.parametrize("topics", [topics_of(35), [TOPIC] * 35], ids=["of many topics", "of one topic"])
def test_no_frame_has_more_than_so_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: list[str], read_from: str
) -> None:
    """With thousands of blocks in a frame, both ends would be busy with one frame, and with nothing else."""
    frames: list[int] = []

    def noted(blocks: Sequence[Outgoing], notes: bytes = b"") -> Any:
        if blocks:
            frames.append(len(blocks))
        return encode_rows(blocks, notes)

    monkeypatch.setattr(frame_sender, "FRAME_BLOCKS_MAX", 10)
    monkeypatch.setattr(transport, "encode_rows", noted)
    monkeypatch.setattr(frame_pace, "GATHER_SECONDS", 3600.0)
    monkeypatch.setattr(frame_pace, "GATHER_MANY_SECONDS", 3600.0)  # a frame after a full one does not wait
    if read_from == "disk":
        monkeypatch.setattr(TopicReading, "_kept_blocks", lambda *_: None)

    async def main() -> None:
        async with web(tmp_path, [LINK], started=False) as made:
            for name in topics:
                await publish_to(made.engines["a"], [name])
            made.links["a>b"].start()
            await eventually(lambda: sum(topic.log.messages for topic in made.engines["b"].topics()) == 35)
            assert frames == [10, 10, 10, 5]

    asyncio.run(main())


def test_a_block_after_a_pause_does_not_wait_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pace, "GATHER_SECONDS", 3600.0)

    async def main() -> None:
        async with web(tmp_path, [LINK]) as made:
            for number in range(3):
                await made.publish("a", number, 1)
                await eventually(lambda number=number: len(made.entries("b", "a")) == number + 1)
                await eventually(lambda: made.links["a>b"].state == "idle")

    asyncio.run(main())


def test_while_many_topics_move_their_blocks_share_frames_although_each_frame_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_pace, "GATHER_MANY_SECONDS", 1.5)
    monkeypatch.setattr(frame_pace, "MANY_WITHIN_SECONDS", 3600.0)
    frames: list[int] = []

    def noted(blocks: Sequence[Outgoing], notes: bytes = b"") -> Any:
        if blocks:
            frames.append(len(blocks))
        return encode_rows(blocks, notes)

    async def main() -> None:
        async with web(tmp_path, [LINK]) as made:
            here, there = made.engines["a"], made.engines["b"]
            names = topics_of(frame_pace.MANY_TOPICS)
            await publish_to(here, names)
            await eventually(lambda: sum(topic.log.messages for topic in there.topics()) == len(names))
            monkeypatch.setattr(transport, "encode_rows", noted)
            commits = there.writer.commits
            for name in names:
                await publish_to(here, [name])
                await asyncio.sleep(0.02)  # time in which a frame would be answered
            await eventually(lambda: sum(topic.log.messages for topic in there.topics()) == 2 * len(names))
            assert sum(frames) == len(names)
            assert len(frames) <= 4, "a frame for each block"
            assert there.writer.commits - commits <= 4, "a commit for each block"

    asyncio.run(main())


def test_a_frame_after_a_large_one_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pace, "GATHER_SECONDS", 3600.0)
    monkeypatch.setattr("replicator.links.copier.FRAME_BYTES_TARGET", 100_000)

    async def main() -> None:
        async with web(tmp_path, [LINK], started=False) as made:
            topic = await made.engines["a"].topic(TOPIC)
            for _ in range(12):
                await topic.publish([message(bytes(70_000))])
            made.links["a>b"].start()
            await eventually(lambda: len(made.entries("b", "a")) == 12)

    asyncio.run(main())


@pytest.mark.parametrize("older", ["source", "destination"])
def test_an_end_that_does_not_know_rows_gets_and_sends_arrow_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    before = ROWS_FROM - 1
    module = "replicator.links.transport" if older == "source" else "replicator.api.data_plane"
    monkeypatch.setattr(f"{module}.PROTOCOL_VERSION", before)
    monkeypatch.setattr(f"{module}.agreed_version", lambda theirs: min(theirs, before))
    in_arrow: list[int] = []

    def noted(blocks: Sequence[Outgoing], notes: bytes = b"") -> Any:
        in_arrow.append(len(blocks))
        return encode_append(blocks, notes)

    def never(*_: object) -> Any:
        raise AssertionError("rows were sent to an end that does not know them")

    monkeypatch.setattr(transport, "encode_append", noted)
    monkeypatch.setattr(transport, "encode_rows", never)

    async def main() -> None:
        async with web(tmp_path, [LINK]) as made:
            entries = await made.publish("a", 0, 20)
            await eventually(lambda: made.entries("b", "a") == entries)
            assert made.links["a>b"].figures.reconnects == 0

    asyncio.run(main())
    assert sum(in_arrow) > 0


def test_blocks_that_the_index_has_trimmed_and_the_store_has_not_are_read_until_they_are_gone(tmp_path: Path) -> None:
    """A link that reads from memory would go over them otherwise, and neither end would know that they are missing."""

    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            topic = await engine.topic(TOPIC)
            first, _, last = [(await topic.publish([message(b"%d" % number)]))[0] for number in range(3)]
            topic.log.trim(first)
            blocks, reached = topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 20, from_memory=True)
            assert (blocks[0].position, reached) == (first, last)
            blocks, _ = topic.reading.blocks(first, bytes_max=1 << 20, from_memory=True)
            assert len(blocks) == 2

    asyncio.run(main())


def test_what_is_missing_is_looked_up_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, "a", NOTHING_KEPT) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([message()]))[0] for _ in range(6)]
            starts = StartPositions(engine, Route.single(LINK))
            await topic.trimming.trim(positions[1])
            looks: list[int] = []
            trim = engine.store.trim

            def counted(topic_id: int) -> Trim:
                looks.append(topic_id)
                return trim(topic_id)

            monkeypatch.setattr(engine.store, "trim", counted)
            for _ in range(3):
                missing, unexpected = starts.lacking(topic)
                assert (missing.newest("a"), unexpected.newest("a")) == (positions[1], positions[1])
            assert len(looks) == 2, "one for each of the two"
            topic.log.trim(positions[3])  # the store follows later
            assert starts.lacking(topic)[0].newest("a") == positions[1]
            await topic.trimming.trim(positions[3])
            assert starts.lacking(topic)[0].newest("a") == positions[3]

    asyncio.run(main())


def test_what_is_remembered_of_missing_messages_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_positions, "REMEMBERED_MAX", 3)

    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            starts = StartPositions(engine, Route.single(LINK))
            for name in topics_of(10):
                starts.lacking(await engine.topic(name))
            assert len(starts._remembered) <= 3

    asyncio.run(main())


class Index:
    """A stand-in for the index in Postgres. It records which topics it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def link_state(self, link_key: str, topic: str, **_: object) -> None:
        self.told.append(topic)

    def link_gone(self, link_key: str) -> None: ...

    def audit(self, *_: object) -> None: ...


def test_the_index_is_told_of_many_topics_in_parts_and_of_each_within_some_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_topics, "INDEXED_AT_ONCE", 10)

    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            names = topics_of(60)
            await publish_to(engine, names)
            index = Index()
            link = LinkTopics(engine, Route.single(LINK), index)
            link.on_connected({})
            arrive(engine, link, names)
            for _ in range(link_topics.INDEXED_IN_SAVES + 2):
                told = len(index.told)
                await link.save()
                assert len(index.told) - told <= 12
            assert sorted(index.told) == sorted(names), "each once"
            arrive(engine, link, names[:30])
            await link.save()
            assert len(index.told) == 60, "nothing moved"
            await publish_to(engine, names)
            for name in names:
                link.copier.topic_moved(name, found(engine, name).log.last, link.origins)
            arrive(engine, link, names)
            await link.save(everything=True)
            assert sorted(index.told) == sorted([*names, *names])

    asyncio.run(main())


def found(engine: Engine, name: str) -> Topic:
    topic = engine.find(name)
    assert topic is not None
    return topic


def arrive(engine: Engine, link: LinkTopics, names: Sequence[str]) -> None:
    """Have the destination acknowledge all that the topics have."""
    for name in names:
        copy, log = link.copier.topics[name], found(engine, name).log
        assert isinstance(log, LogIndex)
        copy.read = copy.acknowledged = log.last
        copy.sent["a"] = log.last
    link.reached({name: Position(0, 0) for name in names})
