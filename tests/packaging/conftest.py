"""Wheels and environments that the tests of this folder share. `.ci/packages` runs them; `make test` does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from environments import Interpreter, build_wheel, environment, interpreters, tracked_state, unpack


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack all files that git tracks here, as ``git archive`` gives them."""
    return unpack(tracked_state(), tmp_path_factory.mktemp("clone") / "source")


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def pythons() -> list[Interpreter]:
    found = interpreters()
    assert found, "no Python that is promised is here"
    return found


@pytest.fixture(scope="session")
def environments_in_use() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def plain(wheel: Path, pythons: list[Interpreter], environments_in_use: ExitStack) -> Path:
    """An environment with the wheel and no extra, of the oldest Python; its ``bin``."""
    return environments_in_use.enter_context(environment(pythons[0], wheel))


@pytest.fixture(scope="session")
def with_spark(wheel: Path, pythons: list[Interpreter], environments_in_use: ExitStack) -> Path:
    """One with the extras ``spark`` and ``demo``, of the newest Python."""
    return environments_in_use.enter_context(environment(pythons[-1], wheel, "spark", "demo"))
