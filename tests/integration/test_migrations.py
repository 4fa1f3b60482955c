"""Migrations on a real PostgreSQL: up, down and up again with data, and equal to the models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, make_url

from replicator.database import Database, downgrade
from snapshots.models import Base

ROW = "INSERT INTO snapshot_mappings VALUES ('us-east', 't', 'eu-west', 1, 2, 3, 4, 'id')"
STATE = "INSERT INTO subscription_states VALUES ('us-east', 't', 's', 1, 2, 3, true)"


def upgraded(url: str, data: Path) -> str:
    """Upgrade the database; its revision."""

    async def main() -> str:
        database = Database(url, data, cluster="us-east", known_good=False)
        try:
            await database.start()
            return await database.revision()
        finally:
            await database.stop()

    return asyncio.run(main())


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {name for (name,) in rows}


def test_up_and_down_and_up_again_with_rows_in_the_tables(postgres_url: str, data_dir: Path) -> None:
    made = set(Base.metadata.tables)
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    revision = upgraded(postgres_url, data_dir)
    assert tables(postgres_url) == made | {"alembic_version"}
    for _ in range(2):
        with psycopg.connect(postgres_url) as connection:
            connection.execute(ROW)
            connection.execute(STATE)
        with engine.connect() as connection:
            downgrade(connection, "base")
        assert tables(postgres_url) == {"alembic_version"}
        assert upgraded(postgres_url, data_dir) == revision
        assert tables(postgres_url) == made | {"alembic_version"}
    engine.dispose()


def test_an_upgrade_of_what_is_up_to_date_keeps_the_rows(postgres_url: str, data_dir: Path) -> None:
    upgraded(postgres_url, data_dir)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(ROW)
    upgraded(postgres_url, data_dir)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM snapshot_mappings").fetchone() == (1,)


def test_the_migrated_schema_is_that_of_the_models(postgres_url: str, data_dir: Path) -> None:
    upgraded(postgres_url, data_dir)
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_workers_that_share_an_empty_database_migrate_it_once(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        workers = [
            Database(postgres_url, data_dir / str(number), cluster=f"c{number}", known_good=False)
            for number in range(6)
        ]
        await asyncio.gather(*(worker.start() for worker in workers))
        assert {worker.state for worker in workers} == {"up"}
        await asyncio.gather(*(worker.stop() for worker in workers))

    asyncio.run(main())
