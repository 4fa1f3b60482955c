"""How much of a worker one address and one role may have at once: nobody takes the place of others (invariant 11).

Counted are connections of every protocol, by the address they come from; those of the binary protocol, and streams of
links, by their role; WebSockets; and other HTTP requests that are being served.

The limits are far above what one address needs. A link has one connection and a request now and then, or of each of its
lanes (64 at most) with Spark; a task of Spark's has two connections, and one request at a time; a drill opens some
hundreds of each. Many clients behind one address (NAT, a proxy) are some thousands of connections.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final

CONNECTIONS_OF_ADDRESS_MAX: Final = 10_000
CONNECTIONS_OF_ROLE_MAX: Final = 10_000
HANDSHAKES_OF_ADDRESS_MAX: Final = 2_000
"""Limit of TLS connections that have not shaken hands yet. Each costs a millisecond of the CPU: when all clients of an
address come back at once, some are refused and must try again.
"""
REQUESTS_OF_ADDRESS_MAX: Final = 1_000
"""A request may hold a body of some megabytes, so there may be fewer of them than of connections."""
REQUESTS_OF_ROLE_MAX: Final = 1_000
SOCKETS_OF_ADDRESS_MAX: Final = 1_000
"""WebSockets: half of all that a worker serves (:data:`replicator.api.websocket.sockets.SOCKETS_MAX`)."""
SOCKETS_OF_ROLE_MAX: Final = 1_000
FILES_WANTED: Final = 65_536
"""Open files of a worker: each connection is one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what clients may have at once."""

    connections_of_address: int = CONNECTIONS_OF_ADDRESS_MAX
    connections_of_role: int = CONNECTIONS_OF_ROLE_MAX
    handshakes_of_address: int = HANDSHAKES_OF_ADDRESS_MAX
    requests_of_address: int = REQUESTS_OF_ADDRESS_MAX
    requests_of_role: int = REQUESTS_OF_ROLE_MAX
    sockets_of_address: int = SOCKETS_OF_ADDRESS_MAX
    sockets_of_role: int = SOCKETS_OF_ROLE_MAX


class HolderCounts:
    """Counts what each holder has of one thing; ``what`` names it in words, such as ``connections from``."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._held: Counter[str] = Counter()

    def take(self, holder: str) -> str | None:
        """Count one more; return the reason if it is too many. It counts until :meth:`give_back` in any case. The empty
        holder, which everybody has without authentication, is not counted.
        """
        if not holder:
            return None
        self._held[holder] += 1
        if self._held[holder] > self._most:
            return f"{self._most} {self._what} {holder[:100]} are open, the limit"
        return None

    def give_back(self, holder: str) -> None:
        """Count one less."""
        if holder not in self._held:
            return
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]


class ClientLimits:
    """Shares of the clients of one worker, over all its ports and protocols."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.connections_of_address = HolderCounts("connections from", limits.connections_of_address)
        self.connections_of_role = HolderCounts("connections of role", limits.connections_of_role)
        self.handshakes_of_address = HolderCounts("unfinished connections from", limits.handshakes_of_address)
        self.requests_of_address = HolderCounts("requests from", limits.requests_of_address)
        self.requests_of_role = HolderCounts("requests of role", limits.requests_of_role)
        self.sockets_of_address = HolderCounts("WebSockets from", limits.sockets_of_address)
        self.sockets_of_role = HolderCounts("WebSockets of role", limits.sockets_of_role)


def limits_of_process() -> Limits:
    """Return the limits of this process, and raise its limit of open files as far as the system lets it. One address
    gets at most some five of eight of the files, so that others can connect in any case.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = FILES_WANTED if soft == resource.RLIM_INFINITY else soft
    return Limits(
        connections_of_address=min(CONNECTIONS_OF_ADDRESS_MAX, files // 2),
        handshakes_of_address=min(HANDSHAKES_OF_ADDRESS_MAX, files // 8),
    )
