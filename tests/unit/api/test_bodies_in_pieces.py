"""Bodies that arrive in several pieces are read to their end, and not only up to the end of the first piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar

from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from asynchronous import asynchronous

from replicator.api.topology import _asked
from replicator.operating.plan import _is_failed

_T = TypeVar("_T")
TURNS = 20
"""Turns of the event loop in which a reader gets as far as it can with what is there."""


def stream() -> StreamReader:
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    return StreamReader(protocol, limit=65_536, loop=loop)


async def read_in_pieces(body: StreamReader, reading: Awaitable[_T], *pieces: bytes) -> _T:
    """Return what ``reading`` returns, whose body comes one piece at a time."""
    task = asyncio.ensure_future(reading)
    for piece in pieces:
        body.feed_data(piece)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    body.feed_eof()
    return await task


@asynchronous
async def test_what_a_reload_is_asked_for_may_come_in_pieces() -> None:
    body = stream()
    request = make_mocked_request("POST", "/replication/v1/topology/reload", payload=body)
    assert await read_in_pieces(body, _asked(request), b'{"digest": "ab', b'cd", "dry_run"', b": true}") == (
        "abcd",
        True,
    )


@asynchronous
async def test_a_worker_whose_store_failed_may_say_so_in_pieces() -> None:
    body = stream()
    response: Any = SimpleNamespace(status=503, content=body)
    assert await read_in_pieces(body, _is_failed(response), b'{"status": "fai', b'led", "message": "broken"}')
