"""Makers of producers: from the arguments of ``create_producer`` to a connected producer.

This module finds out whether a topic is partitioned, splits limits over its partitions, and starts encryption.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from replicator.client.errors import InvalidConfiguration
from replicator.client.producing.encryption import CryptoKeyReader, EntryEncryptor
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.client.producing.routing import RoutingSettings, make_router
from replicator.client.producing.sending import AddContext, wall_time_ms
from replicator.client.schema import Schema
from replicator.client.settings import ProducerSettings
from replicator.client.wire.channel import Connector
from replicator.client.wire.reopening import open_first
from replicator.engine.topic_name import parse_topic
from replicator.running.extras import extra_missing


@dataclass(frozen=True, slots=True)
class ProducerMaker:
    """Maker of all producers of one client, with their common arguments."""

    connector: Connector
    reconnect: bool
    operation_timeout_seconds: float
    add_context: AddContext | None = None
    """Function that adds the sender's trace context to a message's properties."""

    async def make(
        self,
        settings: ProducerSettings,
        routing: RoutingSettings,
        schema: Schema | None,
        encryptor: EntryEncryptor | None,
        on_close: Callable[[Producer | PartitionedProducer], None],
    ) -> Producer | PartitionedProducer:
        """Return a connected producer, for all partitions if the topic has any.

        Raises :class:`ConnectError`, :class:`ProducerBusy`, :class:`ProducerFenced` and errors of the cluster.
        """
        partitions = await self._partitions(settings.topic)
        if not partitions:
            return await self._connected(settings, schema, encryptor, on_close)
        share = max(1, routing.max_pending_messages_across_partitions // partitions)
        settings = replace(settings, max_pending_messages=min(settings.max_pending_messages, share))

        async def start_partition(partition: int, name: str | None) -> Producer:
            own = replace(settings, topic=f"{settings.topic}-partition-{partition}", producer_name=name)
            return await self._connected(own, schema, encryptor, lambda _: None)

        first = 0 if routing.message_router is not None else random.randrange(partitions)
        router = make_router(routing, settings.batching, first)
        producer = PartitionedProducer(
            settings,
            partitions,
            router,
            start_partition,
            on_close=on_close,
            schema=schema,
            add_context=self.add_context,
        )
        await producer.connect(first, lazy=routing.lazy)
        return producer

    async def _partitions(self, topic: str) -> int:
        if parse_topic(topic).partition >= 0:
            return 0

        async def ask() -> int:
            return await self.connector.partitions(topic)

        return await open_first(ask, self.operation_timeout_seconds, reconnect=self.reconnect)

    async def _connected(
        self,
        settings: ProducerSettings,
        schema: Schema | None,
        encryptor: EntryEncryptor | None,
        on_close: Callable[[Producer | PartitionedProducer], None],
    ) -> Producer:
        producer = Producer(
            settings,
            self.connector.open_producer,
            reconnect=self.reconnect,
            operation_timeout_seconds=self.operation_timeout_seconds,
            on_close=on_close,
            schema=schema,
            encryptor=encryptor,
            add_context=self.add_context,
        )
        await producer.connect()
        return producer


def make_encryptor(
    encryption_key: str | None, encryption_keys: Sequence[str], crypto_key_reader: CryptoKeyReader | None
) -> EntryEncryptor | None:
    """Return the encryptor of a producer's entries, or None. Raises :class:`InvalidConfiguration`,
    :class:`CryptoError`."""
    names = ([encryption_key] if encryption_key else []) + [name for name in encryption_keys if name != encryption_key]
    if not names:
        return None
    if not isinstance(crypto_key_reader, CryptoKeyReader):
        raise InvalidConfiguration("encryption_key needs a crypto_key_reader, a CryptoKeyReader")
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidConfiguration(
            f"encryption_key and encryption_keys are {names!r:.200}; each must be the name of a key, a str"
        )
    return EntryEncryptor(names, crypto_key_reader, wall_time_ms())


def context_adder() -> AddContext:
    """Return the function that adds the present trace context to a message's properties.

    Raises :class:`InvalidConfiguration` if the extra ``traces`` is not installed.
    """
    try:
        from replicator.client.producing.trace_context import with_current_context
    except ModuleNotFoundError:
        raise InvalidConfiguration(str(extra_missing("traces", "propagate_trace_context"))) from None
    return with_current_context
