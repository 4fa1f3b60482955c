"""Pages that this worker sends to readers of its HTTP API, with a limit on the bytes of all that are on their way.

Invariant (DESIGN §3): 11. Slow readers make the worker hold pages, so their bytes are limited, and a reader who takes
nothing for a while is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from aiohttp import web

from replicator.api.frame_receiver import SILENCE_SECONDS_MAX
from replicator.engine.errors import TooBusy
from replicator.running.timeouts import timeout

PAGES_IN_FLIGHT: Final = web.AppKey("pages_in_flight", list[int])
"""The size of each page that is on its way to a reader, in bytes; kept only where the application sets it."""
PAGES_BYTES_MAX: Final = 512 * 1024 * 1024
"""Limit of bytes of all pages in flight, because slow readers make the worker hold them. A page starts while there is
less.
"""
PAGE_PIECE_BYTES: Final = 1024 * 1024


def check_room_for_page(app: web.Application) -> None:
    """Raise :class:`TooBusy` while the pages in flight reach the worker's limit."""
    pages = app.get(PAGES_IN_FLIGHT, [])
    if sum(pages) >= PAGES_BYTES_MAX:
        raise TooBusy(
            f"this worker is sending as much to readers as it may at once, {len(pages)} pages with {sum(pages)} bytes: "
            "try again later"
        )


async def send_page(
    request: web.Request, stream: pa.Buffer | bytes | memoryview, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with an Arrow IPC stream, or with what ``headers`` say that it is."""
    page = memoryview(stream)
    pages = request.app.get(PAGES_IN_FLIGHT, [])
    response = web.StreamResponse(headers={"Content-Type": "application/vnd.apache.arrow.stream", **headers})
    response.content_length = len(page)
    pages.append(len(page))
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            await _write_page(response, page)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:  # the reader has gone, or takes nothing: there is nobody to tell
            request.transport.abort()
    finally:
        pages.remove(len(page))
    return response


async def _write_page(response: web.StreamResponse, page: memoryview) -> None:
    """Write the page in pieces, so that a reader who takes nothing for a while is noticed, and cut off."""
    for start in range(0, len(page), PAGE_PIECE_BYTES):
        async with timeout(SILENCE_SECONDS_MAX):
            await response.write(page[start : start + PAGE_PIECE_BYTES])
