"""Says of somebody who asks a worker for something whether they may; the same for every protocol.

Each method raises :class:`NotPermitted`, which tells the asker's own role and what they asked for, and nothing else:
not whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from replicator.engine.topic_name import parse_topic
from replicator.security.errors import NotPermitted
from replicator.security.permissions import Action, Permissions, shown


class Guard(Protocol):
    """Guard that gateway and API ask. ``topic`` is a name in any form; a malformed name is left for its reader to
    refuse.
    """

    def check(self, role: str, actions: tuple[Action, ...], place: str) -> None:
        """Check one of ``actions`` at ``tenant`` or ``tenant/namespace``."""

    def check_topic(self, role: str, actions: tuple[Action, ...], topic: str) -> None:
        """Check one of ``actions`` with a topic."""

    def check_subscription(self, role: str, topic: str, subscription: str) -> None:
        """Check consuming by that subscription."""

    def check_superuser(self, role: str) -> None:
        """Check a request that concerns the whole cluster."""

    def check_anywhere(self, role: str, actions: tuple[Action, ...]) -> None:
        """Check that the role has one of ``actions`` for something at least: the request names no place."""


class AllowAllGuard:
    """Guard without authentication: everybody may do everything."""

    def check(self, role: str, actions: tuple[Action, ...], place: str) -> None:
        pass

    def check_topic(self, role: str, actions: tuple[Action, ...], topic: str) -> None:
        pass

    def check_subscription(self, role: str, topic: str, subscription: str) -> None:
        pass

    def check_superuser(self, role: str) -> None:
        pass

    def check_anywhere(self, role: str, actions: tuple[Action, ...]) -> None:
        pass


EVERYBODY: Final = AllowAllGuard()


class PermissionGuard:
    """Guard by the present permissions: a reload of the topology replaces them."""

    def __init__(self, permissions: Callable[[], Permissions], granted_names: Callable[[], Iterable[str]]) -> None:
        """Make the guard. ``granted_names`` are those for which an operator granted anything."""
        self._permissions = permissions
        self._granted_names = granted_names

    def check(self, role: str, actions: tuple[Action, ...], place: str) -> None:
        self._permissions().check(role, actions, place)

    def check_topic(self, role: str, actions: tuple[Action, ...], topic: str) -> None:
        self._permissions().check(role, actions, parse_topic(topic))

    def check_subscription(self, role: str, topic: str, subscription: str) -> None:
        name = parse_topic(topic)
        self._permissions().check(role, (Action.CONSUME,), name)
        if not self._permissions().allows_subscription(role, name, subscription):
            raise NotPermitted(
                f"role {shown(role)} may not use subscription {shown(subscription)} of {name}; ask an operator to "
                "permit it"
            )

    def check_superuser(self, role: str) -> None:
        if not self._permissions().is_superuser(role):
            raise NotPermitted(
                f"role {shown(role)} is no superuser of this cluster: an operator can add it to `auth.superusers` of "
                "the topology"
            )

    def check_anywhere(self, role: str, actions: tuple[Action, ...]) -> None:
        if not self._permissions().allows_anywhere(role, actions, self._granted_names()):
            raise NotPermitted(
                f"role {shown(role)} may not {' or '.join(actions)} anything in this cluster; ask an operator to "
                "grant it"
            )
