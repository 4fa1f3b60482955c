"""Policies of namespaces and topics in several clusters side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.policy_catalog import Policy, in_words
from replicator.dashboard.policy_standing import PolicyState

VALUE_CHARS_MAX: Final = 1_000


NOT_HERE: Final = "not here"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    name: str
    cells: tuple[str, ...]
    """By cluster, the number of policies that are set; :data:`NOT_HERE` if the cluster lacks the namespace,
    :data:`UNKNOWN` if its worker does not answer."""
    tone: str
    """``good`` if all clusters have the namespace with the same policies, ``warn`` if they do not, else ``unknown``."""
    verdict: str


@dataclass(frozen=True, slots=True)
class NamespacePage:
    clusters: tuple[str, ...]
    rows: tuple[NamespaceRow, ...]
    matching: int
    """Number of matching namespaces in the cluster that has most."""
    silent: tuple[str, ...]
    """Why the figures of a cluster are missing."""
    following: str
    """The ``after`` of the next page; empty where there is none."""


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One policy in one cluster."""

    value: str
    set_by: str
    here: bool
    """Whether it is set at the level that is asked about."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy; a cell for each cluster that answered."""

    policy: Policy
    cells: tuple[PolicyCell, ...]
    differs: bool


def namespace_page(clusters: Sequence[str], answers: Mapping[str, Answer], limit: int) -> NamespacePage:
    """Return a page of ``limit`` namespaces from the answers of clusters that were asked for one more."""
    by_cluster = {
        name: {each["name"]: each["policies"] for each in answers[name].value["namespaces"]}
        for name in clusters
        if answers[name].good
    }
    below = {name: answers[name].value.get("below") for name in by_cluster}
    names = sorted(set().union(*by_cluster.values()))
    shown = names[:limit]
    return NamespacePage(
        tuple(clusters),
        tuple(_namespace_row(name, clusters, by_cluster, below) for name in shown),
        max((answers[name].value["matching"] for name in by_cluster), default=0),
        tuple(answers[name].error for name in clusters if not answers[name].good),
        shown[-1] if len(names) > limit else "",
    )


def _namespace_row(
    name: str,
    clusters: Sequence[str],
    by_cluster: Mapping[str, Mapping[str, Mapping[str, Any]]],
    below: Mapping[str, Mapping[str, Any] | None],
) -> NamespaceRow:
    """Return the row for namespace ``name``: it shows whether all clusters have the same policies.

    ``by_cluster`` has, for each cluster that answered, its namespaces with their policies. ``below`` has the default
    policies of each cluster's topology file; None if the cluster's worker is too old to report them.
    """
    having = [cluster for cluster in clusters if name in by_cluster.get(cluster, {})]
    lacking = [cluster for cluster in clusters if cluster in by_cluster and cluster not in having]
    silent = [cluster for cluster in clusters if cluster not in by_cluster]
    cells = tuple(
        str(_count(by_cluster[cluster][name])) if cluster in having else NOT_HERE if cluster in lacking else UNKNOWN
        for cluster in clusters
    )
    found = [by_cluster[cluster][name] for cluster in having]
    untold = [cluster for cluster in having if below[cluster] is None]
    counting = [_counting(by_cluster[cluster][name], below[cluster] or {}) for cluster in having]
    if any(each != found[0] for each in found):
        tone, verdict = "warn", "differ"
    elif not untold and _differ(counting):
        tone, verdict = "warn", "differ by the topology file"
    elif lacking:
        tone, verdict = "warn", ""
    elif silent or (untold and len(having) > 1):
        return NamespaceRow(name, cells, "unknown", f"not known of {', '.join(silent or untold)}")
    else:
        return NamespaceRow(name, cells, "good", "agree")
    absent = f"not in {', '.join(lacking)}" if lacking else ""
    return NamespaceRow(name, cells, tone, "; ".join(each for each in (verdict, absent) if each))


def _counting(policies: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies in force for a namespace's topics: the namespace's own, and defaults for the policies it
    lacks."""
    return {**below, **(policies.get("topic_policies") or {})}


def _differ(counting: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two clusters have different values for a policy that all clusters report."""
    known = set(counting[0]).intersection(*counting[1:])
    return any(each[name] != counting[0][name] for each in counting[1:] for name in known)


def _count(policies: Mapping[str, Any]) -> int:
    """Return how many policies a namespace sets: each topic policy counts as one, and so does each other policy."""
    own = policies.get("topic_policies") or {}
    return len(own) + sum(name != "topic_policies" for name in policies)


def policy_rows(policies: Sequence[Policy], standings: Mapping[str, PolicyState]) -> list[PolicyRow]:
    """Return a row for each policy. It has the value in each cluster with the topic or namespace, and what set the
    value."""
    return [policy_row(policy, standings) for policy in policies] if standings else []


def policy_row(policy: Policy, standings: Mapping[str, PolicyState]) -> PolicyRow:
    cells = tuple(
        PolicyCell(_cut(in_words(policy, each.value(policy))), each.set_by(policy), each.set_here(policy))
        for each in standings.values()
    )
    return PolicyRow(policy, cells, len({cell.value for cell in cells}) > 1)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
