"""A connected consumer of a subscription, as its owner (a channel, a socket) uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from pyroaring import BitMap

from replicator.engine.client_figures import ClientFigures
from replicator.engine.errors import EngineError, NotAllowedError
from replicator.engine.log.delivered import LastMessage
from replicator.engine.subscriptions.cursor_saver import SaveCallback
from replicator.engine.subscriptions.position_moves import PositionMoves
from replicator.engine.types import Ack, Delivery, SubscribeOptions
from replicator.running.pacing import CLIENT
from replicator.running.turns import LoopShare
from snapshots.position import Position
from snapshots.position_set import PositionSet

PERMITS_MAX: Final = 1_000_000
CLOSED: Final = "ConsumerClosed"
"""Code for closing a consumer that may connect again."""

Deliver = Callable[[Sequence[Delivery]], None]

_consumer_ids = count(1)


class ConsumerDispatching(Protocol):
    """Interface of the dispatch to which a consumer is connected."""

    def flow(self, consumer: EngineConsumer, permits: int) -> None: ...

    def give_back(self, consumer: EngineConsumer, permits: int) -> None: ...

    def redeliver(self, consumer: EngineConsumer, positions: Sequence[Position] | None) -> None: ...

    def held_by(self, consumer: EngineConsumer) -> tuple[int, bool]:
        """Return how many unacknowledged messages a consumer has, and whether it gets no more because of them."""

    def remove(self, consumer: EngineConsumer) -> None:
        """Remove a consumer that has gone."""


class ConsumerDeleting(Protocol):
    """Interface that deletes a consumer's subscription."""

    async def delete(self, by: EngineConsumer | None = None, *, force: bool = False) -> None: ...


class ConsumedSubscription(Protocol):
    """Interface of a subscription for its consumers."""

    moves: PositionMoves

    @property
    def dispatching(self) -> ConsumerDispatching: ...

    @property
    def deleting(self) -> ConsumerDeleting: ...

    async def acknowledge(self, acks: Sequence[Ack]) -> None: ...

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None) -> None: ...

    def begin_acknowledge(self, acks: Sequence[Ack]) -> asyncio.Future[None]: ...

    def acknowledge_entries(self, positions: Sequence[Position], told: SaveCallback) -> None: ...

    def begin_acknowledge_cumulative(self, position: Position, batch_index: int | None) -> asyncio.Future[None]: ...

    def begin_acknowledge_before(
        self, positions: PositionSet, batches: Mapping[Position, BitMap]
    ) -> asyncio.Future[None]: ...

    def last_message(self) -> LastMessage: ...

    def last_position(self) -> Position: ...

    @property
    def mark_delete(self) -> Position:
        """Position up to which everything is consumed."""

    def backlog_messages(self) -> int: ...


class EngineConsumer:
    """A consumer connected to a subscription. ``deliver`` is called on the event loop, within its permits. Set the
    callbacks right after creation: they are called on a later turn of the event loop."""

    def __init__(self, subscription: ConsumedSubscription, options: SubscribeOptions, deliver: Deliver) -> None:
        self.id = next(_consumer_ids)
        self.name = options.consumer_name
        self.options = options
        self.subscription = subscription
        self._dispatching = subscription.dispatching
        self.deliver = deliver
        self.on_closed: Callable[[str, str], None] | None = None
        """Called with a code and a reason if the subscription closes the consumer, but not after the consumer's own
        close."""
        self.on_restarted: Callable[[], None] | None = None
        """Called if the subscription was moved, so that all messages delivered before are void."""
        self.on_active_change: Callable[[bool], None] | None = None
        """Called if the Failover consumer became the active one (True) or is not any more (False)."""
        self.on_reached_end: Callable[[], None] | None = None
        """Called once when the topic is terminated and fully consumed."""
        self.told_end = False
        self.drops_acknowledged = False
        """Whether the client drops what lies below its last cumulative acknowledgement, as official clients do."""
        self.share = CLIENT.get() or LoopShare("")
        """Client to which the time of dispatch to this consumer is charged."""
        self.figures = ClientFigures(time.monotonic())
        """Counts of messages and acknowledgements, which the consumer's owner updates."""
        self.closed = False
        self._fenced: EngineError | None = None

    def flow(self, permits: int) -> None:
        """Allow ``permits`` more messages. Raise :class:`NotAllowedError` for a number out of range."""
        if not 0 < permits <= PERMITS_MAX:
            raise NotAllowedError(
                f"a consumer can ask for 1 to {PERMITS_MAX} messages at once (permits), not for {permits}"
            )
        self._check_open()
        self._dispatching.flow(self, permits)

    def give_back(self, permits: int) -> None:
        """Take back unused permits."""
        self._check_open()
        self._dispatching.give_back(self, permits)

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Acknowledge messages, durably when this returns. Raise :class:`InvalidAck` if one is invalid: then none
        counts."""
        self._check_open()
        await self.subscription.acknowledge(acks)

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None = None) -> None:
        """Acknowledge all up to ``position``, and in its batch up to ``batch_index``, durably when this returns. Raise
        :class:`NotAllowedError` on Shared types."""
        self._check_open()
        await self.subscription.acknowledge_cumulative(position, batch_index)

    def begin_acknowledge(self, acks: Sequence[Ack]) -> asyncio.Future[None]:
        """Acknowledge at once, and return a future that is done when that is durable. The acknowledgement counts even
        if the consumer is closed before."""
        self._check_open()
        return self.subscription.begin_acknowledge(acks)

    def acknowledge_entries(self, positions: Sequence[Position], told: SaveCallback) -> None:
        """Acknowledge whole entries at once, and call ``told`` with the outcome when that is durable.

        Raise :class:`InvalidAck` if one of them is invalid. Then none is acknowledged, and ``told`` is not called.
        """
        self._check_open()
        self.subscription.acknowledge_entries(positions, told)

    def begin_acknowledge_cumulative(self, position: Position, batch_index: int | None = None) -> asyncio.Future[None]:
        """Acknowledge cumulatively at once, and return a future that is done when that is durable."""
        self._check_open()
        return self.subscription.begin_acknowledge_cumulative(position, batch_index)

    def begin_acknowledge_before(
        self, positions: PositionSet, batches: Mapping[Position, BitMap]
    ) -> asyncio.Future[None]:
        """Acknowledge as :meth:`Subscription.begin_acknowledge_before` does."""
        self._check_open()
        return self.subscription.begin_acknowledge_before(positions, batches)

    def redeliver(self, positions: Sequence[Position] | None = None) -> None:
        """Send unacknowledged messages of this consumer again: all, or those at ``positions``."""
        self._check_open()
        self._dispatching.redeliver(self, positions)

    def held(self) -> tuple[int, bool]:
        """Return how many unacknowledged messages the consumer has, and whether it gets no more because of them."""
        return (0, False) if self.closed else self._dispatching.held_by(self)

    def last_message(self) -> LastMessage:
        """Return the last message as :meth:`Subscription.last_message` does."""
        return self.subscription.last_message()

    async def seek(self, target: Position | int) -> None:
        """Move the subscription as :meth:`PositionMoves.seek` does."""
        self._check_open()
        await self.subscription.moves.seek(target)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription.

        Without ``force``, raises :class:`SubscriptionBusy` if the subscription has another consumer in any cluster.
        """
        self._check_open()
        await self.subscription.deleting.delete(by=self, force=force)

    def close(self, reason: str | None = None, code: str = CLOSED) -> None:
        """Disconnect the consumer. Its unacknowledged messages are sent to others. With a ``reason``, the owner gets it
        and the ``code``."""
        if self.closed:
            return
        self.closed = True
        self._dispatching.remove(self)
        if reason is not None and self.on_closed is not None:
            self.on_closed(code, reason)

    def fence(self, error: EngineError) -> None:
        """Disconnect the consumer because of a failover. Late calls, such as acknowledgements, are refused with
        ``error``."""
        self._fenced = error
        self.close(str(error), error.code)

    def _check_open(self) -> None:
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        if self.closed:
            raise NotAllowedError(f"consumer {self.name!r} is closed: subscribe again")
