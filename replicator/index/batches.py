"""Writes one batch of changes to the database. Invariant 11: what is written at once is bounded by who takes the batch.

1. Each table is one statement. Writing a batch again changes nothing, so one that failed half way is given back whole.
2. If the database refuses a row, the batch is written row by row, and what is refused then is counted and left out: one
   row that the database will never take must not keep the others out.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from replicator.index.subscription_states import SubscriptionStates
from replicator.index.waiting import Changes
from replicator.running.limited_log import LIMITED
from snapshots.repository import RowsRefused, SnapshotRepository, SubscriptionState

COUNTED_AT_ONCE: Final = 50
"""States whose acknowledgements are counted before other tasks have their turn: some milliseconds."""

log = structlog.get_logger(__name__)


class BatchWriter:
    """Writes the states of subscriptions as ``states`` has them."""

    def __init__(self, states: SubscriptionStates) -> None:
        self._states = states
        self.rows_refused = 0

    async def write(self, repository: SnapshotRepository, changes: Changes) -> None:
        """Write changes. Raise :class:`RepositoryUnavailable`."""
        try:
            await self._write(repository, changes)
        except RowsRefused:  # step 2
            for key, single in changes.one_by_one():
                try:
                    await self._write(repository, single)
                except RowsRefused as error:
                    self.rows_refused += 1
                    LIMITED.say(log.warning, "row refused by the database", "database", key=key, reason=str(error))

    async def _write(self, repository: SnapshotRepository, changes: Changes) -> None:
        await repository.record_mappings([(key[0], mapping) for key, mapping in changes.mappings.items()])
        states: list[SubscriptionState] = []
        for state in changes.states.values():
            if state is not None:
                states.append(self._states.counted(state))
                if len(states) % COUNTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        await repository.save_subscription_states(states)
        for (topic, name), state in changes.states.items():
            if state is None:
                await repository.delete_subscription_state(topic, name)
        await repository.save_link_states(list(changes.links.values()))
        await repository.record_failover_epochs(list(changes.epochs.values()))
        await repository.append_audit(list(changes.audit.values()))
