from __future__ import annotations

from replicator.pipeline.backfill.phases import (
    CARRIER_SECONDS_MAX,
    EMPTY_SECONDS_MAX,
    GOALS_SECONDS_MIN,
    PAUSE_SECONDS_MAX,
    SMALL_BYTES,
    STALL_SECONDS_MAX,
    TELL_AGAIN_SECONDS,
    Action,
    AnnounceStates,
    AskCopies,
    AskStates,
    Backfill,
    Finish,
    MakePlan,
    Pause,
    Phase,
    PlanResult,
    Release,
    RunJob,
    sizes_of,
)

LARGE = PlanResult("backfilling", "", (SMALL_BYTES, 1))
NOTHING = PlanResult("backfilling", "")


def begun(*topics: str, subscribed: tuple[str, ...] = ()) -> Backfill:
    backfill = Backfill(topics, subscribed, 0.0)
    assert backfill.start() == MakePlan()
    return backfill


def caught_up(*topics: str, subscribed: tuple[str, ...] = ()) -> tuple[Backfill, Action]:
    backfill = begun(*topics, subscribed=subscribed)
    assert backfill.on_plan(NOTHING, 1) == Release()
    assert backfill.on_released(1) == AskCopies(topics)
    return backfill, backfill.on_copies({}, {}, 2)


def waited(action: Action, then: Action) -> None:
    assert isinstance(action, Pause), action
    assert 0 < action.seconds <= PAUSE_SECONDS_MAX
    assert action.then == then


def test_history_is_carried_until_little_is_left_and_then_all_is_compared() -> None:
    backfill = begun("a", "b", subscribed=("b",))
    assert backfill.on_plan(LARGE, 1) == RunJob()
    assert backfill.on_job(None, 2, moved=True) == MakePlan()
    assert backfill.on_plan(PlanResult("backfilling", "", (100,)), 3) == RunJob(), "Spark runs already"
    assert backfill.on_job(None, 3, moved=True) == MakePlan()
    assert backfill.on_plan(PlanResult("backfilling", "", (100,)), 3) == Release(), (
        "what is published now is the link's"
    )
    assert backfill.phase is Phase.HAND_OVER
    assert backfill.on_released(4) == AskCopies(("a", "b"))
    assert backfill.phase is Phase.CATCH_UP
    waited(backfill.on_copies({"a": "it has less"}, {}, 5), AskCopies(("a",)))
    assert backfill.on_copies({}, {}, 6) == AnnounceStates(("b",))
    assert backfill.on_states_announced(7) == AskStates(("b",))
    waited(backfill.on_states({"b": {"sub": "not yet"}}, 8), AskStates(("b",)))
    assert backfill.on_states({"b": {}}, 9) == Finish()
    assert (backfill.phase, backfill.reason) == (Phase.DONE, "")


def test_a_source_in_use_that_always_has_more_is_handed_over_when_the_goals_are_reached() -> None:
    backfill, asked, now = begun("a", "b"), 0, 0.0
    action: Action = MakePlan()
    while not isinstance(action, Release):
        now += 1
        assert now < 10 * GOALS_SECONDS_MIN
        if isinstance(action, AskCopies):
            asked += 1
            missing = {"a": "it has less"} if asked < 3 else {}
            action = backfill.on_copies({**missing, "b": "it has nothing"}, {"b": "trimmed"}, now)
        else:
            assert backfill.on_plan(LARGE, now) == RunJob()
            action = backfill.on_job(None, now, moved=True)
    assert asked == 3, "it is asked now and then"
    assert now > 3 * GOALS_SECONDS_MIN
    assert backfill.phase is Phase.HAND_OVER
    backfill = begun("a")
    waited(backfill.on_job("an executor was lost", GOALS_SECONDS_MIN, moved=True), MakePlan())


def test_a_link_that_waits_for_its_driver_is_given_longer() -> None:
    backfill = begun("a")
    backfill.on_plan(NOTHING, 1)
    backfill.on_released(1)
    starting = "waiting: for Spark: its driver is starting"
    for now in (2, 100, CARRIER_SECONDS_MAX):
        waited(backfill.on_copies({"a": "it has less"}, {}, now, starting), AskCopies(("a",)))
    waited(backfill.on_copies({"a": "it has less"}, {}, CARRIER_SECONDS_MAX + 30, "copying"), AskCopies(("a",)))
    assert backfill.on_copies({"a": "it has less"}, {}, CARRIER_SECONDS_MAX + 60, starting) == Finish()
    assert "its driver is starting" in backfill.reason


def test_a_segment_as_large_as_may_be_means_that_there_is_more() -> None:
    assert sizes_of([{"bytes": 900}, None, {"bytes": 1}], bytes_max=1000) == ((900, 1), True)
    assert sizes_of([{"bytes": 400}], bytes_max=1000) == ((400,), False)
    assert begun("a").on_plan(PlanResult("backfilling", "", (900, 1), full=True), 1) == RunJob()
    assert begun("a").on_plan(PlanResult("backfilling", "", (400,)), 1) == Release()


def test_a_link_that_plans_nothing_yet_is_asked_again_for_a_moment() -> None:
    backfill = begun("a")
    waited(backfill.on_plan(PlanResult("backfilling", "", opened=False), 1), MakePlan())
    nothing = PlanResult("backfilling", "", bytes_left=SMALL_BYTES + 1)
    waited(backfill.on_plan(nothing, 2), MakePlan())
    assert backfill.on_plan(nothing, EMPTY_SECONDS_MAX) == Release(), "the topics that are left have stopped"
    assert begun("a").on_plan(PlanResult("backfilling", "", bytes_left=SMALL_BYTES), 1) == Release()


def test_without_replicated_subscriptions_it_is_done_when_the_messages_are_there() -> None:
    backfill, action = caught_up("a")
    assert action == Finish()
    assert backfill.phase is Phase.DONE


def test_a_job_that_failed_is_followed_by_another_plan_after_a_pause_that_grows() -> None:
    backfill = begun("a")
    pauses = []
    for now in range(1, 9):
        action = backfill.on_job("the worker is away", now, moved=False)
        waited(action, MakePlan())
        assert isinstance(action, Pause)
        pauses.append(action.seconds)
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_SECONDS_MAX
    action = backfill.on_job("an executor was lost", 9, moved=True)
    assert isinstance(action, Pause)
    assert action.seconds == pauses[0], "it went on in between"


def test_it_gives_up_where_nothing_moves_for_a_minute_and_says_what_it_waited_for() -> None:
    backfill = begun("a")
    waited(backfill.on_unreachable("east does not answer", 1), MakePlan())
    assert backfill.on_unreachable("east does not answer", STALL_SECONDS_MAX + 1) == Finish()
    assert (backfill.phase, backfill.reason, backfill.unavailable) == (Phase.GAVE_UP, "east does not answer", True)


def test_a_destination_that_takes_nothing_is_waited_for_and_not_carried_to() -> None:
    backfill = begun("a")
    waited(backfill.on_plan(PlanResult("connecting", "west is away"), 1), MakePlan())
    assert backfill.on_plan(PlanResult("connecting", "west is away"), STALL_SECONDS_MAX) == Finish()
    assert backfill.reason == "the link is not connected to its destination: west is away"
    backfill = begun("a")
    waited(backfill.on_job(None, 1, moved=False), MakePlan())


def test_a_link_that_an_operator_paused_is_left_alone() -> None:
    backfill = begun("a")
    assert backfill.on_plan(PlanResult("paused", ""), 1) == Finish()
    assert "replicator links resume" in backfill.reason


def test_what_a_worker_refuses_is_not_asked_again() -> None:
    backfill = begun("a")
    assert backfill.on_refused("link east>west is being backfilled by another") == Finish()
    assert backfill.phase is Phase.GAVE_UP
    assert not backfill.unavailable


def test_topics_that_the_link_cannot_go_on_with_are_not_waited_for_and_not_forgotten() -> None:
    backfill = begun("a", "b", subscribed=("a", "b"))
    backfill.on_plan(NOTHING, 1)
    backfill.on_released(1)
    missing = {"a": "it has nothing of east"}
    assert backfill.on_copies(missing, {"a": "trimmed", "c": "of no matter"}, 2) == AnnounceStates(("b",))
    assert backfill.on_states_announced(3) == AskStates(("b",))
    assert backfill.on_states({}, 4) == Finish()
    assert backfill.phase is Phase.GAVE_UP
    assert backfill.reason == "the link cannot go on with a (it has nothing of east)"
    assert backfill.stopped == {"a": "trimmed"}


def test_what_comes_slowly_is_waited_for_as_long_as_it_comes() -> None:
    backfill = begun("a")
    backfill.on_plan(NOTHING, 0)
    backfill.on_released(0)
    for step in range(10):
        now = step * (STALL_SECONDS_MAX - 1)
        waited(backfill.on_copies({"a": f"it has {step} of 99"}, {}, now), AskCopies(("a",)))
    assert backfill.on_copies({"a": "it has 9 of 99"}, {}, now + STALL_SECONDS_MAX, "waiting: for Spark") == Finish()
    assert backfill.reason == "nothing has come for a while, the link is waiting: for Spark, of a (it has 9 of 99)"


def test_states_are_told_again_now_and_then_and_given_up_in_the_end() -> None:
    backfill, action = caught_up("a", subscribed=("a",))
    assert action == AnnounceStates(("a",))
    now = 2.0
    assert backfill.on_states_announced(now) == AskStates(("a",))
    told, action = 0, AskStates(("a",))
    while not isinstance(action, Finish):
        now += 1
        assert now < 10 * STALL_SECONDS_MAX
        action = backfill.on_states({"a": {"sub": "it is not there yet"}}, now)
        if isinstance(action, AnnounceStates):
            assert action == AnnounceStates(("a",), again=True)
            told += 1
            action = backfill.on_states_announced(now)
    assert told == STALL_SECONDS_MAX // TELL_AGAIN_SECONDS
    assert now <= STALL_SECONDS_MAX + 3
    assert backfill.reason == "subscription states did not come: a (sub: it is not there yet)"


def test_a_worker_that_is_away_while_it_is_waited_for_is_asked_the_same_again() -> None:
    backfill, _ = caught_up("a", subscribed=("a",))
    waited(backfill.on_unreachable("away", 3), AnnounceStates(("a",)))
    backfill.on_states_announced(4)
    waited(backfill.on_unreachable("away", 5), AskStates(("a",)))
    backfill = begun("a")
    backfill.on_plan(NOTHING, 1)
    waited(backfill.on_unreachable("away", 2), Release())
    backfill.on_released(3)
    waited(backfill.on_unreachable("away", 4), AskCopies(("a",)))


def test_many_topics_are_named_by_a_few() -> None:
    backfill = begun(*(f"t{number}" for number in range(9)))
    backfill.on_plan(NOTHING, 1)
    backfill.on_released(1)
    missing = {f"t{number}": "why" for number in range(9)}
    assert backfill.on_copies(missing, missing, 2) == Finish()
    assert backfill.reason == "the link cannot go on with t0 (why), t1 (why), t2 (why) and 6 more topics"
