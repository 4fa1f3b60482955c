"""Asyncio shell around the acknowledgement grouping tracker of one consumer.

It owns the group's timer, the callers that wait for receipts, and refusals until a caller asks for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pyroaring import BitMap

from replicator.client.consuming.ack_grouping import (
    AckGrouping,
    Action,
    Refused,
    SendAcks,
    SendCumulative,
    Settled,
    StartTimer,
)
from replicator.client.consuming.consumer_stats import ConsumerStatsRecorder
from replicator.client.consuming.moving import EntryIdentities
from replicator.client.errors import ClusterFenced, InvalidAck, InvalidMessage, PulsarException
from replicator.client.message import Message, MessageId
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from snapshots.position import Position

_log = logging.getLogger(__name__)

REFUSALS_MAX: Final = 1_000
"""Limit of refusals kept for the next :meth:`Acknowledger.confirm_all`, which raises the first. A consumer may never
call it."""


class Acknowledger:
    """Acknowledgements of one consumer on their way to the cluster."""

    def __init__(
        self,
        settings: ConsumerSettings,
        channel: Callable[[], ConsumerChannel | None],
        stats: ConsumerStatsRecorder,
    ) -> None:
        self._topic = settings.topic
        self._channel = channel
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._grouping = AckGrouping(
            settings.acknowledgement_group_time_ms,
            settings.acknowledgement_group_size_max,
            batch_index_acks=settings.batch_index_ack_enabled,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: deque[tuple[int, Position | None, asyncio.Future[None]]] = deque()
        self._refused: dict[Position, PulsarException] = {}
        self._moves = EntryIdentities()

    def acknowledge(self, position: Position, batch_index: int = -1, batch_size: int = 1) -> None:
        """Acknowledge one message, or with ``batch_index`` -1 the whole entry."""
        self._stats.acks_sent += 1
        place = self._moves.place(position, batch_index, batch_size)
        if place is not None:
            self._run(self._grouping.acknowledge(place, batch_index, batch_size))

    def acknowledge_chunks(self, positions: Sequence[Position]) -> None:
        """Acknowledge the entries that are the chunks of one message, in one request."""
        self._stats.acks_sent += len(positions)
        places = [self._moves.place(position, -1, 1) for position in positions]
        if kept := [place for place in places if place is not None]:
            self._run(self._grouping.acknowledge_entries(kept))

    def acknowledge_cumulative(self, position: Position, batch_index: int, batch_size: int) -> None:
        """Acknowledge everything through this message."""
        self._stats.acks_sent += 1
        covered = self._moves.before_through(position)
        if covered is None:
            self._run(self._grouping.acknowledge_cumulative(position, batch_index, batch_size))
            return
        whole = batch_index < 0 or batch_index == batch_size - 1
        for each in covered:  # one by one: here other messages may lie between them
            if each != position or whole:
                self.acknowledge(each)
            else:
                for index in range(batch_index + 1):
                    self.acknowledge(each, index, batch_size)

    def acknowledged(self, position: Position) -> BitMap | bool:
        """Return which part of this entry is acknowledged; see :meth:`AckGrouping.acknowledged`."""
        return self._grouping.acknowledged(position)

    def settled(self, position: Position, batch_index: int) -> bool:
        """Return whether a message was acknowledged by a former position; see :meth:`EntryIdentities.settled`."""
        return self._moves.settled(position, batch_index)

    def arrived(self, position: Position, identity: tuple[str, Position], batch_size: int) -> None:
        """Acknowledge the parts of an arrived entry that the application acknowledged in another cluster, before a
        move."""
        known = self._moves.delivered(position, identity)
        if known is True:
            self._run(self._grouping.acknowledge(position))
        elif known:
            for index in known:
                self._run(self._grouping.acknowledge(position, index, batch_size))

    def delivered(self, position: Position) -> None:
        """Take note that the entry was delivered, perhaps again."""
        self._grouping.delivered(position)

    def flush(self) -> None:
        """Send all gathered acknowledgements now."""
        self._run(self._grouping.flush())

    async def receipt(self, position: Position) -> None:
        """Wait until every acknowledgement so far is answered. Raises the error if that of ``position`` was refused."""
        await self._answered(position)

    async def confirm_all(self) -> None:
        """Send all gathered acknowledgements and wait for their answers. Raises the first refusal since the last
        call."""
        self.flush()
        if self._grouping.settled < self._grouping.ticket:
            await self._answered(None)
        if self._refused:
            error = next(iter(self._refused.values()))
            self._refused.clear()
            raise error

    def confirmed(self, request_id: int) -> None:
        """Take note that a request is durable."""
        self._moves.confirmed(*self._grouping.flight(request_id))
        self._run(self._grouping.confirmed(request_id))

    def refused(self, request_id: int, error: PulsarException) -> None:
        """Handle the refusal of a request."""
        if isinstance(error, ClusterFenced):
            return  # it stays unconfirmed; the channel is about to be lost
        self._run(self._grouping.refused(request_id, error, split=isinstance(error, InvalidAck)))

    def reconnected(self) -> None:
        """Send everything unconfirmed over the new channel."""
        self._run(self._grouping.unconfirmed())
        self.flush()

    def moved(self) -> None:
        """Prepare for a channel to another cluster: unconfirmed acknowledgements count there when their messages
        arrive."""
        entries, batches, cumulatives = self._grouping.everything()
        through = [position for position, index in cumulatives if index is None]
        for position, index in cumulatives:
            if index is not None:
                through.append(Position(position.ledger, position.entry - 1))
                batches[position] = batches.get(position, BitMap()) | BitMap(range(index + 1))
        self._moves.moved(entries, batches, through)
        self._run(self._grouping.restart())

    def restarted(self) -> None:
        """Void everything unconfirmed after a seek or reset, and fail the callers that wait for receipts."""
        error = InvalidAck(f"{self._topic}: the subscription was put elsewhere before the acknowledgement was durable")
        for _, position, waiter in self._waiters:
            if position is not None and not waiter.done():
                waiter.set_exception(error)
        self._refused.clear()
        self._run(self._grouping.restart())

    def fail(self, error: PulsarException) -> None:
        """Stop sending, and raise ``error`` in every waiting caller."""
        if self._timer is not None:
            self._timer.cancel()
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()

    async def _answered(self, position: Position | None) -> None:
        if self._grouping.settled >= self._grouping.ticket:
            return  # nothing is on its way, as for what was acknowledged before a move and has not come again
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self._grouping.ticket, position, waiter))
        await waiter

    def _run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            channel = self._channel()
            match action:
                case SendAcks(request_id, acks):
                    if channel is not None:
                        channel.acknowledge(request_id, acks)
                case SendCumulative(request_id, position, batch_index, batch_size):
                    if channel is not None:
                        channel.acknowledge_cumulative(request_id, position, batch_index, batch_size)
                case StartTimer(delay_ms):
                    self._timer = self._loop.call_later(delay_ms / 1000, self._timer_fired)
                case Refused(position, error):
                    _log.warning("%s: acknowledgement of %s refused: %s", self._topic, position, error)
                    self._stats.ack_failed += 1
                    if len(self._refused) < REFUSALS_MAX or self._waiters:
                        self._refused[position] = error
                case Settled(through):
                    self._settle(through)

    def _timer_fired(self) -> None:
        self._timer = None
        self._run(self._grouping.timer_fired())

    def _settle(self, through: int) -> None:
        while self._waiters and self._waiters[0][0] <= through:
            _, position, waiter = self._waiters.popleft()
            error = self._refused.pop(position, None) if position is not None else None
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(None)


def id_of(message: Message | MessageId, topic: str) -> MessageId:
    """Return the id of ``message``, a value that an application acknowledges or rejects.

    Raises :class:`InvalidMessage` if the value has another type, and :class:`InvalidAck` if the message is not of
    ``topic``.
    """
    if isinstance(message, MessageId):
        return message
    if not isinstance(message, Message):
        raise InvalidMessage(
            f"{message!r:.80} is neither a Message nor a MessageId; give one that the consumer received"
        )
    if message.topic_name() != topic:
        raise InvalidAck(f"{message!r} is not of {topic}; acknowledge it by the consumer that received it")
    return message.message_id()
