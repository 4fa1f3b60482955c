"""Group ``shared-port``: HTTP on the port that it shares with the binary protocol, beside HTTP on a port of its own.

The same application, in one process of its own, serves both ports in the same event loop; the client here asks one and
the other in turn. Requests are small ones on a connection that stays, small ones on a new connection each, and bodies
streamed up in chunks of 1 MB.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from bench.measurement import Measurement

RUNS: Final = 3
REQUESTS: Final = 1_000
NEW_CONNECTIONS: Final = 300
CHUNK: Final = bytes(1_000_000)
CHUNKS: Final = 1_000
READ_BYTES: Final = 1 << 18
PEER: Final = "plain HTTP port"
_ROOT: Final = Path(__file__).parents[1]


async def measure_shared_port(directory: Path) -> list[Measurement]:
    """Return all figures of group ``shared-port``, with the gateway's engine in ``directory``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.shared_port", str(directory)),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        shared, plain = (f"http://127.0.0.1:{port}" for port in (await process.stdout.readline()).decode().split())
        return [
            await _compare("shared-port/request", "requests/s", shared, plain, _requests),
            await _compare("shared-port/new-connection", "requests/s", shared, plain, _new_connections),
            await _compare("shared-port/upload-1MB-chunks", "MB/s", shared, plain, _upload),
        ]
    finally:
        process.stdin.close()
        await process.wait()


Work = Callable[[str], Coroutine[Any, Any, float]]


async def _compare(name: str, unit: str, shared: str, plain: str, work: Work) -> Measurement:
    runs: dict[str, list[float]] = {shared: [], plain: []}
    for number in range(RUNS + 1):
        for url in (shared, plain):
            rate = await work(url)
            if number:  # the first one only warms up
                runs[url].append(rate)
    return Measurement(name, unit, tuple(runs[shared]), PEER, tuple(runs[plain]))


async def _requests(url: str) -> float:
    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        for _ in range(REQUESTS):
            async with session.get(f"{url}/small") as response:
                await response.read()
        return REQUESTS / (time.perf_counter() - began)


async def _new_connections(url: str) -> float:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        began = time.perf_counter()
        for _ in range(NEW_CONNECTIONS):
            async with session.get(f"{url}/small") as response:
                await response.read()
        return NEW_CONNECTIONS / (time.perf_counter() - began)


async def _upload(url: str) -> float:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            yield CHUNK

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        async with session.post(f"{url}/upload", data=chunks()) as response:
            assert int(await response.text()) == CHUNKS * len(CHUNK)
        return CHUNKS * len(CHUNK) / 1e6 / (time.perf_counter() - began)


# From here on: the process that serves.


async def _serve(directory: Path) -> None:
    """Serve one small web application on two ports until stdin ends.

    It shares the first port with the binary protocol of an engine, and has the second one for itself. Print the numbers
    of both in one line, in this order.
    """
    from replicator.engine.engine import Engine
    from replicator.gateway.connection import Addresses
    from replicator.gateway.server import Gateway

    app = web.Application(client_max_size=0)
    app.router.add_get("/small", _small)
    app.router.add_post("/upload", _uploaded)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    engine = await Engine.open(directory, cluster="bench")
    try:
        shared, plain = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        gateway = Gateway(engine, Addresses(f"pulsar://127.0.0.1:{shared.getsockname()[1]}"))
        assert runner.server is not None
        await gateway.share(shared, runner.server)
        await web.SockSite(runner, plain).start()
        print(shared.getsockname()[1], plain.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await gateway.stop()
        await runner.cleanup()
    finally:
        await engine.close()


async def _small(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _uploaded(request: web.Request) -> web.Response:
    taken = 0
    async for piece in request.content.iter_chunked(READ_BYTES):
        taken += len(piece)
    return web.Response(text=str(taken))


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))
