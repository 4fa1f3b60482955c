"""Interfaces of a subscription for the parts that change its cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from replicator.engine.subscriptions.backlog import Backlog
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.types import Ack, ReadEntries
from snapshots.position import Position
from snapshots.position_set import PositionSet


class ChangedDispatching(Protocol):
    """Interface of a subscription's dispatch for the parts that change the cursor."""

    @property
    def dispatcher(self) -> Dispatcher | None: ...

    def schedule(self) -> None:
        """There may be something to dispatch."""

    def rewind(self, positions: PositionSet) -> None:
        """Deliver the entries at ``positions``, which counted as consumed until now, before later entries."""

    def restart(self) -> None:
        """The cursor was put elsewhere: dispatch starts anew, and consumers are told to drop what they have."""


class ChangedSubscription(Protocol):
    """Interface of a subscription for the parts that change its cursor."""

    topic: SubscribedTopic
    cursor: Cursor
    backlog: Backlog
    locally_active: bool

    @property
    def dispatching(self) -> ChangedDispatching: ...

    @property
    def read_entries(self) -> ReadEntries: ...

    async def acknowledge(self, acks: Sequence[Ack]) -> None: ...

    def changed(self, mark_delete_before: Position | None, *, local: bool) -> None:
        """Tell whom it concerns that mark-delete moved; with None also if it did not (another generation)."""

    def saved(self) -> asyncio.Future[None]:
        """A future that is done when the state as it is now is durable."""
