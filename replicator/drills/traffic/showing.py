"""Credentials of the drill's clients and the authority that they trust: the same for each library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator.client import AuthenticationToken
from replicator.client.authentication import Authentication, AuthenticationTLS, ConnectionSecurity
from replicator.security.access import Access


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Access of clients; ``token`` returns a valid token."""

    token: Callable[[], str] | None = None
    trust: Path | None = None

    @classmethod
    def of(cls, access: Access) -> ClientAccess:
        """Return the credentials that this process shows to workers."""
        shows = access.token_file is not None or access.token is not None
        return cls((lambda: access.current_token() or "") if shows else None, access.trust)

    def own_options(self) -> dict[str, Any]:
        """Return options for :class:`replicator.client.Client`."""
        shown = {} if self.token is None else {"authentication": AuthenticationToken(self.token)}
        return shown if self.trust is None else {**shown, "tls_trust_certs_file_path": str(self.trust)}

    def showing(self) -> ConnectionSecurity:
        """Return the credentials in the form that our own client uses inside."""
        shown = Authentication() if self.token is None else AuthenticationToken(self.token)
        return ConnectionSecurity(shown, None if self.trust is None else str(self.trust))


def official_options(showing: ConnectionSecurity, pulsar: Any) -> dict[str, Any]:
    """Return options for Pulsar's official client, whose package is ``pulsar``."""
    shown, options = showing.authentication, dict[str, Any]()
    if shown.method == "token":
        options["authentication"] = pulsar.AuthenticationToken(lambda: shown.credentials().decode())
    elif shown.method == "basic":
        options["authentication"] = pulsar.AuthenticationBasic(*shown.credentials().decode().split(":", 1))
    elif isinstance(shown, AuthenticationTLS):
        options["authentication"] = pulsar.AuthenticationTLS(shown.certificate_path, shown.private_key_path)
    if showing.trust_certs_file_path is not None:
        options["tls_trust_certs_file_path"] = showing.trust_certs_file_path
        options["tls_validate_hostname"] = showing.validate_hostname
    return options


NOTHING: Final = ClientAccess()
