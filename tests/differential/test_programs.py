"""Each program sees the same at an Apache Pulsar broker and at ours, but for what docs/compatibility.md says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pulsar")

from differential import programs  # noqa: F401
from differential.harness import PROGRAMS, Program, agrees_in_one


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_program_sees_is_the_same(program: Program, runs: Any) -> None:
    agrees_in_one(program, runs.seen(program))
