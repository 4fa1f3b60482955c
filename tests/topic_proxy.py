"""A proxy before a worker's client API that loses, repeats and holds back what watchers of topics are told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import WSMsgType, web

Fault = Callable[[str], list[str]]
"""What becomes of a frame of type ``changed``: nothing, itself, itself twice, or others that were held back before."""


class TopicProxy:
    """Passes everything on but what ``fault`` says; counts the frames about topics, and their bytes."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._sockets: set[web.WebSocketResponse] = set()
        self._others: set[web.WebSocketResponse] = set()
        self.refusing = False
        """Whether nothing but topics can be reached."""
        self.fault: Fault = lambda frame: [frame]
        self.frames: Counter[str] = Counter()
        """By type, in both directions."""
        self.url = ""

    async def cut(self) -> None:
        """Break the connections of all watchers."""
        for socket in list(self._sockets):
            await socket.close()

    async def cut_others(self) -> None:
        """Break the connections of all producers and consumers."""
        for socket in list(self._others):
            await socket.close()

    async def _topics(self, request: web.Request) -> web.WebSocketResponse:
        return await self._pass(request, self._faulty, self._sockets)

    async def _other(self, request: web.Request) -> web.StreamResponse:
        if self.refusing:
            raise web.HTTPServiceUnavailable
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._pass(request, lambda frame: [frame], self._others)
        async with aiohttp.ClientSession() as session, session.get(self._target + request.path_qs) as response:
            return web.Response(body=await response.read(), status=response.status, content_type=response.content_type)

    def _faulty(self, frame: str) -> list[str]:
        kind = json.loads(frame)["type"]
        self.frames[kind] += 1
        return self.fault(frame) if kind == "changed" else [frame]

    async def _pass(
        self, request: web.Request, fault: Fault, sockets: set[web.WebSocketResponse]
    ) -> web.WebSocketResponse:
        inner = web.WebSocketResponse(max_msg_size=2**23)
        await inner.prepare(request)
        sockets.add(inner)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(self._target + request.path_qs, max_msg_size=2**23) as outer,
            ):
                pumps = [
                    asyncio.create_task(_pump(inner, outer, lambda frame: [frame])),
                    asyncio.create_task(_pump(outer, inner, fault)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            sockets.discard(inner)
            await inner.close()
        return inner


async def _pump(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    fault: Fault,
) -> None:
    async for message in source:
        if message.type is WSMsgType.BINARY:
            await sink.send_bytes(message.data)
        elif message.type is WSMsgType.TEXT:
            for frame in fault(message.data):
                await sink.send_str(frame)


@asynccontextmanager
async def topic_proxy(target: str) -> AsyncIterator[TopicProxy]:
    """A proxy on a port of its own."""
    proxy = TopicProxy(target)
    app = web.Application()
    app.add_routes([web.get("/client/v1/topics", proxy._topics), web.get("/{path:.*}", proxy._other)])
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield proxy
    finally:
        await runner.cleanup()
