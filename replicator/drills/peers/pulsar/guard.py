"""TLS and tokens of an Apache Pulsar cluster: of its brokers, towards clients and each other, and of its proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.running.private_files import replace_private
from replicator.security.certificate_making import Authority
from replicator.security.tokens import create_token, new_secret, read_secret

OPERATOR: Final = "operator"
"""Role of the brokers among each other, and of their administrator."""
PROXY: Final = "proxy"
_TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105 - a class
_TOKEN_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Guard:
    """Access rules of brokers: ports use TLS only, and refuse clients without a token signed by :attr:`secret_key`."""

    authority: Path
    """Certificate of the authority to trust."""
    certificate: Path
    key: Path
    secret_key: Path
    token: str
    """Token of the operator."""
    proxy_token: str
    superusers: tuple[str, ...]

    @classmethod
    def made(cls, directory: Path, *superusers: str) -> Guard:
        """Make a new guard, with its files in ``directory``; ``superusers`` are added to its own one."""
        authority = Authority(directory)
        # The proxy reads no keys of other kinds.
        certificate, key = authority.give("broker", rsa=True)
        secret_key = directory / "secret.key"
        replace_private(secret_key, new_secret())
        secret = read_secret(secret_key)
        return cls(
            authority.file,
            certificate,
            key,
            secret_key,
            create_token(secret, OPERATOR),
            create_token(secret, PROXY),
            (OPERATOR, PROXY, *superusers),
        )

    def broker(self, port: int, web_port: int) -> Mapping[str, str]:
        """Return the settings of a broker with these ports."""
        return {
            **self._common(self.token),
            "brokerServicePort": "",
            "webServicePort": "",
            "brokerServicePortTls": str(port),
            "webServicePortTls": str(web_port),
            "brokerClientTlsEnabled": "true",
            # Who comes through the proxy shows its own token as well, and the broker looks at it.
            "proxyRoles": PROXY,
            "authenticateOriginalAuthData": "true",
        }

    def proxy(self, port: int, web_port: int) -> Mapping[str, str]:
        """Return the settings of a proxy with these ports."""
        return {
            **self._common(self.proxy_token),
            "servicePort": "",
            "webServicePort": "",
            "servicePortTls": str(port),
            "webServicePortTls": str(web_port),
            "tlsEnabledWithBroker": "true",
            "forwardAuthorizationCredentials": "true",
        }

    def _common(self, shown: str) -> dict[str, str]:
        return {
            "tlsCertificateFilePath": str(self.certificate),
            "tlsKeyFilePath": str(self.key),
            "tlsTrustCertsFilePath": str(self.authority),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": _TOKEN_PROVIDER,
            "authenticationRefreshCheckSeconds": "1",
            "superUserRoles": ",".join(self.superusers),
            "tokenSecretKey": f"file://{self.secret_key}",
            "brokerClientTrustCertsFilePath": str(self.authority),
            "brokerClientAuthenticationPlugin": _TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{shown}",
        }
