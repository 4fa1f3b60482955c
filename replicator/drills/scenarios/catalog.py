"""The scenarios by their names: what happens, what it needs, and what is judged besides what every drill is judged by.

Pure: a scenario makes its steps from a random source; the same source makes the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replicator.drills.errors import DrillError
from replicator.drills.link_fault import BLACK_HOLE, CUT, HEALTHY, LinkFault
from replicator.drills.observations import FailoverKind
from replicator.drills.scenarios.steps import (
    CaughtUp,
    Confirmed,
    Disturb,
    FailOver,
    KeepUp,
    Kill,
    LoseDisk,
    Move,
    Pause,
    Phase,
    Role,
    Start,
    StartDatabases,
    Step,
    StopDatabases,
)

BEFORE: Final = "before"
DURING: Final = "during"
AFTER: Final = "after"

_PRIMARY, _SECONDARY, _BYSTANDER = Role.PRIMARY, Role.SECONDARY, Role.BYSTANDER
_AWAY: Final = 0.2
"""Share of the messages for which a killed worker stays away, so that both sides take new messages alone."""
_WARMING_SHARE: Final = 0.1
"""Share of the messages before a loss of clusters or links in which links reach their rate: Spark compiles its code."""
_LAST_SHARE: Final = 0.03
"""Share of the messages right before such a loss, so that some are always on their way."""
_SETTLING_SECONDS: Final = (1.5, 3.5)
"""Pauses before a move with nothing broken. By then the last updates have followed the messages."""
_FLAPS: Final = 12
_SLOW: Final = LinkFault(delay_ms=100, rate_bytes=1024 * 1024)


class Requirement(Enum):
    """Condition that a scenario needs."""

    LINK_BACK = "links both ways"
    OWN_WORKERS = "workers that it may start, stop and kill"
    LINK_FAULTS = "links that it may disturb"
    DATABASES = "databases that it may stop"
    THREE_CLUSTERS = "three clusters"
    OWN_STORES = "stores of workers"


class OptionalCheck(Enum):
    """Condition that is judged only in some scenarios."""

    TRAFFIC_GOES_ON = "clients confirm as many messages a second during it as before it"
    SYNC_GOES_ON = "the pair copies, maps and updates during it at the rate and lag of before it"
    DATABASES_BACK = "the databases are up again at the end, and hold mappings"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario; ``summary`` is a line for ``--help`` and the docs."""

    name: str
    summary: str
    make_steps: Callable[[random.Random], Iterator[Step]]
    needs: frozenset[Requirement]
    judged: frozenset[OptionalCheck] = frozenset()
    moves_everybody: bool = False
    """Whether the scenario uses the service's own failover, which moves all clients of a cluster."""
    client: str | None = None
    """Client library that the scenario is about, as ``--client`` names it."""

    def steps(self, source: random.Random) -> tuple[Step, ...]:
        return tuple(self.make_steps(source))


def _kill_primary(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.5)
    yield Kill(_PRIMARY)
    yield Phase(DURING)
    yield Move(_SECONDARY, FailoverKind.KILL)
    yield Confirmed(0.5 + _AWAY)
    yield Start(_PRIMARY)
    yield Phase(AFTER)


def _kill_each(source: random.Random) -> Iterator[Step]:
    first, second = source.uniform(0.1, 0.3), source.uniform(0.55, 0.75)
    yield Phase(BEFORE)
    yield Confirmed(first)
    yield Kill(_PRIMARY)
    yield Move(_SECONDARY, FailoverKind.KILL)
    yield Confirmed(first + _AWAY)
    yield Start(_PRIMARY)
    yield Confirmed(second)
    # Nobody fails over to a cluster that is only just coming back; one waits until it has caught up.
    yield CaughtUp(_PRIMARY, behind=_SECONDARY)
    yield Pause(source.uniform(*_SETTLING_SECONDS))
    yield Kill(_SECONDARY)
    yield Move(_PRIMARY, FailoverKind.KILL)
    yield Confirmed(second + _AWAY)
    yield Start(_SECONDARY)
    yield Phase(AFTER)


def _lost_disk(source: random.Random) -> Iterator[Step]:
    lost = source.uniform(0.3, 0.45)
    yield Phase(BEFORE)
    yield from _keeping_up(lost)
    yield LoseDisk(_PRIMARY)
    yield Phase(DURING)
    yield Move(_SECONDARY, FailoverKind.KILL)
    yield Confirmed(lost + _AWAY)
    yield Start(_PRIMARY)
    yield Confirmed(lost + 2 * _AWAY)
    yield CaughtUp(_PRIMARY, behind=_SECONDARY)
    yield Pause(source.uniform(*_SETTLING_SECONDS))
    yield Move(_PRIMARY, FailoverKind.MOVE)
    yield Confirmed(lost + 2 * _AWAY + 0.01)  # so that few messages are on their way when clients move
    yield Phase(AFTER)


def _partition(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield from _keeping_up(0.3)
    yield Phase(DURING)
    yield Disturb(_PRIMARY, _SECONDARY, CUT)
    yield Disturb(_SECONDARY, _PRIMARY, CUT)
    yield Confirmed(0.5)
    yield Move(_SECONDARY, FailoverKind.PARTITION)
    yield Confirmed(0.7)
    yield Disturb(_PRIMARY, _SECONDARY, HEALTHY)
    yield Disturb(_SECONDARY, _PRIMARY, HEALTHY)
    yield Phase(AFTER)


def _one_way_partition(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield from _keeping_up(0.3)
    yield Phase(DURING)
    yield Disturb(_PRIMARY, _SECONDARY, BLACK_HOLE)
    yield Confirmed(0.5)
    yield Move(_SECONDARY, FailoverKind.PARTITION)
    yield Confirmed(0.7)
    yield Disturb(_PRIMARY, _SECONDARY, HEALTHY)
    yield Phase(AFTER)


def _flap(source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.2)
    yield Phase(DURING)
    for _ in range(_FLAPS):
        for state in (CUT, HEALTHY):
            yield Disturb(_PRIMARY, _SECONDARY, state)
            yield Disturb(_SECONDARY, _PRIMARY, state)
            yield Pause(source.uniform(0.05, 0.5))
    yield Phase(AFTER)
    yield from _move_at_leisure(source, 0.7)


def _planned(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.5)
    yield FailOver(_SECONDARY, planned=True)
    yield Phase(AFTER)


def _failback(source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield from _keeping_up(0.3)
    yield Kill(_PRIMARY)
    yield Phase(DURING)
    yield FailOver(_SECONDARY, planned=False)
    yield Confirmed(0.3 + _AWAY)
    yield Start(_PRIMARY)
    yield Confirmed(0.7)
    yield CaughtUp(_PRIMARY, behind=_SECONDARY)
    yield Pause(source.uniform(*_SETTLING_SECONDS))
    yield FailOver(_PRIMARY, planned=True, back=True)
    yield Phase(AFTER)


def _failover_and_failback(_source: random.Random) -> Iterator[Step]:
    """Return the steps of a failover and a failback in which no worker is killed."""
    yield Phase(BEFORE)
    yield Confirmed(0.3)
    yield FailOver(_SECONDARY, planned=True)
    yield Phase(DURING)
    yield Confirmed(0.7)
    yield FailOver(_PRIMARY, planned=True, back=True)
    yield Phase(AFTER)


def _mesh_lose_one(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.35)
    yield Kill(_BYSTANDER)
    yield Phase(DURING)
    yield Confirmed(0.85)
    yield Phase(AFTER)
    yield Start(_BYSTANDER)


def _slow_link(source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.25)
    yield Disturb(_PRIMARY, _SECONDARY, _SLOW)
    yield Phase(DURING)
    yield Confirmed(0.55)
    yield Disturb(_PRIMARY, _SECONDARY, HEALTHY)
    yield Phase(AFTER)
    yield from _move_at_leisure(source, 0.7)


def _postgres_down(_source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield Confirmed(0.3)
    yield StopDatabases()
    yield Phase(DURING)
    yield Confirmed(0.6)
    yield Move(_SECONDARY, FailoverKind.MOVE)
    yield Confirmed(0.8)
    yield StartDatabases()
    yield Phase(AFTER)


def _move(source: random.Random) -> Iterator[Step]:
    yield Phase(BEFORE)
    yield from _move_at_leisure(source, 0.5)
    yield Phase(AFTER)


def _keeping_up(share: float) -> Iterator[Step]:
    """Wait until ``share`` of the messages is confirmed, and shortly before that, until the links keep up.

    A drill measures what a loss costs a pair that copies as fast as clients publish, not the start of the links.
    """
    yield Confirmed(share - _WARMING_SHARE)
    yield KeepUp(_SECONDARY, behind=_PRIMARY, room=share - _LAST_SHARE)
    yield Confirmed(share)


def _move_at_leisure(source: random.Random, share: float) -> Iterator[Step]:
    yield Confirmed(share)
    yield CaughtUp(_SECONDARY, behind=_PRIMARY)
    yield Pause(source.uniform(*_SETTLING_SECONDS))
    yield Move(_SECONDARY, FailoverKind.MOVE)


_KILLS: Final = frozenset({Requirement.OWN_WORKERS})
_FAULTS: Final = frozenset({Requirement.OWN_WORKERS, Requirement.LINK_FAULTS})

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("kill-primary", "the first cluster's worker is killed halfway, and comes back later",
                 _kill_primary, _KILLS),
        Scenario("kill-each", "both clusters' workers are killed, one after the other, at random moments",
                 _kill_each, _KILLS | {Requirement.LINK_BACK}),
        Scenario("lost-disk", "the first cluster's worker is killed and loses its disk; it starts on a new store",
                 _lost_disk, _KILLS | {Requirement.LINK_BACK, Requirement.OWN_STORES}),
        Scenario("partition", "the two clusters do not reach each other for a while; clients stay, then move",
                 _partition, _FAULTS),
        Scenario("one-way-partition", "the same from the first to the second cluster only, and in silence",
                 _one_way_partition, _FAULTS),
        Scenario("flap", "the links between the two are cut and come back many times; then clients move",
                 _flap, _FAULTS),
        Scenario("planned", "a planned failover: nothing lost, nothing repeated",
                 _planned, frozenset({Requirement.LINK_BACK}), moves_everybody=True),
        Scenario("failback", "the first cluster is killed, the second takes over; later a planned failback",
                 _failback, _KILLS | {Requirement.LINK_BACK}, moves_everybody=True),
        Scenario("mesh-lose-one", "a third cluster is killed; the other two go on as before",
                 _mesh_lose_one, _KILLS | {Requirement.THREE_CLUSTERS}, frozenset({OptionalCheck.SYNC_GOES_ON})),
        Scenario("slow-link", "the link to the second cluster is slow for a while; then clients move",
                 _slow_link, _FAULTS, frozenset({OptionalCheck.TRAFFIC_GOES_ON})),
        Scenario("postgres-down", "the workers' Postgres is stopped for a while, and clients move meanwhile",
                 _postgres_down, frozenset({Requirement.OWN_WORKERS, Requirement.DATABASES}),
                 frozenset({OptionalCheck.TRAFFIC_GOES_ON, OptionalCheck.DATABASES_BACK})),
        Scenario("move", "clients move with nothing broken and no cluster told", _move, frozenset()),
        Scenario("official-clients", "kill-primary, with Pulsar's official client as producers and consumers",
                 _kill_primary, _KILLS, client="pulsar"),
    )
}  # fmt: skip
ALL: Final = "all"
DEFAULT: Final = "kill-primary"

_AGAINST_RUNNING: Final = {
    "failback": Scenario("failback", "a planned failover, and a planned failback", _failover_and_failback,
                         frozenset({Requirement.LINK_BACK}), moves_everybody=True),
}  # fmt: skip


def find_scenario(name: str) -> Scenario:
    """Return the scenario ``name``. Raise :class:`DrillError`, which lists the names, if there is none."""
    try:
        return SCENARIOS[name]
    except KeyError:
        raise DrillError(f"--scenario {name!r} is not known; there are: {', '.join(SCENARIOS)}, {ALL}") from None


def against_running(scenario: Scenario) -> Scenario:
    """Return the scenario in a form for running workers, which it must not kill. Raise :class:`DrillError` if there
    is none."""
    usable = _AGAINST_RUNNING.get(scenario.name, scenario)
    if Requirement.OWN_WORKERS in usable.needs:
        allowed = [each.name for each in usable_against_running()]
        raise DrillError(
            f"--scenario {scenario.name} starts, stops or kills workers, and those of a running topology are left "
            f"alone; with --against there are: {', '.join(allowed)}"
        )
    return usable


def usable_against_running() -> list[Scenario]:
    """Return the scenarios that start, stop and kill no worker."""
    return [each for each in (SCENARIOS | _AGAINST_RUNNING).values() if Requirement.OWN_WORKERS not in each.needs]
