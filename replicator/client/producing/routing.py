"""Routing chooses the partition of a topic for a message. Sans-IO; clock and first partition are passed in.

Rules, for every router but a custom one:
1. The hash of a partition key chooses the partition, so that a key's messages are in one partition, in order,
   whichever producer sent them.
2. Without a key: always the same partition, or round robin. With batching, round robin stays with one partition for
   as long as a batch could be open there (its count, its size, its delay), or every batch would hold one message.

Source: the publicly documented routing of Pulsar's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from replicator.client.argument_checks import check_enum, check_range
from replicator.client.errors import InvalidConfiguration, OperationNotSupported
from replicator.client.message import OutgoingMessage
from replicator.client.producing.framing import message_bytes
from replicator.client.settings import PENDING_MESSAGES_MAX, BatchLimits, HashingScheme, PartitionsRoutingMode
from replicator.protocol.key_hashes import java_string_hash, murmur3_32_hash

KeyHash = Callable[[str], int]


class RoutableMessage:
    """Message as a custom ``message_router`` sees it. Methods are named like those of :class:`Message`."""

    __slots__ = ("_message",)

    def __init__(self, message: OutgoingMessage) -> None:
        self._message = message

    def data(self) -> bytes:
        """Return the payload as the schema encoded it; it is empty for a null value."""
        return self._message.content or b""

    def properties(self) -> dict[str, str]:
        return dict(self._message.properties or {})

    def partition_key(self) -> str:
        """Return the key, or "" if it has none."""
        return self._message.partition_key or ""

    def ordering_key(self) -> str:
        """Return the ordering key, or "" if it has none."""
        return self._message.ordering_key or ""

    def event_timestamp(self) -> int:
        """Return the application's event time in milliseconds since the epoch, or 0."""
        return self._message.event_timestamp or 0


CustomRouter = Callable[[RoutableMessage, int], int]


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Settings of a partitioned producer beside those of each partition's producer."""

    mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    message_router: CustomRouter | None = None
    """Router of the application. It overrides ``mode``, like upstream."""
    lazy: bool = False
    max_pending_messages_across_partitions: int = 50_000

    def __post_init__(self) -> None:
        check_enum("message_routing_mode", self.mode, PartitionsRoutingMode)
        check_enum("hashing_scheme", self.hashing_scheme, HashingScheme)
        name = "max_pending_messages_across_partitions"
        check_range(name, self.max_pending_messages_across_partitions, 1, PENDING_MESSAGES_MAX)
        if self.message_router is not None:
            if not callable(self.message_router):
                raise InvalidConfiguration("message_router must be callable: (message, partitions) -> partition")
        elif self.mode is PartitionsRoutingMode.CustomPartition:
            raise InvalidConfiguration("message_routing_mode CustomPartition needs a message_router")
        elif self.hashing_scheme not in _KEY_HASHES:
            raise OperationNotSupported(
                f"hashing_scheme {self.hashing_scheme.name} differs from one build of Pulsar's C++ client to the next; "
                "use Murmur3_32Hash or JavaStringHash in all producers of the topic"
            )


class Router(Protocol):
    """Interface of a router, which chooses a partition of ``0 … partitions - 1``."""

    def partition_of(self, message: OutgoingMessage, partitions: int, now_seconds: float) -> int:
        """Return the partition of one message. ``now_seconds`` is a clock that does not jump."""


class SinglePartitionRouter:
    """Router that sends all messages without a key to one partition."""

    def __init__(self, key_hash: KeyHash, first: int) -> None:
        self._key_hash = key_hash
        self._partition = first

    def partition_of(self, message: OutgoingMessage, partitions: int, now_seconds: float) -> int:
        if message.partition_key is not None:
            return self._key_hash(message.partition_key) % partitions
        return self._partition % partitions


class RoundRobinRouter:
    """Router that sends messages without a key to all partitions in turn, by batches if there are batches."""

    def __init__(self, key_hash: KeyHash, first: int, batching: BatchLimits | None) -> None:
        self._key_hash = key_hash
        self._batching = batching
        self._current = first
        self._messages = 0
        self._bytes = 0
        self._since_seconds: float | None = None

    def partition_of(self, message: OutgoingMessage, partitions: int, now_seconds: float) -> int:
        if message.partition_key is not None:
            return self._key_hash(message.partition_key) % partitions
        limits = self._batching
        if limits is None:
            partition = self._current % partitions
            self._current += 1
            return partition
        size = message_bytes(message)
        if self._since_seconds is None:
            self._since_seconds = now_seconds
        elif (
            self._messages >= limits.messages_max
            or self._bytes + size > limits.payload_bytes_max
            or now_seconds - self._since_seconds >= limits.publish_delay_ms / 1000
        ):
            self._current += 1
            self._messages = self._bytes = 0
            self._since_seconds = now_seconds
        self._messages += 1
        self._bytes += size
        return self._current % partitions


class CustomPartitionRouter:
    """Router that asks the application's ``message_router``. Raises :class:`InvalidConfiguration` for an invalid
    partition."""

    def __init__(self, message_router: CustomRouter) -> None:
        self._message_router = message_router

    def partition_of(self, message: OutgoingMessage, partitions: int, now_seconds: float) -> int:
        partition = self._message_router(RoutableMessage(message), partitions)
        if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < partitions:
            raise InvalidConfiguration(f"message_router returned {partition!r}; partitions are 0 to {partitions - 1}")
        return partition


def make_router(settings: RoutingSettings, batching: BatchLimits | None, first: int) -> Router:
    """Return the router of one producer.

    ``first`` is the partition where messages without a key begin; callers choose it at random, so that producers
    spread.
    """
    if settings.message_router is not None:
        return CustomPartitionRouter(settings.message_router)
    key_hash = _KEY_HASHES[settings.hashing_scheme]
    if settings.mode is PartitionsRoutingMode.UseSinglePartition:
        return SinglePartitionRouter(key_hash, first)
    return RoundRobinRouter(key_hash, first, batching)


_KEY_HASHES: Mapping[HashingScheme, KeyHash] = {
    HashingScheme.JavaStringHash: java_string_hash,
    HashingScheme.Murmur3_32Hash: murmur3_32_hash,
}
