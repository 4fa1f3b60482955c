"""A destination that refuses a link's stream by an HTTP status, while the stream has no end yet; or answers slowly."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from replicator.engine.log.link_frame import PROTOCOL_VERSION, UPGRADED_FROM
from replicator.links import transport as transports
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


def test_marks_that_take_longer_than_the_silence_limit_arrive_over_a_slow_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a link with many topics would never get as far as to its first frame."""
    monkeypatch.setattr(transports, "SILENCE_SECONDS_MAX", 3.0)
    topics = {f"t-{number}": {} for number in range(8)}

    async def answer_slowly(request: web.Request) -> web.StreamResponse:
        body = json.dumps({"cluster": "eu-west", "protocol": PROTOCOL_VERSION, "topics": topics}).encode()
        response = web.StreamResponse()
        await response.prepare(request)
        for first in range(0, len(body), len(body) // 8):
            await response.write(body[first : first + len(body) // 8])
            await asyncio.sleep(0.5)  # a network's
        return response

    async def main() -> None:
        application = web.Application()
        application.router.add_get("/replication/v1/high-water", answer_slowly)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address = f"127.0.0.1:{runner.addresses[0][1]}"
            async with HttpTransport("us-east", "eu-west", address) as transport:
                assert await transport.high_water(("us-east",)) == topics
        finally:
            await runner.cleanup()

    asyncio.run(main())
