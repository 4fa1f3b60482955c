"""Making and finding the subscriptions of a topic, and connecting consumers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from replicator.engine.errors import EngineError, InvalidSeek, NotAllowedError, SubscriptionNotFound
from replicator.engine.subscriptions.consumer import Deliver, EngineConsumer
from replicator.engine.subscriptions.cursor import FIRST_GENERATION, CursorState
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic_name import check_subscription_name
from replicator.engine.types import InitialPosition, SubscribeOptions
from snapshots.position import BEFORE_ALL, Position

if TYPE_CHECKING:
    from replicator.engine.topic import Topic

SUBSCRIPTIONS_MAX: Final = 10_000
END_LEDGER: Final = 2**63 - 1
"""The ledger of the position after every message, as upstream's clients name it."""


class Subscribing:
    """The part of one topic that makes subscriptions. What it makes stands in ``topic.subscriptions``."""

    __slots__ = ("_topic",)

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    async def subscribe(self, subscription: str, options: SubscribeOptions, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer; makes the subscription, durably unless it is not to be, if there is none.

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
            self._topic.check_there()
            self._topic.admission.check_consumer()
            self._check_room_for_consumer()  # others may have come while the subscription was made
            return existing.add(options, deliver)
        except BaseException:
            if not existing.durable and not existing.consumers:
                self._topic.forget(existing)
            raise

    def _check_room_for_consumer(self) -> None:
        limit = self._topic.policies.max_consumers
        if limit is not None and sum(len(each.consumers) for each in self._topic.subscriptions.values()) >= limit:
            raise NotAllowedError(f"{self._topic.name} has {limit} consumers, the limit of its policies")

    async def _durable_subscription(self, name: str, options: SubscribeOptions) -> Subscription:
        existing = self._topic.subscriptions.get(name)
        compacted = options.read_compacted and options.type.one_active  # others are refused
        if existing is None and not self._topic.namespace.policies.auto_subscription_creation:
            raise SubscriptionNotFound(
                f"{self._topic.name} has no subscription {name!r}, and its namespace lets consumers make none "
                "(auto_subscription_creation): create it first"
            )
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
        """A subscription that is gone with its last consumer."""
        if options.replicated:  # with None it is not, whatever the policies say
            raise NotAllowedError(f"subscription {name!r}: one that is not durable cannot be replicated")
        check_subscription_name(name)
        existing = self._topic.subscriptions.get(name)
        if existing is None:
            self._check_room_for_subscription()
            state = CursorState(
                mark_delete=self._start(options),
                properties=dict(options.subscription_properties),
                read_compacted=options.read_compacted,
            )
            existing = self._topic.subscriptions[name] = Subscription(self._topic, name, state, durable=False)
        return existing

    def _start(self, options: SubscribeOptions) -> Position:
        """What a subscription that is made now treats as consumed."""
        if options.start is not None:
            if options.start > self._topic.log.last and options.start.ledger < END_LEDGER:
                raise InvalidSeek(
                    f"{self._topic.name} ends at {self._topic.log.last}; a subscription cannot start at {options.start}"
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
        replicated: bool | None,
        properties: dict[str, str] | None = None,
        read_compacted: bool = False,
        generation: int | None = None,
        unclaimed: Mapping[str, Position] | None = None,
    ) -> Subscription:
        """See :meth:`Topic.create_subscription`."""
        self._topic.check_there()
        check_subscription_name(name)
        while (existing := self._topic.subscriptions.get(name)) is not None:
            if existing.stored:
                return existing
            await existing.saved()  # then look again: it is gone if it could not be stored
        self._check_room_for_subscription()
        tombstones = self._topic.tombstones
        buried = tombstones.get(name)
        if generation is not None and buried is not None and generation <= buried:
            raise SubscriptionNotFound(
                f"subscription {name!r} of {self._topic.name} was deleted in generation {buried}; "
                f"what is of generation {generation} is older"
            )
        replicated = self._topic.policies.replicate_subscription_state if replicated is None else replicated
        state = CursorState(
            mark_delete=start,
            generation=generation or (FIRST_GENERATION if buried is None else buried + 1),
            replicated=replicated,
            properties=properties or {},
            read_compacted=read_compacted,
            to_tell=replicated and generation is None,
            unclaimed=unclaimed or None,
        )
        created = self._topic.subscriptions[name] = Subscription(
            self._topic, name, state, with_first_save=tombstones.removal(name) if replicated else ()
        )
        saving = created.saved()
        saving.add_done_callback(lambda _: self._subscription_made(created, saving))
        await asyncio.shield(saving)  # others may wait for the same subscription: who gives up does not undo it
        return created

    def _subscription_made(self, created: Subscription, saving: asyncio.Future[None]) -> None:
        error = saving.exception()
        if isinstance(error, EngineError):
            created.not_made(error)
            del self._topic.subscriptions[created.name]
        else:
            if created.replicated:
                self._topic.tombstones.forget(created.name)
            self._topic.notify_subscription(created)
            created.announce_untold()

    async def bury(self, name: str, generation: int) -> None:
        """See :meth:`Topic.bury_subscription`."""
        check_subscription_name(name)  # it is a part of a key of the store
        tombstones = self._topic.tombstones
        while True:  # it may be made, or deleted by others, while this waits for the store
            self._topic.check_there()
            living = self._topic.subscriptions.get(name)
            if living is None:
                if tombstones.get(name, 0) >= generation:
                    return
                await self._topic.writer.put_many(tombstones.writes(name, generation))
                tombstones.note(name, generation)
            elif not living.replicated or living.cursor.generation > generation:
                return
            elif living.stored:
                await living.bury(generation)
            else:
                await living.saved()

    def _check_room_for_subscription(self) -> None:
        if len(self._topic.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise NotAllowedError(f"{self._topic.name} has {SUBSCRIPTIONS_MAX} subscriptions, the limit")
