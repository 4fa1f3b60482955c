"""What a user asks for: the enums of the public API, the settings of a producer and of a consumer, and their checks.

Arguments of the official client that are not built yet are accepted only with the value that means "off"; anything
else is refused by name, because an ignored setting is a lost message later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from replicator.client.errors import InvalidConfiguration, InvalidTopicName, OperationNotSupported, from_engine
from replicator.engine.entry import BATCH_MESSAGES_MAX
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.engine.types import InitialPosition as EngineInitialPosition
from replicator.engine.types import AccessMode, KeySharedPolicy, ProducerOptions, SubscribeOptions, SubscriptionType
from snapshots.position import Position

PENDING_MESSAGES_MAX: Final = 1_000_000
RECEIVER_QUEUE_SIZE_MAX: Final = 100_000
"""Prefetched messages of one consumer; a server refuses more permits than this (invariant 11)."""
PROPERTIES_MAX: Final = 1_000


class ConsumerType(Enum):
    """How a subscription shares its topic among consumers."""

    Exclusive = "Exclusive"
    Shared = "Shared"
    Failover = "Failover"
    KeyShared = "Key_Shared"


class InitialPosition(Enum):
    """Where a subscription starts that is made by this consumer."""

    Latest = "Latest"
    Earliest = "Earliest"


class CompressionType(Enum):
    """How a producer compresses the payload of its entries."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLib = "ZLib"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When an open batch is sent: at the first of these that is reached."""

    messages_max: int = 1000
    payload_bytes_max: int = 128 * 1024
    publish_delay_ms: int = 10

    def __post_init__(self) -> None:
        check_range("batching_max_messages", self.messages_max, 1, BATCH_MESSAGES_MAX)
        check_range("batching_max_allowed_size_in_bytes", self.payload_bytes_max, 1, 5 * 1024 * 1024)
        check_range("batching_max_publish_delay_ms", self.publish_delay_ms, 0, 3_600_000)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """One producer as its user wants it; ``batching`` is None when every message is an entry of its own."""

    topic: str
    producer_name: str
    initial_sequence_id: int = -1
    send_timeout_ms: int = 30_000
    max_pending_messages: int = 1000
    block_if_queue_full: bool = False
    batching: BatchLimits | None = field(default_factory=BatchLimits)
    properties: Mapping[str, str] = field(default_factory=dict)
    access_mode: AccessMode = AccessMode.SHARED

    def options(self, topic_epoch: int | None = None) -> ProducerOptions:
        """What the cluster is told; ``topic_epoch`` is what it gave an exclusive producer before."""
        return ProducerOptions(self.producer_name, self.access_mode, topic_epoch, self.properties)

    def __post_init__(self) -> None:
        check_name("producer_name", self.producer_name)
        check_range("initial_sequence_id", self.initial_sequence_id, -1, 2**63 - 1)
        check_range("send_timeout_millis", self.send_timeout_ms, 0, 2**31)
        check_range("max_pending_messages", self.max_pending_messages, 1, PENDING_MESSAGES_MAX)
        check_properties(self.properties)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """One consumer as its user wants it."""

    topic: str
    subscription: str
    consumer_name: str
    consumer_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    initial_position: EngineInitialPosition = EngineInitialPosition.LATEST
    replicated: bool = False
    receiver_queue_size: int = 1000
    negative_ack_redelivery_delay_ms: int = 60_000
    acknowledgement_group_time_ms: int = 100
    acknowledgement_group_size_max: int = 1000
    ack_receipt_enabled: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    key_shared: KeySharedPolicy = KeySharedPolicy()
    start: Position | None = None
    durable: bool = True
    read_compacted: bool = False
    subscription_properties: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> SubscribeOptions:
        """What the cluster is told."""
        return SubscribeOptions(
            type=self.consumer_type,
            consumer_name=self.consumer_name,
            priority=self.priority,
            key_shared=self.key_shared,
            consumer_properties=self.properties,
            initial=self.initial_position,
            start=self.start,
            durable=self.durable,
            replicated=self.replicated,
            read_compacted=self.read_compacted,
            subscription_properties=self.subscription_properties,
        )

    def __post_init__(self) -> None:
        check_name("consumer_name", self.consumer_name)
        try:
            check_subscription_name(self.subscription)
        except EngineError as error:
            raise from_engine(error) from None
        check_range("receiver_queue_size", self.receiver_queue_size, 1, RECEIVER_QUEUE_SIZE_MAX)
        check_range("negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0, 2**31)
        check_range("acknowledgement_group_time_ms", self.acknowledgement_group_time_ms, 0, 3_600_000)
        check_range("acknowledgement_group_size_max", self.acknowledgement_group_size_max, 1, 1_000_000)
        check_properties(self.properties)


def subscription_type(consumer_type: ConsumerType) -> SubscriptionType:
    """The engine's type; raises :class:`OperationNotSupported` for those that it does not have."""
    try:
        return SubscriptionType(consumer_type.value)
    except ValueError:
        raise OperationNotSupported(f"consumer_type {consumer_type.name} is not supported yet") from None


def full_topic_name(topic: object) -> str:
    """The canonical name; raises :class:`InvalidTopicName`, and :class:`OperationNotSupported` for lists."""
    if isinstance(topic, list):
        raise OperationNotSupported("subscribing to a list of topics is not supported yet")
    if not isinstance(topic, str):
        raise InvalidTopicName(f"topic {topic!r} is not a str")
    try:
        return str(parse_topic(topic))
    except EngineError as error:
        raise from_engine(error) from None


def refuse_unsupported(method: str, given: Mapping[str, object], off: Mapping[str, object]) -> None:
    """Refuse the arguments of ``given`` unless they have the value of ``off``; unknown names are a TypeError."""
    for name, value in given.items():
        if name not in off:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        allowed = off[name]
        if value is not None and not (type(value) is type(allowed) and value == allowed):
            raise OperationNotSupported(f"{method}: {name}={value!r} is not supported yet; leave it out")


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is an int within ``low..high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidConfiguration(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def check_name(what: str, name: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``name`` is a short, non-empty text."""
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise InvalidConfiguration(f"{what} is {name!r:.80}; it must be text of 1 to 200 characters")


def check_properties(properties: object) -> None:
    """Raise :class:`InvalidConfiguration` unless every property is text to text."""
    if not isinstance(properties, Mapping) or len(properties) > PROPERTIES_MAX:
        raise InvalidConfiguration(f"properties must be a dict of at most {PROPERTIES_MAX} strings")
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidConfiguration(f"property {key!r}: {value!r} must be text to text")
