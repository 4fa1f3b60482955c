"""Keeping producers out of a topic while the brokers' admin API is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import eventually
from publishing_support import NOTHING_STORED, TOPIC, publishing

from replicator.apache.errors import AdminFailed, BridgeError
from replicator.apache.names import publishing_producer
from replicator.client import PulsarException
from replicator.client.settings import ProducerSettings

STATS = {"publishers": [{"producerName": publishing_producer("a")}]}


@asynchronous
async def test_producers_are_kept_out_while_it_is_not_known_what_they_published(tmp_path: Path) -> None:
    broken = True
    failures: list[BridgeError] = []

    async def answer(request: web.Request) -> web.Response:
        if broken:
            return web.Response(status=500)
        return web.json_response(STATS if request.path.endswith("/stats") else NOTHING_STORED)

    async with publishing(
        tmp_path, answer, fences=True, begins=failures.clear, fails=failures.append, missing=frozenset
    ) as made:
        await eventually(lambda: len(failures) >= 2)
        assert not made.outgoing.fenced.is_set()
        with pytest.raises(PulsarException, match=publishing_producer("a")):
            await made.connector.open_producer(ProducerSettings(TOPIC, "application", batching=None))
        broken = False
        await eventually(made.outgoing.fenced.is_set)
        await eventually(lambda: not failures)


@asynchronous
async def test_producers_are_kept_out_though_nobody_says_whether_the_topic_is_there(tmp_path: Path) -> None:
    failures: list[BridgeError] = []

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(STATS if request.path.endswith("/stats") else NOTHING_STORED)

    async def ensure() -> None:
        raise AdminFailed("no answer")

    async with publishing(
        tmp_path,
        answer,
        fences=True,
        ensure=ensure,
        begins=failures.clear,
        fails=failures.append,
        missing=frozenset,
    ) as made:
        await eventually(made.outgoing.fenced.is_set)
