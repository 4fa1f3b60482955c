"""The session of one consumer: permits in, messages out. What it says of messages is handled apart
(:mod:`replicator.gateway.acknowledging`).

Deliveries of one dispatch leave in one write, entries as the bytes that are stored. A subscription that is put
elsewhere (seek, reset) closes its consumers, as upstream: the client subscribes again, and what it had is void.

A client that asked for our additions stays subscribed instead, and is told by RESTARTED. It answers the same, and what
it acknowledges or asks for again before that answer is about the former place: it changes nothing, else a seek back
would mark as consumed what nobody has consumed since (invariant 5). It is answered all the same.

After a failover clients bring ids of the other cluster along (:mod:`replicator.gateway.message_ids`). What they name is
looked up by the exact mapping, and never compared by number (invariant 5).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from pyroaring import BitMap

from replicator.engine.log.delivered import LastMessage
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery
from replicator.gateway.acknowledging import Acknowledging
from replicator.gateway.broker_metadata import BrokerMetadataWriter
from replicator.gateway.message_ids import MessageAlias
from replicator.gateway.permits import Permits
from replicator.gateway.refusals import moved_to_of
from replicator.gateway.wire import Wire
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandConsumerStatsResponse,
    CommandGetLastMessageIdResponse,
    CommandReachedEndOfTopic,
    CommandRedeliverUnacknowledgedMessages,
    CommandRestarted,
)
from replicator.protocol.data_commands import MessageHeadWriter, message_additions
from replicator.protocol.errors import OutOfOrder
from replicator.protocol.server import NO_REQUEST
from replicator.protocol.values import ack_set, message_id
from replicator.protocol.versions import ACTIVE_CONSUMER_SINCE, CLOSE_BY_SERVER_SINCE
from snapshots.position import BEFORE_ALL, Position

FIRST_ACTIVE_CHANGE_SECONDS: Final = 1.0
"""Time until a Failover consumer first hears whether it is active, as at an Apache Pulsar broker. The Go client drops
what comes right behind the answer to its SUBSCRIBE."""


def last_message_answer(last: LastMessage, partition: int) -> CommandGetLastMessageIdResponse:
    """Return the protocol's answer to a client that asked for the last message of a topic."""
    return CommandGetLastMessageIdResponse(
        last_message_id=message_id(last.position, partition, last.batch_index),
        consumer_mark_delete_position=message_id(last.mark_delete or BEFORE_ALL, partition),
    )


class ConsumerSession:
    """One consumer of a connection. ``deliver`` is given to the engine; :meth:`connected` comes first."""

    def __init__(
        self,
        wire: Wire,
        consumer_id: int,
        topic: Topic,
        epoch: int | None,
        known_as: MessageAlias | None = None,
        *,
        extended: bool = False,
        broker_metadata: bool = False,
    ) -> None:
        self._wire = wire
        self._id = consumer_id
        self.topic = topic
        self._epoch = epoch
        """Counts the redeliveries of everything; what carries an older one is dropped by clients that count them."""
        self._known_as = known_as
        self.extended = extended
        self._broker_metadata = BrokerMetadataWriter(topic) if broker_metadata else None
        self._heads = MessageHeadWriter(consumer_id, topic.partition)
        self._acknowledging = Acknowledging(wire, consumer_id, topic, extended=extended)
        self.acknowledge = self._acknowledging.acknowledge
        self._permits = Permits(topic.admission.entry_bytes_max)
        self._over = False
        self._active = False
        """Whether this is the active consumer of a Failover subscription."""
        self._told_active = extended
        """Whether the client is told of a change at once. Clients that are not ours are, from the first news on."""
        self._first_news: asyncio.TimerHandle | None = None
        """Tells such a client for the first time whether its consumer is active."""
        self.consumer: EngineConsumer

    def connected(self, consumer: EngineConsumer) -> None:
        """Take over the engine's ``consumer`` for this session."""
        self.consumer = self._acknowledging.consumer = consumer
        consumer.on_closed = self._let_go
        consumer.on_restarted = self._restarted
        consumer.on_active_change = self._active_change
        consumer.on_reached_end = self._reached_end
        consumer.drops_acknowledged = not self.extended
        if not self._wire.writable:
            self._permits.blocked()

    # What the client asks.

    def flow(self, permits: int) -> None:
        self._grant(self._permits.requested(permits))

    def redeliver(self, command: CommandRedeliverUnacknowledgedMessages) -> Iterator[None] | None:
        """Send messages again: those that are listed, or all. Return what is left for further steps."""
        if command.HasField("consumer_epoch"):
            self._epoch = command.consumer_epoch
        return self._acknowledging.redeliver(command.message_ids)

    def seek(self, target: Position | int) -> Awaitable[None]:
        """Move the subscription to a position or a time. The result is done when it is there, or raises the engine's
        error."""
        return self.consumer.seek(target)

    def restart_seen(self) -> None:
        """Note that the client knows of one more restart."""
        if not self._acknowledging.unseen:
            raise OutOfOrder(
                "the client sent RESTARTED without having been told that its subscription restarted: the client is "
                "wrong"
            )
        self._acknowledging.unseen -= 1

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription. Raise the engine's errors; then the consumer goes on, unless it was closed
        meanwhile: then the client is told."""
        closed: list[tuple[str, str]] = []
        told, self.consumer.on_closed = self.consumer.on_closed, lambda code, reason: closed.append((code, reason))
        try:
            await self.consumer.unsubscribe(force=force)
        except BaseException:
            self.consumer.on_closed = told
            for code, reason in closed:
                self._let_go(code, reason)
            raise
        self._end()

    def last_message_id(self) -> CommandGetLastMessageIdResponse:
        """Return the protocol's answer: the last message that the client can receive, and the mark-delete position.

        If the client knows that message by its id in another cluster, both are positions of that cluster.
        """
        last = self.consumer.last_message()
        named = self._name_of(last.position)
        if named != last.position:
            consumed = named if last.mark_delete == last.position else Position(named.ledger, named.entry - 1)
            last = LastMessage(named, last.batch_index, consumed)
        return last_message_answer(last, self.topic.partition)

    def stats(self) -> CommandConsumerStatsResponse:
        """Return the figures that clients ask for."""
        rates = self.consumer.figures.rates(time.monotonic())
        unacked, blocked = self.consumer.held()
        client = self.consumer.options.client
        answer = CommandConsumerStatsResponse(
            msgRateOut=rates.messages,
            msgThroughputOut=rates.bytes,
            msgRateRedeliver=rates.redelivered,
            consumerName=self.consumer.name,
            availablePermits=self._permits.unused,
            unackedMessages=unacked,
            blockedConsumerOnUnackedMsgs=blocked,
            type=self.consumer.options.type.value,
            msgRateExpired=0.0,
            msgBacklog=self.consumer.subscription.backlog_messages(),
            messageAckRate=rates.acknowledged,
        )
        if client is not None:
            since = datetime.fromtimestamp(client.connected_at_ms / 1000, UTC)
            answer.address, answer.connectedSince = client.address, since.isoformat(timespec="milliseconds")
        return answer

    def close(self) -> None:
        """Close the consumer after the client closed it or has gone. Its unacknowledged messages go to others."""
        self._end()
        consumer = self.consumer
        consumer.on_closed = consumer.on_restarted = consumer.on_active_change = consumer.on_reached_end = None
        consumer.close()

    # What the engine has.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Called by the engine, within its permits."""
        pieces: list[bytes] = []
        head, epoch, extended, cluster = self._heads.head, self._epoch, self.extended, self.topic.cluster
        broker_metadata, figures = self._broker_metadata, self.consumer.figures
        for delivery in deliveries:
            position, entry = delivery.position, delivery.entry
            left: Sequence[int] = ()
            if delivery.acked is not None:
                left = ack_set(BitMap.deserialize(delivery.acked), delivery.batch_size)
            additions = b""
            if extended:
                origin, origin_position = delivery.origin, delivery.origin_position
                if origin != cluster or origin_position != position:
                    additions = message_additions(delivery.batch_size, origin, origin_position)
                elif delivery.batch_size != 1:
                    additions = message_additions(delivery.batch_size, None, origin_position)
            if self._known_as is not None:
                position = self._name_of(position)
            if broker_metadata is None:
                pieces.append(head(position, delivery.redelivery_count, len(entry), left, epoch, additions))
            else:
                before = broker_metadata.before(delivery)
                size_bytes = len(before) + len(entry)
                pieces.append(head(position, delivery.redelivery_count, size_bytes, left, epoch, additions))
                pieces.append(before)
            pieces.append(entry)
            if delivery.redelivery_count:
                figures.redelivered += delivery.batch_size
        frames = b"".join(pieces)
        figures.bytes += len(frames)
        # First: while it is written, the permits that are left may be taken back.
        figures.messages += self._permits.used(deliveries)
        self._wire.write(frames)
        self._grant(self._permits.more())

    def _name_of(self, position: Position) -> Position:
        known_as = self._known_as
        return known_as.name if known_as is not None and known_as.position == position else position

    def blocked(self) -> None:
        """Stop giving permits while the socket takes no more."""
        returned = self._permits.blocked()
        if returned and not self.consumer.closed:
            self.consumer.give_back(returned)

    def writable(self) -> None:
        """Give permits again: the socket takes more."""
        self._grant(self._permits.unblocked())

    def _grant(self, permits: int) -> None:
        if permits and not self.consumer.closed:
            self.consumer.flow(permits)

    def _active_change(self, active: bool) -> None:
        if not self._wire.understands(ACTIVE_CONSUMER_SINCE):
            return
        self._active = active
        if self._told_active:
            self._tell_active()
        elif self._first_news is None:
            self._first_news = self._wire.after(FIRST_ACTIVE_CHANGE_SECONDS, self._tell_active)

    def _tell_active(self) -> None:
        self._told_active = True
        change = CommandActiveConsumerChange(consumer_id=self._id, is_active=self._active)
        self._wire.send(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change))

    def _end(self) -> None:
        """Note that the client's consumer is gone: no news of it is sent any more."""
        self._over = True
        if self._first_news is not None:
            self._first_news.cancel()

    def _reached_end(self) -> None:
        if self._wire.knows_end_of_topic():
            reached = CommandReachedEndOfTopic(consumer_id=self._id)
            self._wire.send(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=reached))

    def _restarted(self) -> None:
        if self.extended:
            self._acknowledging.unseen += 1
            restarted = CommandRestarted(consumer_id=self._id)
            self._wire.send(BaseCommand(type=BaseCommand.RESTARTED, restarted=restarted))
            return
        if not self.consumer.options.durable:
            self._wire.consumer_put_at(self._id, self.consumer.subscription.mark_delete)
        self._let_go("", "")
        self.consumer.close()

    def _let_go(self, code: str, reason: str) -> None:
        if self._over:
            return
        self._end()
        if self._wire.consumer_gone(self._id, self):
            if not self._wire.understands(CLOSE_BY_SERVER_SINCE):
                self._wire.fail(reason)
                return
            closing = CommandCloseConsumer(
                consumer_id=self._id, request_id=NO_REQUEST, engine_error=code, reason=reason
            )
            if (moved_to := moved_to_of(self._wire.admission.consumers)) is not None:
                closing.assignedBrokerServiceUrl = moved_to.url
                if moved_to.tls_url is not None:
                    closing.assignedBrokerServiceUrlTls = moved_to.tls_url
            self._wire.send(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=closing))
