"""Deleting one subscription with its state, and what it leaves.

Invariant 6 (DESIGN §3): one that is replicated leaves a tombstone in the same transaction, so that nothing that other
clusters said before brings it back. A deletion goes on when whoever asked for it gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from replicator.engine.errors import NotAllowedError, SubscriptionNotFound
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_saver import CursorSaver
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.subscriptions.tombstones import Tombstones
from replicator.running.short_tasks import awaited


class DeletedSubscription(Protocol):
    """The subscription, as its deletion sees it."""

    name: str
    durable: bool
    topic: SubscribedTopic
    cursor: Cursor

    @property
    def consumers(self) -> Mapping[int, EngineConsumer]: ...

    @property
    def replicated(self) -> bool: ...


class SubscriptionDeleting:
    """Deletes one subscription."""

    __slots__ = ("_deletion", "_forget", "_saver", "_subscription", "_tombstones", "begun")

    def __init__(
        self,
        subscription: DeletedSubscription,
        saver: CursorSaver,
        tombstones: Tombstones,
        forget: Callable[[int | None], None],
    ) -> None:
        """``forget`` is called when it is gone, with the generation of its tombstone if it left one."""
        self._subscription = subscription
        self._saver = saver
        self._tombstones = tombstones
        self._forget = forget
        self._deletion: asyncio.Task[None] | None = None
        self.begun = False
        """Whether it is being deleted, or is gone."""

    def check_there(self) -> None:
        """Raises :class:`SubscriptionNotFound` from the moment on at which the subscription is being deleted."""
        if self.begun:
            raise self._being_deleted()

    def gone(self) -> None:
        """It is not durable, and its last consumer has gone."""
        self.begun = True
        self._forget(None)

    async def delete(
        self, by: EngineConsumer | None = None, *, force: bool = False, generation: int | None = None
    ) -> None:
        """Delete the subscription and its state. One that is replicated leaves a tombstone, with ``generation`` or else
        the next one, so that nothing that other clusters said before brings it back.

        Raises :class:`NotAllowedError` while others consume it; with ``force`` they are disconnected instead.
        """
        subscription = self._subscription
        others = [consumer for consumer in subscription.consumers.values() if consumer is not by]
        if others and not force:
            raise NotAllowedError(
                f"subscription {subscription.name!r} has other consumers: disconnect them first, or use force"
            )
        self.check_there()
        self.begun = True
        # Whoever is cancelled cannot call the deletion back from the store, so it goes on to its end here as well.
        if generation is None and subscription.replicated:
            generation = subscription.cursor.generation + 1
        deletion = self._deletion = awaited(self._delete(by, generation))
        deletion.add_done_callback(lambda task: task.cancelled() or task.exception())  # maybe nobody is left to ask
        await asyncio.shield(deletion)

    async def bury(self, generation: int) -> None:
        """Another cluster deleted it: delete it here with that tombstone, or wait until it is deleted."""
        if self._deletion is None:
            await self.delete(force=True, generation=generation)
        else:
            await asyncio.wait([self._deletion])

    async def _delete(self, by: EngineConsumer | None, generation: int | None) -> None:
        subscription = self._subscription
        if subscription.durable:
            tombstones = self._tombstones
            writes = [] if generation is None else tombstones.writes(subscription.name, generation)
            try:
                await self._saver.delete(self._being_deleted(), writes)
            except BaseException:
                self.begun, self._deletion = False, None
                raise
            if generation is not None:
                tombstones.note(subscription.name, generation)
        reason = f"subscription {subscription.name!r} was deleted"
        for consumer in list(subscription.consumers.values()):
            consumer.close(None if consumer is by else reason, SubscriptionNotFound.code)
        self._forget(generation)

    def _being_deleted(self) -> SubscriptionNotFound:
        return SubscriptionNotFound(
            f"subscription {self._subscription.name!r} of {self._subscription.topic.name} is being deleted"
        )
