"""Security of a running worker, made from the topology's ``auth``. Each reload makes it anew.

Keys and password files are all read before any is used, so unreadable ones change nothing. A task of its own fetches
keys from a URL (:mod:`replicator.security.key_sets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from replicator.api.guarding import Guarding
from replicator.engine.topics.grants import Grants
from replicator.protocol.authentication import AllowAll, Authenticator
from replicator.running.supervisor import SupervisedTask, Supervisor
from replicator.security.guard import EVERYBODY, Guard, PermissionGuard
from replicator.security.identifying import ShownCertificate, authenticator_of
from replicator.security.permissions import Permissions
from replicator.topology.auth import AuthSettings
from replicator.topology.made_security import LoadedSecurity, make_security


class GrantsSource(Protocol):
    """Interface of the grants in the store: see :class:`~replicator.engine.topics.grants.GrantTable`."""

    def of(self, name: str) -> Grants: ...

    def all(self) -> Mapping[str, Grants]: ...


class WorkerSecurity:
    """Security of one worker. Whether it identifies requests does not change while it runs."""

    def __init__(self, made: LoadedSecurity, grants: GrantsSource, supervisor: Supervisor) -> None:
        settings = made.settings
        self._grants = grants
        self._supervisor = supervisor
        self._made = made
        self._read: LoadedSecurity | None = None
        self._permissions = self._permissions_of(settings)
        self._fetching: SupervisedTask | None = None
        self.guard: Guard = PermissionGuard(lambda: self._permissions, grants.all) if settings.enabled else EVERYBODY

    @property
    def enabled(self) -> bool:
        return self._made.settings.enabled

    def permissions(self) -> Permissions | None:
        """Return the present permissions of roles; None if the worker does not identify requests."""
        return self._permissions if self.enabled else None

    def guarding(self) -> Guarding | None:
        """Return the guarding of HTTP; None without authentication."""
        if not self.enabled:
            return None
        return Guarding(lambda: self._made.identifying, self.guard, lambda: self._made.settings.metrics_roles)

    def authenticator(self, certificate: ShownCertificate) -> Authenticator:
        """Return the authenticator of one connection of the binary protocol."""
        return authenticator_of(lambda: self._made.identifying, certificate) if self.enabled else AllowAll()

    def read(self, settings: AuthSettings) -> None:
        """Read what the settings name; nothing counts before :meth:`use`. Raises :class:`SecurityError`."""
        self._read = None
        self._read = make_security(settings, self._made)

    async def use(self, settings: AuthSettings) -> None:
        """Use the settings that were read last from now on."""
        if self._read is not None and self._read.settings == settings:
            self._made, self._read = self._read, None
        self._permissions = self._permissions_of(settings)
        await self.start()

    async def start(self) -> None:
        """Fetch keys, if they come from a URL."""
        key_set = self._made.key_set
        await self.stop()
        if key_set is not None:
            self._fetching = key_set.start(self._supervisor)

    async def stop(self) -> None:
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            await fetching.stop()

    def _permissions_of(self, settings: AuthSettings) -> Permissions:
        return Permissions(self._grants.of, settings.granted(), frozenset(settings.superusers))
