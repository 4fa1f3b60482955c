"""The suite tries the same examples each time, whatever the process has run before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    """Return the numbers that a property test tries here and now."""
    found: list[int] = []

    @settings(max_examples=200)
    @given(st.integers())
    def note(number: int) -> None:
        found.append(number)

    note()
    return found


def test_examples_do_not_depend_on_the_modules_that_other_tests_have_loaded(tmp_path: Path) -> None:
    if settings.get_current_profile_name() != "default":
        pytest.skip("a soak draws other examples each time")
    before = drawn()
    module = tmp_path / "many_constants.py"
    module.write_text(f"NUMBERS = {[7_000_003 + 97 * each for each in range(300)]}\n")
    spec = importlib.util.spec_from_file_location("many_constants", module)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["many_constants"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules["many_constants"])
        assert drawn() == before
    finally:
        del sys.modules["many_constants"]
