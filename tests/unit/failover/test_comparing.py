"""Comparison of two clusters for a switch: positions, and states by identity or by backlog."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.failover.comparing import StateUnavailable, compare_topic, goals, mark, note_of_unreplicated, served
from replicator.failover.planned import RequiredEntries
from snapshots.position import Position

NAME = "persistent://public/default/t"


def topic(position: str = "1:9", *, backlog: int = 0, generation: int = 1, held: int = 0) -> dict[str, Any]:
    return {
        "name": NAME,
        "has": {"A": {"incarnation": 7, "position": position}},
        "clusters": None,
        "subscriptions": {
            "s": {
                "replicated": True,
                "generation": generation,
                "backlog_messages": backlog,
                "held_entries": held,
            },
            "own": {"replicated": False, "generation": 1, "backlog_messages": 99, "held_entries": 0},
        },
    }


def digests(digest: str, position: str = "1:9", other: str = "x", other_position: str = "5:5") -> dict[str, Any]:
    return {
        NAME: {
            "high_water": {"A": position, "B": other_position},
            "subscriptions": {"s": {"generation": 1, "digest": {"A": digest, "B": other}}},
        }
    }


def compared(here: Any, there: Any, **given: Any) -> Any:
    return compare_topic(NAME, "A", here, there, carried=True, missing=given.pop("missing", None), **given)


def test_the_goal_is_the_sources_last_position_of_every_carried_topic() -> None:
    found = goals("A", {NAME: topic(), "u": topic()}, lambda name, _: name == NAME)
    assert found == {NAME: RequiredEntries(7, Position(1, 9))}
    assert mark({"has": {}}, "A") is None


def test_what_the_brokers_beside_a_worker_lack_is_not_served_yet() -> None:
    behind = topic() | {"served_through": {"A": "1:4"}}
    assert mark(behind, "A") == RequiredEntries(7, Position(1, 9))
    assert served(behind, "A") == RequiredEntries(7, Position(1, 4))
    assert served(topic(), "A") == RequiredEntries(7, Position(1, 9))
    assert served(behind, "C") is None


@pytest.mark.parametrize("lagging", ["here", "there"])
def test_a_subscription_that_its_brokers_do_not_have_as_the_worker_has_it_is_not_equal(lagging: str) -> None:
    sides = {"here": topic(), "there": topic()}
    sides[lagging]["subscriptions"]["s"]["lags"] = "3 entries are not acknowledged at the brokers yet"
    (subscription,) = compared(**sides, digests=(digests("abc"), digests("abc"))).subscriptions
    assert subscription.equal is False
    assert "3 entries" in subscription.evidence


def test_equal_digests_are_equal_and_name_their_evidence() -> None:
    report = compared(topic(held=2), topic(), digests=(digests("abc"), digests("abc")))
    (subscription,) = report.subscriptions
    assert subscription.equal is True
    assert "abc of A's messages" in subscription.evidence
    assert (subscription.may_be_repeated, subscription.held_entries) == (0, 2)


def test_a_different_digest_of_the_source_is_never_equal_even_with_the_same_backlog() -> None:
    report = compared(topic(backlog=3), topic(backlog=3), digests=(digests("abc"), digests("xyz")))
    assert report.subscriptions[0].equal is False


def left(*runs: tuple[str, str], incarnation: int = 7, **batches: list[int]) -> dict[str, Any]:
    """Return unconsumed messages. ``e4=[0]``: message 0 of the batch at 1:4 is acknowledged."""
    parts = {f"1:{name[1:]}": indexes for name, indexes in batches.items()}
    return {"incarnation": incarnation, "ranges": [], "beyond": [list(run) for run in runs], "batches": parts}


@pytest.mark.parametrize(
    ("here", "there", "as_good"),
    [
        (left(("1:3", "1:9")), left(("1:5", "1:6"), ("1:8", "1:9")), True),
        (left(("1:3", "1:9")), left(), True),
        (left(("1:3", "1:4"), ("1:6", "1:9")), left(("1:3", "1:9")), False),
        (left(("1:3", "1:9")), left(("1:2", "1:3")), False),
        (left(("1:3", "1:9"), e4=[0]), left(("1:3", "1:9"), e4=[0, 2]), True),
        (left(("1:3", "1:9"), e4=[0, 1]), left(("1:3", "1:9"), e4=[0, 2]), False),
        (left(("1:3", "1:9"), e4=[0, 1]), left(("1:5", "1:9")), True),
        (left(("1:3", "1:9")), left(incarnation=8), False),
    ],
    ids=[
        "less left",
        "nothing left",
        "a hole is left",
        "another is left",
        "more of a batch",
        "other parts of a batch",
        "the whole batch",
        "another incarnation",
    ],
)
def test_a_target_with_more_acknowledged_is_as_good_as_an_equal_one(here: Any, there: Any, as_good: bool) -> None:
    """Its own consumers did that, and no link leads back to the source."""
    ours, theirs = digests("abc"), digests("xyz")
    ours[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": here}
    theirs[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": there}
    (subscription,) = compared(topic(backlog=7), topic(backlog=5), digests=(ours, theirs)).subscriptions
    assert subscription.equal is as_good
    assert ("more of A" in subscription.evidence) is as_good


@pytest.mark.parametrize(
    ("left_out", "equal"),
    [([["1:3", "1:5"]], True), ([["1:3", "1:4"], ["1:4", "1:7"]], True), ([["1:3", "1:4"]], False), ([], False)],
)
def test_what_the_source_never_had_may_be_left_at_the_target(left_out: list[list[str]], equal: bool) -> None:
    """This happens after a failback, with messages that were for one cluster alone."""
    here, there = digests("abc"), digests("other")
    here[NAME]["left_out"] = {"A": left_out}
    for each, beyond in ((here, [["1:8", "1:9"]]), (there, [["1:4", "1:5"], ["1:8", "1:9"]])):
        each[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": {"incarnation": 7, "beyond": beyond, "batches": {}}}
    (subscription,) = compared(topic(backlog=2), topic(backlog=4), digests=(here, there)).subscriptions
    assert subscription.equal is equal


@pytest.mark.parametrize(("left_there", "equal"), [("2000:8", True), ("2000:7", False)])
def test_what_is_left_at_the_target_of_an_earlier_life_is_not_compared(left_there: str, equal: bool) -> None:
    here, there = digests("abc", "2000:9"), digests("other", "2000:9")
    for each, beyond in ((here, [["2000:8", "2000:9"]]), (there, [["5:0", "5:9"], [left_there, "2000:9"]])):
        each[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": {"incarnation": 1000, "beyond": beyond, "batches": {}}}
    (subscription,) = compared(topic(), topic(), digests=(here, there)).subscriptions
    assert subscription.equal is equal


@pytest.mark.parametrize(
    ("vector", "equal"),
    [
        ({"ranges": [["5:-1", "5:9"], ["2000:-1", "2000:7"]]}, False),
        ({"ranges": [["2000:-1", "2000:7"]], "beyond": [["5:3", "5:4"]]}, False),
        ({"ranges": [["5:9", "5:12"], ["2000:-1", "2000:7"]], "beyond": [["6:0", "6:9"]]}, True),
    ],
    ids=["all of it", "a part of it", "what the target does not have left"],
)
def test_what_the_source_acknowledged_of_an_earlier_life_must_be_acknowledged_at_the_target(
    vector: dict[str, Any], equal: bool
) -> None:
    here, there = digests("abc", "2000:9"), digests("other", "2000:9")
    here[NAME]["subscriptions"]["s"]["vector"] = {"A": {"beyond": [], "batches": {}} | vector}
    for each, beyond in ((here, [["2000:8", "2000:9"]]), (there, [["5:0", "5:9"], ["2000:8", "2000:9"]])):
        each[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": {"incarnation": 1000, "beyond": beyond, "batches": {}}}
    (subscription,) = compared(topic(), topic(), digests=(here, there)).subscriptions
    assert subscription.equal is equal


@pytest.mark.parametrize(("parts_there", "equal"), [([0, 1], True), ([0], False), ([], False)])
def test_parts_of_a_batch_of_an_earlier_life_must_be_acknowledged_at_the_target(
    parts_there: list[int], equal: bool
) -> None:
    here, there = digests("abc", "2000:9"), digests("other", "2000:9")
    here[NAME]["subscriptions"]["s"]["vector"] = {"A": {"ranges": [], "beyond": [], "batches": {"5:4": [0, 1]}}}
    for each, beyond, parts in ((here, [["5:4", "5:4"]], [0, 1]), (there, [["5:3", "5:9"]], parts_there)):
        left = {"incarnation": 1000, "beyond": beyond, "batches": {"5:4": parts}}
        each[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": left}
    (subscription,) = compared(topic(), topic(), digests=(here, there)).subscriptions
    assert subscription.equal is equal


@pytest.mark.parametrize(
    ("here", "there", "mark_there", "as_good"),
    [
        (left(), left(("5:6", "5:8")), "5:8", True),
        (left(), left(("5:4", "5:8")), "5:8", False),
        (left(), left(("5:4", "5:5")), "5:5", False),
        (left(("5:4", "5:5")), left(), "5:3", True),
        (left(("5:4", "5:5")), left(("5:2", "5:3")), "5:3", False),
        (left(), left(("5:6", "5:8"), incarnation=8), "5:8", True),
        (left(("5:4", "5:5"), incarnation=8), left(("5:2", "5:3")), "5:3", False),
    ],
    ids=[
        "it got more meanwhile",
        "it got more, and lacks acknowledgements",
        "it has as much, and lacks acknowledgements",
        "it lacks the newest",
        "it lacks the newest, and acknowledgements",
        "it heard of a new life first",
        "it has not heard of a new life, and lacks acknowledgements",
    ],
)
def test_another_origin_is_compared_as_far_as_the_source_has_it(
    here: Any, there: Any, mark_there: str, as_good: bool
) -> None:
    """A third cluster publishes all the time: both hardly ever have equally much of it."""
    ours, theirs = digests("abc"), digests("abc", other="y", other_position=mark_there)
    ours[NAME]["subscriptions"]["s"]["unconsumed"] = {"B": here}
    theirs[NAME]["subscriptions"]["s"]["unconsumed"] = {"B": there}
    (subscription,) = compared(topic(), topic(backlog=9), digests=(ours, theirs)).subscriptions
    assert subscription.equal is as_good
    assert subscription.may_be_repeated == (0 if as_good else 9)


def test_an_origin_of_which_the_target_has_nothing_is_not_compared() -> None:
    there = digests("abc", other="y")
    del there[NAME]["high_water"]["B"]
    assert compared(topic(), topic(), digests=(digests("abc"), there)).subscriptions[0].equal is True


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("what", ["no answer", "no such subscription"])
def test_a_state_that_could_not_be_had_is_never_equal_whatever_the_backlogs_are(side: int, what: str) -> None:
    both = [digests("abc"), digests("abc")]
    if what == "no answer":
        both[side] = {NAME: StateUnavailable("A: too many requests")}
    else:
        del both[side][NAME]["subscriptions"]["s"]
    (subscription,) = compared(topic(backlog=3), topic(backlog=3), digests=(both[0], both[1])).subscriptions
    assert (subscription.equal, subscription.may_be_repeated) == (None, None)
    assert "not compared" in subscription.evidence


def test_a_worker_that_gives_no_digests_is_compared_by_backlogs() -> None:
    older = digests("abc")
    del older[NAME]["subscriptions"]["s"]["digest"]
    report = compared(topic(backlog=3), topic(backlog=3), digests=(digests("abc"), older))
    assert (report.subscriptions[0].equal, report.subscriptions[0].evidence) == (True, "backlog 3 of 3 messages")


@pytest.mark.parametrize(
    ("here", "there", "backlogs", "repeated"),
    [
        (left(("1:9", "1:9"), e9=[0, 1, 2, 3]), left(("1:9", "1:9")), (5, 5), 5),
        (left(("1:5", "1:9")), left(("1:0", "1:4")), (5, 5), 5),
        (left(("1:5", "1:9")), left(("1:0", "1:4")), (9, 5), 5),
    ],
    ids=["a part of a batch", "each acknowledged others", "a greater backlog at the source"],
)
def test_where_acknowledgements_differ_all_that_is_left_may_be_repeated(
    here: Any, there: Any, backlogs: tuple[int, int], repeated: int
) -> None:
    """Backlogs of both say nothing about which messages are left."""
    ours, theirs = digests("abc"), digests("xyz")
    ours[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": here}
    theirs[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": there}
    report = compared(topic(backlog=backlogs[0]), topic(backlog=backlogs[1]), digests=(ours, theirs))
    assert (report.subscriptions[0].equal, report.subscriptions[0].may_be_repeated) == (False, repeated)


@pytest.mark.parametrize(
    ("here", "there", "backlogs", "repeated"),
    [
        (left(("1:4", "1:9")), left(("1:4", "1:5")), (6, 2), 0),
        (left(("1:4", "1:5"), ("1:9", "1:9")), left(("1:4", "1:5")), (3, 2), 3),
        (left(), left(), (0, 0), 4),
        (left(("1:4", "1:9")), left(), (6, 0), 4),
        (left(("1:4", "1:9")), left(("1:3", "1:5")), (6, 3), 7),
    ],
    ids=["none of them", "three of them", "all of them", "unknown which", "others are, too"],
)
def test_messages_that_the_target_lacks_may_be_repeated_if_they_are_acknowledged(
    here: Any, there: Any, backlogs: tuple[int, int], repeated: int
) -> None:
    """It lacks 1:6 to 1:9."""
    ours, theirs = digests("abc"), digests("xyz", "1:5")
    ours[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": here}
    theirs[NAME]["subscriptions"]["s"]["unconsumed"] = {"A": there}
    report = compared(
        topic(backlog=backlogs[0]),
        topic("1:5", backlog=backlogs[1]),
        missing={"messages": 4, "exact": True, "last": "1:9"},
        digests=(ours, theirs),
    )
    (subscription,) = report.subscriptions
    assert (subscription.equal, subscription.may_be_repeated) == (repeated == 0, repeated)


def test_a_source_without_messages_of_its_own_has_none_that_could_differ() -> None:
    """The source wrote markers that no link carries, so its state names its origin, and the target's does not."""
    here, there = digests("nothing is left"), digests("")
    del here[NAME]["high_water"]["A"], there[NAME]["high_water"]["A"]
    del there[NAME]["subscriptions"]["s"]["digest"]["A"]
    (subscription,) = compared(topic(), topic(), digests=(here, there)).subscriptions
    assert subscription.equal is True
    here[NAME]["high_water"]["A"] = "1:9"
    (subscription,) = compared(topic(), topic(), digests=(here, there)).subscriptions
    assert subscription.equal is False


@pytest.mark.parametrize(
    ("here", "there", "missing", "repeated"),
    [(0, 5, 0, 5), (5, 5, 0, 0), (10, 5, 5, 10), (10, 7, 5, 12)],
    ids=["all acknowledged", "equal", "the rest is missing", "both"],
)
def test_without_digests_what_may_be_repeated_is_bounded_by_the_backlogs(
    here: int, there: int, missing: int, repeated: int
) -> None:
    found = {"messages": missing, "exact": True, "last": "1:9"} if missing else None
    (subscription,) = compared(topic(backlog=here), topic(backlog=there), missing=found).subscriptions
    assert subscription.equal is (here == there)
    assert subscription.may_be_repeated == repeated


def test_a_subscription_in_another_generation_or_not_there_is_not_equal() -> None:
    assert compared(topic(generation=2), topic()).subscriptions[0].equal is False
    assert compared(topic(), None).subscriptions[0].evidence == "it is not there yet"


def test_without_the_source_nothing_is_called_zero() -> None:
    report = compared(None, topic())
    assert report.missing_messages is None
    assert report.target_has == "1:9"
    assert [each.may_be_repeated for each in report.subscriptions] == [None]


def test_subscriptions_that_are_not_replicated_are_named_and_not_passed_over_in_silence() -> None:
    note = note_of_unreplicated({NAME: topic()}, "B")
    assert note is not None
    assert note.startswith(
        f"1 subscription is not compared, because it is not replicated (own of {NAME}). Its consumers"
    )
    assert "at B" in note
    of_many = note_of_unreplicated({f"{NAME}-{number}": topic() for number in range(7)}, "B")
    assert of_many is not None
    assert of_many.startswith("7 subscriptions are not compared, because they are not replicated (own of ")
    assert "and 2 more" in of_many
    replicated = topic()
    del replicated["subscriptions"]["own"]
    assert note_of_unreplicated({NAME: replicated}, "B") is None


def test_messages_of_an_earlier_life_that_the_target_lacks_are_counted_as_missing() -> None:
    here = topic() | {"earlier": {"A": ["0:7"]}, "earlier_messages": {"A": 8}}
    assert goals("A", {NAME: here}, lambda *_: True) == {NAME: RequiredEntries(7, Position(1, 9), (Position(0, 7),))}
    report = compared(here, topic() | {"lacks": {"A": ["0:7"]}})
    assert (report.missing_messages, report.exact) == (8, False)
    report = compared(here, topic() | {"lacks": {}})
    assert (report.missing_messages, report.exact) == (0, True)
