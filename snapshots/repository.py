"""The repository: what the Postgres index holds of mappings and subscription states. Invariant 9: an index, no more.

Writes are upserts of whole batches, so writing something twice, late or again from the start does no harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from snapshots.errors import SnapshotsError
from snapshots.mapping import SnapshotMapping
from snapshots.models import SnapshotMappingRow, SubscriptionStateRow
from snapshots.position import Position

ROWS_AT_ONCE: Final = 200
"""Sent to the database, or named in one statement: so many hold up nobody for longer than some milliseconds."""

T = TypeVar("T")


class RepositoryUnavailable(SnapshotsError):
    """The database did not take a statement, and may take it later. Nothing of the batch was kept."""


class RowsRefused(SnapshotsError):
    """The database will never take these rows, such as text with a NUL. Nothing of the batch was kept."""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """How far one subscription is in one cluster."""

    topic: str
    subscription: str
    generation: int
    mark_delete: Position
    replicated: bool


class SnapshotRepository:
    """Reads and writes the rows of ``cluster``.

    Every method raises :class:`RepositoryUnavailable`; those that write raise :class:`RowsRefused`.
    """

    def __init__(self, engine: AsyncEngine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    async def record_mappings(self, mappings: Sequence[tuple[str, SnapshotMapping]]) -> None:
        """Write mappings, each with its topic."""
        rows = {
            (topic, mapping.peer, mapping.local): {
                "cluster": self._cluster,
                "topic": topic,
                "peer": mapping.peer,
                "local_ledger": mapping.local.ledger,
                "local_entry": mapping.local.entry,
                "remote_ledger": mapping.remote.ledger,
                "remote_entry": mapping.remote.entry,
                "snapshot_id": mapping.snapshot_id,
            }
            for topic, mapping in mappings
        }
        await self._upsert(SnapshotMappingRow, list(rows.values()), "recorded_at")

    async def mappings(self, topic: str, peer: str | None = None) -> list[SnapshotMapping]:
        """The mappings of a topic, by peer, oldest first."""
        row = SnapshotMappingRow
        query = select(
            row.snapshot_id, row.local_ledger, row.local_entry, row.peer, row.remote_ledger, row.remote_entry
        )
        query = query.where(row.cluster == self._cluster, row.topic == topic)
        if peer is not None:
            query = query.where(row.peer == peer)
        query = query.order_by(row.peer, row.local_ledger, row.local_entry)
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return [
            SnapshotMapping(snapshot_id, Position(local_ledger, local_entry), of, Position(remote_ledger, remote_entry))
            for snapshot_id, local_ledger, local_entry, of, remote_ledger, remote_entry in found
        ]

    async def count_mappings(self, topic: str | None = None) -> int:
        query = select(func.count()).select_from(SnapshotMappingRow).where(SnapshotMappingRow.cluster == self._cluster)
        if topic is not None:
            query = query.where(SnapshotMappingRow.topic == topic)
        async with self._connection() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def prune_mappings(self, topic: str, below: Position) -> int:
        """Remove the mappings whose local position is below ``below``; returns how many."""
        row = SnapshotMappingRow
        statement = delete(row).where(
            row.cluster == self._cluster,
            row.topic == topic,
            tuple_(row.local_ledger, row.local_entry) < tuple_(below.ledger, below.entry),
        )
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)

    async def save_subscription_states(self, states: Sequence[SubscriptionState]) -> None:
        """Write states; of several for one subscription the last one counts."""
        rows = {
            (state.topic, state.subscription): {
                "cluster": self._cluster,
                "topic": state.topic,
                "subscription": state.subscription,
                "generation": state.generation,
                "mark_delete_ledger": state.mark_delete.ledger,
                "mark_delete_entry": state.mark_delete.entry,
                "replicated": state.replicated,
            }
            for state in states
        }
        await self._upsert(SubscriptionStateRow, list(rows.values()), "updated_at")

    async def delete_subscription_state(self, topic: str, subscription: str) -> None:
        row = SubscriptionStateRow
        statement = delete(row).where(
            row.cluster == self._cluster, row.topic == topic, row.subscription == subscription
        )
        async with self._connection() as connection:
            await connection.execute(statement)

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Remove everything of these topics, all or nothing."""
        async with self._connection() as connection:
            for batch in _batches(list(topics)):
                for row in (SnapshotMappingRow, SubscriptionStateRow):
                    await connection.execute(delete(row).where(row.cluster == self._cluster, row.topic.in_(batch)))

    async def subscription_states(self, topic: str | None = None) -> list[SubscriptionState]:
        row = SubscriptionStateRow
        query = select(
            row.topic,
            row.subscription,
            row.generation,
            row.mark_delete_ledger,
            row.mark_delete_entry,
            row.replicated,
        ).where(row.cluster == self._cluster)
        if topic is not None:
            query = query.where(row.topic == topic)
        async with self._connection() as connection:
            found = (await connection.execute(query.order_by(row.topic, row.subscription))).all()
        return [
            SubscriptionState(of, name, generation, Position(ledger, entry), replicated)
            for of, name, generation, ledger, entry, replicated in found
        ]

    async def now(self) -> datetime:
        """The database's clock, by which rows are dated."""
        async with self._connection() as connection:
            now = (await connection.execute(select(func.now()))).scalar_one()
        assert isinstance(now, datetime)
        return now

    async def prune_not_written_since(self, moment: datetime) -> int:
        """Remove the rows that were not written, for the first time or again, at ``moment`` or later; how many."""
        mapping, state = SnapshotMappingRow, SubscriptionStateRow
        async with self._connection() as connection:
            mappings = await connection.execute(
                delete(mapping).where(mapping.cluster == self._cluster, mapping.recorded_at < moment)
            )
            states = await connection.execute(
                delete(state).where(state.cluster == self._cluster, state.updated_at < moment)
            )
        return int(mappings.rowcount) + int(states.rowcount)

    async def _upsert(
        self, table: type[SnapshotMappingRow] | type[SubscriptionStateRow], rows: list[dict[str, Any]], *dates: str
    ) -> None:
        """Insert or overwrite ``rows``, which have different keys, all or none; ``dates`` are now.

        One statement of one row, which is made once; the driver sends the rows of a batch in one go.
        """
        keys = [column.name for column in table.__table__.primary_key]
        async with self._connection() as connection:
            statement = insert(table).values(dict.fromkeys(dates, func.now()))
            set_ = {name: statement.excluded[name] for name in (*rows[0], *dates) if name not in keys} if rows else {}
            for batch in _batches(rows):
                await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=set_), batch)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction; the driver's errors become this module's."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (DataError, IntegrityError) as error:
            raise RowsRefused(first_line(error)) from None
        except (SQLAlchemyError, OSError) as error:
            # Not the chain: SQLAlchemy's text has the statement and its values.
            raise RepositoryUnavailable(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """The first line of a database error; SQLAlchemy appends statement and parameters, which help nobody."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _batches(rows: list[T]) -> Iterator[list[T]]:
    for first in range(0, len(rows), ROWS_AT_ONCE):
        yield rows[first : first + ROWS_AT_ONCE]
