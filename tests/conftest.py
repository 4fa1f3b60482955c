"""What every test may use: one Spark session for all, and the hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the tests, file by file; those with Spark go to one of them, as a session takes 10 s."""
    for item in items:
        group = "spark" if "spark" in getattr(item, "fixturenames", ()) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with the ``replicator`` source; started by the first test that asks for it."""
    from replicator.pipeline.spark.session import spark_session

    session = spark_session(app_name="tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def executor_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors of a cluster need, as ``replicator pipeline package`` writes it; Spark unpacks a zip
    file where there is no ``tar``."""
    from replicator.pipeline.spark.shipping import write_archive

    return write_archive(tmp_path_factory.mktemp("shipped") / "env.zip").path
