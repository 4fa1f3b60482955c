"""Goals of a backfill: the state that a new region must have when it has joined, and the parts it still lacks. Pure.

It serves invariants 2 (everything that the source had) and 5, 6 (what is acknowledged there is acknowledged here too,
and nothing is waited for that a newer generation took back).

1. A *goal* is, for a topic and each origin that the link brings, how far the source had it when the backfill began.
   The live link brings what comes later, so a topic that is in use does not keep a backfill from ending.
2. A subscription's state is compared with the state that the source had when it was told to announce all. It has
   arrived if every message that the source had then and the destination has left to consume is also left at the
   source. Fewer may be left: the destination's consumers work already, or the source's continued.
3. A generation that is older at the source than at the destination is not compared: a seek or reset at the destination
   has won.

The input is workers' answers to ``POST /failover/v1/topics`` and ``GET /replication/v1/ack-vectors`` (docs/http.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snapshots.ack_vector import Range, claimed, within
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import end_before, end_of_earlier_lives, from_data

Topics = Mapping[str, Mapping[str, Any]]
"""Answer of a worker about its topics, by name."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Last position of an origin that a cluster has, with the incarnation of the topic at that origin."""

    incarnation: int
    position: Position


@dataclass(frozen=True, slots=True)
class TopicGoal:
    """State that the destination must reach for one topic."""

    marks: Mapping[str, Mark]
    """Position that the destination must reach, for each origin."""
    messages: int
    """Number of messages, of all origins, that the source has ever had."""
    replicated: tuple[str, ...] = ()
    """The replicated subscriptions at the source."""
    earlier: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Newest message of each earlier life of the topic that the source has, for each origin."""
    unreplicated: tuple[str, ...] = ()
    """Subscriptions at the source that are not replicated: their acknowledgements are not copied."""


def topics_by_name(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(topic["name"]): topic for topic in answer["topics"]}


def goals_of(
    topics: Topics, origins: Collection[str], destination: str, carried: Callable[[str], bool]
) -> dict[str, TopicGoal]:
    """Return the goals of the topics that are carried, by their names and by the clusters of their namespaces."""
    return {
        name: TopicGoal(
            {origin: mark for origin in sorted(origins) if (mark := _mark(topic, origin)) is not None},
            int(topic["messages"]),
            tuple(each for each, state in topic["subscriptions"].items() if state["replicated"]),
            {origin: each for origin, each in topic.get("earlier", {}).items() if origin in origins},
            tuple(each for each, state in topic["subscriptions"].items() if not state["replicated"]),
        )
        for name, topic in topics.items()
        if carried(name) and (topic["clusters"] is None or destination in topic["clusters"])
    }


def missing_of(goal: TopicGoal, there: Mapping[str, Any] | None) -> str | None:
    """Return why the destination's copy does not reach ``goal``; None if it does.

    ``there`` is the destination's answer about the topic, or None if the destination has no such topic.
    """
    for origin, mark in goal.marks.items():
        has = None if there is None else _mark(there, origin)
        if has is None:
            return f"it has nothing of {origin}, {mark.position} is the last"
        if has.incarnation != mark.incarnation:
            return f"it has another incarnation of what {origin} published"
        if has.position < mark.position:
            return f"it has {origin} up to {has.position} of {mark.position}"
        if there is not None and (lacks := there.get("lacks", {}).get(origin)):
            return (
                f"it lacks messages of {origin} that belong to an earlier life, or that a reclaim put back, up to "
                f"{lacks[-1]}"
            )
    return None


def made_anew(goal: TopicGoal, source: str, here: Mapping[str, Any] | None) -> bool:
    """Return whether the source deleted the topic of ``goal``, and perhaps made it again."""
    had, has = goal.marks.get(source), None if here is None else _mark(here, source)
    return here is None or (had is not None and (has is None or has.incarnation != had.incarnation))


def _mark(topic: Mapping[str, Any], origin: str) -> Mark | None:
    has = topic["has"].get(origin)
    return None if has is None else Mark(int(has["incarnation"]), Position.parse(has["position"]))


def lacking_states(here: Mapping[str, Any], there: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the subscriptions of a topic whose state is not at the destination yet, each with the reason.

    ``here`` is the answer of the source when it was told to announce everything. ``there`` is None if the destination
    has no such topic.
    """
    found = {} if there is None else there["subscriptions"]
    reasons = {name: _lacking(here["high_water"], state, found.get(name)) for name, state in _states(here)}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def reset_since(here: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a subscription at the source was reset, sought or deleted since ``here`` was read."""
    states = now["subscriptions"]
    return any(name not in states or states[name]["generation"] != state["generation"] for name, state in _states(here))


def _states(answer: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(answer["subscriptions"].items())


def _lacking(high_water: Mapping[str, str], here: Mapping[str, Any], there: Mapping[str, Any] | None) -> str | None:
    if there is None:
        return "it is not there yet"
    if there["generation"] != here["generation"]:
        if there["generation"] > here["generation"]:
            return None
        return f"it has generation {there['generation']} of {here['generation']}"
    for origin, left_there in there["unconsumed"].items():
        if origin not in high_water:
            continue  # the source has nothing of it, and so no acknowledgement
        left = here["unconsumed"].get(origin)
        if left is not None and left["incarnation"] != left_there["incarnation"]:
            return f"it is of another incarnation of what {origin} published"
        newest = Position.parse(high_water[origin])
        earlier = end_of_earlier_lives(int(left_there["incarnation"]), newest)
        vector = here.get("vector", {}).get(origin) if earlier > BEFORE_ALL else None
        claims = [] if vector is None else claimed(vector)
        start = end_before(from_data(here.get("starts", {})), origin)
        lacking = _acknowledged_here_only(left, left_there, (start, newest), (earlier, claims))
        if lacking:
            return f"{lacking} entries of {origin} that are acknowledged at the source are not there"
    return None


def _acknowledged_here_only(
    left: Mapping[str, Any] | None,
    left_there: Mapping[str, Any],
    between: Range,
    earlier: tuple[Position, list[Range]],
) -> int:
    """Return how many entries have messages that only the source acknowledged.

    ``left`` is the source's state, ``left_there`` the destination's. Entries in ``between`` are counted: after its
    first position, and up to its last. ``earlier`` has the end of earlier lives of the topic, and what the source
    claims. The source claims nothing of a life that it does not have, so up to that end only its claims count.
    """
    here, there = _positions(left), _positions(left_there)
    there.discard_through(between[0])
    there.discard_above(between[1])
    end, claims = earlier
    if end > BEFORE_ALL:
        of_earlier = there.copy()
        of_earlier.discard_above(end)
        there.discard_through(end)
        runs = [(Position(first.ledger, first.entry - 1), last) for first, last in of_earlier.runs()]
        for after, upto in within(runs, claims):
            there.add_range(upto.ledger, after.entry + 1, upto.entry)
    shared = there.common(here)
    there.difference_update(here)
    parts = {} if left is None else left["batches"]
    parts_there = left_there["batches"]
    partly = sum(
        Position.parse(entry) in shared and not set(acknowledged) <= set(parts_there.get(entry, ()))
        for entry, acknowledged in parts.items()
    )
    return len(there) + partly


def _positions(left: Mapping[str, Any] | None) -> PositionSet:
    found = PositionSet()
    for first, last in () if left is None else left["beyond"]:
        start, end = Position.parse(first), Position.parse(last)
        if start.ledger != end.ledger or not 0 <= start.entry <= end.entry:
            raise ValueError(
                f"a worker says that {first} to {last} is acknowledged, which is not a range of entries of one ledger"
            )
        found.add_range(start.ledger, start.entry, end.entry)
    return found
