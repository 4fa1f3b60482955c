"""Codes that clients get for errors of the engine: those of Apache Pulsar, so that a client retries what passes and
stops otherwise.
"""

from __future__ import annotations

from typing import Final

from replicator.engine import errors
from replicator.protocol.commands_pb2 import ServerError
from replicator.security.errors import NotPermitted

_CODES: Final[tuple[tuple[type[errors.EngineError], ServerError], ...]] = (
    (errors.UnsupportedTopicName, ServerError.NotAllowedError),
    (errors.NotPersistent, ServerError.NotAllowedError),  # clients try an invalid name again until their time is over
    (errors.InvalidTopicName, ServerError.InvalidTopicName),
    (errors.TopicNotFound, ServerError.TopicNotFound),
    (errors.TopicTerminated, ServerError.TopicTerminatedError),
    (errors.NamespaceNotFound, ServerError.TopicNotFound),
    (errors.TenantNotFound, ServerError.TopicNotFound),
    (errors.SchemaNotFound, ServerError.TopicNotFound),
    (errors.IncompatibleSchema, ServerError.IncompatibleSchema),
    (errors.SubscriptionNotFound, ServerError.SubscriptionNotFound),
    (errors.ConsumerBusy, ServerError.ConsumerBusy),
    (errors.InvalidHashRanges, ServerError.ConsumerAssignError),
    (errors.ProducerBusy, ServerError.ProducerBusy),
    (errors.ProducerFenced, ServerError.ProducerFenced),
    (errors.ClusterFenced, ServerError.ServiceNotReady),
    (errors.BacklogQuotaHolds, ServerError.ProducerBlockedQuotaExceededError),
    (errors.BacklogQuotaExceeded, ServerError.ProducerBlockedQuotaExceededException),
    (errors.EntryCorrupt, ServerError.ChecksumError),
    (errors.NotAllowedError, ServerError.NotAllowedError),
    (NotPermitted, ServerError.AuthorizationError),
    (errors.MessageTooLarge, ServerError.NotAllowedError),
    (errors.InvalidSubscriptionName, ServerError.ProducerBusy),  # as upstream answers it
    (errors.InvalidPattern, ServerError.NotAllowedError),
    (errors.InvalidSeek, ServerError.MetadataError),
    (errors.InvalidAck, ServerError.MetadataError),
    (errors.MessageIdUnknown, ServerError.MetadataError),
    (errors.MessageNotHereYet, ServerError.ServiceNotReady),
    (errors.TooBusy, ServerError.TooManyRequests),
    (errors.TooManyWatchers, ServerError.TooManyRequests),
    (errors.StoreFull, ServerError.PersistenceError),
    (errors.StoreFailed, ServerError.PersistenceError),
)


def server_error(error: errors.EngineError) -> ServerError:
    """Return the code that clients know for ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ServerError.UnknownError)


def moved_to_of(fence: errors.EngineError | None) -> errors.Redirect | None:
    """Return the cluster to which clients refused by ``fence`` must go, if that is settled."""
    return fence.moved_to if isinstance(fence, errors.ClusterFenced) else None
