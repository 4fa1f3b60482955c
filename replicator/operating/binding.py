"""The sockets of a worker. They are bound before the worker makes or changes anything.

Without ``auth``, anybody who reaches a port of the worker can read and delete everything. Such a worker therefore binds
to loopback only, unless its cluster says ``insecure: true``.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from typing import Any, Final

from replicator.topology import Cluster

BACKLOG: Final = 1024
_BOTH_FAMILIES: Final = "[::]:"


class WorkerError(Exception):
    """Error for a worker that cannot be started as it is configured; the message names the field."""


class PlaceTaken(WorkerError):
    """Error for a port that another process uses, perhaps an earlier worker that is about to end."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound sockets of one worker."""

    address: socket.socket
    pulsar: socket.socket | None
    pulsar_tls: socket.socket | None
    monitoring: socket.socket | None
    """Socket where nothing but health and metrics is read, if the worker was started with one."""
    exposed: tuple[str, ...]
    """Addresses (``HOST:PORT``) that other hosts can reach although the worker authenticates nobody."""

    def close(self) -> None:
        for each in (self.address, self.pulsar, self.pulsar_tls, self.monitoring):
            if each is not None:
                each.close()


def bind(cluster: Cluster, *, asks: bool = False, monitoring: str | None = None) -> Bound:
    """Bind all sockets of a worker before anything else is made, and return them.

    ``asks`` says whether the worker authenticates clients. ``monitoring`` is the further ``HOST:PORT`` where nothing
    but health and metrics is read; who reaches it cannot read or change messages. Sockets of the binary protocol do not
    listen yet, because another cluster may serve this cluster's clients. Raises :class:`WorkerError` if an address
    cannot be bound, or if other hosts would reach the worker without authentication.
    """
    with ExitStack() as stack:
        taken: dict[str, socket.socket] = {}
        for field, place in cluster.bound_at().items():
            name = f"clusters.{cluster.name}.{field}"
            listening = field in ("address", "listen")
            if not listening:
                _bind(name, place, listening=True).close()
            taken[field] = stack.enter_context(_bind(name, place, listening=listening))
        if monitoring is not None:
            taken["monitoring"] = stack.enter_context(_bind("--monitoring-at", monitoring, listening=True))
        exposed = check_exposed(cluster, asks=asks)
        stack.pop_all()
    address = taken.pop("listen", None) or taken.pop("address")
    return Bound(address, taken.get("pulsar"), taken.get("pulsar_tls"), taken.get("monitoring"), exposed)


def check_exposed(cluster: Cluster, *, asks: bool) -> tuple[str, ...]:
    """Return the addresses at which other hosts reach the worker without authentication; bind nothing.

    ``asks`` says that the worker asks clients who they are; then there is no such address.

    Raises :class:`WorkerError` if there is such an address and the cluster does not say ``insecure: true``.
    """
    exposed = (
        {} if asks else {field: at for field, at in cluster.bound_at().items() if not _is_loopback(cluster, field, at)}
    )
    if exposed and not cluster.insecure:
        field, place = next(iter(exposed.items()))
        raise WorkerError(
            f"clusters.{cluster.name}.{field}: {place} is reached from other hosts, and the worker asks nobody who "
            "they are: whoever connects can read and delete everything. Give the topology `auth`, listen on this "
            "host alone (`listen: 127.0.0.1:PORT`), or write `insecure: true` where the network keeps strangers out"
        )
    return tuple(exposed.values())


def _is_loopback(cluster: Cluster, field: str, place: str) -> bool:
    try:
        host = str(_found(place)[-1][0])
    except OSError as error:
        raise WorkerError(
            f"clusters.{cluster.name}.{field}: the host of {place} cannot be found: {error.strerror}"
        ) from None
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def take_place(place: str, *, listening: bool) -> socket.socket:
    """Return a socket that is bound to ``place`` (``HOST:PORT``). Raises :class:`OSError` if it cannot be bound.

    ``[::]`` stands for every address of both families, and for those of IPv4 on a host without IPv6.
    """
    if place.startswith(_BOTH_FAMILIES):
        try:
            return _taken(place, listening)
        except OSError as error:
            if error.errno not in (EAFNOSUPPORT, EADDRNOTAVAIL):
                raise
            return _taken(f"0.0.0.0:{place.rpartition(':')[2]}", listening)
    return _taken(place, listening)


def _taken(place: str, listening: bool) -> socket.socket:
    family, kind, protocol, _, address = _found(place)
    bound = socket.socket(family, kind, protocol)
    try:
        if place.startswith(_BOTH_FAMILIES):
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if listening:
            bound.listen(BACKLOG)  # until then two workers that start at once could both bind it
    except OSError:
        bound.close()
        raise
    return bound


def _found(place: str) -> tuple[Any, ...]:
    host, _, port = place.rpartition(":")
    return socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]


def _bind(field: str, place: str, *, listening: bool) -> socket.socket:
    try:
        return take_place(place, listening=listening)
    except socket.gaierror as error:
        raise WorkerError(f"{field}: the host of {place} cannot be found: {error.strerror}") from None
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise PlaceTaken(
                f"{field}: {place} cannot be used: {error.strerror}; stop what uses it or choose another port"
            ) from None
        raise WorkerError(
            f"{field}: {place} cannot be used: {error.strerror}; choose an address of this host, and a port that this "
            "user may take"
        ) from None
