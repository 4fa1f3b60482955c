"""Helpers of the tests of engine, links and data plane: entries and blocks, engines, servers and a cutting proxy."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from pyroaring import BitMap

from replicator.api import data_plane, link_streams
from replicator.api.errors import report_errors
from replicator.api.linked_sources import LinkedSources
from replicator.api.reading import add_reading
from replicator.api.runs import add_runs
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.lineage import StoreLine
from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.peering.claim_checker import ClaimChecker
from snapshots.position import BEFORE_ALL, Position

DEADLINE_SECONDS = 20.0
PUBLISH_TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/orders"


def message(
    payload: bytes = b"payload",
    *,
    sequence_id: int = 0,
    batch_size: int | None = None,
    clusters: Iterable[str] = (),
    replicated_from: str | None = None,
) -> bytes:
    """Return an entry of one message; ``batch_size`` makes it claim to be a batch of that many.

    ``clusters`` are those that its producer wants it copied to, if not all. ``replicated_from`` is the cluster from
    which brokers brought it.
    """
    metadata = MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=PUBLISH_TIME_MS, replicate_to=clusters
    )
    if batch_size is not None:
        metadata.num_messages_in_batch = batch_size
    if replicated_from is not None:
        metadata.replicated_from = replicated_from
    return encode_entry(metadata, payload)


def batch(payloads: Sequence[bytes]) -> bytes:
    """Return an entry of a real batch."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS, num_messages_in_batch=len(payloads)
    )
    body = bytearray()
    for payload in payloads:
        append_to_batch(body, SingleMessageMetadata(payload_size=0), payload)
    return encode_entry(metadata, body)


def marker(payload: bytes = b"marker") -> bytes:
    return encode_entry(
        MessageMetadata(producer_name="w", sequence_id=0, publish_time=PUBLISH_TIME_MS, marker_type=10), payload
    )


def make_block(
    first: Position,
    entries: Sequence[bytes],
    *,
    origin: str = "us-east",
    incarnation: int = 7,
    kind: BlockKind = BlockKind.MESSAGES,
    batch_sizes: Sequence[int] | None = None,
    absent: Mapping[int, Collection[int]] | None = None,
    only: frozenset[str] | None = None,
) -> bytes:
    """Return a block as a worker of ``origin`` writes it; ``absent`` has by entry the messages that a link left out,
    ``only`` the other clusters that may have it, if not all may."""
    default_size = 1 if kind is BlockKind.MESSAGES else 0
    return build_block(
        kind=kind,
        origin=origin,
        incarnation=incarnation,
        origin_first=first,
        publish_time_ms=PUBLISH_TIME_MS,
        entries=entries,
        batch_sizes=batch_sizes or [default_size] * len(entries),
        absent={entry: BitMap(indexes) for entry, indexes in (absent or {}).items()},
        only=only,
    )


def make_log(*runs: tuple[int, int, bool]) -> LogIndex:
    """Return a log of runs ``(ledger, entries, is marker)``; a ledger's runs follow each other from entry 0."""
    log = LogIndex()
    following: dict[int, int] = {}
    for ledger, entries, is_marker in runs:
        first = following.get(ledger, 0)
        log.append(Position(ledger, first), entries, marker=is_marker)
        following[ledger] = first + entries
    return log


async def eventually(
    condition: Callable[[], object], what: str = "the condition", seconds: float = DEADLINE_SECONDS
) -> None:
    """Return as soon as ``condition()`` is true; fail with ``what`` after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the tested code has no event for what tests wait for
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {seconds} s") from None


async def settled(counted: Callable[[], object], seconds: float = 0.3) -> None:
    """Return once what is counted has not changed for so long; fail if it goes on changing.

    For what must come to rest, where nothing says that the last of it has come: what was under way on a busy machine
    may still arrive, and what never ends is found by the deadline.
    """
    deadline, before = time.monotonic() + DEADLINE_SECONDS, counted()
    await asyncio.sleep(seconds)
    while before != (before := counted()):
        assert time.monotonic() < deadline, f"there is no end to it: {before}"
        await asyncio.sleep(seconds)


@asynccontextmanager
async def opened(path: Path, cluster: str = "us-east", settings: EngineSettings | None = None) -> AsyncIterator[Engine]:
    """Yield an engine over ``path``; close it at the end."""
    engine = await Engine.open(path, cluster=cluster, settings=settings)
    try:
        yield engine
    finally:
        await engine.close()


class HeldClock:
    """A clock that the writer asks once a group: while it is held, requests pile up into the next group."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.free = threading.Event()
        self.free.set()
        self.asked = threading.Event()

    def __call__(self) -> int:
        self.asked.set()
        assert self.free.wait(10)
        return self.now_ms

    def settings(self, **limits: int) -> EngineSettings:
        return EngineSettings(wall_clock_ms=self, **limits)


READ_FROM_DISK = EngineSettings(cache_bytes_max=0)
"""Settings of an engine that keeps no block in memory: what is damaged on the disk is seen by the next reader."""


async def one_group(
    engine: Engine, clock: HeldClock, *requests: Coroutine[Any, Any, Any], queued: int | None = None
) -> list[Any]:
    """Have all ``requests`` committed in one group, in this order; returns results or errors.

    ``queued`` is the number of requests to the writer that they make, if that is not one each.
    """
    clock.free.clear()
    clock.asked.clear()
    holder = asyncio.ensure_future(engine.remember("holder", 1))
    await eventually(clock.asked.is_set, "the writer has taken the request that holds it")
    tasks = [asyncio.ensure_future(request) for request in requests]
    wanted = len(tasks) if queued is None else queued
    await eventually(lambda: len(engine.writer._requests) == wanted, "all requests are queued")
    clock.free.set()
    await holder
    return list(await asyncio.gather(*tasks, return_exceptions=True))


class Inbox:
    """Receiver of a consumer's deliveries; it keeps them."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries.extend(deliveries)

    @property
    def positions(self) -> list[Position]:
        return [delivery.position for delivery in self.deliveries]

    async def holds(self, count: int) -> None:
        await eventually(lambda: len(self.deliveries) >= count, f"{count} deliveries (have {len(self.deliveries)})")


async def subscribed(
    topic: Topic,
    name: str = "sub",
    subscription_type: SubscriptionType = SubscriptionType.SHARED,
    *,
    permits: int = 1000,
    initial: InitialPosition = InitialPosition.EARLIEST,
    consumer_name: str = "c",
    **options: Any,
) -> tuple[EngineConsumer, Inbox]:
    """Return a connected consumer with permits, and its inbox."""
    inbox = Inbox()
    asked = SubscribeOptions(type=subscription_type, consumer_name=consumer_name, initial=initial, **options)
    consumer = await topic.subscribe(name, asked, inbox)
    if permits:
        consumer.flow(permits)
    return consumer, inbox


IDLE_TURNS = 3


async def all_sent(consumer: EngineConsumer) -> None:
    """Wait until the subscription has delivered all that it may: it is idle for some turns of the event loop."""
    idle = 0
    while idle < IDLE_TURNS:
        await asyncio.sleep(0)
        idle = 0 if consumer.subscription.dispatching.pump.scheduled else idle + 1  # type: ignore[attr-defined]


def logged(topic: Topic) -> list[tuple[str, Position, bytes]]:
    """Return origin, origin position and bytes of every message of a topic, in log order."""
    return [
        (entry.origin, entry.origin_position, bytes(entry.entry))
        for entry in topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12)
        if not entry.marker
    ]


def entries_of(topic: Topic, origin: str) -> list[bytes]:
    """Return the messages of one origin, in log order."""
    return [entry for at, _, entry in logged(topic) if at == origin]


class BelievesClaims(ClaimChecker):
    """Believes each claim, for tests in which nobody serves the cluster that it is about."""

    async def store_line(self, cluster: str, origin: str, told: StoreLine) -> StoreLine:
        return told

    async def copied_anew(self, cluster: str, topic: str, told: Mapping[str, HighWater]) -> Mapping[str, HighWater]:
        return told


class DataPlaneServer:
    """The data plane of one engine on a port of its own; can be stopped and started again on that port."""

    def __init__(self, engine: Engine, linked_sources: Iterable[str] = ()) -> None:
        self.engine = engine
        self._linked_sources = LinkedSources.of(*linked_sources)
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.also: Callable[[web.Application], None] = lambda app: None
        """Adds what else it is to serve."""
        self.asking: ClaimChecker = BelievesClaims(engine.cluster)
        self.takes_runs = True
        """Whether it answers announcements of runs; a worker of an earlier version does not."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/replication/v1"

    async def start(self) -> None:
        app = web.Application(middlewares=[report_errors])
        app[data_plane.ENGINE] = self.engine
        app[data_plane.LINKED_SOURCES] = self._linked_sources
        app[data_plane.ASKING] = self.asking
        app.add_routes(data_plane.routes())
        app.add_routes(link_streams.routes())
        add_reading(app, secrets.token_hex(8))
        if self.takes_runs:
            add_runs(app, self.engine, self._linked_sources)
        self.also(app)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()


@asynccontextmanager
async def serving(engine: Engine, linked_sources: Collection[str] = ()) -> AsyncIterator[DataPlaneServer]:
    server = DataPlaneServer(engine, linked_sources)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class CuttingProxy:
    """A TCP proxy that cuts every connection after a random number of bytes, until :attr:`cutting` is unset."""

    def __init__(self, target_port: int, *, seed: int, bytes_max: int) -> None:
        self._target_port = target_port
        self._random = random.Random(seed)
        self._bytes_max = bytes_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.cutting = True
        self.cuts = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        allowance = [self._random.randrange(1, self._bytes_max) if self.cutting else 10**12]
        out_writer: asyncio.StreamWriter | None = None
        try:
            out_reader, out_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            pumps = [
                asyncio.ensure_future(self._pump(reader, out_writer, allowance)),
                asyncio.ensure_future(self._pump(out_reader, writer, allowance)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the target is down, or the test is over
        finally:
            self.cuts += 1
            for side in (writer, out_writer):
                if side is not None:
                    side.transport.abort()
            self._tasks.discard(task)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowance: list[int]) -> None:
        """Pass bytes on until the allowance of the connection is used up; the last piece is cut short."""
        while allowance[0] > 0 and (piece := await reader.read(64 * 1024)):
            piece = piece[: allowance[0]]
            allowance[0] -= len(piece)
            writer.write(piece)
            await writer.drain()
