"""An admin API of brokers that answers as a test says, and who asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from replicator.apache.admin import BrokerAdmin
from replicator.topology.apache import ApacheSettings

Answering = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[str]:
    """The URL of a server that answers so."""
    server = web.Server(answer)
    runner = web.ServerRunner(server, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def asked(url: str, **auth: str) -> BrokerAdmin:
    places = {"service_url": "pulsar://127.0.0.1:1", "admin_url": url}
    return BrokerAdmin(ApacheSettings.model_validate({**places, "auth": auth}))
