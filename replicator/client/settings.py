"""Enums of the public API, and settings of a producer and of a consumer.

Settings check themselves when they are made, so existing settings are valid. Checks of single arguments are in
:mod:`replicator.client.argument_checks`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from replicator.client.argument_checks import (
    check_enum,
    check_flag,
    check_name,
    check_properties,
    check_range,
    check_subscription,
    full_topic_name,
)
from replicator.client.consuming.negative_acks import RedeliveryBackoff
from replicator.client.errors import InvalidConfiguration
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, MESSAGE_BYTES_LIMIT
from replicator.engine.schemas.schema import TopicSchema
from replicator.engine.types import (
    AccessMode,
    HashRange,
    KeySharedPolicy,
    ProducerOptions,
    SubscribeOptions,
    SubscriptionType,
)
from replicator.engine.types import InitialPosition as EngineInitialPosition
from snapshots.position import Position

PENDING_MESSAGES_MAX: Final = 1_000_000
RECEIVER_QUEUE_SIZE_MAX: Final = 100_000
"""Limit of prefetched messages of one consumer; a server refuses more permits than this (invariant 11)."""
ACK_TIMEOUT_TICK_MS: Final = 1_000
"""Default tick of the acknowledgement timeout, equal to upstream's. Finer ticks would only wake up an idle process."""
HASH_SLOTS: Final = 65_536


class ConsumerType(Enum):
    """Way in which a subscription shares its topic among consumers."""

    Exclusive = "Exclusive"
    Shared = "Shared"
    Failover = "Failover"
    KeyShared = "Key_Shared"


class KeySharedMode(Enum):
    """Side that assigns keys to the consumers of a Key_Shared subscription."""

    AutoSplit = "AutoSplit"
    """The subscription assigns keys."""
    Sticky = "Sticky"
    """The consumer chooses its keys, by its ranges."""


class InitialPosition(Enum):
    """Place in the topic where a subscription starts if this consumer creates it."""

    Latest = "Latest"
    Earliest = "Earliest"


class RegexSubscriptionMode(Enum):
    """Kinds of topics that a pattern matches. All topics are persistent here, so the two allowed kinds are equal."""

    PersistentOnly = "PersistentOnly"
    NonPersistentOnly = "NonPersistentOnly"
    """Refused, because there are no such topics."""
    AllTopics = "AllTopics"


class CompressionType(Enum):
    """Compression of the payload of a producer's entries."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLib = "ZLib"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


class BatchingType(Enum):
    """Order in which a producer puts messages into batches."""

    Default = "Default"
    """In the order of sending."""
    KeyBased = "KeyBased"
    """By key, so that Key_Shared can send each batch to the consumer of its key."""


class PartitionsRoutingMode(Enum):
    """Choice of the partition for a message without a key. The hash of a key chooses the partition of one with a
    key."""

    UseSinglePartition = "UseSinglePartition"
    RoundRobinDistribution = "RoundRobinDistribution"
    CustomPartition = "CustomPartition"
    """The ``message_router`` chooses, for messages with a key too."""


class HashingScheme(Enum):
    """Hash of a key, which chooses its partition. All producers of a topic must use the same, in all languages."""

    JavaStringHash = "JavaStringHash"
    """Default of Pulsar's Java client."""
    Murmur3_32Hash = "Murmur3_32Hash"
    BoostHash = "BoostHash"
    """Default of Pulsar's C++ and Python clients. Its values depend on their build, so it is refused."""


class ProducerAccessMode(Enum):
    """Way in which a producer shares its topic with other producers."""

    Shared = "Shared"
    Exclusive = "Exclusive"
    """Allow no other producer on the topic.

    It is refused with :class:`ProducerFenced` while another producer is connected, whatever that one's mode, and with
    :class:`ProducerBusy` if that one has its name. While it is connected, Shared producers are refused with
    :class:`ProducerBusy`, like upstream."""
    WaitForExclusive = "WaitForExclusive"
    """Wait in ``create_producer`` until no other producer is connected."""
    ExclusiveWithFencing = "ExclusiveWithFencing"
    """Disconnect the other producers, with :class:`ProducerFenced`."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of an open batch. The first one reached sends the batch."""

    messages_max: int = 1000
    payload_bytes_max: int = 128 * 1024
    publish_delay_ms: int = 10

    def __post_init__(self) -> None:
        check_range("batching_max_messages", self.messages_max, 1, BATCH_MESSAGES_MAX)
        check_range("batching_max_allowed_size_in_bytes", self.payload_bytes_max, 1, 5 * 1024 * 1024)
        check_range("batching_max_publish_delay_ms", self.publish_delay_ms, 0, 3_600_000)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of one producer; ``batching`` is None if every message is an entry of its own.

    Without a name the cluster chooses one. With an ``initial_sequence_id`` of -1, numbering continues after the highest
    sequence id that the topic has for this name. ``chunk_message_bytes`` is the largest entry of a message that may be
    cut into chunks, None if no message may. ``stats_interval_seconds`` of 0 logs no statistics. The cluster registers
    ``schema``, or compares it with the one it has; None sends bytes. A topic that has no ``initial_subscription`` gets
    it, at its first message, before the producer sends.
    """

    topic: str
    producer_name: str | None
    initial_sequence_id: int = -1
    send_timeout_ms: int = 30_000
    max_pending_messages: int = 1000
    block_if_queue_full: bool = False
    batching: BatchLimits | None = field(default_factory=BatchLimits)
    properties: Mapping[str, str] = field(default_factory=dict)
    access_mode: AccessMode = AccessMode.SHARED
    batching_type: BatchingType = BatchingType.Default
    compression: CompressionType = CompressionType.NONE
    chunk_message_bytes: int | None = None
    stats_interval_seconds: int = 0
    schema: TopicSchema | None = None
    initial_subscription: str | None = None

    def options(self, topic_epoch: int | None = None) -> ProducerOptions:
        """Return the options that the cluster gets. ``topic_epoch`` is the number it gave an exclusive producer
        before."""
        return ProducerOptions(self.producer_name, self.access_mode, topic_epoch, self.properties)

    def __post_init__(self) -> None:
        if self.producer_name is not None:
            check_name("producer_name", self.producer_name)
        check_range("initial_sequence_id", self.initial_sequence_id, -1, 2**63 - 1)
        check_flag("block_if_queue_full", self.block_if_queue_full)
        check_enum("batching_type", self.batching_type, BatchingType)
        check_enum("compression_type", self.compression, CompressionType)
        if self.chunk_message_bytes is not None:
            if self.batching is not None:
                raise InvalidConfiguration("chunking_enabled needs batching_enabled=False")
            check_range("chunk_max_message_size", self.chunk_message_bytes, 1, MESSAGE_BYTES_LIMIT)
        check_range("stats_interval_in_seconds", self.stats_interval_seconds, 0, 86_400)
        check_range("send_timeout_millis", self.send_timeout_ms, 0, 2**31)
        check_range("max_pending_messages", self.max_pending_messages, 1, PENDING_MESSAGES_MAX)
        check_properties(self.properties)


@dataclass(frozen=True, slots=True)
class ConsumerKeySharedPolicy:
    """Keys that a Key_Shared consumer asks for, and whether their order may be given up for speed.

    ``sticky_ranges`` are pairs of the first and the last of 65,536 hash slots, for ``KeySharedMode.Sticky`` only.
    Raises :class:`InvalidConfiguration`.
    """

    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    sticky_ranges: Sequence[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key_shared_mode, KeySharedMode):
            raise InvalidConfiguration(f"key_shared_mode is {self.key_shared_mode!r}; it must be a KeySharedMode")
        check_flag("allow_out_of_order_delivery", self.allow_out_of_order_delivery)
        sticky = self.key_shared_mode is KeySharedMode.Sticky
        if sticky != bool(self.sticky_ranges):
            raise InvalidConfiguration("sticky_ranges belong to KeySharedMode.Sticky, which needs at least one")
        last_taken = -1
        for start, end in sorted(self.sticky_ranges or ()):
            check_range("the start of a sticky range", start, 0, HASH_SLOTS - 1)
            check_range("the end of a sticky range", end, start, HASH_SLOTS - 1)
            if start <= last_taken:
                raise InvalidConfiguration(
                    f"sticky range {start}..{end} overlaps the one that ends at {last_taken}; give ranges that do not "
                    "overlap"
                )
            last_taken = end

    def engine_policy(self) -> KeySharedPolicy:
        """Return the key-shared policy in the engine's type, to be sent to the cluster."""
        ranges = tuple(HashRange(start, end) for start, end in self.sticky_ranges) if self.sticky_ranges else None
        return KeySharedPolicy(ranges, self.allow_out_of_order_delivery)


@dataclass(frozen=True, slots=True)
class ConsumerBatchReceivePolicy:
    """Limits of a batch receive. It returns when the first one is reached; a value of 0 or below is no limit.

    Raises :class:`InvalidConfiguration` if there is no limit at all.
    """

    max_num_message: int = -1
    max_num_bytes: int = 10 * 1024 * 1024
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        for name in ("max_num_message", "max_num_bytes", "timeout_ms"):
            check_range(name, getattr(self, name), -1, 2**31)
        if self.max_num_message <= 0 and self.max_num_bytes <= 0 and self.timeout_ms <= 0:
            raise InvalidConfiguration("a batch receive needs at least one of messages, bytes and timeout as its limit")


@dataclass(frozen=True, slots=True)
class ConsumerDeadLetterPolicy:
    """Number of redeliveries after which a message is given up, and the topic it then goes to.

    The topics have defaults: ``TOPIC-SUBSCRIPTION-DLQ`` and ``TOPIC-SUBSCRIPTION-RETRY``. With
    ``initial_subscription_name`` the dead letter topic gets that subscription before its first message, so that
    retention keeps it. Raises :class:`InvalidConfiguration`, :class:`InvalidTopicName`.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    initial_subscription_name: str | None = None
    retry_letter_topic: str | None = None

    def __post_init__(self) -> None:
        check_range("max_redeliver_count", self.max_redeliver_count, 1, 2**31)
        for topic in (self.dead_letter_topic, self.retry_letter_topic):
            if topic is not None:
                full_topic_name(topic)
        if self.initial_subscription_name is not None:
            check_subscription(self.initial_subscription_name)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of one consumer."""

    topic: str
    subscription: str
    consumer_name: str
    consumer_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    initial_position: EngineInitialPosition = EngineInitialPosition.LATEST
    replicated: bool | None = None
    receiver_queue_size: int = 1000
    negative_ack_redelivery_delay_ms: int = 60_000
    acknowledgement_group_time_ms: int = 100
    acknowledgement_group_size_max: int = 1000
    ack_receipt_enabled: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    key_shared: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    start: Position | None = None
    durable: bool = True
    read_compacted: bool = False
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    start_message_id_inclusive: bool = False
    """Whether a seek to a message id delivers that message too."""
    batch_index_ack_enabled: bool = True
    unacked_messages_timeout_ms: int = 0
    """Time after which an unacknowledged message is delivered again. 0: never."""
    tick_duration_ms: int = 0
    """Longest delay of an acknowledgement timeout. 0: a second, or the timeout if that is shorter."""
    negative_ack_backoff: RedeliveryBackoff | None = None
    """Back-off that replaces the fixed ``negative_ack_redelivery_delay_ms``."""
    ack_timeout_backoff: RedeliveryBackoff | None = None
    """Back-off that replaces the fixed ``unacked_messages_timeout_ms``."""
    batch_receive_policy: ConsumerBatchReceivePolicy = field(default_factory=ConsumerBatchReceivePolicy)
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    retry_enabled: bool = False
    max_pending_chunked_message: int = 10
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    create_topic: bool = True
    """Whether a missing topic is created. A pattern's topics are not, so that a deleted one does not come back."""

    def options(self) -> SubscribeOptions:
        """Return the options that the cluster gets."""
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

    def ack_timeout_tick_ms(self) -> int:
        """Return the tick of the tracker of unacknowledged messages, in milliseconds."""
        return self.tick_duration_ms or min(ACK_TIMEOUT_TICK_MS, self.unacked_messages_timeout_ms)

    def __post_init__(self) -> None:
        check_name("consumer_name", self.consumer_name)
        check_subscription(self.subscription)
        check_range("receiver_queue_size", self.receiver_queue_size, 0, RECEIVER_QUEUE_SIZE_MAX)
        check_range("negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0, 2**31)
        check_range("acknowledgement_group_time_ms", self.acknowledgement_group_time_ms, 0, 3_600_000)
        check_range("acknowledgement_group_size_max", self.acknowledgement_group_size_max, 1, 1_000_000)
        check_properties(self.properties)
        check_properties(self.subscription_properties)
        check_range("priority_level", self.priority, 0, 2**31 - 1)
        check_range("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, 0, 2**31)
        check_range("tick_duration_in_ms", self.tick_duration_ms, 0, self.unacked_messages_timeout_ms)
        check_range("max_pending_chunked_message", self.max_pending_chunked_message, 0, 1_000_000)
        check_range(
            "expire_time_of_incomplete_chunked_message_ms", self.expire_time_of_incomplete_chunked_message_ms, 0, 2**31
        )
        for name in ("ack_receipt_enabled", "batch_index_ack_enabled", "start_message_id_inclusive"):
            check_flag(name, getattr(self, name))
        check_flag("is_read_compacted", self.read_compacted)
        if self.replicated is not None:
            check_flag("replicate_subscription_state_enabled", self.replicated)
        check_flag("enable_retry", self.retry_enabled)
        check_flag("auto_ack_oldest_chunked_message_on_queue_full", self.auto_ack_oldest_chunked_message_on_queue_full)
        for argument in ("negative_ack_backoff", "ack_timeout_backoff"):
            backoff = getattr(self, argument)
            if backoff is not None and not (hasattr(backoff, "min_delay_ms") and hasattr(backoff, "next_delay_ms")):
                raise InvalidConfiguration(
                    f"{argument} is {backoff!r:.80}; it must be a FixedRedeliveryBackoff, a "
                    "MultiplierRedeliveryBackoff, or an object with their methods"
                )
        self._check_type()

    def _check_type(self) -> None:
        """Raise :class:`InvalidConfiguration` for settings that a subscription of this type does not have."""
        if self.key_shared != KeySharedPolicy() and self.consumer_type is not SubscriptionType.KEY_SHARED:
            raise InvalidConfiguration("key_shared_policy is for consumers of type KeyShared")
        if self.read_compacted and not self.consumer_type.one_active:
            raise InvalidConfiguration("is_read_compacted is for consumers of type Exclusive and Failover")
        if (self.dead_letter_policy is not None or self.retry_enabled) and self.consumer_type.one_active:
            raise InvalidConfiguration(
                "dead letters and retries are for consumers of type Shared and KeyShared: the others cannot have "
                "single messages again"
            )


def subscription_type(consumer_type: ConsumerType) -> SubscriptionType:
    """Return the engine's subscription type for ``consumer_type``."""
    return SubscriptionType(consumer_type.value)


def unique_name() -> str:
    """Return a name that no other producer or consumer has, in any cluster."""
    return uuid.uuid4().hex[:16]
