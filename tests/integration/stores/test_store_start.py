"""A worker's start on its store, with real engines, HTTP and reclaims in this process, and without the rest of workers.

Invariants (DESIGN §3): 5, 12 and 13.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer
from asynchronous import asynchronous
from engine_support import TOPIC, DataPlaneServer, eventually, make_block, message, opened

from replicator.api.cluster_settings import settings_routes
from replicator.api.store_of import add_store_of, store_known
from replicator.api.verifying import add_verifying
from replicator.backup.reclaiming import reclaim
from replicator.backup.topic_lives import answer_later
from replicator.cli.exit_status import exit_status_of
from replicator.drills.ports import free_ports
from replicator.engine.cluster_settings.own import TAKEN
from replicator.engine.cluster_settings.state import SettingsHead, SettingsMessage, digest_of
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreFull
from replicator.engine.lineage import StoreLine
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.restored import MARK, restored_mark
from replicator.failover.epochs import FIRST, as_json
from replicator.failover.service import RECORD, FailoverService
from replicator.index.database import DatabaseUnavailable
from replicator.index.earlier_rows import EarlierRows
from replicator.operating.binding import take_place
from replicator.operating.start_checks import RUNS
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.security.client_limits import ClientLimits
from replicator.topology import Topology, load_topology
from replicator.worker import asking_peers, store_start, taking_settings
from replicator.worker.asking_peers import announce_later, ask_all
from replicator.worker.early import HttpListener, Opening, make_early_app
from replicator.worker.settings_teller import SettingsPublisher
from replicator.worker.start_decision import IndexRows, StartMode
from replicator.worker.store_start import (
    START,
    EmptyStoreRefused,
    OpenStore,
    Started,
    StoppedEarly,
    StoreReplaced,
    StoreStart,
)
from replicator.worker.store_watch import StoreWatch
from snapshots.markers import FailoverEpoch
from snapshots.position import BEFORE_ALL, Position

ROWS = EarlierRows(2, 3, ("one", "two"))
SILENT_SECONDS_MAX = 20
"""Limit of a start that waits 1 s for a silent peer, on a busy machine. Without that setting it would take minutes."""
GONE = EarlierRows(1, 1, ("persistent://public/default/gone",))
NAMED_GONE = (
    "Postgres has 1 topic of an earlier store that no cluster that was asked has: persistent://public/default/gone; "
    "C was not asked"
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_start, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(asking_peers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr("replicator.backup.reclaim_peers.ANSWER_SECONDS", 0.2)


class Peer:
    """A cluster that has copies of A's messages, served over HTTP."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        self.server = DataPlaneServer(engine, {"A"})
        self.server.port = port
        self.server.also = self._add
        self.knows_route = True
        self.reading: Callable[[web.Request], None] = lambda request: None
        """Called with each request for blocks."""

    def _add(self, app: web.Application) -> None:
        add_verifying(app)
        app.add_routes(settings_routes())
        if self.knows_route:
            add_store_of(app, partial(store_known, self.engine), self.engine)

        async def state(_: web.Request) -> web.Response:
            record = self.engine.store.meta(RECORD) or as_json(FIRST)
            return web.json_response({"cluster": self.engine.cluster, "record": record})

        @web.middleware
        async def watched(request: web.Request, handler: Any) -> web.StreamResponse:
            if request.path.endswith("/blocks"):
                self.reading(request)
                for _ in range(5):  # whoever was told something by it has a turn before the answer goes
                    await asyncio.sleep(0)
            response: web.StreamResponse = await handler(request)
            return response

        app.router.add_get("/failover/v1/state", state)
        app.middlewares.append(watched)

    async def has_copy(
        self, *contents: bytes, topic: str = TOPIC, ledger: int = 11, store: str = "first", incarnation: int = 10
    ) -> None:
        """Give the peer a copy of messages that A published from ``store``. A later incarnation is one more life."""
        found = await self.engine.topic(topic)
        mark = found.origins.high_water("A")
        await self.engine.writer.keep_both(found.tail, {"A": HighWater(incarnation, BEFORE_ALL)})
        previous = BEFORE_ALL if mark is None else mark.position
        for number, content in enumerate(contents):
            at = Position(ledger, number)
            block = make_block(at, [message(content)], origin="A", incarnation=incarnation)
            await found.writing.copy([CopiedBlock(previous, block)])
            previous = at
        await self.knows(StoreLine(store))

    async def knows(self, line: StoreLine) -> None:
        """Let a link from A announce its store."""
        await self.engine.origin_stores.take("A", {"A": line}, [], [])


class Clusters:
    """Cluster A, whose worker starts, and its peers B and C, which are served if a test says so."""

    def __init__(self, path: Path, stack: AsyncExitStack, *, store: str = "") -> None:
        self.path = path
        self._stack = stack
        self.ports = dict(zip("ABC", free_ports(3), strict=True))
        clusters = "".join(
            f"  {name}: {{address: '127.0.0.1:{port}', data: {path / name}}}\n" for name, port in self.ports.items()
        )
        file = path / "topology.yaml"
        links = "links: [{between: [A, B]}, {between: [A, C]}, {between: [B, C]}]\n"
        file.write_text(f"clusters:\n{clusters}{links}pipeline: {{engine: embedded}}\n{store}")
        self.topology: Topology = load_topology(file)
        self.peers: dict[str, Peer] = {}
        self.opening = Opening("A")

    async def peer(self, name: str, *, served: bool = True) -> Peer:
        engine = await self._stack.enter_async_context(opened(self.path / name, name))
        peer = self.peers[name] = Peer(engine, self.ports[name])
        if served:
            await peer.server.start()
        self._stack.push_async_callback(peer.server.stop)
        return peer

    async def start(
        self,
        *,
        rows: EarlierRows | DatabaseUnavailable | None = None,
        setting: str | None = None,
        stopping: asyncio.Event | None = None,
        served: bool = True,
    ) -> tuple[Started, Engine]:
        """Start A on its store as a worker does, up to where it would serve."""

        async def earlier() -> EarlierRows | None:
            if isinstance(rows, DatabaseUnavailable):
                raise rows
            return rows

        data = self.path / "A"

        async def open_engine() -> Engine:
            return await Engine.open(data, cluster="A", settings=EngineSettings(maintained=False))

        store = OpenStore(open_engine, lambda _: None)
        try:
            if (data / "log").exists():
                await store.open()
            start = StoreStart(
                self.topology, "A", store, self.opening, earlier, on_empty_store=setting, stopping=stopping
            )
            started = await start.begin()
        except BaseException:
            await store.close()
            raise
        assert store.engine is not None
        self._stack.push_async_callback(store.close)
        if served:
            await store.engine.remember(RUNS, ["run"])
        return started, store.engine

    async def used_store(self) -> str:
        """Give A a store that served; return its id."""
        async with opened(self.path / "A", "A") as engine:
            await engine.remember(RUNS, ["run"])
            return engine.origin_stores.store


@asynccontextmanager
async def clusters(path: Path, *, store: str = "store: {ask_peers_seconds: 1}\n") -> AsyncIterator[Clusters]:
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        yield Clusters(path, stack, store=store)


def ignore(_: FailoverEpoch) -> None:
    """Learn nothing of failovers."""


def contents(engine: Engine, topic: str = TOPIC) -> int:
    found = engine.find(topic)
    return 0 if found is None else found.log.messages


@asynchronous
async def test_a_new_store_takes_back_what_a_peer_has_and_names_the_peer_that_was_not_asked(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1", b"2", b"3")
        started, engine = await found.start()
        assert started.how is StartMode.RECLAIMED
        assert set(started.unasked) == {"C"}
        assert contents(engine) == 3
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.settled_at_ms is not None
        assert mark.lost == ("C was not asked: what only it has of A's messages",)
        row = engine.store.meta(START)
        assert (row["how"], row["unasked"], row["nobody_asked"]) == ("reclaimed", ["C"], False)
        assert found.opening.progress["messages"] == 3


@asynchronous
async def test_a_start_that_was_cut_off_after_the_messages_came_back_takes_the_settings_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1", b"2", b"3")
        rows = {("grants", "public/default"): json.dumps({"roles": {"clerk": ["produce"]}})}
        await b.engine.kept_settings.take(SettingsMessage(SettingsHead("A", "first", 7, digest_of(rows)), None, rows))
        with monkeypatch.context() as killed:
            killed.setattr(taking_settings, "ask_settings", cut_off)
            with pytest.raises(StoppedEarly):
                await found.start(rows=GONE)
        started, engine = await found.start(rows=GONE)
        assert started.how is StartMode.USUAL
        assert contents(engine) == 3
        assert set(engine.catalog.grants.of("public/default").roles) == {"clerk"}
        assert engine.store.meta(START)["lost"] == list(started.lost) == [NAMED_GONE]


@asynchronous
async def test_after_a_reclaim_by_command_the_first_start_names_what_rows_in_postgres_prove_to_be_lost(
    tmp_path: Path,
) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1", b"2", b"3")
        with pytest.raises(EmptyStoreRefused, match="replicator backup reclaim"):
            await found.start(rows=GONE, setting="refuse")
        await reclaim(found.topology, "A", without=frozenset({"C"}))
        started, engine = await found.start(rows=GONE, setting="refuse")
        assert (started.how, started.index) == (StartMode.USUAL, IndexRows.EARLIER)
        assert contents(engine) == 3
        row = engine.store.meta(START)
        assert row["lost"] == list(started.lost) == [NAMED_GONE]
        watch = StoreWatch(engine, found.topology, started, engine.supervisor, ignore)
        assert watch.status()["lost"] == [NAMED_GONE]
        assert watch.status()["first_at_ms"] == row["at_ms"]


async def cut_off(*_: object) -> None:
    raise StoppedEarly


@asynchronous
async def test_a_peer_that_was_silent_when_nothing_came_back_is_asked_for_the_settings_later(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        started, engine = await found.start()
        assert started.nobody_asked
        assert engine.store.meta(TAKEN)["silent"] == ["B", "C"]
        b = await found.peer("B")
        rows = {("grants", "public/default"): json.dumps({"roles": {"clerk": ["produce"]}})}
        await b.engine.kept_settings.take(SettingsMessage(SettingsHead("A", "first", 7, digest_of(rows)), None, rows))
        await engine.catalog.create_namespace("made/later")  # as links do: no operator set anything
        teller = SettingsPublisher(engine)
        await teller.change({"B": b.server.address})
        await teller.start()
        await eventually(lambda: engine.catalog.grants.of("public/default").roles, "they are put back")
        await eventually(lambda: engine.store.meta(TAKEN)["silent"] == ["C"], "one is still silent")
        await teller.stop()


@asynchronous
async def test_the_remark_that_a_peer_was_not_asked_goes_when_it_has_answered(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1")
        started, engine = await found.start()
        watch = StoreWatch(engine, found.topology, started, engine.supervisor, ignore)
        await watch.look()
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.lost == ("C was not asked: what only it has of A's messages",)
        c = await found.peer("C")
        await watch.look()
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.lost == ()
        await engine.remember(MARK, {**mark.as_json(), "lost": ["C was not asked: what only it has of A's messages"]})
        await c.has_copy(b"1", b"2")
        await watch.look()
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.lost == (answer_later("C", "A"),)


@asynchronous
async def test_a_new_store_serves_if_all_peers_answer_that_they_have_nothing(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        for name in "BC":
            await found.peer(name)
        started, engine = await found.start()
        assert (started.how, started.unasked) == (StartMode.FIRST, {})
        assert restored_mark(engine.store) is None


@pytest.mark.parametrize(
    ("rows", "index"), [(None, IndexRows.NONE), (DatabaseUnavailable("away"), IndexRows.AWAY)], ids=["none", "away"]
)
@asynchronous
async def test_a_new_store_serves_if_nobody_answers_and_postgres_proves_nothing(
    tmp_path: Path, rows: DatabaseUnavailable | None, index: IndexRows
) -> None:
    async with clusters(tmp_path) as found:
        started, engine = await found.start(rows=rows)
        assert (started.how, started.nobody_asked, started.index) == (StartMode.FIRST, True, index)
        assert engine.store.meta(START)["database"] == index.value


@pytest.mark.parametrize("messages", [0, 1], ids=["a peer has nothing", "a peer has messages"])
@asynchronous
async def test_rows_in_postgres_that_nobody_who_answers_has_are_named_as_a_loss(tmp_path: Path, messages: int) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.engine.topic("there")
        await b.has_copy(*([b"1"] * messages), topic="here")
        names = tuple(f"persistent://public/default/{each}" for each in ("gone", "here", "there"))
        if not messages:
            names = (names[0], names[2])
        started, engine = await found.start(rows=EarlierRows(len(names), 1, names))
        assert started.how is (StartMode.RECLAIMED if messages else StartMode.FIRST)
        assert started.index is IndexRows.EARLIER
        (lost,) = started.lost
        assert lost == (
            f"Postgres has 1 topic of an earlier store that no cluster that was asked has: {names[0]}; C was not asked"
        )
        assert engine.store.meta(START)["lost"] == [lost]


@asynchronous
async def test_rows_in_postgres_of_topics_that_peers_have_are_no_loss(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        for name in "BC":
            await found.peer(name)
        await found.peers["C"].engine.topic("there")
        started, _ = await found.start(rows=EarlierRows(1, 1, ("persistent://public/default/there",)))
        assert (started.how, started.lost, started.index) == (StartMode.FIRST, (), IndexRows.EARLIER)


@asynchronous
async def test_a_worker_waits_for_a_peer_and_says_so_until_one_answers(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B", served=False)
        await b.has_copy(b"1")
        with structlog.testing.capture_logs() as logged:
            starting = asyncio.ensure_future(found.start(rows=ROWS))
            await eventually(lambda: found.opening.state == "waiting", "it waits")
            await eventually(lambda: any("waits" in each["event"] for each in logged), "it says so")
        said = next(each["reason"] for each in logged if "waits" in each["event"])
        assert said == found.opening.reason
        assert "The worker waits for B, C. To start empty instead, stop it and run" in said
        assert "--on-empty-store start" in said
        assert set(found.opening.peers) == {"B", "C"}
        assert not (tmp_path / "A").exists(), "nothing was changed"
        await b.server.start()
        started, engine = await starting
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 1


@asynchronous
async def test_a_worker_that_waits_can_be_stopped_and_told_to_start_empty(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        stopping = asyncio.Event()
        starting = asyncio.ensure_future(found.start(rows=ROWS, stopping=stopping))
        await eventually(lambda: found.opening.state == "waiting", "it waits")
        stopping.set()
        with pytest.raises(StoppedEarly):
            await starting
        started, _ = await found.start(rows=ROWS, setting="start")
        assert (started.how, started.unasked) == (StartMode.EMPTY, {})


@asynchronous
async def test_a_refusal_makes_no_store(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        await (await found.peer("B")).has_copy(b"1")
        with pytest.raises(EmptyStoreRefused, match="replicator backup reclaim -f FILE --cluster A --without C"):
            await found.start(setting="refuse")
        assert not (tmp_path / "A").exists()


@asynchronous
async def test_a_store_whose_file_is_gone_does_not_start_empty_where_postgres_knows_of_it(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        for name in "BC":
            await found.peer(name)
        with pytest.raises(EmptyStoreRefused, match="Postgres has rows of an earlier store of A") as refused:
            await found.start(rows=ROWS, setting="refuse")
        assert exit_status_of(refused.value) == 2
        assert not (tmp_path / "A").exists()
        started, _ = await found.start(rows=ROWS, setting="start")
        assert started.how is StartMode.EMPTY


@asynchronous
async def test_a_reclaim_that_was_stopped_goes_on_at_the_next_start_and_waits_for_the_peer_that_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.reclaiming.APPENDED_BYTES", 1)
    monkeypatch.setattr("replicator.pipeline.data_plane.PAGE_BYTES", 100)
    monkeypatch.setattr("replicator.api.verifying.PAGE_BYTES", 100)
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(*(b"%d" % number for number in range(20)))
        stopping = asyncio.Event()
        pages = 0

        def stop_in_the_middle(_: web.Request) -> None:
            nonlocal pages
            pages += 1
            if pages == 5:
                stopping.set()

        b.reading = stop_in_the_middle
        with pytest.raises(StoppedEarly):
            await found.start(stopping=stopping)
        async with opened(tmp_path / "A", "A") as engine:
            assert 0 < contents(engine) < 20
        await b.server.stop()
        await found.peer("C")
        starting = asyncio.ensure_future(found.start())
        await eventually(lambda: found.opening.state == "waiting", "it waits for B, though C answers")
        assert "--without B" in found.opening.reason
        await b.server.start()
        started, engine = await starting
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 20


@asynchronous
async def test_a_peer_that_dies_while_it_is_read_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.pipeline.data_plane.PAGE_BYTES", 100)
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(*(b"%d" % number for number in range(10)))
        dead = False

        def dies(request: web.Request) -> None:
            nonlocal dead
            if not dead:
                dead = True
                assert request.transport is not None
                request.transport.abort()

        b.reading = dies
        started, engine = await found.start()
        assert dead
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 10


@asynchronous
async def test_a_peer_that_goes_silent_in_the_middle_of_an_earlier_life_gives_the_rest_of_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.reclaiming.APPENDED_BYTES", 1)
    monkeypatch.setattr("replicator.pipeline.data_plane.PAGE_BYTES", 100)
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(*(b"%d" % number for number in range(10)))
        await b.has_copy(b"later", ledger=21, incarnation=20)
        silent = answers_again = False

        def goes_silent(request: web.Request) -> None:
            nonlocal silent
            silent = silent or found.opening.progress.get("messages", 0) >= 3  # so many has only the earlier life
            if silent and not answers_again:
                assert request.transport is not None
                request.transport.abort()

        b.reading = goes_silent
        starting = asyncio.ensure_future(found.start())
        await eventually(lambda: found.opening.state == "waiting", "it waits for B")
        assert silent
        answers_again = True
        started, engine = await starting
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 11
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.lost == ("C was not asked: what only it has of A's messages",)


@asynchronous
async def test_a_start_empty_ends_a_reclaim_that_was_begun_and_names_what_it_leaves(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1")
        stopping = asyncio.Event()
        b.reading = lambda _: stopping.set()
        with pytest.raises(StoppedEarly):
            await found.start(stopping=stopping)
        started, engine = await found.start(setting="start")
        assert started.how is StartMode.EMPTY
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.settled_at_ms is not None
        assert "an operator ended a reclaim" in str(mark.lost)


@asynchronous
async def test_the_newest_failover_epoch_is_stored_before_the_worker_serves(tmp_path: Path) -> None:
    record = FailoverEpoch(3, "B", "id", 1, "unplanned", "A", "B", {"A": "B"})
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.engine.remember(RECORD, as_json(record))
        _, engine = await found.start()
        assert engine.store.meta(RECORD) == as_json(record)


@asynchronous
async def test_a_worker_of_an_earlier_version_is_asked_by_routes_that_it_has(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B", served=False)
        b.knows_route = False
        await b.has_copy(b"1", b"2")
        await b.server.start()
        started, engine = await found.start()
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 2


@asynchronous
async def test_a_worker_of_an_earlier_version_that_refuses_an_unknown_route_is_asked_all_the_same(
    tmp_path: Path,
) -> None:
    """Its guard lets nobody but superusers see that there is no such route."""
    async with clusters(tmp_path) as found:
        b = await found.peer("B", served=False)
        b.knows_route = False

        async def refused(_: web.Request) -> web.Response:
            return web.json_response({"error": "NotPermitted", "message": "not for this role"}, status=403)

        add = b.server.also
        b.server.also = lambda app: (add(app), app.router.add_get(STORE_OF_ROUTE, refused))[0]
        await b.has_copy(b"1")
        await b.server.start()
        started, engine = await found.start()
        assert started.how is StartMode.RECLAIMED
        assert contents(engine) == 1


@asynchronous
async def test_a_worker_at_the_address_of_a_peer_that_is_another_cluster_is_not_asked(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        other = await found.peer("C", served=False)
        other.server.port = found.ports["B"]
        await other.has_copy(b"1")
        await other.server.start()
        answers, silent = await ask_all(
            {"B": f"127.0.0.1:{found.ports['B']}"}, "A", seconds=0.2, new=True, counted=True
        )
        assert not answers
        assert "is cluster 'C'" in silent["B"]


@asynchronous
@pytest.mark.parametrize(
    "garbage", ['{"topics": 1e999}', '{"store": "s", "since_ms": 1e40}', "[" * 100_000 + "]" * 100_000]
)
async def test_an_answer_that_makes_no_sense_is_none(garbage: str) -> None:
    told = StoreOf("B", as_json(FIRST), None).as_json()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(
            text=json.dumps(told)[:-1] + ", " + garbage[1:] if garbage[0] == "{" else garbage,
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_get(STORE_OF_ROUTE, answer)
    async with TestServer(app) as server:
        address = f"127.0.0.1:{server.port}"
        answers, silent = await ask_all({"B": address}, "A", seconds=5, new=False, counted=True)
        assert not answers
        assert "its answer cannot be read" in silent["B"]


@asynchronous
async def test_an_older_store_does_not_serve_and_a_reclaim_gives_it_the_place_of_the_newer_one(
    tmp_path: Path,
) -> None:
    async with clusters(tmp_path) as found:
        old = await found.used_store()
        b = await found.peer("B")
        await b.knows(StoreLine(old))
        await b.has_copy(b"1", b"2", store="newer")
        seen = b.engine.origin_stores.newest_store("A")
        assert seen is not None
        assert (seen.line.store, seen.earlier) == ("newer", (old,))
        with pytest.raises(StoreReplaced, match="--from-directory"):
            await found.start()
        done = await reclaim(found.topology, "A", without=frozenset({"C"}))
        assert sum(topic.messages for topic in done.topics) == 2
        started, engine = await found.start()
        assert started.how is StartMode.USUAL
        line = engine.origin_stores.line
        assert line.store not in (old, "newer")
        assert (line.predecessors[0], line.replaced) == (old, ("newer",))
        await b.knows(line)  # its link announces it
        for other in (StoreLine(old), StoreLine("newer")):
            await b.knows(other)  # a link of a store that was replaced
            seen = b.engine.origin_stores.newest_store("A")
            assert seen is not None
            assert seen.line == line
            assert seen.replaces(other)


@asynchronous
async def test_what_a_cluster_knows_of_stores_survives_its_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "B", "B") as engine:
        for store in ("one", "two"):
            await engine.origin_stores.take("A", {"A": StoreLine(store)}, [], [])
        before = engine.origin_stores.newest_stores()
    async with opened(tmp_path / "B", "B") as engine:
        assert engine.origin_stores.newest_stores() == before
        assert before["A"]["earlier"] == ["one"]
        assert before["A"]["since_ms"] > 0


@asynchronous
async def test_a_running_worker_learns_from_a_peer_that_was_silent_that_its_store_is_older(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        old = await found.used_store()
        started, engine = await found.start()
        assert set(started.unasked) == {"B", "C"}
        watch = StoreWatch(engine, found.topology, started, engine.supervisor, ignore)
        assert watch.status()["nobody_asked"]
        b = await found.peer("B")
        await b.knows(StoreLine(old))
        await watch.look()
        assert set(watch.status()["unasked"]) == {"C"}
        assert not watch.status()["nobody_asked"]
        assert not watch.replaced.is_set()
        await b.knows(StoreLine("newer"))
        await watch.look()
        assert watch.replaced.is_set()
        assert "has an older store of A" in watch.reason
        assert watch.status()["state"] == "replaced"


@asynchronous
async def test_a_running_worker_is_fenced_by_the_failover_epoch_of_a_peer_that_takes_back_its_messages(
    tmp_path: Path,
) -> None:
    record = FailoverEpoch(3, "B", "id", 1, "unplanned", "A", "B", {"A": "B"})
    async with clusters(tmp_path) as found, AsyncExitStack() as stack:
        await found.used_store()
        started, engine = await found.start()
        failover = FailoverService(engine, {name: f"127.0.0.1:{port}" for name, port in found.ports.items()})
        stack.push_async_callback(failover.stop)
        failover.close_gate()
        b = await found.peer("B", served=False)
        await b.engine.remember(RECORD, as_json(record))
        bound = take_place(f"127.0.0.1:{found.ports['B']}", listening=True)
        stack.callback(bound.close)
        early_app = make_early_app(Opening("B", state="reclaiming", engine=b.engine), None)
        listener = await HttpListener.start(bound, early_app, ClientLimits(), None, tls_alone=False)
        stack.push_async_callback(listener.stop)
        assert not failover.state()["fenced"]
        await StoreWatch(engine, found.topology, started, engine.supervisor, failover.adopt).look()
        assert failover.state()["fenced"]
        await eventually(lambda: engine.store.meta(RECORD) == as_json(record), "it is stored")


@asynchronous
async def test_a_worker_whose_store_is_full_learns_all_the_same_that_its_store_is_older(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        b = await found.peer("B")
        await b.has_copy(b"1")
        started, engine = await found.start()
        c = await found.peer("C")
        for line in (engine.origin_stores.line, StoreLine("newer")):
            await c.knows(line)

        async def full(name: str, value: Any) -> None:
            raise StoreFull("the store is full")

        watch = StoreWatch(engine, found.topology, started, engine.supervisor, ignore)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(engine, "remember", full)
            with pytest.raises(StoreFull):
                await watch.look()
        assert watch.replaced.is_set()


@asynchronous
async def test_a_restored_store_that_is_started_takes_the_place_of_a_running_one(tmp_path: Path) -> None:
    """Its link would be refused as that of a twin, while the other worker runs."""
    async with clusters(tmp_path) as found:
        running = await found.used_store()
        b = await found.peer("B")
        await b.knows(StoreLine(running))
        started, engine = await found.start()
        watch = StoreWatch(engine, found.topology, started, engine.supervisor, ignore)
        await watch.look()
        assert not watch.replaced.is_set()
        async with opened(tmp_path / "restored", "A") as restored:
            restored.origin_stores.line = StoreLine("restored", (running,))
            other = StoreWatch(restored, found.topology, Started(StartMode.USUAL), restored.supervisor, ignore)
            await other.look()
            assert not other.replaced.is_set()
        await watch.look()
        assert watch.replaced.is_set()
        address = f"127.0.0.1:{found.ports['B']}"
        await announce_later(address, "A", StoreLine("unrelated"))
        seen = b.engine.origin_stores.newest_store("A")
        assert seen is not None
        assert seen.line.store == "restored", "only a store that names the known one is later"


@asynchronous
async def test_a_used_store_does_not_wait_for_a_peer_that_refuses_the_connection(tmp_path: Path) -> None:
    async with clusters(tmp_path, store="store: {ask_peers_seconds: 600}\n") as found:
        await found.used_store()
        async with asyncio.timeout(5):
            started, _ = await found.start()
        assert started.how is StartMode.USUAL
        assert set(started.unasked) == {"B", "C"}


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@asynchronous
async def test_a_peer_that_accepts_and_never_answers_is_unasked_and_delays_a_start_no_longer(
    tmp_path: Path, used: bool
) -> None:
    async with clusters(tmp_path) as found, AsyncExitStack() as stack:
        if used:
            await found.used_store()
        await found.peer("C")
        connected: list[asyncio.StreamWriter] = []

        async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.append(writer)

        server = await asyncio.start_server(say_nothing, "127.0.0.1", found.ports["B"])
        stack.callback(server.close)
        async with asyncio.timeout(SILENT_SECONDS_MAX):
            started, _ = await found.start()
        assert connected, "it was asked"
        for each in connected:
            each.close()
        assert started.unasked.keys() == {"B"}
        assert "no answer" in started.unasked["B"]
        assert not started.nobody_asked


@asynchronous
async def test_with_a_time_of_0_a_new_store_asks_nobody(tmp_path: Path) -> None:
    async with clusters(tmp_path, store="store: {ask_peers_seconds: 0}\n") as found:
        await (await found.peer("B")).has_copy(b"1")
        started, _ = await found.start(rows=ROWS)
        assert (started.how, started.nobody_asked) == (StartMode.FIRST, True)


@asynchronous
async def test_without_another_cluster_the_worker_serves_and_names_what_postgres_says_was_lost(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        found.topology = alone(found)
        started, _ = await found.start(rows=ROWS)
        assert started.how is StartMode.FIRST
        assert "2 topics and 3 subscriptions of an earlier store: one, two" in str(started.lost)


@asynchronous
async def test_without_another_cluster_what_a_reclaim_took_back_from_a_directory_is_not_lost(tmp_path: Path) -> None:
    async with clusters(tmp_path) as found:
        async with opened(tmp_path / "copy", "A") as engine:
            await (await engine.topic(TOPIC)).publish([message(b"1")])
        found.topology = alone(found)
        await reclaim(found.topology, "A", from_directory=tmp_path / "copy")
        started, engine = await found.start(rows=EarlierRows(2, 1, (TOPIC, *GONE.names)))
        assert contents(engine) == 1
        assert started.lost == (
            f"Postgres has 1 topic of an earlier store that no cluster that was asked has: {GONE.names[0]}",
        )


def alone(found: Clusters) -> Topology:
    """Return a topology that has no cluster but A."""
    file = found.path / "alone.yaml"
    file.write_text(
        f"clusters:\n  A: {{address: '127.0.0.1:{found.ports['A']}', data: {found.path / 'A'}}}\n"
        "pipeline: {engine: embedded}\n"
    )
    return load_topology(file)


# The early listener.


@asynccontextmanager
async def early(opening: Opening) -> AsyncIterator[tuple[str, Any]]:
    """Serve a starting worker's listener on a bound socket; yield its URL, and the socket."""
    bound = take_place("127.0.0.1:0", listening=True)
    listener = await HttpListener.start(bound, make_early_app(opening, None), ClientLimits(), None, tls_alone=False)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", bound
    finally:
        await listener.stop()
        await listener.stop()
        bound.close()


async def asked(url: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        return response.status, await response.text()


@asynchronous
async def test_a_starting_worker_answers_a_few_questions_and_no_others(tmp_path: Path) -> None:
    opening = Opening("A")
    opening.enter("reclaiming", "it takes back messages <from B>")
    opening.peers, opening.progress = {"B": "answered"}, {"messages": 7}
    async with early(opening) as (url, bound):
        assert (await asked(url, "/healthz"))[0] == 200
        status, text = await asked(url, "/readyz")
        assert status == 503
        assert '"messages": 7' in text
        assert '"state": "reclaiming"' in text
        assert (await asked(url, "/replication/v1/status"))[0] == 503
        status, page = await asked(url, "/dashboard/topics")
        assert status == 503
        assert "&lt;from B&gt;" in page
        assert await asked(url, "/replication/v1/topics") == (503, f"Starting: {opening.reason}\n")
        status, text = await asked(url, "/admin/v2/clusters")
        assert status == 503
        assert '"error": "Starting"' in text
        assert (await asked(url, f"{STORE_OF_ROUTE}?cluster=B"))[0] == 503, "its store is not open"
        opening.has_store = False
        status, text = await asked(url, f"{STORE_OF_ROUTE}?cluster=B&messages=true")
        assert status == 200
        assert '"store": null' in text
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        writer.write(b"\0\0\0\x08\0\0\0\x04")
        assert await reader.read() == b"", "a client of the binary protocol is let go of"
        writer.close()


@asynchronous
async def test_connections_wait_between_the_early_listener_and_the_worker() -> None:
    async with early(Opening("A")) as (url, bound):
        await asked(url, "/healthz")
    bound = take_place("127.0.0.1:0", listening=True)
    listener = await HttpListener.start(
        bound, make_early_app(Opening("A"), None), ClientLimits(), None, tls_alone=False
    )
    await listener.stop()
    waiting = asyncio.ensure_future(asked(f"http://127.0.0.1:{bound.getsockname()[1]}", "/healthz"))
    runner = web.AppRunner(make_early_app(Opening("A"), None))
    await runner.setup()
    await web.SockSite(runner, bound).start()
    assert (await waiting)[0] == 200
    await runner.cleanup()


@asynchronous
async def test_workers_that_start_at_once_on_new_stores_answer_each_other(tmp_path: Path) -> None:
    async with clusters(tmp_path, store="store: {ask_peers_seconds: 30}\n") as found, AsyncExitStack() as stack:
        openings: Mapping[str, Opening] = {name: Opening(name, has_store=False) for name in "BC"}

        async def come(name: str) -> None:
            await asyncio.sleep(0.1)  # its process starts a moment later
            bound = take_place(f"127.0.0.1:{found.ports[name]}", listening=True)
            stack.callback(bound.close)
            listener = await HttpListener.start(
                bound, make_early_app(openings[name], None), ClientLimits(), None, tls_alone=False
            )
            stack.push_async_callback(listener.stop)

        async with asyncio.timeout(10):
            (started, _), *_ = await asyncio.gather(found.start(), come("B"), come("C"))
        assert (started.how, started.unasked) == (StartMode.FIRST, {})


@asynchronous
async def test_two_workers_that_lost_their_disks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """B takes back its own messages at the same time, so it gives nothing but answers about stores."""
    async with clusters(tmp_path, store="store: {ask_peers_seconds: 30}\n") as found, AsyncExitStack() as stack:
        await (await found.peer("C")).has_copy(b"1", b"2")
        bound = take_place(f"127.0.0.1:{found.ports['B']}", listening=True)
        stack.callback(bound.close)
        opening = Opening("B", state="reclaiming", has_store=False)
        listener = await HttpListener.start(bound, make_early_app(opening, None), ClientLimits(), None, tls_alone=False)
        stack.push_async_callback(listener.stop)
        async with asyncio.timeout(10):
            started, engine = await found.start()
        assert (started.how, started.unasked) == (StartMode.RECLAIMED, {})
        assert contents(engine) == 2
