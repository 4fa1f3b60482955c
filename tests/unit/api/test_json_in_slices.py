"""Large JSON that is read with pauses is read as by the standard reader."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.api import json_in_slices
from replicator.running.pacing import Pace
from replicator.running.turns import SLICE_SECONDS, Turns

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

            return await json_in_slices.json_in_slices(body, Pace(Turns(self.clock, soon)))

        return asyncio.run(read())


@pytest.fixture(autouse=True, scope="module")
def everything_is_large() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_in_slices, "SMALL_BYTES", 0)
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
    assert paced.read(json.dumps({"messages": [1] * 50}).encode()) == {"messages": [1] * 50}
    assert paced.pauses >= 50
