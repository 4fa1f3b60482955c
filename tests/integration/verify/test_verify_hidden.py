"""Verify looks at what clusters hide as duplicates by itself: it counts what is rightly so, and reports the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from duplicates_support import ON, copy, numbered, numbered_batch
from engine_support import opened

from replicator.api import verifying
from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.engine.producing.contents import Contents
from replicator.pipeline.errors import PeerUnavailable
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import Link
from snapshots.position import Position

TOPIC = "orders"
FULL_NAME = "persistent://public/default/orders"
BOTH_WAYS = [Link("us-east", "eu-west"), Link("eu-west", "us-east")]


class Idle:
    """A worker that does nothing but answer."""

    def status(self) -> dict[str, Any]:
        return {}

    def ready(self) -> None:
        return None

    def links(self) -> tuple[()]:
        return ()

    async def mappings(self, topics: Sequence[str]) -> dict[str, Any]:
        return {}


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(engine, Idle(), LinkedSources()), shutdown_timeout=0.2)  # type: ignore[arg-type]
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_worker_that_restarts_while_hidden_messages_are_compared_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contents, "alike", lambda *_: True)
    hidden_duplicates, refused = VerifyPlane.hidden_duplicates, [True]

    def away_once(self: VerifyPlane, topic: str, upto: Position) -> Any:
        if refused:
            refused.pop()
            raise PeerUnavailable(f"worker at {self.url}: it restarts")
        return hidden_duplicates(self, topic, upto)

    monkeypatch.setattr(VerifyPlane, "hidden_duplicates", away_once)

    async def main() -> None:
        async with opened(tmp_path / "a", "us-east", ON) as east, opened(tmp_path / "b", "eu-west", ON) as west:
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await a.publish([numbered_batch(1, 3)])
            await b.publish([numbered_batch(1, 3, content="b")])
            await copy(a, b)
            await copy(b, a)
            async with served(east) as url_a, served(west) as url_b:
                urls = {"us-east": url_a, "eu-west": url_b}
                settings = VerifySettings(settle_seconds=0)
                report = await asyncio.to_thread(verify, None, urls, BOTH_WAYS, settings=settings)
        assert refused == []
        assert (report.clean, report.hidden) == (False, 6)

    asyncio.run(main())


@pytest.mark.parametrize("page", [1, 5_000])
@pytest.mark.parametrize("compared", [True, False])
def test_messages_that_are_hidden_and_differ_are_faults_and_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compared: bool, page: int
) -> None:
    """If ``compared`` is false, the clusters hide by ids alone, as an earlier version did."""
    monkeypatch.setattr(verifying, "DUPLICATES_MAX", page)
    if not compared:
        monkeypatch.setattr(Contents, "alike", lambda *_: True)

    async def main() -> None:
        async with opened(tmp_path / "a", "us-east", ON) as east, opened(tmp_path / "b", "eu-west", ON) as west:
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await a.publish([numbered(1), numbered_batch(2, 4), numbered_batch(5, 9)])
            await b.publish([numbered(1, publish_time=2), numbered_batch(2, 4, content="b"), numbered_batch(5, 9)])
            await copy(a, b)
            await copy(b, a)
            async with served(east) as url_a, served(west) as url_b:
                urls = {"us-east": url_a, "eu-west": url_b}
                settings = VerifySettings(settle_seconds=0)
                report = await asyncio.to_thread(verify, None, urls, BOTH_WAYS, settings=settings)
        assert report.hidden == (0 if compared else 6)
        assert {name: counts.duplicates for name, counts in report.clusters.items()} == dict.fromkeys(urls, 6)
        assert report.clean is compared
        if not compared:
            found = report.as_json()["topics"][FULL_NAME]["hidden"]
            assert found["count"] == 6
            assert any("3 messages of eu-west at us-east" in example for example in found["examples"])

    asyncio.run(main())
