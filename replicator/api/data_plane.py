"""HTTP routes of the data plane: links and pipelines read topics as blocks, and links announce what they know.

Frames themselves go over streams (:mod:`replicator.api.link_streams`). The routes are ``GET /replication/v1/topics |
blocks | subscriptions | high-water`` and ``POST /replication/v1/partitions | schemas | delete-copy | keep-both |
earlier-lives | lineage``; docs/http.md has the forms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web

from replicator.api import announced_schemas, copies
from replicator.api.errors import BadRequest, error_response
from replicator.api.guarding import (
    GUARD,
    READING,
    ROLE,
    allows,
    check_may_replicate,
    may,
)
from replicator.api.linked_sources import LinkedSources
from replicator.api.pages import check_room_for_page, send_page
from replicator.api.runs import AUDIT, check_run
from replicator.api.slices import in_slices, json_list, topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, EngineError, NotAllowedError
from replicator.engine.lineage import Deletion, StoreLine
from replicator.engine.log.arrow import encode_read
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.link_frame import PROTOCOL_VERSION, RECLAIMING_HEADER, agreed_version
from replicator.engine.log.store_tables import HighWater
from replicator.engine.restored import restored_mark
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC, parse_topic
from replicator.peering.claim_checker import ClaimChecker
from replicator.peering.lineage import LINEAGE_ROUTE, LineageReply, LineageReport
from replicator.peering.lives import OriginMarks
from replicator.peering.partitions import PARTITIONS_ROUTE, PartitionsReply, PartitionsReport
from replicator.running.limited_log import LIMITED
from replicator.security.errors import NotPermitted
from replicator.security.permissions import Action
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import as_data

ENGINE: Final = web.AppKey("engine", Engine)
LINKED_SOURCES: Final = web.AppKey("linked_sources", LinkedSources)
"""The links that lead to this cluster; nobody else may append."""
ASKING: Final = web.AppKey("claim_checker", ClaimChecker)
"""Asks the worker of a cluster whether a claim about that cluster is true. Anybody who may replicate sends claims."""

WHOSE_CHARS_MAX: Final = 100
PAGE_BYTES_DEFAULT: Final = 8 * 1024 * 1024
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
PROTOCOL_UNSAID: Final = 4
"""Protocol version of a source that asks for high-water marks without a version."""
DIGITS_MAX: Final = 20
ORIGINS_MAX: Final = 100
"""Limit of origins in one request of high-water marks."""

log = structlog.get_logger(__name__)


def routes() -> list[web.RouteDef]:
    return [
        web.get("/replication/v1/topics", list_topics),
        web.get("/replication/v1/blocks", read_blocks),
        web.get("/replication/v1/subscriptions", list_subscriptions),
        web.get("/replication/v1/high-water", high_water),
        web.post(PARTITIONS_ROUTE, take_partitions),
        web.post("/replication/v1/schemas", take_schemas),
        web.post("/replication/v1/delete-copy", delete_copy),
        web.post("/replication/v1/keep-both", keep_both),
        web.post("/replication/v1/earlier-lives", earlier_lives),
        web.post(LINEAGE_ROUTE, take_lineage),
    ]


async def list_topics(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    rows = [
        json.dumps(
            {
                "name": topic.name,
                "incarnation": topic.incarnation,
                "first": str(topic.log.first or BEFORE_ALL),
                "lac": str(topic.log.last),
                "entries": topic.log.entries,
                "messages": topic.log.messages,
                "clusters": topic.namespace.policies.replication_clusters,
            }
        )
        async for topic in topics_in_slices(engine)
        if may(request, READING, topic.name)
    ]
    return json_list({"cluster": engine.cluster}, "topics", rows)


async def read_blocks(request: web.Request) -> web.StreamResponse:
    """Answer with one page of a topic, as one Arrow IPC stream."""
    check_room_for_page(request.app)
    await hold_back_for_reclaim(request)
    topic = await _topic(request)
    after = _position(request, "after", BEFORE_ALL)
    upto = min(_position(request, "upto", topic.log.last), topic.log.last)
    bytes_max = number(request, "max_bytes", PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX)
    try:
        blocks, reached = topic.reading.blocks(after, upto, bytes_max=bytes_max)
    except BlockCorrupt as error:
        return error_response(error.code, str(error), 500)  # the fault is here, not in the request
    end = "true" if reached >= upto or not blocks else "false"
    headers = {
        "X-Replicator-Next": str(reached),
        "X-Replicator-End": end,
        # What a page does not begin with may be gone, or of another life of the topic: the reader must know.
        "X-Replicator-Trimmed": str(topic.log.trimmed),
        "X-Replicator-Incarnation": str(topic.incarnation),
    }
    return await send_page(request, encode_read(blocks), headers)


async def hold_back_for_reclaim(request: web.Request) -> None:
    """Keep this cluster's retention from deleting messages for a minute if ``request`` has :data:`RECLAIMING_HEADER`.

    A cluster that takes back its lost messages sends that header. It counts for all topics if the caller's role may
    read the log of failovers, since a cluster that reclaims reads that log first. Otherwise it counts only for the
    topics that the role may replicate.
    """
    whose = request.headers.get(RECLAIMING_HEADER, "")[:WHOSE_CHARS_MAX]
    if not whose:
        return
    maintenance = request.app[ENGINE].maintenance
    if may(request, READING, EPOCHS_TOPIC):
        await maintenance.hold_back(whose)
    else:
        role, guard = request[ROLE], request[GUARD]  # not the request itself, which the hold would keep in memory
        with suppress(NotPermitted):
            guard.check_anywhere(role, (Action.REPLICATE,))
            await maintenance.hold_back(whose, role, partial(allows, guard, role, (Action.REPLICATE,)))


async def list_subscriptions(request: web.Request) -> web.Response:
    """Answer with the exact acknowledgement state of every subscription of a topic."""
    topic = await _topic(request)
    return web.json_response(
        {"topic": topic.name, "subscriptions": [exact_state(topic, name) for name in topic.subscriptions]}
    )


async def high_water(request: web.Request) -> web.Response:
    """Answer with this cluster's high-water marks of one origin or several, for all topics or the named ones.

    With ``newest=true``, for one origin, each named topic has the publish time and number of its newest message.
    """
    await hold_back_for_reclaim(request)
    engine = request.app[ENGINE]
    named = request.query.getall("topic", [])
    # A topic whose deletion is not durable yet is still here: a link that is told neither makes it again with markers.
    stored = engine.loaded.by_name
    asked = filter(None, (stored.get(str(parse_topic(name))) for name in named)) if named else list(stored.values())
    topics = [topic async for topic in in_slices(engine, asked) if may(request, READING, topic.name)]
    if "origins" in request.query:
        origins = _required(request, "origins").split(",")
        if len(origins) > ORIGINS_MAX:
            raise BadRequest(
                f"parameter origins: {len(origins)} clusters were asked for at once, the limit is {ORIGINS_MAX}"
            )
        by_topic = {topic.name: _marks(engine, topic, origins) async for topic in in_slices(engine, topics)}
        rows: dict[str, Any] = {name: marks for name, marks in by_topic.items() if marks}
        gone = engine.origin_stores.own_deletions(named)
        deleted = [each.as_json() async for each in in_slices(engine, gone) if may(request, READING, each.topic)]
        again = [name for name in engine.origin_stores.made_again(named) if may(request, READING, name)]
    else:
        origin = _required(request, "origin")
        rows, deleted, again = {}, [], []
        async for topic in in_slices(engine, topics):
            if marks := _marks(engine, topic, [origin]):
                rows[topic.name] = marks[origin]
                if named and request.query.get("newest") == "true":
                    rows[topic.name]["newest"] = _newest(engine, topic, origin)
    theirs = number(request, "protocol", PROTOCOL_UNSAID, 2**31)
    answer = {"cluster": engine.cluster, "protocol": agreed_version(theirs) or PROTOCOL_VERSION, "topics": rows}
    answer |= engine.origin_stores.line.as_json()
    if deleted:
        answer["deleted"] = deleted
    if again:
        answer["made_again"] = again
    restored = restored_mark(engine.store)
    if restored is not None:
        answer["restored"] = restored.restore_id
    return web.json_response(answer)


def _marks(engine: Engine, topic: Topic, origins: Sequence[str]) -> dict[str, Any]:
    """Return, by origin, the topic's high-water mark, its newest message, and how many messages the topic stores.

    If known, a row also names the store that wrote the origin's life of the topic, and whether the origin deleted that
    life on purpose.
    """
    stores, messages = engine.origin_stores, topic.origins.message_vector()
    held = topic.reading.messages_stored()
    found: dict[str, Any] = {}
    for origin in origins:
        mark = topic.origins.high_water(origin)
        if mark is None:
            continue
        row = found[origin] = {
            "incarnation": mark.incarnation,
            "position": str(mark.position),
            "messages": str(messages.get(origin, BEFORE_ALL)),
            "held": held,
        }
        if (store := stores.store_of(topic, origin, mark.incarnation)) is not None:
            row["store"] = store
        if stores.is_deleted(topic, origin, mark.incarnation, mark.position):
            row["deleted"] = True
    return found


def _newest(engine: Engine, topic: Topic, origin: str) -> dict[str, int] | None:
    """Return what tells the newest message of ``origin`` from others; None if nobody can read it any more."""
    at, mark = topic.origins.message_vector().get(origin), topic.origins.high_water(origin)
    if at is None or mark is None:
        return None
    local = engine.store.translate(topic.topic_id, origin, mark.incarnation, at)
    if local is None:
        return None
    try:
        found = topic.reading.entries(Position(local.ledger, local.entry - 1), local, 1, 1)
        metadata = decode_entry(found[0].entry, check=False)[0] if found else None
    except EngineError:
        return None
    if metadata is None or metadata.publish_time <= 0:
        return None
    return {"publish_time_ms": metadata.publish_time, "sequence_id": metadata.sequence_id}


async def take_partitions(request: web.Request) -> web.Response:
    """Make or grow partitioned topics, so that they have as many partitions as at the source of a link.

    Answer with the numbers of partitions that the topics then have here.
    """
    source = await _served_source(request)
    try:
        told = PartitionsReport.of_json(await request.json())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(
            f"the body must be a JSON object with the field topics, the numbers of partitions by topic: {error}"
        ) from None
    engine = request.app[ENGINE]
    stores = engine.origin_stores
    partitions: dict[str, int] = {}
    refused: dict[str, tuple[str, str]] = {}
    deleted: dict[str, int] = {}
    own: list[Deletion] = []
    at_ms = engine.writer.wall_clock_ms()
    for name, number in told.topics.items():
        try:
            check_may_replicate(request, name)
            # First what third clusters deleted: this cluster announces the topic to them as soon as it is made here.
            others = [
                Deletion(name, cluster, each, BEFORE_ALL, at_ms)
                for cluster, each in told.deleted.get(name, {}).items()
                if cluster not in (engine.cluster, source)
            ]
            if others:
                await stores.take(source, {}, [], others)
            # A new store does not remember its own deletions. A later one must have a higher id.
            if remembered := told.deleted.get(name, {}).get(engine.cluster, 0):
                own.append(Deletion(name, engine.cluster, remembered, BEFORE_ALL, at_ms))
            deleted_since = partial(_deleted_since, engine, told, name)
            known = told.known.get(name, {}) if told.idle else None
            before = engine.partitioned.count(name)
            partitions[name] = await engine.partitioned.adopt(name, number, unless_deleted=deleted_since, known=known)
            if partitions[name] != before:
                note_link(request, source, "partitions", name, {"before": before, "after": partitions[name]})
            if not partitions[name]:
                deleted[name] = deleted_since()
            await engine.partitioned.is_back_at(name, source, told.deleted.get(name, {}).get(source, 0))
        except EngineError as error:
            LIMITED.say(log.warning, "partitions refused", source, source=source, topic=name, reason=str(error))
            refused[name] = error.code, str(error)
    with suppress(EngineError):  # the source tells them again
        await engine.partitioned.learn_deletions(own)
    return web.json_response(PartitionsReply(partitions, refused, deleted).as_json())


def _deleted_since(engine: Engine, told: PartitionsReport, name: str) -> int:
    """Return the id of this cluster's newest deletion of a topic if it is later than the source's topic; 0 if not."""
    own = engine.origin_stores.partitioned_deleted(name).get(engine.cluster, 0)
    return told.deletion_after(name, engine.cluster, own)


async def take_schemas(request: web.Request) -> web.Response:
    """Take over the schemas that topics have at the source of a link."""
    source = await _served_source(request)

    def note(topic: str, schemas: int) -> None:
        note_link(request, source, "schemas", topic, {"schemas": schemas})

    return await announced_schemas.take(request, request.app[ENGINE], source, note)


async def take_lineage(request: web.Request) -> web.Response:
    """Record which stores wrote the copies that a link brings, and which topics their origins deleted on purpose."""
    source = await _served_source(request)
    try:
        told = LineageReport.of_json(await request.json())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidPosition) as error:
        raise BadRequest(
            "the body must be a JSON object with the fields stores, copies and deletions, by which a link tells which "
            f"stores wrote its copies: {error!r:.100}; run the same version at both ends"
        ) from None
    origins = request.app[LINKED_SOURCES].origins_from(source)
    refused: dict[str, tuple[str, str]] = {}
    for topic in {*(copy.topic for copy in told.copies), *(deletion.topic for deletion in told.deletions)}:
        try:
            check_may_replicate(request, topic)
        except EngineError as error:
            refused[topic] = error.code, str(error)
    # Origins that the link does not carry are ignored, like topics that are not here.
    stores = {origin: line for origin, line in told.stores.items() if origin in origins}
    believed, doubted = await _trusted_stores(request, source, stores)
    await request.app[ENGINE].origin_stores.take(
        source,
        believed,
        [each for each in told.copies if each.origin in origins and each.topic not in refused],
        [each for each in told.deletions if each.origin in origins and each.topic not in refused],
    )
    return web.json_response(LineageReply(refused, doubted).as_json())


async def _trusted_stores(
    request: web.Request, source: str, told: Mapping[str, StoreLine]
) -> tuple[dict[str, StoreLine], dict[str, tuple[str, str]]]:
    """Return the stores of ``told`` that are believed, and for other origins the reason why their store is not.

    A new store replaces the known one, and ends a worker that still runs on the known one. So the worker of ``source``
    is asked, at its configured address, whether the new store is the right one.
    """
    stores, believed = request.app[ENGINE].origin_stores, dict[str, StoreLine]()
    doubted: dict[str, tuple[str, str]] = {}
    for origin, line in told.items():
        if stores.is_newer(source, origin, line):
            try:
                believed[origin] = await request.app[ASKING].store_line(source, origin, line)
            except EngineError as error:
                doubted[origin] = error.code, str(error)
        elif line == stores.lines.get(origin):
            believed[origin] = line
    return believed, doubted


async def delete_copy(request: web.Request) -> web.Response:
    """Delete the copy of a topic that a link is to copy anew, if no message is lost by it.

    The source's worker is asked whether it wants that, and up to where it has the topic in full. The marks in the
    request alone do not count.
    """
    source, topic = await _served_source(request), await _topic(request)
    told = await copies.read_marks(request)
    marks = await request.app[ASKING].copied_anew(source, topic.name, told)
    await copies.delete_copy(request.app[ENGINE], source, topic, marks)
    _audit(request, source, "delete copy", topic, marks)
    return web.json_response({})


async def keep_both(request: web.Request) -> web.Response:
    """Keep the earlier life of a topic as closed history, and accept the later life that a link brings after it."""
    source, topic = await _served_source(request), await _topic(request)
    marks = await copies.read_marks(request)
    await copies.keep_both(request.app[ENGINE], source, topic, marks)
    _audit(request, source, "keep both", topic, marks)
    return web.json_response({})


async def earlier_lives(request: web.Request) -> web.Response:
    """Answer with the origins whose earlier lives of a topic lack messages here. With ``note=true`` record them as left
    out."""
    source = await _served_source(request)
    topic, marks = await _topic(request), await copies.read_marks(request)
    engine = request.app[ENGINE]
    lacking = copies.lacking(engine, topic, marks)
    if lacking and request.query.get("note") == "true":
        missing = {origin: marks[origin] for origin in lacking}
        await copies.leave_out(engine, topic, missing)
        _audit(request, source, "leave out", topic, missing)
        lacking = copies.lacking(engine, topic, marks)
    return web.json_response({"lacking": lacking})


def _audit(request: web.Request, source: str, action: str, topic: Topic, marks: Mapping[str, HighWater]) -> None:
    """Note in the audit log what a link did to a topic here."""
    note_link(request, source, action, topic.name, OriginMarks(marks).as_json())


def note_link(request: web.Request, source: str, action: str, subject: str, detail: Mapping[str, Any]) -> None:
    """Note in the audit log what the link from ``source`` changed here."""
    if (audit := request.app.get(AUDIT)) is not None:
        audit(f"link from {source}", action, subject, detail)


async def _served_source(request: web.Request) -> str:
    """Return the cluster whose link asks. Raise :class:`RunNotServed` if another run of that cluster's store is
    served."""
    source = linked_source(request)
    await check_run(request, source)
    return source


def linked_source(request: web.Request) -> str:
    """Return the cluster at the other end of the link that asks. Refuse any that is not in the topology."""
    source = _required(request, "from")
    if source not in request.app[LINKED_SOURCES]:
        raise NotAllowedError(
            f"the topology has no link from {source!r} to {request.app[ENGINE].cluster!r}; give all workers the same "
            "topology file, and run `replicator apply`"
        )
    return source


def exact_state(topic: Topic, name: str) -> dict[str, Any]:
    """Return the stored state of a subscription as JSON: its acknowledged messages, generation and starts.

    Positions are those of this cluster, and ranges include both ends. Raises KeyError if the topic has no such
    subscription.
    """
    subscription = topic.subscriptions[name]
    state = subscription.cursor.state
    kind = subscription.dispatching.type
    return {
        "name": name,
        "type": None if kind is None else kind.value,
        "replicated": state.replicated,
        "generation": state.generation,
        "mark_delete": str(state.mark_delete),
        "individually_deleted": [[str(first), str(last)] for first, last in state.individually_deleted.runs()],
        "batch_acks": {str(position): list(indexes) for position, indexes in state.batch_acks.items()},
        "starts": as_data(state.starts),
    }


async def _topic(request: web.Request) -> Topic:
    return await request.app[ENGINE].topic(_required(request, "topic"), create=False)


def _required(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadRequest(f"parameter {name} is missing")
    return value


def _position(request: web.Request, name: str, default: Position) -> Position:
    value = request.query.get(name)
    return default if value is None else Position.parse(value)


def number(request: web.Request, name: str, default: int, largest: int) -> int:
    value = request.query.get(name, str(default))
    if not value.isdecimal() or len(value) > DIGITS_MAX or not 0 < int(value) <= largest:
        raise BadRequest(f"parameter {name}: {value[:30]!r} is not a number from 1 to {largest}")
    return int(value)
