"""Questions of a reader of many topics before it reads: where each topic stands, how large ranges are, and what
position a topic had at a time. ``GET /replication/v1/positions``, ``POST /replication/v1/measure | positions-at``;
the forms are in docs/http.md. A reader that asks each second about ten thousand quiet topics gets only those that
changed: :class:`PositionsJournal`.

``GET /replication/v1/positions``, ``POST /replication/v1/measure | positions-at``; the forms are in docs/http.md. Who
comes back each second over ten thousand quiet topics is told only of those that changed: :class:`PositionsJournal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiohttp import web

from replicator.api.data_plane import ENGINE
from replicator.api.errors import BadRequest
from replicator.api.guarding import READING, is_superuser_request, may
from replicator.api.slices import in_slices
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

RANGES_MAX: Final = 1_000
"""Ranges to be measured, or topics to be searched, in one request, so that it is answered in bounded time."""
MEASURED_BLOCKS_MAX: Final = 20_000
"""Block headers that are read for one request: about 0.1 s, a page of them at a time."""
PAGE_BLOCKS: Final = 500
"""Limit of block headers read at once: that takes some milliseconds, after which others have their turn."""
DELETED_KEPT_MAX: Final = 10_000
"""Names of topics that are gone, for readers to be told; who was told last before that many begins anew."""


class _Standing(NamedTuple):
    """Values of a topic's row. If one of them changes, the row is new."""

    incarnation: int
    trimmed: Position
    last: Position


@dataclass(slots=True)
class PositionsJournal:
    """Record of the topics that changed since an earlier answer, which the answer's token identifies.

    1. :meth:`refresh` compares where each topic stands with what was seen last, and gives each that changed, came or
       went the next version.
    2. A token is the version that an answer was made at, and the life of this process: after a restart, or where too
       many names were forgotten since, :meth:`since` says that all must be told again.
    """

    life: str
    version: int = 0
    _seen: dict[str, tuple[int, _Standing]] = field(default_factory=dict)
    _deleted: dict[str, int] = field(default_factory=dict)
    _forgotten: int = 0
    """The version of the last deletion that is not kept any more."""

    @property
    def token(self) -> str:
        return f"{self.life}-{self.version}"

    def refresh(self, standings: Mapping[str, _Standing]) -> None:
        following = self.version + 1
        for name, standing in standings.items():
            seen = self._seen.get(name)
            if seen is None or seen[1] != standing:
                self._seen[name] = (following, standing)
                self._deleted.pop(name, None)
                self.version = following
        for name in self._seen.keys() - standings.keys() if len(self._seen) > len(standings) else ():
            del self._seen[name]
            self._deleted[name] = self.version = following
        while len(self._deleted) > DELETED_KEPT_MAX:
            self._forgotten = max(self._forgotten, self._deleted.pop(next(iter(self._deleted))))

    def since(self, token: str) -> tuple[list[str], list[str]] | None:
        """Return the names that changed and those that went since ``token``; None if everything must be told again."""
        life, _, version = token.rpartition("-")
        if life != self.life or not version.isdecimal() or not self._forgotten <= int(version) <= self.version:
            return None
        known = int(version)
        changed = [name for name, (changed_at, _) in self._seen.items() if changed_at > known]
        return changed, [name for name, deleted_at in self._deleted.items() if deleted_at > known]


JOURNAL: Final = web.AppKey("positions_journal", PositionsJournal)
"""Kept only where the application sets it; else every answer is whole."""


def routes() -> list[web.RouteDef]:
    return [
        web.get("/replication/v1/positions", list_positions),
        web.post("/replication/v1/measure", measure),
        web.post("/replication/v1/positions-at", positions_at),
    ]


def add_reading(app: web.Application, life: str) -> None:
    """Serve these paths; ``life`` is a name that no other process of this cluster has had."""
    app[JOURNAL] = PositionsJournal(life)
    app.add_routes(routes())


async def list_positions(request: web.Request) -> web.Response:
    """Answer with the positions of each topic, or of each that changed since the answer with the token ``since``."""
    engine = request.app[ENGINE]
    topics = {topic.name: topic for topic in engine.topics() if topic.name != EPOCHS_TOPIC}
    journal = request.app.get(JOURNAL)
    changes, token = None, ""
    if journal is not None:
        journal.refresh(
            {name: _Standing(topic.incarnation, topic.log.trimmed, topic.log.last) for name, topic in topics.items()}
        )
        token = journal.token
        if is_superuser_request(request):  # others may have been granted something that has not changed since
            changes = journal.since(request.query.get("since", ""))
    named, deleted = (topics.keys(), []) if changes is None else changes
    return web.json_response(
        {
            "cluster": engine.cluster,
            "token": token,
            "whole": changes is None,
            "topics": [
                _row(topics[name]) async for name in in_slices(engine, list(named)) if may(request, READING, name)
            ],
            "deleted": [name for name in deleted if may(request, READING, name)],
        }
    )


def _row(topic: Topic) -> list[Any]:
    runs = topic.log.runs_between(BEFORE_ALL, topic.log.last)
    return [topic.name, topic.incarnation, str(topic.log.trimmed), [list(run) for run in runs]]


async def measure(request: web.Request) -> web.Response:
    """Answer how much lies in ranges of topics, from the headers of their blocks. Each range has a limit, and all
    together have one.
    """
    engine = request.app[ENGINE]
    body = await _body(request)
    with _Form():
        bytes_max = int(body["bytes_max"])
        ranges = [
            (str(topic), Position.parse(after), Position.parse(upto), int(limit))
            for topic, after, upto, limit in _rows(body["ranges"])
        ]
    measured: list[list[Any] | None] = []
    taken = blocks = 0
    for name, after, upto, limit in ranges:
        if measured and (taken >= bytes_max or blocks >= MEASURED_BLOCKS_MAX):
            break
        topic = engine.find(name)
        if topic is None or not may(request, READING, topic.name):
            measured.append(None)
            continue
        reached, size_bytes, counted = await _measure_range(engine, topic, after, upto, min(limit, bytes_max - taken))
        taken += size_bytes
        blocks += counted
        messages = topic.reading.messages_through(reached) - topic.reading.messages_through(after)
        measured.append([str(reached), topic.log.entries_between(after, reached), messages, size_bytes])
    return web.json_response({"cluster": engine.cluster, "ranges": measured})


async def _measure_range(
    engine: Engine, topic: Topic, after: Position, upto: Position, bytes_max: int
) -> tuple[Position, int, int]:
    """Measure whole blocks from ``after`` on while they fit, the first in any case. Return the last position, the bytes
    and the number.
    """
    reached, size_bytes, blocks = after, 0, 0
    upto = min(upto, topic.log.last)
    while reached < upto and blocks < MEASURED_BLOCKS_MAX:
        page = engine.store.block_spans(topic.topic_id, reached, blocks_max=PAGE_BLOCKS)
        for block in page:
            if block.first > upto or (blocks and size_bytes + block.size_bytes > bytes_max):
                return reached, size_bytes, blocks
            reached, size_bytes, blocks = min(block.last, upto), size_bytes + block.size_bytes, blocks + 1
        if len(page) < PAGE_BLOCKS:
            break
        await asyncio.sleep(0)
    return reached, size_bytes, blocks


async def positions_at(request: web.Request) -> web.Response:
    """Answer, for each topic, with the last position before the first message published at a time or later."""
    engine = request.app[ENGINE]
    body = await _body(request)
    with _Form():
        time_ms = int(body["time_ms"])
        names = [str(name) for name in _rows(body["topics"])]
    found: dict[str, str] = {}
    for name in names:
        if (topic := engine.find(name)) is not None and may(request, READING, topic.name):
            found[name] = str(await topic.reading.position_at_time(time_ms, after=topic.log.trimmed))
    return web.json_response({"cluster": engine.cluster, "topics": found})


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not an object in JSON")
    return body


def _rows(rows: object) -> Iterable[Any]:
    if not isinstance(rows, list):
        raise TypeError("a list is expected")
    if len(rows) > RANGES_MAX:
        raise BadRequest(f"{len(rows)} ranges or topics were asked for at once, the limit is {RANGES_MAX}")
    return rows


class _Form:
    """Turns errors in the form of a body into the API's error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KeyError):
            raise BadRequest(f"the body lacks the field {error.args[0]}") from None
        if isinstance(error, (ValueError, TypeError, OverflowError)) and not isinstance(error, InvalidPosition):
            raise BadRequest(f"the body cannot be read: {error}") from None
