"""HTTP routes that only ``replicator verify`` uses: progress of copies, raw blocks, and the repair of blocks.

The routes are ``GET /replication/v1/cuts | raw-blocks | block-heads | twins`` and ``POST /replication/v1/mend``;
docs/http.md has the forms. Blocks are sent without a check of their checksums: verify checks them itself, and wants
corrupt blocks, too.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api import data_plane
from replicator.api.errors import BadRequest, error_response
from replicator.api.guarding import READING, may
from replicator.api.pages import check_room_for_page, send_page
from replicator.api.slices import json_object, topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.arrow import encode_read
from replicator.engine.log.block_heads import encode_heads
from replicator.engine.log.extent_rows import ledgers_of, lives
from replicator.engine.log.link_frame import RECLAIMING_HEADER
from replicator.engine.topic import Topic
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of blocks in one answer. A larger block is sent alone."""
HEADS_MAX: Final = 5_000
"""Most heads in one answer. They take the worker a few hundredths of a second."""

DUPLICATES_MAX: Final = 5_000
"""Most pairs of positions in one answer of ``twins``."""


class BlockRepairer(Protocol):
    """Interface of :class:`replicator.worker.mending.BlockRepair`, which replaces damaged blocks."""

    async def mend(self, topic: Topic, position: Position) -> tuple[str, str]:
        """Replace the damaged block at ``position``; return the outcome, and the reason if the block stays damaged."""


def add_mending(app: web.Application, mends: BlockRepairer) -> None:
    """Add the path by which a damaged block is mended. It has no rule of its own in :mod:`replicator.api.guarding`, so
    it is for superusers."""

    async def mend(request: web.Request) -> web.Response:
        try:
            body: Any = await request.json()
            name, position = str(body["topic"]), Position.parse(body["position"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidPosition) as error:
            raise BadRequest(
                f"the body must be a JSON object with the fields topic and position: {error!r:.100}"
            ) from None
        topic = await request.app[data_plane.ENGINE].topic(name, create=False)
        outcome, reason = await mends.mend(topic, position)
        return web.json_response({"topic": topic.name, "position": str(position), "outcome": outcome, "reason": reason})

    app.router.add_post("/replication/v1/mend", mend)


def add_verifying(app: web.Application) -> None:
    app.add_routes(
        [
            web.get("/replication/v1/cuts", cuts),
            web.get("/replication/v1/raw-blocks", raw_blocks),
            web.get("/replication/v1/block-heads", block_heads),
            web.get("/replication/v1/twins", duplicates),
        ]
    )


async def cuts(request: web.Request) -> web.Response:
    """Answer, for all topics or those named, up to which position of each origin the copy is, and what it lacks."""
    await data_plane.hold_back_for_reclaim(request)
    engine = request.app[data_plane.ENGINE]
    reclaiming = request.headers.get(RECLAIMING_HEADER)

    def cut(topic: Topic) -> str:
        more = {} if reclaiming is None else _for_reclaim(engine, topic, reclaiming)
        return json.dumps({**_cut(engine, topic), **more})

    rows: dict[str, str] = {}
    if named := request.query.getall("topic", []):
        for topic in filter(None, map(engine.find, named)):
            if may(request, READING, topic.name):
                rows[topic.name] = cut(topic)
        return json_object({"cluster": engine.cluster}, "topics", rows)
    async for topic in topics_in_slices(engine):
        if may(request, READING, topic.name):
            rows[topic.name] = cut(topic)
    return json_object({"cluster": engine.cluster}, "topics", rows)


def _cut(engine: Engine, topic: Topic) -> dict[str, Any]:
    marks = topic.origins.high_waters()
    left_out = {origin: holes for origin in marks if (holes := topic.origins.left_out(origin))}
    # The blocks that are compared are read from the store, so all comes from there: the index is trimmed before it.
    trimmed = topic.trimming.recorded()
    return {
        "last": str(topic.log.last),
        "runs": [list(run) for run in topic.log.stored_runs(trimmed.through)],
        "trimmed": str(trimmed.through),
        "trimmed_of": {origin: str(ends[-1]) for origin, ends in trimmed.ends.items() if origin and ends},
        "high_water": {origin: [mark.incarnation, str(mark.position)] for origin, mark in marks.items()},
        "left_out": {origin: [[str(after), str(upto)] for after, upto in holes] for origin, holes in left_out.items()},
        "lineage": engine.origin_stores.as_json(topic),
        "hidden": 0 if topic.log.duplicates is None else len(topic.log.duplicates.hidden),
    }


def _for_reclaim(engine: Engine, topic: Topic, reclaiming: str) -> dict[str, Any]:
    """Return what only a reclaim of the cluster ``reclaiming`` asks of a topic.

    ``lives`` has, by origin, the lives of the topic that have entries here, with the first and last entry of each.
    ``ledgers`` has, by life, the ledgers of ``reclaiming`` that have entries here, with their first and last entries.
    ``held`` says what a deletion of the topic here would delete.
    """
    found = lives(engine.store, topic.topic_id)
    ledgers = ledgers_of(engine.store, topic.topic_id, reclaiming)
    return {
        "lives": {
            origin: [[life, str(first), str(last)] for life, first, last in each] for origin, each in found.items()
        },
        "ledgers": {str(life): each for life, each in ledgers.items()},
        "held": {
            "messages": topic.reading.messages_stored(),
            "of": sorted(topic.origins.message_vector()),
            "subscriptions": len(topic.subscriptions),
        },
    }


async def raw_blocks(request: web.Request) -> web.StreamResponse:
    """Answer with a page of blocks as ``/blocks`` does, but include blocks with wrong checksums."""
    check_room_for_page(request.app)
    topic, after, upto = await _range(request)
    try:
        blocks, reached = topic.reading.blocks(after, upto, bytes_max=PAGE_BYTES, verify=False)
    except BlockCorrupt as error:  # the first one cannot be read, or not even its header is right
        return error_response(error.code, str(error), 500)
    return await send_page(request, encode_read(blocks), _bounds(reached, reached >= upto or not blocks))


async def block_heads(request: web.Request) -> web.StreamResponse:
    """Answer with heads of blocks, without their entries (:data:`~replicator.engine.log.block_heads.HEADS_SCHEMA`)."""
    topic, after, upto = await _range(request)
    try:
        heads = request.app[data_plane.ENGINE].store.block_heads(topic.topic_id, after, upto, blocks_max=HEADS_MAX)
    except BlockCorrupt as error:
        return error_response(error.code, str(error), 500)
    reached = after
    if heads:
        last = heads[-1]
        reached = min(Position(last.first.ledger, last.first.entry + last.header.entries - 1), upto)
    return await send_page(request, encode_heads(heads), _bounds(reached, reached >= upto or not heads))


async def duplicates(request: web.Request) -> web.Response:
    """Answer with pairs of positions: an entry that is hidden as a duplicate, after the earlier entry of the same
    message.

    The hidden entries lie after ``after`` and up to ``upto``, ``upto`` included. An answer has :data:`DUPLICATES_MAX`
    pairs at most; the next page begins after its last hidden entry.
    """
    topic, after, upto = await _range(request)
    pairs: list[list[str]] = []
    if (found := topic.log.duplicates) is None:
        return web.json_response({"twins": pairs})
    for later in found.between(after, upto):
        if later in found.hidden:
            pairs.append([str(found.duplicate_of(later)), str(later)])
            if len(pairs) == DUPLICATES_MAX:
                break
    return web.json_response({"twins": pairs})


def _bounds(reached: Position, at_end: bool) -> dict[str, str]:
    return {"X-Replicator-Next": str(reached), "X-Replicator-End": "true" if at_end else "false"}


async def _range(request: web.Request) -> tuple[Topic, Position, Position]:
    name = request.query.get("topic")
    if not name:
        raise BadRequest("parameter topic is missing")
    topic = await request.app[data_plane.ENGINE].topic(name, create=False)
    last = topic.log.last
    try:
        after = Position.parse(request.query.get("after", str(BEFORE_ALL)))
        upto = min(Position.parse(request.query.get("upto", str(last))), last)
    except InvalidPosition as error:
        raise BadRequest(str(error)) from None
    return topic, after, upto
