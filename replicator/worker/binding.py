"""The sockets of a worker: taken before anything is made, and reached from outside only where that is wanted.

Without ``auth`` a worker does not ask who somebody is: whoever reaches one of its ports reads and deletes everything.
So it binds to loopback alone then, unless its cluster says ``insecure: true``.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EADDRINUSE
from typing import Final

from replicator.topology import Cluster

BACKLOG: Final = 1024


class WorkerError(Exception):
    """The worker cannot be started as it is configured; the message names the field."""


class PlaceTaken(WorkerError):
    """Another process has a port of the worker: perhaps the worker before it, which is about to end."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The sockets of one worker."""

    address: socket.socket
    pulsar: socket.socket | None
    pulsar_tls: socket.socket | None
    exposed: tuple[str, ...]
    """Those that others than this host reach, as ``HOST:PORT``, although nobody is asked who they are."""

    def close(self) -> None:
        for each in (self.address, self.pulsar, self.pulsar_tls):
            if each is not None:
                each.close()


def bind(cluster: Cluster, *, asks: bool = False) -> Bound:
    """Take all places of a worker now, so that one in use is found before anything is made.

    ``asks`` says whether the worker asks who somebody is. Those of the binary protocol do not listen yet: others may
    serve this cluster's clients. Raises :class:`WorkerError` where one cannot be taken, or must not be.
    """
    with ExitStack() as stack:
        taken: dict[str, socket.socket] = {}
        for field, place in cluster.bound_at().items():
            name = f"clusters.{cluster.name}.{field}"
            listening = field in ("address", "listen")
            if not listening:
                _bind(name, place, listening=True).close()
            taken[field] = stack.enter_context(_bind(name, place, listening=listening))
        exposed = {} if asks else _exposed(cluster, taken)
        if exposed and not cluster.insecure:
            field, place = next(iter(exposed.items()))
            raise WorkerError(
                f"clusters.{cluster.name}.{field}: {place} is reached from other hosts, and the worker asks nobody who "
                "they are: whoever connects can read and delete everything. Give the topology `auth`, listen on this "
                "host alone (`listen: 127.0.0.1:PORT`), or write `insecure: true` where the network keeps strangers out"
            )
        stack.pop_all()
    address = taken.pop("listen", None) or taken.pop("address")
    return Bound(address, taken.get("pulsar"), taken.get("pulsar_tls"), tuple(exposed.values()))


def _exposed(cluster: Cluster, taken: dict[str, socket.socket]) -> dict[str, str]:
    """The places that other hosts reach, by field."""
    return {field: place for field, place in cluster.bound_at().items() if not _is_loopback(taken[field])}


def _is_loopback(bound: socket.socket) -> bool:
    host: str = bound.getsockname()[0]
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _bind(field: str, place: str, *, listening: bool) -> socket.socket:
    host, _, port = place.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise WorkerError(f"{field}: {place}: {error.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if listening:
            bound.listen(BACKLOG)  # until then two workers that start at once could both bind it
    except OSError as error:
        bound.close()
        kind_of_error = PlaceTaken if error.errno == EADDRINUSE else WorkerError
        raise kind_of_error(
            f"{field}: {place} cannot be used: {error.strerror}; stop what uses it or choose another port"
        ) from None
    return bound
