"""Policies of namespaces in several clusters side by side. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.api.admin.namespaces import NAMESPACE_FIELDS
from replicator.dashboard.asking import Answer

VALUE_CHARS_MAX: Final = 1_000
NOT_SET: Final = "not set"


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
class PolicyRow:
    """One policy, by its name in the admin paths' answer; a value for each cluster that answered."""

    name: str
    values: tuple[str, ...]
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


def policy_rows(answers: Mapping[str, Answer]) -> tuple[list[str], list[PolicyRow], list[str]]:
    """The clusters that have a namespace, its policies there, and why others are missing.

    Policies of Pulsar that this version does not have, and shows as never set, are left out."""
    here = {cluster: answer.value for cluster, answer in answers.items() if answer.good}
    silent = [
        f"{cluster} does not have it" if answer.absent else answer.error
        for cluster, answer in answers.items()
        if not answer.good
    ]
    rows = []
    for name in NAMESPACE_FIELDS if here else ():
        values = tuple(_shown(policies.get(name)) for policies in here.values())
        rows.append(PolicyRow(name, values, len(set(values)) > 1))
    return list(here), rows, silent


def _shown(value: Any) -> str:
    match value:
        case None | "UNDEFINED":
            return NOT_SET
        case dict() | list() if not value:
            return NOT_SET
        case str():
            text = value
        case list():
            text = ", ".join(map(str, value))
        case dict():
            text = ", ".join(f"{name} {json.dumps(each, ensure_ascii=False)}" for name, each in value.items())
        case _:
            text = json.dumps(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
