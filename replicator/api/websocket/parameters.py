"""The query parameters of the WebSocket API, as arguments of our own client. Pure.

Names and values are those of Pulsar's WebSocket service. A value that cannot be is refused by its name; a parameter
that nobody knows is passed over, as there. ``token`` is for :mod:`replicator.api.guarding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from replicator.api.websocket.fields import BadField
from replicator.api.websocket.frames import read_message_id
from replicator.client.errors import InvalidConfiguration
from replicator.client.message import MessageId
from replicator.client.producing.encryption import ConsumerCryptoFailureAction
from replicator.client.settings import (
    CompressionType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
)

PENDING_MESSAGES_MAX: Final = 1_000
"""Limit of pending messages of one producer. A larger request is cut: the worker then reads from it more slowly."""
QUEUE_MESSAGES_MAX: Final = 1_000
"""Limit of messages prefetched for one consumer; more are cut, as in Apache Pulsar."""
ACK_TIMEOUT_MS_MIN: Final = 1_000
"""Least acknowledgement timeout, as in Apache Pulsar."""

_ROUTING: Final = {
    "SinglePartition": PartitionsRoutingMode.UseSinglePartition,
    "RoundRobinPartition": PartitionsRoutingMode.RoundRobinDistribution,
}
_COMPRESSION: Final = {each.name.upper(): each for each in CompressionType}
_HASHING: Final = {each.name: each for each in (HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash)}
_TYPES: Final = {each.value: each for each in ConsumerType}
_POSITIONS: Final = {each.value: each for each in InitialPosition}
_CRYPTO: Final = {each.name: each for each in (ConsumerCryptoFailureAction.FAIL, ConsumerCryptoFailureAction.DISCARD)}
"""Crypto failure actions without CONSUME: nobody could decrypt a message that is sent without its encryption
context.
"""

E = TypeVar("E", bound=Enum)


def producer_arguments(query: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments for ``Client.create_producer``, without the topic. Raise :class:`InvalidConfiguration`."""
    for name in ("encryptionKeys", "encryptionKeyValues"):
        if query.get(name):
            raise InvalidConfiguration(
                f"parameter {name}: this worker has no keys to encrypt with; use a client that encrypts by itself"
            )
    arguments: dict[str, Any] = {
        "producer_name": query.get("producerName"),
        "send_timeout_millis": _number(query, "sendTimeoutMillis", 30_000, 0),
        "batching_enabled": _flag(query, "batchingEnabled"),
        "batching_max_messages": _number(query, "batchingMaxMessages", 1_000, 1),
        "batching_max_publish_delay_ms": _number(query, "batchingMaxPublishDelay", 10, 0),
        "max_pending_messages": min(_number(query, "maxPendingMessages", 1_000, 1), PENDING_MESSAGES_MAX),
        "message_routing_mode": _choice(
            query, "messageRoutingMode", _ROUTING, PartitionsRoutingMode.RoundRobinDistribution
        ),
        "compression_type": _choice(query, "compressionType", _COMPRESSION, CompressionType.NONE),
        "hashing_scheme": _choice(query, "hashingScheme", _HASHING, HashingScheme.JavaStringHash),
    }
    if "initialSequenceId" in query:
        arguments["initial_sequence_id"] = _number(query, "initialSequenceId", 0, -1)
    return arguments


def consumer_arguments(query: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments for ``Client.subscribe``, without topic and subscription; raise
    :class:`InvalidConfiguration`.
    """
    mode = query.get("subscriptionMode", "Durable")
    if mode != "Durable":
        raise InvalidConfiguration(
            f"subscriptionMode is {mode:.80}; it must be Durable: use a reader for anything else"
        )
    ack_timeout_ms = _number(query, "ackTimeoutMillis", 0, 0)
    if 0 < ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        raise InvalidConfiguration(f"Ack timeout should be greater than {ACK_TIMEOUT_MS_MIN} ms")
    arguments: dict[str, Any] = {
        "unacked_messages_timeout_ms": ack_timeout_ms,
        "consumer_type": _choice(query, "subscriptionType", _TYPES, ConsumerType.Exclusive),
        "initial_position": _choice(query, "subscriptionInitialPosition", _POSITIONS, InitialPosition.Latest),
        "receiver_queue_size": queue_size(query),
        "consumer_name": query.get("consumerName"),
        "priority_level": _number(query, "priorityLevel", 0, 0),
        "negative_ack_redelivery_delay_ms": _number(query, "negativeAckRedeliveryDelay", 60_000, 0),
        "crypto_failure_action": _crypto_failure_action(query),
    }
    if "maxRedeliverCount" in query or "deadLetterTopic" in query:
        arguments["dead_letter_policy"] = ConsumerDeadLetterPolicy(
            _number(query, "maxRedeliverCount", 16, 1), query.get("deadLetterTopic")
        )
    return arguments


def reader_arguments(query: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments for ``Client.create_reader``, without the topic. Raise :class:`InvalidConfiguration`."""
    return {
        "start_message_id": _start(query.get("messageId", "latest")),
        "receiver_queue_size": queue_size(query),
        "reader_name": query.get("readerName"),
        "crypto_failure_action": _crypto_failure_action(query),
    }


def queue_size(query: Mapping[str, str]) -> int:
    """Return how many messages a consumer or a reader prefetches."""
    return min(_number(query, "receiverQueueSize", QUEUE_MESSAGES_MAX, 0), QUEUE_MESSAGES_MAX)


def is_pull_mode(query: Mapping[str, str]) -> bool:
    """Return whether messages are only sent for permits of the client."""
    return _flag(query, "pullMode")


def _start(text: str) -> MessageId:
    if text in ("earliest", "latest"):
        return MessageId.earliest if text == "earliest" else MessageId.latest
    try:
        return read_message_id(text.replace(" ", "+"))  # a plus that was not escaped
    except BadField as error:
        raise InvalidConfiguration(f"messageId: {error}") from None


def _crypto_failure_action(query: Mapping[str, str]) -> ConsumerCryptoFailureAction:
    return _choice(query, "cryptoFailureAction", _CRYPTO, ConsumerCryptoFailureAction.FAIL)


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"


def _number(query: Mapping[str, str], parameter: str, default: int, low: int) -> int:
    text = query.get(parameter)
    if text is None:
        return default
    try:
        number = int(text) if len(text) <= 20 else None
    except ValueError:
        number = None
    if number is None or not low <= number < 2**63:
        raise InvalidConfiguration(f"{parameter} is {text[:80]!r}; it must be a whole number from {low}")
    return number


def _choice(query: Mapping[str, str], parameter: str, choices: Mapping[str, E], default: E) -> E:
    text = query.get(parameter)
    if text is None:
        return default
    chosen = choices.get(text)
    if chosen is None:
        raise InvalidConfiguration(f"Invalid {parameter} {text[:80]}; it must be one of {', '.join(choices)}")
    return chosen
