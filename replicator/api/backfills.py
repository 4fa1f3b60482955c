"""``POST /pipeline/v1/links/{key}/progress``: how much a backfill has still to carry over a link.

Whoever runs the backfill asks, now and then; that is also how the worker knows that it lives, and what it shows of it
in its status. Sizes are measured when a topic is asked for first, from the headers of its blocks; later questions read
what is new. The forms are in docs/http.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api import data_plane
from replicator.api.admin.sizes import TopicSizes
from replicator.api.errors import BadRequest
from replicator.api.link_routes import LinkNotFound
from replicator.api.slices import in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import TooBusy
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.running.timeouts import timeout
from replicator.topology.links import Link as LinkSpec
from replicator.topology.patterns import parse_patterns
from snapshots.position import Position

MEASURE_SECONDS_MAX: Final = 10.0
"""Time limit of measuring for one answer. Sums measured by then are kept, so the next request gets further."""


class BackfilledLink(Protocol):
    """The part of a link that a backfill's progress needs."""

    backfill_progress: tuple[int, int] | None
    """Bytes in all and bytes left, for the status; None while no backfill has the link."""

    @property
    def key(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def detail(self) -> str: ...
    def acknowledged(self) -> Mapping[str, Position]:
        """Return, by topic that the link carries, the position up to which the destination has everything that it is to
        have.
        """

    def carrier_heartbeat(self, carrier: str) -> bool:
        """Note that ``carrier`` is alive; return whether the link is assigned to it."""


class BackfilledLinks(Protocol):
    """Source of the links that leave this cluster."""

    def links(self) -> Iterable[BackfilledLink]: ...


@dataclass(frozen=True, slots=True)
class Amount:
    """Sums over all topics of a request."""

    bytes_total: int = 0
    bytes_left: int = 0
    entries_left: int = 0
    topics: int = 0
    topics_left: int = 0


BACKFILLS: Final[web.AppKey[BackfilledLinks]] = web.AppKey("backfills")
SIZES: Final = web.AppKey("backfill_sizes", TopicSizes)


def add_backfills(app: web.Application, source: BackfilledLinks) -> None:
    """Add the route for the links that ``source`` has."""
    app[BACKFILLS] = source
    app[SIZES] = TopicSizes(app[data_plane.ENGINE].store)
    app.add_routes([web.post("/pipeline/v1/links/{key}/progress", progress)])


async def progress(request: web.Request) -> web.Response:
    link = _link(request)
    carrier, wanted = await _asked(request)
    holds = link.carrier_heartbeat(carrier)
    try:
        async with timeout(MEASURE_SECONDS_MAX):
            amount = await _measure(request.app[data_plane.ENGINE], request.app[SIZES], link.acknowledged(), wanted)
    except TimeoutError:
        raise TooBusy(f"the topics of link {link.key} are still being measured: try again in a moment") from None
    if holds:
        link.backfill_progress = (amount.bytes_total, amount.bytes_left)
    return web.json_response({**asdict(amount), "holds": holds, "state": link.state, "detail": link.detail})


async def _asked(request: web.Request) -> tuple[str, Sequence[str]]:
    try:
        body: Any = await request.json()
        carrier, wanted = body["carrier"], body.get("topics") or []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadRequest(
            "the body must be a JSON object with the field carrier, the name of the backfill that asks"
        ) from None
    if not isinstance(carrier, str):
        raise BadRequest("field carrier must be a text, the name of the backfill that asks")
    try:
        return carrier, parse_patterns(wanted)
    except ValueError as error:
        raise BadRequest(f"topics: {error}") from None


async def _measure(
    engine: Engine, sizes: TopicSizes, acknowledged: Mapping[str, Position], wanted: Sequence[str]
) -> Amount:
    chosen = LinkSpec("", "", topics=tuple(wanted))
    bytes_total = bytes_left = entries_left = topics = topics_left = 0
    async for name, reached in in_slices(engine, list(acknowledged.items())):
        topic = engine.find(name)
        if topic is None or name == EPOCHS_TOPIC or not chosen.carries(name):
            continue
        of_topic = await sizes.measure(topic)
        topics += 1
        bytes_total += of_topic.size_bytes
        if reached < topic.log.last:
            topics_left += 1
            bytes_left += sizes.bytes_after(topic, of_topic, reached)
            entries_left += topic.log.entries_between(reached, topic.log.last)
    return Amount(bytes_total, bytes_left, entries_left, topics, topics_left)


def _link(request: web.Request) -> BackfilledLink:
    key = request.match_info["key"]
    for link in request.app[BACKFILLS].links():
        if link.key == key:
            return link
    raise LinkNotFound(f"no link {key[:200]!r} leaves this cluster; `replicator links list` shows those there are")
