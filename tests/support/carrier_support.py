"""A carrier without Spark: asks a worker for plans over HTTP as a driver does, and carries them as its tasks do."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from replicator.links.errors import LinkError
from replicator.pipeline.errors import PipelineError
from replicator.pipeline.live import driver as live
from replicator.pipeline.live.carrying import Carrier, LinkWork

BATCH_SECONDS = 0.3
"""Length of a batch; short, so that a test sees many batches end."""


class PlanGone(Exception):
    """The worker says that the plan is gone."""


class Refused(Exception):
    """The worker refused a request for any other reason."""


class PlanClient:
    """Client of the paths of one link's plans."""

    def __init__(self, session: aiohttp.ClientSession, base: str, key: str) -> None:
        self._session, self._path = session, f"{base}/pipeline/v1/links/{quote(key, safe='')}"

    async def post(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._session.post(f"{self._path}/{what}", json=body) as response:
            return await self._answer(response)

    async def again(self, session: str, plan: int) -> dict[str, Any]:
        async with self._session.get(f"{self._path}/plan", params={"session": session, "plan": str(plan)}) as response:
            return await self._answer(response)

    async def _answer(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        answer: dict[str, Any] = await response.json()
        if response.status == 200:
            return answer
        raise (PlanGone if answer["error"] == "PlanGone" else Refused)(f"{answer['error']}: {answer['message']}")


class SparkItself:
    """Carries link ``key`` of the worker at ``base`` by a query of a real session, until it is stopped. ``path`` is a
    directory."""

    def __init__(self, spark: Any, base: str, key: str, path: Path) -> None:
        self._spark, self._base, self._key = spark, base, key
        self._scratch = path / f"scratch-{secrets.token_hex(4)}"
        self._ended = threading.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(asyncio.to_thread(self._run))

    async def stop(self) -> None:
        self._ended.set()
        if self._running is not None:
            await self._running

    def _run(self) -> None:
        self._spark.createDataFrame([], "nothing int")  # the session is this thread's then
        self._scratch.mkdir()
        copying = live.LiveCopy(self._spark, self._base, 2, self._scratch)
        on_links = copying._supervisor.on_links
        copying._supervisor.on_links = lambda links: on_links(
            {**link, "batch_seconds": 1.0} for link in links if link["key"] == self._key
        )
        copying.run(self._ended)
        copying.close()


class StandIn:
    """Carries one link until it is stopped. ``base`` is its source's worker."""

    def __init__(self, base: str, work: LinkWork, *, name: str = "stand-in", lanes: int = 3, bytes_max: int = 1 << 20):
        self.name = name
        self._base, self._work, self._lanes, self._bytes_max = base, work, lanes, bytes_max
        self._task: asyncio.Task[None] | None = None
        self.batches = 0
        self.segments = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop without reporting anything, like a killed process."""
        if self._task is not None:
            while not self._task.done():  # a task group of which a child has just failed drops a cancellation
                self._task.cancel()
                await asyncio.wait([self._task], timeout=0.1)
            with contextlib.suppress(asyncio.CancelledError):
                self._task.result()

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            client = PlanClient(session, self._base, self._work.key)
            while True:
                refused = False
                try:
                    await self._batch(client)
                except* (PlanGone, Refused, aiohttp.ClientError, OSError):
                    refused = True
                if refused:  # not in the handler, which makes a group of a cancellation
                    await asyncio.sleep(0.02)

    async def _batch(self, client: PlanClient) -> None:
        asked = {"carrier": self.name, "lanes": self._lanes, "bytes_max": self._bytes_max, "wait_ms": 500}
        plan = await client.post("plan", asked)
        if not any(plan["lanes"]):
            return
        self.batches += 1
        until = time.monotonic() + BATCH_SECONDS
        lanes = (self._lane(client, plan, lane, first, until) for lane, first in enumerate(plan["lanes"]))
        which = {"session": plan["session"], "plan": plan["plan"]}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(lane) for lane in lanes]
        except* (LinkError, PipelineError) as errors:
            await client.post("failed", {**which, "error": str(errors.exceptions[0])})
        else:
            await client.post("done", {**which, "done": [done for task in tasks for done in task.result()]})

    async def _lane(
        self, client: PlanClient, plan: Mapping[str, Any], lane: int, segment: dict[str, Any] | None, until: float
    ) -> list[dict[str, Any]]:
        """Carry a lane's segments, asking for the next one ahead. Return what was not reported yet."""
        which = {"session": plan["session"], "plan": plan["plan"], "lane": lane, "bytes_max": self._bytes_max}
        work = LinkWork(
            *(getattr(self._work, name) for name in list(LinkWork.__dataclass_fields__)[:-1]), f"lane-{lane}"
        )
        done: list[dict[str, Any]] = []
        async with Carrier(work) as carrier:
            while time.monotonic() < until:
                if segment is None:
                    segment = (await client.post("next", {**which, "done": done, "wait_ms": 50}))["segment"]
                    done = []
                    continue
                self.segments += 1
                carrying = asyncio.ensure_future(carrier.carry(segment))
                ahead = await client.post("next", {**which, "done": done, "holding": [segment["segment"]]})
                done = [await carrying]
                segment = ahead["segment"]
            if segment is not None:
                done.append(await carrier.carry(segment))
        return done
