"""A proxy before a worker's gateway that loses, repeats and delays notifications to watchers of topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from replicator.protocol.commands_pb2 import BaseCommand

Fault = Callable[[bytes], list[bytes]]
"""Function that decides what becomes of a notification: nothing, itself, itself twice, or others that were held back
before."""


class TopicProxy:
    """Proxy that passes everything on unless ``fault`` decides otherwise; counts the frames that the worker sends."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.refusing = False
        """Whether the proxy lets nothing through."""
        self.fault: Fault = lambda frame: [frame]
        self.frames: Counter[str] = Counter()
        """Number of the worker's frames, by type."""
        self.url = ""

    async def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        target = urlsplit(self.target)
        try:
            out_reader, out_writer = await asyncio.open_connection(target.hostname, target.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, out_writer}
        pumps = [
            asyncio.create_task(_pump(reader, out_writer)),
            asyncio.create_task(self._pump_frames(out_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= {writer, out_writer}
            writer.transport.abort()
            out_writer.transport.abort()

    async def _pump_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(int.from_bytes(head, "big"))
            size = int.from_bytes(frame[4:8], "big")
            kind = BaseCommand.FromString(frame[8 : 8 + size]).type
            self.frames[BaseCommand.Type.Name(kind)] += 1
            for each in self.fault(frame) if kind == BaseCommand.WATCH_TOPIC_UPDATE else [frame]:
                writer.write(each)
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(64 * 1024):
        writer.write(piece)
        await writer.drain()


@asynccontextmanager
async def topic_proxy(target: str) -> AsyncIterator[TopicProxy]:
    """Yield a proxy on a port of its own."""
    proxy = TopicProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.cut()
