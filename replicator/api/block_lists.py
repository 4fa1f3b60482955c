"""``POST /replication/v1/blocks``: blocks of several topics, by their positions, in one answer.

It serves the carriers of a link's plan. They know which blocks they want and in which order. They take as much as fits
into a frame: two large blocks of one topic, or a small block of each of a thousand topics. The forms are in
docs/http.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from aiohttp import web

from replicator.api import data_plane
from replicator.api.errors import BadRequest
from replicator.api.guarding import READING, may
from replicator.api.json_in_slices import json_in_slices
from replicator.api.pages import check_room_for_page, send_page
from replicator.engine.engine import Engine
from replicator.engine.log.arrow import encode_block_list
from replicator.engine.log.gathering import gather_blocks
from replicator.running.pacing import Pace

BLOCKS_MAX: Final = 20_000
"""Limit of blocks in one request. Its body stays below aiohttp's limit of 1 MiB, and looking them up takes some ten
milliseconds of a thread.
"""
NUMBER_MAX: Final = 2**64 - 1
"""Largest ledger or entry number, limited by the store's keys."""


def routes() -> list[web.RouteDef]:
    return [web.post("/replication/v1/blocks", read_block_list)]


async def read_block_list(request: web.Request) -> web.StreamResponse:
    """Answer with the blocks that start at the given positions, in that order: at least one, then more while they fit
    into a page.
    """
    check_room_for_page(request.app)
    engine = request.app[data_plane.ENGINE]
    pace = Pace(engine.turns)
    wanted, notes = await _wanted(engine, await _body(request, pace), lambda topic: may(request, READING, topic), pace)
    # Checksums are left to whoever stores the blocks: they are checked there in any case, before anything is written.
    found = await asyncio.to_thread(_gathered, engine, wanted, notes)
    check_room_for_page(request.app)  # again: many requests may have waited for the thread
    return await send_page(request, found, {})


def _gathered(engine: Engine, wanted: list[tuple[int, int, int] | None], notes: set[int]) -> pa.Buffer:
    return encode_block_list(*gather_blocks(engine.store, wanted, bytes_max=data_plane.PAGE_BYTES_DEFAULT, notes=notes))


async def _body(request: web.Request, pace: Pace) -> list[Any]:
    try:
        topics = (await json_in_slices(await request.read(), pace))["topics"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"the body must be a JSON object with the field topics: {error}") from None
    if not isinstance(topics, list):
        raise BadRequest("field topics must be a list of [topic, [[ledger, first entry], …]]")
    return topics


async def _wanted(
    engine: Engine, topics: list[Any], readable: Callable[[str], bool], pace: Pace
) -> tuple[list[tuple[int, int, int] | None], set[int]]:
    """Return topic id, ledger and first entry of each block; None for a block of an unknown topic. Also return the
    places of blocks for which the note that they are left out is wanted: their third number is not 0.
    """
    wanted: list[tuple[int, int, int] | None] = []
    notes: set[int] = set()
    try:
        for name, blocks in topics:
            topic = engine.find(name)
            if topic is not None and not readable(topic.name):
                topic = None
            for ledger, first, *note in blocks:
                if any(map(_number, note)):
                    notes.add(len(wanted))
                wanted.append(None if topic is None else (topic.topic_id, _number(ledger), _number(first)))
                if pace.due:
                    await pace.pause()
    except (ValueError, TypeError) as error:
        raise BadRequest(f"field topics must be a list of [topic, [[ledger, first entry], …]]: {error}") from None
    if len(wanted) > BLOCKS_MAX:
        raise BadRequest(f"{len(wanted)} blocks were asked for at once, the limit is {BLOCKS_MAX}: ask for fewer")
    return wanted, notes


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{str(value)[:80]!r} is not a whole number from 0 to {NUMBER_MAX}")
    return value
