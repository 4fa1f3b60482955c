"""Messages and a subscription that cannot be made at the brokers: they wait for it once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import entries_of, eventually, make_block, message, opened
from gateway_support import serving_clients

from replicator.apache import outgoing as publishing_of_a_topic
from replicator.apache.confirmed import Confirmed
from replicator.apache.outgoing import Outgoing
from replicator.apache.publish_room import PublishRoom
from replicator.apache.published import load_map
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.log.requests import CopiedBlock
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"
NOTHING_STORED = {
    "lastConfirmedEntry": "0:-1",
    "pendingAddEntriesCount": 0,
    "lastLedgerCreatedTimestamp": "",
    "ledgers": [],
    "numberOfEntries": 0,
    "cursors": {},
}
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

    async with (
        answering(answer) as url,
        opened(tmp_path / "brokers", "b") as brokers,
        serving_clients(brokers) as served,
        opened(tmp_path / "a", "a") as engine,
        asked(url) as admin,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        topic = await engine.topic(TOPIC, by_link=True)
        at_brokers = await brokers.topic(TOPIC)
        outgoing = Outgoing(
            connector,
            admin,
            "a",
            topic,
            load_map(engine.store, topic.topic_id, "a.pulsar"),
            engine.schemas,
            Confirmed(),
            PublishRoom(),
            begins=lambda: None,
            fails=lambda _: None,
            missing=missing,
        )
        loop = asyncio.get_running_loop()
        publishing = asyncio.create_task(outgoing.publish())
        looks: list[int] = []
        began = loop.time()
        for number in range(5):
            previous = Position(1, number - 1) if number else BEFORE_ALL
            block = make_block(Position(1, number), [message(b"%d" % number)], origin="c")
            await topic.writing.copy([CopiedBlock(previous, block)])
            outgoing.wake()
            await eventually(lambda number=number: len(entries_of(at_brokers, "b")) == number + 1)
            if not number:
                assert loop.time() - began >= WAIT_SECONDS
            looks.append(len(looked))
        # It looks again and again only while it waits: about ten times for the first one.
        assert looks[-1] - looks[0] <= 8, looks
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        await connector.close()
