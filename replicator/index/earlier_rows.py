"""Rows in Postgres that an earlier store of a cluster left. They prove that a new store is not the cluster's first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from replicator.index.database import Database, DatabaseUnavailable
from replicator.running.timeouts import timeout

LOOK_SECONDS_MAX: Final = 5.0
NAMED_MAX: Final = 10
"""Most topics whose names are returned."""
_TOPICS: Final = (
    "select topic from subscription_states where cluster = :cluster and not tombstone "
    "union select topic from extent_segments where cluster = :cluster"
)
_COUNT: Final = (
    "select count(*) from (select topic from subscription_states where cluster = :cluster and not tombstone "
    "union select topic from extent_segments where cluster = :cluster) as topics"
)
_NAMES: Final = _TOPICS + " order by topic limit :most"
_SUBSCRIPTIONS: Final = "select count(*) from subscription_states where cluster = :cluster and not tombstone"


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """Numbers of topics and subscriptions in the rows that an earlier store of this cluster left in Postgres.

    ``names`` has the names of the first :data:`NAMED_MAX` topics, in alphabetical order.
    """

    topics: int
    subscriptions: int
    names: tuple[str, ...]

    def in_words(self) -> str:
        if not self.topics:
            return "Postgres has rows of an earlier store, which name no topic"
        more = self.topics - len(self.names)
        return (
            f"Postgres has {self.topics} {'topic' if self.topics == 1 else 'topics'} and {self.subscriptions} "
            f"{'subscription' if self.subscriptions == 1 else 'subscriptions'} of an earlier store: "
            f"{', '.join(self.names)}{f' and {more} more' if more > 0 else ''}"
        )


async def earlier_rows(database: Database, cluster: str) -> EarlierRows | None:
    """Return the rows that Postgres has of an earlier store of ``cluster``; None if it has none.

    Call this before the index of the new store is written. Raises :class:`DatabaseUnavailable`.
    """
    if database.engine is None or database.state != "up":
        raise DatabaseUnavailable(database.detail or "the database is away")
    try:
        async with timeout(LOOK_SECONDS_MAX), database.engine.connect() as connection:
            return await _read(connection, {"cluster": cluster})
    except (OSError, TimeoutError, SQLAlchemyError) as error:
        raise DatabaseUnavailable(f"the database does not answer: {error}") from None


async def _read(connection: AsyncConnection, of: dict[str, Any]) -> EarlierRows | None:
    heads = await connection.scalar(text("select count(*) from index_heads where cluster = :cluster"), of)
    topics = await connection.scalar(text(_COUNT), of)
    if not heads and not topics:
        return None
    subscriptions = await connection.scalar(text(_SUBSCRIPTIONS), of)
    names = await connection.scalars(text(_NAMES), {**of, "most": NAMED_MAX})
    return EarlierRows(topics or 0, subscriptions or 0, tuple(names))
