"""Interfaces of a subscription for the parts that change its cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from replicator.engine.subscriptions.backlog import Backlog
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
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
        """Schedule dispatch, because there may be something to dispatch."""

    def rewind(self, positions: PositionSet) -> None:
        """Deliver the entries at ``positions``, which counted as consumed until now, before later entries."""

    def restart(self) -> None:
        """Restart dispatch at the moved cursor, and tell consumers to drop the messages that they have."""


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
        """Tell every part that depends on mark-delete that it moved. With None, tell it even if mark-delete did not
        move."""

    def saved_before(self, state: CursorState, move: Callable[[], None]) -> asyncio.Future[None]:
        """Return a future that is done when ``state`` is durable, and ``move`` was called right after that."""

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done when the present state is durable."""
