"""Scenarios are values: what they break they repair, and they say what they need."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from replicator.drills.errors import DrillError, NoPair
from replicator.drills.scenarios.cast import Cast, choose_cast
from replicator.drills.scenarios.catalog import (
    SCENARIOS,
    Requirement,
    Scenario,
    against_running,
    find_scenario,
    usable_against_running,
)
from replicator.drills.scenarios.operator import KEPT_UP_SECONDS, KeepingUp
from replicator.drills.scenarios.steps import (
    Confirmed,
    Disturb,
    FailOver,
    Kill,
    LoseDisk,
    Move,
    Phase,
    Role,
    Start,
    StartDatabases,
    Step,
    StopDatabases,
    room_before,
)
from replicator.topology import Cluster, Link, Topology
from snapshots.position import Position

EVERY = [*SCENARIOS.values(), against_running(SCENARIOS["failback"])]


def steps_of(scenario: Scenario, seed: int = 1) -> tuple[Step, ...]:
    return scenario.steps(random.Random(seed))


@pytest.mark.parametrize("scenario", EVERY, ids=lambda each: each.name)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_broken_is_repaired_before_the_end(scenario: Scenario, seed: int) -> None:
    killed: set[Role] = set()
    disturbed: set[tuple[Role, Role]] = set()
    databases = True
    clients = Role.PRIMARY
    share = 0.0
    for step in steps_of(scenario, seed):
        match step:
            case Confirmed(to):
                assert share < to <= 1
                share = to
            case Kill(role) | LoseDisk(role):
                assert role not in killed
                killed.add(role)
            case Start(role):
                killed.remove(role)
            case Disturb(source, destination, fault):
                link = (source, destination)
                assert (fault.breaks or bool(fault.delay_ms)) != (link in disturbed)
                disturbed ^= {link}
            case Move(to) | FailOver(to):
                assert to not in killed | {clients}
                clients = to
            case StopDatabases():
                assert databases
                databases = False
            case StartDatabases():
                assert not databases
                databases = True
    assert (killed, disturbed, databases) == (set(), set(), True)


@pytest.mark.parametrize("scenario", EVERY, ids=lambda each: each.name)
def test_a_scenario_says_what_its_steps_need(scenario: Scenario) -> None:
    steps = steps_of(scenario)
    kinds = {type(step) for step in steps}
    roles = {role for step in steps for role in (getattr(step, "role", None), getattr(step, "to", None))}
    assert (Requirement.OWN_WORKERS in scenario.needs) == bool(kinds & {Kill, LoseDisk, Start, Disturb, StopDatabases})
    assert (Requirement.LINK_FAULTS in scenario.needs) == (Disturb in kinds)
    assert (Requirement.DATABASES in scenario.needs) == (StopDatabases in kinds)
    assert (Requirement.OWN_STORES in scenario.needs) == (LoseDisk in kinds)
    assert (Requirement.THREE_CLUSTERS in scenario.needs) == (Role.BYSTANDER in roles)
    assert scenario.moves_everybody == (FailOver in kinds)
    moves_back = any(getattr(step, "to", None) is Role.PRIMARY for step in steps)
    assert Requirement.LINK_BACK in scenario.needs or not moves_back
    names = [step.name for step in steps if isinstance(step, Phase)]
    assert names[0] == "before"
    assert not scenario.judged or "during" in names or scenario.name == "move"


@pytest.mark.parametrize("scenario", EVERY, ids=lambda each: each.name)
def test_the_publisher_never_overtakes_the_operator_and_never_keeps_a_step_waiting(scenario: Scenario) -> None:
    steps = steps_of(scenario)
    room = room_before(steps)
    assert room == sorted(room)
    assert room[-1] < 1
    for step, share in zip(steps, room, strict=True):
        assert not isinstance(step, Confirmed) or share == step.share
    moves = [index for index, step in enumerate(steps) if isinstance(step, Move | FailOver)]
    assert all(room[index] < 1 for index in moves)


def test_the_same_seed_makes_the_same_steps_and_another_one_others() -> None:
    for name in ("kill-each", "flap"):
        scenario = SCENARIOS[name]
        assert steps_of(scenario, 1) == steps_of(scenario, 1)
        assert steps_of(scenario, 1) != steps_of(scenario, 2)


def test_an_unknown_scenario_is_answered_with_the_names() -> None:
    with pytest.raises(DrillError, match=r"'earthquake' is not known; there are: kill-primary, .*, all"):
        find_scenario("earthquake")


def test_against_a_running_topology_only_what_kills_nobody_is_allowed() -> None:
    assert [each.name for each in usable_against_running()] == ["planned", "failback", "move"]
    for name in ("planned", "failback", "move"):
        assert not any(isinstance(step, Kill) for step in steps_of(against_running(SCENARIOS[name])))
    for name in SCENARIOS.keys() - {"planned", "failback", "move"}:
        with pytest.raises(DrillError, match=f"--scenario {name} starts, stops or kills workers"):
            against_running(SCENARIOS[name])


def topology(names: str, *links: str) -> Topology:
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}"})
        for n, name in enumerate(names)
    )
    return Topology(clusters, tuple(Link(*link) for link in links), path=Path("regions.yaml"))


TOPIC = "persistent://public/drill/t"


def test_a_pair_that_is_linked_both_ways_is_taken_before_one_that_is_not() -> None:
    plain = SCENARIOS["kill-primary"]
    assert choose_cast(topology("abc", "ab", "bc", "cb"), plain) == Cast("b", "c", None, True)
    assert choose_cast(topology("abc", "bc", "ab"), plain) == Cast("a", "b", None, False)
    assert choose_cast(topology("abc", "ab", "ba", "ac", "ca", "bc", "cb"), plain) == Cast("a", "b", "c", True)


def test_links_that_do_not_carry_the_drills_topic_count_for_nothing() -> None:
    filtered = topology("abc", "ab", "ba", "bc", "cb")
    links = tuple(Link(link.source, link.destination, topics=("other/.*",)) for link in filtered.links[:2])
    cast = choose_cast(Topology(filtered.clusters, links + filtered.links[2:]), SCENARIOS["kill-primary"], TOPIC)
    assert cast.pair == ("b", "c")


@pytest.mark.parametrize(
    ("scenario", "clusters", "links", "missing"),
    [
        ("kill-primary", "ab", (), "no two clusters are linked"),
        ("kill-each", "ab", ("ab",), "linked both ways"),
        ("mesh-lose-one", "abc", ("ab", "ba", "bc", "cb"), "no three clusters are all linked"),
    ],
)
def test_a_topology_without_what_is_needed_is_refused_in_one_line(
    scenario: str, clusters: str, links: tuple[str, ...], missing: str
) -> None:
    with pytest.raises(NoPair, match=rf"regions.yaml: links: .*{missing}"):
        choose_cast(topology(clusters, *links), SCENARIOS[scenario])


@pytest.mark.parametrize(("lag", "keeps_up"), [(0.0, True), (0.4, True), (0.7, False), (5.0, False)])
def test_a_cluster_keeps_up_while_it_has_what_was_published_half_a_second_ago(lag: float, keeps_up: bool) -> None:
    keeping = KeepingUp()
    kept = 0.0
    for tenth in range(1, 61):
        now = tenth / 10

        def published(at: float) -> Position:
            return Position(1, int(max(at, 0.0) * 1_000))

        kept = keeping.look(now, [published(now), Position(2, 7)], [published(now - lag), Position(2, 7)])
    assert (kept >= KEPT_UP_SECONDS) == keeps_up
    assert keeping.look(6.1, [published(6.1), Position(2, 7)], [published(4.0), Position(2, 7)]) == 0.0
