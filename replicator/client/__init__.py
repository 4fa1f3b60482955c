"""Producers and consumers, over the embedded engine or over the network.

The public API: ``from replicator.client import Client, ConsumerType, …``.
"""

from replicator.client.client import Client
from replicator.client.consumer import Consumer
from replicator.client.errors import (
    AlreadyClosed,
    BrokerPersistenceError,
    ConnectError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidAck,
    InvalidConfiguration,
    InvalidMessage,
    InvalidSeek,
    InvalidTopicName,
    InvalidUrl,
    MessageTooBig,
    NotAllowedError,
    OperationNotSupported,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    UnknownError,
)
from replicator.client.message import Message, MessageId, OutgoingMessage
from replicator.client.producer import Producer
from replicator.client.settings import CompressionType, ConsumerType, InitialPosition

__all__ = [
    "AlreadyClosed",
    "BrokerPersistenceError",
    "Client",
    "CompressionType",
    "ConnectError",
    "Consumer",
    "ConsumerBusy",
    "ConsumerType",
    "CumulativeAcknowledgementNotAllowedError",
    "InitialPosition",
    "InvalidAck",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidSeek",
    "InvalidTopicName",
    "InvalidUrl",
    "Message",
    "MessageId",
    "MessageTooBig",
    "NotAllowedError",
    "OperationNotSupported",
    "OutgoingMessage",
    "Producer",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerQueueIsFull",
    "PulsarException",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TopicNotFound",
    "UnknownError",
]
