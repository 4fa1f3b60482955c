"""Interfaces between producers and consumers and their transport.

A channel is one live connection to one topic. Calls on it never wait (except ``close`` and ``unsubscribe``): their
results are reported to the events object that it was started with. After ``on_lost``, and after ``close``, a channel
reports nothing more. Channels lead to an engine in this process, or over a broker connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replicator.client.errors import PulsarException
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.engine.log.delivered import LastMessage
from replicator.engine.log.entry import MESSAGE_BYTES_MAX
from replicator.engine.types import Ack, Delivery
from snapshots.position import Position


class ProducerEvents(Protocol):
    """Events that a channel reports to a producer."""

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        """Handle receipts: each entry is durable at its position, or was dropped as already stored (``DUPLICATE``)."""

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        """Handle the refusal of an entry: it is not stored, and sending it again would not help."""

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the channel. Entries without a report may be stored or not."""


@dataclass(frozen=True, slots=True)
class ProducerReady:
    """Answer of the cluster to a producer that it accepts."""

    producer_name: str
    last_sequence_id: int
    """Highest sequence id that the topic has of this producer name; -1 if none, or without deduplication."""
    topic_epoch: int | None
    """Epoch of an exclusive producer, which it gives again when it reconnects."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Largest message that the cluster takes."""


class ProducerChannel(Protocol):
    """Channel that carries entries to one topic, in order."""

    ready: ProducerReady

    def start(self, events: ProducerEvents) -> None:
        """Begin to report to ``events``."""

    def publish(self, entry_id: int, entry: bytes) -> None:
        """Send an entry. The caller chooses ids, which grow by one from call to call."""

    async def close(self) -> None:
        """Release the connection. Entries that were not reported yet are never reported."""


class ConsumerEvents(Protocol):
    """Events that a channel reports to a consumer."""

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Handle entries for the application."""

    def on_redelivery_started(self) -> None:
        """Handle the start of a redelivery after ``redeliver(None)``: deliveries before this are to be dropped."""

    def on_restarted(self) -> None:
        """Handle a seek or reset of the subscription: drop all that was delivered before.

        Nothing is pending after it. Unconfirmed earlier acknowledgements are void, but still answered. Each earlier
        ``redeliver(None)`` has had its ``on_redelivery_started`` before this."""

    def on_active_change(self, active: bool) -> None:
        """Handle a change of the active consumer of a Failover subscription: it is this one, or not any more."""

    def on_reached_end(self) -> None:
        """Take note that the topic is terminated, and its subscription has consumed all of it."""

    def on_ack_confirmed(self, request_id: int) -> None:
        """Take note that the acknowledgements of this request are durable."""

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        """Handle the refusal of a request: none of its acknowledgements was applied."""

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the channel. Requests without a report may be applied or not."""


class ConsumerChannel(Protocol):
    """Channel of one consumer of one subscription."""

    cluster: str
    """Cluster that the channel leads to. Positions are valid in this cluster."""

    def start(self, events: ConsumerEvents) -> None:
        """Begin to report to ``events``."""

    def flow(self, permits: int) -> None:
        """Allow ``permits`` more messages."""

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        """Send individual acknowledgements; ``on_ack_confirmed`` or ``on_ack_refused`` answers."""

    def acknowledge_cumulative(
        self, request_id: int, position: Position, batch_index: int | None, batch_size: int = 0
    ) -> None:
        """Acknowledge everything through a position, or through an index in it.

        ``batch_size`` is 0 if it is not known. ``on_ack_confirmed`` or ``on_ack_refused`` answers."""

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        """Ask again for these entries, or with None for all unacknowledged ones; then ``on_redelivery_started``
        follows."""

    async def seek(self, target: Position | int) -> None:
        """Move the subscription so that the entry at ``target`` comes next.

        A number is a time in milliseconds since the epoch: then the first entry published at or after it comes next.
        All consumers of the subscription get ``on_restarted``."""

    async def last_message(self) -> LastMessage:
        """Return the last message that this consumer can receive, and the subscription's mark-delete position."""

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription. With ``force`` its other consumers are disconnected; without, they prevent it."""

    async def close(self) -> None:
        """Release the subscription; unacknowledged messages go to its other consumers."""


class TopicWatchEvents(Protocol):
    """Events of the watcher of a pattern, in any order and with gaps: only the hashes are reliable."""

    def on_topics(self, names: Sequence[str] | None, names_hash: str) -> None:
        """Handle the answer to a poll: full names of all matching topics, or None if they have the hash that was
        sent."""

    def on_topics_changed(self, added: Sequence[str], deleted: Sequence[str], names_hash: str) -> None:
        """Handle topics that came and went.

        Apply ``deleted`` first: a name in both was made anew. ``names_hash`` is the hash of the whole list after the
        change."""

    def on_poll_refused(self, error: PulsarException) -> None:
        """Handle the refusal of a poll."""

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the channel."""


class TopicWatchChannel(Protocol):
    """Channel that watches one pattern."""

    def start(self, events: TopicWatchEvents) -> None:
        """Begin to report to ``events``. Opening the channel was the first poll, and its answer is reported at once."""

    def poll(self, known_hash: str) -> None:
        """Ask for the list of topics; ``on_topics`` answers."""

    async def close(self) -> None:
        """Stop watching."""


class Connector(Protocol):
    """Opener of channels to one cluster. Errors are those of :mod:`replicator.client.errors`."""

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> ProducerChannel:
        """Open a producer channel. An exclusive producer that reconnects gives the ``topic_epoch`` of its former
        ``ready``.

        With ``WAIT_FOR_EXCLUSIVE`` it returns when it is this producer's turn, however late. Raises
        :class:`ConnectError`, :class:`ProducerBusy`, :class:`ProducerFenced` and other errors of the cluster.
        """

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of a topic's partitions; 0 if it is not partitioned or does not exist.

        ``create`` says that the caller is about to use the topic: a missing one is created if its namespace's policies
        make partitioned topics."""

    async def open_topic_watch(self, pattern: str, known_hash: str) -> TopicWatchChannel:
        """Watch the topics of a pattern, given the hash of the list known so far.

        Raises :class:`InvalidConfiguration` for a pattern that cannot be read, :class:`ConnectError`, and other errors
        of the cluster.
        """

    async def open_consumer(self, settings: ConsumerSettings) -> ConsumerChannel:
        """Subscribe. Raises :class:`ConnectError`, :class:`ConsumerBusy` and other errors of the cluster."""

    async def close(self) -> None:
        """Release everything."""
