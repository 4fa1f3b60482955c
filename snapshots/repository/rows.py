"""Base of all tables' repositories: connections, upserts of whole batches, and errors of our own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from math import isfinite
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import delete, func, select, union
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from snapshots.errors import SnapshotsError
from snapshots.models import (
    Base,
    ExtentSegmentRow,
    IndexHeadRow,
    LinkStateRow,
    SnapshotMappingRow,
    SubscriptionStateRow,
)

ROWS_AT_ONCE: Final = 200
"""Limit of rows in one statement, sent or named. So many delay other statements by some milliseconds at most."""

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that Postgres does not take in a text: NUL, and surrogates of UTF-16."""
_ESCAPE_CHARS: Final = 6
JSON_LEVELS_MAX: Final = 50
"""Limit of levels of nested JSON that are kept. No report has half as many; a request of a client may have
thousands."""

OF_TOPICS: Final = (SnapshotMappingRow, SubscriptionStateRow, ExtentSegmentRow, LinkStateRow)
"""Tables whose rows belong to a topic, and are deleted with it."""

Head = tuple[Any, ...]

T = TypeVar("T")


class RepositoryUnavailable(SnapshotsError):
    """The database did not take a statement, and may take it later. Nothing of the batch was kept."""


class RowsRefused(SnapshotsError):
    """The database will never take these rows, such as text with a NUL. Nothing of the batch was kept."""


class Rows:
    """Base of the parts of the repository; each part reads and writes the rows of ``cluster`` in one table."""

    def __init__(self, engine: AsyncEngine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    async def now(self) -> datetime:
        """Return the database's clock, by which rows are dated."""
        async with self._connection() as connection:
            now = (await connection.execute(select(func.now()))).scalar_one()
        assert isinstance(now, datetime)
        return now

    async def mark(self, token: UUID) -> None:
        """Store ``token``, by which this index is recognised; see :meth:`head`."""
        await self._upsert(IndexHeadRow, [{"cluster": self._cluster, "token": token}], "written_at")

    async def head(self) -> Head:
        """Return values that identify this index; they change if it is restored, emptied or truncated.

        Raise :class:`RepositoryUnavailable` if the database does not answer.
        """
        token = select(IndexHeadRow.token).where(IndexHeadRow.cluster == self._cluster).scalar_subquery()
        # A table that is truncated gets another file; one that is restored or made anew does, too.
        files = [func.pg_relation_filenode(row.__tablename__) for row in OF_TOPICS]
        async with self._looking_up() as connection:
            return tuple((await connection.execute(select(token, *files))).one())

    async def topics(self) -> list[str]:
        """Return the names of the topics that have rows, in order."""
        queries = [select(row.topic).where(row.cluster == self._cluster) for row in OF_TOPICS]
        async with self._connection() as connection:
            return sorted((await connection.execute(union(*queries))).scalars())

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Remove all rows of these topics, all or nothing."""
        async with self._connection() as connection:
            for batch in batches(topics):
                for row in OF_TOPICS:
                    await connection.execute(delete(row).where(row.cluster == self._cluster, row.topic.in_(batch)))

    async def prune_not_written_since(self, moment: datetime, *, topic: str | None = None) -> int:
        """Remove mappings, subscription states and, without ``topic``, link states that were last written before
        ``moment``.

        Return their number."""
        removed = 0
        async with self._connection() as connection:
            for row, written_at in (
                (SnapshotMappingRow, SnapshotMappingRow.recorded_at),
                (SubscriptionStateRow, SubscriptionStateRow.updated_at),
                (LinkStateRow, LinkStateRow.updated_at),
            ):
                statement = delete(row).where(row.cluster == self._cluster, written_at < moment)
                if topic is not None:
                    if row is LinkStateRow:
                        continue
                    statement = statement.where(row.topic == topic)
                removed += int((await connection.execute(statement)).rowcount)
        return removed

    async def _upsert(self, table: type[Base], rows: list[dict[str, Any]], *dates: str) -> None:
        """Insert or overwrite ``rows``, which have different keys, all or none. Columns in ``dates`` get the present
        time.

        One statement of one row is prepared; the driver sends the rows of a batch in one go.
        """
        if not rows:
            return
        keys = [column.name for column in table.__table__.primary_key]
        async with self._connection() as connection:
            statement = insert(table).values(dict.fromkeys(dates, func.now()))
            set_ = {name: statement.excluded[name] for name in (*rows[0], *dates) if name not in keys}
            for batch in batches(rows):
                await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=set_), batch)

    @asynccontextmanager
    async def _looking_up(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection for one query, without a transaction, which would take two round trips of its own."""
        with _own_errors():
            async with self._engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction, which is committed on leaving, and rolled back after an error."""
        with _own_errors():
            async with self._engine.begin() as connection:
                yield connection


@contextmanager
def _own_errors() -> Iterator[None]:
    """Turn the driver's errors in this context into :class:`RowsRefused` or :class:`RepositoryUnavailable`."""
    try:
        yield
    except (DataError, IntegrityError) as error:
        raise RowsRefused(first_line(error)) from None
    except (SQLAlchemyError, OSError) as error:
        # Not the chain: SQLAlchemy's text has the statement and its values.
        raise RepositoryUnavailable(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """Return the first line of a database error; SQLAlchemy appends statement and parameters, which help nobody."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def shown(text: str, chars_max: int) -> str:
    """Return ``text`` so that a column can hold it. Escape what Postgres refuses, and cut the text to ``chars_max``.

    Use this only for text that people read. A key must not change, so keys are checked when they come in instead.
    """
    if not text.isprintable():
        text = _UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def shown_json(value: Any, levels: int = JSON_LEVELS_MAX) -> Any:
    """Return ``value`` so that Postgres takes it as JSON.

    Characters that Postgres refuses are escaped, in names of fields, too. Numbers that are not finite become texts.
    What is nested more than ``levels`` deep becomes "…".
    """
    match value:
        case str():
            return shown(value, len(value) * _ESCAPE_CHARS + 1)
        case Mapping() | list() | tuple() if not levels:
            return "…"
        case Mapping():
            return {
                shown(str(name), len(str(name)) * _ESCAPE_CHARS + 1): shown_json(each, levels - 1)
                for name, each in value.items()
            }
        case list() | tuple():
            return [shown_json(each, levels - 1) for each in value]
        case float() if not isfinite(value):
            return str(value)
        case _:
            return value


def batches(rows: Sequence[T], rows_max: int = ROWS_AT_ONCE) -> Iterator[Sequence[T]]:
    """Yield ``rows`` in parts of at most ``rows_max``, in order."""
    for first in range(0, len(rows), rows_max):
        yield rows[first : first + rows_max]
