"""A subscription in all clusters side by side, and what a failover now would do to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.dashboard.fan_out import Answer
from snapshots.position import Position

HOLES_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class FoundMapping:
    """The newest snapshot mapping at or below the mark-delete position."""

    peer: str
    local: str
    remote: str


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One cluster's state; ``error`` says why there is none."""

    cluster: str
    error: str = ""
    kind: str = ""
    replicated: bool = False
    generation: int = 0
    mark_delete: str = ""
    acked_beyond: tuple[str, ...] = ()
    """Runs that are acknowledged beyond the mark-delete position: between them are the holes."""
    acked_runs: int = 0
    batches_in_part: tuple[str, ...] = ()
    batch_count: int = 0
    mappings: tuple[FoundMapping, ...] = ()
    mappings_error: str = ""


def state_column(cluster: str, name: str, states: Answer, mappings: Answer) -> StateColumn:
    """Return a column from the answers of ``/replication/v1/subscriptions`` and ``/replication/v1/mappings`` for its
    topic.
    """
    if not states.good:
        return StateColumn(cluster, states.error)
    state = next((each for each in states.value["subscriptions"] if each["name"] == name), None)
    if state is None:
        return StateColumn(cluster, f"{cluster} does not have this subscription")
    runs, batches = state["individually_deleted"], state["batch_acks"]
    shown = tuple(first if first == last else f"{first} to {last}" for first, last in runs[:HOLES_SHOWN_MAX])
    in_part = tuple(
        f"{position}: {len(indexes)} acknowledged" for position, indexes in list(batches.items())[:HOLES_SHOWN_MAX]
    )
    found = _mappings_found(state["mark_delete"], mappings.value["mappings"]) if mappings.good else ()
    return StateColumn(
        cluster,
        "",
        state["type"] or "nobody is connected",
        state["replicated"],
        state["generation"],
        state["mark_delete"],
        shown,
        len(runs),
        in_part,
        len(batches),
        found,
        "" if mappings.good else mappings.error,
    )


def _mappings_found(mark_delete: str, mappings: Sequence[Mapping[str, Any]]) -> tuple[FoundMapping, ...]:
    """Return, for each peer, the mapping by which a snapshot-based sync would move the subscription there."""
    mark, best = Position.parse(mark_delete), dict[str, tuple[Position, FoundMapping]]()
    for each in mappings:
        local = Position.parse(each["local"])
        if local <= mark and (each["peer"] not in best or local > best[each["peer"]][0]):
            best[each["peer"]] = local, FoundMapping(each["peer"], each["local"], each["remote"])
    return tuple(found for _, (_, found) in sorted(best.items()))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Forecast: the clients of ``source`` are moved to ``target`` at once, now."""

    source: str
    target: str
    carried: bool = True
    missing: int | None = None
    missing_exact: bool = True
    repeated: int | None = None
    equal: bool | None = None
    evidence: str = ""
    error: str = ""
