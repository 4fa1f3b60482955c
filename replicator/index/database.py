"""The Postgres of one worker: finding or starting it, checking it, and bringing its schema up to date.

``embedded`` is a PostgreSQL of the worker's own, from a wheel, in its data directory; it listens on a Unix socket
only. It survives a killed worker, and the next worker takes it over. Any other setting is a URL.

Which error is whose (docs/adr/0003): what the user wrote wrong is a :class:`DatabaseConfigError` always. A
server that does not answer is :class:`DatabaseUnavailable` if this data directory reached that database before, or
never reached any: the worker goes on without it (invariant 9). If it reached another one before, the setting was
changed, and nobody can tell a mistake from a server that starts later: :class:`DatabaseNeverReached`, with which the
worker does not start, and may be started again.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import URL, Connection, String, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from migrations import PLACE as MIGRATIONS
from replicator.index.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from replicator.running.timeouts import timeout
from replicator.topology import EMBEDDED, mask_password
from snapshots.models import Base
from snapshots.repository import first_line

CONNECT_SECONDS_MAX: Final = 5
STATEMENT_SECONDS_MAX: Final = 30
POOL_CONNECTIONS: Final = 2
"""One writes, one answers questions."""
MIGRATION_LOCK: Final = 0x7265706C69636174
"""Postgres' advisory lock under which the schema is changed, so that workers which share a database take turns."""

UPGRADE_SECONDS_MAX: Final = 120
"""Includes an embedded server that replays its log, and another worker that migrates the same database."""

_WRONG_SETTING_STATES: Final = frozenset({"28000", "28P01", "3D000", "42501"})
"""SQLSTATE: wrong user, wrong password, no such database, not permitted."""
_NO_ROOM: Final = ("too many connections", "too many clients", "connection slots")
"""Words in errors that come without a SQLSTATE and pass by themselves."""

_MIGRATING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


class DatabaseError(Exception):
    """Base of the errors of this module. The message never holds a password."""


class DatabaseConfigError(DatabaseError):
    """The setting ``database`` cannot work as it is."""


class DatabaseNewer(DatabaseError):
    """The database has a schema that this version does not know."""


class DatabaseInUse(DatabaseError):
    """Error for taking a schema back while a running worker uses the database."""


class DatabaseNeverReached(DatabaseError):
    """The database does not answer, and another one did before: the setting is wrong, or it is not there yet."""


class DatabaseUnavailable(DatabaseError):
    """The database does not answer, and it did before, or the store never reached one."""


@dataclass(frozen=True, slots=True)
class ServerVersions:
    """Version of a Postgres server, and revision of the index's schema in it."""

    version: int
    """Postgres' own number for its version: 160003 is 16.3."""
    revision: str | None
    """Revision of the schema; None for an empty database."""


class Database:
    """One cluster's database. ``known_good`` says that this data directory has reached it before; ``none_reached`` that
    it has never reached any."""

    def __init__(self, setting: str, data: Path, *, cluster: str, known_good: bool, none_reached: bool = False) -> None:
        self._setting = setting
        self._none_reached = none_reached
        self._cluster = cluster
        self._known_good = known_good
        self._embedded = EmbeddedPostgres(data) if setting == EMBEDDED else None
        self.engine: AsyncEngine | None = None
        self.state = "starting"
        """``starting``, ``up`` or ``down``."""
        self.detail = ""

    @staticmethod
    def fingerprint_of(setting: str) -> str:
        """Return a text that tells databases apart by server and name, whatever the user and password."""
        if setting == EMBEDDED:
            return EMBEDDED
        url = make_url(setting)
        server = url.host, url.port, url.query.get("host"), url.query.get("port")
        return hashlib.sha256(repr((server, url.database)).encode()).hexdigest()[:16]

    async def start(self) -> None:
        """Start or find the server and bring the schema up to date.

        Raises :class:`DatabaseConfigError`, :class:`DatabaseNewer`, :class:`DatabaseNeverReached`,
        :class:`DatabaseUnavailable`; after the last one :meth:`recover` may find it back.
        """
        try:
            async with timeout(UPGRADE_SECONDS_MAX):
                await self._open()
                await self.upgrade()
        except TimeoutError:
            error = self._away(f"no answer in {UPGRADE_SECONDS_MAX} s")
            self.mark_down(str(error))
            raise error from None
        except DatabaseError as error:
            self.mark_down(str(error))
            raise

    async def examine(self) -> ServerVersions | None:
        """Make all checks of :meth:`start` without changing anything; return the server's version and the schema's
        revision.

        Return None for an embedded server, which is not started for this. Raises the same errors as :meth:`start`.
        """
        if self._embedded is not None:
            try:
                await asyncio.to_thread(self._embedded.check)
            except EmbeddedPostgresError as error:
                raise self._embedded_away(error) from None
            return None
        await self._open()
        assert self.engine is not None
        try:
            async with self.engine.connect() as connection:
                await self._check_encoding(connection)
                current = await self._checked_revision(connection)
                version = await connection.execute(text("select current_setting('server_version_num')::int"))
                return ServerVersions(version.scalar_one(), current)
        except (SQLAlchemyError, OSError) as error:
            raise await self._explained(error) from None

    async def _checked_revision(self, connection: AsyncConnection) -> str | None:
        """Return the schema's revision; None for an empty database.

        Raises :class:`DatabaseNewer` if a newer version of this program made the schema, and
        :class:`DatabaseConfigError` if migrations are missing and the user may not make tables.
        """
        try:
            current = await connection.run_sync(_known_revision)
        except DatabaseNewer as error:
            raise DatabaseNewer(
                f"clusters.{self._cluster}.database: {self._shown} is of a newer version: {error}"
            ) from None
        if current != head_revision():
            row = await connection.execute(
                text("select current_user, current_schema(), has_schema_privilege(current_schema(), 'CREATE')")
            )
            user, schema, may_create = row.one()
            if not may_create:
                raise self._wrong(
                    f"permission denied: the database user {user} may not make tables in its schema "
                    f"{schema or '(none)'}: give it CREATE there"
                )
        return current

    async def recover(self) -> None:
        """Start again after the database was away. It may be another server by now, older, or empty."""
        await self.start()

    async def stop(self) -> None:
        """Close connections, and end the embedded server if no other process uses it."""
        if self.engine is not None:
            await self.engine.dispose()
            self.engine = None
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.stop)
        self.mark_down("stopped")

    async def upgrade(self) -> None:
        """Bring the schema to this version's revision, once it is reachable; raises as :meth:`start` does."""
        assert self.engine is not None
        try:
            async with _migrating(), self.engine.begin() as connection:
                await self._check_encoding(connection)
                # Held until the transaction ends, however it ends.
                await connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
                if await self._checked_revision(connection) != head_revision():
                    await connection.run_sync(lambda held: command.upgrade(_alembic(held), "head"))
                await connection.run_sync(_widen)
        except (SQLAlchemyError, OSError) as error:
            raise await self._explained(error) from None
        self.mark_up()

    async def downgrade(self, revision: str) -> None:
        """Take the schema back to an older ``revision``, once it is reachable; raises as :meth:`start` does."""
        assert self.engine is not None
        try:
            async with _migrating(), self.engine.begin() as connection:
                await connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
                await connection.run_sync(lambda held: command.downgrade(_alembic(held), revision))
        except (SQLAlchemyError, OSError) as error:
            raise await self._explained(error) from None
        except (CommandError, RevisionError) as error:
            raise self._wrong(f"the database's schema cannot be taken back to revision {revision}: {error}") from None

    async def revision(self) -> str:
        """Return the schema's revision; raise :class:`DatabaseUnavailable`."""
        assert self.engine is not None
        try:
            async with self.engine.connect() as connection:
                return await connection.run_sync(_current_revision) or "empty"
        except (SQLAlchemyError, OSError) as error:
            raise await self._explained(error) from None

    def mark_up(self) -> None:
        self.state, self.detail = "up", ""
        self._known_good = True

    def mark_down(self, detail: str) -> None:
        self.state, self.detail = "down", detail

    @property
    def _shown(self) -> str:
        return mask_password(self._setting)

    async def _open(self) -> None:
        url = await self._url()
        if self.engine is not None:
            if url == self.engine.url:
                return
            await self.engine.dispose()
        self.engine = create_async_engine(
            url,
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS_MAX,
                "client_encoding": "utf8",  # else a server with SQL_ASCII sends bytes, and no text
                "options": f"-c statement_timeout={STATEMENT_SECONDS_MAX * 1000}",
            },
        )

    async def _url(self) -> URL:
        """Return the URL with the driver; start an embedded server first."""
        if self._embedded is not None:
            try:
                url = make_url(await asyncio.to_thread(self._embedded.start))
            except EmbeddedPostgresError as error:
                raise self._embedded_away(error) from None
        else:
            try:
                url = make_url(self._setting)
            except (ArgumentError, ValueError):
                raise self._wrong(
                    "this is not a URL of a database; expected embedded or postgresql://user:password@host:port/name"
                ) from None
            if url.drivername not in ("postgresql", "postgresql+psycopg"):
                raise self._wrong(f"a URL of {url.drivername} cannot be used; expected postgresql:// or embedded")
            if not url.database:
                raise self._wrong("the URL names no database; expected …/NAME at its end")
        return url.set(drivername="postgresql+psycopg")

    def _embedded_away(self, error: EmbeddedPostgresError) -> DatabaseError:
        return self._away(str(error)) if self._known_good else self._wrong(f"cannot be started: {error}")

    async def _check_encoding(self, connection: AsyncConnection) -> None:
        """Check the encoding: names of topics and subscriptions may have any letters. Raise
        :class:`DatabaseConfigError`.
        """
        row = await connection.execute(text("select current_database(), current_setting('server_encoding')"))
        name, encoding = row.one()
        if encoding != "UTF8":
            raise self._wrong(
                f"the database {name} has the encoding {encoding}, and topics need UTF8 for their names: give one made "
                f"by `CREATE DATABASE \"{name}_utf8\" ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0` (the index is "
                "made anew in it)"
            )

    async def _explained(self, error: BaseException) -> DatabaseError:
        """Return the error's class: a wrong setting, or a database that is away; see the module's docstring."""
        original = getattr(error, "orig", None) or error
        state = getattr(original, "sqlstate", None)
        if state is not None:
            is_wrong = state in _WRONG_SETTING_STATES
        elif isinstance(original, psycopg.OperationalError):
            # A connection that fails comes without a state, and with words in the server's own language. But if the
            # server takes connections, then it is ours that it refused.
            is_wrong = not any(words in str(original) for words in _NO_ROOM) and await self._takes_connections()
        else:
            is_wrong = isinstance(original, psycopg.ProgrammingError | UnicodeError)
        reason = first_line(original)
        return self._wrong(f"refuses us: {reason}") if is_wrong else self._away(reason)

    def _wrong(self, reason: str) -> DatabaseConfigError:
        return DatabaseConfigError(f"clusters.{self._cluster}.database: {self._shown}: {reason}")

    def _away(self, reason: str) -> DatabaseError:
        where = f"clusters.{self._cluster}.database: {self._shown}"
        if self._known_good:
            return DatabaseUnavailable(f"{where} is away: {reason}")
        if self._none_reached:
            return DatabaseUnavailable(
                f"{where} was never reached: {reason}; correct the setting, or start the server; until then the worker "
                "goes on without it"
            )
        return DatabaseNeverReached(
            f"{where} cannot be reached: {reason}; correct the setting, or start the server and then the worker again "
            "(a worker whose setting changed must reach the new database once; later it can start without)"
        )

    async def _takes_connections(self) -> bool:
        assert self.engine is not None
        url = self.engine.url.set(drivername="postgresql")
        url = url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS_MAX)})
        conninfo = url.render_as_string(hide_password=False).encode()
        return await asyncio.to_thread(psycopg.pq.PGconn.ping, conninfo) == psycopg.pq.Ping.OK


def _migrating() -> asyncio.Lock:
    """Return the lock that is held while this process migrates. Alembic has one context in a process: two workers in
    one, each with a database of its own, would run their migrations on each other's connections.
    """
    return _MIGRATING.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@functools.cache
def head_revision() -> str:
    """Return the schema's newest revision in this version. To find it, alembic runs each migration's module."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return str(ScriptDirectory.from_config(config).get_current_head())


def _widen(connection: Connection) -> None:
    """Make each text column as wide as this version has it, if it is narrower.

    Earlier versions understand a wider column, so this is no revision, which they would refuse: workers can go back.
    Postgres only notes the new width, and rewrites no row.
    """
    there = inspect(connection).get_multi_columns(filter_names=list(Base.metadata.tables))
    for table in Base.metadata.sorted_tables:
        if (None, table.name) not in there:
            raise NoSuchTableError(table.name)
        widths = {column["name"]: getattr(column["type"], "length", None) for column in there[None, table.name]}
        for column in table.columns:
            wanted, width = getattr(column.type, "length", None), widths[column.name]
            if isinstance(column.type, String) and wanted is not None and width is not None and width < wanted:
                prepare = connection.dialect.identifier_preparer
                names = prepare.format_table(table), prepare.quote(column.name)
                connection.execute(text(f"ALTER TABLE {names[0]} ALTER COLUMN {names[1]} TYPE VARCHAR({wanted:d})"))


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _known_revision(connection: Connection) -> str | None:
    """Return the schema's revision; None for an empty database.

    Raises :class:`DatabaseNewer` if this version of the program does not know the revision.
    """
    script = ScriptDirectory.from_config(_alembic(connection))
    current = _current_revision(connection)
    if current is not None:
        try:
            script.get_revision(current)
        except (CommandError, RevisionError):
            raise DatabaseNewer(
                f"the database's schema has revision {current}, which this version does not know (it knows "
                f"{script.get_current_head()}): use the version that made it or a newer one, or let that one take it "
                f"back by `replicator db downgrade --to {script.get_current_head()}` (docs/upgrade.md)"
            ) from None
    return current


def downgrade(connection: Connection, revision: str) -> None:
    """Take migrations back down to ``revision`` (``base``: all). For tests and for going back to an older version."""
    command.downgrade(_alembic(connection), revision)
    connection.commit()


def upgrade(connection: Connection, revision: str) -> None:
    """Bring migrations up to ``revision`` and no further. For tests."""
    command.upgrade(_alembic(connection), revision)
    connection.commit()
