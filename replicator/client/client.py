"""The client: entry point of the public API, and owner of producers and consumers.

It checks the arguments, makes settings of them, and lets the makers of producers and consumers do the rest. Most of the
file is the signatures and descriptions of three methods of the official client.

Method and argument names are those of the official Pulsar Python client's asyncio API, so that code moves over by
changing an import. Extensions: ``reconnect=False``, ``embedded:PATH``, :meth:`Producer.enqueue`,
:meth:`Producer.send_many`, :meth:`Producer.pending`, :meth:`Consumer.receive_many`, :meth:`Consumer.acknowledge_many`,
:meth:`Consumer.flush_acknowledgements`, ``stats()``, and ``origin()`` of a message. From the Java client come
listeners, readers, :meth:`Consumer.reconsume_later`, batch receive, and back-offs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicator.client.argument_checks import (
    CLIENT_OFF,
    CONSUMER_OFF,
    READER_OFF,
    check_callable,
    check_enum,
    check_flag,
    check_instance,
    check_methods,
    check_properties,
    check_range,
    check_schema,
    check_seconds,
    full_topic_name,
    refuse_unsupported,
    topic_pattern,
)
from replicator.client.authentication import Authentication, ConnectionSecurity
from replicator.client.closing import ClosedAtExit
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.consumer_making import (
    ConsumerExtras,
    ConsumerMaker,
    Listeners,
    opening_of,
    partitions_of,
)
from replicator.client.consuming.listening import MessageListener
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.consuming.negative_acks import RedeliveryBackoff
from replicator.client.consuming.reader import Reader
from replicator.client.consuming.receiving import ConsumerEventListener, Receiver
from replicator.client.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    InvalidUrl,
    OperationNotSupported,
)
from replicator.client.message import MessageId, Unpack
from replicator.client.producing.encryption import ConsumerCryptoFailureAction, CryptoKeyReader
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.client.producing.producer_making import ProducerMaker, context_adder, make_encryptor
from replicator.client.producing.routing import CustomRouter, RoutingSettings
from replicator.client.schema import Schema
from replicator.client.service_url import connector_of, following_connector
from replicator.client.settings import (
    BatchingType,
    BatchLimits,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerSettings,
    RegexSubscriptionMode,
    subscription_type,
    unique_name,
)
from replicator.client.wire.channel import Connector
from replicator.client.wire.embedded_channel import EmbeddedConnector
from replicator.engine.engine import Engine
from replicator.engine.log.entry import MESSAGE_BYTES_MAX
from replicator.engine.types import AccessMode, KeySharedPolicy
from replicator.engine.types import InitialPosition as EngineInitialPosition


class Client(ClosedAtExit):
    """Client of one cluster. It must be made, used and closed on one event loop.

    ``service_url`` is the cluster's ``pulsar://host:port`` (or ``pulsar+ssl://``), or ``embedded:PATH`` for an engine
    in this process, whose cluster is named ``cluster``. ``pulsar://host:port,host:port`` names several brokers of one
    cluster of Apache Pulsar; the client asks any that answers. With ``reconnect=False`` a lost connection is not opened
    again: sends fail with :class:`ConnectError`, and ``receive`` raises it.

    ``service_url_provider`` is the address of a worker's service,
    ``http://host:port/failover/v1/service-url?cluster=HOME``, or a list of such addresses, best of every worker. Every
    ``service_url_check_interval_seconds`` the client asks there to which cluster the clients of HOME belong, and moves
    when that changes. While no provider answers, it uses ``service_url``.

    ``authentication`` holds the client's credentials (:mod:`replicator.client.authentication`). Through TLS the
    server's certificate is checked, and its name too, unless ``tls_validate_hostname=False``.

    With ``propagate_trace_context``, a message that is sent within a span of OpenTelemetry gets the span's
    ``traceparent`` as a property, unless it has one (docs/traces.md). That needs the extra ``traces``.

    With ``engine`` the client uses an engine that this process has open, without a connection. Closing the client
    leaves that engine open.

    Raises :class:`InvalidUrl`, and :class:`OperationNotSupported` for other arguments of the official client, by name.
    """

    def __init__(
        self,
        service_url: str | None = None,
        *,
        service_url_provider: str | Sequence[str] | None = None,
        service_url_check_interval_seconds: float = 2.0,
        operation_timeout_seconds: float = 30,
        connection_timeout_ms: int = 10_000,
        reconnect: bool = True,
        cluster: str = "standalone",
        engine: Engine | None = None,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        propagate_trace_context: bool = False,
        **unsupported: Any,
    ) -> None:
        refuse_unsupported("Client", unsupported, CLIENT_OFF)
        check_range("connection_timeout_ms", connection_timeout_ms, 1, 3_600_000)
        check_flag("reconnect", reconnect)
        check_flag("propagate_trace_context", propagate_trace_context)
        if not isinstance(operation_timeout_seconds, int | float) or operation_timeout_seconds <= 0:
            raise InvalidConfiguration(
                f"operation_timeout_seconds is {operation_timeout_seconds!r:.80}; it must be a positive number"
            )
        check_instance("authentication", authentication, Authentication)
        showing = ConnectionSecurity(
            authentication or Authentication(),
            tls_trust_certs_file_path,
            tls_validate_hostname,
            tls_allow_insecure_connection,
        )
        self._operation_timeout_seconds = operation_timeout_seconds
        self._reconnect = reconnect
        self._connector: Connector
        if engine is not None:
            self._connector = EmbeddedConnector(Path(), engine.cluster, engine)
        elif service_url_provider is None:
            if service_url is None:
                raise InvalidUrl(
                    "the client needs an address to connect to: give a service_url, or a service_url_provider"
                )
            self._connector = connector_of(
                service_url, cluster, connection_timeout_ms / 1000, operation_timeout_seconds, showing
            )
        else:
            check_seconds("service_url_check_interval_seconds", service_url_check_interval_seconds, 0.05, 3_600)
            self._connector = following_connector(
                service_url_provider,
                service_url,
                service_url_check_interval_seconds,
                connection_timeout_ms / 1000,
                operation_timeout_seconds,
                showing,
            )
        self._producer_maker = ProducerMaker(
            self._connector,
            reconnect,
            operation_timeout_seconds,
            context_adder() if propagate_trace_context else None,
        )
        self._producers: set[Producer | PartitionedProducer] = set()
        self._consumer_maker = ConsumerMaker(
            self._connector,
            reconnect,
            operation_timeout_seconds,
            self._letter_producer,
        )
        self._consumers: set[Receiver | Reader] = set()
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
        """Create a producer on ``topic``. A missing topic is created; for a partitioned one, the producer has all
        partitions.

        Without a ``producer_name`` the cluster chooses one. Without an ``initial_sequence_id`` numbering continues
        after the highest sequence id that a topic with deduplication has for this name. Arguments beyond the official
        client: ``encryption_keys`` (several names), ``hashing_scheme``, ``chunk_max_message_size`` (bytes of an entry
        above which a message is cut into chunks), ``stats_interval_in_seconds`` (a log line with the statistics; 0:
        none). With ``WaitForExclusive`` the call returns when no other producer is connected.

        Raises :class:`InvalidTopicName`, :class:`InvalidConfiguration`, :class:`ConnectError`, :class:`ProducerBusy`,
        :class:`ProducerFenced`, :class:`CryptoError`, :class:`OperationNotSupported`.
        """
        self._check_open()
        check_enum("access_mode", access_mode, ProducerAccessMode)
        check_flag("batching_enabled", batching_enabled)
        check_flag("chunking_enabled", chunking_enabled)
        check_flag("lazy_start_partitioned_producers", lazy_start_partitioned_producers)
        check_instance("crypto_key_reader", crypto_key_reader, CryptoKeyReader)
        check_properties(properties or {})
        check_schema(schema)
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
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50_000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        *,
        negative_ack_redelivery_delay_ms: int = 60_000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool | None = None,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = True,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        message_listener: MessageListener | None = None,
        consumer_event_listener: ConsumerEventListener | None = None,
        acknowledgement_group_time_ms: int = 100,
        acknowledgement_group_size_max: int = 1000,
        ack_receipt_enabled: bool = False,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        tick_duration_in_ms: int | None = None,
        negative_ack_redelivery_backoff: RedeliveryBackoff | None = None,
        ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None,
        enable_retry: bool = False,
        expire_time_of_incomplete_chunked_message_ms: int = 60_000,
        stats_interval_in_seconds: int = 0,
        is_pattern_topic: bool = False,
        pattern_auto_discovery_period: float = 60,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        **unsupported: Any,
    ) -> Consumer | MultiTopicsConsumer:
        """Create a consumer of a subscription. A missing subscription is created at ``initial_position``.

        One consumer receives from all topics of a list, all partitions of a partitioned topic, or all topics of a
        pattern. A pattern is a compiled regex, or with ``is_pattern_topic`` a str:
        ``persistent://tenant/namespace/regex``, over one namespace, in the syntax of RE2 (no look-around, no back
        references). The cluster matches it, and reports topics that come and go; ``pattern_auto_discovery_period`` is
        the number of seconds between polls in case a report is lost. Topics created later are consumed from their first
        message.

        ``unacked_messages_timeout_ms`` None or 0: messages may stay unacknowledged. Arguments beyond the official
        asyncio client: ``message_listener`` (a function or coroutine function of consumer and message),
        ``consumer_event_listener`` (Failover: ``became_active``, ``became_inactive``), acknowledgement grouping,
        ``ack_receipt_enabled`` (an acknowledgement returns when it is durable), ``priority_level`` (0 is the highest),
        ``subscription_properties``, ``tick_duration_in_ms`` of the timeout, the back-offs, ``enable_retry`` (for
        :meth:`Consumer.reconsume_later`: the retry topic is consumed too),
        ``expire_time_of_incomplete_chunked_message_ms``, and ``stats_interval_in_seconds`` (a log line; 0: none).
        ``batch_index_ack_enabled`` is on unless turned off.

        Raises :class:`ConsumerBusy`, :class:`InvalidTopicName`, :class:`InvalidConfiguration`, :class:`ConnectError`,
        :class:`OperationNotSupported`.
        """
        self._check_open()
        refuse_unsupported("subscribe", unsupported, CONSUMER_OFF)
        check_enum("consumer_type", consumer_type, ConsumerType)
        check_enum("initial_position", initial_position, InitialPosition)
        check_callable("message_listener", message_listener)
        check_methods("consumer_event_listener", consumer_event_listener, "became_active", "became_inactive")
        check_range("stats_interval_in_seconds", stats_interval_in_seconds, 0, 86_400)
        check_properties(properties or {})
        check_properties(subscription_properties or {})
        check_enum("regex_subscription_mode", regex_subscription_mode, RegexSubscriptionMode)
        if regex_subscription_mode is RegexSubscriptionMode.NonPersistentOnly:
            raise OperationNotSupported(
                "regex_subscription_mode=NonPersistentOnly selects nothing, because all topics are persistent here: "
                "leave it out"
            )
        pattern = topic_pattern(topic, is_pattern_topic)
        if pattern is None:
            topics = [full_topic_name(each) for each in topic] if isinstance(topic, list) else [full_topic_name(topic)]
        else:
            check_seconds("pattern_auto_discovery_period", pattern_auto_discovery_period, 0.1, 86_400)
            topics = [pattern]
        if not topics:
            raise InvalidConfiguration("the list of topics is empty: name at least one to subscribe to")
        check_instance("batch_receive_policy", batch_receive_policy, ConsumerBatchReceivePolicy)
        check_instance("key_shared_policy", key_shared_policy, ConsumerKeySharedPolicy)
        check_instance("dead_letter_policy", dead_letter_policy, ConsumerDeadLetterPolicy)
        check_range(
            "max_total_receiver_queue_size_across_partitions",
            max_total_receiver_queue_size_across_partitions,
            1,
            10_000_000,
        )
        settings = ConsumerSettings(
            topic=topics[0],
            subscription=subscription_name,
            consumer_name=unique_name() if consumer_name is None else consumer_name,
            consumer_type=subscription_type(consumer_type),
            initial_position=EngineInitialPosition(initial_position.value),
            replicated=replicate_subscription_state_enabled,
            receiver_queue_size=receiver_queue_size,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            acknowledgement_group_time_ms=acknowledgement_group_time_ms,
            acknowledgement_group_size_max=acknowledgement_group_size_max,
            ack_receipt_enabled=ack_receipt_enabled,
            properties=dict(properties or {}),
            priority=priority_level,
            key_shared=KeySharedPolicy() if key_shared_policy is None else key_shared_policy.engine_policy(),
            read_compacted=is_read_compacted,
            subscription_properties=dict(subscription_properties or {}),
            start_message_id_inclusive=start_message_id_inclusive,
            batch_index_ack_enabled=batch_index_ack_enabled,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms or 0,
            tick_duration_ms=tick_duration_in_ms or 0,
            negative_ack_backoff=negative_ack_redelivery_backoff,
            ack_timeout_backoff=ack_timeout_redelivery_backoff,
            batch_receive_policy=batch_receive_policy or ConsumerBatchReceivePolicy(),
            dead_letter_policy=dead_letter_policy,
            retry_enabled=enable_retry,
            max_pending_chunked_message=max_pending_chunked_message,
            expire_time_of_incomplete_chunked_message_ms=expire_time_of_incomplete_chunked_message_ms,
            auto_ack_oldest_chunked_message_on_queue_full=auto_ack_oldest_chunked_message_on_queue_full,
        )
        extras = ConsumerExtras(
            opening_of(schema, crypto_key_reader, crypto_failure_action),
            Listeners(message_listener, consumer_event_listener),
            max_total_receiver_queue_size_across_partitions,
            stats_interval_in_seconds,
        )
        consumer: Consumer | MultiTopicsConsumer
        if pattern is None:
            consumer = await self._consumer_maker.make(topics, settings, extras, self._consumers.discard)
        else:
            consumer = await self._consumer_maker.make_for_pattern(
                pattern, settings, extras, pattern_auto_discovery_period, self._consumers.discard
            )
        self._consumers.add(consumer)
        return consumer

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        *,
        reader_listener: MessageListener | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        **unsupported: Any,
    ) -> Reader:
        """Create a reader that begins after ``start_message_id``, or with it if ``start_message_id_inclusive``.

        :attr:`MessageId.earliest` and :attr:`MessageId.latest` are the ends of the topic. Raises
        :class:`OperationNotSupported` for a partitioned topic (read its partitions), and the errors of
        :meth:`subscribe`.
        """
        self._check_open()
        refuse_unsupported("create_reader", unsupported, READER_OFF)
        check_callable("reader_listener", reader_listener)
        if not isinstance(start_message_id, MessageId):
            raise InvalidConfiguration(f"start_message_id is {start_message_id!r:.80}; it must be a MessageId")
        name = unique_name() if reader_name is None else reader_name
        settings = ConsumerSettings(
            topic=full_topic_name(topic),
            subscription=f"reader-{unique_name()}",
            consumer_name=name,
            receiver_queue_size=receiver_queue_size,
            durable=False,
            read_compacted=is_read_compacted,
            start_message_id_inclusive=start_message_id_inclusive,
        )
        reader = await self._consumer_maker.make_reader(
            settings,
            start_message_id,
            opening_of(schema, crypto_key_reader, crypto_failure_action),
            reader_listener,
            self._consumers.discard,
        )
        self._consumers.add(reader)
        return reader

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions; only the topic itself if it is not partitioned or does not exist.

        Raises :class:`InvalidTopicName`, :class:`ConnectError`, :class:`Timeout`.
        """
        self._check_open()
        return await partitions_of(self._connector, full_topic_name(topic))

    async def close(self) -> None:
        """Close every producer and consumer, and release the cluster. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            # Consumers first: their last acts may be to send letters and to acknowledge.
            await asyncio.gather(*(consumer.close() for consumer in self._consumers))
            await asyncio.gather(*(producer.close() for producer in self._producers))
        finally:
            await self._connector.close()

    async def _letter_producer(self, topic: str, initial_subscription: str | None) -> Producer | PartitionedProducer:
        """Create the producer that copies messages to a retry or dead letter topic.

        It does not batch, like upstream's, because each copied message is acknowledged alone."""
        self._check_open()
        settings = ProducerSettings(
            full_topic_name(topic),
            None,
            block_if_queue_full=True,
            batching=None,
            chunk_message_bytes=MESSAGE_BYTES_MAX,
            initial_subscription=initial_subscription,
        )
        producer = await self._producer_maker.make(settings, RoutingSettings(), None, None, self._producers.discard)
        self._producers.add(producer)
        return producer

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the client is closed: make a new one")


def in_process_client(engine: Engine, unpack: Unpack) -> Client:
    """Return a client of ``engine`` for a process that serves others. Entries are decompressed by ``unpack``."""
    client = Client(engine=engine, reconnect=False)
    client._consumer_maker = replace(client._consumer_maker, unpack=unpack)
    return client
