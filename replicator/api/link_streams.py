"""The streams of links that lead here: ``POST /replication/v1/append``; its forms are in docs/http.md.

Appends are pipelined: the next frame is read while the one before it is being committed, in the order in which they
came. Who the link is and what it speaks is looked at first; then its connection becomes one of frames
(:mod:`replicator.api.frame_receiver`). A link of the version before sends them in the body of its request
(:mod:`replicator.api.posted_frames`).

Invariant 11 (DESIGN §3): a frame may have some hundred thousand blocks. It is decoded, checked and handed over in
slices. All links together get one slice in each turn of the event loop (:mod:`replicator.running.pacing`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import structlog
from aiohttp import web

from replicator.api import posted_frames
from replicator.api.data_plane import ENGINE, LINKED_SOURCES, linked_source, number
from replicator.api.errors import BadRequest
from replicator.api.frame_receiver import FrameReceiver, Received, switch_protocols
from replicator.api.guarding import ROLE, check_may_replicate, check_superuser, ending_at_expiry
from replicator.api.linked_sources import IncomingLink, LinkKey
from replicator.api.runs import check_stream, kept_stream, question_stream
from replicator.engine.errors import BlockCorrupt, EngineError, FrameTooLarge, NotAllowedError
from replicator.engine.log.block import LEDGER_MAX, read_header
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.frame_rows import decode_frame_by_steps
from replicator.engine.log.left_out import decode_note, is_note
from replicator.engine.log.link_frame import (
    ANSWER_BYTES_MAX,
    PROTOCOL_VERSION,
    UPGRADED_FROM,
    agreed_version,
    pack_answer,
    pack_answer_text,
    version_refused,
)
from replicator.engine.log.writer import CopiedBlock, Extent
from replicator.links.copier import LANES_MAX
from replicator.peering.lives import HEARS, MADE
from replicator.running.pacing import LinkPace, metered
from replicator.running.short_tasks import awaited, heard
from replicator.running.turns import FairScheduler
from replicator.tracing.notes import CarriedNotes, decode_notes

STREAMS: Final = web.AppKey("append_streams", dict[tuple[LinkKey, str], web.Request])
"""The streams that append here by link and name of the stream, the oldest first; kept only where the application sets
it."""
LINK_OPENED: Final[web.AppKey[Callable[[str], None]]] = web.AppKey("link_opened")
"""Told the name of a cluster whose link opens a stream: a sign that it is there."""

FRAMES_PENDING_MAX: Final = 8
"""Frames that are read and not yet committed, for each stream."""
STREAMS_OF_LINK_MAX: Final = 2 * LANES_MAX
"""Limit of a link's streams besides its own. Each of Spark's tasks has one. A lane has two tasks while one relieves the
other. The oldest of more is half-open: its task is long gone."""
STREAM_NAME_CHARS_MAX: Final = 80
BLOCKS_AT_ONCE: Final = 256
"""Blocks of a topic that are checked, and handed to the writer, without a pause: in a millisecond. The other blocks of
the frame follow like those of the next frame."""
RESULTS_AT_ONCE: Final = 256
"""Results of a frame that are put into its answer without a pause."""

_Results = list[tuple[str, asyncio.Future[list[Extent]] | EngineError]]
"""Topics of a frame, in order, each with what becomes of its blocks. A topic with many blocks is here several times."""

log = structlog.get_logger(__name__)


class FrameStream(Protocol):
    """Stream of a link: frames come in, and answers go out."""

    async def next(self) -> Received | None:
        """Return the next frame, decompressed; None at the end of the stream.

        Raises :class:`BlockCorrupt` if the stream ends inside a frame, :class:`FrameTooLarge`, :class:`TimeoutError`.
        """

    async def answer(self, packed: bytes) -> None:
        """Send an answer to the link, packed by :func:`pack_answer`.

        Raises :class:`ConnectionError` if the link has gone, and :class:`TimeoutError` if it reads nothing.
        """

    def idle(self) -> None:
        """Note that no frame has anything to append for now, so spare memory can be freed."""


def routes() -> list[web.RouteDef]:
    return [web.post("/replication/v1/append", append)]


async def close_streams(app: web.Application) -> None:
    """End the streams of all links when ``app`` shuts down. Otherwise the server waits until they end by themselves."""
    for stream in app.get(STREAMS, {}).values():
        if stream.transport is not None:
            stream.transport.close()


def end_streams(app: web.Application, links: Iterable[LinkKey]) -> None:
    """Cut the streams of links that may not append as they did; those that still may come back by themselves."""
    gone = set(links)
    for (key, _), stream in app.get(STREAMS, {}).items():
        if key in gone and stream.transport is not None:
            stream.transport.abort()


async def append(request: web.Request) -> web.StreamResponse:
    """Take a link's stream of frames."""
    link = _link(request)
    version = number(request, "protocol", PROTOCOL_VERSION, 2**31)
    if agreed_version(version) != version:
        refused = version_refused(version, here=request.app[ENGINE].cluster, there=link.source)
        raise BadRequest(f"parameter protocol names a version that this worker cannot use: {refused}")
    await check_stream(request, link.source)
    with _only_stream_of_name(link.key, request), kept_stream(request, link.source):
        if version < UPGRADED_FROM:
            return await _append_posted(request, link)
        response, frames = await switch_protocols(request, request.app[ENGINE].unpacking)
        _note_opened(request, link)
        try:
            with (
                ending_at_expiry(request),
                question_stream(request, link.source, frames),
                _report_created_topics(request, frames),
            ):
                await _serve_frames(request, link, frames)
            await frames.close()
        except BaseException:
            frames.abort()
            raise
        return response


async def _append_posted(request: web.Request, link: IncomingLink) -> web.StreamResponse:
    """Serve the frames of a posted stream. The HTTP status is the first answer; the stream carries the others."""
    frames = posted_frames.PostedFrames(request, request.app[ENGINE].unpacking)
    frame = await frames.next()
    if frame is None:
        raise BadRequest("the body of the request has no frame: send at least one")
    first: _Results = []
    await _take(request, link, frame, first)
    _note_opened(request, link)
    response = await frames.begin()
    with ending_at_expiry(request):
        await _serve_frames(request, link, frames, first)
    return response


def _note_opened(request: web.Request, link: IncomingLink) -> None:
    if (link_opened := request.app.get(LINK_OPENED)) is not None:
        link_opened(link.source)


def _link(request: web.Request) -> IncomingLink:
    source = linked_source(request)
    name = request.query.get("name", "")
    link = request.app[LINKED_SOURCES].find(source, name)
    if link is None:
        here = request.app[ENGINE].cluster
        raise NotAllowedError(
            f"the topology has no link {name[:80]!r} from {source!r} to {here!r}; give all workers the same topology "
            "file, and run `replicator apply`"
        )
    return link


@contextmanager
def _only_stream_of_name(key: LinkKey, request: web.Request) -> Iterator[None]:
    """Keep at most one stream of each name for a link. Abort an older one, which is half-open and holds memory."""
    streams = request.app.get(STREAMS, {})
    named = (key, request.query.get("stream", "")[:STREAM_NAME_CHARS_MAX])
    of_link = [each for each in streams if each[0] == key and each != named and each[1]]  # never the link's own
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


@contextmanager
def _report_created_topics(request: web.Request, frames: FrameReceiver) -> Iterator[None]:
    """Tell the link of each topic that is made here until the context ends, if the link asked for that.

    A topic that the link's role may not replicate is not told. Which of the others had a copy before, the link knows.
    """

    def made(name: str) -> None:
        with suppress(EngineError):
            check_may_replicate(request, name)
            frames.queue_answer({MADE: name})

    if request.query.get(HEARS) != MADE:
        yield
        return
    listeners = request.app[ENGINE].making.listeners
    listeners.append(made)
    try:
        yield
    finally:
        listeners.remove(made)


async def _serve_frames(
    request: web.Request, link: IncomingLink, frames: FrameStream, first: _Results | None = None
) -> None:
    """Read and submit frames, and answer each in order as it becomes durable."""
    pending: asyncio.Queue[_Results | EngineError | None] = asyncio.Queue()
    room = asyncio.Semaphore(FRAMES_PENDING_MAX)
    if first is not None:
        pending.put_nowait(first)
    taken: _Results = []

    async def read() -> None:
        nonlocal taken
        try:
            while await room.acquire() and (frame := await frames.next()) is not None:
                taken = []
                await _take(request, link, frame, taken)
                pending.put_nowait(taken)
                del frame  # its memory is used again once it is committed
        except EngineError as error:
            pending.put_nowait(error)
        finally:
            pending.put_nowait(None)  # never waits: when the link has gone nobody makes room

    turns = request.app[ENGINE].turns
    reader = awaited(metered(read(), turns))
    results: _Results | EngineError | None = None
    try:
        while (results := await pending.get()) is not None:
            if not results and pending.empty():
                frames.idle()
            try:
                if isinstance(results, EngineError):
                    raise results
                answer = await _outcome(results, turns)
            except EngineError as error:
                await frames.answer(pack_answer({"error": error.code, "message": str(error)}))
                break
            await frames.answer(answer)
            room.release()
    except (ConnectionError, TimeoutError):
        return  # the link has gone; it will ask for the high-water mark when it is back
    finally:
        reader.cancel()
        (ended,) = await asyncio.gather(reader, return_exceptions=True)
        if isinstance(ended, Exception) and not isinstance(ended, ConnectionError | TimeoutError):
            log.error("reading a link's stream failed", source=link.source, exc_info=ended)
        left = [results, taken]
        while not pending.empty():
            left.append(pending.get_nowait())
        for each in left:
            if isinstance(each, list) and (begun := _begun(each)):
                await asyncio.wait(begun)


async def _take(request: web.Request, link: IncomingLink, frame: Received, results: _Results) -> None:
    """Submit a frame, and release it when all that it brings is durable or refused. Add that to ``results``."""
    try:
        await _submit(request, link, frame.content, results)
    finally:
        if frame.release is not None:
            _release_after(results, frame.release)


def _begun(results: _Results) -> list[asyncio.Future[list[Extent]]]:
    return [each for _, each in results if isinstance(each, asyncio.Future)]


def _release_after(results: _Results, release: Callable[[], None]) -> None:
    """Call ``release`` when all of ``results`` are there."""
    begun = _begun(results)
    if not begun:
        release()
    left = len(begun)

    def done(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            release()

    for each in begun:
        each.add_done_callback(done)


async def _submit(request: web.Request, link: IncomingLink, frame: memoryview, results: _Results) -> None:
    """Hand the frame's blocks to their topics, in order; does not wait until they are durable.

    What becomes of them is added to ``results``.
    """
    engine = request.app[ENGINE]
    pace = LinkPace(engine.turns)
    topics, noted = await pace.finish(decode_frame_by_steps(frame))
    link = _still_open(request, link)
    notes = {} if engine.tracing is None or not noted else _notes(noted)
    is_waiting = False
    for name, blocks in _pieces(topics):
        if pace.due:
            await pace.pause()
            link = _still_open(request, link)
        try:
            check_may_replicate(request, name)
            _check_origin(blocks, link)
            topic = engine.find(name)
            if topic is None:
                select_new(blocks, cluster=engine.cluster, topic=name, high_water={})  # no topic for what is refused
                topic = await engine.topic(name, by_link=True)
                link = _still_open(request, link)
        except EngineError as error:
            results.append((name, error))
            continue
        traced = notes.pop(name, ())  # all go with the first of the topic's blocks: a note may be here before its block
        begun = None if traced else topic.writing.begin_copy(blocks)
        waits = begun is None
        if begun is None:
            begun = awaited(topic.writing.copy(blocks, traced))
            is_waiting = True
        begun.add_done_callback(heard)  # the link may be gone before its answer is made
        results.append((name, begun))
        if waits and len(blocks) < len(topics[name]):
            await asyncio.sleep(0)  # lets this append reach the writer's queue before the topic's next blocks
            link = _still_open(request, link)
    if is_waiting:
        await asyncio.sleep(0)  # lets these appends reach the writer's queue before the next frame is read


def _still_open(request: web.Request, link: IncomingLink) -> IncomingLink:
    """Return the stream's link as it is now. A reload of the topology may have changed which origins it carries.

    Raises :class:`ConnectionResetError` if the stream was ended meanwhile: another run of the source's store took its
    place, for example, or its token has expired. Then nothing more of its frame may be appended.
    """
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the link's stream has ended")
    return request.app[LINKED_SOURCES].find(*link.key) or link


def _pieces(topics: Mapping[str, list[CopiedBlock]]) -> Iterator[tuple[str, list[CopiedBlock]]]:
    """Yield each topic's blocks, in order, in lists of at most :data:`BLOCKS_AT_ONCE`.

    If a block is refused, the later blocks of its topic are refused, too: each names the position of the one before it.
    """
    for name, blocks in topics.items():
        if len(blocks) <= BLOCKS_AT_ONCE:
            yield name, blocks
        else:
            for at in range(0, len(blocks), BLOCKS_AT_ONCE):
                yield name, blocks[at : at + BLOCKS_AT_ONCE]


def _check_origin(blocks: Sequence[CopiedBlock], link: IncomingLink) -> None:
    """Check invariant 4. A block of a foreign origin could also move another origin's high-water mark past entries that
    are still to come.
    """
    for copied in blocks:
        if is_note(copied.block):
            origin = decode_note(copied.block).origin
        else:
            header = read_header(copied.block)
            origin = header.origin
            if max(header.incarnation, header.origin_first.ledger) > LEDGER_MAX:
                raise BlockCorrupt(
                    f"the link from {link.source!r} sent a block of {origin!r} at {header.origin_first}, life "
                    f"{header.incarnation}: numbers out of range, so the block is damaged or of another version; run "
                    "the same version at both ends"
                )
        if origin not in link.origins:
            carried = ", ".join(sorted(link.origins))
            raise NotAllowedError(
                f"the link from {link.source!r} may bring messages that were published at {carried}, not those of "
                f"{origin!r}; give all workers the same topology file, and run `replicator apply`"
            )


def _notes(noted: bytes) -> dict[str, Sequence[CarriedNotes]]:
    """Return the notes of a frame that say which of its messages are traced, by topic. Ignore malformed notes."""
    try:
        return dict(decode_notes(noted))
    except ValueError as error:
        log.warning("notes of traces passed over", reason=str(error))
        return {}


async def _outcome(results: _Results, turns: FairScheduler) -> bytes:
    """Return the packed answer to a frame, once each of its blocks is durable or refused.

    Raise :class:`FrameTooLarge` if so many topics are refused that no link would read the answer.
    """
    extents, size_bytes = 0, 100  # what is in each answer
    pace = LinkPace(turns)
    refused: dict[str, str] = {}
    for count, (topic, result) in enumerate(results, 1):
        try:
            if isinstance(result, EngineError):
                raise result
            extents += len(await result)
        except EngineError as error:
            if topic not in refused:  # else a consequence of what the link is told
                reason = {"code": error.code, "message": str(error)}
                refused[topic] = f"{json.dumps(topic)}: {json.dumps(reason)}"
                size_bytes += len(refused[topic]) + 2
                if size_bytes > ANSWER_BYTES_MAX:
                    raise FrameTooLarge(
                        f"more topics of one frame of a link are refused than an answer of {ANSWER_BYTES_MAX} bytes "
                        f"can name. One is {topic[:80]!r}: {error}"
                    ) from None
        if not count % RESULTS_AT_ONCE:
            await pace.step()
    return pack_answer_text(f'{{"extents": {extents}, "refused": {{{", ".join(refused.values())}}}}}')
