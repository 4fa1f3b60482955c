"""Sending, for producers of one topic and of a partitioned topic.

This module makes a message from the arguments of ``send``, and checks it before it is taken.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from replicator.client.argument_checks import check_properties
from replicator.client.closing import ClosedAtExit
from replicator.client.errors import InvalidMessage, MessageTooBig, SchemaError
from replicator.client.message import MessageId, OutgoingMessage
from replicator.client.producing.framing import ordering_key_bytes
from replicator.client.producing.pending import Confirmation
from replicator.client.schema import Schema
from replicator.engine.admission import LOCAL

AddContext = Callable[[Mapping[str, str] | None], Mapping[str, str] | None]
"""Function that returns a message's properties with the trace context of its sender."""


class MessageSender(ClosedAtExit):
    """Base of producers: it makes messages from the arguments of ``send`` and gives them to :meth:`enqueue_message`."""

    def __init__(
        self, topic: str, schema: Schema | None, *, block_if_queue_full: bool, add_context: AddContext | None = None
    ) -> None:
        self._topic = topic
        self._add_context = add_context
        self._schema = schema
        self._block_if_queue_full = block_if_queue_full

    async def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Send one message and wait until it is durable.

        ``content`` is what the schema encodes, or bytes. None is the null value: compaction deletes the message's key.
        ``event_timestamp`` and ``deliver_at`` are milliseconds since the epoch. Links copy the message only to
        ``replication_clusters``, if any are named; with ``disable_replication`` they copy it nowhere. Raises
        :class:`ProducerQueueIsFull`, :class:`MessageTooBig`, :class:`SchemaError`, :class:`Timeout`,
        :class:`ConnectError`, :class:`ProducerFenced`, :class:`AlreadyClosed`, and the error that the cluster answers.
        """
        message = self._message(
            content, properties, partition_key, ordering_key, sequence_id, event_timestamp, deliver_at, deliver_after
        )
        if disable_replication or replication_clusters:
            message = message._replace(clusters=clusters_of(replication_clusters, disable_replication))
        if self._block_if_queue_full:
            await self.wait_for_room()
        return await self.enqueue_message(message)

    def enqueue(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Confirmation:
        """Take one message without waiting. The future gets the message's id once it is durable.

        Raises the errors that :meth:`send` raises before it waits. :meth:`wait_for_room` gives back-pressure.
        """
        return self.enqueue_message(
            self._message(
                content,
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        )

    async def send_many(self, messages: Iterable[OutgoingMessage | Any]) -> list[MessageId]:
        """Send messages in order without waiting for each, and wait until all are durable.

        It pauses while ``max_pending_messages`` is reached. Raises the first error; others may have been stored.
        """
        confirmations: list[Confirmation] = []
        for message in messages:
            if self.is_full():
                await self.wait_for_room()
            outgoing = message if isinstance(message, OutgoingMessage) else OutgoingMessage(self._encoded(message))
            if self._add_context is not None:
                outgoing = outgoing._replace(properties=self._add_context(outgoing.properties))
            confirmations.append(self.enqueue_message(outgoing))
        self.seal_batches()
        return await asyncio.gather(*confirmations)

    @abstractmethod
    def enqueue_message(self, message: OutgoingMessage) -> Confirmation:
        """Take one existing message without waiting, such as one of another producer's ``pending()``; see
        :meth:`enqueue`."""

    @abstractmethod
    async def wait_for_room(self) -> None:
        """Wait until one more message can be taken. Raises the error of a producer that is closed or lost."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return whether a message could be refused now because too many wait for confirmation."""

    @abstractmethod
    def seal_batches(self) -> None:
        """Send open batches without waiting for their delay."""

    def _message(
        self,
        content: Any,
        properties: Mapping[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        sequence_id: int | None,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | None,
    ) -> OutgoingMessage:
        if deliver_after is not None:
            deliver_at = _deliver_at(deliver_at, deliver_after)
        if self._schema is not None and content is not None:
            content = self._encoded(content)
        if self._add_context is not None:
            properties = self._add_context(properties)
        return OutgoingMessage(
            content, properties, partition_key, ordering_key, sequence_id, event_timestamp, deliver_at
        )

    def _encoded(self, content: Any) -> bytes | None:
        if self._schema is None or content is None:
            return content  # type: ignore[no-any-return]  # check_message says so if it is not bytes
        try:
            return self._schema.encode(content)
        except SchemaError as error:
            raise SchemaError(f"{self._topic}: {error}") from None


def check_message(message: OutgoingMessage, content_bytes_max: int, metadata_bytes_max: int) -> None:
    """Raise :class:`InvalidMessage` or :class:`MessageTooBig` if the message cannot be sent.

    Keys and properties may have ``metadata_bytes_max`` bytes together: as many as the cluster accepts for an entry.
    """
    content = message.content
    if isinstance(content, bytes):
        if len(content) > content_bytes_max:
            raise MessageTooBig(
                f"message of {len(content)} bytes is over the limit of {content_bytes_max}: send a smaller one, or "
                "make the producer with chunking_enabled"
            )
    elif content is not None:
        raise InvalidMessage(f"content is {type(content).__name__}; it must be bytes, or None for the null value")
    if message.properties or message.partition_key is not None or message.ordering_key is not None:
        _check_texts(message, metadata_bytes_max)
    if message.sequence_id is message.event_timestamp is message.deliver_at is None:
        return  # as nearly all
    for argument, number in (
        ("sequence_id", message.sequence_id),
        ("event_timestamp", message.event_timestamp),
        ("deliver_at", message.deliver_at),
    ):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63):
            raise InvalidMessage(f"{argument} is {number!r}; it must be a whole number from 0 to 2**63-1")


def wall_time_ms() -> int:
    """Return the wall time in milliseconds since the epoch, for the times of entries."""
    return time.time_ns() // 1_000_000


def _check_texts(message: OutgoingMessage, bytes_max: int) -> None:
    if message.properties:
        check_properties(message.properties)
    try:
        properties = message.properties or {}
        rest = 0
        for text in (message.partition_key, *properties, *properties.values()):
            if text is not None:
                rest += len(text.encode())
        if message.ordering_key is not None:
            rest += len(ordering_key_bytes(message.ordering_key))
    except (UnicodeEncodeError, TypeError, AttributeError) as error:
        raise InvalidMessage(f"keys and properties of a message must be text that UTF-8 can hold: {error}") from None
    if rest > bytes_max:
        raise MessageTooBig(f"{rest} bytes of keys and properties are over the limit of {bytes_max}: send smaller ones")


def _deliver_at(deliver_at: int | None, deliver_after: timedelta) -> int:
    if deliver_at is not None:
        raise InvalidMessage("give deliver_at or deliver_after, not both")
    if not isinstance(deliver_after, timedelta) or deliver_after < timedelta():
        raise InvalidMessage(f"deliver_after is {deliver_after!r}; it must be a timedelta that is not negative")
    return wall_time_ms() + deliver_after // timedelta(milliseconds=1)


def clusters_of(named: Sequence[str] | None, disabled: bool | None) -> tuple[str, ...]:
    """Return the value of a message's ``clusters``. Raises :class:`InvalidMessage` if ``named`` is not a list of
    names."""
    if disabled:
        return (LOCAL,)
    if isinstance(named, str) or not all(isinstance(name, str) and name.isascii() for name in named or ()):
        raise InvalidMessage(f"send: replication_clusters is a list of names of clusters, not {named!r}")
    return tuple(named or ())
