"""The probes of a container while it runs: startup, then readiness and liveness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from kubelet.api import Object
from kubelet.container import Container


class Probes:
    """``started`` and ``ready`` as the newest answers say; ``changed`` is called when one of them changes."""

    def __init__(self, container: Container, address: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._container, self._address, self._changed = container, address, changed
        self.started = "startupProbe" not in container.spec
        self.ready = self.started and "readinessProbe" not in container.spec

    async def failed(self) -> str:
        """Ends when the container should be started again, and says why; it is cancelled when the container ended."""
        spec = self._container.spec
        if not self.started:
            if not await self._turns(spec["startupProbe"], now=False):
                return "the startup probe failed"
            self.started, self.ready = True, "readinessProbe" not in spec
            await self._changed()
        keeping = asyncio.create_task(self._keep_ready(spec.get("readinessProbe")))
        try:
            await (self._turns(spec["livenessProbe"], now=True) if "livenessProbe" in spec else asyncio.Event().wait())
        finally:
            keeping.cancel()
        return "the liveness probe failed"

    async def _keep_ready(self, probe: Object | None) -> None:
        while probe is not None:
            turned = await self._turns(probe, now=self.ready)
            if turned != self.ready:
                self.ready = turned
                await self._changed()

    async def _turns(self, probe: Object, now: bool) -> bool:
        """Ask until the answer is another one than ``now``, often enough; or, while it is no, too often no."""
        limit = probe.get("failureThreshold", 3)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failures = 0
        while failures < limit:
            well = await self._ask(probe)
            if well and not now:
                return True
            failures = 0 if well else failures + 1
            await asyncio.sleep(probe.get("periodSeconds", 10))
        return False

    async def _ask(self, probe: Object) -> bool:
        seconds = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            return await self._container.run_inside(probe["exec"]["command"], seconds)
        asked = probe["httpGet"]
        ports = {port.get("name"): port["containerPort"] for port in self._container.spec.get("ports", ())}
        place = f"{self._address}:{ports.get(asked['port'], asked['port'])}"
        connector = aiohttp.TCPConnector(ssl=False)  # kubelets do not check certificates either
        try:
            async with (
                asyncio.timeout(seconds),
                aiohttp.ClientSession(connector=connector) as session,
                session.get(f"{asked.get('scheme', 'HTTP').lower()}://{place}{asked.get('path', '/')}") as response,
            ):
                return 200 <= response.status < 400
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False
