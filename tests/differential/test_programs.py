"""Each program sees the same at an Apache Pulsar broker and at ours, but for what docs/compatibility.md says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pulsar")

from differential import programs  # noqa: F401
from differential.harness import PROGRAMS, Program


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_program_sees_is_the_same(program: Program, runs: Any) -> None:
    theirs, ours = runs.seen(program)
    assert "failed" not in theirs if isinstance(theirs, dict) else True, theirs
    if program.differs is None:
        assert ours == theirs
        return
    here = program.differs.here
    assert ours == (here(theirs) if callable(here) else here)
    assert ours != theirs, f"{program.differs.why} is no difference any more: {program.name}"
