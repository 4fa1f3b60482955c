"""The parts of random histories that need no cluster: drawing, judging and shrinking."""

from __future__ import annotations

import random

import pytest
from histories.model import SHAPES, Model, Violation
from histories.shrink import shrunk
from histories.steps import KINDS, Step, describe, draw, possible


def followed(model: Model, step: Step) -> None:
    """Tell the model what clusters without a fault would do."""
    given = step.arguments
    at = given.get("at", "")
    if step.name == "publish":
        uids = [f"{at}{len(model.topic(given['topic']).sent)}-{number}" for number in range(given["count"])]
        for uid in uids:
            model.sending(given["topic"], at, uid)
        model.confirmed(given["topic"], uids)
    elif step.name == "subscribe":
        model.subscribed(
            given["topic"], given["name"], at, replicated=given["name"].startswith("r-"), earliest=given["earliest"]
        )
    elif step.name in ("stop", "kill", "publish_and_kill"):
        model.down.add(at)
    elif step.name == "start":
        model.down.discard(at)
    elif step.name == "pause":
        model.paused.add((given["source"], given["to"]))
    elif step.name == "resume":
        model.paused.discard((given["source"], given["to"]))
    elif step.name in ("fail_over", "fail_over_dead"):
        model.failed_over(given["source"], given["to"], planned=step.name == "fail_over")
    elif step.name == "fail_back":
        model.failed_back(given["to"])
    elif step.name == "retain_nothing":
        model.trims(given["topic"])
    elif step.name == "delete_topic":
        model.topic_deleted(given["topic"], at)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_kind_of_step_is_drawn_and_only_where_it_is_possible(shape: object) -> None:
    drawn, seen = random.Random(1), set()
    for _ in range(60):
        model = Model(shape, deduplication=True)  # type: ignore[arg-type]
        for _ in range(60):
            step = draw(drawn, model, slow=True, deletes=True)
            assert possible(step, model), step
            followed(model, step)
            seen.add(step.name)
    rare = {"lose_disk"}  # only where links lead both ways between all clusters
    assert set(KINDS) - seen <= rare


def a_pair() -> Model:
    """Return a model in which b has a replicated subscription, and a sent two messages since."""
    model = Model(SHAPES["pair"])
    model.subscribed("t0", "r-shared", "b", replicated=True, earliest=True)
    for uid in ("a1", "a2"):
        model.sending("t0", "a", uid)
    model.confirmed("t0", ["a1", "a2"])
    return model


def test_a_confirmed_message_must_come_and_an_unconfirmed_one_may() -> None:
    model = a_pair()
    model.sending("t0", "a", "a3")
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    assert model.missing(subscription, "b", ["a2"]) == ["a1"]
    model.judge_delivery(subscription, "b", "a3")
    with pytest.raises(Violation, match="which nobody sent"):
        model.judge_delivery(subscription, "b", "a4")


def test_what_was_acknowledged_must_not_come_again_where_that_is_known() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.acknowledged(subscription, "b", {"a1"})
    model.judge_delivery(subscription, "a", "a1")  # nobody has told a yet
    with pytest.raises(Violation, match="again"):
        model.judge_delivery(subscription, "b", "a1")
    model.settled()
    with pytest.raises(Violation, match="again"):
        model.judge_delivery(subscription, "a", "a1")
    model.sought(subscription, "b", earliest=True)
    model.judge_delivery(subscription, "b", "a1")
    assert model.missing(subscription, "b", []) == ["a1", "a2"]


def test_one_way_links_tell_one_side_only() -> None:
    model = Model(SHAPES["one-way"])
    subscription = model.subscribed("t0", "r-shared", "b", replicated=True, earliest=True)
    model.sending("t0", "a", "a1")
    model.confirmed("t0", ["a1"])
    model.acknowledged(subscription, "b", {"a1"})
    model.settled()
    model.judge_delivery(subscription, "a", "a1")


def test_a_session_gets_each_message_once_and_each_origin_in_order() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.judge_session(subscription, "b", ["a1", "a2"], redelivered=False)
    with pytest.raises(Violation, match="sent later"):
        model.judge_session(subscription, "b", ["a2", "a1"], redelivered=False)
    with pytest.raises(Violation, match="twice"):
        model.judge_session(subscription, "b", ["a1", "a1"], redelivered=False)


def test_across_clusters_a_duplicate_must_be_known_and_in_one_cluster_the_sequence_id_decides() -> None:
    model = Model(SHAPES["pair"], deduplication=True)
    model.sending("named", "a", "orders-5")
    model.confirmed("named", ["orders-5"])
    model.stored("a", "orders", 5)
    model.judge_duplicate("named", "b", "orders", 5, "orders-5")
    model.sending("named", "b", "orders-5-other")
    model.judge_duplicate("named", "a", "orders", 5, "orders-5-other")
    with pytest.raises(Violation, match="no cluster has it"):
        model.judge_duplicate("named", "b", "orders", 5, "orders-5-other")


def test_shrinking_leaves_the_steps_that_are_needed() -> None:
    steps = [Step("publish", {"number": number}) for number in range(40)]

    def fails(fewer: list[Step]) -> bool:
        numbers = [step.arguments["number"] for step in fewer]
        return 7 in numbers and 31 in numbers and numbers.index(7) < numbers.index(31)

    assert [step.arguments["number"] for step in shrunk(steps, fails)] == [7, 31]


def test_a_history_is_shown_as_a_program() -> None:
    shown = describe(SHAPES["pair"], [Step("pause", {"source": "a", "to": "b"})], deduplication=True)
    assert shown.splitlines() == [
        'async with history(SHAPES["pair"], deduplication=True) as world:',
        "    await world.pause(source='a', to='b')",
        "    await world.finish()",
    ]
