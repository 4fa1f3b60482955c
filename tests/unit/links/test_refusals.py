"""When a topic that the destination refused is tried again."""

from __future__ import annotations

from replicator.links.refusals import REFUSED_SECONDS_MIN, Refusals


def test_a_topic_is_tried_at_once_and_then_after_pauses_that_grow_to_the_longest() -> None:
    refusals = Refusals()
    pauses = [refusals.note("t", "not now", 0.0, 5.0) for _ in range(20)]
    assert pauses[:3] == [0.0, 2 * REFUSED_SECONDS_MIN, 4 * REFUSED_SECONDS_MIN]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_a_topic_waits_until_it_is_due_and_others_do_not() -> None:
    refusals = Refusals()
    for _ in range(2):
        seconds = refusals.note("t", "not now", 10.0, 5.0)
    assert not refusals.is_due("t", 10.0)
    assert refusals.is_due("t", 10.0 + seconds)
    assert refusals.is_due("u", 10.0)


def test_what_went_on_is_forgotten_and_starts_over() -> None:
    refusals = Refusals()
    for _ in range(5):
        refusals.note("t", "not now", 0.0, 5.0)
    assert dict(refusals.reasons()) == {"t": "not now"}
    refusals.forget("t")
    assert "t" not in refusals
    assert refusals.reason("t") == ""
    assert refusals.note("t", "again", 0.0, 5.0) == 0.0
