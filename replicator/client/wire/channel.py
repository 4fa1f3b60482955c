"""What a producer and a consumer need of a transport, and what they get back from it.

A channel is one live connection to one topic. Calls on it never wait (but ``close`` and ``unsubscribe``): what they
cause is reported to the events object that it was started with. After ``on_lost``, and after ``close``, a channel
reports nothing more. An engine in this process and a broker connection are what they lead over.
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
    """What a producer hears."""

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        """Each entry is durable at its position, or was dropped as one that is stored already (``DUPLICATE``)."""

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        """The entry is not stored and would not be if it were sent again."""

    def on_lost(self, error: PulsarException) -> None:
        """The channel is gone; what it did not report may be stored or not."""


@dataclass(frozen=True, slots=True)
class ProducerReady:
    """What the cluster says to a producer that it accepts."""

    producer_name: str
    last_sequence_id: int
    """The highest sequence id that the topic has of this producer name, -1 if none; -1 also without deduplication."""
    topic_epoch: int | None
    """For exclusive producers: to be given again when the producer reconnects."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    """The largest message that the cluster takes."""


class ProducerChannel(Protocol):
    """Carries entries to one topic, in order."""

    ready: ProducerReady

    def start(self, events: ProducerEvents) -> None:
        """Begin to report to ``events``."""

    def publish(self, entry_id: int, entry: bytes) -> None:
        """Send an entry; ids are chosen by the caller and grow by one from call to call."""

    async def close(self) -> None:
        """Let go of the connection. What is not reported yet never is."""


class ConsumerEvents(Protocol):
    """What a consumer hears."""

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Entries for the application."""

    def on_redelivery_started(self) -> None:
        """Deliveries from here on come after a ``redeliver(None)``; the ones before it are to be dropped."""

    def on_restarted(self) -> None:
        """The subscription was put elsewhere (seek, reset): all that came before is to be dropped, nothing is
        pending, and what is not confirmed of earlier acknowledgements is void (it is answered all the same). Each
        earlier ``redeliver(None)`` has had its ``on_redelivery_started`` before this."""

    def on_active_change(self, active: bool) -> None:
        """Failover: this consumer became the active one, or is not any more."""

    def on_reached_end(self) -> None:
        """The topic is terminated, and its subscription has consumed all of it."""

    def on_ack_confirmed(self, request_id: int) -> None:
        """The acknowledgements of this request are durable."""

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        """None of the acknowledgements of this request was applied."""

    def on_lost(self, error: PulsarException) -> None:
        """The channel is gone; what it did not report may be applied or not."""


class ConsumerChannel(Protocol):
    """One consumer of one subscription."""

    cluster: str
    """The cluster that it is connected to: positions are of this one."""

    def start(self, events: ConsumerEvents) -> None:
        """Begin to report to ``events``."""

    def flow(self, permits: int) -> None:
        """Allow ``permits`` more messages."""

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        """Acknowledge individually; answered by ``on_ack_confirmed`` or ``on_ack_refused``."""

    def acknowledge_cumulative(
        self, request_id: int, position: Position, batch_index: int | None, batch_size: int = 0
    ) -> None:
        """Acknowledge up to and with a position, or an index in it; ``batch_size`` is 0 if it is not known. Answered as
        above."""

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        """Ask for these entries again, or for all that is unacknowledged; then ``on_redelivery_started`` follows."""

    async def seek(self, target: Position | int) -> None:
        """Put the subscription so that the entry at the position ``target``, or the first one that was published at
        ``target`` milliseconds since the epoch or later, comes next. Its consumers get ``on_restarted``."""

    async def last_message(self) -> LastMessage:
        """Return the last message that this consumer can receive, and the subscription's mark-delete position."""

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription; with ``force`` also while it has other consumers, which are disconnected."""

    async def close(self) -> None:
        """Let go of the subscription; what is unacknowledged goes to its other consumers."""


class TopicWatchEvents(Protocol):
    """What the watcher of a pattern hears, in any order and with gaps: only the hashes say what is true."""

    def on_topics(self, names: Sequence[str] | None, names_hash: str) -> None:
        """A poll is answered: the full names of all topics that match, or None if they have the hash that was sent."""

    def on_topics_changed(self, added: Sequence[str], deleted: Sequence[str], names_hash: str) -> None:
        """Topics came and went, first those that went; a name that is in both was made anew. The hash is that of the
        whole list after it."""

    def on_poll_refused(self, error: PulsarException) -> None:
        """A poll is not answered with names."""

    def on_lost(self, error: PulsarException) -> None:
        """The channel is gone."""


class TopicWatchChannel(Protocol):
    """One watched pattern."""

    def start(self, events: TopicWatchEvents) -> None:
        """Begin to report to ``events``; the answer to the first poll, which the opening was, at once."""

    def poll(self, known_hash: str) -> None:
        """Ask for the list."""

    async def close(self) -> None:
        """Watch no longer."""


class Connector(Protocol):
    """Opens channels to one cluster. Errors are those of :mod:`replicator.client.errors`."""

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> ProducerChannel:
        """Connect; an exclusive producer that connects again gives the ``topic_epoch`` of its former ``ready``.

        With ``WAIT_FOR_EXCLUSIVE`` it returns when it is this producer's turn, however late. Raises
        :class:`ConnectError`, :class:`ProducerBusy`, :class:`ProducerFenced` and what else the cluster answers.
        """

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions the topic has; 0 for a topic that is not partitioned or does not exist. With ``create``
        somebody is about to use it: it is made if its namespace's policies make partitioned topics."""

    async def open_topic_watch(self, pattern: str, known_hash: str) -> TopicWatchChannel:
        """Watch the topics of a pattern, from a list with that hash on.

        Raises :class:`InvalidConfiguration` for a pattern that cannot be read, :class:`ConnectError`, and what else the
        cluster answers.
        """

    async def open_consumer(self, settings: ConsumerSettings) -> ConsumerChannel:
        """Subscribe; raises :class:`ConnectError`, :class:`ConsumerBusy` and what else the cluster answers."""

    async def close(self) -> None:
        """Let go of everything."""
