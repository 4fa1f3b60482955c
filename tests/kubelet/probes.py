"""Probes of a container while it runs: startup, then readiness and liveness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from kubelet.api import Object
from kubelet.container import Container


class Probes:
    """Probes of one running container. ``ready`` follows the newest answers; ``changed`` is called when it changes.

    ``address`` is the pod's.
    """

    def __init__(self, container: Container, address: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._container, self._address, self._changed = container, address, changed
        self.ready = False

    async def failed(self) -> str:
        """Probe until the container should be started again; return the probe that failed: startup or liveness.

        The caller cancels this when the container ends.
        """
        spec = self._container.spec
        if "startupProbe" in spec and not await self._turns(spec["startupProbe"], False):
            return "startup"
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep_ready(spec.get("readinessProbe")))
            await (self._turns(spec["livenessProbe"], True) if "livenessProbe" in spec else keeping)
            keeping.cancel()
        return "liveness"

    async def _keep_ready(self, probe: Object | None) -> None:
        while True:
            self.ready = await self._turns(probe, self.ready) if probe else True
            await self._changed()
            if not probe:
                await asyncio.Event().wait()

    async def _turns(self, probe: Object, now: bool) -> bool:
        """Ask a probe again and again; return the state that it turns to.

        After ``failureThreshold`` failures in a row return False, even if ``now`` is False. After one success return
        True, but only if ``now`` is False: if it is True, go on.
        """
        failures = 0
        while failures < probe["failureThreshold"]:
            well = await self._ask(probe)
            if well and not now:
                return True
            failures = 0 if well else failures + 1
            await asyncio.sleep(probe["periodSeconds"])
        return False

    async def _ask(self, probe: Object) -> bool:
        try:
            async with asyncio.timeout(probe["timeoutSeconds"]):
                ask = self._container.run_inside
                return await (ask(probe["exec"]["command"]) if "exec" in probe else self._get(**probe["httpGet"]))
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def _get(self, path: str, port: str | int, scheme: str) -> bool:
        ports = {each.get("name"): each["containerPort"] for each in self._container.spec.get("ports", ())}
        url = f"{scheme.lower()}://{self._address}:{ports.get(port, port)}{path}"
        # A kubelet does not check certificates either.
        async with aiohttp.request("GET", url, connector=aiohttp.TCPConnector(ssl=False)) as response:
            return response.status < 400
