from __future__ import annotations

from typing import Any

import pytest

from replicator.pipeline.backfill.states import goals_of, lacking_states, missing_of, reset_since, topics_by_name

TOPIC = "persistent://shop/orders/new"


def topic(has: dict[str, str], *, clusters: list[str] | None = None, **replicated: bool) -> dict[str, Any]:
    return {
        "name": TOPIC,
        "clusters": clusters,
        "messages": 7,
        "has": {origin: {"incarnation": 5, "position": position} for origin, position in has.items()},
        "subscriptions": {name: {"replicated": each, "generation": 0} for name, each in replicated.items()},
    }


def state(*left: tuple[str, str], generation: int = 1, incarnation: int = 5, **parts: list[int]) -> dict[str, Any]:
    """A subscription of one origin, which has left these runs to consume."""
    acknowledged = {f"1:{entry[1:]}": indexes for entry, indexes in parts.items()}
    of_east = {"incarnation": incarnation, "beyond": [list(run) for run in left], "batches": acknowledged}
    return {"generation": generation, "unconsumed": {"east": of_east}}


def answer(high: str = "1:9", **subscriptions: dict[str, Any]) -> dict[str, Any]:
    return {"high_water": {"east": high}, "subscriptions": subscriptions}


def test_goals_are_what_the_link_brings_of_the_topics_that_it_carries() -> None:
    here = topics_by_name(
        {"topics": [topic({"east": "1:9", "south": "3:1", "west": "2:2"}, billing=True, audit=False)]}
    )
    goals = goals_of(here, {"east", "south"}, "west", lambda _: True)
    assert {origin: str(mark.position) for origin, mark in goals[TOPIC].marks.items()} == {
        "east": "1:9",
        "south": "3:1",
    }
    assert goals[TOPIC].replicated == ("billing",)
    assert not goals_of(here, {"east"}, "west", lambda _: False)
    assert not goals_of({TOPIC: topic({}, clusters=["north"])}, {"east"}, "west", lambda _: True)
    assert goals_of({TOPIC: topic({}, clusters=["west"])}, {"east"}, "west", lambda _: True)


def test_a_goal_is_reached_when_every_origin_is_there_as_far() -> None:
    goal = goals_of({TOPIC: topic({"east": "1:9", "south": "3:1"})}, {"east", "south"}, "west", lambda _: True)[TOPIC]
    assert missing_of(goal, topic({"east": "1:9", "south": "3:4"})) is None
    assert missing_of(goal, None) == "it has nothing of east, 1:9 is the last"
    assert missing_of(goal, topic({"east": "1:9"})) == "it has nothing of south, 3:1 is the last"
    assert missing_of(goal, topic({"east": "1:8", "south": "3:1"})) == "it has east up to 1:8 of 1:9"
    other = topic({"east": "1:9", "south": "3:1"})
    other["has"]["east"]["incarnation"] = 6
    assert missing_of(goal, other) == "it has another incarnation of what east published"


def test_a_state_is_there_when_nothing_is_left_there_that_was_acknowledged_here() -> None:
    here = answer(sub=state(("1:2", "1:3"), ("1:7", "1:9")))
    assert lacking_states(here, here) == {}
    assert lacking_states(here, answer(sub=state(("1:3", "1:3")))) == {}, "its own consumers work"
    assert lacking_states(here, answer(sub=state(("1:2", "1:4"), ("1:6", "1:9")))) == {
        "sub": "2 entries of east that are acknowledged at the source are not there"
    }


def test_messages_that_came_since_do_not_count() -> None:
    here = answer("1:9", sub=state(("1:7", "1:9")))
    assert lacking_states(here, answer("1:30", sub=state(("1:7", "1:30")))) == {}
    assert lacking_states(answer("1:9", sub=state()), answer("1:30", sub=state(("1:9", "1:30")))) == {
        "sub": "1 entries of east that are acknowledged at the source are not there"
    }


def test_parts_of_batches_count() -> None:
    here = answer(sub=state(("1:4", "1:4"), e4=[0, 2]))
    assert lacking_states(here, answer(sub=state(("1:4", "1:4"), e4=[0, 2]))) == {}
    assert lacking_states(here, answer(sub=state(("1:4", "1:4"), e4=[0, 1, 2]))) == {}
    assert lacking_states(here, answer(sub=state())) == {}, "all of it was acknowledged there"
    for less in ([0], []):
        assert "1 entries of east" in lacking_states(here, answer(sub=state(("1:4", "1:4"), e4=less)))["sub"]


def test_a_subscription_that_is_not_there_or_older_is_lacking_and_a_newer_one_is_not() -> None:
    here = answer(sub=state(generation=3))
    assert lacking_states(here, None) == {"sub": "it is not there yet"}
    assert lacking_states(here, answer()) == {"sub": "it is not there yet"}
    assert lacking_states(here, answer(sub=state(generation=2))) == {"sub": "it has generation 2 of 3"}
    assert lacking_states(here, answer(sub=state(("1:0", "1:9"), generation=4))) == {}
    assert "another incarnation" in lacking_states(here, answer(sub=state(generation=3, incarnation=6)))["sub"]


def test_messages_that_the_source_does_not_have_are_not_its_business() -> None:
    there = answer(sub=state())
    there["subscriptions"]["sub"]["unconsumed"]["west"] = {"incarnation": 1, "beyond": [["4:0", "4:9"]], "batches": {}}
    assert lacking_states(answer(sub=state()), there) == {}


def test_a_seek_at_the_source_is_noticed() -> None:
    assert not reset_since(answer(sub=state()), answer(sub=state(("1:0", "1:1")), more=state()))
    assert reset_since(answer(sub=state()), answer(sub=state(generation=2)))
    assert reset_since(answer(sub=state()), answer())


def test_a_run_over_two_ledgers_is_refused() -> None:
    with pytest.raises(ValueError, match="1:4 to 2:1 is acknowledged, which is not a range"):
        lacking_states(answer(sub=state()), answer(sub=state(("1:4", "2:1"))))


def test_what_is_left_there_of_an_earlier_life_is_not_the_sources_business() -> None:
    here = answer("2000:9", sub=state(("2000:7", "2000:9"), incarnation=1000))
    there = state(("5:0", "5:9"), ("2000:8", "2000:9"), incarnation=1000)
    assert lacking_states(here, answer("2000:9", sub=there)) == {}
    there = state(("5:0", "5:9"), ("2000:6", "2000:9"), incarnation=1000)
    assert "1 entries of east" in lacking_states(here, answer("2000:9", sub=there))["sub"]


def test_what_the_source_acknowledged_of_an_earlier_life_is_awaited_there() -> None:
    ours = state(("5:8", "5:8"), ("2000:7", "2000:9"), incarnation=1000)
    ours["vector"] = {"east": {"ranges": [["5:1", "5:6"]], "beyond": [["6:0", "6:9"]], "batches": {"5:8": [0]}}}
    ours["unconsumed"]["east"]["batches"] = {"5:8": [0]}
    here = answer("2000:9", sub=ours)
    there = state(("5:0", "5:9"), ("2000:8", "2000:9"), incarnation=1000)
    assert "6 entries of east" in lacking_states(here, answer("2000:9", sub=there))["sub"]
    there["unconsumed"]["east"] = {"incarnation": 1000, "beyond": [["5:0", "5:1"], ["5:7", "5:9"]], "batches": {}}
    assert "1 entries of east" in lacking_states(here, answer("2000:9", sub=there))["sub"]
    there["unconsumed"]["east"]["batches"] = {"5:8": [0]}
    assert lacking_states(here, answer("2000:9", sub=there)) == {}


def test_messages_of_an_earlier_life_that_the_destination_lacks_keep_the_goal_from_being_reached() -> None:
    here = topic({"east": "1:9"}) | {"earlier": {"east": ["0:7"], "west": ["0:1"]}}
    goal = goals_of({TOPIC: here}, {"east"}, "west", lambda _: True)[TOPIC]
    assert goal.earlier == {"east": ["0:7"]}
    lacks = topic({"east": "1:9"}) | {"lacks": {"east": ["0:7"]}}
    missing = "it lacks messages of east that belong to an earlier life, or that a reclaim put back, up to 0:7"
    assert missing_of(goal, lacks) == missing
    assert missing_of(goal, topic({"east": "1:9"})) is None
