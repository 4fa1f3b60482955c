"""Deletion of one subscription with its state, and the tombstone that remains.

Invariant 6 (DESIGN §3): the transaction that deletes a replicated subscription also stores its tombstone, so that an
earlier announcement of another cluster does not bring the subscription back. A deletion goes on even if its caller is
cancelled.

An unforced deletion never takes a subscription away from consumers, in any cluster:

1. It is refused while consumers are connected here.
2. Then other clusters are asked (:class:`~replicator.engine.admission.RemoteUse`). It is refused if one of them has
   consumers. A cluster that does not answer in time does not stop it (invariant 8).
3. Consumers may have connected here meanwhile, so step 1 is repeated.
4. Deletions that belong together all begin in the turn of the event loop that checked the last of them. From then on
   nobody can connect to any of these subscriptions.
5. The tombstone records that the deletion was not forced. So a cluster keeps the subscription if consumers connected
   there meanwhile, or if it did not answer: :meth:`TopicSubscriptions.bury`.

A cluster also keeps a subscription that it made, or whose replication it turned on, if the deletion is from before
(:attr:`CursorState.unheard`), forced or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from replicator.engine.errors import SubscriptionBusy, SubscriptionNotFound
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_saver import CursorSaver
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.subscriptions.tombstones import Tombstones
from replicator.running.short_tasks import awaited, complete, heard


class DeletedSubscription(Protocol):
    """Interface of a subscription for its deletion."""

    name: str
    durable: bool
    topic: SubscribedTopic
    cursor: Cursor

    @property
    def consumers(self) -> Mapping[int, EngineConsumer]: ...

    @property
    def replicated(self) -> bool: ...

    @property
    def deleting(self) -> SubscriptionDeleting: ...


async def delete_together(subscriptions: Sequence[DeletedSubscription], *, force: bool = False) -> None:
    """Delete the same subscription of several topics: all, or none if one of them has consumers.

    With ``force``, consumers are disconnected instead. Raises the errors of :meth:`SubscriptionDeleting.delete`. If the
    store fails, the subscriptions that it has not deleted stay.
    """
    if not force:
        for each in subscriptions:
            each.deleting.check_unused_here()
        topics: dict[str, list[str]] = {}
        for each in subscriptions:
            if each.deleting.is_told:
                topics.setdefault(each.name, []).append(each.topic.name)
        for name, of_topics in topics.items():
            await _check_unused_elsewhere(subscriptions[0].topic, name, of_topics)
        for each in subscriptions:
            each.deleting.check_unused_here()
    claimed: list[DeletedSubscription] = []
    try:
        for each in subscriptions:  # all, in this turn: nobody connects to one while others are deleted
            each.deleting.claim()
            claimed.append(each)
    except SubscriptionNotFound:
        for each in claimed:
            each.deleting.give_up()
        raise
    deletion = awaited(_delete_claimed(subscriptions, force=force))
    deletion.add_done_callback(heard)  # maybe nobody is left to ask
    await asyncio.shield(deletion)


async def _delete_claimed(subscriptions: Sequence[DeletedSubscription], *, force: bool) -> None:
    """Delete subscriptions that are claimed, one after the other. Give up the claims on those that stay."""
    left = list(reversed(subscriptions))
    try:
        while left:
            await left[-1].deleting.delete_claimed(unless_in_use=not force)
            left.pop()
    finally:
        for each in left:
            each.deleting.give_up()


async def _check_unused_elsewhere(topic: SubscribedTopic, name: str, topics: Sequence[str]) -> None:
    """Raise :class:`SubscriptionBusy` if another cluster has consumers of subscription ``name``. Asking may take
    seconds."""
    if topic.admission.use_elsewhere is not None:
        await topic.admission.use_elsewhere.check_unused(name, topics)


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
        """Prepare the deletion. ``forget`` is called when the subscription is gone, with the generation of its
        tombstone, or None if it left none."""
        self._subscription = subscription
        self._saver = saver
        self._tombstones = tombstones
        self._forget = forget
        self._deletion: asyncio.Future[None] | None = None
        """Done when the deletion under way has ended, whether or not the subscription is gone then."""
        self.begun = False
        """Whether the subscription is being deleted, or is gone."""

    def check_there(self) -> None:
        """Raise :class:`SubscriptionNotFound` once the deletion of the subscription has begun."""
        if self.begun:
            raise self._deletion_error()

    def gone(self) -> None:
        """Remove the non-durable subscription, because its last consumer has gone."""
        self.begun = True
        self._forget(None)

    @property
    def is_told(self) -> bool:
        """Return whether other clusters learn of the deletion: the subscription is durable and replicated."""
        return self._subscription.durable and self._subscription.replicated

    def check_unused_here(self, by: EngineConsumer | None = None) -> None:
        """Raise :class:`SubscriptionBusy` if a consumer other than ``by`` is connected to the subscription in this
        cluster."""
        subscription = self._subscription
        if others := sum(consumer is not by for consumer in subscription.consumers.values()):
            raise SubscriptionBusy(
                f"subscription {subscription.name!r} of {subscription.topic.name} has {others} "
                f"{'consumers' if by is None else 'other consumers'}: disconnect them first, or use force"
            )

    async def delete(self, by: EngineConsumer | None = None, *, force: bool = False, ask: bool = True) -> None:
        """Delete the subscription and its state. A replicated one leaves a tombstone of the next generation.

        Raises :class:`SubscriptionBusy` if a consumer other than ``by`` is connected, in any cluster. With ``force``,
        consumers are disconnected instead. Without ``ask``, other clusters are not asked beforehand, but each keeps
        the subscription if consumers use it there.
        """
        if not force:
            self.check_unused_here(by)
            if ask and self.is_told:
                self.check_there()
                subscription = self._subscription
                await _check_unused_elsewhere(subscription.topic, subscription.name, [subscription.topic.name])
                self.check_unused_here(by)
        await self._begin(by, None, unless_in_use=not force)

    def claim(self) -> None:
        """Begin a deletion: the subscription takes no consumers. :meth:`delete_claimed` or :meth:`give_up` follows."""
        self.check_there()
        self.begun = True
        self._deletion = asyncio.get_running_loop().create_future()

    async def delete_claimed(
        self, by: EngineConsumer | None = None, generation: int | None = None, *, unless_in_use: bool
    ) -> None:
        """Delete the subscription that was claimed. The caller must see to it that this is not cancelled."""
        if generation is None and self._subscription.replicated:
            generation = self._subscription.cursor.generation + 1
        await self._delete(by, generation, unless_in_use=unless_in_use)
        self._ended()

    def give_up(self) -> None:
        """Let the subscription stay, because its deletion failed or was not tried."""
        self._ended()
        self.begun, self._deletion = False, None

    def _ended(self) -> None:
        if self._deletion is not None:
            complete(self._deletion, None)

    async def bury(self, generation: int, *, unless_in_use: bool = False) -> None:
        """Delete the subscription because another cluster deleted it. Its tombstone gets the ``generation`` of that
        deletion.

        If a deletion is under way already, wait for its end instead.
        """
        if self._deletion is None:
            await self._begin(None, generation, unless_in_use=unless_in_use)
        else:
            await self.ended()

    async def ended(self) -> None:
        """Wait until no deletion is under way: the subscription is gone, or it stays because the store failed."""
        if self._deletion is not None:
            await asyncio.wait([self._deletion])

    async def _begin(self, by: EngineConsumer | None, generation: int | None, *, unless_in_use: bool) -> None:
        self.claim()

        async def delete() -> None:
            try:
                await self.delete_claimed(by, generation, unless_in_use=unless_in_use)
            except BaseException:
                self.give_up()
                raise

        # A cancelled caller cannot undo the deletion in the store, so it goes on to its end here, too.
        deletion = awaited(delete())
        deletion.add_done_callback(heard)  # maybe nobody is left to ask
        await asyncio.shield(deletion)

    async def _delete(self, by: EngineConsumer | None, generation: int | None, *, unless_in_use: bool) -> None:
        subscription = self._subscription
        if subscription.durable:
            tombstones = self._tombstones
            name = subscription.name
            writes = [] if generation is None else tombstones.writes(name, generation, unless_in_use=unless_in_use)
            await self._saver.delete(self._deletion_error(), writes)
            if generation is not None:
                tombstones.note(name, generation, unless_in_use=unless_in_use)
        reason = f"subscription {subscription.name!r} was deleted"
        for consumer in list(subscription.consumers.values()):
            consumer.close(None if consumer is by else reason, SubscriptionNotFound.code)
        self._forget(generation)

    def _deletion_error(self) -> SubscriptionNotFound:
        return SubscriptionNotFound(
            f"subscription {self._subscription.name!r} of {self._subscription.topic.name} is being deleted"
        )
