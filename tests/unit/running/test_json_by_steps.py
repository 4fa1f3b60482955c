"""Large JSON is read and written value by value, so that other threads run meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from replicator.running.json_by_steps import dumps_by_steps, loads_by_steps

ROWS = 2_000
VALUE = {
    "cluster": "us-east",
    "states": [{"head": {"version": 7}, "rows": [["policies", f"topic-{row}", '{"a": "ü"}'] for row in range(ROWS)]}],
    "none": None,
    "numbers": [1, -2.5, 1e300, True, False],
}


def calls(work: Callable[[], Any]) -> int:
    """Return how many Python functions ``work`` calls, or goes on with: between two of them other threads may run."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def test_a_value_is_read_and_written_in_many_steps_and_is_the_same() -> None:
    text = json.dumps(VALUE)
    assert loads_by_steps(text) == loads_by_steps(text.encode()) == VALUE
    assert dumps_by_steps(VALUE) == text.encode()
    assert calls(lambda: loads_by_steps(text)) > ROWS
    assert calls(lambda: dumps_by_steps(VALUE)) > ROWS


@pytest.mark.parametrize("text", ["", "{", '{"a": 1,}', "[1 2]", '"\x01"', "nul", "[" * 100_000])
def test_what_is_no_json_raises_what_the_usual_decoder_raises(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        json.loads(text)
    with pytest.raises((ValueError, RecursionError)):
        loads_by_steps(text)
