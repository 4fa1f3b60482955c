"""The data plane: reading topics as blocks, and appending blocks that come over a link.

``GET /replication/v1/topics | blocks | subscriptions | high-water``, ``POST
/replication/v1/append | partitions | schemas | delete-copy``;
the forms are in docs/http.md. Appends are pipelined: the next frame is read while the one before it is being
committed, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import structlog
from aiohttp import web

from replicator.api import announced_schemas, copies
from replicator.api.errors import BadRequest, error_response
from replicator.api.frame_reading import SILENCE_SECONDS_MAX, FrameReader
from replicator.api.guarding import (
    READING,
    ROLE,
    check_may_replicate,
    check_superuser,
    ending_at_expiry,
    may,
)
from replicator.api.linked_sources import IncomingLink, LinkedSources, LinkKey
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, EngineError, NotAllowedError, TooBusy
from replicator.engine.log.arrow import decode_append, encode_read
from replicator.engine.log.block import read_header
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.left_out import decode_note, is_note
from replicator.engine.log.link_frame import PROTOCOL_VERSION, agreed_version, version_refused
from replicator.engine.log.writer import CopiedBlock, Extent
from replicator.engine.restored import restored_mark
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout
from snapshots.position import BEFORE_ALL, Position

ENGINE: Final = web.AppKey("engine", Engine)
LINKED_SOURCES: Final = web.AppKey("linked_sources", LinkedSources)
"""The links that lead to this cluster; nobody else may append."""
STREAMS: Final = web.AppKey("append_streams", dict[tuple[LinkKey, str], web.Request])
"""The streams that append here by link and name of the stream, the oldest first; kept only where the application sets
it."""
PAGES_IN_FLIGHT: Final = web.AppKey("pages_in_flight", list[int])
"""The size of each page that is on its way to a reader, in bytes; kept only where the application sets it."""

LINK_OPENED: Final[web.AppKey[Callable[[str], None]]] = web.AppKey("link_opened")
"""Told the name of a cluster whose link opens a stream: a sign that it is there."""

PARTITIONED_AT_ONCE_MAX: Final = 1_000
"""In one request, so that it is answered in bounded time."""
FRAMES_PENDING_MAX: Final = 8
"""Frames that are read and not yet committed, for each stream."""
STREAMS_OF_LINK_MAX: Final = 64
"""A link that Spark carries has a stream for each task. The oldest of more is half-open: its task is long gone."""
STREAM_NAME_CHARS_MAX: Final = 80
PAGE_BYTES_DEFAULT: Final = 8 * 1024 * 1024
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
PAGES_BYTES_MAX: Final = 512 * 1024 * 1024
"""Of all pages in flight: what slow readers can make the worker hold. A page starts while there is less."""
PAGE_PIECE_BYTES: Final = 1024 * 1024
PROTOCOL_UNSAID: Final = 4
"""What a source speaks that asks for high-water marks without saying so."""
DIGITS_MAX: Final = 20
ORIGINS_MAX: Final = 100
"""Asked for in one request of high-water marks."""
_LENGTH_BYTES: Final = 4

log = structlog.get_logger(__name__)


def routes() -> list[web.RouteDef]:
    return [
        web.get("/replication/v1/topics", list_topics),
        web.get("/replication/v1/blocks", read_blocks),
        web.get("/replication/v1/subscriptions", list_subscriptions),
        web.get("/replication/v1/high-water", high_water),
        web.post("/replication/v1/append", append),
        web.post("/replication/v1/partitions", take_partitions),
        web.post("/replication/v1/schemas", take_schemas),
        web.post("/replication/v1/delete-copy", delete_copy),
    ]


async def close_streams(app: web.Application) -> None:
    """End the streams of links, for ``app.on_shutdown``: else the server waits for them to end by themselves."""
    for stream in app.get(STREAMS, {}).values():
        if stream.transport is not None:
            stream.transport.close()


def end_streams(app: web.Application, links: Iterable[LinkKey]) -> None:
    """Cut the streams of links that may not append as they did; those that still may come back by themselves."""
    gone = set(links)
    for (key, _), stream in app.get(STREAMS, {}).items():
        if key in gone and stream.transport is not None:
            stream.transport.abort()


async def list_topics(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    topics = [
        {
            "name": topic.name,
            "incarnation": topic.incarnation,
            "first": str(topic.log.first or BEFORE_ALL),
            "lac": str(topic.log.last),
            "entries": topic.log.entries,
            "messages": topic.log.messages,
            "clusters": topic.namespace.policies.replication_clusters,
        }
        for topic in engine.topics()
        if topic.name != EPOCHS_TOPIC and may(request, READING, topic.name)
    ]
    return web.json_response({"cluster": engine.cluster, "topics": topics})


async def read_blocks(request: web.Request) -> web.StreamResponse:
    """One page of a topic, as one Arrow IPC stream."""
    check_room_for_page(request.app)
    topic = await _topic(request)
    after = _position(request, "after", BEFORE_ALL)
    upto = min(_position(request, "upto", topic.log.last), topic.log.last)
    bytes_max = _number(request, "max_bytes", PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX)
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


def check_room_for_page(app: web.Application) -> None:
    """Raises :class:`TooBusy` while readers are being sent as much as the worker may hold for them."""
    pages = app.get(PAGES_IN_FLIGHT, [])
    if sum(pages) >= PAGES_BYTES_MAX:
        raise TooBusy(f"{len(pages)} pages with {sum(pages)} bytes are on their way to readers: try again later")


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
    """Write in pieces, so that a reader who takes nothing for a while is noticed, and cut off."""
    for start in range(0, len(page), PAGE_PIECE_BYTES):
        async with timeout(SILENCE_SECONDS_MAX):
            await response.write(page[start : start + PAGE_PIECE_BYTES])


async def list_subscriptions(request: web.Request) -> web.Response:
    """The exact acknowledgement state of every subscription of a topic."""
    topic = await _topic(request)
    return web.json_response(
        {"topic": topic.name, "subscriptions": [_exact_state(topic, name) for name in topic.subscriptions]}
    )


async def high_water(request: web.Request) -> web.Response:
    """Up to which position of an origin this cluster has each topic, or each that is named; or of several origins."""
    engine = request.app[ENGINE]
    named = request.query.getall("topic", [])
    asked = filter(None, map(engine.find, named)) if named else engine.topics()
    topics = [topic for topic in asked if may(request, READING, topic.name)]
    if "origins" in request.query:
        origins = _required(request, "origins").split(",")
        if len(origins) > ORIGINS_MAX:
            raise BadRequest(f"parameter origins: {len(origins)} were asked for at once, the limit is {ORIGINS_MAX}")
        by_topic = {topic.name: _marks(topic, origins) for topic in topics}
        rows: dict[str, Any] = {name: marks for name, marks in by_topic.items() if marks}
    else:
        origin = _required(request, "origin")
        rows = {topic.name: marks[origin] for topic in topics if (marks := _marks(topic, [origin]))}
    theirs = _number(request, "protocol", PROTOCOL_UNSAID, 2**31)
    answer = {"cluster": engine.cluster, "protocol": agreed_version(theirs) or PROTOCOL_VERSION, "topics": rows}
    restored = restored_mark(engine.store)
    if restored is not None:
        answer["restored"] = restored.restore_id
    return web.json_response(answer)


def _marks(topic: Topic, origins: Sequence[str]) -> dict[str, Any]:
    return {
        origin: {"incarnation": mark.incarnation, "position": str(mark.position)}
        for origin in origins
        if (mark := topic.origins.high_water(origin)) is not None
    }


async def take_partitions(request: web.Request) -> web.Response:
    """A link says how many partitions topics have at its source: have as many here. Answers with the numbers here."""
    source = _linked_source(request)
    try:
        announced = (await request.json())["topics"]
        if not isinstance(announced, dict) or not all(type(number) is int for number in announced.values()):
            raise BadRequest("the body's topics must be numbers of partitions by name")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"the body is not an object with topics in JSON: {error}") from None
    if len(announced) > PARTITIONED_AT_ONCE_MAX:
        raise BadRequest(f"{len(announced)} topics were told at once, the limit is {PARTITIONED_AT_ONCE_MAX}")
    engine = request.app[ENGINE]
    partitions: dict[str, int] = {}
    refused: dict[str, dict[str, str]] = {}
    for name, number in announced.items():
        try:
            check_may_replicate(request, name)
            partitions[name] = await engine.partitioned.adopt(name, number)
        except EngineError as error:
            log.warning("partitions refused", source=source, topic=name, reason=str(error))
            refused[name] = {"code": error.code, "message": str(error)}
    return web.json_response({"topics": partitions, "refused": refused})


async def take_schemas(request: web.Request) -> web.Response:
    """A link says which schemas topics have at its source: know them here too."""
    source = _linked_source(request)
    return await announced_schemas.take(request, request.app[ENGINE], source)


async def delete_copy(request: web.Request) -> web.Response:
    """A link is to copy a topic anew: delete the copy that is here, if nothing is lost by it."""
    source = _linked_source(request)
    await copies.delete_copy(request.app[ENGINE], source, await _topic(request), await copies.read_marks(request))
    return web.json_response({})


def _linked_source(request: web.Request) -> str:
    """The cluster at the other end of the link that asks; only those of the topology may."""
    source = _required(request, "from")
    if source not in request.app[LINKED_SOURCES]:
        raise NotAllowedError(f"the topology has no link from {source!r} to {request.app[ENGINE].cluster!r}")
    return source


async def append(request: web.Request) -> web.StreamResponse:
    """Take a link's stream of frames; the first answer is given as the HTTP status, the others in the stream."""
    link = _link(request)
    version = _number(request, "protocol", PROTOCOL_VERSION, 2**31)
    if agreed_version(version) != version:
        refused = version_refused(version, here=request.app[ENGINE].cluster, there=link.source)
        raise BadRequest(f"parameter protocol: {refused}")
    with _only_stream_of_name(link.key, request):
        frames = FrameReader(request.content)
        frame = await frames.next()
        if frame is None:
            raise BadRequest("the body has no frame")
        first = await _submit(request, link, frame)
        if (link_opened := request.app.get(LINK_OPENED)) is not None:
            link_opened(link.source)
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        with ending_at_expiry(request):
            await _serve_frames(request, link, frames, response, first)
    return response


def _link(request: web.Request) -> IncomingLink:
    source = _linked_source(request)
    name = request.query.get("name", "")
    link = request.app[LINKED_SOURCES].find(source, name)
    if link is None:
        here = request.app[ENGINE].cluster
        raise NotAllowedError(f"the topology has no link {name[:80]!r} from {source!r} to {here!r}")
    return link


@contextmanager
def _only_stream_of_name(key: LinkKey, request: web.Request) -> Iterator[None]:
    """A link has one stream of each name. What is open when it opens another is half-open, and would hold memory for a
    while."""
    streams = request.app.get(STREAMS, {})
    named = (key, request.query.get("stream", "")[:STREAM_NAME_CHARS_MAX])
    of_link = [each for each in streams if each[0] == key and each != named]
    for older in [named, *of_link[: max(0, len(of_link) - STREAMS_OF_LINK_MAX + 1)]]:
        stream = streams.get(older)
        if stream is None:
            continue
        if stream.get(ROLE, "") != request.get(ROLE, ""):
            check_superuser(request)  # another role's stream is not cut by whoever names it
        del streams[older]
        if stream.transport is not None:
            stream.transport.abort()
    streams[named] = request
    try:
        yield
    finally:
        if streams.get(named) is request:
            del streams[named]


async def _serve_frames(
    request: web.Request, link: IncomingLink, frames: FrameReader, response: web.StreamResponse, first: _Results
) -> None:
    """Read and submit frames, and answer each in order as it becomes durable."""
    pending: asyncio.Queue[_Results | EngineError | None] = asyncio.Queue()
    room = asyncio.Semaphore(FRAMES_PENDING_MAX)
    pending.put_nowait(first)

    async def read() -> None:
        try:
            while await room.acquire() and (frame := await frames.next()) is not None:
                pending.put_nowait(await _submit(request, link, frame))
        except EngineError as error:
            pending.put_nowait(error)
        finally:
            pending.put_nowait(None)  # never waits: when the link has gone nobody makes room

    reader = awaited(read())
    try:
        while (results := await pending.get()) is not None:
            if isinstance(results, EngineError):
                await _answer(response, {"error": results.code, "message": str(results)})
                break
            await _answer(response, await _outcome(results))
            room.release()
        await response.write_eof()
    except ConnectionError:
        return  # the link has gone; it will ask for the high-water mark when it is back
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        while not pending.empty():
            if isinstance(left := pending.get_nowait(), dict):
                await _outcome(left)


_Results = dict[str, asyncio.Task[list[Extent]] | EngineError]


async def _submit(request: web.Request, link: IncomingLink, frame: memoryview) -> _Results:
    """Hand the frame's blocks to their topics, in order; does not wait until they are durable."""
    engine = request.app[ENGINE]
    # A reload of the topology may have changed what the link brings since it opened this stream.
    link = request.app[LINKED_SOURCES].find(*link.key) or link
    results: _Results = {}
    for name, blocks in decode_append(frame).items():
        try:
            check_may_replicate(request, name)
            _check_origin(blocks, link)
            if engine.find(name) is None:
                select_new(blocks, cluster=engine.cluster, topic=name, high_water={})  # no topic for what is refused
            topic = await engine.topic(name, by_link=True)
        except EngineError as error:
            results[name] = error
        else:
            results[name] = awaited(_append_blocks(topic, blocks))
    await asyncio.sleep(0)  # lets the appends reach the writer's queue before the next frame is read
    return results


def _check_origin(blocks: Sequence[CopiedBlock], link: IncomingLink) -> None:
    """Invariant 4. A foreign block could also move another origin's high-water mark past what is still to come."""
    for copied in blocks:
        noted = decode_note(copied.block) if is_note(copied.block) else read_header(copied.block)
        origin = noted.origin
        if origin not in link.origins:
            carried = ", ".join(sorted(link.origins))
            raise NotAllowedError(
                f"the link from {link.source!r} carries what {carried} originated, not what {origin!r} did"
            )


async def _append_blocks(topic: Topic, blocks: list[CopiedBlock]) -> list[Extent]:
    return await topic.writing.copy(blocks)


async def _outcome(results: _Results) -> dict[str, Any]:
    extents = 0
    refused: dict[str, dict[str, str]] = {}
    for topic, result in results.items():
        try:
            if isinstance(result, EngineError):
                raise result
            extents += len(await result)
        except EngineError as error:
            refused[topic] = {"code": error.code, "message": str(error)}
    return {"extents": extents, "refused": refused}


async def _answer(response: web.StreamResponse, answer: Mapping[str, Any]) -> None:
    body = json.dumps(answer).encode()
    await response.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def _exact_state(topic: Topic, name: str) -> dict[str, Any]:
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


def _number(request: web.Request, name: str, default: int, largest: int) -> int:
    value = request.query.get(name, str(default))
    if not value.isdecimal() or len(value) > DIGITS_MAX or not 0 < int(value) <= largest:
        raise BadRequest(f"parameter {name}: {value[:30]!r} is not a number from 1 to {largest}")
    return int(value)
