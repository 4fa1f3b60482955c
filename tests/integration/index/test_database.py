"""The database shell on real servers: started, attached to, refused, lost and found again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from replicator.index.database import (
    Database,
    DatabaseConfigError,
    DatabaseError,
    DatabaseNeverReached,
    DatabaseNewer,
    DatabaseUnavailable,
)

HOLDER = """
import asyncio, sys
from pathlib import Path
from replicator.index.database import Database
async def main():
    database = Database("embedded", Path(sys.argv[1]), cluster="us-east", known_good=False)
    await database.start()
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await database.stop()
asyncio.run(main())
"""


def holder(data: Path) -> subprocess.Popen[str]:
    """Another process that has the embedded database of ``data`` open until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def servers_of(data: Path) -> list[psutil.Process]:
    """The postmasters that run on ``data``."""
    directory = str(data.resolve() / "postgres")
    postgres = [process for process in psutil.process_iter(["name", "cmdline"]) if process.info["name"] == "postgres"]
    return [process for process in postgres if directory in (process.info["cmdline"] or [])]


def started(setting: str, data: Path, *, known_good: bool = False) -> Database:
    """Return a database after a start and a stop."""
    database = Database(setting, data, cluster="us-east", known_good=known_good)

    async def main() -> None:
        try:
            await database.start()
            assert database.state == "up"
        finally:
            await database.stop()

    asyncio.run(main())
    return database


def refusal(setting: str, data: Path, *, known_good: bool = False) -> DatabaseError:
    with pytest.raises(DatabaseError) as caught:
        started(setting, data, known_good=known_good)
    assert "clusters.us-east.database" in str(caught.value)
    return caught.value


# The embedded server.


def test_the_embedded_server_keeps_its_rows_and_ends_with_its_worker(data_dir: Path) -> None:
    async def main() -> None:
        for expected in (0, 1):
            database = Database("embedded", data_dir, cluster="us-east", known_good=False)
            await database.start()
            assert database.engine is not None
            async with database.engine.begin() as connection:
                rows = (await connection.exec_driver_sql("SELECT count(*) FROM subscription_states")).scalar_one()
                assert rows == expected
                await connection.exec_driver_sql(
                    "INSERT INTO subscription_states VALUES ('us-east', 't', 's', 1, 2, 3, true) ON CONFLICT DO NOTHING"
                )
            await database.stop()
            assert servers_of(data_dir) == []

    asyncio.run(main())


def test_a_worker_takes_over_the_server_of_one_that_was_killed_and_then_ends_it(data_dir: Path) -> None:
    killed = holder(data_dir)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (before,) = servers_of(data_dir)

    async def main() -> None:
        database = Database("embedded", data_dir, cluster="us-east", known_good=True)
        await database.start()
        assert servers_of(data_dir) == [before]
        await database.stop()

    asyncio.run(main())
    assert servers_of(data_dir) == []


def test_whoever_is_not_the_last_user_leaves_the_server_to_the_others(data_dir: Path) -> None:
    with holder(data_dir) as other:
        started("embedded", data_dir)
        assert len(servers_of(data_dir)) == 1
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait() == 0
    assert servers_of(data_dir) == []


@pytest.mark.parametrize("content", ["{pid}\n{directory}\n1\n5432\n{directory}\n\n0 0\nready\n", "{pid}\n", ""])
def test_a_pid_file_that_a_crash_left_behind_is_not_believed(data_dir: Path, content: str) -> None:
    started("embedded", data_dir)
    directory = data_dir.resolve() / "postgres"
    # This very process has the id that the server had before the machine went down.
    (directory / "postmaster.pid").write_text(content.format(pid=os.getpid(), directory=directory))
    started("embedded", data_dir, known_good=True)


def test_an_embedded_server_that_cannot_start_says_why(data_dir: Path) -> None:
    started("embedded", data_dir)
    configuration = data_dir / "postgres" / "postgresql.conf"
    configuration.write_text(configuration.read_text() + "\nno_such_setting = 1\n")
    error = refusal("embedded", data_dir)
    assert isinstance(error, DatabaseConfigError)
    assert "no_such_setting" in str(error)
    assert isinstance(refusal("embedded", data_dir, known_good=True), DatabaseUnavailable)


# Other servers.


def test_both_ways_to_write_a_url_are_accepted(postgres_url: str, data_dir: Path) -> None:
    started(postgres_url, data_dir)
    started(postgres_url.replace("postgresql://", "postgresql+psycopg://", 1), data_dir)


@pytest.mark.parametrize(
    "setting",
    [
        "mysql://user:secret@127.0.0.1/x",
        "postgresql+asyncpg://user:secret@127.0.0.1/x",
        "sqlite:///file.db",
        "postgresql://user:secret@127.0.0.1:port/x",
        "postgresql://user:secret@127.0.0.1",
        "postgresql://user:secret@127.0.0.1:1/x?no_such_option=1",
        "secret",
    ],
)
@pytest.mark.parametrize("known_good", [False, True])
def test_a_setting_that_cannot_be_a_database_is_the_users_to_correct(
    data_dir: Path, setting: str, known_good: bool
) -> None:
    error = refusal(setting, data_dir, known_good=known_good)
    assert isinstance(error, DatabaseConfigError)
    assert "secret" not in str(error)


def test_a_server_that_does_not_answer_keeps_a_worker_from_starting_only_if_it_never_did(data_dir: Path) -> None:
    nobody = "postgresql://user:secret@127.0.0.1:1/x"
    never, away = refusal(nobody, data_dir), refusal(nobody, data_dir, known_good=True)
    assert isinstance(never, DatabaseNeverReached)
    assert isinstance(away, DatabaseUnavailable)
    assert "secret" not in f"{never} {away}"
    assert "127.0.0.1:1/x" in str(away)


def test_a_server_that_does_not_answer_is_away_for_a_store_that_reached_none(data_dir: Path) -> None:
    async def main() -> None:
        nobody = "postgresql://user:secret@127.0.0.1:1/x"
        database = Database(nobody, data_dir, cluster="us-east", known_good=False, none_reached=True)
        with pytest.raises(DatabaseUnavailable, match="was never reached") as away:
            await database.start()
        await database.stop()
        assert "secret" not in str(away.value)

    asyncio.run(main())


def test_a_database_or_a_user_that_the_server_does_not_have_is_the_users_to_correct(
    postgres_server: str, data_dir: Path
) -> None:
    url = make_url(postgres_server)
    wrong_name = url.set(database="nowhere").render_as_string(hide_password=False)
    wrong_user = url.set(username="nobody", password="secret").render_as_string(hide_password=False)
    for setting in (wrong_name, wrong_user):
        error = refusal(setting, data_dir, known_good=True)
        assert isinstance(error, DatabaseConfigError)
        assert "secret" not in str(error)


def test_a_refused_password_is_the_users_to_correct_and_never_shown(data_dir: Path) -> None:
    async def main() -> None:
        database = Database("embedded", data_dir, cluster="us-east", known_good=False)
        await database.start()
        try:
            assert database.engine is not None
            url = database.engine.url.set(drivername="postgresql")
            rules = data_dir / "postgres" / "pg_hba.conf"
            rules.write_text("local all guest scram-sha-256\n" + rules.read_text())
            with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
                connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
                connection.execute("SELECT pg_reload_conf()")
            guest = url.set(username="guest", password="secret").render_as_string(hide_password=False)
            error = await asyncio.to_thread(refusal, guest, data_dir, known_good=True)
            assert isinstance(error, DatabaseConfigError)
            assert "secret" not in str(error)
        finally:
            await database.stop()

    asyncio.run(main())


def test_a_user_without_rights_on_the_schema_is_the_users_to_correct(postgres_url: str, data_dir: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    try:
        setting = make_url(postgres_url).set(username="reader", password="secret").render_as_string(hide_password=False)
        error = refusal(setting, data_dir, known_good=True)
        assert isinstance(error, DatabaseConfigError)
        assert "permission denied" in str(error)
        assert "secret" not in str(error)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE reader")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("known_good", [False, True])
def test_a_database_without_utf8_is_named_with_what_to_do(
    postgres_server: str, data_dir: Path, encoding: str, known_good: bool
) -> None:
    name = f"other_{os.getpid()}_{encoding.lower()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        try:
            setting = make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
            error = refusal(setting, data_dir, known_good=known_good)
            assert isinstance(error, DatabaseConfigError)
            assert f"the database {name} has the encoding {encoding}" in str(error)
            (remedy,) = re.findall("`(.*)`", str(error))
            connection.execute(remedy)  # what it says can be done as it stands
            made = make_url(postgres_server).set(database=f"{name}_utf8").render_as_string(hide_password=False)
            started(made, data_dir, known_good=known_good)
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name}_utf8 WITH (FORCE)")
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_schema_of_a_later_version_is_named_and_left_alone(postgres_url: str, data_dir: Path) -> None:
    started(postgres_url, data_dir)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        error = refusal(postgres_url, data_dir, known_good=True)
        assert isinstance(error, DatabaseNewer)
        assert "9999" in str(error)
        assert "version that made it" in str(error)
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


def test_the_fingerprint_tells_databases_apart_and_does_not_depend_on_the_password() -> None:
    fingerprints = {
        Database.fingerprint_of(setting)
        for setting in (
            "embedded",
            "postgresql://a:x@h/d",
            "postgresql://a:x@h:5433/d",
            "postgresql://a:x@i/d",
            "postgresql://a:x@h/e",
            "postgresql:///d?host=/run/one",
            "postgresql:///d?host=/run/two",
        )
    }
    assert len(fingerprints) == 7
    assert Database.fingerprint_of("postgresql://a:y@h/d") in fingerprints
