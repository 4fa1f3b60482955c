"""Keeping producers out of a topic while the brokers' admin API is away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import eventually, opened
from gateway_support import serving_clients

from replicator.apache.confirmed import Confirmed
from replicator.apache.errors import BridgeError
from replicator.apache.names import publishing_producer
from replicator.apache.outgoing import Outgoing
from replicator.apache.publish_room import PublishRoom
from replicator.apache.published import load_map
from replicator.client import PulsarException
from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector

TOPIC = "persistent://public/default/t"
STATS = {"publishers": [{"producerName": publishing_producer("a")}]}
INTERNALS = {
    "lastConfirmedEntry": "0:-1",
    "pendingAddEntriesCount": 0,
    "lastLedgerCreatedTimestamp": "",
    "ledgers": [],
    "numberOfEntries": 0,
    "cursors": {},
}


@asynchronous
async def test_producers_are_kept_out_while_it_is_not_known_what_they_published(tmp_path: Path) -> None:
    broken = True

    async def answer(request: web.Request) -> web.Response:
        if broken:
            return web.Response(status=500)
        return web.json_response(STATS if request.path.endswith("/stats") else INTERNALS)

    async with (
        answering(answer) as url,
        opened(tmp_path / "brokers", "b") as brokers,
        serving_clients(brokers) as served,
        opened(tmp_path / "a", "a") as engine,
        asked(url) as admin,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        topic = await engine.topic(TOPIC, by_link=True)
        failures: list[BridgeError] = []
        outgoing = Outgoing(
            connector,
            admin,
            "a",
            topic,
            load_map(engine.store, topic.topic_id, "a.pulsar"),
            engine.schemas,
            Confirmed(),
            PublishRoom(),
            begins=failures.clear,
            fails=failures.append,
            missing=frozenset,
        )
        outgoing.fence(True)
        publishing = asyncio.create_task(outgoing.publish())
        await eventually(lambda: len(failures) >= 2)
        assert not outgoing.fenced.is_set()
        with pytest.raises(PulsarException, match=publishing_producer("a")):
            await connector.open_producer(ProducerSettings(TOPIC, "application", batching=None))
        broken = False
        await eventually(outgoing.fenced.is_set)
        await eventually(lambda: not failures)
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        await connector.close()
