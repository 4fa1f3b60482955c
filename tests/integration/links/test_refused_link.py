"""A destination that refuses a link's stream by an HTTP status, while the stream has no end yet."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from replicator.engine.log.link_frame import PROTOCOL_VERSION, UPGRADED_FROM
from replicator.links.errors import PeerRefused
from replicator.links.transport import HttpTransport


@pytest.mark.parametrize("protocol", [PROTOCOL_VERSION, UPGRADED_FROM - 1])
@pytest.mark.parametrize("apart", [False, True], ids=["at once", "status first and reason later"])
def test_a_refusal_is_told_from_a_cancellation_however_it_arrives(apart: bool, protocol: int) -> None:
    async def agree(request: web.Request) -> web.Response:
        return web.json_response({"cluster": "eu-west", "protocol": protocol, "topics": {}})

    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        body = json.dumps({"error": "NotAllowedError", "message": "no link"}).encode()
        response.content_length = len(body)
        await response.prepare(request)
        if apart:
            await response.write(body[:1])
            await asyncio.sleep(0.1)  # a network's: the status has arrived, and is being looked at
        await response.write(body[1:] if apart else body)
        return response

    async def main() -> None:
        application = web.Application()
        application.router.add_get("/replication/v1/high-water", agree)
        application.router.add_post("/replication/v1/append", refuse)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address = f"127.0.0.1:{runner.addresses[0][1]}"
            async with HttpTransport("us-east", "eu-west", address) as transport:
                await transport.high_water(("us-east",))
                with pytest.raises(PeerRefused, match="no link"):
                    await transport.open()
        finally:
            await runner.cleanup()

    asyncio.run(main())
