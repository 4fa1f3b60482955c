"""Errors that users of the client see.

Names are those of the official Python client's ``pulsar.exceptions`` where it has the case, so that code moves over by
changing an import. This module also owns the mappings from the engine's error codes and from those of the protocol. A
cluster of this project says the engine's code too, which tells more cases apart.
"""

from __future__ import annotations

from typing import Final

from replicator.engine.errors import EngineError
from replicator.protocol.commands_pb2 import ServerError


class PulsarException(Exception):
    """Base of every error of the client."""

    def error(self) -> str:
        """The error's name, which is the same in every transport."""
        return type(self).__name__


class UnknownError(PulsarException):
    """The cluster reported an error that this client does not know; the text starts with its code."""


class InvalidConfiguration(PulsarException):
    """An argument with a value that it cannot have; the text names the argument."""


class InvalidUrl(InvalidConfiguration):
    """A service URL that is neither ``pulsar://host:port`` (or ``pulsar+ssl://``) nor ``embedded:PATH``."""


class OperationNotSupported(PulsarException):
    """Something that the official client has and this one does not (yet). It is refused, never ignored."""


class Timeout(PulsarException):
    """What was waited for did not happen in time. A send that timed out may still have been stored."""


class ConnectError(PulsarException):
    """The cluster cannot be reached, or the connection to it was lost."""


class ClusterFenced(PulsarException):
    """Another cluster serves this one's clients since a failover, or is about to; the text names it and its address.
    ``Client(service_url_provider=…)`` goes there by itself."""


class AuthenticationError(PulsarException):
    """The cluster wants to know who the client is."""


class AuthorizationError(PulsarException):
    """The client may not do that."""


class BrokerMetadataError(PulsarException):
    """The cluster could not do what was asked, for a reason that the text says."""


class IncompatibleSchema(PulsarException):
    """The topic has a schema, and this is not one that goes with it."""


class TopicTerminated(PulsarException):
    """Nothing can be published to the topic any more."""


class AlreadyClosed(PulsarException):
    """The client, producer or consumer was closed."""


class ConsumerBusy(PulsarException):
    """The subscription's type does not admit this consumer beside the ones that it has."""


class InvalidTopicName(PulsarException):
    """A name that is not ``persistent://tenant/namespace/topic`` in the allowed characters and length."""


class TopicNotFound(PulsarException):
    """The topic does not exist in this cluster."""


class SubscriptionNotFound(PulsarException):
    """The subscription does not exist, or was deleted."""


class InvalidMessage(PulsarException):
    """An entry or a frame that cannot be read."""


class ChunkMissing(InvalidMessage):
    """A chunk of a message came, and one before it did not."""


class ChunkDuplicated(InvalidMessage):
    """A chunk that the producer sent again; it is here already."""


class ChunksExpired(InvalidMessage):
    """The chunks of a message did not all come in time."""


class ChunksOverflow(InvalidMessage):
    """More messages in chunks are incomplete than the consumer may hold."""


class CryptoError(PulsarException):
    """A key that cannot be read or used, or that is missing; the text names it."""


class DecryptionFailed(CryptoError, InvalidMessage):
    """An entry that cannot be decrypted: there is no key for it, or it was changed on its way."""


class SchemaError(InvalidMessage):
    """A value that does not fit its topic's schema; the text names the topic and the field."""


class MessageTooBig(PulsarException):
    """A message over the limit of 5 MiB, or of 64 MiB in chunks or before compression."""


class ProducerQueueIsFull(PulsarException):
    """``max_pending_messages`` wait for confirmation already; pass ``block_if_queue_full=True`` to wait instead."""


class ProducerBusy(PulsarException):
    """A producer of that name is connected, or the topic has an exclusive producer."""


class ProducerFenced(PulsarException):
    """Another producer has taken the topic for itself, or is connected to one that was asked for exclusively. It is
    final: connecting again would take the topic back."""


class ProducerBlockedQuotaExceededError(PulsarException):
    """The cluster's store has reached its size limit, or the topic's backlog its quota, and its policy is to wait."""


class ProducerBlockedQuotaExceededException(PulsarException):
    """The topic's backlog is over its quota, and its policy is to refuse what would make it longer."""


class BrokerPersistenceError(PulsarException):
    """The cluster's store failed. It confirms nothing more until its worker is restarted."""


class ServiceUnitNotReady(PulsarException):
    """The cluster is too busy, or not ready yet; try again later."""


class NotAllowedError(PulsarException):
    """An operation that this subscription does not have."""


class CumulativeAcknowledgementNotAllowedError(NotAllowedError):
    """A cumulative acknowledgement on a subscription whose messages are spread over consumers."""


class InvalidAck(PulsarException):
    """An acknowledgement of a position that does not exist in this topic."""


class InvalidSeek(PulsarException):
    """A position to go to that the topic does not have."""


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
    """The client's error for a ``code`` that an engine or a worker reported."""
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
    """The client's error for what a server refused a request with."""
    if engine_error:
        return from_code(engine_error, text)
    kind = _BY_SERVER_ERROR.get(code)
    return kind(text) if kind is not None else UnknownError(f"{_server_error_name(code)}: {text}")


def _server_error_name(code: int) -> str:
    return ServerError.Name(ServerError.ValueType(code)) if code in ServerError.values() else str(code)


def from_engine(error: EngineError) -> PulsarException:
    """The client's error for one that the embedded engine raised."""
    return from_code(error.code, str(error))


_FINAL: Final = (ProducerFenced, TopicTerminated, SubscriptionNotFound, TopicNotFound)
"""Losses that connecting again must not heal: it would take the topic back, or make anew what was just deleted."""


def from_loss(code: str, text: str) -> PulsarException:
    """What a channel reports as its loss, for the ``code`` with which a cluster let go of it.

    :class:`ConnectError`, after which the owner may connect again, unless the code says that it must not.
    """
    error = from_code(code, text)
    if isinstance(error, (ConnectError, *_FINAL)):
        return error
    return ConnectError(f"{code}: {text}" if code else text)  # Pulsar's brokers say none
