"""`replicator db downgrade` while workers run: they would take the schema up again, or fail on what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import forked_commands
import psycopg
import pytest
from failover_support import Deployment, deployment

from replicator.index.database import head_revision


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Deployment]:
    """Two clusters that share a database."""
    with deployment(tmp_path, "A", "B", links="[]", databases=dict.fromkeys("AB", postgres_url)) as deployed:
        yield deployed


def test_a_database_is_taken_back_only_when_no_worker_runs_that_uses_it(pair: Deployment, postgres_url: str) -> None:
    def revision() -> str:
        with psycopg.connect(postgres_url.replace("postgresql+psycopg://", "postgresql://")) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            assert row is not None
            return str(row[0])

    def downgrade(name: str, file: str = "topology.yaml") -> tuple[int, str]:
        arguments = ("db", "downgrade", "-f", file, "--cluster", name, "--to", "0003")
        done = forked_commands.run(*arguments, cwd=pair.path)
        return done.returncode, done.stderr

    elsewhere = pair.path / "elsewhere.yaml"
    elsewhere.write_text(pair.file.read_text().replace("data: data-", "data: not-here-"))
    for name in "AB":
        status, said = downgrade(name)
        assert (status, "the worker of A runs on " in said) == (2, True), said
    status, said = downgrade("A", "elsewhere.yaml")
    assert (status, f"runs and answers at 127.0.0.1:{pair.ports['A']}" in said) == (2, True), said
    pair.kill("A")
    for file in ("topology.yaml", "elsewhere.yaml"):
        status, said = downgrade("A", file)
        assert (status, "the worker of B runs " in said) == (2, True), said
    assert revision() == head_revision()
    pair.stop()
    assert downgrade("A") == (0, "")
    assert revision() == "0003"
