"""States that a worker does not give: a planned switch waits for them, and takes no backlog for an acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from asynchronous import asynchronous
from topology_files import topology_of

from replicator.failover import evidence
from replicator.failover.epochs import FIRST
from replicator.failover.evidence import Evidence
from replicator.failover.peers import Peers
from replicator.failover.planned_run import PlannedRun
from replicator.failover.report import SubscriptionReport, SwitchReport
from replicator.failover.takeover import Takeover

NAME = "persistent://public/default/t"
TOPIC = {
    "name": NAME,
    "clusters": None,
    "has": {"a": {"incarnation": 1, "position": "1:0"}},
    "subscriptions": {
        "s": {"replicated": True, "generation": 1, "backlog_messages": 10, "held_entries": 0, "lags": ""}
    },
}


def state(*acknowledged: int) -> dict[str, Any]:
    """Return a state in which these messages of the only batch are acknowledged."""
    left = {"incarnation": 1, "beyond": [["1:0", "1:0"]], "batches": {"1:0": list(acknowledged)}}
    each = {"digest": {"a": str(acknowledged)}, "unconsumed": {"a": left}}
    return {"high_water": {"a": "1:0"}, "subscriptions": {"s": each}}


class Answers:
    """Answers of a worker that was given one batch; ``away`` is what it says instead of its state."""

    def __init__(self, *acknowledged: int) -> None:
        self.acknowledged = acknowledged
        self.away: int | str | None = None
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.rsplit("/", 1)[1]
        self.asked.append(path)
        if path in ("hold", "topics"):
            return web.json_response({"topics": [TOPIC], "held_entries": 0})
        if path != "ack-vectors":
            return web.json_response({"topics": {}})
        if self.away == "silent":
            await asyncio.sleep(0.5)
        if self.away == "malformed":
            return web.json_response([])
        if isinstance(self.away, int):
            return web.json_response({"error": "Refused", "message": "later"}, status=self.away)
        return web.json_response(state(*self.acknowledged))


@asynccontextmanager
async def two_workers(path: Path, here: Answers, there: Answers) -> AsyncIterator[tuple[Evidence, Peers]]:
    topology = topology_of(path, "a", "b")
    async with AsyncExitStack() as stack:
        for each, answers in zip(topology.clusters, (here, there), strict=True):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", answers.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            host, port = each.address.split(":")
            await web.TCPSite(runner, host, int(port)).start()
            stack.push_async_callback(runner.cleanup)
        peers = await stack.enter_async_context(Peers({each.name: each.address for each in topology.clusters}))
        yield Evidence(topology, peers), peers


async def compared(found: Evidence) -> SubscriptionReport:
    (topic,) = await found.compare_drained("a", "b", [NAME])
    return topic.subscriptions[0]


@pytest.mark.parametrize("away", [429, 404, 503, "silent", "malformed"])
@pytest.mark.parametrize("side", ["source", "target"])
@asynchronous
async def test_a_state_that_is_not_given_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, away: int | str
) -> None:
    monkeypatch.setattr(evidence, "DIGEST_SECONDS_MAX", 0.1)
    here, there = Answers(0, 1, 2), Answers()  # the target has not heard of three acknowledgements
    async with two_workers(tmp_path, here, there) as (found, _):
        monkeypatch.setattr(here if side == "source" else there, "away", away)
        subscription = await compared(found)
        assert subscription.equal is None
        assert "not compared" in subscription.evidence


@asynchronous
async def test_a_planned_switch_does_not_pass_what_was_not_compared(tmp_path: Path) -> None:
    here, there = Answers(0, 1, 2), Answers()
    here.away = 429
    async with two_workers(tmp_path, here, there) as (found, peers):
        report = SwitchReport("planned", "a", "b", ("a",), 0)
        takeover = Takeover(peers, ["a", "b"], FIRST, report, keep_consumers=False)
        run = PlannedRun(peers, found, takeover, report, timeout_seconds=0.5, progress=lambda _: None)
        await run.run()
        assert report.outcome == "refused"
        assert "subscription s: not compared: the worker of a refuses the request: later" in report.reason
        assert "propose" not in there.asked
        assert "release" in here.asked
