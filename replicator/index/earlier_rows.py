"""Rows in Postgres that an earlier store of a cluster left. They prove that a new store is not the cluster's first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.index.database import Database, DatabaseUnavailable
from replicator.running.naming import named
from replicator.running.timeouts import timeout

LOOK_SECONDS_MAX: Final = 5.0
TOPICS_MAX: Final = 20_000
"""Most topics whose names are read: some 4 MB. The rest is only counted."""
_TOPICS: Final = (
    "from (select topic from subscription_states where cluster = :cluster and not tombstone "
    "union select topic from extent_segments where cluster = :cluster "
    "union select topic from link_states where cluster = :cluster) as topics where topic <> :internal"
)
_COUNT: Final = "select count(*) " + _TOPICS
_NAMES: Final = "select topic " + _TOPICS + " order by topic limit :most"
_SUBSCRIPTIONS: Final = "select count(*) from subscription_states where cluster = :cluster and not tombstone"


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """Numbers of topics and subscriptions in the rows that an earlier store of this cluster left in Postgres.

    ``names`` has the names of the first :data:`TOPICS_MAX` topics, in alphabetical order.
    """

    topics: int
    subscriptions: int
    names: tuple[str, ...]

    def in_words(self) -> str:
        if not self.topics:
            return "Postgres has rows of an earlier store, which name no topic"
        return (
            f"Postgres has {self.topics} {'topic' if self.topics == 1 else 'topics'} and {self.subscriptions} "
            f"{'subscription' if self.subscriptions == 1 else 'subscriptions'} of an earlier store: "
            f"{named(self.names, self.topics)}"
        )


async def earlier_rows(database: Database, cluster: str) -> EarlierRows | None:
    """Return the rows that Postgres has of an earlier store of ``cluster``; None if it has none.

    Call this before the index of the new store is written. Raises :class:`DatabaseUnavailable`.
    """
    if database.engine is None or database.state != "up":
        raise DatabaseUnavailable(database.detail or "the database is away: see that Postgres runs and can be reached")
    try:
        async with timeout(LOOK_SECONDS_MAX), database.engine.connect() as connection:
            return await _read(connection, {"cluster": cluster})
    except (OSError, TimeoutError, SQLAlchemyError) as error:
        raise DatabaseUnavailable(
            f"the database does not answer: {error}; see that Postgres runs and can be reached"
        ) from None


async def _read(connection: AsyncConnection, of: dict[str, Any]) -> EarlierRows | None:
    heads = await connection.scalar(text("select count(*) from index_heads where cluster = :cluster"), of)
    about = {**of, "internal": EPOCHS_TOPIC}
    topics = await connection.scalar(text(_COUNT), about)
    if not heads and not topics:
        return None
    subscriptions = await connection.scalar(text(_SUBSCRIPTIONS), of)
    names = await connection.scalars(text(_NAMES), {**about, "most": TOPICS_MAX})
    return EarlierRows(topics or 0, subscriptions or 0, tuple(names))
