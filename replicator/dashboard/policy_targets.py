"""Namespaces and topics for which policies are set: their addresses, and their policies in all clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from replicator.api.errors import BadRequest
from replicator.dashboard.fan_out import Answer, FanOut
from replicator.dashboard.policy_catalog import OF_TOPICS, POLICIES, Policy
from replicator.dashboard.policy_standing import PolicyState, Unreadable, of_namespace, of_topic
from replicator.dashboard.rendering import url
from replicator.engine.topic_name import parse_namespace, parse_topic

NAMESPACES: Final = "/replication/v1/namespaces"


@dataclass(frozen=True, slots=True)
class Target:
    """A namespace, or a topic of it."""

    namespace: str
    topic: str = ""
    """Its full name; empty where the namespace itself is meant."""

    @property
    def name(self) -> str:
        return self.topic or self.namespace

    @property
    def is_topic(self) -> bool:
        return bool(self.topic)

    @property
    def policies(self) -> Sequence[Policy]:
        return OF_TOPICS if self.topic else POLICIES

    @property
    def admin_path(self) -> str:
        """Return the target's address in the admin paths; a policy's path comes after it."""
        if not self.topic:
            return f"/admin/v2/namespaces/{_quoted(self.namespace)}"
        return f"/admin/v2/persistent/{_quoted(self.topic.partition('://')[2])}"

    @property
    def page(self) -> str:
        """Return the address of the page with all of its policies."""
        if self.topic:
            return url("/dashboard/topic-policies", topic=self.topic)
        return url("/dashboard/namespace", name=self.namespace)

    def permissions_page(self, **more: str) -> str:
        return url("/dashboard/permissions", **self._named, **more)

    def edit_page(self, policy: Policy, **more: str) -> str:
        return url("/dashboard/policy", **self._named, policy=policy.key, **more)

    @property
    def _named(self) -> dict[str, str]:
        return {"topic": self.topic} if self.topic else {"namespace": self.namespace}


def target_of(fields: Mapping[str, str]) -> Target:
    """Return the topic or namespace that a form or an address names. Raise :class:`BadRequest`, which tells what is
    wrong with the name.
    """
    if topic := fields.get("topic", ""):
        name = parse_topic(topic)
        return Target(name.full_namespace, str(name))
    if namespace := fields.get("namespace", ""):
        return Target(parse_namespace(namespace))
    raise BadRequest(
        "parameters namespace and topic are both missing in the address or the form: open the page anew from the "
        "dashboard"
    )


async def standings(fan_out: FanOut, target: Target) -> tuple[dict[str, PolicyState], dict[str, str]]:
    """Return the target's policies in each cluster that has it, and why the other clusters are missing."""
    path = f"{NAMESPACES}/{_quoted(target.namespace)}"
    if target.is_topic:
        namespaces, topics = await asyncio.gather(
            fan_out.ask_all(path), fan_out.ask_all(f"{target.admin_path}/policies")
        )
    else:
        namespaces = topics = await fan_out.ask_all(path)
    found: dict[str, PolicyState] = {}
    silent: dict[str, str] = {}
    for cluster, answer in topics.items():
        problem = missing_in(cluster, answer, namespaces[cluster])
        try:
            if not problem:
                found[cluster] = (
                    of_topic(answer.value, namespaces[cluster].value) if target.is_topic else of_namespace(answer.value)
                )
        except Unreadable as error:
            problem = f"{cluster}: {error}"
        if problem:
            silent[cluster] = problem
    return found, silent


def missing_in(cluster: str, *answers: Answer) -> str:
    """Return why a cluster lacks the target or does not answer; empty if it has it."""
    for answer in answers:
        if answer.absent:
            return f"{cluster} does not have it"
        if not answer.good:
            return answer.error
    return ""


def _quoted(name: str) -> str:
    """Percent-encode a name, but keep the slashes between its parts."""
    return "/".join(quote(part, safe="") for part in name.split("/", 2))
