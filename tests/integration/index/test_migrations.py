"""Migrations on a real PostgreSQL: up, down and up again with data, and equal to the models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, make_url

from replicator.index.database import Database, downgrade, upgrade
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


AT_REVISION = {
    "0001": [
        ROW,
        STATE,
    ],
    "0002": [
        "INSERT INTO extent_segments VALUES ('us-east', 't', 'eu-west', 1, 2, 0, 2, 9, 3, 0, 3, 9, 10, 1, 'x')",
    ],
    "0003": [
        "INSERT INTO subscription_states VALUES ('us-east', 't', 'gone', 2, 0, -1, true, now(), 0, 0, NULL, true)",
        "INSERT INTO subscription_states VALUES ('us-east', 't', 'exact', 1, 2, 3, true, now(), 5, 2, '{\"a\": 1}')",
    ],
    "0004": [
        "INSERT INTO link_states VALUES ('us-east', 'us-east>eu-west', 't', 'copying', 1, 2, 3, '')",
        "INSERT INTO failover_epochs VALUES ('us-east', 1, 'us-east', 'eu-west', 'planned', now(), now(), '{}')",
        "INSERT INTO drill_runs VALUES ('d1', 'kill-primary', 'x', now(), now(), true, '{}')",
        "INSERT INTO audit_log VALUES (gen_random_uuid(), now(), 'us-east', 'me', 'seek', 't', '{}')",
    ],
    "0005": ["INSERT INTO index_heads VALUES ('us-east', gen_random_uuid())"],
}
"""Rows that can be written at each revision, in the order of revisions."""
_OPERATIONS = dict.fromkeys(("link_states", "failover_epochs", "drill_runs", "audit_log"), 1)
LEFT_AT = {
    "0004": {"snapshot_mappings": 1, "subscription_states": 3, "extent_segments": 1, **_OPERATIONS},
    "0003": {"snapshot_mappings": 1, "subscription_states": 3, "extent_segments": 1},
    "0002": {"snapshot_mappings": 1, "subscription_states": 2, "extent_segments": 1},
    "0001": {"snapshot_mappings": 1, "subscription_states": 2},
}
"""Rows that are left after going down to each revision: a tombstone means nothing to a version before them."""


def counts(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        found = {}
        for table in tables(url) - {"alembic_version"}:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert row is not None
            found[table] = row[0]
        return found


def test_rows_survive_every_step_down_and_up_that_can_hold_them(postgres_url: str, data_dir: Path) -> None:
    head = upgraded(postgres_url, data_dir)
    assert head == max(AT_REVISION)
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with psycopg.connect(postgres_url) as connection:
        for statements in AT_REVISION.values():
            for statement in statements:
                connection.execute(statement)
    for revision, left in LEFT_AT.items():
        with engine.connect() as connection:
            downgrade(connection, revision)
        assert counts(postgres_url) == left
    assert upgraded(postgres_url, data_dir) == head
    assert counts(postgres_url) == {**dict.fromkeys(made_tables(), 0), **LEFT_AT["0001"]}
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT mark_delete_entry, acked_beyond, holes, ack_vector, tombstone FROM subscription_states"
            " WHERE subscription = 'exact'"
        ).fetchone()
        assert row == (3, 0, 0, None, False)
    engine.dispose()


def test_a_database_of_each_earlier_version_is_upgraded_with_its_rows(postgres_url: str, data_dir: Path) -> None:
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    upgraded(postgres_url, data_dir)
    for revision in sorted(AT_REVISION)[:-1]:
        with engine.connect() as connection:
            downgrade(connection, "base")
            upgrade(connection, revision)
        written: dict[str, int] = {}
        with psycopg.connect(postgres_url) as connection:
            for at, statements in AT_REVISION.items():
                for statement in statements if at <= revision else []:
                    connection.execute(statement)
                    table = statement.split()[2]
                    written[table] = written.get(table, 0) + 1
        upgraded(postgres_url, data_dir)
        assert {table: count for table, count in counts(postgres_url).items() if count} == written
    engine.dispose()


def made_tables() -> set[str]:
    return set(Base.metadata.tables)


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


def test_two_workers_of_one_process_migrate_each_its_own_database(
    postgres_server: str, postgres_url: str, data_dir: Path
) -> None:
    second = make_url(postgres_url).set(database=f"{make_url(postgres_url).database}_second")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {second.database}")
    urls = [postgres_url, second.render_as_string(hide_password=False)]

    async def main() -> None:
        workers = [Database(url, data_dir / str(n), cluster=f"c{n}", known_good=False) for n, url in enumerate(urls)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await asyncio.gather(*(worker.stop() for worker in workers))

    try:
        asyncio.run(main())
        assert [tables(url) for url in urls] == [made_tables() | {"alembic_version"}] * 2
    finally:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {second.database} WITH (FORCE)")
