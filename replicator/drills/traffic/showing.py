"""What the drill's clients show to clusters, and whom they trust: the same for each library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator.client import AuthenticationToken
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
        return self._with_trust({} if self.token is None else {"authentication": AuthenticationToken(self.token)})

    def official_options(self, pulsar: Any) -> dict[str, Any]:
        """For Pulsar's official client."""
        shown = {} if self.token is None else {"authentication": pulsar.AuthenticationToken(self.token)}
        return self._with_trust(shown) | ({} if self.trust is None else {"tls_validate_hostname": True})

    def _with_trust(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self.trust is None else {**options, "tls_trust_certs_file_path": str(self.trust)}


NOTHING: Final = ClientAccess()
