"""Frames survive the wire; whatever else comes is an InvalidFrame, and nothing but that."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.frame_codec import decode_reply, decode_request, encode_reply, encode_request
from replicator.client.frames import (
    ACKS_PER_FRAME_MAX,
    PERMITS_MAX,
    Acknowledge,
    AcknowledgeCumulative,
    Closed,
    Deliver,
    Done,
    Flow,
    InvalidFrame,
    Produce,
    Publish,
    Ready,
    Receipt,
    Redeliver,
    Redelivering,
    Refusal,
    Reply,
    Request,
    Subscribe,
    Unsubscribe,
)
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscriptionType
from snapshots.position import Position

REQUESTS: list[Request] = [
    Produce("persistent://a/b/c", "p"),
    Publish(7, (b"one", b"three")),
    Subscribe("t", "s", SubscriptionType.SHARED, "c", InitialPosition.EARLIEST, True, {"k": "v"}),
    Flow(1000),
    Acknowledge(3, (Ack(Position(1, 2)), Ack(Position(1, 3), (0, 1, 2, 9)))),
    AcknowledgeCumulative(4, Position(1, 2), None),
    AcknowledgeCumulative(4, Position(1, 2), 5),
    Redeliver(None),
    Redeliver((Position(1, 2), Position(2**64 - 1, 0))),
    Unsubscribe(0),
]
REPLIES: list[Reply] = [
    Ready("t", "us-east"),
    Receipt(7, (Position(1, 2), Position(1, 3), Position(2, 0), Position(2, 2))),
    Done(3),
    Refusal(None, "InvalidFrame", "why"),
    Refusal(3, "InvalidAck", "why"),
    Redelivering(),
    Closed("stopping"),
    Deliver(
        (
            Delivery(Position(1, 2), 0, 1, None, b"entry", "us-east", Position(1, 2)),
            Delivery(Position(1, 3), 4, 10, b"\x00\xff", b"", "eu-west", Position(8, 0)),
        )
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_survives_the_wire(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_survives_the_wire(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_consecutive_positions_and_indexes_travel_as_ranges() -> None:
    receipt = encode_reply(Receipt(1, tuple(Position(1, entry) for entry in range(1000))))
    assert json.loads(receipt)["positions"] == [[1, 0, 1000]]
    acks = encode_request(Acknowledge(1, (Ack(Position(1, 0), (3, 1, 2, 7)),)))
    assert json.loads(acks)["acks"] == [[1, 0, [[1, 3], [7, 7]]]]


def _binary(header: object, body: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack(">I", len(encoded)) + encoded + body


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "type is None"),
        ('{"type": 5}', "type is 5"),
        ('{"type": "dance"}', "unknown type of frame 'dance'"),
        ('{"type": "publish", "id": 1}', "unknown type"),
        ('{"type": "flow", "permits": -1}', "permits is -1"),
        ('{"type": "flow", "permits": 0}', "permits is 0"),
        ('{"type": "flow", "permits": true}', "permits is True"),
        ('{"type": "flow", "permits": 1.5}', "permits is 1.5"),
        (f'{{"type": "flow", "permits": {PERMITS_MAX + 1}}}', "permits is"),
        ('{"type": "ack", "id": 1, "acks": []}', "empty"),
        ('{"type": "ack", "id": 1, "acks": [[1]]}', "expected"),
        ('{"type": "ack", "id": 1, "acks": [[1, "2"]]}', "entry is '2'"),
        ('{"type": "ack", "id": 1, "acks": [[1, 2, []]]}', "no batch index"),
        ('{"type": "ack", "id": 1, "acks": [[1, 2, [[5, 3]]]]}', "last index is 3"),
        ('{"type": "ack", "id": 1, "acks": [[1, 2, [[0, 1000000000000]]]]}', "last index"),
        ('{"type": "ack", "id": 1, "acks": [[1, 2, [0]]]}', "expected ranges"),
        (json.dumps({"type": "ack", "id": 1, "acks": [[1, 2]] * (ACKS_PER_FRAME_MAX + 1)}), "at most"),
        (json.dumps({"type": "ack", "id": 1, "acks": [[1, 2, [[0, 99_999]]]] * 11}), "more than 1000000"),
        ('{"type": "ack", "id": -1, "acks": [[1, 2]]}', "id is -1"),
        ('{"type": "ack_cumulative", "id": 1, "position": null, "batch_index": null}', "not a position"),
        ('{"type": "redeliver", "positions": 7}', "positions must be an array"),
        ('{"type": "produce", "topic": "t"}', "producer_name is None"),
        ('{"type": "subscribe", "topic": "t", "subscription": "s", "consumer_type": "Quantum"}', "Quantum"),
        (b"", "shorter than its header"),
        (b"\xff\xff\xff\xff", "says that its header"),
        (b"\x00\x00\x00\x02ab", "not JSON"),
        (_binary({"type": "deliver", "entries": []}), "of type 'deliver'"),
        (_binary({"type": "publish", "id": 1, "sizes": []}), "no entries"),
        (_binary({"type": "publish", "id": 1, "sizes": [4]}, b"abc"), "size is 4"),
        (_binary({"type": "publish", "id": 1, "sizes": [-1]}, b"abc"), "size is -1"),
        (_binary({"type": "publish", "id": 1, "sizes": [2]}, b"abc"), "1 bytes after"),
        (_binary({"type": "publish", "sizes": [3]}, b"abc"), "id is None"),
    ],
)
def test_a_malformed_request_says_what_is_wrong(frame: str | bytes, reason: str) -> None:
    with pytest.raises(InvalidFrame) as caught:
        decode_request(frame)
    assert reason in str(caught.value)


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_TEXT_FRAMES = [
    frame for frame in (*map(encode_request, REQUESTS), *map(encode_reply, REPLIES)) if isinstance(frame, str)
]
_TYPES = st.sampled_from(sorted({"publish", "deliver"} | {json.loads(frame)["type"] for frame in _TEXT_FRAMES}))
_NAMES = st.sampled_from(
    ["id", "acks", "permits", "positions", "position", "batch_index", "topic", "entries", "sizes", "properties"]
)


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.builds(lambda kind, fields: json.dumps({**fields, "type": kind}), _TYPES, st.dictionaries(_NAMES, _JSON)),
        st.builds(
            lambda kind, fields, body: _binary({**fields, "type": kind}, body),
            _TYPES,
            st.dictionaries(_NAMES, _JSON),
            st.binary(max_size=20),
        ),
    )
)
def test_any_other_frame_is_an_invalid_frame_and_nothing_else(frame: str | bytes) -> None:
    for decode in (decode_request, decode_reply):
        with suppress(InvalidFrame):
            decode(frame)
