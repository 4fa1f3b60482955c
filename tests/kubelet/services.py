"""Services: a TCP forwarder for each of their ports, and their names."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Final

from kubelet.api import MERGE, Api, Object

CHUNK_BYTES: Final = 256 * 1024
CONNECT_SECONDS_MAX: Final = 5.0
BALANCERS: Final = "10.97"
"""Addresses of load balancers begin with this, and go on as the Service's own."""
Place = tuple[str, int]


class Forwarders:
    """For each address and port of a Service, connections go to one of its ready endpoints, by chance."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._servers: dict[Place, asyncio.Server] = {}
        self._services: dict[Place, tuple[Object, Object]] = {}

    async def refresh(self) -> None:
        """Listen where Services say so now."""
        wanted = {}
        for service in self._api.objects["services"].values():
            for address in await self._addresses(service):
                wanted.update({(address, p["port"]): (service, p) for p in service["spec"].get("ports", ())})
        for place in self._servers.keys() - wanted.keys():
            self._servers.pop(place).close()
        self._services = wanted
        for place in wanted.keys() - self._servers.keys():
            self._servers[place] = await asyncio.start_server(self._serve_at(place), *place, limit=CHUNK_BYTES)

    async def _addresses(self, service: Object) -> list[str]:
        own = service["spec"].get("clusterIP") or "None"
        if own == "None":
            return []
        if service["spec"].get("type") != "LoadBalancer":
            return [own]
        outside = BALANCERS + own[own.index(".", 3) :]
        if not service["status"].get("loadBalancer"):
            where = service["metadata"]
            await self._api.call(
                "PATCH",
                f"/api/v1/namespaces/{where['namespace']}/services/{where['name']}/status",
                {"status": {"loadBalancer": {"ingress": [{"ip": outside}]}}},
                MERGE,
            )
        return [own, outside]

    def _serve_at(self, place: Place):  # type: ignore[no-untyped-def]
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError):
                service, port = self._services[place]
                ready = [*_endpoints(self._api, service, port)]
                if not ready:
                    return
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    other, to = await asyncio.open_connection(*random.choice(ready), limit=CHUNK_BYTES)
                with contextlib.closing(to):
                    await asyncio.gather(_copy(reader, to), _copy(other, writer))

        return serve


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while said := await reader.read(CHUNK_BYTES):
        writer.write(said)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _slices(api: Api, service: Object) -> Iterator[tuple[Object, Object]]:
    """Each slice of a Service and each endpoint in it that is ready, or wanted all the same."""
    for found in api.of("slices", service["metadata"]["namespace"]):
        if found["metadata"].get("labels", {}).get("kubernetes.io/service-name") == service["metadata"]["name"]:
            for endpoint in found.get("endpoints") or ():
                if endpoint.get("conditions", {}).get("ready", True):
                    yield found, endpoint


def _endpoints(api: Api, service: Object, port: Object) -> Iterator[Place]:
    for found, endpoint in _slices(api, service):
        for held in found.get("ports") or ():
            if (held.get("name") or "") == port.get("name", ""):
                yield endpoint["addresses"][0], held["port"]


def hosts_of(api: Api, namespace: str) -> str:
    """The names that a pod of a namespace can resolve, as lines of a hosts file."""
    lines = ["127.0.0.1 localhost"]
    for (where, name), service in sorted(api.objects["services"].items()):
        names = [f"{name}.{where}.svc.cluster.local", f"{name}.{where}.svc", f"{name}.{where}"]
        names += [name] if where == namespace else []
        address = service["spec"].get("clusterIP") or "None"
        if address != "None":
            lines.append(f"{address} {' '.join(names)}")
            continue
        for _, endpoint in _slices(api, service):
            of_pod = [f"{endpoint['hostname']}.{each}" for each in names] if "hostname" in endpoint else []
            lines.append(f"{endpoint['addresses'][0]} {' '.join([*of_pod, *names])}")
    return "\n".join(lines) + "\n"
