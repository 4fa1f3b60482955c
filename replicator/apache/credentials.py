"""Credentials and TLS of the worker's connections to the brokers: ``auth`` and ``tls`` of a cluster's ``apache``.

Files are read when they are needed: for each connection, for each request to the admin API, and whenever a broker asks
again. So they may be replaced at any time. An error names the field and the file, both if the file cannot be used and
if the brokers refuse its content.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from replicator.client.authentication import Authentication, AuthenticationTLS, ConnectionSecurity
from replicator.client.errors import AuthenticationError
from replicator.topology.apache import ApacheSettings

TOKEN: Final = "token"  # noqa: S105 - the name of a method
BASIC: Final = "basic"


class _FileAuthentication(Authentication):
    """Credentials from the file that a field of ``auth`` names."""

    field = ""

    def __init__(self, file: Path) -> None:
        self.source = f"apache.auth.{self.field}, {file}"
        self._file = file

    def credentials(self) -> bytes:
        try:
            found = self._file.read_bytes().strip()
        except OSError as error:
            raise AuthenticationError(
                f"{self.source}: cannot be read: {error.strerror or error}; see that the worker may read the file"
            ) from None
        if not found:
            raise AuthenticationError(f"{self.source}: the file is empty; write the credentials into it")
        return found


class BrokerToken(_FileAuthentication):
    """Token from a file."""

    method = TOKEN
    field = "token_file"


class BrokerPassword(_FileAuthentication):
    """Name and password from a file."""

    method = BASIC
    field = "password_file"

    def credentials(self) -> bytes:
        line = super().credentials()
        name, _, password = line.partition(b":")
        if not name or not password or b"\n" in line:
            raise AuthenticationError(f"{self.source}: the file must hold one line, NAME:PASSWORD")
        return line


class BrokerCertificate(AuthenticationTLS):
    """Certificate and key, each from a file."""

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(str(certificate), str(key))
        self.source = f"apache.auth.certificate and .key, {certificate}, {key}"


def showing_of(settings: ApacheSettings) -> ConnectionSecurity:
    """Return the credentials that the worker shows to the brokers. Files are read when they are shown."""
    auth = settings.auth
    shown = Authentication()
    if auth.token_file is not None:
        shown = BrokerToken(auth.token_file)
    elif auth.password_file is not None:
        shown = BrokerPassword(auth.password_file)
    elif auth.certificate is not None and auth.key is not None:
        shown = BrokerCertificate(auth.certificate, auth.key)
    ca = None if settings.tls.ca is None else str(settings.tls.ca)
    return ConnectionSecurity(shown, ca, validate_hostname=settings.tls.check_hostname)


class TlsFiles:
    """TLS context of ``showing``. It is made anew when one of its files was replaced."""

    def __init__(self, showing: ConnectionSecurity) -> None:
        self._showing = showing
        self._files = [Path(each) for each in showing.files()]
        self._made_of: list[tuple[int, int, int]] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context with the present files. Raises :class:`AuthenticationError`.

        Do not use connections of an earlier context with a new one."""
        found = _marks(self._files)
        if self._context is None or found is None or found != self._made_of:
            self._context, self._made_of = self._showing.ssl_context(), found
        return self._context


def _marks(files: list[Path]) -> list[tuple[int, int, int]] | None:
    """Return values that change when a file is replaced; None if a file cannot be looked at."""
    try:
        return [(found.st_ino, found.st_mtime_ns, found.st_size) for found in (each.stat() for each in files)]
    except OSError:
        return None
