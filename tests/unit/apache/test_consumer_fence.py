"""Keeping consumers out of a topic while the brokers' admin API is away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import serving_clients

from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.errors import AdminFailed
from replicator.client import ConsumerBusy
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.connector import BrokerConnector

TOPIC = "persistent://public/default/t"


@asynchronous
async def test_a_subscription_that_is_kept_stays_so_while_the_admin_api_fails(tmp_path: Path) -> None:
    broken = False

    async def answer(request: web.Request) -> web.Response:
        if broken:
            return web.Response(status=500)
        return web.json_response({"subscriptions": {"work": {"isDurable": True}}})

    async with (
        answering(answer) as url,
        opened(tmp_path, "a") as engine,
        serving_clients(engine) as served,
        asked(url) as admin,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        fence = ConsumerFence(connector, admin, "a", TOPIC, bridged=lambda _: True, unloaded=lambda: None)
        application = ConsumerSettings(topic=TOPIC, subscription="work", consumer_name="application")
        await (await connector.open_consumer(application)).close()
        fence.want(True)
        running = asyncio.create_task(fence.run(lambda: None))
        await fence.closed.wait()
        broken = True
        with pytest.raises(AdminFailed):
            await running
        with pytest.raises(ConsumerBusy):
            await connector.open_consumer(application)
        broken = False
        running = asyncio.create_task(fence.run(lambda: None))
        await fence.closed.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await (await connector.open_consumer(application)).close()
        await connector.close()
