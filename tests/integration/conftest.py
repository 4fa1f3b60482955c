"""What tests of many files need: an empty database, a directory, a served engine, a topic."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_support import ServedEngine, served_engine
from postgres_support import served_postgres, traversable_directory
from sqlalchemy import make_url

_names = count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server's maintenance database, for SQLAlchemy and libpq alike."""
    with served_postgres() as url:
        yield url


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
    with traversable_directory() as directory:
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
