"""Credentials of a client, under the official client's names, and the server certificates that it trusts.

A token may be a function. It is called for each connection, and whenever a server asks for a newer token.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from replicator.client.errors import AuthenticationError, InvalidConfiguration


class Authentication:
    """Base of all credentials. Used itself, it shows none."""

    method = ""
    """Name of the authentication method in the protocol; empty for none."""
    source = ""
    """Setting or file that the credentials come from, for error messages. Empty if the application passed them."""

    def credentials(self) -> bytes:
        """Return the credentials to send now. Raises :class:`AuthenticationError`."""
        return b""


class AuthenticationToken(Authentication):
    """A token, or a function that returns one."""

    method = "token"

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (callable(token) or isinstance(token, str)):
            raise InvalidConfiguration("AuthenticationToken needs a token: a str, or a function that returns one")
        self._token = token

    def credentials(self) -> bytes:
        try:
            token = self._token() if callable(self._token) else self._token
            return token.encode("ascii")
        except (OSError, ValueError, AttributeError) as error:
            raise AuthenticationError(
                f"the token is no ASCII text, or the function that gives it failed: {type(error).__name__}"
            ) from error


class AuthenticationBasic(Authentication):
    """A name with a password."""

    method = "basic"

    def __init__(self, username: str, password: str) -> None:
        if not isinstance(username, str) or not isinstance(password, str) or ":" in username:
            raise InvalidConfiguration("AuthenticationBasic needs a name without a colon and a password, each a str")
        self._credentials = f"{username}:{password}".encode()

    def credentials(self) -> bytes:
        return self._credentials


class AuthenticationTLS(Authentication):
    """A client certificate, with its key, in PEM."""

    method = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        self.certificate_path = certificate_path
        self.private_key_path = private_key_path

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load certificate and key into ``context``.

        Raises :class:`AuthenticationError` if a file cannot be used, or if the two do not fit each other."""
        try:
            context.load_cert_chain(self.certificate_path, self.private_key_path, _no_passphrase)
        except OSError as error:
            setting_or_files = self.source or f"{self.certificate_path}, {self.private_key_path}"
            raise AuthenticationError(
                f"the client certificate or its private key cannot be used for TLS: {error.strerror or error}: "
                f"correct {setting_or_files}"
            ) from error


def _no_passphrase() -> str:
    """Raise an error instead of letting OpenSSL wait for a passphrase at the terminal."""
    raise OSError("the private key is encrypted; give one without a passphrase")


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """Credentials that a client shows, and the servers that it trusts with them."""

    authentication: Authentication = field(default_factory=Authentication)
    trust_certs_file_path: str | None = None
    """File with the certificate authorities that servers are checked against. None: those of this host."""
    validate_hostname: bool = True
    allow_insecure_connection: bool = False
    """Whether every server is trusted, whatever its certificate."""

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections. Raises :class:`AuthenticationError` if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.trust_certs_file_path)
        except OSError as error:
            raise AuthenticationError(
                f"the trusted certificates in {self.trust_certs_file_path} cannot be used for TLS: "
                f"{error.strerror or error}"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.validate_hostname and not self.allow_insecure_connection
        if self.allow_insecure_connection:
            context.verify_mode = ssl.CERT_NONE
        if isinstance(self.authentication, AuthenticationTLS):
            self.authentication.load_into(context)
        return context

    def files(self) -> list[str]:
        """Return the paths of all files that :meth:`ssl_context` reads."""
        files = [] if self.trust_certs_file_path is None else [self.trust_certs_file_path]
        if isinstance(self.authentication, AuthenticationTLS):
            files += [self.authentication.certificate_path, self.authentication.private_key_path]
        return files


NOTHING: Final = ConnectionSecurity()
