"""The parts of random histories that need no cluster: drawing, judging and shrinking."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from histories import __main__ as commands
from histories.drawing import KINDS, MEANWHILE_PLANNED, WHILE_RECLAIMING, draw
from histories.edits import WHOLE_PASS, Edit
from histories.judging import Violation
from histories.known import KNOWN
from histories.model import Model
from histories.pauses import POINTS
from histories.reverts import REVERTS
from histories.running import PATIENCE_ALONE, History, Outcome, drawn_history, settled_alone
from histories.shapes import SHAPES
from histories.shrink import failure_kind, shrunk
from histories.steps import NAMED, Step, describe, possible
from histories.watch import LOOK_SECONDS, PATIENCE, STILL_LOOKS, Late, Watch, cpu_seconds

ROOT = Path(__file__).parents[2]


def followed(model: Model, step: Step) -> None:
    """Tell the model what clusters without a fault would do."""
    given = step.arguments
    at = given.get("at", "")
    if step.name == "publish":
        uids = [f"{at}{len(model.topic(given['topic']).sent)}-{number}" for number in range(given["count"])]
        for uid in uids:
            model.sending(given["topic"], at, uid)
        model.confirmed(given["topic"], uids)
    elif step.name == "publish_named":
        for number in range(given["first"], given["first"] + given["count"]):
            uid = f"{given['producer']}-{number}-{given['content']}"
            if uid not in model.topic(NAMED).sent:
                model.sending(NAMED, at, uid, delayed=True)
            model.confirmed(NAMED, [uid], at)
    elif step.name == "subscribe":
        model.subscribed(
            given["topic"], given["name"], at, replicated=given["name"].startswith("r-"), earliest=given["earliest"]
        )
    elif step.name == "subscribe_at":
        sent = list(model.topic(given["topic"]).sent)
        number = given["place"] % len(sent) if sent else 0
        model.subscribed_at(
            given["topic"],
            given["name"],
            at,
            replicated=given["name"].startswith("r-"),
            before=sent[:number],
            behind=sent[number:],
        )
    elif step.name in ("stop", "kill", "publish_and_kill"):
        model.down.add(at)
    elif step.name == "start":
        model.down.discard(at)
    elif step.name == "subscribe_apart":
        for cluster, earliest in ((at, True), (given["other"], False)):
            model.subscribed(given["topic"], given["name"], cluster, replicated=True, earliest=earliest)
    elif step.name == "join":
        model.joined()
    elif step.name == "grow":
        model.partitions = given["to"]
    elif step.name == "drop_link":
        model.dropped.add((given["source"], given["to"]))
        model.paused.add((given["source"], given["to"]))
    elif step.name in ("lose_disk", "restore"):
        model.disk_lost(at)
    elif step.name == "back_up":
        model.backed_up.add(at)
    elif step.name == "postgres_away":
        model.without_postgres.add(at)
    elif step.name == "postgres_back":
        model.without_postgres.discard(at)
    elif step.name in ("settle", "settle_anew") and not model.down and not model.paused:
        model.settled()
    elif step.name == "pause":
        model.paused.add((given["source"], given["to"]))
    elif step.name == "resume":
        model.paused.discard((given["source"], given["to"]))
        model.dropped.discard((given["source"], given["to"]))
    elif step.name in ("fail_over", "fail_over_dead"):
        model.failed_over(given["source"], given["to"], planned=step.name == "fail_over")
    elif step.name == "fail_back":
        model.failed_back(given["to"])
    elif step.name == "retain_nothing":
        model.trims(given["topic"])
    elif step.name == "retain_again":
        model.keeps(given["topic"])
    elif step.name == "set_ttl":
        model.ages(given["topic"], may=given["seconds"] == 1)
    elif step.name == "delete_topic":
        model.topic_deleted(given["topic"], at)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_kind_of_step_is_drawn_and_only_where_it_is_possible(shape: object) -> None:
    drawn, seen = random.Random(1), set()
    for _ in range(60):
        model = Model(shape, deduplication=True, joins=True)  # type: ignore[arg-type]
        for _ in range(60):
            step = draw(drawn, model, slow=True, deletes=True)
            assert possible(step, model), step
            followed(model, step)
            seen.add(step.name)
    rare = {"lose_disk", "restore", "reclaim_while_trimming"}
    """Only where links lead both ways between all clusters."""
    two_ways = {"back_up", "subscribe_apart", "unsubscribe_in_use"}
    """Only where links lead both ways between two clusters."""
    joins = {"join"}
    """Only where another cluster can join."""
    assert set(KINDS) - seen <= rare | two_ways | joins


@pytest.mark.parametrize("name", KNOWN)
def test_no_step_of_a_known_sequence_is_left_out_because_it_is_not_possible(name: str) -> None:
    history = KNOWN[name]
    model = Model(history.shape, deduplication=history.deduplication, joins=history.joins)
    for step in history.steps or ():
        assert possible(step, model), step
        followed(model, step)


def test_each_fix_that_can_be_taken_back_has_a_known_sequence_of_its_name() -> None:
    assert REVERTS.keys() - KNOWN.keys() == set(), "write one that fails with `--known --revert NAME`, and only then"


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
    model.sought(subscription, "b", after=0)
    model.judge_delivery(subscription, "b", "a1")
    assert model.missing(subscription, "b", []) == ["a1", "a2"]


def test_after_a_reset_to_a_time_what_was_sent_later_must_come_again_and_the_rest_may() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.settled()
    model.acknowledged(subscription, "b", {"a1", "a2"})
    model.sending("t0", "a", "a3")
    model.confirmed("t0", ["a3"])  # b perhaps has it not yet
    model.sought(subscription, "b", after=1)
    assert model.missing(subscription, "b", []) == ["a2", "a3"]
    for uid in ("a1", "a2", "a3"):
        model.judge_delivery(subscription, "b", uid)
    model.acknowledged(subscription, "b", {"a2"})
    model.sought(subscription, "b", after=3)
    assert model.missing(subscription, "b", []) == []


def test_one_way_links_tell_one_side_only() -> None:
    model = Model(SHAPES["one-way"])
    subscription = model.subscribed("t0", "r-shared", "b", replicated=True, earliest=True)
    model.sending("t0", "a", "a1")
    model.confirmed("t0", ["a1"])
    model.acknowledged(subscription, "b", {"a1"})
    model.settled()
    model.judge_delivery(subscription, "a", "a1")


@pytest.mark.parametrize("replicated", [False, True])
def test_a_subscription_that_begins_at_a_message_gets_what_is_behind_it_there_or_comes_later(replicated: bool) -> None:
    model = Model(SHAPES["pair"])
    for uid in ("a1", "a2", "a3", "b1", "b2"):
        model.sending("t0", uid[0], uid, chunked=uid == "a3")
        model.confirmed("t0", [uid])
    # At a, b2 is still missing.
    model.subscribed_at("t0", "x", "a", replicated=replicated, before={"a1"}, behind={"b1", "a2", "a3"})
    subscription = model.find("t0", "x", "a", replicated=replicated)
    assert subscription is not None
    assert model.missing(subscription, "a", []) == ["a2", "b1", "b2"], "a place may be in the middle of a3"
    model.judge_delivery(subscription, "a", "a3")
    if replicated:
        model.judge_delivery(subscription, "a", "a1")
        assert model.missing(subscription, "b", []) == ["a2", "b1", "b2"]
    else:
        with pytest.raises(Violation, match="again"):
            model.judge_delivery(subscription, "a", "a1")


def test_the_place_of_a_subscription_says_nothing_at_other_clusters_of_origins_that_it_does_not_know() -> None:
    model = Model(SHAPES["mesh"])
    for uid in ("a1", "b1"):
        model.sending("t0", uid[0], uid)
        model.confirmed("t0", [uid])
    model.subscribed_at("t0", "x", "a", replicated=True, before=(), behind={"a1"})
    subscription = model.find("t0", "x", "a", replicated=True)
    assert subscription is not None
    assert model.missing(subscription, "a", []) == ["a1", "b1"]
    assert model.missing(subscription, "c", []) == ["a1"]


def test_a_session_gets_each_message_once_and_each_origin_in_order() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.judge_session(subscription, "b", ["a1", "a2"], redelivered=False)
    with pytest.raises(Violation, match="sent later"):
        model.judge_session(subscription, "b", ["a2", "a1"], redelivered=False)
    with pytest.raises(Violation, match="twice"):
        model.judge_session(subscription, "b", ["a1", "a1"], redelivered=False)


def test_a_seek_at_another_cluster_may_put_a_connected_consumer_back() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.sought(subscription, "a", after=0)
    model.judge_session(subscription, "b", ["a2", "a1", "a2"], redelivered=False)
    with pytest.raises(Violation, match="twice"):
        model.judge_session(subscription, "a", ["a1", "a1"], redelivered=False)
    model.settled()
    with pytest.raises(Violation, match="sent later"):
        model.judge_session(subscription, "b", ["a2", "a1"], redelivered=False)


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


def test_a_gap_needs_a_cause_and_markers_alone_are_none() -> None:
    model = a_pair()
    with pytest.raises(Violation, match="lost and deleted nothing"):
        model.judge_gap("t0", "a", "made-anew")
    model.topic_deleted("t0", "b")  # which published nothing there
    with pytest.raises(Violation, match="lost and deleted nothing"):
        model.judge_gap("t0", "b", "lost-data")
    model.topic_deleted("t0", "a")
    model.judge_gap("t0", "a", "made-anew")


def test_what_was_copied_before_its_origin_deleted_the_topic_still_comes_elsewhere() -> None:
    model = a_pair()
    model.settled()
    model.sending("t0", "a", "a3")
    model.confirmed("t0", ["a3"])
    model.topic_deleted("t0", "a")
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    assert model.missing(subscription, "b", []) == ["a1", "a2"]
    with pytest.raises(Violation, match="does not get a1, a2"):
        model.judge_read("t0", "b", [])
    model.judge_read("t0", "a", [])


def test_after_a_lost_disk_messages_of_others_come_by_links_and_own_ones_are_there_at_once() -> None:
    model = a_pair()
    model.sending("t0", "b", "b1")
    model.confirmed("t0", ["b1"])
    model.settled()
    model.disk_lost("a")
    with pytest.raises(Violation, match="does not get a1, a2"):
        model.judge_read("t0", "a", [])
    model.judge_read("t0", "a", ["a1", "a2"])
    model.settled()
    with pytest.raises(Violation, match="does not get b1"):
        model.judge_read("t0", "a", ["a1", "a2"])


@pytest.mark.parametrize(("shape", "unreadable"), [("pair", None), ("mesh", None), ("mesh", "c")])
def test_what_only_a_cluster_had_that_deleted_the_topic_need_not_come_back_to_one_that_lost_its_disk(
    shape: str, unreadable: str | None
) -> None:
    model = Model(SHAPES[shape])
    subscription = model.subscribed("t0", "r-shared", "a", replicated=True, earliest=True)
    for uid in ("a1", "b1"):
        model.sending("t0", uid[0], uid)
        model.confirmed("t0", [uid])
    model.settled()
    model.disk_lost("a", unreadable=unreadable)
    assert model.missing(subscription, "a", []) == ["a1", "b1"]
    model.topic_deleted("t0", "b")
    model.disk_lost("a", unreadable=unreadable)
    others_have_it = shape == "mesh" and unreadable is None
    assert model.missing(subscription, "a", []) == (["a1"] if others_have_it else []), "no link carries b1 to a"


def test_in_the_middle_of_failovers_and_reclaims_all_events_are_drawn_with_what_they_need() -> None:
    drawn, model = random.Random(1), Model(SHAPES["mesh"])
    assert {draws(drawn, model).get("meanwhile") for draws in (_failover, _lost) for _ in range(200)} <= {
        None, "command", "target", "source", "kill", "kill_other"
    }, "without a topic, nothing happens to one"  # fmt: skip
    model.sending("t0", "a", "a1")
    seen: dict[str, set[str | None]] = {}
    for name, draws in {"failover": _failover, "lost": _lost}.items():
        for _ in range(300):
            given = draws(drawn, model)
            seen.setdefault(name, set()).add(meanwhile := given["meanwhile"])
            assert ("topic" in given) == str(meanwhile).startswith(("trim", "delete_topic"))
            assert given.get("other") != given.get("at", "")
    assert seen["failover"] == set(MEANWHILE_PLANNED)
    assert seen["lost"] == {*WHILE_RECLAIMING, "kill"}


def _failover(drawn: random.Random, model: Model) -> dict[str, Any]:
    return KINDS["fail_over"].draw(drawn, model) or {}


def _lost(drawn: random.Random, model: Model) -> dict[str, Any]:
    return KINDS["lose_disk"].draw(drawn, model) or {}


def test_a_dry_run_must_not_hide_what_a_paused_link_holds_back() -> None:
    model = a_pair()
    model.paused.add(("a", "b"))
    model.judge_dry_run("a", "b", 0)
    model.sending("t0", "a", "a3")
    model.confirmed("t0", ["a3"])
    model.judge_dry_run("a", "b", None)
    with pytest.raises(Violation, match="lacks messages"):
        model.judge_dry_run("a", "b", 0)


def test_a_request_that_stands_still_while_no_worker_works_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histories.watch.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("histories.watch.LATE_SECONDS", 10.0)
    monkeypatch.setattr("histories.watch.cpu_seconds", lambda _: {1: 1.0})
    monkeypatch.setattr("histories.watch._waits_for_disks", lambda: False)

    async def main() -> None:
        watch = Watch(list)
        assert await watch.ended(asyncio.sleep(0, "answer"), "asking") == "answer"
        with pytest.raises(Violation, match="publishing stands still"):
            await watch.ended(asyncio.get_running_loop().create_future(), "publishing")

    asyncio.run(main())


def test_a_request_may_take_its_time_while_a_worker_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histories.watch.LOOK_SECONDS", 0.01)
    used = itertools.count(1)
    monkeypatch.setattr("histories.watch.cpu_seconds", lambda _: {1: 1.0, 2: float(next(used))})

    async def main() -> None:
        assert await Watch(list).ended(asyncio.sleep(3 * STILL_LOOKS * 0.01, "answer"), "asking") == "answer"

    asyncio.run(main())


def test_a_request_that_takes_too_long_while_workers_work_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histories.watch.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("histories.watch.REQUEST_SECONDS", 0.02)
    used = itertools.count(1)
    monkeypatch.setattr("histories.watch.cpu_seconds", lambda _: {1: float(next(used))})

    async def main() -> None:
        with pytest.raises(Late, match="publishing did not end"):
            await Watch(list).ended(asyncio.get_running_loop().create_future(), "publishing")
        PATIENCE.set(1e6)
        assert await Watch(list).ended(asyncio.sleep(0.05, "answer"), "publishing") == "answer"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("late_seconds", "used", "waits", "busy"),
    [(10.0, 0.0, False, False), (10.0, 1.0, False, True), (10.0, 0.0, True, True), (-1.0, 0.0, False, True)],
    ids=["nothing moves", "a worker works", "a process waits for a disk", "the look itself is late"],
)
def test_a_machine_is_busy_where_a_worker_works_or_waits_for_a_disk_or_a_look_is_late(
    monkeypatch: pytest.MonkeyPatch, late_seconds: float, used: float, waits: bool, busy: bool
) -> None:
    times = itertools.count()
    monkeypatch.setattr("histories.watch.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("histories.watch.LATE_SECONDS", late_seconds)
    monkeypatch.setattr("histories.watch.cpu_seconds", lambda _: {1: used * next(times)})
    monkeypatch.setattr("histories.watch._waits_for_disks", lambda: waits)
    assert asyncio.run(Watch(list).is_busy()) == busy


def test_a_history_that_was_late_runs_once_more_alone_to_its_end_and_other_findings_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = drawn_history(1)
    step = Step("settle", {})
    ran = []

    def run(histories: list[History], *_: object, patience: float) -> list[Outcome]:
        ran.append((histories, patience))
        return [Outcome((step,), "", {})]

    monkeypatch.setattr("histories.running.run", run)
    found = Outcome((step,), "it lost a message", {})
    assert settled_alone(history, found, "", 60) is found
    assert not ran
    again = settled_alone(history, Outcome((step,), "it took too long", {}, late=True), "", 60)
    assert (again.failure, again.late) == ("", True)
    assert ran == [([history], PATIENCE_ALONE)], "all its steps, and not only those before the limit"


def test_a_message_in_chunks_may_be_cut_where_its_origin_deleted_it_before_it_was_surely_copied() -> None:
    for is_copied in (False, True):
        model = Model(SHAPES["pair"])
        model.sending("t0", "b", "b1", chunked=True)
        model.confirmed("t0", ["b1"])
        if is_copied:
            model.settled()
        assert not model.may_be_cut("t0")
        model.topic_deleted("t0", "b")
        assert model.may_be_cut("t0") == (not is_copied)


def test_while_a_link_is_dropped_a_subscription_begins_where_it_is_made_for_origins_that_others_do_not_know() -> None:
    model = Model(SHAPES["one-way"])
    for uid in ("a1", "b1"):
        model.sending("t0", uid[0], uid)
        model.confirmed("t0", [uid])
    subscription = model.subscribed("t0", "r-shared", "a", replicated=True, earliest=True)
    model.dropped.add(("a", "b"))
    model.subscribed("t0", "r-shared", "b", replicated=True, earliest=False)
    assert model.missing(subscription, "b", []) == []


@pytest.mark.parametrize("told", [False, True])
def test_a_cluster_that_was_perhaps_not_told_may_begin_where_others_cannot_say_a_start(told: bool) -> None:
    model = Model(SHAPES["one-way"])
    for uid in ("a1", "b1"):
        model.sending("t0", uid[0], uid)
        model.confirmed("t0", [uid])
    subscription = model.subscribed("t0", "r-shared", "a", replicated=True, earliest=True)
    if told:
        subscription.clusters.add("b")
    model.subscribed("t0", "r-shared", "b", replicated=True, earliest=False)
    assert model.missing(subscription, "b", []) == (["a1", "b1"] if told else ["a1"])


def test_a_seek_to_the_first_message_brings_back_only_what_retention_surely_kept() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.settled()
    model.trims("t0")
    model.acknowledged(subscription, "b", {"a1"})
    model.sought(subscription, "b", after=0)
    assert model.missing(subscription, "b", []) == ["a2"]
    model.judge_delivery(subscription, "b", "a1")  # it may come


def test_once_retention_keeps_messages_again_later_ones_must_stay_and_earlier_ones_may_be_gone() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.settled()
    model.trims("t0")
    model.acknowledged(subscription, "b", {"a1"})
    model.keeps("t0")
    model.sending("t0", "a", "a3")
    model.confirmed("t0", ["a3"])
    model.settled()
    model.acknowledged(subscription, "b", {"a3"})
    model.sought(subscription, "b", after=0)
    assert model.missing(subscription, "b", []) == ["a2", "a3"], "nobody consumed a2"
    another = model.subscribed("t0", "r-keys", "b", replicated=True, earliest=True)
    assert model.missing(another, "b", []) == ["a3"]
    with pytest.raises(Violation, match="does not get a3"):
        model.judge_read("t0", "b", [])
    model.trims("t0")
    model.acknowledged(subscription, "b", {"a1", "a2"})
    assert model.missing(subscription, "b", []) == ["a3"]
    model.judge_read("t0", "b", [])


def test_while_messages_may_age_none_must_come_and_after_that_a_seek_brings_all_back() -> None:
    model = a_pair()
    subscription = model.find("t0", "r-shared", "b", replicated=True)
    assert subscription is not None
    model.settled()
    model.ages("t0", may=True)
    another = model.subscribed("t0", "r-keys", "b", replicated=True, earliest=True)
    assert model.missing(subscription, "b", []) == model.missing(another, "b", []) == []
    model.ages("t0", may=False)
    assert model.missing(subscription, "b", []) == model.missing(another, "b", []) == []
    model.sending("t0", "a", "a3")
    model.confirmed("t0", ["a3"])
    assert model.missing(subscription, "b", []) == ["a3"]
    model.settled()
    model.sought(subscription, "b", after=0)
    assert model.missing(subscription, "b", []) == ["a1", "a2", "a3"]


def test_a_cluster_that_joins_must_get_what_is_still_there() -> None:
    model = Model(SHAPES["pair"], joins=True)
    subscription = model.subscribed("t0", "r-shared", "b", replicated=True, earliest=True)
    for uid in ("a1", "b1"):
        model.sending("t0", uid[0], uid)
        model.confirmed("t0", [uid])
    model.settled()
    model.topic_deleted("t0", "a")
    model.sending("t0", "a", "a2")
    model.confirmed("t0", ["a2"])
    join = Step("join", {"at": "c", "starts_first": True})
    assert possible(join, model)
    model.joined()
    assert not possible(join, model)
    assert model.shape is SHAPES["mesh"]
    assert model.missing(subscription, "b", []) == ["a1", "a2", "b1"]
    assert model.missing(subscription, "c", []) == ["a2", "b1"], "no link carries what a deleted from b"
    model.judge_read("t0", "c", [])  # nothing has come yet
    model.settled()
    with pytest.raises(Violation, match="does not get a2, b1"):
        model.judge_read("t0", "c", [])


def test_processor_time_of_processes_is_counted_and_processes_that_are_gone_count_nothing() -> None:
    assert LOOK_SECONDS > 0
    assert cpu_seconds([os.getpid(), 2**30]).keys() == {os.getpid()}
    assert cpu_seconds([os.getpid()])[os.getpid()] > 0


@pytest.mark.parametrize("name", ["", *REVERTS])
def test_a_fix_can_still_be_taken_back_and_points_of_pauses_are_there(name: str) -> None:
    sources: dict[str, str] = {}
    for edit in (*POINTS, WHOLE_PASS, *REVERTS.get(name, ())):
        file = ROOT.joinpath(*edit.module.split(".")).with_suffix(".py")
        sources[edit.module] = edit.applied(sources.get(edit.module) or file.read_text())
    for module, source in sources.items():
        compile(source, module, "exec")


def test_an_edit_whose_text_is_not_there_once_is_an_error() -> None:
    assert Edit("module", "one", "two").applied("one three") == "two three"
    for source in ("three", "one one"):
        with pytest.raises(ValueError, match="instead of once"):
            Edit("module", "one", "two").applied(source)


def test_shrinking_leaves_the_steps_that_are_needed() -> None:
    steps = [Step("publish", {"number": number}) for number in range(40)]

    def fails(fewer: list[Step]) -> bool:
        numbers = [step.arguments["number"] for step in fewer]
        return 7 in numbers and 31 in numbers and numbers.index(7) < numbers.index(31)

    assert [step.arguments["number"] for step in shrunk(steps, fails)] == [7, 31]


def test_a_failure_is_of_the_same_kind_whatever_its_names_and_numbers() -> None:
    never = failure_kind("Violation: t0 r-failover at a never got a45, a46 (2); it got ['a42']\nTraceback")
    assert never == failure_kind("Violation: keyed r-keys at b never got b1 (1); it got []") != ""
    assert never != failure_kind("Violation: verify finds [Finding(fault='missing', topic='persistent://t0')]")
    assert failure_kind("") == ""


def test_a_history_is_shown_as_a_program() -> None:
    shown = describe(SHAPES["pair"], [Step("pause", {"source": "a", "to": "b"})], deduplication=True)
    assert shown.splitlines() == [
        'async with history(SHAPES["pair"], deduplication=True) as world:',
        "    await world.pause(source='a', to='b')",
        "    await world.finish()",
    ]


def test_a_run_without_a_limit_fails_if_histories_did_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(commands.forked_commands.EDITED, "")
    monkeypatch.setattr(commands, "served_postgres", nullcontext)
    monkeypatch.setattr(commands.forked_commands, "run", lambda *_, **__: None)
    monkeypatch.setattr(commands, "run", lambda *_, **__: [])
    assert commands.main(["--known"]) == 1
    assert capsys.readouterr().out.endswith(f"{len(commands.KNOWN)} histories did not run\n")
    assert commands.main(["--known", "--seconds", "60"]) == 0
