"""A drill's topic is removed from clusters that run until none has it, though links bring it back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from answering_admin import answering
from asynchronous import asynchronous

from replicator.drills import canary
from replicator.operating import topic_removal
from replicator.topology import default_topology

TOPIC = canary.canary_topic("public/canary", "move-1")


@asynccontextmanager
async def cluster_that_has_it(times: int) -> AsyncIterator[tuple[int, list[str]]]:
    """Its port, and what it was asked: so many times the topic is there again."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        if len(asked) <= times:
            return web.Response(status=204)
        return web.json_response({"error": "topic_not_found", "reason": "none"}, status=topic_removal.NOT_FOUND)

    async with answering(answer) as url:
        yield urlsplit(url).port or 0, asked


@asynchronous
async def test_a_topic_that_a_link_brings_back_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_removal, "REMOVAL_SECONDS", 0.01)
    async with cluster_that_has_it(2) as (first, asked), cluster_that_has_it(1) as (second, asked_too):
        assert await topic_removal.remove_topic(default_topology(tmp_path, (first, second)).clusters, TOPIC) == []
    assert len(asked) == len(asked_too) == 3
    assert set(asked) == {"DELETE /admin/v2/persistent/public/canary/replicator-drill-move-1"}


@asynchronous
async def test_one_that_comes_back_for_ever_is_named_with_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_removal, "REMOVAL_SECONDS", 0.01)
    async with cluster_that_has_it(1_000) as (first, asked), cluster_that_has_it(0) as (second, _):
        left = await topic_removal.remove_topic(default_topology(tmp_path, (first, second)).clusters, TOPIC)
    assert [str(each) for each in left] == ["us-east: it comes back"]
    assert len(asked) == topic_removal.REMOVALS
