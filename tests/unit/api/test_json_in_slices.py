"""Large JSON that is read with pauses is read as by the standard reader."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.api import json_in_slices
from replicator.api.websocket.fields import BadField
from replicator.api.websocket.frames import Unsendable, read_command, read_message
from replicator.running.pacing import Pace
from replicator.running.turns import SLICE_SECONDS, FairScheduler

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)


class Paced:
    """Loop in which each look at the clock uses up a slice, so that every possible pause happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0

    def clock(self) -> float:
        self.now += SLICE_SECONDS
        return self.now

    def read(self, body: bytes) -> Any:
        async def read() -> Any:
            loop = asyncio.get_running_loop()

            def soon(call: Any) -> None:
                self.pauses += 1
                loop.call_soon(call)

            return await json_in_slices.json_in_slices(body, Pace(FairScheduler(self.clock, soon)))

        return asyncio.run(read())


@pytest.fixture(autouse=True, scope="module", params=[1, 7, json_in_slices.AT_ONCE_CHARACTERS])
def everything_is_large(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_in_slices, "SMALL_BYTES", 0)
        patched.setattr(json_in_slices, "AT_ONCE_CHARACTERS", request.param)
        yield


@settings(max_examples=50, deadline=None)
@given(VALUES, st.sampled_from([None, 2]), st.sampled_from(["utf-8", "utf-16", "utf-32-be"]))
def test_what_is_read_with_pauses_is_the_same(value: Any, indent: int | None, encoding: str) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=False).encode(encoding, "surrogatepass")
    assert Paced().read(body) == value


@settings(max_examples=80, deadline=None)
@given(VALUES, st.integers(0, 200), st.sampled_from(["", ",", "}", "]", "[", "{", '"', ":", " ", "1", "nul"]))
def test_what_is_no_json_is_refused_and_all_else_is_read(value: Any, at: int, put: str) -> None:
    """The reader agrees with the standard one on texts with a character too many or too few."""
    text = json.dumps({"messages": [value, value], "more": value})
    body = (text[:at] + put + text[at + 1 :]).encode()
    try:
        wanted = json.loads(body)
    except ValueError:
        with pytest.raises(ValueError, match=r"char|Extra|Expecting|Invalid|Unterminated"):
            Paced().read(body)
    else:
        assert Paced().read(body) == wanted


def test_others_have_a_turn_between_the_elements_of_a_list() -> None:
    paced = Paced()
    values = [1] * 50_000
    assert paced.read(json.dumps({"messages": values}).encode()) == {"messages": values}
    assert paced.pauses >= 50


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"x": [[]] * 50_000}]},
        {"topics": {"t": [[]] * 50_000}},
        [{}] * 50_000,
        {"p": {"q": {"r": [[[]]] * 9_000}}},
    ],
)
def test_others_have_a_turn_within_one_large_value(value: Any) -> None:
    paced = Paced()
    assert paced.read(json.dumps(value).encode()) == value
    assert paced.pauses >= 5


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"payload":"","x":[' + "[]," * 20_000 + "[]]}", False),
        ('{"payload":"","properties":{' + ",".join(f'"{n}":""' for n in range(20_000)) + "}}", False),
        ("[" * 50_000, False),
        ('"a",' * 50_000, False),
        ('{"payload":"' + "AAAA" * 100_000 + '"}', True),
        (json.dumps({"payload": "", "properties": {f"key-{n}": "value" for n in range(900)}}), True),
        (json.dumps({"payload": "", "properties": {"json": json.dumps([{"a": 1}] * 20_000)}}), True),
        (json.dumps({"p": "\\", "x": [['\\"']] * 20_000}), False),
        ('{"payload": "' + ",:[{" * 10_000, True),  # it ends within a string: nobody reads further
    ],
)
def test_a_text_with_too_many_values_is_refused_before_it_is_read(text: str, values: bool) -> None:
    if values:
        json_in_slices.check_values(text, 10_000)
        return
    with pytest.raises(json_in_slices.TooManyValues, match="more than about 5,000 values"):
        json_in_slices.check_values(text, 10_000)


def test_a_body_with_too_many_values_is_refused() -> None:
    body = json.dumps({"messages": [{"x": [[]] * 2_000, "y": ",:[{" * 5_000}]}).encode()

    async def read(marks_max: int) -> Any:
        return await json_in_slices.json_in_slices(body, Pace(FairScheduler(lambda: 0.0, lambda _: None)), marks_max)

    with pytest.raises(json_in_slices.TooManyValues):
        asyncio.run(read(4_000))
    assert asyncio.run(read(5_000)) == json.loads(body)


@pytest.mark.parametrize(
    "text",
    [
        '{"payload":"","context":"1","x":[' + "[]," * 500_000 + "[]]}",
        '{"payload":"","properties":{' + ",".join(f'"{n}":""' for n in range(100_000)) + "}}",
    ],
)
def test_a_frame_of_a_websocket_with_too_many_values_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(Unsendable, match="send fewer properties"):
        read_message(text, 0)
    with pytest.raises(BadField, match="send fewer properties"):
        read_command(text)


def test_a_frame_with_the_largest_payload_and_hundreds_of_properties_is_read() -> None:
    properties = {f"key {number}": '{"a": [1, 2, 3]}' for number in range(900)}
    frame = json.dumps({"payload": "QUJD" * 1_700_000, "properties": properties, "context": "1"})
    message = read_message(frame, 0).message
    assert message.properties == properties
