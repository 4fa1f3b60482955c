"""Another copy of this cluster's store, in another directory, which a reclaim reads as if it were a peer.

The two copies have the same topics. Each copy has ledgers that the other copy lacks. A reclaim takes the messages of
those ledgers from the other copy, at the positions that they have there. This process opens the directory, so no worker
can run on it at the same time. The process serves the data plane of that copy on 127.0.0.1, to itself alone. So a
reclaim reads the pages, damaged blocks and trimmed logs of all its peers in one way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from replicator.api import data_plane
from replicator.api.errors import report_errors
from replicator.api.linked_sources import LinkedSources
from replicator.api.verifying import add_verifying
from replicator.backup.errors import BackupError
from replicator.backup.reclaim_peers import Peer, copies_of
from replicator.backup.reclaim_plan import TopicPlan
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt, NotAllowedError
from replicator.engine.log.block import BlockKind, read_header
from replicator.engine.log.store_files import check_there
from replicator.engine.topic import Topic
from replicator.failover.epochs import FIRST, from_json
from replicator.failover.service import RECORD
from replicator.pipeline.data_plane import BlockPage, FetchedBlock
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.plane import VerifyPlane
from snapshots.ack_vector import Range, merged_ranges, without
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import as_data

TRIMMED: Final = "PositionTrimmed"
"""Code of a worker's error for a place that it has trimmed, or that lies before all it ever had."""
HAS_TRIMMED: Final = "has trimmed", ", or never had it, and"
PROCESS_HEADER: Final = "X-Replicator-Process"
"""Header in the requests of this process to its own server. The server refuses all other requests."""


class DirectoryPlane(VerifyPlane):
    """Data plane of another copy of this cluster's store.

    The log there is the cluster's own log, so an origin position is also the local position. Local markers are left
    out.
    """

    def __init__(self, url: str, secret: str) -> None:
        super().__init__(url)
        self._secret = secret

    def shown(self) -> dict[str, str]:
        return {**super().shown(), PROCESS_HEADER: self._secret}

    def place(self, topic: str, origin: str, incarnation: int, position: Position) -> Position:
        return position

    def page(
        self, topic: str, after: Position, upto: Position | None = None, *, page_bytes: int | None = None
    ) -> BlockPage:
        page = super().page(topic, after, upto, page_bytes=page_bytes)
        return page._replace(blocks=list(filter(_is_for_others, page.blocks)))

    def raw_blocks(self, topic: str, after: Position, upto: Position) -> Iterator[FetchedBlock]:
        return filter(_is_for_others, super().raw_blocks(topic, after, upto))


def _is_for_others(block: FetchedBlock) -> bool:
    try:
        return read_header(block.block).kind is not BlockKind.LOCAL_MARKERS
    except BlockCorrupt:
        return True  # the code that reads this block reports the damage


@asynccontextmanager
async def open_directory(directory: Path, own: Path, cluster: str, settings: EngineSettings) -> AsyncIterator[Peer]:
    """Open the copy of the store of ``cluster`` in ``directory``, and return it as a peer, with what it has.

    ``own`` is the cluster's own directory. Raises :class:`BackupError` if ``directory`` is ``own``, and
    :class:`StoreUnusable` if ``directory`` has no store, has the store of another cluster, or is in use by a worker.
    """
    _check_other(directory, own, cluster)
    async with AsyncExitStack() as stack:
        engine = await Engine.open(directory, cluster=cluster, settings=settings)
        stack.push_async_callback(engine.close)
        secret = secrets.token_hex(16)
        plane = DirectoryPlane(await _serve(engine, secret, stack), secret)
        stack.callback(plane.close)
        cuts = (await asyncio.to_thread(plane.call, "GET", "/replication/v1/cuts"))["topics"]
        store = str(engine.store.head["store_id"])
        # Topics without messages of this cluster are named too: their subscriptions are merged.
        copies = {name: copies_of(_as_copy(row, engine, name, store), cluster) for name, row in cuts.items()}
        record = engine.store.meta(RECORD)
        epochs = FIRST if record is None else from_json(record)
        yield Peer(str(directory), plane, copies, epochs, _deletions(engine), engine)


def _deletions(engine: Engine) -> dict[str, dict[int, Position]]:
    """Return, by topic, the lives that the cluster deleted on purpose, as ``engine`` remembers them, each with its last
    position. No other cluster needs to have heard of them."""
    stores, cluster = engine.origin_stores, engine.cluster
    names = {topic for topic, origin, _ in stores.deletions if origin == cluster}
    lives = {name: stores.deleted_lives(name, cluster).items() for name in names}
    return {name: {life: upto for life, upto in each if upto != BEFORE_ALL} for name, each in lives.items()}


def _as_copy(row: Mapping[str, Any], engine: Engine, name: str, store: str) -> dict[str, Any]:
    """Return a row of ``GET /replication/v1/cuts`` in the form in which a peer answers.

    ``row`` describes the topic ``name`` in ``engine``, the other copy of the cluster's store, whose id is ``store``. A
    peer's row names the writing store of each life, the earlier lives, and the ledgers of the cluster's messages. The
    log there is the cluster's own, so all of these are added for the cluster.
    """
    cluster, topic, mark = engine.cluster, engine.find(name), row["high_water"].get(engine.cluster)
    if topic is None or mark is None:
        return dict(row)
    earlier = engine.origin_stores.earlier_lives(topic)
    return {
        **row,
        "lineage": {cluster: {"stores": {str(mark[0]): store}}},
        "lives": {cluster: [(life, None, str(last)) for life, last in earlier.items()]},
        "ledgers": {str(mark[0]): _own_ledgers(engine, topic, Position.parse(mark[1]))},
    }


def _own_ledgers(engine: Engine, topic: Topic, mark: Position) -> list[tuple[int, int, int]]:
    """Return the ledgers of the newest life, each with its first entry and its newest message of this cluster.

    The last of these messages lies at ``mark``, which can be a marker. Ledgers without such messages are left out. If
    too many other blocks follow the newest message, the ledger is returned up to its end.
    """
    found: list[tuple[int, int, int]] = []
    for ledger, first, last in topic.log.runs_between(Position(topic.incarnation, -1), topic.log.last):
        newest = engine.store.newest_message(topic.topic_id, engine.cluster, Position(ledger, last))
        newest = newest or Position(ledger, last)
        ends = [at.entry for at in (newest, mark) if at.ledger == ledger]
        if ends and max(ends) >= first:
            found.append((ledger, first, max(ends)))
    return found


def _check_other(directory: Path, own: Path, cluster: str) -> None:
    if directory.resolve() == own.resolve():
        raise BackupError(
            f"--from-directory: {directory} is the directory of {cluster} itself; give that of the other copy"
        )
    check_there(directory)


async def _serve(engine: Engine, secret: str, stack: AsyncExitStack) -> str:
    """Serve the data plane of ``engine`` to requests that carry ``secret``, and return its URL."""

    @web.middleware
    async def to_this_process(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not secrets.compare_digest(request.headers.get(PROCESS_HEADER, ""), secret):
            raise NotAllowedError(
                "only the command `replicator backup reclaim` that serves this address may ask here: ask a worker "
                "instead"
            )
        return await handler(request)

    app = web.Application(middlewares=[report_errors, to_this_process])
    app[data_plane.ENGINE] = engine
    app[data_plane.LINKED_SOURCES] = LinkedSources()
    app.add_routes(data_plane.routes())
    add_verifying(app)
    app.router.add_get("/replication/v1/ack-vectors", _states)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _states(request: web.Request) -> web.Response:
    """Answer ``GET /replication/v1/ack-vectors`` as a peer does: what is consumed in this copy, by subscription."""
    topic = await request.app[data_plane.ENGINE].topic(request.query.get("topic", ""), create=False)
    return web.json_response({"subscriptions": {name: _state(topic, name) for name in topic.subscriptions}})


def _state(topic: Topic, name: str) -> dict[str, Any]:
    state = topic.subscriptions[name].cursor.state
    acked = {
        "incarnation": str(topic.incarnation),
        "ranges": [[str(after), str(upto)] for after, upto in known_ranges(topic, state.mark_delete)],
        "beyond": [[str(first), str(last)] for first, last in state.individually_deleted.runs()],
        "batches": {str(position): list(indexes) for position, indexes in state.batch_acks.items()},
    }
    return {"generation": state.generation, "vector": {topic.cluster: acked}, "starts": as_data(state.starts)}


def known_ranges(topic: Topic, upto: Position) -> list[Range]:
    """Return the ranges that the log has or had up to ``upto``, ledger by ledger. Messages that it lacks were not
    consumed there.
    """
    log = topic.log
    runs = [
        (Position(ledger, first - 1), Position(ledger, last))
        for ledger, first, last in log.runs_between(BEFORE_ALL, upto)
    ]
    trimmed = [(Position(end.ledger, -1), min(end, upto)) for end in log.trimmed_ends]
    return without([*trimmed, *runs], topic.origins.left_out(topic.cluster))


Lacks = tuple[str, str]
"""Words before and after what a peer lacks."""


def lacking_at(
    peers: Iterable[Peer],
    plan: TopicPlan,
    ends: Sequence[Position],
    cluster: str,
    said: dict[tuple[str, Position], Lacks | None],
) -> list[str]:
    """Return in words which peers lack messages that came back between ledgers.

    ``ends`` are the last messages of the ledgers that came back, in order. A link copies only what lies behind the last
    message that its destination has. Such a peer has later messages already, so no link brings these messages to the
    peer. A peer that has the last of ``ends`` can have trimmed the others; only its link finds out if it never had
    them. ``said`` keeps the answers by peer and position, so that none is asked for twice.
    """
    found: list[str] = []
    for peer in peers:
        marks = [copy.mark for copy in peer.copies.get(plan.name, ()) if copy.incarnation == plan.incarnation]
        if peer.engine is not None or not marks:
            continue
        ranges: dict[Lacks, list[Range]] = {}
        for after, last in pairwise((plan.after, *ends)):
            key = peer.name, last
            if last <= max(marks) and key not in said:
                said[key] = _lacks(peer, plan, last, cluster)
            if (says := said.get(key)) is not None:
                ranges.setdefault(says, []).append((after, last))
        if ranges and (ends[-1] not in [upto for each in ranges.values() for _, upto in each]):
            ranges.pop(HAS_TRIMMED, None)
        for (lacks, and_), each in ranges.items():
            found += [
                f"{plan.name}: {peer.name} {lacks} what came back after {after} up to {last}{and_} no link brings it "
                f"there, as {peer.name} has later messages of {cluster}"
                for after, last in merged_ranges(each)
            ]
    return found


def _lacks(peer: Peer, plan: TopicPlan, last: Position, cluster: str) -> Lacks | None:
    """Return the words before and after what ``peer`` lacks, if it does not have the message at ``last``."""
    try:
        peer.plane.place(plan.name, cluster, plan.incarnation, last)
    except UnexpectedAnswer as error:
        if error.code == TRIMMED:
            return HAS_TRIMMED
        if error.is_not_found:
            return "lacks", ", and"
        return "does not say whether it has", f" ({error}); if not,"
    return None
