"""Functions that wait until workers have no work left: everything is copied, and they use hardly any CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import aiohttp
import psutil

SETTLE_SECONDS_MAX: Final = 300.0
AT_REST_CPU_PERCENT: Final = 20.0
"""Below it a worker has done what was to be done after the copy; what it goes on using is what is measured."""


async def everything_is_copied(url: str, messages: int) -> None:
    """Wait until the worker at ``url`` has ``messages`` messages over all topics. Raise :class:`TimeoutError`."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(SETTLE_SECONDS_MAX):
        copied = 0
        while copied < messages:
            await asyncio.sleep(1)
            async with session.get(f"{url}/replication/v1/topics") as response:
                response.raise_for_status()
                copied = sum(topic["messages"] for topic in (await response.json())["topics"])


async def at_rest(pids: Iterable[int | None]) -> None:
    """Wait until each process uses at most :data:`AT_REST_CPU_PERCENT`. Raise :class:`TimeoutError`."""
    async with asyncio.timeout(SETTLE_SECONDS_MAX):
        for pid in pids:
            while await cpu_percent(pid, 2.0) > AT_REST_CPU_PERCENT:
                pass


async def cpu_percent(pid: int | None, seconds: float) -> float:
    """Return the CPU time of process ``pid`` (None: this one) over the given seconds, in percent of a core."""
    process = psutil.Process(pid)
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / (time.monotonic() - began)
