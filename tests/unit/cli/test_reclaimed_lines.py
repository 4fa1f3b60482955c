"""Lines that `replicator backup reclaim` prints about the messages that came back."""

from __future__ import annotations

from dataclasses import replace

from replicator.backup.dry_run import Counted, ReclaimPlan
from replicator.backup.reclaim_plan import TopicPlan
from replicator.backup.reclaiming import Reclaimed, ReclaimedTopic
from replicator.cli.reclaim_texts import plan_lines, reclaimed_lines
from snapshots.position import Position


def topic(name: str, messages: int, *, made_anew: bool = False) -> ReclaimedTopic:
    return ReclaimedTopic(name, messages, Position(1, 0), Position(1, 9), made_anew, 0)


def test_topics_of_which_only_markers_came_back_are_not_named() -> None:
    lines = reclaimed_lines("a", Reclaimed([topic("markers", 0), topic("orders", 3)]))
    assert lines[0] == "took back 3 messages of orders, after 1:0 up to 1:9"
    assert not any("markers" in line or "nothing of" in line for line in lines)
    assert "nothing of a's messages that it lacks" in reclaimed_lines("a", Reclaimed([topic("markers", 0)]))[0]


def test_a_topic_that_was_made_again_is_named_though_no_message_came_back() -> None:
    (first, *_) = reclaimed_lines("a", Reclaimed([topic("new", 0, made_anew=True)]))
    assert first == "new was not here in that life: it is back, with no messages of a"


def test_it_is_said_that_others_have_nothing_only_where_that_is_true() -> None:
    for done in (Reclaimed(lost=["c was not asked"]), Reclaimed(deleted=["orders: b has messages"])):
        lines = reclaimed_lines("a", done)
        assert lines[0] == "nothing came back"
        assert not any("nothing of" in line for line in lines)
    assert "not taken back: orders: b has messages" in reclaimed_lines(
        "a", Reclaimed(deleted=["orders: b has messages"])
    )


def test_an_earlier_life_is_said_to_lie_below() -> None:
    back = ReclaimedTopic("orders", 7, Position(1, 0), Position(1, 9), made_anew=False, holes=0, below=True)
    (first, *_) = reclaimed_lines("a", Reclaimed([back]))
    assert first == "took back 7 messages of orders (an earlier life, below what was here), after 1:0 up to 1:9"


def test_a_plan_says_what_would_come_back_from_whom_and_what_is_missing() -> None:
    hole = (Position(1, 2), Position(1, 5))
    plan = TopicPlan(
        "orders", 1, Position(1, -1), Position(1, 9), False, {"b": Position(1, 9)}, {}, (hole,), below=True
    )
    lines = plan_lines("a", ReclaimPlan((plan,), ("c was not asked",), ()))
    assert lines == [
        "orders (an earlier life, below what is here): after 1:-1 up to 1:9, from b (up to 1:9); missing after 1:2 up "
        "to 1:5 (at most 3 entries)",
        "No cluster that was asked has what is missing, so nobody can count its messages",
        "lost: c was not asked",
        "Nothing was changed.",
    ]
    counted = ReclaimPlan((plan,), (), (), counts=(Counted(12, {"b": 12}),))
    lines = plan_lines("a", counted)
    assert "here): 12 messages after 1:-1 up to 1:9, from b (up to 1:9, 12 messages); " in lines[0]
    assert lines[-2] == "Messages were counted, and not read: those in a damaged block count, too."
    markers = replace(plan, name="markers", holes=())
    lines = plan_lines("a", ReclaimPlan((markers,), (), (), counts=(Counted(0, {"b": 0}),)))
    assert lines == ["the other clusters have nothing of a's messages that it lacks", "Nothing was changed."]
    assert plan_lines("a", ReclaimPlan((), ("c was not asked",), ()))[0] == "nothing would come back"
    assert "nothing of a's messages" in plan_lines("a", ReclaimPlan((), (), ()))[0]


def test_a_topic_of_which_messages_of_an_earlier_life_came_back_is_not_said_to_be_back_without_messages() -> None:
    below = ReclaimedTopic("new", 40, Position(1, 0), Position(1, 9), made_anew=False, holes=0, below=True)
    first, second, *_ = reclaimed_lines("a", Reclaimed([topic("new", 0, made_anew=True), below]))
    assert first == "new was made again in its newest life, which has no messages of a"
    assert second.startswith("took back 40 messages of new (an earlier life")


def test_the_last_line_of_a_reclaim_names_no_time_since_when_as_there_may_be_no_backup() -> None:
    assert "since" not in " ".join(reclaimed_lines("a", Reclaimed([topic("orders", 3)], epoch_before=1, epoch=2)))


def test_a_plan_that_did_not_ask_all_does_not_say_that_nobody_has_something() -> None:
    hole = (Position(1, -1), Position(1, 9))
    plan = TopicPlan("orders", 1, *hole, False, {}, {}, (hole,))
    assert ", from nobody;" in plan_lines("a", ReclaimPlan((plan,), (), ()))[0]
    asked = plan_lines("a", ReclaimPlan((plan,), (), (), without=frozenset({"c"})))
    assert ", from nobody that was asked;" in asked[0]
