"""What the drill's clients show to clusters, and whom they trust: the same for each library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator.client import AuthenticationToken
from replicator.client.authentication import Authentication, AuthenticationTLS, Showing
from replicator.security.access import Access


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """``token`` gives one that counts now."""

    token: Callable[[], str] | None = None
    trust: Path | None = None

    @classmethod
    def of(cls, access: Access) -> ClientAccess:
        """What this process shows to workers."""
        shows = access.token_file is not None or access.token is not None
        return cls((lambda: access.current_token() or "") if shows else None, access.trust)

    def own_options(self) -> dict[str, Any]:
        """For :class:`replicator.client.Client`."""
        shown = {} if self.token is None else {"authentication": AuthenticationToken(self.token)}
        return shown if self.trust is None else {**shown, "tls_trust_certs_file_path": str(self.trust)}

    def showing(self) -> Showing:
        """The same, as our own client has it inside."""
        shown = Authentication() if self.token is None else AuthenticationToken(self.token)
        return Showing(shown, None if self.trust is None else str(self.trust))


def official_options(showing: Showing, pulsar: Any) -> dict[str, Any]:
    """For Pulsar's official client, whose package is ``pulsar``."""
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
