"""Checks of single arguments: each takes what it says, and names what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import pytest

from replicator.client.argument_checks import (
    PROPERTIES_MAX,
    check_callable,
    check_enum,
    check_flag,
    check_instance,
    check_methods,
    check_name,
    check_properties,
    check_range,
    check_seconds,
    check_subscription,
    full_topic_name,
    refuse_unsupported,
    topic_pattern,
)
from replicator.client.errors import InvalidConfiguration, InvalidTopicName, OperationNotSupported


class Colour(Enum):
    RED = "red"


class Listens:
    def heard(self) -> None: ...


CHECKS: dict[str, tuple[Callable[[object], object], list[object], list[object]]] = {
    "range": (lambda value: check_range("it", value, 0, 3), [0, 3], [-1, 4, 1.0, True, "1", None]),
    "seconds": (lambda value: check_seconds("it", value, 0.5, 3), [0.5, 3, 1], [0.4, 4, True, "1", float("nan")]),
    "flag": (lambda value: check_flag("it", value), [True, False], [1, 0, None, "True"]),
    "callable": (lambda value: check_callable("it", value), [None, print], [1, "print"]),
    "methods": (lambda value: check_methods("it", value, "heard"), [None, Listens()], [1, "heard"]),
    "enum": (lambda value: check_enum("it", value, Colour), [Colour.RED], ["red", None, Colour]),
    "instance": (lambda value: check_instance("it", value, Listens), [None, Listens()], [Listens, 1]),
    "name": (lambda value: check_name("it", value), ["a", "a" * 200], ["", "a" * 201, None, b"a"]),
    "subscription": (check_subscription, ["sub"], ["", None, 1]),
    "properties": (
        check_properties,
        [{}, {"a": "b"}, {str(at): "" for at in range(PROPERTIES_MAX)}],
        [None, [], {"a": 1}, {1: "a"}, {str(at): "" for at in range(PROPERTIES_MAX + 1)}],
    ),
}


@pytest.mark.parametrize(
    ("check", "value", "good"),
    [
        pytest.param(check, value, good, id=f"{name} {value!r:.20}")
        for name, (check, taken, refused) in CHECKS.items()
        for good, values in ((True, taken), (False, refused))
        for value in values
    ],
)
def test_a_check_takes_what_it_says_and_refuses_the_rest(
    check: Callable[[object], object], value: object, good: bool
) -> None:
    if good:
        check(value)
    else:
        with pytest.raises(InvalidConfiguration):
            check(value)


def test_an_argument_that_is_not_built_is_taken_only_with_the_value_that_means_off() -> None:
    off = {"threads": 1, "trust": False}
    refuse_unsupported("call", {"threads": 1, "trust": None}, off)
    for given in ({"threads": 2}, {"threads": True}, {"trust": 0}):
        with pytest.raises(OperationNotSupported, match=next(iter(given))):
            refuse_unsupported("call", given, off)
    with pytest.raises(TypeError, match="thread"):
        refuse_unsupported("call", {"thread": 1}, off)


def test_a_pattern_is_text_of_its_own_or_of_a_compiled_regex() -> None:
    assert topic_pattern("persistent://public/default/a.*", False) is None
    assert topic_pattern("persistent://public/default/a.*", True) == "persistent://public/default/a.*"
    compiled = re.compile("persistent://public/default/a.*", re.IGNORECASE)
    assert topic_pattern(compiled, False) == "persistent://public/default/(?i)a.*"
    for wrong in (re.compile(b"persistent://public/default/a"), re.compile("persistent://public/default/a", re.X)):
        with pytest.raises(InvalidConfiguration, match="pattern"):
            topic_pattern(wrong, False)
    with pytest.raises(InvalidConfiguration, match="one pattern"):
        topic_pattern(["a"], True)


def test_a_short_topic_name_becomes_the_whole_one() -> None:
    assert full_topic_name("orders") == "persistent://public/default/orders"
    for wrong in (None, 1, "", "persistent://public/orders"):
        with pytest.raises(InvalidTopicName):
            full_topic_name(wrong)
