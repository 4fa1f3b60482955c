"""Processes that live for a second import what they need and no more: Spark starts a Python for each call of a data
source, and a command is a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("replicator.pipeline.source.source", {"aiohttp", "pydantic", "structlog", "sqlalchemy", "replicator.client"}),
        (
            "replicator.pipeline.live.link_source",
            {"aiohttp", "pydantic", "structlog", "sqlalchemy", "replicator.engine"},
        ),
        ("replicator.cli.main", {"aiohttp", "pydantic", "sqlalchemy", "numpy", "pyarrow", "lmdb"}),
    ],
)
def test_what_lives_shortly_does_not_import_what_it_has_no_use_for(module: str, left_out: set[str]) -> None:
    program = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    imported = set(done.stdout.split())
    assert module in imported
    assert imported & left_out == set()
