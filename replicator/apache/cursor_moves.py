"""Moving a subscription's cursor at the brokers or in the engine, because the other side moved or deleted it.

:class:`replicator.apache.state.SubscriptionStates` calls these methods one at a time, while it compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.applying import Applying, Wanted, cursor_of
from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.engine_side import EngineSide
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import AdminFailed
from replicator.apache.reconciling import SyncState, acknowledged_at_broker, before
from replicator.apache.shown import TopicInternals
from replicator.apache.sync_states import SyncStateTable
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL
from snapshots.position_set import PositionSet

log = structlog.get_logger(__name__)


class CursorMoves:
    """Moves the cursors of one topic's subscriptions, and keeps :class:`SyncState` of each in step."""

    def __init__(
        self,
        admin: BrokerAdmin,
        topic: Topic,
        entries: EntryMap,
        fence: ConsumerFence,
        side: EngineSide,
        states: SyncStateTable,
        applying: Applying,
        merge: Callable[[Subscription, PositionSet], None],
    ) -> None:
        """``merge`` acknowledges entries of the brokers in the engine."""
        self._admin = admin
        self._topic = topic
        self._entries = entries
        self._fence = fence
        self._side = side
        self._states = states
        self._seen = states.by_name
        self._applying = applying
        self._merge = merge
        self.counters = {"resets": 0, "put_back": 0}

    async def delete_at_broker(self, name: str) -> None:
        """Delete a subscription at the broker, because another cluster deleted it.

        The broker refuses the deletion while consumers are connected. Then an unforced deletion ends without an
        error: the broker keeps the subscription. The next comparison creates it again in the engine, with a start
        where the broker's cursor stands at that time. Raises :class:`AdminFailed` for every other failure.
        """
        try:
            async with self._fence.lock:
                await self._fence.release(name)
                await self._admin.delete_subscription(self._topic.name, name)
        except AdminFailed as error:
            refused = error.status == HTTPStatus.PRECONDITION_FAILED
            if not refused or not self._topic.subscriptions.tombstones.unless_in_use(name):
                raise
            if not (await self._admin.consumers(self._topic.name)).get(name):
                raise
            log.warning(
                "subscription kept though it was deleted elsewhere: consumers use it at the brokers",
                topic=self._topic.name,
                subscription=name,
                reason=str(error),
            )

    async def reset_at_broker(
        self, subscription: Subscription, broker: BrokerCursor, internals: TopicInternals
    ) -> None:
        first = self._side.first_open(subscription)
        if first is not None:
            await self._admin.reset_subscription(self._topic.name, subscription.name, first)
            broker = BrokerCursor(before(first))
        self.counters["resets"] += 1
        state = subscription.cursor.state
        start = max(broker.mark_delete, internals.gone)
        self._seen[subscription.name] = SyncState(
            state.generation, broker, internals.load, start=start, starts=state.starts
        )

    async def put_back_at_broker(self, subscription: Subscription, seen: SyncState, internals: TopicInternals) -> None:
        """Move the broker's cursor back to ``seen.returning``, and repeat the acknowledgements after that entry.

        The broker disconnects the subscription's consumers, which reconnect by themselves. Until the acknowledgements
        are repeated, the broker may deliver acknowledged messages to the consumers again.
        """
        name, first = subscription.name, seen.returning
        assert first is not None
        log.info(
            "another cluster has an earlier start: the broker's cursor is put back",
            topic=self._topic.name,
            subscription=name,
            first=str(first),
        )
        self._seen[name] = seen
        await self._states.note()
        now = await self._admin.internals(self._topic.name)  # consumers may have acknowledged more meanwhile
        cursor = cursor_of(now, name)
        if cursor is None or cursor.lacks(seen.broker) or now.load != internals.load:
            return
        engine = self._side.in_engine(name, self._side.engines(subscription), seen, cursor.mark_delete)
        self._merge(subscription, acknowledged_at_broker(seen, cursor, engine))
        await subscription.saved()
        await self._admin.reset_subscription(self._topic.name, name, first)
        put = await self._admin.internals(self._topic.name)
        cursor = cursor_of(put, name)
        if cursor is None:
            return
        engines = self._side.engines(subscription)
        # Not where the cursor stands now: consumers may have acknowledged messages since the reset.
        start = min(seen.start, max(before(first), put.gone))
        seen = self._seen[name] = SyncState(engines.generation, cursor, put.load, start=start, starts=engines.starts)
        # At once: a killed worker could not tell that it did this, once consumers went on.
        await self._states.note()
        self.counters["put_back"] += 1
        missing = cursor.not_among(self._side.in_engine(name, engines, seen, cursor.mark_delete).acknowledged)
        if missing:
            done = (await self._applying.apply({name: Wanted(cursor, missing)}, put))[name]
            if not isinstance(done, list):
                raise done
            self._seen[name] = replace(seen, broker=cursor.with_more(done))

    async def reset_in_engine(
        self, subscription: Subscription, broker: BrokerCursor, internals: TopicInternals
    ) -> None:
        log.info("subscription was put back at the brokers", topic=self._topic.name, subscription=subscription.name)
        everything = self._entries.beyond(BEFORE_ALL)
        first = self._entries.to_local(broker.not_among(everything)).first()
        if first is not None:
            await subscription.moves.seek(first)
            acknowledged = self._entries.to_local(broker.among(everything))
            subscription.merging.acks(acknowledged, {}, announce=True)
            await subscription.saved()
        self.counters["resets"] += 1
        self._seen[subscription.name] = SyncState(subscription.cursor.generation, broker, internals.load)
