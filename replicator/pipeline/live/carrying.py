"""Carrying: a Spark task brings the blocks of a segment from the source's worker to the destination.

The link decides what is carried (:mod:`replicator.pipeline.live.link_plans`). The destination decides whether it is
new, in the transaction that stores it (invariant 2). So nothing is remembered here, and the destination drops blocks
that a retried or a speculative task carries twice. A block's bytes are not read here: the destination checks them
before it writes them.

1. *Fetch*: a frame's worth of blocks is asked for, while earlier ones are being sent. At most
   :data:`FRAMES_AHEAD` wait, so a task needs some 20 MiB however long the segment is.
2. *Send*: the blocks go into a frame of the link's append stream, with the predecessor that the plan says.
3. *Receive*: the destination answers each frame when it is durable. A topic that it refuses is not sent any more in
   this segment, and neither is one with a block that the source has lost (``PlanStale``). Then the link decides.

The three overlap, also across segments: the next one is fetched while the last frames of one are being committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import uvloop

from replicator.engine.log.arrow import encode_append, encode_append_columns
from replicator.engine.log.compression import Buffer
from replicator.engine.log.gathering import messages_of
from replicator.links.copier import FRAME_BYTES_TARGET
from replicator.links.plans import LEFT_OUT, NOTE
from replicator.links.transport import SILENCE_SECONDS_MAX, HttpTransport, Reply
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PipelineError, UnexpectedAnswer
from replicator.pipeline.live.link_plans import Done, Segment
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout
from replicator.running.together import until_all_end

FRAME_BLOCKS_MAX: Final = 10_000
"""Limit of small blocks in a frame; below a worker's limit for one answer."""
FRAMES_AHEAD: Final = 2
"""Limit of frames that are fetched and not yet sent. One would do if both sides always took the same time."""
SIGN_OF_LIFE_SECONDS: Final = SILENCE_SECONDS_MAX / 3
PLAN_STALE: Final = "PlanStale"
"""Code of the refusal of a topic if one of its blocks is not at the source any more."""


@dataclass(frozen=True, slots=True)
class LinkWork:
    """Facts about a link for its tasks. ``stream`` names the append stream; the streams of one link have different
    names."""

    worker_url: str
    key: str
    source: str
    destination: str
    address: str
    name: str = ""
    compression: str = "none"
    stream: str = ""

    def transport(self) -> HttpTransport:
        """Return a connection to the destination, not yet open."""
        return HttpTransport(
            self.source,
            self.destination,
            self.address,
            name=self.name,
            compression=self.compression,
            stream=self.stream,
        )


def run_of(worker_url: str) -> str:
    """Return the id of the run of the source's worker; empty if the worker's version is earlier and has no runs."""
    with DataPlane(worker_url) as worker, contextlib.suppress(UnexpectedAnswer):
        return str(worker.call("GET", "/pipeline/v1/links").get("run", ""))
    return ""


def carry(work: LinkWork, segment: Segment) -> Done:
    """Carry one segment over new connections; see :class:`Carrier`."""

    async def carry_one() -> Done:
        async with Carrier(work) as carrier:
            return await carrier.carry(segment)

    return uvloop.run(carry_one())


class Carrier:
    """Carrier of segments, one after another, over one connection to each side. Use it as an async context manager.

    After an error all its segments fail: with ``PeerUnavailable`` of the pipeline or of the links,
    :class:`~replicator.links.errors.PeerRefused`, or :class:`UnexpectedAnswer`. Make a new one then.
    """

    def __init__(self, work: LinkWork) -> None:
        self._worker = DataPlane(work.worker_url)
        self._transport = work.transport()
        self._asked: asyncio.Queue[_Carrying] = asyncio.Queue()
        self._fetched: asyncio.Queue[_Frame] = asyncio.Queue(maxsize=FRAMES_AHEAD)
        self._in_flight: deque[_Frame] = deque()
        self._opened = asyncio.Event()
        self._sent = asyncio.Event()
        self._unfinished: set[asyncio.Future[Done]] = set()
        self._broken: BaseException | None = None
        self._running: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        self._running = awaited(self._run(), name="carrier")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        await self._transport.__aexit__(kind, error, trace)
        self._worker.close()

    def start(self, segment: Segment) -> asyncio.Future[Done]:
        """Start to carry a segment once those before it are fetched; the future gives the result."""
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        if self._broken is not None:
            future.set_exception(self._broken)
            return future
        self._unfinished.add(future)
        self._asked.put_nowait(_Carrying(segment, future))
        return future

    async def carry(self, segment: Segment) -> Done:
        """Carry a segment; return the result: the position that the destination has by topic, or the reason of a
        refusal."""
        return await self.start(segment)

    async def _run(self) -> None:
        try:
            await until_all_end(self._fetch(), self._send(), self._receive(), self._notice_end(), names="carrier")
        except Exception as error:  # noqa: BLE001 - the callers get it with their segments
            self._give_up(error)
        finally:
            self._give_up(PipelineError("the carrier was closed"))

    def _give_up(self, error: BaseException) -> None:
        self._broken = self._broken or error
        while self._unfinished:
            future = self._unfinished.pop()
            if not future.done():
                future.set_exception(error)
                future.exception()  # its caller may have gone, or look at another segment's

    async def _fetch(self) -> None:
        while True:
            carrying = await self._asked.get()
            while (wanted := carrying.next_frame()) is not None:
                column = await asyncio.to_thread(self._worker.block_list, wanted.positions())
                await self._fetched.put(carrying.frame(wanted, column))
            await self._fetched.put(_Frame(carrying, None, (), ends=True))

    async def _send(self) -> None:
        self._transport.run_id = await asyncio.to_thread(run_of, self._worker.url)
        await self._transport.open()
        self._opened.set()
        while True:
            try:
                async with timeout(SIGN_OF_LIFE_SECONDS):
                    frame = await self._fetched.get()
            except TimeoutError:
                frame = _Frame(None, encode_append(()), ())
            if frame.stream is not None:
                packed = await self._transport.pack(frame.stream)
                if frame.carrying is not None:
                    frame.carrying.wire_bytes += packed.size_bytes
                frame.stream = ()  # the frame waits for its answer, its bytes need not
                await self._transport.send(packed)
            self._in_flight.append(frame)
            self._sent.set()

    async def _receive(self) -> None:
        while True:
            while not self._in_flight and not self._transport.at_end:
                self._sent.clear()
                await self._sent.wait()
            frame = self._in_flight[0] if self._in_flight else None
            if frame is None or frame.stream is not None:
                reply = await self._transport.receive()
                if frame is not None and frame.carrying is not None:
                    frame.carrying.answered(frame, reply)
            if frame is not None:
                self._in_flight.popleft()
                if frame.ends and frame.carrying is not None:
                    self._unfinished.discard(frame.carrying.future)
                    frame.carrying.finish()

    async def _notice_end(self) -> None:
        """Wake the receiver when the destination ends the connection."""
        await self._opened.wait()
        await self._transport.ended()
        self._sent.set()


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive blocks of one topic, with numbers from ``start`` up to but not including ``stop``."""

    topic: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Blocks that the next frame is to hold."""

    parts: tuple[_Part, ...]
    topics: Sequence[dict[str, Any]]

    def positions(self) -> list[tuple[str, list[list[int]]]]:
        return [
            (
                self.topics[part.topic]["topic"],
                [asked(block) for block in self.topics[part.topic]["blocks"][part.start : part.stop]],
            )
            for part in self.parts
        ]


@dataclass(slots=True)
class _Frame:
    """Frame on its way to the destination. ``carrying`` is None for a sign of life, ``stream`` for the end of a
    segment."""

    carrying: _Carrying | None
    stream: Sequence[Buffer] | None
    counted: tuple[tuple[_Part, int, int], ...]
    """Messages and bytes of each part."""
    ends: bool = False


@dataclass(slots=True)
class _Carrying:
    """Segment that is being carried."""

    segment: Segment
    future: asyncio.Future[Done]
    wire_bytes: int = 0
    _next: tuple[int, int] = (0, 0)
    """Topic and block with which the next frame starts."""
    _refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    _reached: dict[int, str] = field(default_factory=dict)
    _blocks: int = 0
    _entries: int = 0
    _messages: int = 0
    _bytes: int = 0

    @property
    def _topics(self) -> Sequence[dict[str, Any]]:
        topics: Sequence[dict[str, Any]] = self.segment["topics"]
        return topics

    def next_frame(self) -> _Wanted | None:
        """Return blocks for about :data:`FRAME_BYTES_TARGET`, at least one; None at the end of the segment."""
        parts: list[_Part] = []
        room_bytes, room_blocks = FRAME_BYTES_TARGET, FRAME_BLOCKS_MAX
        topic, start = self._next
        while topic < len(self._topics) and room_bytes > 0 and room_blocks > 0:
            blocks = self._topics[topic]["blocks"]
            if start >= len(blocks) or topic in self._refused:
                topic, start = topic + 1, 0
                continue
            ends = list(accumulate(block[3] for block in blocks[start : start + room_blocks]))
            fitting = bisect_right(ends, room_bytes)
            if not fitting and parts:
                break
            fitting = max(fitting, 1)
            parts.append(_Part(topic, start, start + fitting))
            start += fitting
            room_bytes -= ends[fitting - 1]
            room_blocks -= fitting
        self._next = (topic, start)
        return _Wanted(tuple(parts), self._topics) if parts else None

    def frame(self, wanted: _Wanted, column: pa.Array) -> _Frame:
        """Return the frame with the fetched blocks. If they are fewer than asked for, the next frame starts there."""
        if not 0 < len(column) <= sum(part.stop - part.start for part in wanted.parts):
            raise UnexpectedAnswer(
                f"the source's worker answered with {len(column)} blocks, which is none or more than were asked for; "
                "run the worker's version in Spark too"
            )
        parts = list(self._cut(wanted.parts, column))
        kept = [(part, at) for part, at in parts if part.stop > part.start]
        if sum(part.stop - part.start for part, _ in kept) == len(column):
            blocks = column
        else:
            pieces = [column.slice(at, part.stop - part.start) for part, at in kept]
            blocks = pa.concat_arrays(pieces) if pieces else column.slice(0, 0)
        rows = [block for part, _ in kept for block in self._topics[part.topic]["blocks"][part.start : part.stop]]
        names = [self._topics[part.topic]["topic"] for part, _ in kept for _ in range(part.start, part.stop)]
        stream = encode_append_columns(
            names, [row[4] for row in rows], [row[5] for row in rows], [bool(row[6] & LEFT_OUT) for row in rows], blocks
        )
        notes = np.fromiter((bool(row[6] & NOTE) for row in rows), bool, len(rows))
        return _Frame(self, stream, tuple(_counted([part for part, _ in kept], blocks, notes)))

    def _cut(self, parts: Sequence[_Part], column: pa.Array) -> Iterator[tuple[_Part, int]]:
        """Yield the parts as far as they were fetched, each with its place in the column. Refuse topics that miss a
        block."""
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else np.empty(0)
        at = 0
        for part in parts:
            stop = min(part.stop, part.start + len(column) - at)
            lost = missing[(missing >= at) & (missing < at + stop - part.start)]
            if len(lost):
                block = self._topics[part.topic]["blocks"][part.start + int(lost[0]) - at]
                message = f"the block at {block[0]}:{block[1]} is not at the source any more"
                self._refused.setdefault(part.topic, (PLAN_STALE, message))
                yield _Part(part.topic, part.start, part.start + int(lost[0]) - at), at
            else:
                yield _Part(part.topic, part.start, stop), at
            at += stop - part.start
            if stop < part.stop:
                self._next = (part.topic, stop)
                return

    def answered(self, frame: _Frame, reply: Reply) -> None:
        for part, messages, size_bytes in frame.counted:
            topic = self._topics[part.topic]
            if topic["topic"] in reply.refused:
                code, message = reply.refused[topic["topic"]]
                if self._refused.get(part.topic, (PLAN_STALE, ""))[0] == PLAN_STALE:  # what came first counts
                    self._refused[part.topic] = (code, message)
                    self._reached.setdefault(part.topic, topic["after"])
                continue
            if part.topic in self._refused and self._refused[part.topic][0] != PLAN_STALE:
                continue  # it stands behind what was refused
            ledger, first, entries = topic["blocks"][part.stop - 1][:3]
            self._reached[part.topic] = f"{ledger}:{first + entries - 1}"
            carried = [block for block in topic["blocks"][part.start : part.stop] if not block[6] & NOTE]
            self._blocks += len(carried)
            self._entries += sum(block[2] for block in carried)
            self._messages += messages
            self._bytes += size_bytes

    def finish(self) -> None:
        if self.future.done():
            return
        topics = []
        for number, topic in enumerate(self._topics):
            refused = self._refused.get(number)
            reached = topic["upto"] if refused is None else self._reached.get(number, topic["after"])
            said = None if refused is None else {"code": refused[0], "message": refused[1]}
            topics.append({"topic": topic["topic"], "reached": reached, "refused": said})
        self.future.set_result(
            {
                "segment": self.segment["segment"],
                "topics": topics,
                "blocks": self._blocks,
                "entries": self._entries,
                "messages": self._messages,
                "bytes": self._bytes,
                "wire_bytes": self.wire_bytes,
                "extents": [],
            }
        )


def asked(row: Sequence[int]) -> list[int]:
    """Return a planned block in the form of a request to the data plane."""
    return [row[0], row[1], 1] if row[6] & NOTE else [row[0], row[1]]


def _counted(
    parts: Sequence[_Part], blocks: pa.Array, notes: npt.NDArray[np.bool_]
) -> Iterator[tuple[_Part, int, int]]:
    """Yield each part with its messages and bytes; ``notes`` marks notes, which are not blocks."""
    if not parts:
        return
    counts = np.asarray([part.stop - part.start for part in parts])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sizes = np.diff(np.frombuffer(blocks.buffers()[1], np.int64, len(blocks) + 1, blocks.offset * 8))
    messages = np.add.reduceat(np.where(notes, 0, messages_of(blocks)).astype(np.int64), starts)
    size_bytes = np.add.reduceat(sizes, starts)
    yield from zip(parts, messages.tolist(), size_bytes.tolist(), strict=True)
