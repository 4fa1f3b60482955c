"""Services of the tests' node: a TCP forwarder for each port of a Service, its load balancer, and the names of Services
and pods."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
from collections.abc import Iterator
from typing import Final

from kubelet.api import Api, Object

CHUNK_BYTES: Final = 256 * 1024


class Forwarders:
    """Proxies for Services: a connection to a Service's address and port goes to a random ready endpoint.

    A connection to the address of a Service's load balancer does so, too, if the Service lets the client in.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._services: dict[tuple[str, int], tuple[Object, Object]] = {}
        self._open: set[asyncio.Task[None] | None] = set()
        """Tasks of open connections, kept here so that they are not garbage-collected while they wait."""

    async def refresh(self) -> None:
        """Listen at the addresses and ports that Services have now, and no longer at others."""
        self._services = {}
        for service in self._api.objects["services"].values():
            balancers = service["status"].get("loadBalancer", {}).get("ingress", ())
            for address in (service["spec"]["clusterIP"], *(each["ip"] for each in balancers)):
                for port in service["spec"]["ports"] if address != "None" else ():
                    self._services[address, port["port"]] = (service, port)
        for place in self._servers.keys() - self._services.keys():
            self._servers.pop(place).close()
        for place in self._services.keys() - self._servers.keys():
            self._servers[place] = await asyncio.start_server(self._serve, *place, limit=CHUNK_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(task := asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(OSError, KeyError, IndexError):
            place = writer.get_extra_info("sockname")
            service, port = self._services[place]
            if place[0] != service["spec"]["clusterIP"] and not _may_come(
                service, writer.get_extra_info("peername")[0]
            ):
                return
            places = [
                (endpoint["addresses"][0], each["port"])
                for found, endpoint in _slices(self._api, service)
                for each in found["ports"]
                if each.get("name", "") == port.get("name", "")
            ]
            other, to = await asyncio.open_connection(*random.choice(places), limit=CHUNK_BYTES)
            with contextlib.closing(to):
                await asyncio.gather(_copy(reader, to), _copy(other, writer))
        self._open.discard(task)


def _may_come(service: Object, address: str) -> bool:
    """Return whether a load balancer lets a client of this address in."""
    networks = service["spec"].get("loadBalancerSourceRanges", ["0.0.0.0/0"])
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(each) for each in networks)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while said := await reader.read(CHUNK_BYTES):
        writer.write(said)
        await writer.drain()
    writer.write_eof()


def _slices(api: Api, service: Object) -> Iterator[tuple[Object, Object]]:
    """Yield each endpoint of a Service that is ready, or does not say, after the EndpointSlice in which it is."""
    of = service["metadata"]["namespace"], service["metadata"]["name"]
    for (namespace, _), found in api.objects["slices"].items():
        if (namespace, found["metadata"].get("labels", {}).get("kubernetes.io/service-name")) == of:
            yield from ((found, each) for each in found.get("endpoints") or () if each["conditions"].get("ready", True))


def hosts_of(api: Api, namespace: str) -> str:
    """Return the names that a pod of a namespace can resolve, as lines of a hosts file."""
    lines = ["127.0.0.1 localhost"]
    for (where, name), service in sorted(api.objects["services"].items()):
        names = [f"{name}.{where}.svc.cluster.local", f"{name}.{where}.svc", f"{name}.{where}"]
        names += [name] if where == namespace else []
        if (address := service["spec"]["clusterIP"]) != "None":
            lines.append(f"{address} {' '.join(names)}")
            continue
        for _, endpoint in _slices(api, service):
            of_pod = [f"{endpoint['hostname']}.{each}" for each in names] if "hostname" in endpoint else []
            lines.append(f"{endpoint['addresses'][0]} {' '.join([*of_pod, *names])}")
    return "\n".join(lines) + "\n"
