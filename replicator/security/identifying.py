"""Identification of a client by its credentials: a token, a name with a password, or a certificate.

One :class:`Identifying` is one worker's configuration. The binary protocol (:func:`authenticator_of`) and HTTP
(:meth:`Identifying.of_request`) show the same in their own ways. Where nothing is configured nobody is told apart:
see :class:`replicator.protocol.authentication.AllowAll`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replicator.engine.errors import TooBusy
from replicator.protocol.authentication import Admitted, Authenticator, Challenge, Pending
from replicator.protocol.errors import NotAuthenticated
from replicator.security.certificates import Certificate, RoleSource, identify_certificate
from replicator.security.errors import NotIdentified
from replicator.security.identity import Identity
from replicator.security.passwords import Passwords, from_header
from replicator.security.tokens import Tokens

BEARER: Final = "Bearer "
BASIC: Final = "Basic "

ShownCertificate = Callable[[], Certificate | None]


@dataclass(frozen=True, slots=True)
class Identifying:
    """Ways to authenticate; None if a way is not configured."""

    tokens: Tokens | None = None
    passwords: Passwords | None = None
    certificates: RoleSource | None = None
    clock: Callable[[], float] = time.time
    """Clock by which credentials expire."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the names that clients have for the ways."""
        ways = {"token": self.tokens, "basic": self.passwords, "tls": self.certificates}
        return tuple(name for name, way in ways.items() if way is not None)

    async def of_request(
        self, authorization: str | None, token: str | None, certificate: Certificate | None
    ) -> Identity:
        """Return who sent an HTTP request: by its header, by ``token``, which a WebSocket may have in its query, or by
        the certificate of its connection. Raises :class:`NotIdentified`."""
        if authorization is not None and authorization.startswith(BEARER) and self.tokens is not None:
            return self.tokens.identify(authorization.removeprefix(BEARER))
        if authorization is not None and authorization.startswith(BASIC) and self.passwords is not None:
            credentials = from_header(authorization.removeprefix(BASIC).strip())
            return await self.passwords.identify(credentials)
        if authorization is None and token is not None and self.tokens is not None:
            return self.tokens.identify(token)
        if authorization is None and certificate and self.certificates is not None:
            return identify_certificate(certificate, self.certificates)
        raise NotIdentified(
            f"the request does not show who sends it: send {' or '.join(_SHOWN[name] for name in self.methods)}"
        )


def authenticator_of(ways: Callable[[], Identifying], certificate: ShownCertificate) -> Authenticator:
    """Return the authenticator of one connection. It calls ``ways`` each time, because a reload may replace them while
    the connection is open.
    """
    return _ConnectionAuthenticator(ways, certificate)


# What to show, in words: nothing of it is a secret.
_SHOWN: Final = {
    "token": "a token (Authorization: Bearer …)",  # nosec B105
    "basic": "a name and a password (Authorization: Basic …)",
    "tls": "a client certificate",
}


class _ConnectionAuthenticator:
    """See :class:`replicator.protocol.authentication.Authenticator`."""

    def __init__(self, ways: Callable[[], Identifying], certificate: ShownCertificate) -> None:
        self._current = ways
        self._certificate = certificate
        self._role: str | None = None

    @property
    def _ways(self) -> Identifying:
        return self._current()

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Challenge | Pending:
        try:
            match method:
                case "token" if self._ways.tokens is not None:
                    return self._admitted(self._ways.tokens.identify(_text(credentials)), now)
                case "basic" if (passwords := self._ways.passwords) is not None:
                    known = passwords.known(credentials)
                    if known is not None:
                        return self._admitted(known, now)
                    return Pending(lambda: self._identify_password(passwords, credentials, now))
                case "tls" if self._ways.certificates is not None:
                    return self._admitted(identify_certificate(self._certificate(), self._ways.certificates), now)
        except NotIdentified as error:
            raise NotAuthenticated(str(error)) from None
        raise NotAuthenticated(
            f"authentication by {(method or 'none')[:40]!r} is not taken here; authenticate by "
            f"{' or '.join(self._ways.methods)}"
        )

    async def _identify_password(self, passwords: Passwords, credentials: bytes, now: float) -> Admitted:
        try:
            return self._admitted(await passwords.identify(credentials), now)
        except (NotIdentified, TooBusy) as error:
            raise NotAuthenticated(str(error)) from None

    def _admitted(self, identity: Identity, now: float) -> Admitted:
        """Admit an identity, which must have the same role as before: what the connection has open was opened for that
        role.
        """
        if self._role not in (None, identity.role):
            raise NotAuthenticated(
                "newer credentials must be of the same role as those that the client connected with; to change the "
                "role, connect again"
            )
        self._role = identity.role
        if identity.expires_at is None:
            return Admitted(identity.role)
        return Admitted(identity.role, now + max(0.0, identity.expires_at - self._ways.clock()))


def _text(credentials: bytes) -> str:
    try:
        return credentials.decode("ascii")
    except UnicodeDecodeError:
        raise NotIdentified("the token is not valid: it cannot be read; get a new one") from None
