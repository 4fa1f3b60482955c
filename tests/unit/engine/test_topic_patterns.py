from __future__ import annotations

import time
from contextlib import suppress

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import InvalidPattern
from replicator.engine.topics.topic_patterns import PATTERN_CHARACTERS_MAX, PATTERN_MEMORY_BYTES_MAX, parse_pattern


@pytest.mark.parametrize(
    ("text", "namespace", "regex"),
    [
        ("persistent://public/default/orders-.*", "public/default", "orders-.*"),
        ("^persistent://public/default/orders-.*$", "public/default", "orders-.*$"),
        ("my-tenant/my.ns/orders-.*", "my-tenant/my.ns", "orders-.*"),
        ("orders-.*", "public/default", "orders-.*"),
        ("[^/]+", "public/default", "[^/]+"),
        ("t/n/[^/]+", "t/n", "[^/]+"),
        ("t/n/[]/x]+", "t/n", "[]/x]+"),
        ("t/n/[[:alpha:]/]+", "t/n", "[[:alpha:]/]+"),
        (r"t/n/a\/b", "t/n", r"a\/b"),
        (r"t/n/\Qa/b\E", "t/n", r"\Qa/b\E"),
    ],
)
def test_a_pattern_has_one_namespace_and_a_regex(text: str, namespace: str, regex: str) -> None:
    pattern = parse_pattern(text)
    assert (pattern.namespace, pattern.regex) == (namespace, regex)


@pytest.mark.parametrize(
    ("regex", "matching", "others"),
    [
        ("orders-.*", ["orders-", "orders-1"], ["orders", "my-orders-1", "Orders-1"]),
        ("orders", ["orders"], ["orders-1", "my-orders"]),
        ("^orders$", ["orders"], ["orders-1"]),
        ("a|b", ["a", "b"], ["ab", "c", "ax"]),
        ("(?i)orders", ["ORDERS"], ["order"]),
        ("orders-[0-9]{2,3}", ["orders-12", "orders-123"], ["orders-1", "orders-1234"]),
        (".*", ["a", "a.b"], []),
        ("(?P<region>eu|us)-.*", ["eu-1"], ["ap-1"]),
    ],
)
def test_a_regex_stands_for_the_whole_local_name(regex: str, matching: list[str], others: list[str]) -> None:
    pattern = parse_pattern(f"persistent://public/default/{regex}")
    assert [name for name in matching + others if pattern.matches(name)] == matching


def test_equal_patterns_are_one() -> None:
    assert parse_pattern("a.*") == parse_pattern("persistent://public/default/a.*")
    assert hash(parse_pattern("a.*")) == hash(parse_pattern("public/default/a.*"))
    assert parse_pattern("a.*") != parse_pattern("public/other/a.*")
    assert str(parse_pattern("a.*")) == "persistent://public/default/a.*"


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("t/n/a**", 5, "bad repetition"),
        ("t/n/*a", 4, "no argument"),
        ("t/n/[abc", 4, "missing ]"),
        ("t/n/x(a(bc)", 5, "missing )"),
        ("t/n/ab(c))d", 9, "unexpected )"),
        ("t/n/a{1001}", 5, "repetition size"),
        ("t/n/[z-a]", 5, "class range"),
        ("t/n/[[:foo:]]", 5, "class range"),
        ("t/n/a\\", 5, "trailing"),
        (r"t/n/\\y\y", 7, "invalid escape"),
        ("t/n/x(?=a)", 5, "look-around"),
        ("t/n/x(?<!a)", 5, "look-around"),
        (r"t/n/(a)\1", 7, "back references"),
        ("t/n/é(?P<n", 5, "named capture"),
        (r"persistent://t/n/[(]\(x)", 23, "unexpected )"),
        ("a(b", 1, "missing )"),
        ("t/n/", 4, "empty"),
        ("", 0, "empty"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_position(text: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=f"at character {position}: ") as caught:
        parse_pattern(text)
    assert caught.value.position == position
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("persistent://public/default/a.*|persistent://public/other/b.*", 42),
        ("public/default/a.*|public/other/b.*", 25),
        ("public/.*/a", 7),
        ("public/(default|other)/a", 7),
        ("p.*/default/a", 0),
        ("public/default/a/b", 16),
        ("public/default", 14),
        ("persistent://orders-.*", 22),
        ("persistent://(public/default|public/other)/a", 42),
        ("public//a", 7),
        ("non-persistent://public/default/a", 14),
        (".*://public/default/a", 2),
    ],
)
def test_a_pattern_over_several_namespaces_or_domains_is_refused(text: str, position: int) -> None:
    with pytest.raises(InvalidPattern, match="one namespace") as caught:
        parse_pattern(text)
    assert caught.value.position == position


def test_a_pattern_has_a_limit_of_characters() -> None:
    assert parse_pattern("a" * PATTERN_CHARACTERS_MAX).matches("a" * PATTERN_CHARACTERS_MAX)
    with pytest.raises(InvalidPattern, match="1001 characters"):
        parse_pattern("a" * (PATTERN_CHARACTERS_MAX + 1))


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_what_no_name_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidPattern):
        parse_pattern(text)


HOSTILE = [
    "(a+)+b",
    "(a|aa)+b",
    "(x+x+)+y",
    "(.*a){20}b",
    "(.*.*.*.*)*b",
    "(?:a?){200}a{200}b",
    "[ab]*a[ab]{200}c",
    "(.*){1,32}(.*){1,32}[a-b]{1,100}x",
    ".*" * 400 + "x",
    "(" * 300 + "a" + ")*" * 300,
]


@pytest.mark.parametrize("regex", HOSTILE, ids=lambda regex: regex[:30])
def test_a_hostile_pattern_takes_linear_time(regex: str) -> None:
    pattern = parse_pattern(regex)

    def seconds(length: int) -> float:
        name = "a" * length
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            pattern.matches(name)
            best = min(best, time.perf_counter() - started)
        return best

    seconds(100)
    # Backtracking would need more than the age of the universe for the longer of these; quadratic time 1,024 times
    # as much as for the shorter one.
    assert seconds(320_000) < 200 * max(seconds(10_000), 1e-4)


@pytest.mark.parametrize("regex", ["((.*a){100}){10}.{0,1000}", "(abcdef){1000}" * 5, "(\\pL{1,100}){1,10}"])
def test_a_pattern_that_is_too_large_compiled_is_refused(regex: str) -> None:
    with pytest.raises(InvalidPattern, match=f"more than {PATTERN_MEMORY_BYTES_MAX} bytes"):
        parse_pattern(regex)


def test_a_refusal_is_found_in_bounded_time() -> None:
    escaped_before = r"\\y" * 320 + r"\y"
    started = time.perf_counter()
    with pytest.raises(InvalidPattern):
        parse_pattern(escaped_before)
    assert time.perf_counter() - started < 1.0


@given(st.text(alphabet="ab()[]{}*+?|\\/^$.:-Q1,E", max_size=30))
def test_every_text_is_a_pattern_or_is_refused_at_a_place_in_it(text: str) -> None:
    with suppress(InvalidPattern):
        pattern = parse_pattern(text)
        assert text.endswith(pattern.regex)
        assert pattern.matches("ab") is (re2.fullmatch(pattern.regex, "ab") is not None)
        return
    with pytest.raises(InvalidPattern) as caught:
        parse_pattern(text)
    assert caught.value.position is not None
    assert 0 <= caught.value.position <= len(text)
