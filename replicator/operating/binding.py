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
from typing import Any, Final

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
        exposed = check_exposed(cluster, asks=asks)
        stack.pop_all()
    address = taken.pop("listen", None) or taken.pop("address")
    return Bound(address, taken.get("pulsar"), taken.get("pulsar_tls"), exposed)


def check_exposed(cluster: Cluster, *, asks: bool) -> tuple[str, ...]:
    """Return the places at which other hosts reach a worker that does not ask who they are; binds nothing.

    Raises :class:`WorkerError` where there is one and the cluster does not say that this is meant.
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
        raise WorkerError(f"clusters.{cluster.name}.{field}: {place}: {error.strerror}") from None
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def take_place(place: str, *, listening: bool) -> socket.socket:
    """Return a socket that is bound to ``HOST:PORT``. Raises :class:`OSError`."""
    family, kind, protocol, _, address = _found(place)
    bound = socket.socket(family, kind, protocol)
    try:
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
        raise WorkerError(f"{field}: {place}: {error.strerror}") from None
    except OSError as error:
        kind_of_error = PlaceTaken if error.errno == EADDRINUSE else WorkerError
        raise kind_of_error(
            f"{field}: {place} cannot be used: {error.strerror}; stop what uses it or choose another port"
        ) from None
