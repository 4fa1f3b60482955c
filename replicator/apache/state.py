"""The subscriptions of one topic: keeping those at the brokers and those in the engine in step.

What is to be done is decided in :mod:`replicator.apache.reconciling`; here it is asked for and carried out. From the
engine's subscriptions everything else follows: links carry their markers, other clusters merge them.

1. One request shows the cursors of all subscriptions of the topic, and those of readers, which are left out
   (:mod:`replicator.apache.passing_cursors`). The engine's subscriptions of the same names are put into the brokers'
   positions, as far as their messages lie on both sides.
2. Each difference is carried out, and what both sides have is noted in the store (:mod:`replicator.apache.seen`): on
   the brokers' side with what was acknowledged there, as soon as the broker has confirmed that. A side that just got
   the subscription is noted at once: it may be deleted on the other side before the next comparison.
3. All subscriptions that differ are merged together: how it is done at the brokers says
   :mod:`replicator.apache.applying`. What one of them is refused is no matter of the others.
4. Where both sides are as they were when nothing was to be done, nothing is: most are, whenever they are compared.
5. A cursor that seems to have been put back is looked at twice: a broker changes its mark-delete position and its
   ranges one after the other, and may be asked in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import structlog

from replicator.apache.admin import BrokerAdmin, TopicInternals
from replicator.apache.applying import Applying, Wanted
from replicator.apache.broker_cursor import BrokerCursor, parse_cursor
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import AdminFailed, BridgeError
from replicator.apache.names import is_reserved, reading_subscription
from replicator.apache.passing_cursors import PassingCursors
from replicator.apache.reconciling import (
    CreateAtBroker,
    CreateInEngine,
    DeleteAtBroker,
    DeleteInEngine,
    Forget,
    InEngine,
    Merge,
    ResetAtBroker,
    ResetInEngine,
    Seen,
    reconcile,
)
from replicator.apache.seen import load_seen, write_of
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.errors import EngineError
from replicator.engine.log.store import Store
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

log = structlog.get_logger(__name__)


class _Engines(NamedTuple):
    """What a decision follows from on the engine's side."""

    generation: int
    open: PositionSet
    """Its messages that are not acknowledged. The mark-delete position says less: it passes over markers, too."""
    entries: int
    """:attr:`EntryMap.changes`."""


class _State(NamedTuple):
    """All that a decision follows from, beside what was seen before."""

    at_broker: tuple[str, str]
    load: str
    engines: _Engines


class _Idle(NamedTuple):
    """A state in which nothing was to be done."""

    state: _State
    quiet: bool
    """Whether all was acknowledged, on both sides."""


class _Shown(NamedTuple):
    """What a broker shows of a subscription, and what that says."""

    text: tuple[str, str]
    cursor: BrokerCursor


class _Translated(NamedTuple):
    """What is not acknowledged in the engine, as positions of the brokers."""

    engines: _Engines
    open: PositionSet


class _Merged(NamedTuple):
    """A subscription whose merge has begun."""

    subscription: Subscription
    generation: int
    broker: BrokerCursor
    merge: Merge
    idle: _Idle | None
    """Once it is merged in the engine, if nothing is to be done at the brokers."""


class SubscriptionStates:
    """Those of one topic."""

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
    ) -> None:
        self._fence = fence
        self._settings = settings
        self._applying = Applying(connector, admin, cluster, topic.name, fence)
        self._admin = admin
        self._cluster = cluster
        self._topic = topic
        self._entries = entries
        self._seen = load_seen(store, topic.topic_id)
        self._passing = PassingCursors(admin, topic.name)
        self._idle: dict[str, _Idle] = {}
        self._shown: dict[str, _Shown] = {}
        """This and the next are kept as mostly only one side has changed when a subscription is compared."""
        self._translated: dict[str, _Translated] = {}
        self._last_entries: Mapping[int, int] = {}
        """With which what is shown was read."""
        self._put_back: dict[str, BrokerCursor] = {}
        """Cursors that seemed to have been put back when they were last looked at."""
        self.merging = False
        """Whether the engine is just told what brokers have: then it tells nothing that is new here."""
        self.quiet = False
        """Whether all is acknowledged, on both sides."""
        self.errors: dict[str, str] = {}
        """By subscription, why its state does not travel now."""
        self.counters = {"acknowledged_in_engine": 0, "acknowledged_at_broker": 0, "resets": 0}

    async def compare(self) -> bool:
        """Compare all once, and carry out what follows. Returns whether anything was to be done.

        Raises :class:`BridgeError` if the brokers cannot be asked, and the store's errors.
        """
        internals = await self._admin.internals(self._topic.name)
        if reading_subscription(self._cluster) not in internals.cursors:
            # The topic may be another one, made anew: that its subscriptions are gone says nothing about the old ones.
            raise BridgeError("the bridge does not read this topic (yet), so nothing is said of its subscriptions")
        names = {name for name, each in self._topic.subscriptions.items() if each.replicated and each.stored}
        names.update(self._seen)
        unknown = {name for name in internals.cursors if self.bridged(name)} - names
        names.update(unknown - await self._passing.among(unknown))
        if self._last_entries != internals.last_entries:
            self._last_entries = internals.last_entries
            self._shown.clear()
        worked, self.quiet = False, True
        before = dict(self._seen)
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
        worked |= await self._finish_merges(merges, internals)
        for known in (self._idle, self._shown, self._translated):
            for name in known.keys() - names:
                del known[name]
        changed = {name for name in before.keys() | self._seen.keys() if before.get(name) != self._seen.get(name)}
        if changed:
            writes = [write_of(self._topic.topic_id, name, self._seen.get(name)) for name in sorted(changed)]
            await self._topic.writer.put_many(writes)
        return worked

    def missing_at_brokers(self) -> frozenset[str]:
        """The subscriptions of the engine that were never seen at the brokers. Messages that are published before they
        are made could be deleted before anybody gets them there."""
        found = self._topic.subscriptions.items()
        return frozenset(
            name for name, each in found if each.replicated and self.bridged(name) and name not in self._seen
        )

    def status(self) -> dict[str, Any]:
        return {"subscriptions": len(self._seen), "errors": dict(self.errors), **self.counters}

    def knows(self, subscription: Subscription) -> bool:
        """Whether the engine's subscription is as it was when nothing was to be done."""
        idle = self._idle.get(subscription.name)
        return idle is not None and idle.state.engines == self._engines(subscription)

    def lags(self, name: str) -> str:
        """What of a subscription of the engine the brokers are not known to have; empty if nothing."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not self.bridged(name):
            return ""
        if name in self.errors:
            return f"the brokers lag: {self.errors[name]}"
        seen = self._seen.get(name)
        if seen is None or seen.generation != subscription.cursor.generation:
            return "the brokers do not have it as it is"
        both = self._entries.beyond(seen.broker.mark_delete)
        engine = self._in_engine(name, self._engines(subscription), both)
        missing = len(seen.broker.not_among(engine.acknowledged))
        return f"{missing} entries are not acknowledged at the brokers yet" if missing else ""

    def bridged(self, name: str) -> bool:
        """Whether the subscriptions of that name are kept in step."""
        return not is_reserved(name) and self._settings.bridges_subscription(name)

    async def _compare(self, name: str, internals: TopicInternals) -> bool | _Merged:
        """Whether anything was to be done; or what :meth:`_finish_merges` is to finish."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is not None and not subscription.replicated:
            raise BridgeError("the engine has a subscription of that name that is not replicated; delete it")
        shown = internals.cursors.get(name)
        engines = None if subscription is None else self._engines(subscription)
        idle = self._idle.pop(name, None)
        if (
            engines is not None
            and shown is not None
            and idle is not None
            and idle.state == _State(_text(shown), internals.load, engines)
        ):
            self._idle[name] = idle
            self.quiet &= idle.quiet
            return False
        broker = self._at_broker(name, internals)
        both = self._entries.beyond(BEFORE_ALL if broker is None else broker.mark_delete)
        engine = None if engines is None else self._in_engine(name, engines, both)
        all_at_broker = broker is not None and not broker.not_among(both)
        self.quiet &= all_at_broker and engine is not None and not engine.open
        decision = reconcile(self._seen.get(name), broker, engine, load=internals.load)
        if not isinstance(decision, ResetInEngine):
            self._put_back.pop(name, None)
        match decision:
            case Forget():
                self._seen.pop(name, None)
                return False
            case CreateInEngine():
                assert broker is not None
                made = await self._topic.subscriptions.create(name, BEFORE_ALL, replicated=True)
                self._seen[name] = Seen(made.cursor.generation, broker, internals.load)
            case CreateAtBroker():
                assert subscription is not None
                made_for = Seen(subscription.cursor.generation, BrokerCursor(BEFORE_ALL), internals.load)
                await self._admin.create_subscription(self._topic.name, name, self._first_open(subscription))
                self._seen[name] = made_for
            case DeleteInEngine():
                log.info("subscription was deleted at the brokers", topic=self._topic.name, subscription=name)
                await self._topic.subscriptions.delete(name)
                del self._seen[name]
            case DeleteAtBroker():
                await self._delete_at_broker(name)
                del self._seen[name]
            case ResetAtBroker():
                assert subscription is not None
                assert broker is not None
                await self._reset_at_broker(subscription, broker, internals)
            case ResetInEngine():
                assert subscription is not None
                assert broker is not None
                if (earlier := self._put_back.get(name)) is None or broker.lacks(earlier) or earlier.lacks(broker):
                    self._put_back[name] = broker
                    return True
                del self._put_back[name]
                await self._reset_in_engine(subscription, broker, internals)
            case Merge():
                assert subscription is not None
                assert broker is not None
                assert engine is not None
                assert shown is not None
                self._merge_in_engine(subscription, decision.in_engine)  # at once, as it is of this generation
                state = _State(_text(shown), internals.load, self._engines(subscription))
                idle = _Idle(state, quiet=all_at_broker and not state.engines.open)
                if decision.in_engine and broker.among(self._open_at_brokers(name, state.engines)):
                    idle = None  # the engine did not take all of it
                return _Merged(subscription, subscription.cursor.generation, broker, decision, idle)
        return True

    def _merge_in_engine(self, subscription: Subscription, at_broker: PositionSet) -> None:
        if not at_broker:
            return
        self.merging = True
        try:
            subscription.merging.acks(self._entries.to_local(at_broker), {}, announce=True)
        finally:
            self.merging = False

    def _engines(self, subscription: Subscription) -> _Engines:
        return _Engines(subscription.cursor.generation, self._open(subscription), self._entries.changes)

    # Carrying it out.

    async def _finish_merges(self, merges: Sequence[_Merged], internals: TopicInternals) -> bool:
        """What all of them have acknowledged in the engine is durable with one commit or two, and links tell it in one
        update; what they lack at the brokers is acknowledged there beside each other. Returns whether anything was done
        of one that did not fail: who fails is not compared more often for that."""
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
            each.subscription.name: Wanted(each.broker, each.merge.at_broker) for each in merges if each.merge.at_broker
        }
        applied = await self._applying.apply(wanted, internals) if wanted else {}
        for each in merges:
            name, cursor = each.subscription.name, each.broker
            self.counters["acknowledged_in_engine"] += len(each.merge.in_engine)
            done = applied.get(name, [])
            if not isinstance(done, list):
                self._failed(name, done)
                continue
            if done:
                beyond = cursor.beyond.copy()
                beyond.update(PositionSet(done))
                cursor = BrokerCursor(cursor.mark_delete, beyond)
                self.counters["acknowledged_at_broker"] += len(done)
            self._seen[name] = Seen(each.generation, cursor, internals.load)
            self.errors.pop(name, None)
            worked |= bool(each.merge.in_engine or each.merge.at_broker)
            if not each.merge.at_broker and each.idle is not None:
                self._idle[name] = each.idle
        return worked

    def _failed(self, name: str, error: Exception) -> None:
        self.quiet = False
        self.errors[name] = f"{type(error).__name__}: {error}"

    async def _delete_at_broker(self, name: str) -> None:
        """Delete a subscription that another cluster deleted.

        The broker refuses that while consumers are connected. If the deletion was not forced, the subscription is kept,
        and the next comparison makes it in the engine again, with what is acknowledged at the broker.
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

    async def _reset_at_broker(
        self, subscription: Subscription, broker: BrokerCursor, internals: TopicInternals
    ) -> None:
        first = self._first_open(subscription)
        if first is not None:
            await self._admin.reset_subscription(self._topic.name, subscription.name, first)
            broker = BrokerCursor(Position(first.ledger, first.entry - 1))
        self.counters["resets"] += 1
        self._seen[subscription.name] = Seen(subscription.cursor.generation, broker, internals.load)

    async def _reset_in_engine(
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
        self._seen[subscription.name] = Seen(subscription.cursor.generation, broker, internals.load)

    # The engine's side, in the brokers' positions.

    def _in_engine(self, name: str, engines: _Engines, both: PositionSet) -> InEngine:
        """``both`` are the entries on both sides that count: those beyond the cursor at the broker."""
        opened = self._open_at_brokers(name, engines)
        acknowledged = both.copy()
        acknowledged.difference_update(opened)
        return InEngine(engines.generation, acknowledged, opened)

    def _open_at_brokers(self, name: str, engines: _Engines) -> PositionSet:
        translated = self._translated.get(name)
        if translated is None or translated.engines != engines:
            translated = self._translated[name] = _Translated(engines, self._entries.to_broker(engines.open))
        return translated.open

    def _at_broker(self, name: str, internals: TopicInternals) -> BrokerCursor | None:
        """The cursor of a subscription, None if it has none there. Raises :class:`BridgeError`."""
        shown = internals.cursors.get(name)
        if shown is None:
            return None
        known = self._shown.get(name)
        if known is None or known.text != _text(shown):
            known = self._shown[name] = _Shown(_text(shown), parse_cursor(shown, internals.last_entries))
        return known.cursor

    def _open(self, subscription: Subscription) -> PositionSet:
        """The entries of the engine's log that are not acknowledged as a whole."""
        state = subscription.cursor.state
        return self._topic.log.messages_after(state.mark_delete, state.individually_deleted)

    def _first_open(self, subscription: Subscription | None) -> Position | None:
        """The first entry at the brokers that is not acknowledged in the engine; the last one if all are, which is
        acknowledged next. None if nothing lies on both sides."""
        everything = self._entries.beyond(BEFORE_ALL)
        if subscription is None:
            return None
        return self._entries.to_broker(self._open(subscription)).first() or everything.last()


def _text(shown: Mapping[str, Any]) -> tuple[str, str]:
    """What a broker shows of a cursor."""
    return str(shown["markDeletePosition"]), str(shown["individuallyDeletedMessages"])
