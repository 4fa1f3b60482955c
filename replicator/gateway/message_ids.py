"""Message ids that clients bring along from another cluster: where they begin to read, and what they seek to.

Official clients keep the ids of the cluster that they came from. The message is found by the exact mapping
(:mod:`replicator.engine.log.foreign_positions`), or the request is refused.

A client that starts at a message, or seeks to it, is sent that message. If it does not want it, it drops it (or the
first part of its batch) by itself, and knows it by its id. So that client gets the message under the id that it gave.
Otherwise a reader would see a message again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from replicator.engine.errors import MessageIdUnknown, MessageNotHereYet, NotAllowedError
from replicator.engine.topic import Topic
from replicator.engine.types import END_LEDGER
from replicator.protocol.commands_pb2 import CommandSubscribe, MessageIdData
from replicator.protocol.values import position_of
from snapshots.position import BEFORE_ALL, Position

SOUGHT_MAX: Final = 1_000
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MessageAlias:
    """The message at ``position`` is known to a client as ``name``, its position in another cluster."""

    position: Position
    name: Position


class SeekPositions(Generic[V]):
    """Places where a seek put consumers of one connection, until they come back; at most :data:`SOUGHT_MAX`."""

    __slots__ = ("_by_consumer",)

    def __init__(self) -> None:
        self._by_consumer: dict[int, V] = {}

    def put(self, consumer_id: int, sought: V | None) -> None:
        self.take(consumer_id)
        if sought is None:
            return
        if len(self._by_consumer) >= SOUGHT_MAX:
            del self._by_consumer[next(iter(self._by_consumer))]
        self._by_consumer[consumer_id] = sought

    def get(self, consumer_id: int) -> V | None:
        return self._by_consumer.get(consumer_id)

    def take(self, consumer_id: int) -> V | None:
        return self._by_consumer.pop(consumer_id, None)


def place_of(topic: Topic, message: MessageIdData, *, extended: bool) -> tuple[Position, MessageAlias | None]:
    """Return the local position of a message, or of an end of the log. Also return the id by which its client knows the
    message, if that is another one; not for ``extended`` clients, which are ours and translate ids themselves.

    Raises :class:`MessageIdUnknown`, :class:`MessageNotHereYet`.
    """
    position = position_of(message)
    if extended or position == BEFORE_ALL or position.ledger >= END_LEDGER:
        return position, None
    here = topic.foreign.message(position)
    return here, None if here == position else MessageAlias(here, position)


def start_of(topic: Topic, command: CommandSubscribe) -> tuple[Position | None, MessageAlias | None]:
    """Return the last position that is not sent to a subscribing client, or None if it does not ask for one; and the id
    by which it knows the message, as :func:`place_of` does. If the subscription exists, the start in the command
    does not count.

    Raises :class:`MessageNotHereYet`, and :class:`NotAllowedError` where clients are to stop: those who are told
    another reason try again until their time is over.
    """
    if not command.HasField("start_message_id"):
        return None, None
    try:
        position, known_as = place_of(topic, command.start_message_id, extended=command.extended)
    except (MessageIdUnknown, MessageNotHereYet) as error:
        if command.subscription in topic.subscriptions:
            return None, None
        if isinstance(error, MessageIdUnknown):
            raise NotAllowedError(str(error)) from error
        raise
    return (Position(position.ledger, position.entry - 1) if position.entry >= 0 else position), known_as
