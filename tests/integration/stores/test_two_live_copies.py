"""Two live copies of one store, and restarts that are none: over real connections, with real stores.

Invariants (DESIGN §3): 2, 12.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_support import TOPIC, DataPlaneServer, entries_of, eventually, message, opened, serving
from link_support import web

from replicator.api.runs import AUDIT, KEPT, RUNS, SourceRuns
from replicator.engine.engine import Engine
from replicator.engine.errors import StoreFull
from replicator.links import served_runs
from replicator.links.errors import PeerRefused
from replicator.links.link import Link
from replicator.peering.runs import Run, RunVerdict
from replicator.pipeline.live.carrying import LinkWork
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec
from replicator.worker.running_links import begin_run

pytestmark = pytest.mark.usefixtures("short_link_pauses")


@asynccontextmanager
async def linked(engine: Engine, address: str, run: Run | None) -> AsyncIterator[Link]:
    link = Link(engine, "eu-west", address, run=run)
    link.start()
    try:
        yield link
    finally:
        await link.stop()


class HalfOpen:
    """A way to a server that dies: then nothing passes, and the server's connection stays open for ever."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._dead = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> HalfOpen:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._kept:
            writer.transport.abort()

    def die(self) -> None:
        self._dead.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._target)
        self._kept += [there, writer]
        for source, to in ((reader, there), (there_reader, writer)):
            self._tasks.add(asyncio.ensure_future(self._pump(source, to)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if self._dead.is_set():
                await asyncio.Event().wait()
            writer.write(piece)
        if not self._dead.is_set():
            writer.close()


async def post(server: DataPlaneServer, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}/{path}", json=body) as response:
        return response.status, await response.json()


def runs_at(server: DataPlaneServer) -> Any:
    return server._runner.app[RUNS]  # type: ignore[union-attr]


def test_a_restarted_worker_whose_old_connection_was_left_half_open_is_no_twin(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            west = await stack.enter_async_context(opened(tmp_path / "west", "eu-west"))
            server = await stack.enter_async_context(serving(west, {"us-east"}))
            way = await stack.enter_async_context(HalfOpen(server.port))
            east = await Engine.open(tmp_path / "east", cluster="us-east")
            async with linked(east, way.address, await begin_run(east)) as link:
                await (await east.topic(TOPIC)).publish([message(b"before")])
                await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east"))
                await eventually(lambda: link.state == "idle")
                way.die()
            await east.close()
            east = await stack.enter_async_context(opened(tmp_path / "east"))
            began = asyncio.get_running_loop().time()
            link = await stack.enter_async_context(linked(east, server.address, await begin_run(east)))
            await (await east.topic(TOPIC)).publish([message(b"after")])
            await eventually(lambda: "has ended" in link.detail, "that it waits")
            assert link.state == "connecting"
            await eventually(lambda: link.state == "idle", "the place of the run before")
            waited = asyncio.get_running_loop().time() - began
            assert served_runs.ANSWER_SECONDS <= waited + 0.1 < served_runs.ANSWER_SECONDS + 5
            await eventually(lambda: len(entries_of(west.find(TOPIC), "us-east")) == 2)
            assert not link.run_answer.twins
            assert not runs_at(server).as_json()[0]["twins"]

    asyncio.run(main())


def test_a_worker_that_ended_cleanly_is_served_at_once_when_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "west", "eu-west") as west, serving(west, {"us-east"}) as server:
            earlier: tuple[str, ...] = ()
            for number in range(3):
                async with opened(tmp_path / "east") as east:
                    run = await begin_run(east)
                    assert run.earlier == earlier
                    earlier = run.line
                    async with linked(east, server.address, run) as link:
                        await (await east.topic(TOPIC)).publish([message(b"%d" % number)])
                        await eventually(lambda: link.state == "idle" and link.figures.entries)
                        assert link.figures.reconnects == 0
                        assert link.run_answer.standing is RunVerdict.SERVED

    asyncio.run(main())


class Twins:
    """A worker, a live copy of its store, and the cluster that both are linked to."""

    def __init__(self, west: Engine, server: DataPlaneServer, first: Link, second: Link) -> None:
        self.west, self.server, self.first, self.second = west, server, first, second
        self.east, self.copy = first.engine, second.engine
        self.audited: list[tuple[Any, ...]] = []
        """Entries of the audit log of the cluster that both are linked to."""

    def here(self) -> list[bytes]:
        return entries_of(self.west.find(TOPIC), "us-east")

    @property
    def ids(self) -> tuple[str, str]:
        assert self.first.run is not None
        assert self.second.run is not None
        return self.first.run.id, self.second.run.id


@asynccontextmanager
async def twins(path: Path) -> AsyncIterator[Twins]:
    async with AsyncExitStack() as stack:
        west = await stack.enter_async_context(opened(path / "west", "eu-west"))
        audited: list[tuple[Any, ...]] = []
        server = DataPlaneServer(west, {"us-east"})
        server.also = lambda app: app.update({AUDIT: lambda *entry: audited.append(entry)})
        await server.start()
        stack.push_async_callback(server.stop)
        east = await stack.enter_async_context(opened(path / "east"))
        first = await stack.enter_async_context(linked(east, server.address, await begin_run(east)))
        await (await east.topic(TOPIC)).publish([message(b"in both")])
        await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east"))
        await asyncio.to_thread(shutil.copytree, path / "east", path / "copy")
        copy = await stack.enter_async_context(opened(path / "copy"))
        second = await stack.enter_async_context(linked(copy, server.address, await begin_run(copy)))
        await eventually(lambda: second.state == "failed", "that the copy is refused")
        await eventually(lambda: first.run_answer.twins, "that the first hears of the copy")
        made = Twins(west, server, first, second)
        made.audited = audited
        yield made


def test_of_two_live_copies_the_first_goes_on_and_nothing_is_taken_from_the_second(tmp_path: Path) -> None:
    async def main() -> None:
        async with twins(tmp_path) as made:
            await (await made.copy.topic(TOPIC)).publish([message(b"of the copy")])
            await (await made.east.topic(TOPIC)).publish([message(b"of the first")])
            await eventually(lambda: len(made.here()) == 2)
            first, second = made.ids
            assert made.second.run_answer.standing is RunVerdict.TWIN
            assert made.second.run_answer.served.id == first
            assert [each.id for each in made.first.run_answer.twins] == [second]
            assert "two live copies" in made.second.detail
            assert made.first.status()["halted"] == made.second.status()["halted"] == {}
            reconnects = made.first.figures.reconnects
            await asyncio.sleep(0.5)
            assert made.first.figures.reconnects == reconnects == 0, "nobody pushes the first off"
            assert made.here() == entries_of(made.east.find(TOPIC), "us-east")
            # Each of them goes on serving its clients.
            await (await made.copy.topic(TOPIC)).publish([message(b"more of the copy")])
            assert len(made.here()) == 2

    asyncio.run(main())


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the second"])
def test_an_operator_says_which_copy_stays_whichever_was_first(tmp_path: Path, which: int) -> None:
    async def main() -> None:
        async with twins(tmp_path) as made:
            stays, goes = (made.first, made.second) if which == 0 else (made.second, made.first)
            status, answer = await post(made.server, "runs/us-east/stays", {"run": made.ids[which]})
            assert status == 200, answer
            assert answer["runs"][0]["served"]["id"] == made.ids[which]
            assert made.audited == [("operator", "stays", "store of us-east", {"run": made.ids[which]})]
            await eventually(lambda: stays.state == "idle" and goes.state == "failed", "the decision")
            await eventually(lambda: goes.run_answer.standing is RunVerdict.DISMISSED)
            await (await stays.engine.topic(TOPIC)).publish([message(b"of the one that stays")])
            await eventually(lambda: len(made.here()) == 2)
            # A later start of the other store is refused too; it is said anew for the other one.
            again = Run(uuid.uuid4().hex, goes.run.line)
            _, told = await post(made.server, "runs?from=us-east", {"run": again.as_json()})
            assert told["standing"] == "dismissed"
            assert f"--run {again.id}" in told["reason"]
            status, _ = await post(made.server, "runs/us-east/stays", {"run": made.ids[1 - which]})
            assert status == 200
            await eventually(lambda: goes.run_answer.standing is RunVerdict.SERVED, "the other decision")

    asyncio.run(main())


def test_a_run_that_nobody_knows_cannot_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with twins(tmp_path) as made:
            status, answer = await post(made.server, "runs/us-east/stays", {"run": "unknown"})
            assert (status, answer["error"]) == (404, "NoSuchRun")
            assert all(each in answer["message"] for each in made.ids)
            assert made.audited == []

    asyncio.run(main())


def test_a_decision_that_the_store_refused_is_written_down_when_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreFull("full")

    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            twins = {"served": Run("first").as_json(), "twins": [Run("copy").as_json()], "stay": [], "gone": []}
            await engine.remember(KEPT, {"us-east ": twins})
            runs = SourceRuns(engine)
            with monkeypatch.context() as patch:
                patch.setattr(engine, "remember", full)
                for _ in range(2):
                    with pytest.raises(StoreFull):
                        await runs.stays("us-east", "first")
            await runs.stays("us-east", "first")
            assert engine.store.meta(KEPT)["us-east "]["stay"] == ["first"]

    asyncio.run(main())


def test_a_restart_of_the_destination_or_of_the_first_does_not_hand_the_place_to_the_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with twins(tmp_path) as made:
            await made.server.stop()
            await made.first.stop()
            await made.server.start()
            await eventually(lambda: made.second.state == "failed" and "two live copies" in made.second.detail)
            assert made.second.run_answer.standing is RunVerdict.TWIN
            again = Run(uuid.uuid4().hex, made.first.run.line)
            async with linked(made.east, made.server.address, again) as first:
                await eventually(lambda: first.state == "idle", "the place of the first")
                await (await made.east.topic(TOPIC)).publish([message(b"of the first")])
                await eventually(lambda: len(made.here()) == 2)
                assert made.second.state == "failed"

    asyncio.run(main())


def test_a_worker_of_an_earlier_version_beside_a_run_is_refused_and_alone_it_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            west = await stack.enter_async_context(opened(tmp_path / "west", "eu-west"))
            server = await stack.enter_async_context(serving(west, {"us-east"}))
            east = await stack.enter_async_context(opened(tmp_path / "east"))
            await (await east.topic(TOPIC)).publish([message(b"1")])
            async with linked(east, server.address, None) as older:
                await eventually(lambda: older.state == "idle")
            async with linked(east, server.address, await begin_run(east)) as newer:
                await eventually(lambda: newer.state == "idle")
                async with linked(east, server.address, None) as older:
                    await eventually(lambda: "two live copies" in older.detail)
                    assert newer.state == "idle"
                    assert newer.figures.reconnects == 0

    asyncio.run(main())


def test_a_destination_of_an_earlier_version_takes_the_link_as_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            west = await stack.enter_async_context(opened(tmp_path / "west", "eu-west"))
            server = DataPlaneServer(west, {"us-east"})
            server.takes_runs = False
            await server.start()
            stack.push_async_callback(server.stop)
            east = await stack.enter_async_context(opened(tmp_path / "east"))
            await (await east.topic(TOPIC)).publish([message(b"1")])
            link = await stack.enter_async_context(linked(east, server.address, await begin_run(east)))
            await eventually(lambda: link.state == "idle" and link.figures.entries == 1)
            assert link.run_answer is None

    asyncio.run(main())


def test_requests_and_streams_of_a_run_that_is_not_served_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with twins(tmp_path) as made:
            for path in ("partitions", "schemas"):
                status, answer = await post(made.server, f"{path}?from=us-east&run={made.ids[1]}", {"topics": {}})
                assert (status, answer["error"]) == (409, "RunNotServed")
                status, answer = await post(made.server, f"{path}?from=us-east&run={made.ids[0]}", {"topics": {}})
                assert status == 200, answer
            append = f"append?from=us-east&name=&protocol=6&stream=task&run={made.ids[1]}"
            status, answer = await post(made.server, append, {})
            assert (status, answer["error"]) == (409, "RunNotServed")

    asyncio.run(main())


def test_tasks_of_spark_name_the_run_of_their_worker_and_those_of_a_dismissed_run_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("a", "b")], engine=SPARK, started=False) as made:
            link = made.links["a>b"]
            link.run = Run("r1")
            link.start()
            entries = await made.publish("a", 0, 20)
            await eventually(lambda: made.entries("b", "a") == entries, "what tasks carry")
            copy = Run("copy", ("r1",)).as_json()
            server = made.servers["b"]
            await eventually_twin(server, "a", copy)
            assert (await post(server, "runs/a/stays", {"run": "copy"}))[0] == 200
            await eventually(lambda: link.state == "failed", "that the first is refused")
            await made.publish("a", 20, 5)
            carried = LinkWork(f"http://{made.servers['a'].address}", "a>b", "a", "b", server.address, stream="task")
            async with carried.transport() as transport:
                transport.run_id = "r1"
                with pytest.raises(PeerRefused, match="RunNotServed"):
                    await transport.open()
            assert made.entries("b", "a") == entries

    asyncio.run(main())


async def eventually_twin(server: DataPlaneServer, source: str, copy: dict[str, Any]) -> None:
    """Tell the run of a copy until it is a twin."""
    async with asyncio.timeout(10):
        while (await post(server, f"runs?from={source}", {"run": copy}))[1]["standing"] != "twin":  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_who_is_no_source_of_a_link_tells_no_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "west", "eu-west") as west, serving(west, {"us-east"}) as server:
            run = Run("r1").as_json()
            assert (await post(server, "runs?from=mars", {"run": run}))[0] == 409
            assert (await post(server, "runs?from=us-east", {"run": 5}))[0] == 400
            assert (await post(server, "runs?from=us-east", {"run": {**run, "id": ""}}))[0] == 400

    asyncio.run(main())
