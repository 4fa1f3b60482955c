"""Subscription states: the progress of each subscription, and the tombstones of deleted ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select

from snapshots.models import SubscriptionStateRow
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository.rows import Rows


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """Progress of one subscription in one cluster.

    ``acked_beyond`` entries are acknowledged beyond the mark-delete position, in ``holes`` runs; ``ack_vector`` is a
    summary by origin. A ``tombstone`` stands for a subscription that was deleted.
    """

    topic: str
    subscription: str
    generation: int
    mark_delete: Position
    replicated: bool
    acked_beyond: int = 0
    holes: int = 0
    ack_vector: Mapping[str, Any] | None = None
    tombstone: bool = False

    @classmethod
    def buried(cls, topic: str, subscription: str, generation: int) -> SubscriptionState:
        """Return the state that stands for a deleted subscription; ``generation`` is its tombstone's."""
        return cls(topic, subscription, generation, BEFORE_ALL, replicated=True, tombstone=True)


class SubscriptionStates(Rows):
    """Part of the repository that holds subscription states."""

    async def save_subscription_states(self, states: Sequence[SubscriptionState]) -> None:
        """Write states. If several are of one subscription, the last one counts."""
        rows = {
            (state.topic, state.subscription): {
                "cluster": self._cluster,
                "topic": state.topic,
                "subscription": state.subscription,
                "generation": state.generation,
                "mark_delete_ledger": state.mark_delete.ledger,
                "mark_delete_entry": state.mark_delete.entry,
                "replicated": state.replicated,
                "acked_beyond": state.acked_beyond,
                "holes": state.holes,
                "ack_vector": None if state.ack_vector is None else dict(state.ack_vector),
                "tombstone": state.tombstone,
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

    async def subscription_states(
        self, topic: str | None = None, *, tombstones: bool = False
    ) -> list[SubscriptionState]:
        """Return the states of ``topic`` or of all topics, ordered by topic and name.

        With ``tombstones``, also return those of deleted subscriptions.
        """
        row = SubscriptionStateRow
        query = select(
            row.topic,
            row.subscription,
            row.generation,
            row.mark_delete_ledger,
            row.mark_delete_entry,
            row.replicated,
            row.acked_beyond,
            row.holes,
            row.ack_vector,
            row.tombstone,
        ).where(row.cluster == self._cluster)
        if topic is not None:
            query = query.where(row.topic == topic)
        if not tombstones:
            query = query.where(row.tombstone.is_(False))
        async with self._connection() as connection:
            found = (await connection.execute(query.order_by(row.topic, row.subscription))).all()
        return [
            SubscriptionState(of, name, generation, Position(ledger, entry), *rest)
            for of, name, generation, ledger, entry, *rest in found
        ]
