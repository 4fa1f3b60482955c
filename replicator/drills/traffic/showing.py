"""What the drill's clients show to clusters, and whom they trust: the same for each library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator.client import AuthenticationToken
from replicator.security.access import Access
from replicator.topology.apache import ApacheSettings


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """``token`` gives one that counts now. Brokers may ask for something else: ``password_file`` has a line
    ``NAME:PASSWORD``, ``certificate`` goes with its ``key``."""

    token: Callable[[], str] | None = None
    trust: Path | None = None
    password_file: Path | None = None
    certificate: tuple[Path, Path] | None = None
    check_hostname: bool = True

    @classmethod
    def of(cls, access: Access) -> ClientAccess:
        """What this process shows to workers."""
        shows = access.token_file is not None or access.token is not None
        return cls((lambda: access.current_token() or "") if shows else None, access.trust)

    @classmethod
    def of_brokers(cls, settings: ApacheSettings) -> ClientAccess:
        """What the worker beside these brokers shows to them."""
        auth = settings.auth
        token = None if auth.token_file is None else auth.token_file.read_text
        pair = None if auth.certificate is None or auth.key is None else (auth.certificate, auth.key)
        return cls(
            None if token is None else lambda: token().strip(),
            settings.tls.ca,
            auth.password_file,
            pair,
            settings.tls.check_hostname,
        )

    def own_options(self) -> dict[str, Any]:
        """For :class:`replicator.client.Client`."""
        return self._with_trust({} if self.token is None else {"authentication": AuthenticationToken(self.token)})

    def official_options(self, pulsar: Any) -> dict[str, Any]:
        """For Pulsar's official client."""
        shown: dict[str, Any] = {}
        if self.token is not None:
            shown["authentication"] = pulsar.AuthenticationToken(self.token)
        elif self.password_file is not None:
            name, _, password = self.password_file.read_text().strip().partition(":")
            shown["authentication"] = pulsar.AuthenticationBasic(name, password)
        elif self.certificate is not None:
            shown["authentication"] = pulsar.AuthenticationTLS(*map(str, self.certificate))
        return self._with_trust(shown) | ({} if self.trust is None else {"tls_validate_hostname": self.check_hostname})

    def _with_trust(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self.trust is None else {**options, "tls_trust_certs_file_path": str(self.trust)}


NOTHING: Final = ClientAccess()
