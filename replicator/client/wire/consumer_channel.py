"""Consumer of one subscription over a broker connection.

A cluster of ours sends with each message what opening its entry would tell, and keeps the consumer after a seek or
reset of its subscription: RESTARTED marks the place among the messages. Other brokers close the consumer instead. After
its own seek the channel then subscribes again by itself, so that its owner sees the same. After another consumer's seek
it is lost, like after any other closing.

A redelivery of everything begins a new epoch, which the messages bear: the first message of a newer epoch begins the
redelivery. At a broker that does not number its messages, the redelivery counts as begun at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

from pyroaring import BitMap

from replicator.client.errors import (
    AlreadyClosed,
    BrokerMetadataError,
    ConnectError,
    InvalidAck,
    PulsarException,
    Timeout,
    from_loss,
    from_server,
)
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerEvents
from replicator.client.wire.connection import Connection
from replicator.client.wire.consumer_commands import acknowledging, closing, seeking, subscribing
from replicator.client.wire.whole_entries import WholeEntries
from replicator.engine.errors import EngineError
from replicator.engine.log.delivered import NO_BATCH, LastMessage
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry
from replicator.engine.types import Ack, Delivery
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandRestarted,
    CommandUnsubscribe,
)
from replicator.protocol.runs import Messages
from replicator.protocol.values import ack_set, acked_indexes, position_of
from snapshots.position import BEFORE_ALL, Position

CLOSE_SECONDS_MAX: Final = 2.0
POSITIONS_PER_COMMAND_MAX: Final = 10_000
PERMITS_MAX: Final = 1_000_000
"""Limit of permits in one request, which a cluster of ours sets."""

T = BaseCommand.Type


class BrokerConsumerChannel:
    """Consumer channel over a broker connection (:class:`replicator.client.wire.channel.ConsumerChannel`)."""

    def __init__(
        self, connection: Connection, settings: ConsumerSettings, cluster: str, operation_timeout_seconds: float
    ) -> None:
        self.cluster = cluster
        self._connection = connection
        self._settings = settings
        self._operation_timeout_seconds = operation_timeout_seconds
        self._id = 0
        self._events: ConsumerEvents | None = None
        self._early: deque[Callable[[ConsumerEvents], None]] = deque()
        """Events to report when :meth:`start` is called."""
        self._arrived: list[Delivery] = []
        self._permits = 0
        """Permits granted to the broker and not used."""
        self._acks_asked: dict[int, None] = {}
        """Unanswered requests of acknowledgements."""
        self._whole: WholeEntries | None = None if connection.cluster else WholeEntries()
        self._epoch = 0
        self._epoch_begun = 0
        self._seeking = False
        self._sought_with = 0
        """Consumer id that a seek closes."""
        self._withheld: list[tuple[int, CommandAck]] = []
        """Acknowledgements made during a seek. They are about the state before it, and must not be sent after it."""
        self._lost_while_seeking: PulsarException | None = None
        self._over = False

    def start(self, events: ConsumerEvents) -> None:
        if not self._over:
            self._events = events
        if self._early:
            asyncio.get_running_loop().call_soon(self._replay_early_events, events)

    async def subscribe(self, start: Position | None = None) -> None:
        """Connect to the subscription; ``start`` is where one that is not durable continues."""
        connection = self._connection
        consumer_id = self._id = connection.next_id()
        connection.consumers[consumer_id] = self
        try:
            await connection.request(
                lambda request_id: subscribing(
                    self._settings, consumer_id, request_id, start, epoch=self._epoch, extended=bool(connection.cluster)
                ),
                f"consumer of {self._settings.topic}",
                self._operation_timeout_seconds,
            )
        except BaseException as error:
            connection.consumers.pop(consumer_id, None)
            if isinstance(error, Timeout) or not isinstance(error, PulsarException):  # it may be made all the same
                connection.ask(lambda request_id: closing(consumer_id, request_id), lambda _: None)
            raise

    def flow(self, permits: int) -> None:
        if self._over:
            return
        if not 0 < permits <= PERMITS_MAX:
            self._lose(ConnectError(f"flow: {permits} permits; expected 1 to {PERMITS_MAX}"))
            self._leave()
            return
        self._permits += permits
        self._flow(permits)

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        if self._whole is not None:
            if any(ack.batch_indexes is not None and not ack.batch_size for ack in acks):
                error = InvalidAck("the id of a message of a batch does not say how many messages the batch has")
                self._tell(lambda events: events.on_ack_refused(request_id, error))
                return
            acks = [self._whole.acknowledged(ack) for ack in acks]
        self._send_ack(request_id, acknowledging(self._id, acks))

    def acknowledge_cumulative(
        self, request_id: int, position: Position, batch_index: int | None, batch_size: int = 0
    ) -> None:
        command = CommandAck(consumer_id=self._id, ack_type=CommandAck.AckType.Cumulative)
        one = command.message_id.add(ledgerId=position.ledger, entryId=position.entry)
        if batch_index is not None:
            one.ack_set.extend(ack_set(BitMap(range(batch_index + 1)), batch_size or BATCH_MESSAGES_MAX))
            one.batch_size = batch_size
        if self._whole is not None:
            self._whole.acknowledged_through(position)
        self._send_ack(request_id, command)

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        if self._over:
            return
        if positions is None:
            self._epoch += 1
            self._redeliver(())
            return
        for at in range(0, len(positions), POSITIONS_PER_COMMAND_MAX):
            self._redeliver(positions[at : at + POSITIONS_PER_COMMAND_MAX])

    async def seek(self, target: Position | int) -> None:
        self._seeking, self._sought_with = not self._connection.cluster, self._id
        try:
            await self._ask(lambda request_id: seeking(self._id, request_id, target), "seek")
            if self._seeking:
                await self._subscribe_again(target if isinstance(target, Position) else None)
        finally:
            self._seeking = False
            withheld, self._withheld = self._withheld, []
            if self._lost_while_seeking is not None:
                self._lose(self._lost_while_seeking)
            for each in withheld:  # of a seek that failed: all is as before
                self._send_ack(*each)

    async def last_message(self) -> LastMessage:
        def make(request_id: int) -> BaseCommand:
            wanted = CommandGetLastMessageId(consumer_id=self._id, request_id=request_id)
            return BaseCommand(type=T.GET_LAST_MESSAGE_ID, getLastMessageId=wanted)

        try:
            answer = await self._ask(make, "last message")
        except BrokerMetadataError as error:
            if self._connection.cluster:
                raise
            # A broker that seeks closes its consumers, also one that has reconnected already.
            lost = ConnectError(f"{self._connection.address}: {error}")
            self._lose(lost)
            raise lost from None
        mark_delete = None
        if answer.HasField("consumer_mark_delete_position"):  # older brokers do not report it
            mark_delete = position_of(answer.consumer_mark_delete_position)
        position, index = position_of(answer.last_message_id), answer.last_message_id.batch_index
        if position.entry < 0:  # others name the ledger of an empty topic
            return LastMessage(BEFORE_ALL, mark_delete=mark_delete)
        return LastMessage(position, index if 0 <= index < BATCH_MESSAGES_MAX else NO_BATCH, mark_delete)

    async def unsubscribe(self, *, force: bool = False) -> None:
        def make(request_id: int) -> BaseCommand:
            wanted = CommandUnsubscribe(consumer_id=self._id, request_id=request_id, force=force)
            return BaseCommand(type=T.UNSUBSCRIBE, unsubscribe=wanted)

        await self._ask(make, "unsubscribe")

    async def close(self) -> None:
        self._early.clear()
        if self._over:
            return
        self._end()
        connection, consumer_id = self._connection, self._id
        if connection.consumers.pop(consumer_id, None) is None:
            return
        with suppress(PulsarException):  # it is gone already, or is about to be
            await connection.request(
                lambda request_id: closing(consumer_id, request_id), "closing of a consumer", CLOSE_SECONDS_MAX
            )

    # From the connection.

    def on_messages(self, messages: Messages) -> None:
        if self._over:
            return
        message = messages.command
        epoch = message.consumer_epoch if message.HasField("consumer_epoch") else self._epoch
        if epoch > self._epoch_begun:
            self.on_messages_end()
            self._begin_epochs(epoch)
        self._arrived += self._deliveries(messages)

    def on_messages_end(self) -> None:
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self._permits -= sum(delivery.batch_size for delivery in arrived)
            if self._events is not None:
                self._events.on_deliveries(arrived)

    def on_command(self, command: BaseCommand) -> None:
        match command.type:
            case T.ACTIVE_CONSUMER_CHANGE:
                active = command.active_consumer_change.is_active
                self._tell(lambda events: events.on_active_change(active))
            case T.REACHED_END_OF_TOPIC:
                self._tell(lambda events: events.on_reached_end())
            case T.RESTARTED:
                # First: the owner's reaction to this event is about the new place.
                self._connection.send(BaseCommand(type=T.RESTARTED, restarted=CommandRestarted(consumer_id=self._id)))
                self._restarted()
            case T.CLOSE_CONSUMER:
                told = command.close_consumer
                reason = f"{self._connection.address}: {told.reason or 'the broker closed the consumer'}"
                error = from_loss(told.engine_error, reason)
                if not self._seeking:
                    self._lose(error)
                elif told.consumer_id != self._sought_with:  # it has let go of the one that came back, too
                    self._lost_while_seeking = error

    def on_lost(self, error: PulsarException) -> None:
        self._lose(error)

    # Inside.

    def _tell(self, event: Callable[[ConsumerEvents], None]) -> None:
        if self._over:
            return
        if self._events is None or self._early:
            self._early.append(event)
        else:
            event(self._events)

    def _replay_early_events(self, events: ConsumerEvents) -> None:
        while self._early:
            self._early.popleft()(events)

    def _lose(self, error: PulsarException) -> None:
        if self._over:
            return
        events = self._events
        self._end()
        if events is None or self._early:
            self._early.append(lambda events: events.on_lost(error))
        else:
            events.on_lost(error)

    def _end(self) -> None:
        self._over = True
        self._events = None
        self._arrived.clear()
        self._give_up_acks()

    def _leave(self) -> None:
        """Close the consumer at the broker, without waiting."""
        consumer_id = self._id
        if self._connection.consumers.pop(consumer_id, None) is not None:
            self._connection.ask(lambda request_id: closing(consumer_id, request_id), lambda _: None)

    async def _ask(self, make: Callable[[int], BaseCommand], what: str) -> Any:
        if self._over:
            raise AlreadyClosed(f"the consumer at {self._connection.address} is closed: subscribe again")
        return await self._connection.request(make, what, self._operation_timeout_seconds)

    def _flow(self, permits: int) -> None:
        flow = CommandFlow(consumer_id=self._id, messagePermits=permits)
        self._connection.send(BaseCommand(type=T.FLOW, flow=flow))

    def _send_ack(self, own_id: int, command: CommandAck) -> None:
        if self._over:
            return
        if self._seeking:
            self._withheld.append((own_id, command))
            return

        def make(request_id: int) -> BaseCommand:
            command.request_id = request_id
            return BaseCommand(type=T.ACK, ack=command)

        def answered(answer: CommandAckResponse | PulsarException) -> None:
            self._acks_asked.pop(asked, None)
            if self._events is None or isinstance(answer, ConnectError):
                return  # with the connection the channel is lost
            if isinstance(answer, PulsarException):
                self._events.on_ack_refused(own_id, answer)
            elif answer.HasField("error"):
                error = from_server(answer.error, answer.message, answer.engine_error)
                self._events.on_ack_refused(own_id, error)
            else:
                self._events.on_ack_confirmed(own_id)

        asked = self._connection.ask(make, answered)
        self._acks_asked[asked] = None

    def _give_up_acks(self) -> None:
        for request_id in self._acks_asked:
            self._connection.give_up(request_id)
        self._acks_asked.clear()

    def _redeliver(self, positions: Sequence[Position]) -> None:
        command = CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        for position in positions:
            command.message_ids.add(ledgerId=position.ledger, entryId=position.entry)
        if not positions:
            command.consumer_epoch = self._epoch
        self._connection.send(
            BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
        )

    def _begin_epochs(self, epoch: int) -> None:
        while self._epoch_begun < min(epoch, self._epoch):
            self._epoch_begun += 1
            self._tell(lambda events: events.on_redelivery_started())

    def _restarted(self) -> None:
        """Report a restart: everything before is void, and the broker begins none of the redeliveries asked for."""
        self._begin_epochs(self._epoch)
        if self._whole is not None:
            self._whole.clear()
        self._tell(lambda events: events.on_restarted())

    async def _subscribe_again(self, start: Position | None) -> None:
        """Subscribe again after a seek at a broker that closes its consumers. Everything before it is void."""
        self._leave()
        self._give_up_acks()
        self.on_messages_end()
        try:
            await self.subscribe(start)
        except PulsarException as error:
            self._lose(ConnectError(f"subscribing again after a seek: {error}"))
            raise
        permits, self._permits = self._permits, 0
        self._withheld.clear()
        self._restarted()
        if permits > 0:
            self.flow(permits)

    def _deliveries(self, messages: Messages) -> Iterator[Delivery]:
        message, entries, positions = messages.command, messages.rests, messages.positions()
        origin, origin_positions = self.cluster, positions
        if self._whole is not None:
            sizes = [_batch_size(entry) for entry in entries]
        else:
            sizes = messages.batch_sizes()
            if message.origin:
                origin, origin_positions = message.origin, messages.origin_positions()
        acked: Iterable[bytes | None] = repeat(None)
        if message.ack_set:
            acked = [BitMap(acked_indexes(message.ack_set, size)).serialize() for size in sizes]
        redeliveries, origins = repeat(message.redelivery_count), repeat(origin)
        return map(Delivery, positions, redeliveries, sizes, acked, entries, origins, origin_positions)


def _batch_size(entry: bytes) -> int:
    """Return the number of messages in an entry; 1 if it cannot be read, because its opening will raise the error."""
    try:
        metadata, _ = decode_entry(entry, check=False)
    except EngineError:
        return 1
    return max(1, metadata.num_messages_in_batch)
