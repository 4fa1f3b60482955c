"""Permissions of roles. Pure: reads what was granted, and decides.

Roles are names. A superuser may do everything. Else it is what was granted to the role, for a topic, its namespace or
its tenant, by an operator (:mod:`replicator.engine.topics.grants`) or by the topology file; what nobody granted is
refused. ``admin`` of a tenant, namespace or topic holds the other actions there.

A subscription may be used by who may consume its topic. Where its namespace names the roles that may use it, by those
alone; where the namespace asks for prefixes, only if its name begins with the role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from replicator.engine.topic_name import TopicName
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.partitions import base_name
from replicator.security.errors import NotPermitted


class Action(StrEnum):
    """Action that can be granted; those without use here are kept for tools that set them."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"
    ADMIN = "admin"
    """Everything, of a tenant, a namespace or a topic."""
    REPLICATE = "replicate"
    """Copy messages and subscription states to and from here, as workers and Spark jobs do."""


USING: Final = (Action.PRODUCE, Action.CONSUME)
"""Either lets somebody know that the topic is there, and where."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Answers for one cluster; made anew when the topology changes."""

    granted: Callable[[str], Grants]
    """Function that returns what an operator granted for a tenant, namespace or topic."""
    written: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Grants of the topology, by tenant, namespace or topic: each role with its actions."""
    superusers: frozenset[str] = frozenset()

    def is_superuser(self, role: str) -> bool:
        return role in self.superusers

    def allows(self, role: str, actions: tuple[str, ...], place: str | TopicName) -> bool:
        """Return whether the role may do one of ``actions`` with ``tenant``, ``tenant/namespace`` or a topic."""
        return self._allows_one_of(role, actions, _places(place))

    def allows_anywhere(self, role: str, actions: tuple[Action, ...], names: Iterable[str]) -> bool:
        """Return whether the role has one of the actions for anything at all; ``names`` are those that have grants."""
        return self._allows_one_of(role, actions, (*self.written, *names))

    def allows_subscription(self, role: str, topic: TopicName, subscription: str) -> bool:
        """Return whether the role may consume by that subscription."""
        if not self.allows(role, (Action.CONSUME,), topic):
            return False
        if self.allows(role, (Action.ADMIN,), topic):
            return True
        of_namespace = self.granted(topic.full_namespace)
        if of_namespace.prefixed and not subscription.startswith(role):
            return False
        named = of_namespace.subscriptions.get(subscription)
        return named is None or role in named

    def check(self, role: str, actions: tuple[Action, ...], place: str | TopicName) -> None:
        """Raise :class:`NotPermitted` unless the role may do one of ``actions``."""
        if not self.allows(role, actions, place):
            raise NotPermitted(
                f"role {shown(role)} may not {' or '.join(actions)} at {place}; ask an operator to grant it"
            )

    def _allows_one_of(self, role: str, actions: tuple[str, ...], places: Iterable[str]) -> bool:
        wanted = {*actions, Action.ADMIN}
        return self.is_superuser(role) or any(not wanted.isdisjoint(self._actions(role, each)) for each in places)

    def _actions(self, role: str, name: str) -> frozenset[str]:
        return self.granted(name).roles.get(role, _NOTHING) | self.written.get(name, {}).get(role, _NOTHING)


_NOTHING: Final[frozenset[str]] = frozenset()


def shown(role: str) -> str:
    """Return a role for use in a message, shortened."""
    return repr(role[:100])


def _places(place: str | TopicName) -> Iterator[str]:
    """Yield the names for which permissions count at a place: its own, and those it is in. A partition has its topic's
    permissions.
    """
    if isinstance(place, TopicName):
        yield str(place)
        if place.partition >= 0:
            yield base_name(str(place))
        yield place.full_namespace
        yield place.tenant
        return
    yield place
    tenant, separator, _ = place.partition("/")
    if separator:
        yield tenant
