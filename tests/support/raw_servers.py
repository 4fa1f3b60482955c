"""Servers of raw sockets for tests, whose connections are closed when the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

HANDLERS_SECONDS_MAX = 1.0
"""Longest wait for handlers whose client has gone. Then they are cancelled."""


async def start_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]],
    host: str | None = None,
    port: int | None = None,
    **options: Any,
) -> asyncio.Server:
    """Start a server as :func:`asyncio.start_server` does. Leaving its ``async with`` waits until all handlers have
    ended and their connections are closed.

    Python 3.11 waits for nothing there. A connection that is left open is found by a later collection of garbage, and
    fails whatever test runs then.
    """
    handlers: set[asyncio.Task[None]] = set()

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(handled, host, port, **options)
    closed = server.wait_closed

    async def wait_closed() -> None:
        if handlers:
            _, late = await asyncio.wait(handlers, timeout=HANDLERS_SECONDS_MAX)
            for task in late:
                task.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
        await closed()

    server.wait_closed = wait_closed  # type: ignore[method-assign]
    return server
