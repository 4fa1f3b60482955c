"""Limits of a worker's load by links and readers, and of a link's content: invariants 4 and 11."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web
from api_support import opened_stream, whole_app, with_app
from engine_support import TOPIC, entries_of, eventually, make_block, message, opened
from frame_support import frame_of, framed, streamed

from replicator.api import link_streams, pages
from replicator.api.link_streams import BLOCKS_AT_ONCE
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.arrow import APPEND_SCHEMA, Outgoing, decode_append
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES = 8 * 1024 * 1024


def block_of(origin: str, first: int = 0) -> bytes:
    return framed(frame_of(Outgoing(TOPIC, BEFORE_ALL, make_block(Position(9, first), [message()], origin=origin))))


def test_invariant_4_a_link_carries_only_what_its_source_originated(tmp_path: Path) -> None:
    """A foreign block could move a third origin's high-water mark past messages that are still to come."""

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        async def append(frame: bytes) -> dict[str, Any]:
            _, (answer,) = await streamed(f"{base}/append", frame)
            return answer

        for origin in ("ap-south", "nowhere"):
            answer = await append(block_of(origin))
            assert answer["refused"][TOPIC]["code"] == "NotAllowedError"
            assert origin in answer["refused"][TOPIC]["message"]
        assert engine.topics() == []
        assert await append(block_of("us-east")) == {"extents": 1, "refused": {}}

    with_app(tmp_path, body)


def test_a_new_stream_of_a_link_ends_the_one_that_it_replaces(tmp_path: Path) -> None:
    """The older one is half-open; a sender that forgets its streams would make the worker hold frames for each."""

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        older, _ = await opened_stream(base)
        other, _ = await opened_stream(base, "ap-south")
        newer, writer = await opened_stream(base)
        async with asyncio.timeout(10):  # far below SILENCE_SECONDS_MAX
            with suppress(ConnectionError):
                await older.read()
        writer.write(block_of("us-east"))
        await eventually(lambda: engine.find(TOPIC) is not None and engine.find(TOPIC).log.messages == 1)
        assert not newer.at_eof()
        assert not other.at_eof()

    with_app(tmp_path, body)


def test_stopping_the_worker_does_not_wait_for_links_to_end_their_streams(tmp_path: Path) -> None:
    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        reader, _ = await opened_stream(base)
        started = time.monotonic()
        await runner.cleanup()
        await reader.read()
        assert time.monotonic() - started < 5, "it waited for shutdown_timeout"

    with_app(tmp_path, body)


def test_invariant_11_pages_on_their_way_to_slow_readers_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGES_BYTES_MAX", PAGE_BYTES)
    monkeypatch.setattr(pages, "SILENCE_SECONDS_MAX", 1.0)

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topic = await engine.topic(TOPIC)
        for _ in range(2 * PAGE_BYTES // 1024 // 1024):
            await topic.publish([message(b"x" * 1024 * 1024)])
        async with aiohttp.ClientSession() as session:
            url = f"{base}/blocks?topic={TOPIC}&max_bytes={2 * PAGE_BYTES}"
            slow = await session.get(url)  # its body is not read
            async with session.get(url) as refused:
                assert refused.status == 429
                assert (await refused.json())["error"] == "TooBusy"
            await eventually(lambda: not runner.app[pages.PAGES_IN_FLIGHT], "the slow reader was cut off")
            with pytest.raises(aiohttp.ClientError):
                await slow.read()
            async with session.get(url) as served:
                assert served.status == 200
                assert len(await served.read()) == served.content_length

    with_app(tmp_path, body)


def test_invariant_11_a_frame_that_is_compressed_is_refused_before_it_is_unpacked() -> None:
    zeros = bytes(32 * 1024 * 1024)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, APPEND_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        columns = [["t"], [0], [-1], [False], [zeros]]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, APPEND_SCHEMA, strict=True)]
        stream.write_batch(pa.record_batch(arrays, schema=APPEND_SCHEMA))
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < len(zeros) // 1000
    with pytest.raises(BlockCorrupt, match="compressed"):
        decode_append(bomb)


def test_a_scrape_of_thousands_of_topics_holds_up_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine, whole_app(engine) as (_, base), aiohttp.ClientSession() as session:
            topics = await asyncio.gather(*(engine.topic(f"t{index}") for index in range(2_000)))
            await asyncio.gather(*(each.subscriptions.create("s", BEFORE_ALL, replicated=False) for each in topics))
            longest = 0.0

            async def take_turns() -> None:
                nonlocal longest
                while True:
                    before = time.perf_counter()
                    await asyncio.sleep(0)
                    longest = max(longest, time.perf_counter() - before)

            async def scraped() -> float:
                """Return the longest wait of others for a turn, as a part of the scrape's time."""
                nonlocal longest
                longest, asked = 0.0, time.perf_counter()
                async with session.get(base.removesuffix("/replication/v1") + "/metrics") as response:
                    body = await response.text()
                assert body.count("persistent://public/default/t") == 4 * 1_000 + 3 * 1_000  # an old name too; bounded
                assert 'replicator_metrics_summed_topics{cluster="us-east"} 1000.0' in body
                return longest / (time.perf_counter() - asked)

            others = asyncio.ensure_future(take_turns())
            parts = [await scraped() for _ in range(5)]  # the machine does other things too
            others.cancel()
            assert min(parts) < 0.5, parts

    asyncio.run(main())


@pytest.mark.parametrize("damaged", [0, BLOCKS_AT_ONCE - 1, BLOCKS_AT_ONCE, 2 * BLOCKS_AT_ONCE + 5])
def test_invariants_2_and_3_of_a_large_frame_with_a_damaged_block_nothing_behind_it_is_kept_until_it_comes_again(
    tmp_path: Path, damaged: int
) -> None:
    """Blocks before the damaged one may be kept. The link asks where to go on, or sends the whole frame again."""
    entries = [message(b"%d" % number) for number in range(3 * BLOCKS_AT_ONCE)]
    previous = [BEFORE_ALL, *(Position(9, number) for number in range(len(entries)))]
    blocks = [
        Outgoing(TOPIC, before, make_block(Position(9, number), [entry]))
        for number, (before, entry) in enumerate(zip(previous, entries, strict=False))
    ]
    broken = [*blocks]
    broken[damaged] = blocks[damaged]._replace(block=blocks[damaged].block[:-1] + b"!")

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        _, answers = await streamed(f"{base}/append", framed(frame_of(*broken), frame_of(*blocks)))
        assert answers[0]["refused"][TOPIC]["code"] == "BlockCorrupt"
        assert answers[0]["extents"] == damaged // BLOCKS_AT_ONCE * BLOCKS_AT_ONCE
        assert answers[1] == {"extents": len(blocks) - answers[0]["extents"], "refused": {}}
        topic = engine.find(TOPIC)
        assert topic is not None
        assert entries_of(topic, "us-east") == entries

    with_app(tmp_path, body)


def test_invariant_11_a_frame_with_more_refused_topics_than_an_answer_can_name_ends_the_stream_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_streams, "ANSWER_BYTES_MAX", 10_000)

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        foreign = make_block(Position(9, 0), [message()], origin="ap-south")
        first = framed(frame_of(*(Outgoing(f"{TOPIC}-{number}", BEFORE_ALL, foreign) for number in range(100))))
        _, answers = await streamed(f"{base}/append", first + block_of("us-east"))
        assert [each["error"] for each in answers] == ["FrameTooLarge"]
        assert f"One is '{TOPIC}-" in answers[0]["message"]
        assert "may bring messages that were published at us-east" in answers[0]["message"]

    with_app(tmp_path, body)


def test_invariant_11_schemas_of_more_topics_than_a_link_announces_at_once_are_refused_before_any_is_looked_at(
    tmp_path: Path,
) -> None:
    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topics: dict[str, list[Any]] = {f"persistent://public/default/t{number}": [] for number in range(1_001)}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{base}/schemas?from=us-east", json={"topics": topics}) as response,
        ):
            assert response.status == 400
            assert "more than 1000 schemas or topics at once" in (await response.json())["message"]

    with_app(tmp_path, body)


def test_partitions_told_in_json_that_is_nested_without_end_are_the_links_fault(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path) as engine,
            whole_app(engine) as (_, base),
            aiohttp.ClientSession() as session,
            session.post(f"{base}/partitions?from=us-east", data=b"[" * 50_000) as response,
        ):
            assert response.status == 400

    asyncio.run(main())
