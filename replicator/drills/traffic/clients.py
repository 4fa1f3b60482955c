"""Interface that a drill needs of a client library: producers and consumers at one cluster, and one error for "it is
gone".

Three libraries have it: this project's own client (:mod:`replicator.drills.traffic.own_client`), Pulsar's official one
(:mod:`replicator.drills.traffic.pulsar_client`), and Confluent's for Kafka
(:mod:`replicator.drills.traffic.kafka_client`). What is recorded of messages, and when, is the same for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from replicator.drills.observations import Receipt
from replicator.drills.subscriptions import TestedSubscription
from snapshots.position import Position

RECEIVE_MESSAGES_MAX: Final = 1000
RECEIVE_MILLIS: Final = 50
RECEIVER_QUEUE_MESSAGES: Final = 5000
MAX_PENDING_MESSAGES: Final = 20_000
PUBLISH_DELAY_MILLIS: Final = 20
KEY_GROUPS: Final = 8
"""Number of groups of keys. A batch has the keys of one group, its ordering key, so one Key_Shared consumer gets it."""


class ClientLost(Exception):
    """The client's cluster died, cannot be reached, or is fenced."""


@dataclass(frozen=True, slots=True)
class DrillMessage:
    """A message that the drill publishes; ``message_id`` is its own number for it."""

    message_id: int
    key: str
    payload: bytes

    @property
    def key_group(self) -> str:
        return f"group-{zlib.crc32(self.key.encode()) % KEY_GROUPS}"


class Received(NamedTuple):
    """A message that a consumer received; its payload is not kept. ``handle`` is used to acknowledge it, and ``entry``
    is its entry's position in the cluster that it came from.
    """

    handle: Any
    entry: Position
    receipt: Receipt


Confirmed = Callable[[int, Position, int], None]
"""Function called for each confirmed message, with its number, its position, and its index in the batch."""


class DrillProducer(Protocol):
    """A producer at one cluster. Messages that are unconfirmed when it raises or is closed must be sent again."""

    def send(self, message: DrillMessage, confirmed: Confirmed) -> None: ...

    async def room(self) -> None:
        """Wait until few enough messages are unconfirmed. Raise :class:`ClientLost`."""

    async def flush(self) -> None:
        """Wait until no message is on its way. Raise :class:`ClientLost`."""


class DrillConsumer(Protocol):
    """A consumer at one cluster."""

    async def receive(self) -> list[Received]:
        """Return the messages that arrive within :data:`RECEIVE_MILLIS`. Raise :class:`ClientLost`."""

    async def acknowledge(self, received: Sequence[Received]) -> Sequence[Received]:
        """Acknowledge messages; return those that are acknowledged now, usually the same. A system that knows only a
        position returns a message in a later call, if one before it is not done. Raise :class:`ClientLost`.
        """

    async def acknowledge_cumulative(self, last: Received) -> None:
        """Acknowledge all messages up to ``last``; see :meth:`acknowledge`."""


class DrillClients(Protocol):
    """Makes producers and consumers. Entering either context raises :class:`ClientLost`."""

    def producer(self, cluster: str, topic: str) -> AbstractAsyncContextManager[DrillProducer]: ...

    def consumer(
        self, cluster: str, topic: str, tested: TestedSubscription, name: str
    ) -> AbstractAsyncContextManager[DrillConsumer]: ...
