"""Applies other clusters' announcements about a topic's subscriptions: creates, deletes and merges them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound, TopicNotFound
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.sync.opened_starts import OpenedStarts
from replicator.sync.shared import Shared, monotonic_ms
from replicator.sync.topic_state import TopicState
from snapshots.actions import ApplyUpdate
from snapshots.controller import SnapshotController
from snapshots.position import BEFORE_ALL

log = structlog.get_logger(__name__)


class Burial(NamedTuple):
    """Deletion of a subscription that another cluster announced."""

    generation: int
    """Generation of the deletion."""
    relay: bool
    """Whether to pass the announcement on."""
    again: bool
    """Whether the other cluster announced the deletion before."""


class UpdateApplier:
    """Applies updates from other clusters to one topic. ``settle`` is called when the controller has a new deadline."""

    __slots__ = ("_burials", "_controller", "_opened", "_settle", "_shared", "_state", "_topic", "made")

    def __init__(
        self,
        shared: Shared,
        topic: Topic,
        controller: SnapshotController,
        state: TopicState,
        settle: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._topic = topic
        self._controller = controller
        self._state = state
        self._settle = settle
        self._opened = OpenedStarts(controller, time.monotonic)
        self.made: dict[str, bool] = {}
        """Subscriptions that are being made because another cluster has them, each with whether to pass that on."""
        self._burials: dict[str, Burial] = {}
        """Subscriptions that are being deleted because another cluster deleted them."""

    def burial(self, name: str, generation: int | None) -> Burial | None:
        """Return the announced deletion of the subscription ``name`` that is being carried out; None if ``generation``
        is that of a deletion of this cluster's own."""
        found = self._burials.get(name)
        return None if found is None or found.generation != generation else found

    async def apply(self, update: ApplyUpdate, *, repeating: bool) -> asyncio.Future[None] | None:
        """Apply an update. Return a future that is done when the result is durable, or None if nothing needs to be
        saved.

        ``repeating`` says that the update was merged before, but perhaps not saved. Raises :class:`StoreFull` and
        :class:`StoreFailed` if the store cannot take the result, and :class:`TopicNotFound` if the topic is gone.
        """
        relay = self._shared.routes.relays(self._topic.name, update.source)
        try:
            if update.deleted:
                await self._bury(update, relay=relay)
                kept = self._topic.subscriptions.get(update.subscription)
                return None if kept is None else kept.saved()
            subscription = await self._living(update, relay=relay)
            if not subscription.replicated:
                self._shared.counted.updates_ignored += 1
                return None
            rewinds = subscription.dispatching.rewinds
            changed = self._state.exact.merge_update(subscription, update, relay=relay)
            opened = subscription.dispatching.rewinds > rewinds
            self._opened.applied(subscription, update, opened=opened)
            if opened:
                self._settle()  # it asks
            if changed or repeating:
                return subscription.saved()
        except (StoreFull, StoreFailed, TopicNotFound):
            raise
        except SubscriptionNotFound:  # it is being deleted; other subscriptions' updates go on
            self._shared.counted.updates_ignored += 1
        except EngineError as error:
            log.warning("update refused", topic=self._topic.name, source=update.source, reason=str(error))
            self._shared.counted.updates_ignored += 1
        return None

    async def _living(self, update: ApplyUpdate, *, relay: bool) -> Subscription:
        """Return the subscription of an update. Create it if there is none.

        If it is being deleted, wait for that: a later generation than that of the deletion brings it back.
        """
        living = self._topic.subscriptions.get(update.subscription)
        while living is not None and living.deleting.begun:
            await living.deleting.ended()
            living = self._topic.subscriptions.get(update.subscription)
        return living or await self._create(update, relay=relay)

    async def _create(self, update: ApplyUpdate, *, relay: bool) -> Subscription:
        self.made[update.subscription] = relay
        try:
            return await self._topic.subscriptions.create(
                update.subscription,
                BEFORE_ALL,
                replicated=True,
                properties=dict(update.properties),
                read_compacted=update.read_compacted,
                generation=update.generation,
                unclaimed=self._state.exact.unclaimed(update.read_compacted),
                starts=update.starts,
                incomplete=self._shared.exact and bool(update.acks) and not update.whole,
            )
        finally:
            self.made.pop(update.subscription, None)

    async def _bury(self, update: ApplyUpdate, *, relay: bool) -> None:
        """Delete a subscription because another cluster deleted it.

        Keep it in the next generation if that deletion was not forced and consumers use it in this cluster, or if the
        deletion is not new and this cluster made the subscription, or turned its replication on, without knowing of it.
        """
        name, sparing = update.subscription, update.unless_in_use
        self._opened.forget(name)
        living = self._topic.subscriptions.get(name)
        if living is not None and not living.replicated:
            self._shared.counted.updates_ignored += 1
            return
        if living is None or not living.deleting.begun:
            self._burials[name] = Burial(update.generation, relay, update.whole)
        try:
            kept = await self._topic.subscriptions.bury(
                name, update.generation, unless_in_use=sparing, unless_unheard=update.whole
            )
        finally:
            self._burials.pop(name, None)
        if kept is not None:
            unknown = update.whole and kept.cursor.state.may_outlive
            self._state.exact.outlive(kept, update.generation)
            log.warning(
                "subscription kept though it was deleted elsewhere: "
                + ("this cluster did not know" if unknown else "consumers use it here"),
                topic=self._topic.name,
                subscription=name,
                deleted_at=update.source,
                consumers=len(kept.consumers),
                generation=kept.cursor.generation,
            )
        elif living is None:
            self._controller.on_subscription_deleted(
                name,
                update.generation,
                monotonic_ms(),
                announced=not relay,
                unless_in_use=sparing,
                again=update.whole,
            )
            self._settle()
