"""A planned switch that ends while its target writes the epoch: the source is free again only if the target refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from asynchronous import asynchronous
from engine_support import HeldClock, eventually, opened
from topology_files import topology_of

from replicator.api.errors import report_errors
from replicator.api.failover import add_failover
from replicator.failover.epochs import FIRST, from_json, switched
from replicator.failover.errors import SwitchInDoubt
from replicator.failover.peers import Peers
from replicator.failover.report import SwitchReport
from replicator.failover.service import FailoverService
from replicator.failover.switch import Switch
from replicator.topology import Topology

SOURCE, TARGET = "us-east", "us-west"


class Pair:
    """A source and a target with empty stores, whose failover paths answer over HTTP."""

    def __init__(self, topology: Topology, peers: Peers) -> None:
        self.topology = topology
        self.peers = peers
        self.clock = HeldClock()
        """Clock of the target's writer."""
        self.services: dict[str, FailoverService] = {}
        self.spoiled: dict[str, tuple[int, Any]] = {}
        """Status and body that a proxy gives for the target's answer, by the end of a path, once it was proposed to."""
        self.proposed = False
        self.said: list[str] = []

    @web.middleware
    async def proxy(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.proposed = self.proposed or request.path.endswith("/propose")
        answer = await handler(request)
        for end, (status, body) in self.spoiled.items():
            if self.proposed and request.path.endswith(end):
                return web.Response(status=status, text=json.dumps(body), content_type="application/json")
        return answer

    async def switch(self) -> SwitchReport:
        return await Switch(self.topology, self.peers, progress=self.said.append).failover(SOURCE, TARGET)

    def is_held(self) -> bool:
        return bool(self.services[SOURCE].state()["producers"] != "open")


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    topology = topology_of(path, SOURCE, TARGET)
    addresses = {each.name: each.address for each in topology.clusters}
    async with AsyncExitStack() as stack:
        made = Pair(topology, await stack.enter_async_context(Peers(addresses)))
        for name, address in addresses.items():
            settings = made.clock.settings() if name == TARGET else None
            engine = await stack.enter_async_context(opened(path / name, name, settings))
            service = made.services[name] = FailoverService(engine, addresses)
            service.close_gate()
            app = web.Application(middlewares=[made.proxy, report_errors] if name == TARGET else [report_errors])
            add_failover(app, service, from_json)
            runner = web.AppRunner(app)
            await runner.setup()
            host, port = address.split(":")
            await web.TCPSite(runner, host, int(port)).start()
            stack.push_async_callback(service.stop)
            stack.push_async_callback(runner.cleanup)
        for service in made.services.values():
            await service.start()
        yield made


@pytest.mark.parametrize("written", [True, False], ids=["it takes over", "it is refused"])
@asynchronous
async def test_who_gives_up_while_the_target_writes_waits_for_its_answer(tmp_path: Path, written: bool) -> None:
    async with pair(tmp_path) as both:
        both.clock.free.clear()
        both.clock.asked.clear()
        switching = asyncio.create_task(both.switch())
        await eventually(both.clock.asked.is_set, "the target writes")
        switching.cancel()
        await asyncio.sleep(0.2)
        assert both.is_held(), "the source was released while the target took over"
        if not written:
            both.services[TARGET].adopt(
                switched(FIRST, kind="promote", homes=[TARGET], target="us-zone", record_id="x", at_ms=0)
            )
        both.clock.free.set()
        with pytest.raises(asyncio.CancelledError):
            await switching
        source = both.services[SOURCE].state()
        assert source["fenced"] is written
        assert both.is_held() is written
        assert ("taken over" in both.said[-1]) is written


@pytest.mark.parametrize("answer", [{}, {"record": 5}, []], ids=["empty", "no record", "no object"])
@asynchronous
async def test_a_malformed_answer_of_the_target_is_looked_into(tmp_path: Path, answer: Any) -> None:
    async with pair(tmp_path) as both:
        both.spoiled = {"/propose": (200, answer)}
        report = await both.switch()
        assert (report.outcome, report.epoch) == ("done", 1)
        assert both.services[SOURCE].state()["fenced"]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
@asynchronous
async def test_a_target_that_cannot_be_asked_whether_it_wrote_leaves_the_source_held(
    tmp_path: Path, status: int
) -> None:
    async with pair(tmp_path) as both:
        refused = (status, {"error": "Refused", "message": "not now"})
        both.spoiled = {"/propose": (500, {"error": "InternalError", "message": "it broke"}), "/state": refused}
        both.services[SOURCE].adopt = lambda record: None  # type: ignore[method-assign]  # it is cut off from the target
        with pytest.raises(SwitchInDoubt, match="may have taken over or not"):
            await both.switch()
        assert both.is_held(), "both clusters serve"


@pytest.mark.parametrize("status", [429, 503])
@asynchronous
async def test_a_promotion_that_is_done_is_reported_though_nothing_could_be_compared(
    tmp_path: Path, status: int
) -> None:
    async with pair(tmp_path) as both:
        both.spoiled = {"/topics": (status, {"error": "TooBusy", "message": "not now"})}
        report = await Switch(both.topology, both.peers).promote(TARGET, SOURCE)
        assert (report.outcome, report.epoch) == ("done", 1)
        assert any("the switch is done" in note and "not now" in note for note in report.notes)
