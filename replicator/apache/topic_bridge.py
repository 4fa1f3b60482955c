"""The bridge of one topic: reading, publishing and the subscriptions' state, each a supervised task.

:mod:`replicator.apache.topic_work` tries each of them again for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.arrivals import StallDetector
from replicator.apache.comparison import QUIET_SECONDS, Comparison, WorkerProgress
from replicator.apache.confirmed_entries import ConfirmedEntries
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.copies_elsewhere import Elsewhere
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeError, BrokersPutBack, EntryNotRefused
from replicator.apache.fence import Fence
from replicator.apache.incoming import Incoming
from replicator.apache.native_replication import NativeOrigins
from replicator.apache.new_life import NewLife
from replicator.apache.outgoing import Outgoing
from replicator.apache.published_extents import left_out_row, load_map, load_may_be_missing, removal_of
from replicator.apache.reading_cursor import ReadingCursor
from replicator.apache.renewing import Renewal, Renewing, ResumeMode
from replicator.apache.schemas import BrokerSchemas
from replicator.apache.shared_budget import SharedBudget
from replicator.apache.shown import ConsumersShown, TopicInternals
from replicator.apache.state import SubscriptionStates
from replicator.apache.topic_at_brokers import TopicAtBrokers
from replicator.apache.topic_work import TopicWork
from replicator.client.errors import SubscriptionNotFound
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind
from replicator.engine.log.requests import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position

COMPARE_SECONDS_MIN: Final = 0.1
"""Shortest time between two comparisons of a topic: it gets at most ten requests a second."""
COMPARE_SECONDS_MAX: Final = 1.0
"""Longest time between comparisons of a topic with unacknowledged messages. Acknowledgements at the brokers are seen
within it."""
LEFT_OUT_SHOWN_MAX: Final = 1_000
"""Most entries in the status that an operator passed over."""
HOLDER: Final = "apache-bridge"
"""Name under which the bridge holds the topic's log back while the brokers lack something of it."""

log = structlog.get_logger(__name__)


class TopicBridge:
    """Bridge of one topic."""

    def __init__(
        self,
        settings: ApacheSettings,
        connector: BrokerConnector,
        admin: BrokerAdmin,
        engine: Engine,
        topic: Topic,
        broker_origin: str,
        publish_budget: SharedBudget,
        read_budget: SharedBudget,
        supervisor: Supervisor,
        elsewhere: Elsewhere | None,
        natives: NativeOrigins | None = None,
        quiet_seconds: Callable[[], float] = lambda: QUIET_SECONDS,
    ) -> None:
        self.topic = topic
        self._natives = natives
        self._quiet_seconds = quiet_seconds
        self._connector = connector
        self._admin = admin
        self._engine = engine
        self._entries: EntryMap = load_map(engine.store, topic, broker_origin)
        self._confirmed = ConfirmedEntries()
        self._cursor = ReadingCursor(
            admin,
            engine.cluster,
            topic,
            self._entries,
            read_through=lambda: None if self._incoming is None else self._incoming.reached,
            may_be_missing=load_may_be_missing(engine.store, topic.topic_id),
            elsewhere=elsewhere,
        )
        self._work = TopicWork(
            topic.name, fences=lambda part: self._producers_out and part in ("publishing", "fencing")
        )
        self._at_brokers = TopicAtBrokers(
            admin,
            engine,
            topic.name,
            lambda: self._cursor.reached() > BEFORE_ALL or self._states.has_seen_any(),
        )
        self._renewing = Renewing(admin, engine, topic, broker_origin, self._cursor, self._at_brokers)
        self._comparison = Comparison()
        self._looked_at: TopicInternals | None = None
        """The brokers' answer that the last comparison used. It is not compared again."""
        self._read_room = read_budget
        self._incoming: Incoming | None = None
        self._consumer_fence = ConsumerFence(
            connector,
            admin,
            engine.cluster,
            topic.name,
            bridged=lambda name: self._states.bridged(name),
            unloaded=lambda: self._outgoing.renew(),
        )
        self._states = SubscriptionStates(
            settings,
            connector,
            admin,
            engine.cluster,
            topic,
            engine.store,
            self._entries,
            self._consumer_fence,
            self._cursor.has_read,
            self._cursor.same_life,
        )
        self._outgoing = Outgoing(
            connector,
            admin,
            engine.cluster,
            topic,
            self._entries,
            engine.schemas,
            self._confirmed,
            publish_budget,
            ensure=self._at_brokers.ensure,
            begins=lambda: self._work.succeeded("publishing"),
            fails=lambda error: self._work.fails("publishing", error),
            missing=self._states.missing_at_brokers,
            has_read=self._cursor.has_read,
        )
        self._compare_now = asyncio.Event()
        self._compared = asyncio.Condition()
        self._ended = False
        self._comparisons = 0
        """Number of comparisons that were begun."""
        self._last_idle = 0
        """Number of the last comparison that found nothing to do, and no error."""
        self._producers_out = False
        self._silence = StallDetector()
        self._new_life = NewLife(admin, topic, self._entries, self._states)
        self._trimmed = topic.log.trimmed
        self._tasks = [
            supervisor.task("apache-bridge", f"{what} of {topic.name} at the brokers", work)
            for what, work in (
                ("reading", lambda: self._work.keep("reading", self._read)),
                ("publishing", lambda: self._work.keep("publishing", self._outgoing.publish)),
                ("subscriptions", lambda: self._work.keep("subscriptions", self._compare)),
                ("fencing", lambda: self._work.keep("fencing", self._fence_consumers)),
            )
        ]
        self._note_hold()

    def start(self) -> None:
        for task in self._tasks:
            task.start()

    async def stop(self, *, keep_hold: bool = False) -> None:
        """End all work, and let nobody wait for it. With ``keep_hold``, the log keeps what the brokers lack.

        Then another bridge takes this one's place.
        """
        self._ended = True
        await asyncio.gather(*(task.stop() for task in self._tasks))
        async with self._compared:
            self._compared.notify_all()
        if not keep_hold:
            self.topic.holds.positions.pop(HOLDER, None)
        self._outgoing.fenced.set()
        self._consumer_fence.closed.set()

    # Events of the engine.

    def on_appended(self, blocks: Sequence[AppendedBlock]) -> None:
        for appended in blocks:
            header = appended.header
            if header.origin != self._engine.cluster:
                self._entries.copied(
                    header.origin,
                    header.origin_first,
                    appended.position,
                    header.entries,
                    messages=header.kind is BlockKind.MESSAGES,
                    incarnation=header.incarnation,
                )
        self._note_hold()
        self._outgoing.wake()
        if any(appended.header.origin != self._engine.cluster for appended in blocks):  # else markers for others
            self._compare_now.set()

    def on_state(self, subscription: Subscription | None = None) -> None:
        """Record that a subscription of the engine has changed, or was created or deleted."""
        if subscription is None or not (self._states.merging or self._states.knows(subscription)):
            self._compare_now.set()

    # An operator.

    async def leave_out(self, cluster: str, position: Position) -> dict[str, Any]:
        """Record the entry of ``cluster`` that the brokers refuse as left out there, and publish what follows it.

        Return the record. Raises :class:`EntryNotRefused` if it is another entry, and the store's errors.
        """
        for known in self._entries.left_out():
            if known.is_named(cluster, position):
                return known.shown()
        refused = self._outgoing.refused
        if refused is None or not refused.is_named(cluster, position):
            refused_now = "none" if refused is None else f"{refused.identity.position} of {refused.identity.origin}"
            raise EntryNotRefused(
                f"{self.topic.name}: the brokers do not refuse the entry {position} of {cluster}, so it is not left "
                f"out; the entry that they refuse now is: {refused_now}"
            )
        left_out = refused._replace(at_ms=time.time_ns() // 1_000_000)
        await self.topic.writer.put_many([left_out_row(self.topic.topic_id, left_out)])
        self._entries.leave_out(left_out)
        log.warning("an entry is left out at the brokers", topic=self.topic.name, **left_out.shown())
        self._outgoing.passed_over()
        self._note_hold()
        self.retry_now()
        return left_out.shown()

    async def acknowledge_missing(self) -> list[dict[str, Any]]:
        """Stop naming the places where messages may be missing, because an operator knows of them. Return them."""
        places = [each.shown() for each in await self._cursor.acknowledge_missing()]
        for each in places:
            log.warning("an operator knows that messages may be missing", topic=self.topic.name, **each)
        return places

    # A failover.

    def fence(self, fence: Fence) -> None:
        """Keep the applications' producers and consumers out, or let them in."""
        if fence.producers or fence.consumers:
            self.retry_now()
        self._producers_out = fence.producers
        self._outgoing.fence(fence.producers)
        self._consumer_fence.want(fence.consumers)

    def retry_now(self) -> None:
        """Try at once again what failed: the brokers answer again, or somebody waits."""
        self._work.retry_now()

    async def without_producers(self) -> None:
        """Return when no application can publish and all that was published was read, or this bridge has ended."""
        await self._outgoing.fenced.wait()

    async def without_consumers(self) -> None:
        """Return when no application can consume, or when this bridge has ended."""
        await self._consumer_fence.closed.wait()

    async def compared(self) -> None:
        """Return when the engine has all that was acknowledged at the brokers until now, or this bridge has ended."""
        after = self._comparisons
        self.retry_now()
        async with self._compared:
            while self._last_idle <= after and not self._ended:
                self._compare_now.set()
                await self._compared.wait()

    def in_the_way(self, *, consumers: bool) -> str:
        """Return which part of the fence is not closed, and why; empty if all of it is."""
        open_ = [] if self._outgoing.fenced.is_set() else ["producers"]
        open_ += ["consumers"] if consumers and not self._consumer_fence.closed.is_set() else []
        if not open_ and not (self._work.errors or self._states.errors):
            return ""
        why = next(iter([*self._work.errors.values(), *self._states.errors.values()]), "not closed yet")
        return f"{self.topic.name} ({', '.join(open_) or 'subscriptions'}): {why}"

    async def consumers(self) -> dict[str, ConsumersShown]:
        """Return the consumers of each bridged subscription that has any. Raises :class:`BridgeError`."""
        shown = await self._admin.unacknowledged(self.topic.name)
        return {name: each for name, each in shown.items() if self._states.bridged(name)}

    def in_log(self, position: Position) -> Position:
        """Return the position in the engine's log of an entry published at brokers; BEFORE_ALL if it was trimmed."""
        return self._entries.copied_to(self._entries.broker_origin, position)

    def served_through(self, origin: str) -> Position | None:
        """Return the position up to which the brokers have an origin's messages; None if they have all of them."""
        if origin not in self._outgoing.origins():
            return None
        through = self._entries.published_through(origin)
        return None if through >= self.topic.origins.message_vector()[origin] else through

    def state_lags(self, subscription: str) -> str:
        """See :meth:`SubscriptionStates.lags`."""
        return self._states.lags(subscription)

    def is_not_read(self) -> str:
        """Return why what the brokers have of this topic may not be known here; empty if it is read."""
        if self._incoming is not None and self._incoming.open:
            return ""
        return self._work.errors.get("reading", "" if self._incoming is not None else "reading has not begun")

    # A renewal.

    async def renewal(self) -> Renewal:
        """Return how the halted reading can go on. Raises :class:`BridgeError` and :class:`RenewalRefused`."""
        if "reading" in self._work.halted:
            return await self._renewing.plan()
        why = next(iter(self._work.errors.values()), "")
        return Renewal(ResumeMode.NOTHING, f"reading has not halted{f', but there is an error: {why}' if why else ''}")

    async def renew(self, renewal: Renewal) -> None:
        """Carry out a renewal, after :meth:`stop`. A new bridge of the topic must follow.

        Raises :class:`BridgeError`; then reading stays halted, and may be renewed again.
        """
        await self._renewing.carry_out(renewal)

    # Figures.

    def status(self) -> dict[str, Any]:
        incoming = self._incoming
        return {
            "topic": self.topic.name,
            "halted": bool(self._work.halted),
            "errors": dict(self._work.errors),
            "remedies": dict(self._work.remedies),
            "comparison": self._comparison.status(time.monotonic()),
            "read_through": None if incoming is None else str(incoming.reached),
            "messages_read": 0 if incoming is None else incoming.messages,
            "put_back": self._cursor.times_put_back,
            "messages_confirmed": 0 if incoming is None else incoming.messages_confirmed,
            "copied_to_all": 0 if incoming is None else incoming.copied_to_all,
            "replicated_natively": 0 if incoming is None else incoming.replicated_natively,
            "messages_published": self._outgoing.messages,
            "published": {
                origin: {
                    "incarnation": incarnation,
                    "first": [str(first.origin_first), str(first.local_first)],
                    "last": [str(last.origin_last), str(last.local_last)],
                }
                for origin, (incarnation, first, last) in self._entries.published_ends().items()
            },
            "publishing_waits": self._outgoing.waiting(),
            "doubled": self._entries.doubled,
            "missing_at_brokers": {
                origin: {"entries": len(missing), "first": str(missing.first())}
                for origin in self._outgoing.origins()
                if (missing := self._entries.missing(origin))
            },
            "out_of_order": self._entries.late_shown(),
            "lives": self._entries.lives.shown(),
            "may_be_missing": [each.shown() for each in self._cursor.may_be_missing()],
            "refused": None if self._outgoing.refused is None else self._outgoing.refused.shown(),
            "left_out": [each.shown() for each in self._entries.left_out()[:LEFT_OUT_SHOWN_MAX]],
            "state": self._states.status(),
            "fence": {
                "producers": self._outgoing.fenced.is_set(),
                "consumers": self._consumer_fence.closed.is_set(),
                "subscriptions": self._consumer_fence.held,
                "unloads": self._consumer_fence.unloads,
            },
        }

    # Inside.

    async def _read(self) -> None:
        await self._at_brokers.ensure()
        await self._new_life.store()
        try:
            incarnation, reached, is_first = await self._cursor.standing()
            if is_first:
                await self._new_life.forget_subscriptions()
        except BrokersPutBack:
            self._incoming = None  # what it has read is not what the brokers have now
            incarnation, reached, _ = await self._new_life.standing(self._cursor)
            self._outgoing.renew()
            self._comparison = Comparison()  # ledgers with the same numbers are others now
            self._note_hold()
        self._incoming = incoming = Incoming(
            self._connector,
            self._engine.cluster,
            self.topic,
            self._entries,
            BrokerSchemas(self._connector, self._engine.schemas, self.topic.name),
            self._confirmed,
            self._read_room,
            incarnation=incarnation,
            reached=reached,
            begins=self._begins,
            stored=self._stored,
            check=self._cursor.check,
            natives=self._natives,
        )
        try:
            await incoming.read()
        except SubscriptionNotFound:  # the brokers let no consumer make one
            await self._cursor.make(incarnation)
            await incoming.read()

    def _begins(self) -> None:
        """Note that the brokers let the bridge read."""
        self._cursor.note_is_there()
        self._work.succeeded("reading")

    async def _fence_consumers(self) -> None:
        await self._consumer_fence.run(lambda: self._work.succeeded("fencing"))

    async def _trim(self) -> None:
        """Forget the places of entries that were trimmed here."""
        if self._trimmed == self.topic.log.trimmed:
            return
        self._trimmed = self.topic.log.trimmed
        gone = self._entries.trim(self._trimmed)
        if gone:
            writes = [removal_of(self.topic.topic_id, identity, run) for identity, run in gone]
            await self.topic.writer.put_many(writes)

    def _stored(self) -> None:
        self._note_hold()
        self._compare_now.set()

    def _note_hold(self) -> None:
        self.topic.holds.positions[HOLDER] = self._outgoing.done_through()

    def _own(self) -> WorkerProgress:
        vector = self.topic.origins.message_vector()
        to_publish = {
            origin: (there, vector[origin])
            for origin in self._outgoing.origins()
            if (there := self._entries.published_through(origin)) < vector[origin]
        }
        return WorkerProgress(self._cursor.reached(), to_publish)

    def _compare_with_brokers(self, own: WorkerProgress) -> None:
        """Compare what the brokers said to the last comparison of subscriptions with ``own``, which is older."""
        internals = self._states.internals
        if internals is None or internals is self._looked_at:
            return
        self._looked_at = internals
        self._comparison.look(internals, own, self._cursor.mark_delete(internals), time.monotonic())

    def _is_silent(self, incoming: Incoming, internals: TopicInternals) -> bool:
        """Return whether the brokers have sent nothing for too long, although they have something."""
        at, last = self._cursor.mark_delete(internals), internals.last_there
        if not (incoming.open and incoming.waiting):  # it has just begun, or something is being stored
            last = BEFORE_ALL
        return self._silence.is_over(incoming.reached, at, last, time.monotonic())

    async def _compare(self) -> None:
        pause = COMPARE_SECONDS_MIN
        while True:
            self._compare_now.clear()  # what comes while this one is made is looked at by the next
            self._comparisons += 1
            own = self._own()
            try:
                worked = await self._states.compare()
            except BrokersPutBack as put_back:
                if self._incoming is not None:
                    self._incoming.fail(put_back)
                raise
            finally:
                self._compare_with_brokers(own)
            if self._incoming is not None and self._states.internals is not None:
                passed_over = await self._cursor.left_behind(self._states.internals)
                if passed_over is not None:
                    self._incoming.fail(passed_over)
                elif self._is_silent(self._incoming, self._states.internals):
                    self._incoming.fail(
                        BridgeError(
                            f"{self.topic.name}: the brokers have entries behind {self._incoming.reached}, and send "
                            "none of them; the bridge subscribes anew"
                        )
                    )
            self._work.succeeded("subscriptions")
            if not worked and not self._states.errors:
                self._last_idle = self._comparisons
            async with self._compared:
                self._compared.notify_all()
            await self._trim()
            longest = self._quiet_seconds() if self._states.quiet else COMPARE_SECONDS_MAX
            pause = COMPARE_SECONDS_MIN if worked else min(2 * pause, longest)
            await asyncio.sleep(COMPARE_SECONDS_MIN)
            if pause > COMPARE_SECONDS_MIN:
                with suppress(TimeoutError):
                    async with timeout(pause - COMPARE_SECONDS_MIN):
                        await self._compare_now.wait()
