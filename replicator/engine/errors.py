"""Errors of the embedded engine.

Each has a ``code``, the name under which the network APIs report it, and says what to do where that is not
plain from the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""

    code: ClassVar[str] = "EngineError"
    status: ClassVar[int] = 400
    """The HTTP status under which the API reports it."""

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__


class InvalidTopicName(EngineError):
    """A name that is not ``persistent://tenant/namespace/topic`` in the allowed characters and length."""


class NotPersistent(InvalidTopicName):
    """The name of a topic that is not persistent; there are none here."""


class UnsupportedTopicName(InvalidTopicName):
    """A name that Pulsar would take: with other characters, or of the form that has a cluster in it."""


class InvalidSubscriptionName(EngineError):
    """A subscription name that is empty or blank, too long, or holds a control character."""


class TopicNotFound(EngineError):
    status = 404


class TopicTerminated(EngineError):
    """The topic was terminated: it takes no more messages from producers. What it has can still be consumed."""

    status = 412


class TopicExists(EngineError):
    """A topic of that name is there already."""

    status = 409


class TopicBusy(EngineError):
    """Producers or consumers are connected: disconnect them, or use force."""

    status = 412


class NamespaceNotFound(EngineError):
    status = 404


class NamespaceExists(EngineError):
    status = 409


class NamespaceNotEmpty(EngineError):
    """The namespace has topics: delete them, or use force."""

    status = 409


class TenantNotFound(EngineError):
    status = 404


class TenantExists(EngineError):
    status = 409


class TenantNotEmpty(EngineError):
    """The tenant has namespaces: delete them first."""

    status = 409


class InvalidPartitions(EngineError):
    """A number of partitions that a topic cannot have, such as fewer than it has."""


class InvalidPattern(EngineError):
    """A pattern of topic names that cannot be read, or that is not over one namespace; ``position`` is the index of the
    character from which on."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.position = position


class TooManyWatchers(EngineError):
    """A connection, or all together, watch as many patterns of topic names as they may."""

    status = 429


class SubscriptionNotFound(EngineError):
    status = 404


class ConsumerBusy(EngineError):
    """The subscription's type does not admit this consumer beside the ones it has."""

    status = 409


class ProducerBusy(EngineError):
    """A producer of that name is connected, or the topic has an exclusive producer."""

    status = 409


class ProducerFenced(EngineError):
    """Another producer has taken the topic for itself, so this one may not publish any more; or another is connected,
    so this one cannot have the topic for itself."""

    status = 409


@dataclass(frozen=True, slots=True)
class MovedTo:
    """Where clients of the binary protocol connect to a cluster; those that use TLS, at ``tls_url``."""

    url: str
    tls_url: str | None = None


class ClusterFenced(EngineError):
    """Another cluster serves this one's clients since a failover, or is about to; the text names it and its address."""

    status = 503

    def __init__(self, reason: str, moved_to: MovedTo | None = None) -> None:
        """``moved_to`` is where clients connect now; None while that is not settled."""
        super().__init__(reason)
        self.moved_to = moved_to


class BacklogQuotaExceeded(EngineError):
    """The topic's backlog is over its quota: consume or skip messages, or raise the quota."""

    status = 429


class BacklogQuotaHolds(BacklogQuotaExceeded):
    """The same, where the policy is that publishes wait: try again later."""


class InvalidHashRanges(EngineError):
    """Sticky ranges of a Key_Shared consumer that are missing, outside of 0..65535, or taken by another consumer."""


class InvalidPolicies(EngineError):
    """Topic policies with an unknown name or a value that makes no sense."""


class InvalidSeek(EngineError):
    """A position to go to that the topic does not have."""


class EntryCorrupt(EngineError):
    """An entry whose frame, checksum or metadata cannot be read."""


class MessageTooLarge(EngineError):
    status = 413


class BlockCorrupt(EngineError):
    """A block whose header, length or checksum is wrong. It is neither stored nor served."""


class CopyGap(EngineError):
    """A copied block does not follow what the destination has: something before it is missing here."""

    status = 409


class IncarnationMismatch(EngineError):
    """A block from another incarnation of the topic at its origin than the one already copied here."""

    status = 409


class NotAllowedError(EngineError):
    """An operation that the subscription's type does not have, such as a cumulative ack on Shared."""

    status = 409


class SubscriptionBusy(NotAllowedError):
    """An unforced deletion was refused, because the subscription has consumers in this cluster or in another one."""

    status = 412


class InvalidAck(EngineError):
    """An acknowledgement of a position that does not exist in this topic."""


class MessageIdUnknown(EngineError):
    """A message id of another cluster (by its ledger) that does not say which message here it is of."""

    status = 404


class MessageNotHereYet(EngineError):
    """A message id of another cluster whose message has not come yet."""

    status = 503


class SchemaNotFound(EngineError):
    """The topic has no schema, or none of that version."""

    status = 404


class IncompatibleSchema(EngineError):
    """A schema that the topic's own do not go with, or that cannot be read; the text says why."""

    status = 409


class StoreFull(EngineError):
    """The store has reached its size limit, or its disk is full; nothing of the refused write was kept."""

    status = 507


class StoreFailed(EngineError):
    """A write or sync failed. The store confirms nothing more until the worker is restarted."""

    status = 503


class StoreUnusable(EngineError):
    """The data directory cannot be opened: not writable, of another cluster, of a newer version, or in use."""


class NoRoomToOpen(StoreUnusable):
    """The disk of the data directory is full, so the store in it cannot be opened or made."""

    status = 507


class MarkerNewer(EngineError):
    """A marker of a later version, which this one does not understand and must not pass over."""

    status = 409


class NotReclaimed(EngineError):
    """What this cluster published and lost cannot be put back into its log."""

    status = 409


class StoreCopyFailed(EngineError):
    """A copy of the store was given up; the store goes on."""

    status = 503


class FrameTooLarge(EngineError):
    """A frame whose length is over the limit; it is refused before it is read."""

    status = 413


class TooBusy(EngineError):
    """A bounded queue is full; try again later."""

    status = 429


class InvalidWriter(EngineError):
    """The name of a writer, its run or an attempt that cannot be used, or numbers that do not go with it."""


class StagingFull(EngineError):
    """As much is staged as may be: commit or abort some of it, or write smaller batches."""

    status = 429


class StagedMissing(EngineError):
    """What is to be committed or gone on with is not staged here, or not all of it: its tasks must run again."""

    status = 409


class AttemptAborted(EngineError):
    """The job of a staged attempt was aborted before: nothing of it is taken any more."""

    status = 409


class WriterMoved(EngineError):
    """Something else was committed under the writer's name since the tasks asked what is published already."""

    status = 409


class CommitPending(EngineError):
    """An earlier commit of the writer is still being published; try again later."""

    status = 503
