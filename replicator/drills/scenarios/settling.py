"""Tells when a drill is over: nothing is left to copy, to consume or to acknowledge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replicator.topology import Topology


def unsettled_work(
    topology: Topology,
    topics: Sequence[str],
    subscriptions: Iterable[str],
    serving: str,
    statuses: Mapping[str, Mapping[str, Any]],
    *,
    databases: bool = False,
) -> str | None:
    """Return in words what is left to do, or None. ``statuses`` are the workers' own; clients are at ``serving``. With
    ``databases``, the databases were down and must be up again.
    """
    rows_of: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, answer in statuses.items():
        if "error" in answer:
            return f"{name}: {answer['error']}"
        if databases and answer["database"]["state"] != "up":
            return f"the database of {name} is {answer['database']['state']}: {answer['database']['detail']}"
        rows_of[name] = {row["name"]: row for row in answer["topics"]}
    names = list(subscriptions)
    for topic in topics:
        rows: dict[str, Mapping[str, Any]] = {}
        for name, found in rows_of.items():
            if topic not in found:
                return f"{name} has no topic {topic}"
            rows[name] = found[topic]
        if (left := _left_of(topology, topic, names, serving, rows)) is not None:
            return left if len(topics) == 1 else f"{topic}: {left}"
    return None


def _left_of(
    topology: Topology, topic: str, subscriptions: Sequence[str], serving: str, rows: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return a text about the work that is left for one topic, or None if nothing is left."""
    if (uncopied := _uncopied(topology, topic, rows)) is not None:
        return uncopied
    # Elsewhere than where they were acknowledged they are settled only if there is a way for that to be told.
    told = [name for name in rows if name == serving or name in topology.reached_from(serving, topic)]
    return _unsettled(told, subscriptions, rows)


def _uncopied(topology: Topology, topic: str, rows: Mapping[str, Mapping[str, Any]]) -> str | None:
    for origin in rows:
        published = topology.origin_of_clients(origin)
        there = rows[origin]["high_water"].get(published)
        for name in sorted(topology.reached_from(origin, topic) & rows.keys()):
            here = rows[name]["high_water"].get(published)
            if here != there:
                return f"messages of {origin} are not all copied to {name}: {there} and {here}"
    return None


def _unsettled(names: Sequence[str], subscriptions: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> str | None:
    for name in names:
        states = {state["name"]: state for state in rows[name]["subscriptions"]}
        for subscription in subscriptions:
            state = states.get(subscription)
            if state is None:
                return f"{subscription} is missing at {name}"
            if state["backlog_entries"] > 0:
                return f"{subscription} has a backlog of {state['backlog_entries']} entries at {name}"
    return None
