"""Errors that users of the client see.

Names are those of the official Python client's ``pulsar.exceptions`` where it has the case, so that code moves over by
changing an import. This module also maps error codes of the engine and of the protocol to these errors. A cluster of
this project also sends the engine's code, which tells more cases apart.
"""

from __future__ import annotations

from typing import Final

from replicator.engine.errors import EngineError
from replicator.protocol.commands_pb2 import ServerError


class PulsarException(Exception):
    """Base of every error of the client."""

    def error(self) -> str:
        """Return the error's name. It is the same over every transport."""
        return type(self).__name__


class UnknownError(PulsarException):
    """The cluster reported an error that this client does not know; the text starts with its code."""


class InvalidConfiguration(PulsarException):
    """An argument has a value that it cannot have; the text names the argument."""


class InvalidUrl(InvalidConfiguration):
    """A service URL that is neither ``pulsar://host:port`` (or ``pulsar+ssl://``) nor ``embedded:PATH``."""


class OperationNotSupported(PulsarException):
    """This client does not have a feature of the official client (yet). It is refused, never ignored."""


class Timeout(PulsarException):
    """An operation did not finish in time. A send that timed out may still have been stored."""


class ConnectError(PulsarException):
    """The cluster cannot be reached, or the connection to it was lost."""


class ClusterFenced(PulsarException):
    """Another cluster has taken over this cluster's clients by failover, or is about to; the text names it and its
    address.

    ``Client(service_url_provider=…)`` moves there by itself."""


class AuthenticationError(PulsarException):
    """The credentials of the client are missing or wrong."""


class AuthorizationError(PulsarException):
    """The client is not permitted to do this."""


class BrokerMetadataError(PulsarException):
    """The cluster could not do the operation; the text gives the reason."""


class IncompatibleSchema(PulsarException):
    """The topic has a schema, and the schema given does not fit it."""


class TopicTerminated(PulsarException):
    """The topic is terminated: nothing can be published to it any more."""


class AlreadyClosed(PulsarException):
    """The client, producer or consumer was closed."""


class ConsumerBusy(PulsarException):
    """The subscription's type does not admit this consumer beside the connected ones."""


class InvalidTopicName(PulsarException):
    """A name that is not ``persistent://tenant/namespace/topic`` in the allowed characters and length."""


class TopicNotFound(PulsarException):
    """The topic does not exist in this cluster."""


class SubscriptionNotFound(PulsarException):
    """The subscription does not exist, or was deleted."""


class InvalidMessage(PulsarException):
    """An entry or a frame cannot be read."""


class ChunkMissing(InvalidMessage):
    """A chunk of a message arrived although an earlier one is missing."""


class ChunkDuplicated(InvalidMessage):
    """A producer sent a chunk again that has already arrived."""


class ChunksExpired(InvalidMessage):
    """The chunks of a message did not all arrive in time."""


class ChunksOverflow(InvalidMessage):
    """More chunked messages are incomplete than the consumer may hold."""


class CryptoError(PulsarException):
    """A key is missing, or cannot be read or used; the text names it."""


class DecryptionFailed(CryptoError, InvalidMessage):
    """An entry cannot be decrypted: its key is missing, or it was changed on the way."""


class SchemaError(InvalidMessage):
    """A value does not fit the schema of its topic; the text names the topic and the field."""


class MessageTooBig(PulsarException):
    """A message is larger than 5 MiB, or than 64 MiB in chunks or before compression."""


class ProducerQueueIsFull(PulsarException):
    """``max_pending_messages`` wait for confirmation already; pass ``block_if_queue_full=True`` to wait instead."""


class ProducerBusy(PulsarException):
    """A producer of that name is connected, or the topic has an exclusive producer."""


class ProducerFenced(PulsarException):
    """Another producer has taken the topic for itself, or is connected while this one asks for exclusive access.

    The error is final: connecting again would take the topic back."""


class ProducerBlockedQuotaExceededError(PulsarException):
    """The cluster's store is at its size limit, or the topic's backlog at its quota, and the policy is to wait."""


class ProducerBlockedQuotaExceededException(PulsarException):
    """The topic's backlog is over its quota, and the policy is to refuse new messages."""


class BrokerPersistenceError(PulsarException):
    """The cluster's store failed. It confirms nothing more until its worker is restarted."""


class ServiceUnitNotReady(PulsarException):
    """The cluster is too busy, or not ready yet; try again later."""


class NotAllowedError(PulsarException):
    """This subscription does not support the operation."""


class CumulativeAcknowledgementNotAllowedError(NotAllowedError):
    """Cumulative acknowledgement is not allowed on a subscription that spreads its messages over consumers."""


class InvalidAck(PulsarException):
    """An acknowledgement names a position that does not exist in this topic."""


class InvalidSeek(PulsarException):
    """A seek names a position that the topic does not have."""


_BY_CODE: Final[dict[str, type[PulsarException]]] = {
    "InvalidSubscriptionName": InvalidConfiguration,
    "InvalidHashRanges": InvalidConfiguration,
    "NotPersistent": InvalidTopicName,
    "UnsupportedTopicName": InvalidTopicName,
    "InvalidPattern": InvalidConfiguration,
    "InvalidPolicies": InvalidConfiguration,
    "BacklogQuotaHolds": ProducerBlockedQuotaExceededError,
    "BacklogQuotaExceeded": ProducerBlockedQuotaExceededException,
    "EntryCorrupt": InvalidMessage,
    "MessageTooLarge": MessageTooBig,
    "StoreFull": ProducerBlockedQuotaExceededError,
    "StoreFailed": BrokerPersistenceError,
    "StoreUnusable": BrokerPersistenceError,
    "TooBusy": ServiceUnitNotReady,
    "InvalidPartitions": InvalidConfiguration,
    "NamespaceNotFound": TopicNotFound,
    "TenantNotFound": TopicNotFound,
    "TopicExists": NotAllowedError,
    "TopicBusy": NotAllowedError,
    "SubscriptionBusy": NotAllowedError,
    "NamespaceExists": NotAllowedError,
    "NamespaceNotEmpty": NotAllowedError,
    "TenantExists": NotAllowedError,
    "TenantNotEmpty": NotAllowedError,
    "TooManyWatchers": ServiceUnitNotReady,
    "MessageIdUnknown": InvalidAck,
    "MessageNotHereYet": ServiceUnitNotReady,
    "NotPermitted": AuthorizationError,
} | {
    kind.__name__: kind
    for kind in (
        InvalidConfiguration,
        InvalidTopicName,
        TopicNotFound,
        SubscriptionNotFound,
        ClusterFenced,
        ConsumerBusy,
        ProducerBusy,
        ProducerFenced,
        TopicTerminated,
        NotAllowedError,
        InvalidAck,
        InvalidSeek,
        InvalidMessage,
        OperationNotSupported,
        ServiceUnitNotReady,
        Timeout,
    )
}


def from_code(code: str, text: str) -> PulsarException:
    """Return the client's error for a ``code`` that an engine or a worker reported."""
    kind = _BY_CODE.get(code)
    return kind(text) if kind is not None else UnknownError(f"{code}: {text}")


_BY_SERVER_ERROR: Final[dict[int, type[PulsarException]]] = {
    ServerError.MetadataError: BrokerMetadataError,
    ServerError.PersistenceError: BrokerPersistenceError,
    ServerError.AuthenticationError: AuthenticationError,
    ServerError.AuthorizationError: AuthorizationError,
    ServerError.ConsumerBusy: ConsumerBusy,
    ServerError.ServiceNotReady: ServiceUnitNotReady,
    ServerError.ProducerBlockedQuotaExceededError: ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException: ProducerBlockedQuotaExceededException,
    ServerError.ChecksumError: InvalidMessage,
    ServerError.TopicNotFound: TopicNotFound,
    ServerError.SubscriptionNotFound: SubscriptionNotFound,
    ServerError.TooManyRequests: ServiceUnitNotReady,
    ServerError.TopicTerminatedError: TopicTerminated,
    ServerError.ProducerBusy: ProducerBusy,
    ServerError.InvalidTopicName: InvalidTopicName,
    ServerError.IncompatibleSchema: IncompatibleSchema,
    ServerError.ConsumerAssignError: InvalidConfiguration,
    ServerError.NotAllowedError: NotAllowedError,
    ServerError.ProducerFenced: ProducerFenced,
}


def from_server(code: int, text: str, engine_error: str = "") -> PulsarException:
    """Return the client's error for a server's error ``code``, or for ``engine_error`` if the server sent that too."""
    if engine_error:
        return from_code(engine_error, text)
    kind = _BY_SERVER_ERROR.get(code)
    return kind(text) if kind is not None else UnknownError(f"{_server_error_name(code)}: {text}")


def _server_error_name(code: int) -> str:
    return ServerError.Name(ServerError.ValueType(code)) if code in ServerError.values() else str(code)


def from_engine(error: EngineError) -> PulsarException:
    """Return the client's error for an error of the embedded engine."""
    return from_code(error.code, str(error))


_FINAL: Final = (ProducerFenced, TopicTerminated, SubscriptionNotFound, TopicNotFound)
"""Errors after which the client must not connect again: it would take the topic back, or create anew what was
deleted."""


def from_loss(code: str, text: str) -> PulsarException:
    """Return the error for a connection that the cluster ended with ``code``.

    It is a :class:`ConnectError`, after which the owner may connect again, unless the code forbids that.
    """
    error = from_code(code, text)
    if isinstance(error, (ConnectError, *_FINAL)):
        return error
    return ConnectError(f"{code}: {text}" if code else text)  # Pulsar's brokers say none
