"""Frames survive the wire; whatever else comes is an InvalidFrame, and nothing but that."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicator.client.wire.channel import ProducerReady
from replicator.client.wire.frame_codec import decode_reply, decode_request, encode_reply, encode_request
from replicator.client.wire.frames import (
    ACKS_PER_FRAME_MAX,
    ENTRIES_PER_FRAME_MAX,
    PERMITS_MAX,
    PRIORITY_MAX,
    PROPERTIES_CHARACTERS_MAX,
    STICKY_RANGES_MAX,
    VALUES_PER_FRAME_MAX,
    Acknowledge,
    AcknowledgeCumulative,
    Active,
    AskLastPosition,
    Closed,
    Deliver,
    Done,
    Flow,
    InvalidFrame,
    LastPosition,
    Produce,
    Publish,
    Ready,
    Receipt,
    Redeliver,
    Redelivering,
    Refusal,
    Reply,
    Request,
    Restarted,
    RestartSeen,
    Seek,
    Subscribe,
    Unsubscribe,
)
from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.engine.types import (
    DUPLICATE,
    AccessMode,
    Ack,
    Delivery,
    HashRange,
    InitialPosition,
    KeySharedPolicy,
    ProducerOptions,
    SubscribeOptions,
    SubscriptionType,
)
from snapshots.position import BEFORE_ALL, Position

# Every frame, within the limits.

_IDS = st.integers(0, 2**63 - 1)
_UNICODE = st.characters(codec="utf-8")
_TEXT = st.text(_UNICODE, max_size=20)
_NAME = st.text(_UNICODE, min_size=1, max_size=200)
_PROPERTIES = st.dictionaries(_TEXT, _TEXT, max_size=4)
_POSITIONS = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**64 - 1)) | st.builds(
    Position, st.integers(1, 2), st.integers(0, 5)
)
_ENTRIES = st.binary(max_size=30)
_RANGES = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535)).map(lambda pair: HashRange(*sorted(pair)))
_INDEXES = st.lists(st.integers(0, BATCH_MESSAGES_MAX), min_size=1, unique=True).map(lambda some: tuple(sorted(some)))
_PRODUCER_OPTIONS = st.builds(
    ProducerOptions, st.none() | _NAME, st.sampled_from(AccessMode), st.none() | _IDS, _PROPERTIES
)
_SUBSCRIBE_OPTIONS = st.builds(
    SubscribeOptions,
    type=st.sampled_from(SubscriptionType),
    consumer_name=st.text(_UNICODE, max_size=200),
    priority=st.integers(0, PRIORITY_MAX),
    key_shared=st.builds(KeySharedPolicy, st.none() | st.lists(_RANGES, max_size=5).map(tuple), st.booleans()),
    consumer_properties=_PROPERTIES,
    initial=st.sampled_from(InitialPosition),
    start=st.none() | _POSITIONS,
    durable=st.booleans(),
    replicated=st.none() | st.booleans(),
    read_compacted=st.booleans(),
    subscription_properties=_PROPERTIES,
)
_REQUESTS: dict[type[Request], st.SearchStrategy[Request]] = {
    Produce: st.builds(Produce, _TEXT, _PRODUCER_OPTIONS),
    Publish: st.builds(Publish, _IDS, st.lists(st.binary(min_size=1, max_size=30), min_size=1).map(tuple)),
    Subscribe: st.builds(Subscribe, _TEXT, _TEXT, _SUBSCRIBE_OPTIONS),
    Flow: st.builds(Flow, st.integers(1, PERMITS_MAX)),
    Acknowledge: st.builds(
        Acknowledge, _IDS, st.lists(st.builds(Ack, _POSITIONS, st.none() | _INDEXES), min_size=1).map(tuple)
    ),
    AcknowledgeCumulative: st.builds(
        AcknowledgeCumulative, _IDS, _POSITIONS, st.none() | st.integers(0, BATCH_MESSAGES_MAX)
    ),
    Redeliver: st.builds(Redeliver, st.none() | st.lists(_POSITIONS).map(tuple)),
    RestartSeen: st.just(RestartSeen()),
    Seek: st.builds(Seek, _IDS, _POSITIONS | _IDS),
    AskLastPosition: st.builds(AskLastPosition, _IDS),
    Unsubscribe: st.builds(Unsubscribe, _IDS, st.booleans()),
}
_DELIVERIES = st.builds(
    Delivery,
    position=_POSITIONS,
    redelivery_count=_IDS,
    batch_size=st.integers(1, BATCH_MESSAGES_MAX),
    acked=st.none() | st.binary(max_size=20),
    entry=_ENTRIES,
    origin=_TEXT,
    origin_position=_POSITIONS,
)
_REPLIES: dict[type[Reply], st.SearchStrategy[Reply]] = {
    Ready: st.builds(
        Ready,
        _TEXT,
        _TEXT,
        st.none() | st.builds(ProducerReady, _NAME, st.integers(-1, 2**63 - 1), st.none() | _IDS),
    ),
    Receipt: st.builds(Receipt, _IDS, st.lists(_POSITIONS | st.just(DUPLICATE)).map(tuple)),
    Done: st.builds(Done, _IDS),
    LastPosition: st.builds(LastPosition, _IDS, _POSITIONS),
    Refusal: st.builds(Refusal, st.none() | _IDS, _TEXT, _TEXT),
    Redelivering: st.just(Redelivering()),
    Restarted: st.just(Restarted()),
    Active: st.builds(Active, st.booleans()),
    Closed: st.builds(Closed, _TEXT, _TEXT),
    Deliver: st.builds(Deliver, st.lists(_DELIVERIES).map(tuple)),
}


def test_the_properties_below_know_every_frame() -> None:
    assert set(_REQUESTS) == set(get_args(Request))
    assert set(_REPLIES) == set(get_args(Reply))


@given(st.one_of(*_REQUESTS.values()))
def test_a_request_survives_the_wire(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@given(st.one_of(*_REPLIES.values()))
@example(Receipt(1, (DUPLICATE, DUPLICATE, Position(1, 0), DUPLICATE)))
@example(Receipt(1, (BEFORE_ALL, Position(0, 0))))
def test_a_reply_survives_the_wire(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_consecutive_positions_and_indexes_travel_as_ranges() -> None:
    receipt = encode_reply(Receipt(1, tuple(Position(1, entry) for entry in range(1000))))
    assert json.loads(receipt)["positions"] == [[1, 0, 1000]]
    acks = encode_request(Acknowledge(1, (Ack(Position(1, 0), (3, 1, 2, 7)),)))
    assert json.loads(acks)["acks"] == [[1, 0, [[1, 3], [7, 7]]]]


def _changed(request: Request, **fields: object) -> str:
    """The frame of a request, with these fields put in its place; a dotted name reaches into an object."""
    frame = json.loads(encode_request(request))
    for name, value in fields.items():
        *path, last = name.split("__")
        inside = frame
        for step in path:
            inside = inside[step]
        inside[last] = value
    return json.dumps(frame)


_PRODUCE = Produce("t", ProducerOptions("p"))
_SUBSCRIBE = Subscribe("t", "s", SubscribeOptions(type=SubscriptionType.KEY_SHARED, consumer_name="c"))
_SEEK = Seek(1, Position(1, 2))


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
        (json.dumps({"type": "ack", "id": 1, "acks": [[1, 2, [[0, 99_999]]]] * 11}), "more than 200000"),
        ('{"type": "ack", "id": -1, "acks": [[1, 2]]}', "id is -1"),
        ('{"type": "ack_cumulative", "id": 1, "position": null, "batch_index": null}', "not a position"),
        ('{"type": "redeliver", "positions": 7}', "positions must be an array"),
        (_changed(_PRODUCE, producer_name=""), "producer_name is ''"),
        (_changed(_PRODUCE, producer_name="x" * 201), "text of 1 to 200 characters"),
        (_changed(_PRODUCE, producer_name=5), "producer_name is 5"),
        (_changed(_PRODUCE, access_mode="Mine"), "access_mode is 'Mine'; expected one of Shared, Exclusive, WaitFor"),
        (_changed(_PRODUCE, access_mode=None), "access_mode is None"),
        (_changed(_PRODUCE, topic_epoch=-1), "topic_epoch is -1"),
        (_changed(_PRODUCE, properties=None), "properties must be an object"),
        (_changed(_PRODUCE, properties={"a": 1}), "properties must be an object of strings"),
        (_changed(_PRODUCE, properties={"\ud800": "x"}), "properties must be an object of strings"),
        (_changed(_PRODUCE, properties={"a": "x" * PROPERTIES_CHARACTERS_MAX}), "characters together"),
        (_changed(_PRODUCE, topic="\ud800"), "topic is"),
        (_changed(_SUBSCRIBE, consumer_type="Quantum"), "consumer_type is 'Quantum'; expected one of Exclusive, Fail"),
        (_changed(_SUBSCRIBE, consumer_type=["Shared"]), "consumer_type is ['Shared']"),
        (_changed(_SUBSCRIBE, initial_position="Middle"), "initial_position is 'Middle'"),
        (_changed(_SUBSCRIBE, priority=-1), "priority is -1"),
        (_changed(_SUBSCRIBE, priority=PRIORITY_MAX + 1), "priority is"),
        (_changed(_SUBSCRIBE, key_shared=None), "key_shared is None; expected an object"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges=[[0, 65_536]]), "sticky_ranges: end is 65536"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges=[[-1, 5]]), "sticky_ranges: start is -1"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges=[[6, 5]]), "sticky_ranges: end is 5"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges=[[6]]), "[6] is not a range"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges="all"), "sticky_ranges must be an array"),
        (_changed(_SUBSCRIBE, key_shared__sticky_ranges=[[0, 0]] * (STICKY_RANGES_MAX + 1)), "at most"),
        (_changed(_SUBSCRIBE, key_shared__allow_out_of_order_delivery=1), "allow_out_of_order_delivery is 1"),
        (_changed(_SUBSCRIBE, durable="yes"), "durable is 'yes'"),
        (_changed(_SUBSCRIBE, read_compacted=None), "read_compacted is None"),
        (_changed(_SUBSCRIBE, start=[1]), "start: [1] is not a position"),
        (_changed(_SUBSCRIBE, start=[1, -2]), "entry is -2"),
        (_changed(_SUBSCRIBE, subscription_properties=[]), "subscription_properties must be an object"),
        (_changed(_SEEK, position=None), "seek: expected a position or a publish_time_ms"),
        (_changed(_SEEK, publish_time_ms=5), "seek: expected a position or a publish_time_ms"),
        (_changed(_SEEK, position=None, publish_time_ms=-5), "publish_time_ms is -5"),
        (_changed(_SEEK, id="1"), "id is '1'"),
        ('{"type": "unsubscribe", "id": 1}', "force is None"),
        ('{"type": "last_position"}', "id is None"),
        (b"", "shorter than its header"),
        (b"\xff\xff\xff\xff", "says that its header"),
        (b"\x00\x00\x00\x02ab", "not JSON"),
        (_binary({"type": "deliver", "entries": []}), "of type 'deliver'"),
        (_binary({"type": "publish", "id": 1, "sizes": []}), "no entries"),
        (_binary({"type": "publish", "id": 1, "sizes": [4]}, b"abc"), "size is 4"),
        (_binary({"type": "publish", "id": 1, "sizes": [-1]}, b"abc"), "size is -1"),
        (_binary({"type": "publish", "id": 1, "sizes": [2]}, b"abc"), "1 bytes after"),
        (_binary({"type": "publish", "sizes": [3]}, b"abc"), "id is None"),
        ('{"type":"ack","id":1,"acks":[' + "[]," * VALUES_PER_FRAME_MAX + "[]]}", "arrays and objects"),
        ('{"type":"ack","id":1,"acks":[[1,2,[[0,99999],[0,99999],[0,0]]]]}', "batch indexes"),
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


def _header(frame: str | bytes) -> dict[str, Any]:
    if isinstance(frame, str):
        return dict(json.loads(frame))
    return dict(json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "big")]))


@st.composite
def _bent_frames(draw: st.DrawFn) -> str | bytes:
    """A good frame, in which some fields have another value, some are gone, and the entries are others."""
    request = draw(st.booleans())
    frame = (
        encode_request(draw(st.one_of(*_REQUESTS.values())))
        if request
        else encode_reply(draw(st.one_of(*_REPLIES.values())))
    )
    header = _header(frame)
    for name in draw(st.lists(st.sampled_from(sorted(header)), max_size=2)):
        if draw(st.booleans()):
            header[name] = draw(_JSON)
        else:
            header.pop(name, None)
    return json.dumps(header) if isinstance(frame, str) else _binary(header, draw(st.binary(max_size=20)))


@given(st.one_of(st.text(), st.binary(), _JSON.map(json.dumps), _bent_frames()))
@example("9" * 5_000)
@example('{"type": "done", "id": ' + "9" * 5_000 + "}")
def test_any_other_frame_is_an_invalid_frame_and_nothing_else(frame: str | bytes) -> None:
    for decode in (decode_request, decode_reply):
        with suppress(InvalidFrame):
            decode(frame)


def test_a_receipt_cannot_name_more_positions_than_a_frame_can_have_entries() -> None:
    with pytest.raises(InvalidFrame, match="count is"):
        decode_reply(json.dumps({"type": "receipt", "id": 1, "positions": [[1, 0, ENTRIES_PER_FRAME_MAX + 1]]}))
