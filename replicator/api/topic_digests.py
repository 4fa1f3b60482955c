"""Routes for ``replicator verify``: states and digests of many topics in one request.

The routes are ``POST /replication/v1/topic-states`` and ``…/topic-digests``; :mod:`replicator.peering.comparing` has
the messages.

The worker reads the whole log of a topic for its digest. It keeps serving clients meanwhile:

1. The event loop copies only the state that no other thread may read, such as acknowledgements, in slices of some
   milliseconds.
2. One thread reads and hashes the logs for all requests.
3. One request is worked on for :data:`ANSWER_SECONDS`. The answer names the topics that are left, and the client asks
   for them again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from aiohttp import web

from replicator.api.data_plane import ENGINE, exact_state
from replicator.api.errors import BadRequest
from replicator.api.guarding import READING, may
from replicator.api.slices import in_slices, json_object
from replicator.engine.errors import EngineError
from replicator.engine.log.store import Store
from replicator.engine.topic import Topic
from replicator.engine.topic_digest import DIGEST_FORM, Acknowledged, LogDigester, NoDigest, TopicDigest
from replicator.peering.comparing import (
    DIGESTS_ROUTE,
    POSITIONS_MAX,
    STATES_ROUTE,
    TOPICS_MAX,
    DigestsAsked,
    StatesAsked,
    digest_as_json,
    mapping_as_json,
)
from snapshots.errors import InvalidPosition
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position

ANSWER_SECONDS: Final = 1.0
"""How long the worker works on one request. It is short, so that requests of several clients take turns."""
DIGEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest log that gets a digest, in stored bytes: some hundredths of a second. Verify reads larger ones."""
READ_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of blocks in memory while a digest is made. A larger block is read alone."""
TURN_TOPICS: Final = 50
"""Topics that the event loop hands to the thread at once."""
TURN_SECONDS: Final = 0.1
"""Time for which the thread works on the topics of one turn."""
NO_MAPPINGS: Final = "snapshot mappings are kept in Postgres, which is away; try again later"

_T = TypeVar("_T")
_THREAD: Final = web.AppKey("digests", ThreadPoolExecutor)


class MappingSource(Protocol):
    """Interface of whatever reads snapshot mappings from Postgres."""

    async def mappings(self, topics: Sequence[str]) -> Mapping[str, Sequence[SnapshotMapping]] | None:
        """Return the snapshot mappings of ``topics`` by topic; None while Postgres does not answer."""


def add_topic_digests(app: web.Application, source: MappingSource) -> None:
    """Add both routes to ``app``, and the thread that makes digests. Snapshot mappings come from ``source``."""
    app[_THREAD] = ThreadPoolExecutor(1, thread_name_prefix="digests")

    async def end_thread(_: web.Application) -> None:
        await asyncio.to_thread(app[_THREAD].shutdown, cancel_futures=True)

    async def states(request: web.Request) -> web.Response:
        """Answer with the subscriptions and snapshot mappings of many topics."""
        return await _topic_states(request, source)

    app.on_cleanup.append(end_thread)
    app.add_routes([web.post(STATES_ROUTE, states), web.post(DIGESTS_ROUTE, topic_digests)])


async def _topic_states(request: web.Request, source: MappingSource) -> web.Response:
    engine = request.app[ENGINE]
    asked = await _asked(request, StatesAsked.of_json)
    _check_count(asked.topics)
    topics = _found(request, asked.topics)
    mappings = await source.mappings([topic.name for topic in topics]) if asked.mappings else {}
    deadline = time.perf_counter() + ANSWER_SECONDS
    rows: dict[str, str] = {}
    async for topic in in_slices(request.app[ENGINE], topics):
        if rows and time.perf_counter() >= deadline:
            break
        of_topic = () if mappings is None else mappings.get(topic.name, ())
        states = [exact_state(topic, name) for name in topic.subscriptions]
        mapped = [mapping_as_json(each) for each in of_topic]
        row = {"subscriptions": states, "mappings": mapped, "deleted": dict(topic.subscriptions.tombstones)}
        rows[topic.name] = json.dumps(row)
    answer = {
        "cluster": engine.cluster,
        "no_mappings": NO_MAPPINGS if mappings is None else None,
        "left": [topic.name for topic in topics[len(rows) :]],
    }
    return json_object(answer, "topics", rows)


async def topic_digests(request: web.Request) -> web.Response:
    """Answer with digests of many topics, which are equal only if clusters agree on a topic."""
    asked = await _asked(request, DigestsAsked.of_json)
    _check_count(list(asked.topics))
    if (count := sum(map(len, asked.topics.values()))) > POSITIONS_MAX:
        raise BadRequest(f"{count} positions were asked for at once, the limit is {POSITIONS_MAX}")
    engine = request.app[ENGINE]
    rows: dict[str, str] = {}
    left = _found(request, asked.topics) if asked.form == DIGEST_FORM else []
    deadline = time.perf_counter() + ANSWER_SECONDS
    while left and (not rows or time.perf_counter() < deadline):
        turn = [_wanted(topic, asked.topics) async for topic in in_slices(request.app[ENGINE], left[:TURN_TOPICS])]
        running = asyncio.get_running_loop().run_in_executor(request.app[_THREAD], _digests, engine.store, turn)
        rows |= await running
        left = [topic for topic in left if topic.name not in rows]
    answer = {"cluster": engine.cluster, "form": DIGEST_FORM, "left": [topic.name for topic in left]}
    return json_object(answer, "topics", rows)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Topic whose digest is to be made: a copy of its state, taken on the event loop, for the thread that makes
    digests."""

    name: str
    topic_id: int
    trimmed: Position
    last: Position
    acknowledged: Sequence[Acknowledged]
    positions: Sequence[Position]


def _wanted(topic: Topic, asked: Mapping[str, Sequence[Position]]) -> _Wanted:
    states = [(name, each.cursor.state) for name, each in topic.subscriptions.items()]
    return _Wanted(
        topic.name,
        topic.topic_id,
        topic.log.trimmed,
        topic.log.last,
        [
            Acknowledged(name, state.mark_delete, state.individually_deleted.copy(), state.batch_acks.copy())
            for name, state in states
            if state.replicated
        ],
        asked.get(topic.name, ()),
    )


def _digests(store: Store, wanted: Sequence[_Wanted]) -> dict[str, str]:
    """Return digests as JSON by topic, for as many of ``wanted`` as :data:`TURN_SECONDS` allow, and at least one.

    ``null`` stands for a topic that has no digest: its log is too large, damaged or out of order.
    """
    deadline = time.perf_counter() + TURN_SECONDS
    rows: dict[str, str] = {}
    for each in wanted:
        if rows and time.perf_counter() >= deadline:
            break
        digest = _digest(store, each)
        rows[each.name] = "null" if digest is None else json.dumps(digest_as_json(digest))
    return rows


def _digest(store: Store, wanted: _Wanted) -> TopicDigest | None:
    digester = LogDigester(wanted.acknowledged, wanted.positions)
    after, read_bytes = wanted.trimmed, 0
    try:
        while after < wanted.last:
            blocks, after = store.read_blocks(wanted.topic_id, after, wanted.last, bytes_max=READ_BYTES, verify=False)
            if not blocks:
                break
            read_bytes += sum(len(stored.block) for stored in blocks)
            if read_bytes > DIGEST_BYTES_MAX or blocks[0].position <= wanted.trimmed:
                return None
            for stored in blocks:
                digester.take(stored.position, stored.block)
    except (NoDigest, EngineError):
        return None
    return digester.result()


async def _asked(request: web.Request, read: Callable[[Any], _T]) -> _T:
    try:
        return read(await request.json())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidPosition) as error:
        raise BadRequest(f"the body must be a JSON object with the field topics: {error!r:.200}") from None


def _check_count(names: Sequence[str]) -> None:
    if len(names) > TOPICS_MAX:
        raise BadRequest(f"{len(names)} topics were asked for at once, the limit is {TOPICS_MAX}")


def _found(request: web.Request, names: Sequence[str] | Mapping[str, Any]) -> list[Topic]:
    """Return, each once, the topics in ``names`` that this cluster has and that the request's role may read."""
    engine = request.app[ENGINE]
    found = {topic.name: topic for name in names if (topic := engine.find(name)) is not None and topic.deleted is None}
    return [topic for name, topic in found.items() if may(request, READING, name)]
