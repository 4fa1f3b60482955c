"""Each name is waited for once, for a limited time."""

from __future__ import annotations

from replicator.apache.missing_names import MissingNames


def test_a_name_that_stays_missing_is_waited_for_once() -> None:
    names = MissingNames(10)
    asked = [names.wait({"a"}, now) for now in (100.0, 109.9, 110.0, 111.0, 500.0)]
    assert asked == [True, True, False, False, False]


def test_a_name_that_comes_meanwhile_has_its_own_time() -> None:
    names = MissingNames(10)
    assert names.wait({"a"}, 100.0)
    assert not names.wait({"a"}, 110.0)
    assert names.wait({"a", "b"}, 111.0)
    assert not names.wait({"a", "b"}, 121.0)


def test_nothing_waits_for_what_is_there_and_what_goes_again_is_waited_for_again() -> None:
    names = MissingNames(10)
    assert not names.wait(set(), 100.0)
    assert names.wait({"a"}, 101.0)
    assert not names.wait(set(), 102.0)
    assert names.wait({"a"}, 120.0)
