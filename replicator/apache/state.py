"""Synchronisation of one topic's subscriptions between the brokers and the engine.

:mod:`replicator.apache.reconciling` decides. This module and :mod:`replicator.apache.cursor_moves` carry the decisions
out. Other clusters learn changes from the engine's subscriptions: links carry the markers that announce them.

1. One request shows the cursors of all subscriptions of the topic. Cursors of readers are left out
   (:mod:`replicator.apache.reader_cursors`). The engine's subscriptions of the same names are translated to the
   brokers' positions, as far as both sides have the messages.
2. For each subscription that differs, the decision is carried out, and the new common state is stored
   (:mod:`replicator.apache.sync_states`). Acknowledgements at the brokers are stored as soon as the broker has
   confirmed them. If a subscription was created on one side, that is stored at once, because it may be deleted on the
   other side before the next comparison.
3. All subscriptions that differ are merged together; :mod:`replicator.apache.applying` describes how the brokers get
   the acknowledgements. A failure of one subscription does not affect the others.
4. Usually neither side has changed since a comparison found nothing to do. Then nothing is compared.
5. A cursor that seems to have been moved back is read twice: a broker changes its mark-delete position and its ranges
   one after the other, and may be asked in between. A subscription that seems to be deleted is looked for again.
   Brokers that delete a topic delete its subscriptions one by one, and that says nothing about those elsewhere.
6. If a cursor is seen for the first time, the engine gets its position as a start once the engine has read all entries
   up to it. Before that, the origins of these entries are unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.applying import Applying, Wanted
from replicator.apache.broker_cursor import BrokerCursor, CursorCache, text_of
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.cursor_moves import CursorMoves
from replicator.apache.engine_side import Engines, EngineSide
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeError
from replicator.apache.names import is_reserved, reading_subscription
from replicator.apache.reader_cursors import ReaderCursors
from replicator.apache.reconciling import (
    NOT_TOLD,
    CreateAtBroker,
    CreateInEngine,
    DeleteAtBroker,
    DeleteInEngine,
    Forget,
    Merge,
    NoteStart,
    PutBackAtBroker,
    ResetAtBroker,
    ResetInEngine,
    StartInEngine,
    SyncState,
    before,
    reconcile,
    uncovered,
)
from replicator.apache.shown import TopicInternals
from replicator.apache.sync_states import SyncStateTable
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.errors import EngineError
from replicator.engine.log.store import Store
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start

GONE_SECONDS: Final = 1.0
"""Time for which the brokers must lack a subscription, and have the bridge's own, before it counts as deleted."""

log = structlog.get_logger(__name__)


class _State(NamedTuple):
    """Present state of one subscription, in the engine and at the brokers.

    :mod:`replicator.apache.reconciling` compares it with :class:`SyncState`, the state at the last comparison, and
    decides.
    """

    at_broker: tuple[str, str]
    load: str
    engines: Engines


class _Idle(NamedTuple):
    """State for which a comparison found nothing to do."""

    state: _State
    quiet: bool
    """Whether everything was acknowledged, on both sides."""


class _Merged(NamedTuple):
    """Subscription whose merge has begun."""

    subscription: Subscription
    seen: SyncState
    merge: Merge
    idle: _Idle | None
    """State of the subscription after the merge in the engine; None if the brokers need changes, too."""


class SubscriptionStates:
    """Keeps the subscriptions of one topic in step between the engine and the brokers."""

    def __init__(
        self,
        settings: ApacheSettings,
        connector: BrokerConnector,
        admin: BrokerAdmin,
        cluster: str,
        topic: Topic,
        store: Store,
        entries: EntryMap,
        fence: ConsumerFence,
        has_read: Callable[[Position, TopicInternals], Awaitable[bool]],
        same_life: Callable[[TopicInternals], Awaitable[None]],
    ) -> None:
        """Load the stored states. ``has_read`` returns whether the engine has all entries of the brokers up to a
        position. ``same_life`` raises :class:`BridgeError` if the brokers were put back to an older copy."""
        self._fence = fence
        self._settings = settings
        self._applying = Applying(connector, admin, cluster, topic.name, fence)
        self._admin = admin
        self._cluster = cluster
        self._topic = topic
        self._entries = entries
        self._side = EngineSide(store, topic, entries)
        self._has_read = has_read
        self._same_life = same_life
        self.lock = asyncio.Lock()
        """Held during a comparison, and while a new life of the brokers' data begins."""
        self._states = SyncStateTable(store, topic)
        self._seen = self._states.by_name
        self._passing = ReaderCursors(admin, topic.name)
        self._idle: dict[str, _Idle] = {}
        self._shown = CursorCache()
        self._put_back: dict[str, BrokerCursor] = {}
        """Cursors that seemed to have been put back when they were last looked at."""
        self._gone: dict[str, float] = {}
        """For each subscription that the brokers no longer have, the time when that was seen first."""
        self.merging = False
        """Whether the bridge is changing the engine's subscriptions. Then their changes are no news for the brokers."""
        self.quiet = False
        """Whether everything is acknowledged, on both sides."""
        self.internals: TopicInternals | None = None
        """Statistics of the topic that the brokers showed at the last comparison."""
        self.errors: dict[str, str] = {}
        """For each subscription that is not kept in step now, the reason."""
        self.counters = {"acknowledged_in_engine": 0, "acknowledged_at_broker": 0}
        self._moves = CursorMoves(
            admin, topic, entries, fence, self._side, self._states, self._applying, self._merge_in_engine
        )

    async def compare(self) -> bool:
        """Compare all subscriptions once, and carry out the decisions. Return whether anything had to be done.

        Raises :class:`BridgeError` if the brokers cannot be asked, and the store's errors if states cannot be stored.
        """
        async with self.lock:
            return await self._compare_all()

    def put_back(self, after: Position, there: Set[str]) -> list[RowWrite]:
        """Forget what was seen of subscriptions at the brokers behind ``after``, where a new life of their data begins.

        See :meth:`SyncStateTable.put_back` for ``there`` and the rows that it returns.
        """
        self._idle.clear()
        self._put_back.clear()
        self._gone.clear()
        return self._states.put_back(after, there)

    async def _compare_all(self) -> bool:
        gone, self._gone = self._gone, {}  # if this fails, the topic itself may be gone
        internals = self.internals = await self._admin.internals(self._topic.name)
        await self._same_life(internals)
        if reading_subscription(self._cluster) not in internals.cursors:
            # The topic may be another one, made anew: that its subscriptions are gone says nothing about the old ones.
            raise BridgeError(
                "the bridge does not read this topic at the brokers (yet), so that it cannot tell which of its "
                "subscriptions were deleted; it looks again by itself"
            )
        self._gone = gone
        names = {name for name, each in self._topic.subscriptions.items() if each.replicated and each.stored}
        names.update(self._seen)
        unknown = {name for name in internals.cursors if self.bridged(name)} - names
        names.update(unknown - await self._passing.among(unknown))
        self._shown.look(internals.last_entries)
        worked, self.quiet = False, True
        merges: list[_Merged] = []
        for name in sorted(name for name in names if self.bridged(name)):
            try:
                done = await self._compare(name, internals)
            except (BridgeError, PulsarException, EngineError) as error:
                self._failed(name, error)
                continue
            if isinstance(done, _Merged):
                merges.append(done)
            else:
                worked |= done
                self.errors.pop(name, None)
        for each in merges:
            name = each.subscription.name
            if self._seen[name].passes_over() != each.seen.passes_over():
                self._seen[name] = each.seen
        await self._states.note()  # first, else passed entries would look acknowledged at a broker
        worked |= await self._finish_merges(merges, internals)
        for name in self._idle.keys() - names:
            del self._idle[name]
        self._shown.keep(names)
        self._side.keep(names)
        await self._states.note()
        return worked

    def missing_at_brokers(self) -> frozenset[str]:
        """Return the subscriptions of the engine that were never seen at the brokers.

        Brokers may delete messages that are published before the subscription is created there.
        """
        found = self._topic.subscriptions.items()
        return frozenset(
            name for name, each in found if each.replicated and self.bridged(name) and name not in self._seen
        )

    def status(self) -> dict[str, Any]:
        return {"subscriptions": len(self._seen), "errors": dict(self.errors), **self.counters, **self._moves.counters}

    def has_seen_any(self) -> bool:
        """Return whether the brokers have had a subscription of the topic that is not known to be deleted."""
        return bool(self._seen)

    def knows(self, subscription: Subscription) -> bool:
        """Return whether the engine's subscription has not changed since a comparison found nothing to do."""
        idle = self._idle.get(subscription.name)
        return idle is not None and idle.state.engines == self._side.engines(subscription)

    def lags(self, name: str) -> str:
        """Return a sentence on how the brokers lag behind the engine's subscription ``name``; empty if they do not
        lag."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not self.bridged(name):
            return ""
        if name in self.errors:
            return f"the brokers lag: {self.errors[name]}"
        seen = self._seen.get(name)
        if seen is None or seen.generation != subscription.cursor.generation:
            return "the brokers do not have it as it is"
        engine = self._side.in_engine(name, self._side.engines(subscription), seen, seen.broker.mark_delete)
        if passed_over := len(seen.broker.among(uncovered(seen, engine))):
            return f"the brokers' cursor has passed {passed_over} entries after an earlier start of another cluster"
        missing = len(seen.broker.not_among(engine.acknowledged))
        return f"{missing} entries are not acknowledged at the brokers yet" if missing else ""

    def bridged(self, name: str) -> bool:
        """Return whether the subscriptions of that name are kept in step."""
        return not is_reserved(name) and self._settings.bridges_subscription(name)

    async def _compare(self, name: str, internals: TopicInternals) -> bool | _Merged:
        """Compare one subscription, and act. Return whether there was work, or a merge for :meth:`_finish_merges`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is not None and not subscription.replicated:
            raise BridgeError(
                f"the worker's own store has a subscription {name!r} of this topic that is not replicated: take "
                "another name at the brokers, or delete it in that store, where it has "
                f"{subscription.backlog_messages()} messages left to consume"
            )
        shown = internals.cursors.get(name)
        engines = None if subscription is None else self._side.engines(subscription)
        idle = self._idle.pop(name, None)
        if (
            engines is not None
            and shown is not None
            and idle is not None
            and idle.state == _State(text_of(shown), internals.load, engines)
        ):
            self._idle[name] = idle
            self.quiet &= idle.quiet
            return False
        broker = None if shown is None else self._shown.parsed(name, shown)
        seen = self._seen.get(name)
        beyond = BEFORE_ALL if broker is None else broker.mark_delete
        engine = None if engines is None else self._side.in_engine(name, engines, seen, beyond)
        all_at_broker = broker is not None and not broker.not_among(self._entries.beyond(beyond))
        self.quiet &= all_at_broker and engine is not None and not engine.open
        decision = reconcile(seen, broker, engine, load=internals.load, gone=internals.gone)
        if not isinstance(decision, ResetInEngine):
            self._put_back.pop(name, None)
        if not isinstance(decision, DeleteInEngine):
            self._gone.pop(name, None)
        match decision:
            case Forget():
                self._seen.pop(name, None)
                return False
            case NoteStart():
                assert broker is not None
                self._seen[name] = SyncState(NOT_TOLD, broker, internals.load, start=broker.mark_delete)
            case CreateInEngine():
                assert seen is not None
                starts = await self._starts(seen.start, internals)
                made = await self._topic.subscriptions.create(name, BEFORE_ALL, replicated=True, starts=starts)
                self._seen[name] = replace(seen, generation=made.cursor.generation)
            case StartInEngine():
                assert seen is not None
                assert subscription is not None
                starts = await self._starts(seen.start, internals)
                if self._topic.starting.merge(self._topic.name, subscription, starts):
                    await subscription.saved()
                self._seen[name] = replace(seen, generation=subscription.cursor.generation)
            case CreateAtBroker():
                assert subscription is not None
                first = self._side.first_open(subscription)
                made_for = SyncState(
                    subscription.cursor.generation,
                    BrokerCursor(BEFORE_ALL),
                    internals.load,
                    start=BEFORE_ALL if first is None else before(first),
                    starts=subscription.cursor.state.starts,
                )
                if await self._admin.create_subscription(self._topic.name, name, first):
                    self._seen[name] = made_for
                else:  # a client has just created it
                    self._seen.pop(name, None)
            case DeleteInEngine():
                now = asyncio.get_running_loop().time()
                if now - self._gone.setdefault(name, now) < GONE_SECONDS:
                    return True
                del self._gone[name]
                log.info("subscription was deleted at the brokers", topic=self._topic.name, subscription=name)
                await self._topic.subscriptions.delete(name)
                del self._seen[name]
            case DeleteAtBroker():
                await self._moves.delete_at_broker(name)
                del self._seen[name]
            case ResetAtBroker():
                assert subscription is not None
                assert broker is not None
                await self._moves.reset_at_broker(subscription, broker, internals)
            case PutBackAtBroker(first):
                assert subscription is not None
                assert broker is not None
                assert seen is not None
                await self._moves.put_back_at_broker(
                    subscription, replace(seen, broker=broker, returning=first), internals
                )
            case ResetInEngine():
                assert subscription is not None
                assert broker is not None
                if (earlier := self._put_back.get(name)) is None or broker.lacks(earlier) or earlier.lacks(broker):
                    self._put_back[name] = broker
                    return True
                del self._put_back[name]
                await self._moves.reset_in_engine(subscription, broker, internals)
            case Merge():
                assert subscription is not None
                assert broker is not None
                assert engine is not None
                assert shown is not None
                assert seen is not None
                assert engines is not None
                self._merge_in_engine(subscription, decision.in_engine)  # at once, as it is of this generation
                state = _State(text_of(shown), internals.load, self._side.engines(subscription))
                idle = _Idle(state, quiet=all_at_broker and not state.engines.open)
                if decision.in_engine and broker.among(self._side.open_at_brokers(name, state.engines)):
                    idle = None  # the engine did not take all of it
                generation = subscription.cursor.generation
                seen = SyncState(generation, broker, internals.load, start=decision.start, starts=engines.starts)
                return _Merged(subscription, seen, decision, idle)
        return True

    def _merge_in_engine(self, subscription: Subscription, at_broker: PositionSet) -> None:
        if not at_broker:
            return
        self.merging = True
        try:
            subscription.merging.acks(self._entries.to_local(at_broker), {}, announce=True)
        finally:
            self.merging = False

    # Carrying it out.

    async def _finish_merges(self, merges: Sequence[_Merged], internals: TopicInternals) -> bool:
        """Save what was acknowledged in the engine, then send the brokers the acknowledgements that they lack. Return
        whether anything was done.

        All subscriptions are saved with one or two commits, so that links carry them in one update. A subscription that
        fails does not count as done, so it is not compared more often.
        """
        worked = False
        changed = [each for each in merges if each.merge.in_engine]
        results = await asyncio.gather(*(each.subscription.saved() for each in changed), return_exceptions=True)
        unsaved: dict[str, EngineError] = {}
        for each, result in zip(changed, results, strict=True):
            if isinstance(result, EngineError):
                unsaved[each.subscription.name] = result
            elif isinstance(result, BaseException):
                raise result
        merges = [each for each in merges if each.subscription.name not in unsaved]
        for name, error in unsaved.items():
            self._failed(name, error)
        wanted = {
            each.subscription.name: Wanted(each.seen.broker, each.merge.at_broker)
            for each in merges
            if each.merge.at_broker
        }
        applied = await self._applying.apply(wanted, internals) if wanted else {}
        for each in merges:
            name, cursor = each.subscription.name, each.seen.broker
            self.counters["acknowledged_in_engine"] += len(each.merge.in_engine)
            done = applied.get(name, [])
            if not isinstance(done, list):
                self._failed(name, done)
                continue
            if done:
                cursor = cursor.with_more(done)
                self.counters["acknowledged_at_broker"] += len(done)
            self._seen[name] = replace(each.seen, broker=cursor)
            self.errors.pop(name, None)
            worked |= bool(each.merge.in_engine or each.merge.at_broker)
            if not each.merge.at_broker and each.idle is not None:
                self._idle[name] = each.idle
        return worked

    def _failed(self, name: str, error: Exception) -> None:
        self.quiet = False
        self.errors[name] = f"{type(error).__name__}: {error}"

    async def _starts(self, position: Position, internals: TopicInternals) -> dict[str, Start]:
        """Return, by origin, the start of a subscription whose cursor began at ``position`` of the brokers.

        Raises :class:`BridgeError` until the engine has read all entries of the brokers up to ``position``: before
        that the origins of these entries are unknown.
        """
        passed = min(position, internals.last)
        if passed > internals.gone and not await self._has_read(passed, internals):
            raise BridgeError(
                f"the subscription starts at {position} of the brokers, and the worker has not read all up to there "
                "yet; it goes on by itself when it has"
            )
        return self._side.starts_below(position)
