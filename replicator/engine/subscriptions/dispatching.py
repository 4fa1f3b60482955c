"""The consumers of one subscription: connecting and disconnecting them, and their dispatcher and pump.

It connects :mod:`replicator.engine.subscriptions.dispatch`, which decides which consumer gets which entry, with
:mod:`replicator.engine.subscriptions.pump`, which carries entries from the log to consumers. Acknowledgements belong to
the subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from replicator.engine.client_figures import Counts, total
from replicator.engine.errors import ConsumerBusy, EngineError, NotAllowedError
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.consumer import ConsumedSubscription, ConsumerDeleting, Deliver, EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.dispatch.choice import make_dispatcher, unacked_limits
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.many_active import ManyActiveDispatcher
from replicator.engine.subscriptions.dispatch.single_active import NOT_PARTITIONED, SingleActiveDispatcher
from replicator.engine.subscriptions.pump import Pump
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.types import LoggedEntry, ReadEntries, SubscribeOptions, SubscriptionType
from replicator.tracing.tracing import SubscriptionTraces
from snapshots.position import Position
from snapshots.position_set import PositionSet

CONSUMERS_MAX: Final = 10_000
CUMULATIVE_MAX: Final = 1_000
"""Limit of consumer names that a subscription remembers, the last ones. A client that lost its connection comes back
with its name."""


class Deleting(ConsumerDeleting, Protocol):
    """Interface that tells whether the subscription is being deleted, and deletes it."""

    def check_there(self) -> None:
        """Raise :class:`SubscriptionNotFound` once the deletion of the subscription has begun."""

    def gone(self) -> None:
        """Remove the subscription, which is not durable, after its last consumer has gone."""


class DispatchedSubscription(ConsumedSubscription, Protocol):
    """Interface of a subscription for its dispatch."""

    name: str
    durable: bool
    topic: SubscribedTopic
    cursor: Cursor
    traces: SubscriptionTraces | None

    @property
    def deleting(self) -> Deleting: ...

    @property
    def read_entries(self) -> ReadEntries: ...


class Dispatching:
    """Consumers of one subscription, and dispatch to them."""

    __slots__ = ("_cumulative", "_cursor", "_subscription", "_topic", "consumers", "gone", "name", "pump", "rewinds")

    def __init__(self, subscription: DispatchedSubscription) -> None:
        self._subscription = subscription
        self._topic = topic = subscription.topic
        self._cursor = subscription.cursor
        self.name = subscription.name
        """Subscription's name, which the failover registry reads."""
        self.consumers: dict[int, EngineConsumer] = {}
        self._cumulative: dict[str, None] = {}
        """Names of consumers that acknowledged cumulatively, and whose clients drop entries below that position."""
        self.gone = Counts()
        """Counts of deliveries to consumers that have gone."""
        self.rewinds = 0
        """Number of calls of :meth:`rewind`."""
        self.pump = Pump(
            topic.loop, topic.dispatch_turns, topic.writer.wall_clock_ms, subscription.cursor, self.consumers
        )
        self.pump.handed_out = self._handed_out
        self.pump.ages = self._observe_age
        self.pump.traces = subscription.traces

    @property
    def type(self) -> SubscriptionType | None:
        """Type of the present consumers; None without consumers, because the next consumer sets it."""
        dispatcher = self.pump.dispatcher
        return dispatcher.type if self.consumers and dispatcher is not None else None

    @property
    def error(self) -> str | None:
        """Reason why dispatch stands still, such as a block that cannot be read; None if it works."""
        return self.pump.error

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Dispatcher that assigns entries to consumers; None before the first consumer."""
        return self.pump.dispatcher

    @property
    def held_entries(self) -> int:
        """Number of entries that consumers have not acknowledged whole."""
        if self.pump.dispatcher is None:
            return 0
        return sum(len(state.pending) for state in self.pump.dispatcher.consumers.values())

    def add(self, options: SubscribeOptions, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer, and return it.

        Raises :class:`ConsumerBusy`, :class:`InvalidHashRanges` or :class:`NotAllowedError`, and changes nothing then.
        """
        self._subscription.deleting.check_there()
        self._check(options)
        dispatcher = self.pump.dispatcher if self.consumers else None
        if dispatcher is None:
            # Without consumers nothing is pending: so the type, and the policies as they are now, come from the next.
            # Redeliveries are counted anew, as upstream does.
            dispatcher = make_dispatcher(
                options.type,
                self._cursor.mark_delete,
                policies=self._topic.policies.effective,
                topic=self._topic.name,
                partition=self._topic.partition,
            )
        elif dispatcher.type is not options.type:
            raise ConsumerBusy(
                f"subscription {self._subscription.name!r} is {dispatcher.type.value} while its consumers are "
                f"connected, not {options.type.value}: disconnect them to change its type"
            )
        consumer = EngineConsumer(self._subscription, options, deliver)
        dispatcher.add_consumer(consumer.id, options)
        self.consumers[consumer.id] = consumer
        self.pump.dispatcher = dispatcher
        self.pump.delays = self._topic.policies.effective.delayed_delivery
        self.pump.read = self._subscription.read_entries
        self.pump.paused = self._dispatch_paused
        if self._by_registry:
            self._topic.failover.add(self, consumer.name)
        self._tell_active_changes()
        return consumer

    def remove(self, consumer: EngineConsumer) -> None:
        """Remove a consumer that has gone. The consumer calls this."""
        del self.consumers[consumer.id]
        self.gone = total((self.gone, consumer.figures.counts))
        assert self.pump.dispatcher is not None
        self.pump.dispatcher.remove_consumer(consumer.id)
        if self._by_registry:
            self._topic.failover.remove(self, consumer.name)
        self._tell_active_changes()
        self.pump.schedule()
        if not self.consumers:
            self.pump.stop()
            if not self._subscription.durable:
                self._subscription.deleting.gone()

    def flow(self, consumer: EngineConsumer, permits: int) -> None:
        dispatcher = self.pump.dispatcher
        assert dispatcher is not None
        dispatcher.flow(consumer.id, permits)
        self.pump.schedule()
        if self._topic.log.terminated:
            self.tell_end()

    def give_back(self, consumer: EngineConsumer, permits: int) -> None:
        assert self.pump.dispatcher is not None
        self.pump.dispatcher.give_back(consumer.id, permits)

    def redeliver(self, consumer: EngineConsumer, positions: Sequence[Position] | None) -> None:
        assert self.pump.dispatcher is not None
        self.pump.dispatcher.redeliver(consumer.id, positions)
        self.pump.schedule()

    def held_by(self, consumer: EngineConsumer) -> tuple[int, bool]:
        """Return how many unacknowledged messages a consumer has, and whether it gets no more because of them."""
        assert self.pump.dispatcher is not None
        state = self.pump.dispatcher.consumers[consumer.id]
        return state.unacked_messages, state.blocked

    def consumer_names(self) -> Iterable[str]:
        """Return the names of the consumers, for the failover registry."""
        return [consumer.name for consumer in self.consumers.values()]

    def spread_over_topics(self, spread: bool) -> None:
        """Note whether the consumers subscribe to several topics, as the failover registry says."""
        if isinstance(self.pump.dispatcher, SingleActiveDispatcher):
            self.pump.dispatcher.spread_over_topics(spread)
            self._tell_active_changes()
            self.pump.schedule()

    def apply_policies(self, policies: TopicPolicies) -> None:
        """Apply new policies of the topic. The way to assign keys changes only when the consumers have gone."""
        if isinstance(self.pump.dispatcher, ManyActiveDispatcher):
            self.pump.dispatcher.set_limits(unacked_limits(policies))
            self.pump.delays = policies.delayed_delivery
            self.pump.schedule()

    def schedule(self) -> None:
        """Schedule dispatch, since a merge released entries or a pause of dispatch ended."""
        self.pump.schedule()

    def restart(self) -> None:
        """Restart dispatch at the moved cursor, and tell consumers to drop the messages that they have."""
        if self.pump.dispatcher is not None:
            self.pump.dispatcher.restart(self._cursor.mark_delete)
        for consumer in list(self.consumers.values()):
            consumer.told_end = False
            if consumer.on_restarted is not None:
                consumer.on_restarted()
        self.pump.schedule()

    def rewind(self, positions: PositionSet) -> None:
        """Deliver the entries at ``positions``, which counted as consumed until now.

        With one active consumer, dispatch restarts, and the consumer receives all unconsumed messages again in order.
        Several active consumers keep the messages that they have, and receive these entries too. Whoever knows of
        acknowledgements that are on their way counts :attr:`rewinds`, and holds the pump.
        """
        self.rewinds += 1
        dispatcher = self.pump.dispatcher
        if dispatcher is None:
            return
        if not isinstance(dispatcher, ManyActiveDispatcher):
            connected = {each.name for each in self.consumers.values() if each.drops_acknowledged}
            self.pump.may_drop |= connected | self._cumulative.keys()  # an acknowledgement may be on its way
            self.restart()
            return
        dispatcher.rewind(positions)
        for consumer in self.consumers.values():
            consumer.told_end = False
        self.pump.schedule()

    def acknowledged_through(self, position: Position) -> None:
        """Note that the active consumer acknowledges cumulatively.

        Its client drops entries that are delivered a second time if they lie below its last acknowledgement. Its
        acknowledgement of ``position`` shows that it did not drop the entries up to there.
        """
        dispatcher, pump = self.pump.dispatcher, self.pump
        if not isinstance(dispatcher, SingleActiveDispatcher) or dispatcher.active is None:
            return
        consumer = self.consumers[dispatcher.active]
        if consumer.drops_acknowledged and consumer.name not in self._cumulative:
            self._cumulative[consumer.name] = None
            if len(self._cumulative) > CUMULATIVE_MAX:
                del self._cumulative[next(iter(self._cumulative))]
        if pump.may_drop and not self._cursor.has_uncovered:
            pump.may_drop = frozenset()
        elif consumer.name in pump.may_drop and self._cursor.is_uncovered(position):
            pump.may_drop -= {consumer.name}
            self._cursor.delivered_through(dispatcher.read_position)

    def tell_end(self) -> None:
        """Tell consumers that the topic is terminated, if no message is left for them."""
        if self._cursor.mark_delete < self._subscription.last_position():
            return
        for consumer in self.consumers.values():
            if not consumer.told_end:
                consumer.told_end = True
                self._topic.loop.call_soon(_tell_end, consumer)

    def _handed_out(self, oldest: LoggedEntry) -> None:
        if self._cursor.state.read_compacted:
            return
        try:
            age_ms = self._topic.writer.wall_clock_ms() - self._topic.reading.publish_time_ms(oldest.position)
        except EngineError:
            return  # it was trimmed meanwhile
        self._observe_age(oldest.origin, age_ms / 1000)

    def _observe_age(self, origin: str, seconds: float) -> None:
        self._topic.writer.latencies.dispatch[origin].observe(seconds)

    def _dispatch_paused(self) -> bool:
        return self._topic.admission.dispatch_paused

    @property
    def _by_registry(self) -> bool:
        return (
            self.pump.dispatcher is not None
            and self.pump.dispatcher.type is SubscriptionType.FAILOVER
            and self._topic.partition == NOT_PARTITIONED
        )

    def _check(self, options: SubscribeOptions) -> None:
        if len(self.consumers) >= CONSUMERS_MAX:
            raise NotAllowedError(
                f"subscription {self._subscription.name!r} has {CONSUMERS_MAX} consumers, the limit: close some, or "
                "use another subscription"
            )
        if options.read_compacted and not options.type.one_active:
            raise NotAllowedError(
                f"read_compacted needs a subscription of type Exclusive or Failover, not {options.type.value}: change "
                "the type, or subscribe without read_compacted"
            )
        if options.durable is not self._subscription.durable:
            raise NotAllowedError(
                f"subscription {self._subscription.name!r} is {'' if self._subscription.durable else 'not '}durable, "
                "and the consumer asks for the opposite: use another name, or ask for the same"
            )
        other = next(iter(self.consumers.values()), None)  # those that are here agree
        if other is not None and other.options.read_compacted is not options.read_compacted:
            raise ConsumerBusy(
                f"the consumers of subscription {self._subscription.name!r} must agree on read_compacted: give it "
                "the value that the connected ones have"
            )

    def _tell_active_changes(self) -> None:
        assert self.pump.dispatcher is not None
        if self.pump.dispatcher.type is not SubscriptionType.FAILOVER:
            self.pump.dispatcher.take_active_changes()
            return
        for change in self.pump.dispatcher.take_active_changes():
            self._topic.loop.call_soon(self._tell_active, change.consumer_id, change.active)
        self.pump.postpone()  # this project's clients hear that they are active before they get messages

    def _tell_active(self, consumer_id: int, active: bool) -> None:
        consumer = self.consumers.get(consumer_id)
        if consumer is not None and consumer.on_active_change is not None:
            consumer.on_active_change(active)


def _tell_end(consumer: EngineConsumer) -> None:
    if not consumer.closed and consumer.on_reached_end is not None:
        consumer.on_reached_end()
