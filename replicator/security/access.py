"""Credentials that this process shows to the workers that it asks, and whether it uses TLS.

They are a token, a certificate, or somebody's own header ``Authorization``, passed on
(:meth:`Access.with_credentials`).

A worker, a tool and a Spark task each ask workers over HTTP. What they show comes from the topology, from options, or
from the environment (:func:`of_environment`), which is how Spark's processes get it: their command lines, plans and
settings are shown to many. Files are read when they are needed, so that a token or a certificate that is replaced
counts from the next request on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from replicator.security.errors import SecurityError
from replicator.security.identity import TOKEN_CHARS_MAX

TOKEN: Final = "REPLICATOR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "REPLICATOR_TOKEN_FILE"  # noqa: S105 - the same
TLS: Final = "REPLICATOR_TLS"
TRUST: Final = "REPLICATOR_TRUST"
TRUST_PEM: Final = "REPLICATOR_TRUST_PEM"
CERTIFICATE: Final = "REPLICATOR_CERTIFICATE"
KEY: Final = "REPLICATOR_KEY"


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials to show, and how workers are asked."""

    token_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    """Shown where there is no file, or it cannot be read here."""
    tls: bool = False
    """Whether an address of a worker is asked by TLS."""
    trust: Path | None = None
    """The authorities of workers' certificates; those of this host without it."""
    trust_pem: str | None = field(default=None, repr=False)
    """Certificates of :attr:`trust` as text, for machines that do not have the file."""
    certificate: Path | None = None
    key: Path | None = None
    header: str | None = field(default=None, repr=False)
    """Value of the header ``Authorization`` of somebody for whom a worker asks others. It is sent unchanged, in place
    of a token.
    """

    def with_credentials(self, header: str | None) -> Access:
        """Return the same places and authorities, with the credentials ``header`` in place of our own."""
        return replace(self, token_file=None, token=None, certificate=None, key=None, header=header)

    def authorization(self) -> str | None:
        """Return the value of the header ``Authorization``; None without a token. Raise :class:`SecurityError`."""
        if self.header is not None:
            return self.header
        token = self.current_token()
        return None if token is None else f"Bearer {token}"

    def current_token(self) -> str | None:
        """Return the token as it is now. Raise :class:`SecurityError`."""
        if self.token_file is None:
            return self.token
        try:
            with self.token_file.open("rb") as file:
                token = file.read(TOKEN_CHARS_MAX + 1).decode("ascii").strip()
        except OSError as error:
            if self.token is not None:
                return self.token
            raise SecurityError(f"{self.token_file}: the token cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SecurityError(
                f"{self.token_file}: this is not a token: it must hold three parts of base64 with dots between them"
            ) from None
        if not token or len(token) > TOKEN_CHARS_MAX or not token.isprintable() or " " in token:
            raise SecurityError(
                f"{self.token_file}: this is not a token: it must hold three parts of base64 with dots between them"
            )
        return token

    def url(self, address: str) -> str:
        """Return the base URL of the worker at ``HOST:PORT``."""
        return f"{'https' if self.tls else 'http'}://{address}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for requests by TLS; None if no setting is about TLS.

        Raises :class:`SecurityError` if a setting cannot be used.
        """
        said = self.tls or self.trust or self.trust_pem or self.certificate
        return self.make_ssl_context() if said else None

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return the context for requests by TLS, also without any setting. Raise :class:`SecurityError`."""
        try:
            context = ssl.create_default_context(cafile=self.trust, cadata=None if self.trust else self.trust_pem)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            certificate_files = ", ".join(
                str(each) for each in (self.trust, self.certificate, self.key) if each is not None
            )
            reason = getattr(error, "strerror", None) or error
            raise SecurityError(f"{certificate_files}: cannot be used for TLS: {reason}") from None
        return context

    def as_environment(self, *, with_secrets: bool = False) -> dict[str, str]:
        """Return environment variables for a process on this host; with ``with_secrets``, for one that may run where
        the files are not.
        """
        files = {TOKEN_FILE: self.token_file, TRUST: self.trust, CERTIFICATE: self.certificate, KEY: self.key}
        found = {name: str(path) for name, path in files.items() if path is not None}
        if self.tls:
            found[TLS] = "1"
        token = self.current_token() if with_secrets else self.token
        if token is not None:
            found[TOKEN] = token
        if with_secrets and self.trust is not None:
            try:
                found[TRUST_PEM] = self.trust.read_text("ascii")
            except (OSError, ValueError) as error:
                raise SecurityError(f"{self.trust}: the trusted certificates cannot be read: {error}") from None
        return found


def of_environment(environment: Mapping[str, str]) -> Access:
    """Read the variables. A missing file is ignored if the environment has its content."""
    trust = _path(environment, TRUST)
    trust_pem = environment.get(TRUST_PEM) or None
    if trust is not None and trust_pem is not None and not trust.exists():
        trust = None
    return Access(
        token_file=_path(environment, TOKEN_FILE),
        token=environment.get(TOKEN) or None,
        tls=environment.get(TLS) == "1",
        trust=trust,
        trust_pem=trust_pem,
        certificate=_path(environment, CERTIFICATE),
        key=_path(environment, KEY),
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name)
    return Path(value).expanduser() if value else None


_in_process: list[Access] = []
_in_context: ContextVar[Access | None] = ContextVar("ACCESS", default=None)


def access() -> Access:
    """Return the credentials of this task and those that it started, else of this process, else of the environment."""
    found = _in_context.get()
    if found is not None:
        return found
    return _in_process[0] if _in_process else of_environment(os.environ)


def use_in_process(shown: Access) -> None:
    """Use these credentials from now on in this process, in all threads."""
    _in_process[:] = [shown]


def use_in_context(shown: Access) -> None:
    """Use these credentials from now on in this task, and in those that it starts."""
    _in_context.set(shown)
