"""A destination that is full refuses what a link brings, and logs no traceback, also when the link has gone by then."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

from engine_support import eventually, make_block, message, opened, serving
from frame_support import asked, frame_of, framed

from replicator.engine.engine import EngineSettings
from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.requests import Committed, CopyRequest, Request
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
