"""Authentication of a client: the one interface for every method. Values only; sans-IO.

The connection (:mod:`replicator.protocol.server`) passes on the client's credentials, and carries out the answer::

    CONNECT, AUTH_RESPONSE ──> authenticate ──> Admitted: CONNECTED, or nothing more on an open connection
                                            ├─> Asked: AUTH_CHALLENGE, and the client shows more
                                            ├─> Pending: the caller finds out, and reports the outcome
                                            └─> NotAuthenticated: an error, and the connection is over

Credentials may expire. The client is then asked for newer ones, and disconnected if it cannot be asked, or does not
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

REFRESH: Final = b"PulsarAuthRefresh"
"""Question to a client whose credentials have expired, in upstream's form."""
REFRESH_SECONDS_MAX: Final = 30.0
"""Time in which the client has to answer :data:`REFRESH`."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Outcome: the client is who it says it is."""

    name: str = ""
    """Role of the client; empty if authentication is off."""
    until: float | None = None
    """Time at which the credentials expire, by the connection's clock; None if never."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Outcome: the credentials are not enough yet, and the client is asked ``question``."""

    question: bytes


@dataclass(frozen=True, slots=True)
class Pending:
    """Outcome: the check takes a while, such as a hash that is slow by design."""

    find_out: Callable[[], Awaitable[Admitted]]
    """Function that finishes the check. It raises :class:`NotAuthenticated`."""


class Authenticator(Protocol):
    """Interface that decides who the client of one connection is. Each connection has its own: it may keep state."""

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Challenge | Pending:
        """Check the client's ``credentials`` at time ``now``, and return the outcome.

        ``method`` is the client's name for the method, such as ``none`` or ``token``; empty for ``none``.

        Raises :class:`NotAuthenticated`, with a message that is sent to the client.
        """


class AllowAll:
    """Authenticator that admits every client, whatever it shows, like upstream with authentication off."""

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Challenge:
        return Admitted()
