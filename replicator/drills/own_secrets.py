"""Secrets of a drill with ``--secure``: an authority, certificates, a secret key and tokens.

Everything is made anew in the drill's directory, and goes when the drill is over. The tokens of the drill's clients
count for :data:`TOKEN_SECONDS`, so that they are refreshed all the time; the workers' certificates are exchanged every
:data:`EXCHANGE_SECONDS`, with a reload.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp

from replicator.running.private_files import replace_private
from replicator.security.asking import worker_session
from replicator.security.certificate_making import Authority
from replicator.security.tokens import create_token, new_secret, read_secret
from replicator.topology import Topology
from replicator.topology.auth import AuthSettings, TlsPolicy
from replicator.topology.fields import TlsSettings

OPERATOR: Final = "operator"
CLIENT: Final = "drill"
TOKEN_SECONDS: Final = 10.0
EXCHANGE_SECONDS: Final = 5.0
ASK_SECONDS_MAX: Final = 5.0
GRANTED: Final = ("produce", "consume")


class OwnSecrets:
    """Secrets of one drill."""

    def __init__(self, directory: Path, namespace: str) -> None:
        """Make the secrets. The drill's clients may use ``namespace``."""
        self._directory = directory
        self._namespace = namespace
        self.authority = Authority(directory, "a drill")
        self._key_file = directory / "secret.key"
        replace_private(self._key_file, new_secret())
        self._key = read_secret(self._key_file)
        self._token_file = directory / "operator.token"
        replace_private(self._token_file, create_token(self._key, OPERATOR).encode())

    def token(self) -> str:
        """Return a token of one of the drill's clients. It expires after a while."""
        return create_token(self._key, CLIENT, expires_at=time.time() + TOKEN_SECONDS)

    def protected(self, topology: Topology) -> Topology:
        """Return the topology with authentication required, and TLS only."""
        clusters = []
        for cluster in topology.clusters:
            certificate, key = self.authority.give(cluster.name)
            tls = TlsSettings.model_validate({"certificate": str(certificate), "key": str(key)})
            clusters.append(cluster.model_copy(update={"tls": tls, "tls_required": True}))
        auth = AuthSettings.model_validate(
            {
                "tokens": {"secret_key": str(self._key_file)},
                "superusers": [OPERATOR],
                "token_file": str(self._token_file),
                "permissions": {self._namespace: {CLIENT: list(GRANTED)}},
            }
        )
        policy = TlsPolicy.model_validate({"required": True, "trust": str(self.authority.file)})
        return replace(topology, clusters=tuple(clusters), auth=auth, tls=policy)

    async def exchange(self, topology: Topology) -> None:
        """Exchange the certificates of all workers again and again; never return. A worker that is away reads its own
        when it starts.
        """
        while True:
            await asyncio.sleep(EXCHANGE_SECONDS)
            for cluster in topology.clusters:
                self.authority.give(cluster.name)
            async with worker_session(timeout=aiohttp.ClientTimeout(total=ASK_SECONDS_MAX)) as session:
                await asyncio.gather(*(self._reload(session, cluster.url) for cluster in topology.clusters))

    async def _reload(self, session: aiohttp.ClientSession, url: str) -> None:
        try:
            async with session.post(f"{url}/replication/v1/topology/reload", json={}) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # it was killed, or cannot be reached, as the scenario wants
