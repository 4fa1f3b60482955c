"""Figures of a subscription for the status page and the admin paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.dispatch.single_active import SingleActiveDispatcher
from replicator.engine.subscriptions.dispatching import Dispatching


class ShownSubscription(Protocol):
    """Interface of a subscription whose figures are shown."""

    name: str
    durable: bool
    cursor: Cursor

    @property
    def consumers(self) -> Mapping[int, EngineConsumer]: ...

    @property
    def dispatching(self) -> Dispatching: ...

    @property
    def replicated(self) -> bool: ...

    def backlog_messages(self) -> int: ...


def subscription_status(subscription: ShownSubscription) -> Mapping[str, Any]:
    """Return figures by name, as JSON values. Positions are ``ledger:entry``."""
    cursor, dispatching = subscription.cursor, subscription.dispatching
    kind, dispatcher = dispatching.type, dispatching.dispatcher
    active = dispatcher.active if isinstance(dispatcher, SingleActiveDispatcher) else None
    return {
        "name": subscription.name,
        "type": None if kind is None else kind.value,
        "durable": subscription.durable,
        "replicated": subscription.replicated,
        "generation": cursor.generation,
        "mark_delete": str(cursor.mark_delete),
        "individually_deleted_entries": len(cursor.state.individually_deleted),
        "backlog_entries": cursor.backlog_entries(),
        "backlog_messages": subscription.backlog_messages(),
        "error": dispatching.error,
        **(dispatcher.status() if dispatcher is not None and subscription.consumers else {}),
        "active_consumer": None if active is None else subscription.consumers[active].name,
        "consumers": [
            {"name": consumer.name, **dispatcher.consumer_status(consumer.id)}
            for consumer in subscription.consumers.values()
            if dispatcher is not None
        ],
    }
