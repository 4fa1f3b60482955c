"""Messages and a subscription that cannot be made at the brokers: they wait for it once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import entries_of, eventually, make_block, message
from publishing_support import NOTHING_STORED, publishing

from replicator.apache import outgoing as publishing_of_a_topic
from replicator.engine.log.requests import CopiedBlock
from snapshots.position import BEFORE_ALL, Position

WAIT_SECONDS = 0.5


@asynchronous
async def test_messages_wait_for_a_subscription_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing_of_a_topic, "SUBSCRIPTIONS_SECONDS_MAX", WAIT_SECONDS)
    looked: list[int] = []

    def missing() -> frozenset[str]:
        looked.append(1)
        return frozenset({"late"})

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(NOTHING_STORED)

    async with publishing(tmp_path, answer, begins=lambda: None, fails=lambda _: None, missing=missing) as made:
        loop = asyncio.get_running_loop()
        looks: list[int] = []
        began = loop.time()
        for number in range(5):
            previous = Position(1, number - 1) if number else BEFORE_ALL
            block = make_block(Position(1, number), [message(b"%d" % number)], origin="c")
            await made.topic.writing.copy([CopiedBlock(previous, block)])
            made.outgoing.wake()
            await eventually(lambda number=number: len(entries_of(made.at_brokers, "b")) == number + 1)
            if not number:
                assert loop.time() - began >= WAIT_SECONDS
            looks.append(len(looked))
        # It looks again and again only while it waits: about ten times for the first one.
        assert looks[-1] - looks[0] <= 10, looks
