"""A consumer's answers to its messages: they are acknowledged, or are to be sent again.

Large commands are carried out in steps (invariant 11, :mod:`replicator.gateway.arriving`): a client may list tens of
thousands of ids. Ids of this cluster are taken together. Others, and parts of batches, cost more each, so a step takes
fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from pyroaring import BitMap

from replicator.engine.errors import EngineError, InvalidAck, MessageIdUnknown, MessageNotHereYet, NotAllowedError
from replicator.engine.log.delivered import last_position
from replicator.engine.log.foreign_positions import ForeignPosition
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.gateway.refusals import server_error
from replicator.gateway.wire import Wire
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    MessageIdData,
    ServerError,
)
from replicator.protocol.data_commands import AckResponseWriter
from replicator.protocol.values import acked_indexes, first_unacked, position_of
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

IDS_AT_ONCE: Final = 500
"""Message ids of this cluster that one step takes: a millisecond."""
SLOW_IDS_AT_ONCE: Final = 50
"""Ids that one step takes if they may be of another cluster, or of parts of batches. Each is looked up by itself."""
BATCH_PER_ID: Final = 200
"""Messages of a batch that cost as much as one more id, where a part of the batch is acknowledged."""
_INDIVIDUAL: Final = int(CommandAck.AckType.Individual)


class Acknowledging:
    """Acknowledgements and redelivery of one consumer. ``consumer`` is to be set before anything is asked."""

    def __init__(self, wire: Wire, consumer_id: int, topic: Topic, *, extended: bool) -> None:
        self._wire = wire
        self._id = consumer_id
        self._topic = topic
        self._extended = extended
        self._responses = AckResponseWriter(consumer_id)
        self.unseen = 0
        """Restarts that the client may not know of yet. Until it does, its commands are about the former position."""
        self.consumer: EngineConsumer

    def acknowledge(self, commands: Sequence[CommandAck]) -> Iterator[None] | None:
        """Acknowledge messages before what the client sends next. An answer, if it is asked for, means that the
        acknowledgement is durable.

        An acknowledgement with a validation error is of a message that the client could not read, and is not sent
        again. Commands that acknowledge whole messages are taken together, if none of them is refused. The result has
        what is left for further steps.
        """
        if len(commands) > 1 or len(commands[0].message_id) > IDS_AT_ONCE:
            return self._in_steps(commands)
        return None if self._together(commands) else self._apart(commands[0])

    def redeliver(self, ids: Sequence[MessageIdData]) -> Iterator[None] | None:
        """Send messages again: those of ``ids``, or all if there are none. The result has what is left for further
        steps."""
        if self.consumer.closed or self.unseen:
            return None
        if not ids:
            self.consumer.redeliver(None)
            return None
        return self._redeliver(ids)

    # Acknowledging.

    def _in_steps(self, commands: Sequence[CommandAck]) -> Iterator[None]:
        together: list[CommandAck] = []
        ids = 0
        for command in commands:
            count = len(command.message_id)
            if together and ids + count > IDS_AT_ONCE:
                yield from self._step(together)
                together, ids = [], 0
            if count > IDS_AT_ONCE:
                yield from self._apart(command) or ()
            else:
                together.append(command)
                ids += max(count, 1)
        if together:
            yield from self._step(together)

    def _step(self, commands: Sequence[CommandAck]) -> Iterator[None]:
        if not self._together(commands):
            for command in commands:
                yield from self._apart(command) or ()
                yield
        yield

    def _together(self, commands: Sequence[CommandAck]) -> bool:
        """Acknowledge whole messages. Return False, with nothing changed, if that is not all there is to do."""
        if self.unseen:
            return False
        positions: list[Position] = []
        request_ids: list[int] = []
        for command in commands:
            if not (_is_plain(command) and self._whole(command.message_id, positions)):
                return False
            if command.HasField("request_id"):
                request_ids.append(command.request_id)
        consumer = self.consumer
        try:
            consumer.acknowledge_entries(positions, partial(self._answer, request_ids))
        except EngineError:
            return False  # each command is taken by itself
        consumer.figures.acknowledged += len(positions)
        return True

    def _whole(self, messages: Sequence[MessageIdData], positions: list[Position]) -> bool:
        """Add the positions of ``messages``, and return True, if all are whole messages that are known here."""
        ledger, own = -1, range(0)
        for message in messages:
            if message.ack_set:
                return False
            if message.ledgerId != ledger:
                ledger = message.ledgerId
                own = self._topic.foreign.own_entries(ledger)
            if message.entryId in own:
                positions.append(Position(ledger, message.entryId))
                continue
            try:
                positions.append(self._here(message))
            except EngineError:
                return False
        return True

    def _apart(self, command: CommandAck) -> Iterator[None] | None:
        """Acknowledge what one command names. It is answered once, by its first refusal if there is one."""
        request_ids = [command.request_id] if command.HasField("request_id") else []
        if self.unseen:
            self._answer(request_ids, None)
            return None
        if len(command.message_id) > 1 and _is_plain(command):
            return self._each_in_steps(command.message_id, _Outcome(partial(self._answer, request_ids)))
        try:
            durable = self._acknowledged(command)
        except EngineError as error:
            self._answer(request_ids, error)
            return None

        def over(saved: asyncio.Future[None]) -> None:
            self._answer(request_ids, None if saved.cancelled() else saved.exception())

        durable.add_done_callback(over)
        return None

    def _each_in_steps(self, ids: Sequence[MessageIdData], outcome: _Outcome) -> Iterator[None]:
        for first in range(0, len(ids), IDS_AT_ONCE):
            some = ids[first : first + IDS_AT_ONCE]
            if not self._some_whole(some, outcome):
                for few in self._id_batches(some):
                    if self.unseen:
                        break
                    self.consumer.figures.acknowledged += len(few)
                    self._acknowledge_each(few, outcome)
                    yield
            yield
        outcome.mark_all_started()

    def _some_whole(self, messages: Sequence[MessageIdData], outcome: _Outcome) -> bool:
        positions: list[Position] = []
        if self.unseen or not self._whole(messages, positions):
            return False
        try:
            self.consumer.acknowledge_entries(positions, outcome.told)
        except EngineError:
            return False
        outcome.waits()
        self.consumer.figures.acknowledged += len(positions)
        return True

    def _id_batches(self, messages: Sequence[MessageIdData]) -> Iterator[list[MessageIdData]]:
        few: list[MessageIdData] = []
        weight = 0
        for message in messages:
            few.append(message)
            weight += 1
            if message.ack_set:
                with suppress(EngineError):
                    weight += self._topic.reading.batch_size(self._here(message)) // BATCH_PER_ID
            if weight >= SLOW_IDS_AT_ONCE:
                yield few
                few, weight = [], 0
        if few:
            yield few

    def _acknowledge_each(self, messages: Sequence[MessageIdData], outcome: _Outcome) -> None:
        """Acknowledge each message. Those that are refused do not hold up the others in the list.

        Clients send ids of two clusters in one list, and ids of messages that were lost with the end of the log.
        """
        acks: list[Ack] = []
        for message in messages:
            try:
                acks.append(self._ack(message))
            except EngineError as error:
                outcome.refused(error)
        try:
            self._begin(acks, outcome)
        except EngineError:
            for ack in acks:
                try:
                    self._begin([ack], outcome)
                except EngineError as error:
                    outcome.refused(error)

    def _begin(self, acks: Sequence[Ack], outcome: _Outcome) -> None:
        durable = self.consumer.begin_acknowledge(acks)
        outcome.waits()
        durable.add_done_callback(lambda saved: outcome.told(None if saved.cancelled() else saved.exception()))

    def _acknowledged(self, command: CommandAck) -> asyncio.Future[None]:
        if command.txnid_least_bits or command.txnid_most_bits:
            raise NotAllowedError(
                "the acknowledgement belongs to a transaction, and this cluster has none: acknowledge without a "
                "transaction"
            )
        self.consumer.figures.acknowledged += len(command.message_id)
        if command.ack_type == _INDIVIDUAL:
            return self.consumer.begin_acknowledge([self._ack(message) for message in command.message_id])
        if len(command.message_id) != 1:
            raise InvalidAck(
                f"a cumulative acknowledgement must name one message, not {len(command.message_id)}: name the last "
                "message alone"
            )
        (message,) = command.message_id
        position = position_of(message)
        left = first_unacked(message.ack_set)
        foreign = None if self._extended else self._topic.foreign.find(position)
        if foreign is not None:
            return self._acknowledge_before(foreign, left)
        before_ledger = position.entry < 0 and position > BEFORE_ALL and self._topic.log.has_ledger(position.ledger)
        if not before_ledger and not self._topic.reading.has_position(position):
            raise InvalidAck(
                f"position {position} is not in {self._topic.name}: see that it is of this topic and this cluster"
            )
        if left:
            return self.consumer.begin_acknowledge_cumulative(position, left - 1)
        return self._acknowledge_through(position if left is None else Position(position.ledger, position.entry - 1))

    def _acknowledge_through(self, position: Position) -> asyncio.Future[None]:
        """Acknowledge everything through ``position``, which may be the place before a ledger, or a marker.

        A client that acknowledges a part of a batch names the entry before the batch, whatever that is: before the
        first batch of a ledger it is entry -1. Messages up to there, also of earlier ledgers, must not come again.
        """
        log = self._topic.log
        if position.entry < 0 or position in log.markers:
            position = last_position(log, compacted=self.consumer.options.read_compacted, upto=position)
            if position == BEFORE_ALL:  # no message is before it
                return self.consumer.begin_acknowledge_before(PositionSet(), {})
        return self.consumer.begin_acknowledge_cumulative(position)

    def _acknowledge_before(self, foreign: ForeignPosition, left: int | None) -> asyncio.Future[None]:
        """Acknowledge messages that another cluster published up to ``foreign``, as far as they are here.

        Messages of third clusters lay elsewhere in its order, so they are not covered: at worst they come again.
        ``left`` is the first message of the batch that is not meant; None if the whole batch is.
        """
        positions = self._topic.foreign.through(foreign, above=self.consumer.subscription.mark_delete)
        batches: dict[Position, BitMap] = {}
        if left is not None and foreign.here is not None:
            positions.discard(foreign.here)
            if left:
                batches[foreign.here] = BitMap(range(left))
        durable = self.consumer.begin_acknowledge_before(positions, batches)
        self._topic.foreign.check_arrived(foreign)
        return durable

    def _ack(self, message: MessageIdData) -> Ack:
        position = self._here(message)
        if not message.ack_set or position <= self.consumer.subscription.mark_delete:
            return Ack(position)
        # Its real size: the one that the client gives is not to be trusted.
        return Ack(position, acked_indexes(message.ack_set, self._topic.reading.batch_size(position)))

    def _here(self, message: MessageIdData) -> Position:
        """Return the local position of a message. Our own client never sends an id of another cluster."""
        return position_of(message) if self._extended else self._topic.foreign.message(position_of(message))

    def _answer(self, request_ids: Sequence[int], error: BaseException | None) -> None:
        """Answer requests whose acknowledgements are durable, were refused, or could not be saved."""
        if error is None:
            self._wire.write(self._responses.write(request_ids))
            return
        refusal = CommandAckResponse(consumer_id=self._id, error=ServerError.PersistenceError, message=str(error))
        if isinstance(error, EngineError):
            refusal.error, refusal.engine_error = server_error(error), error.code
        for request_id in request_ids:
            refusal.request_id = request_id
            self._wire.send(BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse=refusal))

    # Sending again.

    def _redeliver(self, ids: Sequence[MessageIdData]) -> Iterator[None]:
        """Send the listed messages again, in steps.

        A type with one active consumer sends all that it holds again, whatever the list has. That is done once.
        """
        one_active = self.consumer.options.type.one_active
        for first in range(0, len(ids), IDS_AT_ONCE):
            positions: list[Position] = []
            ledger, own, slow = -1, range(0), 0
            for message in ids[first : first + IDS_AT_ONCE]:
                if message.ledgerId != ledger:
                    ledger = message.ledgerId
                    own = self._topic.foreign.own_entries(ledger)
                if message.entryId in own:
                    positions.append(Position(ledger, message.entryId))
                    continue
                with suppress(MessageIdUnknown, MessageNotHereYet):  # what another cluster delivered comes here anyway
                    positions.append(self._here(message))
                slow += 1
                if slow % SLOW_IDS_AT_ONCE == 0:
                    yield
            if self.consumer.closed or self.unseen:
                return
            if positions:
                self.consumer.redeliver(positions)
                if one_active:
                    return
            yield


class _Outcome:
    """The outcome of one acknowledgement whose parts become durable at different times."""

    __slots__ = ("_begun", "_error", "_tell", "_waiting")

    def __init__(self, tell: Callable[[BaseException | None], None]) -> None:
        """Make the answer. ``tell`` is called once, with the first error if there is one."""
        self._tell = tell
        self._waiting = 0
        self._begun = False
        self._error: BaseException | None = None

    def waits(self) -> None:
        """Wait for one more part: :meth:`told` is going to be called for it."""
        self._waiting += 1

    def told(self, error: BaseException | None) -> None:
        """Note that a part is durable, or could not be saved."""
        self._waiting -= 1
        self._error = self._error or error
        self._report_if_complete()

    def refused(self, error: EngineError) -> None:
        """Note that a part was refused."""
        self._error = self._error or error

    def mark_all_started(self) -> None:
        """Tell the outcome once all parts are known."""
        self._begun = True
        self._report_if_complete()

    def _report_if_complete(self) -> None:
        if self._begun and not self._waiting:
            self._tell(self._error)


def _is_plain(command: CommandAck) -> bool:
    """Return whether a command acknowledges messages one by one, and without a transaction."""
    return command.ack_type == _INDIVIDUAL and not command.txnid_least_bits and not command.txnid_most_bits
