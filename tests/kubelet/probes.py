"""The probes of a container while it runs: startup, then readiness and liveness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from kubelet.api import Object
from kubelet.container import Container


class Probes:
    """``started`` and ``ready`` as the newest answers say. ``changed`` is called when one of them changes. ``failed``
    ends by itself when the container should be started again; it is cancelled when the container has ended."""

    def __init__(self, container: Container, address: str, changed: Callable[[], Any]) -> None:
        self._container, self._address, self._changed = container, address, changed
        self.started = "startupProbe" not in container.spec
        self.ready = self.started and "readinessProbe" not in container.spec

    async def failed(self) -> str:
        """Why the container should be started again."""
        spec = self._container.spec
        if not self.started:
            if not await self._first_success(spec["startupProbe"]):
                return "the startup probe failed"
            self.started, self.ready = True, "readinessProbe" not in spec
            await self._changed()
        readiness = asyncio.create_task(self._keep_ready(spec.get("readinessProbe")))
        try:
            await self._until_dead(spec.get("livenessProbe"))
            return "the liveness probe failed"
        finally:
            readiness.cancel()

    async def _first_success(self, probe: Object) -> bool:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        for _ in range(probe.get("failureThreshold", 3)):
            if await self._ask(probe):
                return True
            await asyncio.sleep(probe.get("periodSeconds", 10))
        return False

    async def _keep_ready(self, probe: Object | None) -> None:
        count = 0  # of answers that differ from what is known
        while probe is not None:
            if await self._ask(probe) == self.ready:
                count = 0
            else:
                count += 1
                if count >= probe.get("failureThreshold", 3) if self.ready else probe.get("successThreshold", 1):
                    self.ready, count = not self.ready, 0
                    await self._changed()
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _until_dead(self, probe: Object | None) -> None:
        if probe is None:
            await asyncio.Event().wait()
        assert probe is not None
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failures = 0
        while failures < probe.get("failureThreshold", 3):
            failures = 0 if await self._ask(probe) else failures + 1
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _ask(self, probe: Object) -> bool:
        seconds = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            return await self._container.run_inside(probe["exec"]["command"], seconds)
        asked = probe.get("httpGet") or probe["tcpSocket"]
        port = self._port(asked["port"])
        try:
            async with asyncio.timeout(seconds):
                if "tcpSocket" in probe:
                    _, writer = await asyncio.open_connection(self._address, port)
                    writer.close()
                    return True
                return await self._get(f"{asked.get('scheme', 'HTTP').lower()}://{self._address}:{port}", asked)
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def _get(self, url: str, asked: Object) -> bool:
        headers = {each["name"]: each["value"] for each in asked.get("httpHeaders", ())}
        connector = aiohttp.TCPConnector(ssl=False)  # kubelets do not check certificates either
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url + asked.get("path", "/"), headers=headers, allow_redirects=False) as response,
        ):
            return 200 <= response.status < 400

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        return next(p["containerPort"] for p in self._container.spec["ports"] if p.get("name") == port)
