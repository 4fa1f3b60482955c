"""Policies of namespaces and topics in several clusters side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.dashboard.asking import Answer
from replicator.dashboard.policy_catalog import Policy, in_words
from replicator.dashboard.policy_standing import Standing

VALUE_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    name: str
    set_counts: tuple[int | None, ...]
    """By cluster, how many policies are set; None where it is not, or its worker does not answer."""
    differs: bool
    """Whether clusters that have it do not have the same policies."""


@dataclass(frozen=True, slots=True)
class NamespacePage:
    clusters: tuple[str, ...]
    rows: tuple[NamespaceRow, ...]
    matching: int
    """In the cluster that has most."""
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
    """A page of ``limit`` namespaces, from what each cluster answered who was asked for one more."""
    by_cluster = {
        name: {each["name"]: each["policies"] for each in answers[name].value["namespaces"]}
        for name in clusters
        if answers[name].good
    }
    names = sorted(set().union(*by_cluster.values()))
    shown = names[:limit]
    return NamespacePage(
        tuple(clusters),
        tuple(_namespace_row(name, [by_cluster.get(cluster, {}).get(name) for cluster in clusters]) for name in shown),
        max((answers[name].value["matching"] for name in by_cluster), default=0),
        tuple(answers[name].error for name in clusters if not answers[name].good),
        shown[-1] if len(names) > limit else "",
    )


def _namespace_row(name: str, policies: Sequence[Mapping[str, Any] | None]) -> NamespaceRow:
    found = [each for each in policies if each is not None]
    counts = tuple(None if each is None else _count(each) for each in policies)
    return NamespaceRow(name, counts, any(each != found[0] for each in found))


def _count(policies: Mapping[str, Any]) -> int:
    """Those for its topics count each."""
    own = policies.get("topic_policies") or {}
    return len(own) + sum(name != "topic_policies" for name in policies)


def policy_rows(policies: Sequence[Policy], standings: Mapping[str, Standing]) -> list[PolicyRow]:
    """What counts of each policy, and who set it, in the clusters that have what is asked about."""
    return [policy_row(policy, standings) for policy in policies] if standings else []


def policy_row(policy: Policy, standings: Mapping[str, Standing]) -> PolicyRow:
    cells = tuple(
        PolicyCell(_cut(in_words(policy, each.value(policy))), each.set_by(policy), each.set_here(policy))
        for each in standings.values()
    )
    return PolicyRow(policy, cells, len({cell.value for cell in cells}) > 1)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
