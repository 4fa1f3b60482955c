from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.wire.frames import InvalidFrame, Refusal
from replicator.client.wire.topic_frames import (
    REQUEST_BYTES_MAX,
    ListTopics,
    TopicReply,
    TopicRequest,
    Topics,
    TopicsChanged,
    Unwatch,
    Watch,
    decode_topic_reply,
    decode_topic_request,
    encode_topic_reply,
    encode_topic_request,
)
from replicator.engine.topics.topic_list import TopicListChange
from replicator.engine.topics.topic_patterns import PATTERN_CHARACTERS_MAX
from replicator.engine.topics.topic_watch import CHANGED_NAMES_MAX, LISTED_NAMES_MAX

IDS = st.integers(0, 2**31 - 1)
HASHES = st.text("0123456789abcdef", min_size=8, max_size=8)
NAMES = st.lists(st.from_regex(r"persistent://t/n/[a-z0-9.]{1,20}", fullmatch=True), max_size=5).map(tuple)
REQUESTS: st.SearchStrategy[TopicRequest] = st.one_of(
    st.builds(Watch, IDS, st.text(st.characters(exclude_categories=["Cs"]), max_size=100), st.none() | HASHES),
    st.builds(ListTopics, IDS, HASHES),
    st.builds(Unwatch, IDS),
)
REPLIES: st.SearchStrategy[TopicReply] = st.one_of(
    st.builds(Topics, IDS, HASHES, st.none() | NAMES),
    st.builds(TopicsChanged, IDS, st.builds(TopicListChange, NAMES, NAMES), HASHES),
    st.builds(Refusal, st.none() | IDS, st.just("InvalidPattern"), st.just("why")),
)


@given(REQUESTS)
def test_a_request_is_read_as_it_was_written(request: TopicRequest) -> None:
    assert decode_topic_request(encode_topic_request(request)) == request


@given(REPLIES)
def test_a_reply_is_read_as_it_was_written(reply: TopicReply) -> None:
    assert decode_topic_reply(encode_topic_reply(reply)) == reply


def test_a_poll_of_what_has_not_changed_is_small() -> None:
    assert len(encode_topic_request(ListTopics(100, "01234567"))) < 50
    assert len(encode_topic_reply(Topics(100, "01234567", None))) < 65


def test_the_longest_pattern_fits_in_a_request() -> None:
    assert (
        len(encode_topic_request(Watch(2**31 - 1, "\U0001f600" * PATTERN_CHARACTERS_MAX, "0" * 8))) < REQUEST_BYTES_MAX
    )


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        "{}",
        '{"type": "lists", "id": 1, "hash": "01234567"}',
        '{"type": "list", "id": "1", "hash": "01234567"}',
        '{"type": "list", "id": 1.0, "hash": "01234567"}',
        '{"type": "list", "id": true, "hash": "01234567"}',
        '{"type": "list", "id": 2147483648, "hash": "01234567"}',
        '{"type": "list", "id": 1}',
        '{"type": "list", "id": 1, "hash": "0123456"}',
        '{"type": "watch", "id": 1}',
        '{"type": "watch", "id": 1, "pattern": 7}',
        '{"type": "watch", "id": 1, "pattern": "\\ud800"}',
        json.dumps({"type": "watch", "id": 1, "pattern": "a" * 2_001}),
        b'{"type": "unwatch", "id": 1}',
    ],
)
def test_a_request_that_makes_no_sense_is_refused(frame: str | bytes) -> None:
    with pytest.raises(InvalidFrame):
        decode_topic_request(frame)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "topics", "id": 1, "hash": "01234567", "names": "persistent://t/n/a"},
        {"type": "topics", "id": 1, "hash": "01234567", "names": [1]},
        {"type": "topics", "id": 1, "hash": "01234567", "names": [""]},
        {"type": "topics", "id": 1, "hash": "01234567", "names": ["\ud800"]},
        {"type": "topics", "id": 1, "hash": "01234567", "names": ["a" * 401]},
        {"type": "topics", "id": 1, "hash": "01234567", "names": ["a"] * (LISTED_NAMES_MAX + 1)},
        {"type": "changed", "id": 1, "hash": "01234567", "added": ["a"]},
        {"type": "changed", "id": 1, "hash": "01234567", "added": ["a"] * (CHANGED_NAMES_MAX + 1), "deleted": []},
        {"type": "error", "id": -1, "error": "x", "message": "y"},
    ],
)
def test_a_reply_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidFrame):
        decode_topic_reply(json.dumps(fields))
