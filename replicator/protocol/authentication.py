"""Who a client is: the one interface that every method of authentication goes through. Values only; sans-IO.

The connection (:mod:`replicator.protocol.server`) passes on what the client shows, and carries out the answer::

    CONNECT, AUTH_RESPONSE ──> authenticate ──> Admitted: CONNECTED, or nothing more on an open connection
                                            ├─> Asked: AUTH_CHALLENGE, and the client shows more
                                            ├─> Pending: the caller finds out, and says what came of it
                                            └─> NotAuthenticated: an error, and the connection is over

What was shown may count for a time only. When that is over the client is asked for newer credentials, and is out if it
cannot be asked, or does not answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

REFRESH: Final = b"PulsarAuthRefresh"
"""What the client is asked when its credentials have expired, as upstream writes it."""
REFRESH_SECONDS_MAX: Final = 30.0
"""In which it has to answer that."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client is who it says it is."""

    name: str = ""
    """Who: empty where nobody is told apart."""
    until: float | None = None
    """When that is to be shown anew, by the connection's clock; None if never."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was shown is not enough yet."""

    question: bytes


@dataclass(frozen=True, slots=True)
class Pending:
    """It takes a while to find out, such as a hash that is slow by design."""

    find_out: Callable[[], Awaitable[Admitted]]
    """Raises :class:`NotAuthenticated`."""


class Authenticator(Protocol):
    """Decides who the client of one connection is. Each connection has its own: it may remember what it asked."""

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Asked | Pending:
        """``method`` is the name that the client gives, such as ``none`` or ``token``; empty for ``none``.

        Raises :class:`NotAuthenticated`, with a message that is sent to the client.
        """


class Anyone:
    """Lets everybody in, whatever is shown: as upstream does where authentication is off."""

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Asked:
        return Admitted()
