"""A destination that is full refuses what a link brings, and logs no traceback, also when the link has gone by then."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, make_block, message, opened, serving
from frame_support import asked, frame_of, framed

from replicator.engine.engine import EngineSettings
from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.requests import Committed, CopyRequest, Request
from replicator.links import transfer, transport
from replicator.links.link import Link
from snapshots.position import BEFORE_ALL, Position

TOPICS = [f"persistent://public/default/t-{number}" for number in range(3)]


def test_appends_that_are_refused_after_their_stream_was_ended_log_no_traceback(tmp_path: Path) -> None:
    unheard: list[dict[str, Any]] = []
    go_on = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        settings = EngineSettings(store_bytes_max=1024 * 1024)
        async with opened(tmp_path, "eu-west", settings) as engine, serving(engine, {"us-east"}) as server:
            for name in TOPICS:
                await engine.topic(name)
            commit, copied, refused = engine.writer._commits.commit, threading.Event(), threading.Event()

            def held(group: list[Request], openings: int = 0) -> Committed:
                if any(isinstance(each, CopyRequest) for each in group):
                    copied.set()
                    assert go_on.wait(30)
                try:
                    return commit(group, openings)
                finally:
                    refused.set()

            engine.writer._commits.commit = held  # type: ignore[method-assign]
            status, _, _, writer = await asked(f"{server.url}/append")
            assert status == 101
            block = make_block(Position(9, 0), [message(bytes(900_000))], origin="us-east")
            writer.write(framed(frame_of(*(Outgoing(name, BEFORE_ALL, block) for name in TOPICS))))
            await eventually(copied.is_set)
            await server.stop()
            writer.close()
            go_on.set()
            await eventually(refused.is_set)
            assert sum(topic.log.entries for topic in engine.topics()) < len(TOPICS)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unheard == []


def test_a_full_destination_is_tried_again_after_longer_pauses_and_with_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    pauses: list[float] = []
    details: set[str] = set()

    def noted(blocks: Sequence[Outgoing], notes: bytes = b"") -> Any:
        if blocks:
            frames.append(len(blocks))
        return encode_rows(blocks, notes)

    async def paused(link: Link, seconds: float) -> None:
        pauses.append(seconds)
        details.add(link.detail)
        await asyncio.sleep(0)

    monkeypatch.setattr(transport, "encode_rows", noted)
    monkeypatch.setattr(Link, "_sleep_unless_nudged", paused)

    async def main() -> None:
        settings = EngineSettings(store_bytes_max=1024 * 1024)
        async with (
            opened(tmp_path / "us-east") as east,
            opened(tmp_path / "eu-west", "eu-west", settings) as west,
            serving(west, {"us-east"}) as server,
        ):
            for name in TOPICS:
                await (await east.topic(name)).publish([message(bytes(1_200_000))])
            link = Link(east, "eu-west", server.address)
            link.start()
            await eventually(lambda: len(pauses) >= 12, seconds=60)
            await link.stop()

    asyncio.run(main())
    assert any("StoreFull" in each for each in details)
    assert frames[0] == len(TOPICS)
    assert set(frames[1:]) == {1}
    assert transfer.RETRY_SECONDS_MAX < max(pauses) <= transfer.FULL_RETRY_SECONDS_MAX
