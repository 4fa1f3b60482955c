"""Switches of the dashboard: a dry run first, the name typed, once, and one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asynchronous import asynchronous

from replicator.dashboard import switching
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.runs import NotNow
from replicator.dashboard.switching import DRY_RUN_SECONDS_MAX, GOING_MAX, NotTyped, Switches, SwitchRun, Wanted
from replicator.failover.errors import SwitchImpossible
from replicator.failover.report import SwitchReport
from replicator.security.access import Access, access, use_in_context
from replicator.topology.values import default_topology

A_TO_B = Wanted("planned", "us-east", "eu-west")


class Clusters:
    """Stand-in for the switch that records requests, and answers when it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.shown: list[str | None] = []
        self.error: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def switched(self, switch: object, run: SwitchRun) -> SwitchReport:
        self.asked.append((str(run.wanted), run.dry))
        self.shown.append(access().authorization())
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        outcome = "dry run" if run.dry else "done"
        return SwitchReport(run.wanted.kind, "us-east", "eu-west", ("us-east",), 0, outcome=outcome)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters()
    monkeypatch.setattr(switching, "_switched", made.switched)
    return made


@asynccontextmanager
async def made(tmp_path: Any, now: list[float]) -> AsyncIterator[Switches]:
    topology = default_topology(tmp_path, (1, 2))
    fan_out = FanOut(lambda: topology)
    switches = Switches(fan_out, lambda: now[0])
    try:
        yield switches
    finally:
        await switches.close()
        await fan_out.close()


async def ended(run: SwitchRun) -> SwitchRun:
    async with asyncio.timeout(60):
        while run.going:  # noqa: ASYNC110 - it has no event: pages ask again
            await asyncio.sleep(0)
    return run


@asynchronous
async def test_a_switch_follows_its_dry_run_when_the_name_is_typed_and_once(clusters: Clusters, tmp_path: Any) -> None:
    async with made(tmp_path, [0.0]) as switches:
        tried = switches.dry_run(A_TO_B, shown=None, who="chief")
        with pytest.raises(NotNow, match="has ended"):
            switches.switch(tried.run_id, "eu-west", shown=None, who="chief")
        await ended(tried)
        for typed in ("", "us-east", "EU-WEST"):
            with pytest.raises(NotTyped, match="type eu-west"):
                switches.switch(tried.run_id, typed, shown=None, who="chief")
        with pytest.raises(NotNow, match="chief's"):
            switches.switch(tried.run_id, "eu-west", shown=None, who="another")
        assert clusters.asked == [("us-east to eu-west", True)]
        run = switches.switch(tried.run_id, " eu-west ", shown=None, who="chief")
        assert switches.switch(tried.run_id, "", shown=None, who="chief") is run  # the form was sent twice
        await ended(run)
        assert switches.switch(tried.run_id, "eu-west", shown=None, who="chief") is run
        assert clusters.asked == [("us-east to eu-west", True), ("us-east to eu-west", False)]
        assert run.report is not None
        assert run.report.outcome == "done"
        with pytest.raises(NotNow):
            switches.switch(run.run_id, "eu-west", shown=None, who="chief")  # it is no dry run


@asynchronous
async def test_an_old_dry_run_and_one_that_failed_are_followed_by_nothing(clusters: Clusters, tmp_path: Any) -> None:
    now = [0.0]
    async with made(tmp_path, now) as switches:
        tried = await ended(switches.dry_run(A_TO_B, shown=None, who="chief"))
        now[0] = DRY_RUN_SECONDS_MAX + 1
        with pytest.raises(NotNow, match="older than 10 minutes"):
            switches.switch(tried.run_id, "eu-west", shown=None, who="chief")
        clusters.error = SwitchImpossible("us-east serves nobody")
        failed = await ended(switches.dry_run(A_TO_B, shown=None, who="chief"))
        assert failed.error == "us-east serves nobody"
        with pytest.raises(NotNow):
            switches.switch(failed.run_id, "eu-west", shown=None, who="chief")
        assert [dry for _, dry in clusters.asked] == [True, True]


@asynchronous
async def test_one_switch_goes_on_at_a_time_and_is_given_up_with_the_worker(clusters: Clusters, tmp_path: Any) -> None:
    async with made(tmp_path, [0.0]) as switches:
        first, second = [await ended(switches.dry_run(A_TO_B, shown=None, who="chief")) for _ in range(2)]
        clusters.may_end.clear()
        going = switches.switch(first.run_id, "eu-west", shown=None, who="chief")
        with pytest.raises(NotNow, match="moving clients between clusters already"):
            switches.switch(second.run_id, "eu-west", shown=None, who="chief")
        for _ in range(GOING_MAX - 1):
            switches.dry_run(A_TO_B, shown=None, who="chief")
        with pytest.raises(NotNow, match="wait for one"):
            switches.dry_run(A_TO_B, shown=None, who="chief")
        await asyncio.sleep(0)  # each has begun
        await switches.close()
        assert (going.going, going.error) == (False, "it was given up: the worker ends")


@asynchronous
async def test_a_switch_is_asked_for_with_what_its_asker_showed_and_nothing_else(
    clusters: Clusters, tmp_path: Any
) -> None:
    use_in_context(Access(token="of-the-worker"))
    async with made(tmp_path, [0.0]) as switches:
        tried = await ended(switches.dry_run(A_TO_B, shown="Bearer mine", who="chief"))
        await ended(switches.switch(tried.run_id, "eu-west", shown="Bearer newer", who="chief"))
        await ended(switches.dry_run(A_TO_B, shown=None, who="by a certificate"))
        assert clusters.shown == ["Bearer mine", "Bearer newer", None]
