"""Subscriptions of one topic: create, find and delete them by name, and connect consumers to them.

Invariants (DESIGN §3): 6, a deleted replicated subscription leaves a tombstone, and nothing older creates it again; 11,
a topic has at most :data:`SUBSCRIPTIONS_MAX` of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import Final

from replicator.engine.errors import EngineError, InvalidSeek, NotAllowedError, SubscriptionNotFound
from replicator.engine.log.store import Store
from replicator.engine.log.topic_reading import CommittedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.consumer import Deliver, EngineConsumer
from replicator.engine.subscriptions.cursor_rows import load_cursors
from replicator.engine.subscriptions.cursor_state import FIRST_GENERATION, CursorState
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.subscriptions.subscription import Subscription, SubscriptionNews
from replicator.engine.subscriptions.tombstones import Tombstones
from replicator.engine.topic_name import check_subscription_name
from replicator.engine.types import END_LEDGER, InitialPosition, SubscribeOptions
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Starts

SUBSCRIPTIONS_MAX: Final = 10_000


class TopicSubscriptions(Mapping[str, Subscription]):
    """Subscriptions of one topic by name, including those that are being created. All methods run on the event loop."""

    __slots__ = ("_by_name", "_store", "_topic", "news", "tombstones")

    def __init__(self, topic: SubscribedTopic, store: Store, news: SubscriptionNews) -> None:
        self._topic = topic
        self._store = store
        self.news = news
        self.tombstones = Tombstones(
            topic.topic_id, store.tombstones(topic.topic_id).items(), topic.writer.wall_clock_ms
        )
        """Generations of replicated subscriptions that were deleted."""
        self._by_name: dict[str, Subscription] = {}
        for name, (state, rows) in load_cursors(store, topic.topic_id).items():
            self._by_name[name] = Subscription(topic, self, name, state, rows=rows)

    def __getitem__(self, name: str) -> Subscription:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def values(self) -> ValuesView[Subscription]:
        return self._by_name.values()

    @property
    def consumers(self) -> int:
        """Number of consumers that are connected to any subscription of the topic."""
        return sum(len(each.consumers) for each in self._by_name.values())

    @property
    def any_replicated(self) -> bool:
        """Whether the topic has a replicated subscription. Every commit reads this."""
        for each in self._by_name.values():  # noqa: SIM110 - a generator takes three times as long
            if each.cursor.state.replicated:
                return True
        return False

    async def subscribe(self, subscription: str, options: SubscribeOptions, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer to ``subscription``. Create the subscription if there is none.

        Raises :class:`ConsumerBusy`, :class:`InvalidHashRanges`, :class:`NotAllowedError`, :class:`InvalidSeek`.
        """
        self._topic.check_there()
        self._topic.admission.check_consumer()
        self._check_room_for_consumer()
        if options.durable:
            existing = await self._durable_subscription(subscription, options)
        else:
            existing = self._passing_subscription(subscription, options)
        try:
            await existing.moves.sought()
            self._topic.check_there()
            self._topic.admission.check_consumer()
            self._check_room_for_consumer()  # others may have come while the subscription was made
            return existing.dispatching.add(options, deliver)
        except BaseException:
            if not existing.durable and not existing.consumers:
                self.forget(existing)
            raise

    async def create_initial(self, name: str) -> None:
        """Create the subscription ``name`` at the topic's first message, unless it exists. The producer of a dead
        letter topic asks for it. No consumer is connected, so a client may subscribe with any type meanwhile.

        Raises :class:`SubscriptionNotFound` if the namespace lets clients create none.
        """
        existing = self._by_name.get(name)
        if existing is None:
            self._check_clients_may_create(name)
        if existing is None or not existing.stored:  # who makes it now may fail to store it
            await self.create(name, BEFORE_ALL)

    def _check_clients_may_create(self, name: str) -> None:
        if not self._topic.namespace.policies.auto_subscription_creation:
            raise SubscriptionNotFound(
                f"{self._topic.name} has no subscription {name!r}, and its namespace lets clients create none "
                "(auto_subscription_creation): create it first"
            )

    def _check_room_for_consumer(self) -> None:
        limit = self._topic.policies.effective.max_consumers
        if limit is not None and self.consumers >= limit:
            raise NotAllowedError(
                f"{self._topic.name} has {limit} consumers, the limit of its policies: close some, or raise "
                "max_consumers"
            )

    async def _durable_subscription(self, name: str, options: SubscribeOptions) -> Subscription:
        existing = self._by_name.get(name)
        compacted = options.read_compacted and options.type.one_active  # others are refused
        if existing is None:
            self._check_clients_may_create(name)
        if existing is None or not existing.stored:
            existing = await self.create(
                name,
                self._start(options),
                replicated=options.replicated,
                read_compacted=compacted,
                properties=dict(options.subscription_properties),
            )
        if compacted and not existing.cursor.state.read_compacted and not existing.consumers:
            existing.cursor.state.read_compacted = True
            existing.follow_log()
            await existing.saved()
        to_be_replicated = options.replicated and existing.durable  # else the consumer will be refused
        if to_be_replicated and not existing.replicated:  # also if another consumer was making it at the same time
            await existing.set_replicated(True)
        return existing

    def _passing_subscription(self, name: str, options: SubscribeOptions) -> Subscription:
        """Return the non-durable subscription ``name``, which ends with its last consumer. Create it if there is
        none."""
        if options.replicated:  # with None it is not, whatever the policies say
            raise NotAllowedError(
                f"subscription {name!r} is not durable, and only durable ones can be replicated: make it durable, or "
                "do not replicate it"
            )
        check_subscription_name(name)
        existing = self._by_name.get(name)
        if existing is None:
            self._check_room_for_subscription()
            state = CursorState(
                mark_delete=self._start(options),
                properties=dict(options.subscription_properties),
                read_compacted=options.read_compacted,
            )
            existing = self._by_name[name] = Subscription(self._topic, self, name, state, durable=False)
        return existing

    def _start(self, options: SubscribeOptions) -> Position:
        """Return the position up to which a new subscription treats the log as consumed."""
        if options.start is not None:
            if options.start > self._topic.log.last and options.start.ledger < END_LEDGER:
                raise InvalidSeek(
                    f"{self._topic.name} ends at {self._topic.log.last}; a subscription cannot start at "
                    f"{options.start}: give a position up to the end"
                )
            if options.read_compacted and options.start < self._topic.log.trimmed:
                return self._topic.log.view.clamp(options.start)
            return self._topic.log.clamp(options.start)
        return BEFORE_ALL if options.initial is InitialPosition.EARLIEST else self._topic.log.last

    async def create(
        self,
        name: str,
        start: Position,
        *,
        replicated: bool | None = None,
        properties: dict[str, str] | None = None,
        read_compacted: bool = False,
        generation: int | None = None,
        unclaimed: Mapping[str, Position] | None = None,
        starts: Starts | None = None,
        incomplete: bool = False,
    ) -> Subscription:
        """Return the subscription ``name``. Create and save it if there is none, with all entries up to ``start``
        consumed.

        If ``replicated`` is None, the topic's policies decide whether the subscription is replicated. ``generation``
        and ``starts`` are given if another cluster made the subscription, and are those that it has there. Otherwise
        the subscription begins at ``start``. With ``incomplete``, other clusters have more of its state and must be
        asked for it, also after a restart: so it is announced as if it was new.

        Raises :class:`SubscriptionNotFound` if the subscription was deleted with that generation or a higher one.
        """
        self._topic.check_there()
        check_subscription_name(name)
        while (existing := self._by_name.get(name)) is not None:
            if existing.stored:
                return existing
            await existing.saved()  # then look again: it is gone if it could not be stored
        self._check_room_for_subscription()
        tombstones = self.tombstones
        buried = tombstones.get(name)
        if generation is not None and buried is not None and generation <= buried:
            raise SubscriptionNotFound(
                f"subscription {name!r} of {self._topic.name} was deleted, and an update of it from another cluster is "
                f"of a time before that (generation {generation}, deleted in {buried}): the update is ignored, and "
                "nothing is to be done"
            )
        replicated = self._topic.policies.effective.replicate_subscription_state if replicated is None else replicated
        state = CursorState(
            mark_delete=start,
            generation=generation or (FIRST_GENERATION if buried is None else buried + 1),
            replicated=replicated,
            properties=properties or {},
            read_compacted=read_compacted,
            to_announce=replicated and (generation is None or incomplete),
            made_here=replicated and generation is None,
            unclaimed=unclaimed or None,
            starts=self._starts(start, read_compacted) if starts is None and generation is None else starts or {},
        )
        created = self._by_name[name] = Subscription(
            self._topic, self, name, state, with_first_save=tombstones.removal(name) if replicated else ()
        )
        saving = created.saved()
        saving.add_done_callback(lambda _: self._subscription_made(created, saving))
        await asyncio.shield(saving)  # others may wait for the same subscription: who gives up does not undo it
        return created

    def _starts(self, position: Position, read_compacted: bool) -> Starts:
        return self._topic.starting.at(self._topic, self._store, position, read_compacted=read_compacted)

    def _subscription_made(self, created: Subscription, saving: asyncio.Future[None]) -> None:
        error = saving.exception()
        stays = self._by_name.get(created.name) is created  # else it is deleted already, and listeners know
        if isinstance(error, EngineError):
            created.not_made(error)
            if stays:
                del self._by_name[created.name]
        elif stays:
            if created.replicated:
                self.tombstones.forget(created.name)
            self.news.on_subscription(created)
            created.notify_unannounced()

    async def delete(self, name: str) -> None:
        """Delete the subscription ``name``, because it was deleted at the brokers that serve its consumers.

        Other clusters are not asked. Raises :class:`SubscriptionNotFound` if there is none, and
        :class:`SubscriptionBusy` if consumers are connected.
        """
        subscription = self._by_name.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"{self._topic.name} has no subscription {name!r}")
        await subscription.deleting.delete(ask=False)

    async def bury(
        self, name: str, generation: int, *, unless_in_use: bool = False, unless_unheard: bool = False
    ) -> Subscription | None:
        """Delete a subscription because another cluster deleted it in ``generation``, and store the tombstone.

        A subscription of a higher generation, or one that is not replicated, stays. With ``unless_in_use``, a
        subscription that has consumers stays unchanged, and is returned: the caller must keep it. With
        ``unless_unheard``, one with a true :attr:`CursorState.may_outlive` stays likewise. In all other cases
        return None, and disconnect the consumers of a deleted subscription.
        """
        check_subscription_name(name)  # it is a part of a key of the store
        tombstones = self.tombstones
        while True:  # it may be made, or deleted by others, while this waits for the store
            self._topic.check_there()
            living = self._by_name.get(name)
            if living is None:
                if tombstones.get(name, 0) >= generation:
                    return None
                await self._topic.writer.put_many(tombstones.writes(name, generation, unless_in_use=unless_in_use))
                tombstones.note(name, generation, unless_in_use=unless_in_use)
            elif not living.replicated or living.cursor.generation > generation:
                return None
            elif living.stored:
                spared = (unless_in_use and living.consumers) or (unless_unheard and living.cursor.state.may_outlive)
                if spared and not living.deleting.begun:
                    return living
                await living.deleting.bury(generation, unless_in_use=unless_in_use)
            else:
                await living.saved()

    def forget(self, subscription: Subscription, generation: int | None = None) -> None:
        """Remove ``subscription``, which was deleted from the store.

        ``generation`` is that of its tombstone; None if it left no tombstone.
        """
        if self._by_name.get(subscription.name) is not subscription:
            return  # another one has its name by now
        del self._by_name[subscription.name]
        if subscription.durable:
            self.news.on_subscription_deleted(subscription.name, generation)

    # What the topic tells.

    def on_appended(self, new: CommittedBlock | None, *, markers: bool) -> None:
        """Tell each subscription that the log has new entries. ``new`` is its last block, if that is in memory."""
        for subscription in list(self._by_name.values()):
            subscription.on_appended(new, markers=markers)

    def on_terminated(self) -> None:
        """Tell each subscription that producers cannot publish to the topic any more."""
        for subscription in list(self._by_name.values()):
            subscription.on_terminated()

    def on_duplicates(self, pairs: Sequence[tuple[Position, Position]]) -> None:
        """Tell each subscription that messages of the log came again as other entries.

        Each pair has the positions of the earlier and of the later entry.
        """
        for subscription in list(self._by_name.values()):
            subscription.on_duplicates(pairs)

    def follow_log(self) -> None:
        """Let each subscription pass over entries that the log does not have any more, such as compacted ones."""
        for subscription in list(self._by_name.values()):
            subscription.follow_log()

    def apply_policies(self, policies: TopicPolicies) -> None:
        """Apply new policies of the topic to its subscriptions."""
        for subscription in self._by_name.values():
            subscription.dispatching.apply_policies(policies)

    def topic_deleted(self, error: EngineError | None) -> None:
        """Tell each subscription that the topic is being deleted, or, if ``error`` is None, that it stays."""
        for subscription in list(self._by_name.values()):
            subscription.topic_deleted(error)

    def _check_room_for_subscription(self) -> None:
        if len(self._by_name) >= SUBSCRIPTIONS_MAX:
            raise NotAllowedError(
                f"{self._topic.name} has {SUBSCRIPTIONS_MAX} subscriptions, the limit: subscribe by one that is "
                "there, or use another topic"
            )
