"""Errors of the embedded engine.

Each has a ``code``, the name under which the network APIs report it. Its text says what to do, unless the name makes
that plain.
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
    """The name of a topic that is not persistent. This engine has no such topics."""


class UnsupportedTopicName(InvalidTopicName):
    """A name that Pulsar would accept, but this engine does not: with other characters, or with a cluster in it."""


class InvalidSubscriptionName(EngineError):
    """A subscription name that is empty or blank, too long, or holds a control character."""


class TopicNotFound(EngineError):
    status = 404


class TopicTerminated(EngineError):
    """The topic was terminated: it takes no more messages from producers. Its messages can still be consumed."""

    status = 412


class TopicExists(EngineError):
    """Something of that name is there already."""

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
    """A pattern of topic names that cannot be parsed, or that is not for one namespace. ``position`` is the index of
    the wrong character."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.position = position


class TooManyWatchers(EngineError):
    """A connection, or all connections together, have reached the limit of watched patterns."""

    status = 429


class SubscriptionNotFound(EngineError):
    status = 404


class ConsumerBusy(EngineError):
    """The type of the subscription does not admit this consumer, because of the connected ones."""

    status = 409


class ProducerBusy(EngineError):
    """A producer of that name is connected, or the topic has an exclusive producer."""

    status = 409


class ProducerFenced(EngineError):
    """The producer may not publish any more, because another one owns the topic now. Or it cannot own the topic,
    because other producers are connected."""

    status = 409


@dataclass(frozen=True, slots=True)
class Redirect:
    """Address of a cluster for clients of the binary protocol; ``tls_url`` is for clients that use TLS."""

    url: str
    tls_url: str | None = None


class ClusterFenced(EngineError):
    """Another cluster serves this one's clients since a failover, or is about to. The text names the cluster and its
    address."""

    status = 503

    def __init__(self, reason: str, moved_to: Redirect | None = None) -> None:
        """Create the error. ``moved_to`` is where clients connect now, or None while that is undecided."""
        super().__init__(reason)
        self.moved_to = moved_to


class BacklogQuotaExceeded(EngineError):
    """The topic's backlog is over its quota: consume or skip messages, or raise the quota."""

    status = 429


class BacklogQuotaHolds(BacklogQuotaExceeded):
    """The topic's backlog is over its quota, so publishes wait: try again later."""


class InvalidHashRanges(EngineError):
    """Sticky ranges of a Key_Shared consumer that are missing, outside of 0..65535, or taken by another consumer."""


class InvalidPolicies(EngineError):
    """Topic policies with an unknown name or an invalid value."""


class InvalidSeek(EngineError):
    """A target of a seek that is beyond the end of the topic."""


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
    """A block from another incarnation of the topic at its origin than the blocks here."""

    status = 409


class NotAllowedError(EngineError):
    """An operation that is not allowed here, such as a cumulative acknowledgement on a Shared subscription."""

    status = 409


class LogMoved(NotAllowedError):
    """A topic got messages between a decision about it and what was decided. Decide again."""

    status = 409


class SubscriptionBusy(NotAllowedError):
    """An unforced deletion was refused, because the subscription has consumers in this cluster or in another one."""

    status = 412


class InvalidAck(EngineError):
    """An acknowledgement of a position that does not exist in this topic."""


class MessageIdUnknown(EngineError):
    """A message id of another cluster (by its ledger) for which the message here cannot be determined."""

    status = 404


class MessageNotHereYet(EngineError):
    """A message id of another cluster whose message has not come yet."""

    status = 503


class SchemaNotFound(EngineError):
    """The topic has no schema, or no schema with that version."""

    status = 404


class IncompatibleSchema(EngineError):
    """A schema that is not compatible with those of the topic, or that is malformed. The text says why."""

    status = 409


class StoreFull(EngineError):
    """The store has reached its size limit, or its disk is full. Nothing of the refused write is stored."""

    status = 507


class StoreFailed(EngineError):
    """A write or sync failed. The store confirms nothing more until the worker is restarted."""

    status = 503


class StoreUnusable(EngineError):
    """The data directory cannot be opened: not writable, of another cluster, of a newer version, or in use."""


class NoRoomToOpen(StoreUnusable):
    """The disk of the data directory is full, so the store in it cannot be opened or created."""

    status = 507


class MarkerNewer(EngineError):
    """A marker of a later version. This version does not understand it, and must not skip it."""

    status = 409


class NotReclaimed(EngineError):
    """A message that this cluster published and lost cannot be put back into its log."""

    status = 409


class StoreCopyFailed(EngineError):
    """A copy of the store was given up. The store itself goes on."""

    status = 503


class FrameTooLarge(EngineError):
    """A frame whose length is over the limit. It is refused before it is read."""

    status = 413


class TooBusy(EngineError):
    """A bounded queue is full; try again later."""

    status = 429


class InvalidWriter(EngineError):
    """A writer, run or attempt with an invalid name, or with invalid numbers."""


class StagingFull(EngineError):
    """The limit of staged data is reached: commit or abort some of it, or write smaller batches."""

    status = 429


class StagedMissing(EngineError):
    """Staged data of an attempt is missing here, in whole or in part: its task must run again."""

    status = 409


class AttemptAborted(EngineError):
    """The job of a staged attempt was aborted, so nothing more is taken from it."""

    status = 409


class WriterMoved(EngineError):
    """Another commit was made under the writer's name since the tasks asked which rows are published already."""

    status = 409


class CommitPending(EngineError):
    """An earlier commit of the writer is still being published; try again later."""

    status = 503
