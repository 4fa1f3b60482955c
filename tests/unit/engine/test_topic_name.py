from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import InvalidSubscriptionName, InvalidTopicName
from replicator.engine.topic_name import (
    SUBSCRIPTION_NAME_BYTES_MAX,
    TOPIC_NAME_BYTES_MAX,
    check_subscription_name,
    parse_topic,
)


@pytest.mark.parametrize("text", ["orders", "public/default/orders", "persistent://public/default/orders"])
def test_all_forms_of_a_name_are_one_topic(text: str) -> None:
    assert str(parse_topic(text)) == "persistent://public/default/orders"


def test_a_partition_knows_its_index() -> None:
    assert parse_topic("orders-partition-12").partition == 12
    assert parse_topic("orders").partition == -1
    assert parse_topic("orders-partition-archive").partition == -1
    assert parse_topic(".-partition-0").partition == -1, "no topic has the name of its base"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        ".",
        "a..b",
        "../../etc/passwd",
        "public/../orders",
        "persistent://orders",
        "persistent://a/b",
        "persistent://a/b/c/d",
        "persistent://a//c",
        "non-persistent://a/b/c",
        "a b",
        "a\0b",
        "a\n",
        "оrders",  # a Cyrillic o
        "\udcff",
        "a%2f..",
        "x" * (TOPIC_NAME_BYTES_MAX + 1),
        "x" * (TOPIC_NAME_BYTES_MAX - 5),  # its full form is over the limit
    ],
)
def test_a_name_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        parse_topic(text)


@given(st.text(max_size=500))
def test_what_is_taken_is_safe_and_stable(text: str) -> None:
    try:
        name = str(parse_topic(text))
    except InvalidTopicName:
        return
    assert re.fullmatch(r"persistent://[\w=:.-]+/[\w=:.-]+/[\w=:.-]+", name, re.ASCII)
    assert ".." not in name
    assert len(name) <= TOPIC_NAME_BYTES_MAX
    assert str(parse_topic(name)) == name


@pytest.mark.parametrize("text", ["", " ", "a\0", "a\nb", "\ud800", "x" * (SUBSCRIPTION_NAME_BYTES_MAX + 1), "ü" * 201])
def test_a_subscription_name_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidSubscriptionName):
        check_subscription_name(text)


@pytest.mark.parametrize("text", ["a b", "a/b", "..", "über:s$%", "名前", "<b>", "a" * 300])
def test_a_subscription_is_named_as_users_like(text: str) -> None:
    assert check_subscription_name(text) == text


def test_the_longest_names_are_taken() -> None:
    assert check_subscription_name("s" * SUBSCRIPTION_NAME_BYTES_MAX)
    prefix = len("persistent://public/default/")
    assert len(str(parse_topic("t" * (TOPIC_NAME_BYTES_MAX - prefix)))) == TOPIC_NAME_BYTES_MAX
