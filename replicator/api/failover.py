"""The failover paths: ``/failover/v1/…``. Forms are in docs/failover.md.

``GET service-url`` is for clients, in the JSON that Pulsar's clients poll for a controlled failover; the others are for
workers and for whoever coordinates a switch. All are answered from what this worker knows: none waits for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.engine.errors import EngineError
from snapshots.errors import InvalidPosition
from snapshots.markers import FailoverEpoch
from snapshots.position import Position

EPOCH_HEADER: Final = "X-Replicator-Epoch"
"""``epoch writer record_id`` of the answer: of several workers that a client asks, the greatest is right."""
OPERATION_CHARS_MAX: Final = 100
LEASE_MS_MAX: Final = 60_000
TOPICS_MAX: Final = 100_000
"""Named in one request."""
EARLIER_MAX: Final = 10_000
"""Positions of earlier lives in one request: each is looked up in the store."""

Precedence = tuple[int, str, str]


class FailoverSource(Protocol):
    """The part of the worker's failover that the paths use: :class:`replicator.failover.service.FailoverService`."""

    @property
    def clusters(self) -> list[str]: ...

    def state(self) -> dict[str, Any]: ...

    def service_url(self, home: str) -> tuple[dict[str, str], FailoverEpoch]: ...

    def topics(
        self, names: list[str] | None, earlier: Mapping[str, Mapping[str, Sequence[Position]]] | None = None
    ) -> list[dict[str, Any]]: ...

    async def topics_in_brief(self, names: list[str] | None) -> dict[str, Any]: ...

    async def missing(
        self, marks: Mapping[str, Position], record_id: str | None, names: Collection[str] | None = None
    ) -> dict[str, dict[str, Any]]: ...

    async def hold(
        self, operation: str, target: str, expected: Precedence, lease_ms: int, *, keep_consumers: bool
    ) -> dict[str, Any]: ...

    def renew(self, operation: str, lease_ms: int) -> None: ...

    def release(self, operation: str) -> None: ...

    async def propose(
        self, *, kind: str, homes: Sequence[str], expected: Precedence, keep_consumers: bool
    ) -> dict[str, Any]: ...

    def adopt(self, record: FailoverEpoch) -> None: ...

    def switches(self) -> list[dict[str, Any]]: ...


class RecordReader(Protocol):
    """Reads a record from JSON; raises :class:`ValueError`."""

    def __call__(self, value: object) -> FailoverEpoch: ...


class UnknownCluster(EngineError):
    """A cluster that the worker's topology does not have."""

    status = 404


FAILOVER: Final[web.AppKey[FailoverSource]] = web.AppKey("failover", FailoverSource)
READ_RECORD: Final[web.AppKey[RecordReader]] = web.AppKey("read_record", RecordReader)


def add_failover(app: web.Application, source: FailoverSource, read_record: RecordReader) -> None:
    """Add the paths to a worker's application."""
    app[FAILOVER] = source
    app[READ_RECORD] = read_record
    app.add_routes(
        [
            web.get("/failover/v1/state", state),
            web.get("/failover/v1/service-url", service_url),
            web.get("/failover/v1/switches", switches),
            web.post("/failover/v1/topics", topics),
            web.post("/failover/v1/missing", missing),
            web.post("/failover/v1/hold", hold),
            web.post("/failover/v1/renew", renew),
            web.post("/failover/v1/release", release),
            web.post("/failover/v1/propose", propose),
            web.post("/failover/v1/epochs", adopt),
        ]
    )


async def state(request: web.Request) -> web.Response:
    """Answer with the failover state that this worker knows."""
    return web.json_response(request.app[FAILOVER].state())


async def service_url(request: web.Request) -> web.Response:
    """Answer with the address at which the clients of ``cluster`` connect now."""
    source = request.app[FAILOVER]
    home = request.query.get("cluster", "")
    if not home:
        raise BadRequest("parameter cluster is missing: name the cluster whose clients ask")
    try:
        answer, record = source.service_url(home)
    except KeyError:
        raise UnknownCluster(f"there is no cluster {home[:80]!r}; there are: {', '.join(source.clusters)}") from None
    epoch = f"{record.epoch} {record.writer} {record.record_id}".rstrip()
    return web.json_response(answer, headers={EPOCH_HEADER: epoch, "Cache-Control": "no-store"})


async def switches(request: web.Request) -> web.Response:
    """Answer with the newest switches to this cluster. Each says how many messages of the former server were here."""
    return web.json_response({"switches": request.app[FAILOVER].switches()})


async def topics(request: web.Request) -> web.Response:
    """Return the positions of each topic in this cluster, for all topics or those in ``names``.

    A life of a topic lasts from its creation to its deletion. The newest messages of this cluster's own earlier lives
    are always returned; with ``earlier``, those of all origins, and the positions in ``earlier`` that are missing here.
    With ``brief``, the answer has no positions: of each topic its name, the clusters that get its messages and the
    origins of what it has, and the numbers of partitions.
    """
    body = await _body(request)
    if body.get("brief") is True:
        return web.json_response(await request.app[FAILOVER].topics_in_brief(_names(body)))
    return web.json_response({"topics": request.app[FAILOVER].topics(_names(body), _earlier(body))})


async def missing(request: web.Request) -> web.Response:
    """Answer how many of this cluster's own messages lie above the positions in ``marks``. With the ``record_id`` of
    the switch that fenced it, count those that were here then; with ``names``, count only these topics.
    """
    body = await _body(request)
    marks = body.get("marks")
    if not isinstance(marks, dict) or len(marks) > TOPICS_MAX or not _texts(marks.values()):
        raise BadRequest(f"field marks must be an object of at most {TOPICS_MAX} positions by topic")
    try:
        positions = {name: Position.parse(text) for name, text in marks.items()}
    except InvalidPosition as error:
        raise BadRequest(f"marks: {error}") from None
    record_id = None if body.get("record_id") is None else _text(body, "record_id")
    return web.json_response({"topics": await request.app[FAILOVER].missing(positions, record_id, _names(body))})


async def hold(request: web.Request) -> web.Response:
    """Fence this cluster for a planned switch; answer when nothing can change any more."""
    body = await _body(request)
    answer = await request.app[FAILOVER].hold(
        _text(body, "operation"),
        _text(body, "target"),
        _precedence(body),
        _lease(body),
        keep_consumers=_flag(body, "keep_consumers"),
    )
    return web.json_response(answer)


async def renew(request: web.Request) -> web.Response:
    """Renew the hold for a coordinator that goes on; fail if this cluster is not held any more."""
    body = await _body(request)
    request.app[FAILOVER].renew(_text(body, "operation"), _lease(body))
    return web.json_response({"held": True})


async def release(request: web.Request) -> web.Response:
    """Release the hold: the switch was given up."""
    request.app[FAILOVER].release(_text(await _body(request), "operation"))
    return web.json_response({"held": False})


async def propose(request: web.Request) -> web.Response:
    """Take over the clients; answer when that is durable."""
    body = await _body(request)
    homes = body.get("homes")
    if not isinstance(homes, list) or not homes or not _texts(homes):
        raise BadRequest("field homes must be a list of names of clusters, at least one")
    source = request.app[FAILOVER]
    for home in homes:
        if home not in source.clusters:
            raise UnknownCluster(f"there is no cluster {home[:80]!r}; there are: {', '.join(source.clusters)}")
    kind = _text(body, "kind")
    if kind not in ("planned", "unplanned", "failback", "promote"):
        raise BadRequest(f"field kind must be planned, unplanned, failback or promote, not {kind!r}")
    answer = await source.propose(
        kind=kind, homes=homes, expected=_precedence(body), keep_consumers=_flag(body, "keep_consumers")
    )
    return web.json_response(answer)


async def adopt(request: web.Request) -> web.Response:
    """Adopt a record that another worker or a coordinator sends."""
    try:
        record = request.app[READ_RECORD]((await _body(request)).get("record"))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    request.app[FAILOVER].adopt(record)
    return web.json_response(request.app[FAILOVER].state())


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _names(body: Mapping[str, Any]) -> list[str] | None:
    names = body.get("names")
    if names is not None and (not isinstance(names, list) or len(names) > TOPICS_MAX or not _texts(names)):
        raise BadRequest(f"field names must be a list of at most {TOPICS_MAX} names of topics")
    return names


def _earlier(body: Mapping[str, Any]) -> dict[str, dict[str, list[Position]]] | None:
    """Return, by topic and origin, the positions in ``earlier``; None if the request does not ask for them."""
    if "earlier" not in body:
        return None
    try:
        found = {
            str(topic): {str(origin): [Position.parse(text) for text in texts] for origin, texts in lives.items()}
            for topic, lives in body["earlier"].items()
        }
    except (InvalidPosition, AttributeError, TypeError) as error:
        raise BadRequest(f"field earlier must be an object of positions by topic and origin: {error!r:.100}") from None
    if sum(len(positions) for lives in found.values() for positions in lives.values()) > EARLIER_MAX:
        raise BadRequest(f"field earlier may have at most {EARLIER_MAX} positions: ask in several requests")
    return found


def _text(body: Mapping[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= OPERATION_CHARS_MAX:
        raise BadRequest(f"{field} must be a text of 1 to {OPERATION_CHARS_MAX} characters")
    return value


def _flag(body: Mapping[str, Any], field: str) -> bool:
    value = body.get(field, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false")
    return value


def _lease(body: Mapping[str, Any]) -> int:
    value = body.get("lease_ms")
    if type(value) is not int or not 0 < value <= LEASE_MS_MAX:
        raise BadRequest(f"field lease_ms must be a number from 1 to {LEASE_MS_MAX}")
    return value


def _precedence(body: Mapping[str, Any]) -> Precedence:
    match body.get("expected"):
        case [int(epoch), str(writer), str(record_id)] if not isinstance(epoch, bool):
            return epoch, writer, record_id
        case _:
            raise BadRequest(
                "field expected must be [epoch, writer, record_id] of the record that the request replaces, as GET "
                f"/failover/v1/state has it, not {body.get('expected')!r:.80}"
            )


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
