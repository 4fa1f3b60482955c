"""A destination that is full refuses what a link brings, and logs no traceback for it."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, message, opened, serving

from replicator.engine.engine import EngineSettings
from replicator.links import link as links
from replicator.links.link import Link


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon; the pauses still grow."""
    monkeypatch.setattr(links, "RETRY_SECONDS_MIN", 0.005)
    monkeypatch.setattr(links, "RETRY_SECONDS_MAX", 0.05)


def test_a_destination_that_is_full_logs_no_traceback_for_what_it_refuses(tmp_path: Path) -> None:
    unheard: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with (
            opened(tmp_path / "us-east") as east,
            opened(tmp_path / "eu-west", "eu-west", EngineSettings(store_bytes_max=1024 * 1024)) as west,
            serving(west, {"us-east"}) as server,
        ):
            link = Link(east, "eu-west", server.address)
            link.start()
            topics = [await east.topic(f"t{number}") for number in range(30)]
            for _ in range(3):
                for topic in topics:
                    await topic.publish([message(bytes(60_000))])
            await eventually(lambda: link.figures.reconnects >= 4 and "StoreFull" in link.detail)
            await link.stop()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unheard == []
