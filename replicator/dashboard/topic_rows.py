"""Topics of several clusters side by side, from the pages that each worker gives of its own. Pure.

Each cluster gives its first topics behind the same name, in order, one more than a page has; the first of all of them
together are a page of the union, and each cluster's figures of these are among what it gave.

What is acknowledged in another cluster and not here (*sync lag*) is estimated from backlogs: the difference to the
smallest one elsewhere, less what is only here and not there yet. The page of a subscription compares exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replicator.dashboard.fan_out import Answer


@dataclass(frozen=True, slots=True)
class Cell:
    """One subscription in one cluster."""

    backlog: int
    sync_lag: int
    generation: int
    consumers: int
    replicated: bool


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    name: str
    cells: tuple[Cell | None, ...]
    """Cells in the order of the clusters; None for a cluster without the subscription."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    messages: tuple[int | None, ...]
    """Numbers of messages, by cluster; None if the topic is not there, or the worker does not answer."""
    subscriptions: tuple[SubscriptionRow, ...]
    subscription_count: int


@dataclass(frozen=True, slots=True)
class TopicPage:
    clusters: tuple[str, ...]
    rows: tuple[TopicRow, ...]
    matching: int
    """Number of matching topics in the cluster that has most."""
    silent: tuple[str, ...]
    """Why the figures of a cluster are missing."""
    following: str = ""
    """The ``after`` of the next page; empty where there is none."""
    preceding: str = ""
    """The ``before`` of the page in front."""


def topic_page(
    clusters: Sequence[str], answers: Mapping[str, Answer], *, after: str, before: str, limit: int
) -> TopicPage:
    """Return a page of ``limit`` topics from the answers of clusters that were asked for one more."""
    by_cluster = {
        name: {topic["name"]: topic for topic in answers[name].value["topics"]}
        for name in clusters
        if answers[name].good
    }
    names = sorted(set().union(*by_cluster.values()))
    more = len(names) > limit
    names = names[-limit:] if before else names[:limit]
    behind = bool(names) and (bool(before) or more)
    in_front = bool(names) and (bool(after) or (bool(before) and more))
    return TopicPage(
        tuple(clusters),
        tuple(topic_row(name, clusters, by_cluster) for name in names),
        max((answers[name].value["matching"] for name in by_cluster), default=0),
        tuple(answers[name].error for name in clusters if not answers[name].good),
        names[-1] if behind else "",
        names[0] if in_front else "",
    )


def topic_row(name: str, clusters: Sequence[str], by_cluster: Mapping[str, Mapping[str, Any]]) -> TopicRow:
    topics = [by_cluster.get(cluster, {}).get(name) for cluster in clusters]
    states = [{} if topic is None else {each["name"]: each for each in topic["subscriptions"]} for topic in topics]
    messages = [None if topic is None else int(topic["messages"]) for topic in topics]
    found = sorted(set().union(*states))
    rows = tuple(
        SubscriptionRow(each, tuple(_cell(number, [state.get(each) for state in states], messages)
                                    for number in range(len(clusters))))
        for each in found
    )  # fmt: skip
    count = max((topic["subscription_count"] for topic in topics if topic is not None), default=0)
    return TopicRow(name, tuple(messages), rows, max(count, len(rows)))


def _cell(number: int, states: Sequence[Mapping[str, Any] | None], messages: Sequence[int | None]) -> Cell | None:
    state = states[number]
    if state is None:
        return None
    backlog, here, lag = int(state["backlog_messages"]), messages[number] or 0, 0
    for other, there in zip(states, messages, strict=True):
        if other is None or there is None or not (state["replicated"] and other["replicated"]):
            continue
        if other["generation"] == state["generation"]:
            lag = max(lag, backlog - int(other["backlog_messages"]) - max(0, here - there))
    return Cell(backlog, lag, state["generation"], state["consumers"], state["replicated"])
