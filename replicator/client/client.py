"""The client: the entry point of the public API, and the owner of producers and consumers.

Method and argument names are those of the official Pulsar Python client's asyncio API, so that code moves over by
changing an import. Extensions: ``reconnect=False``, ``embedded:PATH``, :meth:`Producer.enqueue`,
:meth:`Producer.send_many`, :meth:`Producer.pending`, :meth:`Consumer.receive_many`,
:meth:`Consumer.acknowledge_many`, :meth:`Consumer.flush_acknowledgements`, and ``origin()`` of a message.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from replicator.client.channel import Connector
from replicator.client.consumer import Consumer
from replicator.client.embedded_channel import EmbeddedConnector
from replicator.client.encryption import CryptoKeyReader
from replicator.client.errors import AlreadyClosed, InvalidConfiguration, InvalidUrl
from replicator.client.framing import MESSAGE_BYTES_MAX
from replicator.client.partitioned_producer import PartitionedProducer
from replicator.client.producer import Producer
from replicator.client.producer_making import ProducerMaker, make_encryptor
from replicator.client.routing import CustomRouter, RoutingSettings
from replicator.client.schema import Schema
from replicator.client.settings import (
    BatchingType,
    BatchLimits,
    CompressionType,
    ConsumerSettings,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerSettings,
    check_enum,
    check_range,
    full_topic_name,
    refuse_unsupported,
    subscription_type,
)
from replicator.client.socket_channel import SocketConnector
from replicator.engine.types import AccessMode
from replicator.engine.types import InitialPosition as EngineInitialPosition

EMBEDDED: Final = "embedded:"

_CONSUMER_OFF: Final[Mapping[str, object]] = {
    "schema": None,
    "max_total_receiver_queue_size_across_partitions": 50_000,
    "unacked_messages_timeout_ms": None,
    "broker_consumer_stats_cache_time_ms": 30_000,
    "is_read_compacted": False,
    "crypto_key_reader": None,
    "max_pending_chunked_message": 10,
    "auto_ack_oldest_chunked_message_on_queue_full": False,
    "start_message_id_inclusive": False,
    "batch_receive_policy": None,
    "key_shared_policy": None,
    "batch_index_ack_enabled": True,
    "regex_subscription_mode": None,
    "dead_letter_policy": None,
    "crypto_failure_action": None,
    "is_pattern_topic": False,
}


class Client:
    """A client of one cluster.

    ``service_url`` is ``http(s)://host:port`` of a worker, or ``embedded:PATH`` for an engine in this process,
    whose cluster is named ``cluster``. With ``reconnect=False`` the loss of a connection is not healed: sends fail
    with :class:`ConnectError`, ``receive`` raises it. Must be made, used and closed on one event loop. Raises
    :class:`InvalidUrl`.
    """

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout_seconds: float = 30,
        connection_timeout_ms: int = 10_000,
        reconnect: bool = True,
        cluster: str = "standalone",
    ) -> None:
        check_range("connection_timeout_ms", connection_timeout_ms, 1, 3_600_000)
        if operation_timeout_seconds <= 0:
            raise InvalidConfiguration(f"operation_timeout_seconds is {operation_timeout_seconds}; it must be positive")
        self._operation_timeout_seconds = operation_timeout_seconds
        self._reconnect = reconnect
        self._connector = _connector(service_url, cluster, connection_timeout_ms / 1000, operation_timeout_seconds)
        self._producer_maker = ProducerMaker(self._connector, reconnect, operation_timeout_seconds)
        self._producers: set[Producer | PartitionedProducer] = set()
        self._consumers: set[Consumer] = set()
        self._closed = False

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30_000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50_000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: CustomRouter | None = None,
        *,
        encryption_keys: Sequence[str] = (),
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        chunk_max_message_size: int = MESSAGE_BYTES_MAX,
        stats_interval_in_seconds: int = 0,
    ) -> Producer | PartitionedProducer:
        """A producer on ``topic``, which is made if it does not exist; one for all partitions if it has any.

        Without a ``producer_name`` the cluster chooses one. Without an ``initial_sequence_id`` numbering goes on
        after the highest that a topic with deduplication has of this name. Beyond the official client:
        ``encryption_keys`` (several names), ``hashing_scheme``, ``chunk_max_message_size`` (bytes of an entry from
        which on a message is cut into chunks), ``stats_interval_in_seconds`` (a log line with the statistics; 0: none).
        With ``WaitForExclusive`` it returns when no other producer is connected any more.

        Raises :class:`InvalidTopicName`, :class:`InvalidConfiguration`, :class:`ConnectError`,
        :class:`ProducerBusy`, :class:`ProducerFenced`, :class:`CryptoError`, :class:`OperationNotSupported`.
        """
        self._check_open()
        check_enum("access_mode", access_mode, ProducerAccessMode)
        if schema is not None and not (hasattr(schema, "encode") and hasattr(schema, "decode")):
            raise InvalidConfiguration(f"schema is {schema!r:.80}; it must be an instance of a schema")
        batching = BatchLimits(batching_max_messages, batching_max_allowed_size_in_bytes, batching_max_publish_delay_ms)
        settings = ProducerSettings(
            topic=full_topic_name(topic),
            producer_name=producer_name,
            initial_sequence_id=-1 if initial_sequence_id is None else initial_sequence_id,
            send_timeout_ms=send_timeout_millis,
            max_pending_messages=max_pending_messages,
            block_if_queue_full=block_if_queue_full,
            batching=batching if batching_enabled else None,
            properties=dict(properties or {}),
            access_mode=AccessMode(access_mode.value),
            batching_type=batching_type,
            compression=compression_type,
            chunk_message_bytes=chunk_max_message_size if chunking_enabled else None,
            stats_interval_seconds=stats_interval_in_seconds,
        )
        routing = RoutingSettings(
            message_routing_mode,
            hashing_scheme,
            message_router,
            lazy_start_partitioned_producers,
            max_pending_messages_across_partitions,
        )
        encryptor = make_encryptor(encryption_key, encryption_keys, crypto_key_reader)
        producer = await self._producer_maker.make(settings, routing, schema, encryptor, self._producers.discard)
        self._producers.add(producer)
        return producer

    async def subscribe(
        self,
        topic: str,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        *,
        receiver_queue_size: int = 1000,
        consumer_name: str | None = None,
        negative_ack_redelivery_delay_ms: int = 60_000,
        properties: Mapping[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        replicate_subscription_state_enabled: bool = False,
        acknowledgement_group_time_ms: int = 100,
        acknowledgement_group_size_max: int = 1000,
        ack_receipt_enabled: bool = False,
        **unsupported: Any,
    ) -> Consumer:
        """A consumer of a subscription, which is made at ``initial_position`` if it does not exist.

        With ``ack_receipt_enabled`` an acknowledgement returns when it is durable. Raises :class:`ConsumerBusy`,
        and what :meth:`create_producer` raises.
        """
        self._check_open()
        refuse_unsupported("subscribe", unsupported, _CONSUMER_OFF)
        if not isinstance(consumer_type, ConsumerType) or not isinstance(initial_position, InitialPosition):
            raise InvalidConfiguration("consumer_type and initial_position must be members of their enums")
        settings = ConsumerSettings(
            topic=full_topic_name(topic),
            subscription=subscription_name,
            consumer_name=_unique_name() if consumer_name is None else consumer_name,
            consumer_type=subscription_type(consumer_type),
            initial_position=EngineInitialPosition(initial_position.value),
            replicated=replicate_subscription_state_enabled,
            receiver_queue_size=receiver_queue_size,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            acknowledgement_group_time_ms=acknowledgement_group_time_ms,
            acknowledgement_group_size_max=acknowledgement_group_size_max,
            ack_receipt_enabled=ack_receipt_enabled,
            properties=dict(properties or {}),
        )
        consumer = Consumer(
            settings,
            lambda: self._connector.open_consumer(settings),
            reconnect=self._reconnect,
            operation_timeout_seconds=self._operation_timeout_seconds,
            on_close=self._consumers.discard,
        )
        await consumer.connect()
        self._consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close every producer and consumer, and let go of the cluster. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.gather(
                *(producer.close() for producer in self._producers),
                *(consumer.close() for consumer in self._consumers),
            )
        finally:
            await self._connector.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the client is closed")


def _connector(
    service_url: str, cluster: str, connection_timeout_seconds: float, operation_timeout_seconds: float
) -> Connector:
    if service_url.startswith(EMBEDDED):
        path = service_url.removeprefix(EMBEDDED)
        if not path:
            raise InvalidUrl(f"{service_url!r}: the path of the data directory is missing")
        return EmbeddedConnector(Path(path), cluster)
    if "," in service_url:
        raise InvalidUrl(f"{service_url!r}: give one address; a list of addresses is not a failover")
    try:
        parts = urlsplit(service_url)
        port = parts.port
    except ValueError as error:
        raise InvalidUrl(f"{service_url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidUrl(f"{service_url!r}: expected http://host:port, https://host:port or embedded:PATH")
    return SocketConnector(
        service_url,
        connection_timeout_seconds=connection_timeout_seconds,
        operation_timeout_seconds=operation_timeout_seconds,
    )


def _unique_name() -> str:
    """A name that no other producer or consumer has, in any cluster."""
    return uuid.uuid4().hex[:16]
