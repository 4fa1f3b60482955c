"""Connector to a cluster by Pulsar's binary protocol: ``pulsar://host:port``, or ``pulsar://host:port,host:port``.

1. Connections are shared: one for each address, or more if it has more than :data:`SESSIONS_PER_CONNECTION`. The first
   command that needs one opens it; callers that want the same one at once wait for the same opening.
2. A cluster of ours is one worker, which serves all topics at its address. A cluster of other brokers is asked which
   broker serves a topic, at each opening, and the channel goes there.
3. With several addresses, which are brokers or proxies of one cluster, the one that answered last is asked. If it
   cannot be reached, the others are tried in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from replicator.client.authentication import NOTHING, ConnectionSecurity
from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidUrl,
    PulsarException,
    TopicNotFound,
    from_server,
)
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire.address import Address, parse_addresses, written
from replicator.client.wire.connection import Connection
from replicator.client.wire.consumer_channel import BrokerConsumerChannel
from replicator.client.wire.producer_channel import BrokerProducerChannel, open_producer
from replicator.client.wire.topic_watch_channel import BrokerTopicWatchChannel
from replicator.engine.schemas.schema import TopicSchema
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)
from replicator.protocol.schemas import schema_from, schema_on_the_wire
from replicator.running.connecting import why_no_answer
from replicator.running.short_tasks import awaited, heard
from replicator.running.timeouts import timeout

SESSIONS_PER_CONNECTION: Final = 5_000
"""Limit of sessions on one connection: half of a worker's limit for each kind of session."""
REDIRECTS_MAX: Final = 20
LEAVE_SECONDS_MAX: Final = 2.0
"""Longest wait for answers to sent entries before a move to another cluster. Unanswered entries are sent again."""

T = BaseCommand.Type


class BrokerConnector:
    """Connector that opens channels to the cluster at ``url``."""

    def __init__(
        self,
        url: str,
        *,
        connection_timeout_seconds: float,
        operation_timeout_seconds: float,
        showing: ConnectionSecurity = NOTHING,
    ) -> None:
        self._addresses = parse_addresses(url)
        self._asked = 0
        """Index of the address that answered last."""
        self._url = written(self._addresses)
        self._cluster: str | None = None
        self._operation_timeout_seconds = operation_timeout_seconds
        self._connections = _Connections(connection_timeout_seconds, showing)

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> BrokerProducerChannel:
        connection = await self._serving(settings.topic)
        return await open_producer(connection, settings, topic_epoch, self._operation_timeout_seconds)

    async def open_consumer(self, settings: ConsumerSettings) -> BrokerConsumerChannel:
        connection = await self._serving(settings.topic)
        # A cluster of other brokers is named by its address: a position is valid only there.
        cluster = connection.cluster or self._url
        channel = BrokerConsumerChannel(connection, settings, cluster, self._operation_timeout_seconds)
        await channel.subscribe()
        return channel

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        _, connection = await self._entrance()

        def make(request_id: int) -> BaseCommand:
            wanted = CommandPartitionedTopicMetadata(
                topic=topic, request_id=request_id, metadata_auto_creation_enabled=create
            )
            return BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=wanted)

        answer = await self._ask(connection, make, f"partitions of {topic}")
        if answer.response == CommandPartitionedTopicMetadataResponse.LookupType.Failed:
            error = from_server(answer.error, answer.message, answer.engine_error)
            if isinstance(error, TopicNotFound) and not create:
                return 0
            raise error
        return int(answer.partitions)

    async def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        """Return a version of the topic's schema, or its newest; None if it has none, or has plain bytes."""

        def make(request_id: int) -> BaseCommand:
            wanted = CommandGetSchema(topic=topic, request_id=request_id)
            if version is not None:
                wanted.schema_version = version
            return BaseCommand(type=T.GET_SCHEMA, getSchema=wanted)

        connection = await self._serving(topic)
        which = "the newest schema" if version is None else f"schema {version.hex()}"
        answer = await self._ask(connection, make, f"{which} of {topic}")
        if answer.HasField("error_code"):
            error = from_server(answer.error_code, answer.error_message)
            if isinstance(error, TopicNotFound):
                return None
            raise error
        return schema_from(answer.schema)

    async def register_schema(self, topic: str, schema: TopicSchema) -> bytes:
        """Register a schema and return the version that the cluster gives it, or gave it before.

        Raises :class:`IncompatibleSchema` if the cluster refuses it."""

        def make(request_id: int) -> BaseCommand:
            wanted = CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema_on_the_wire(schema))
            return BaseCommand(type=T.GET_OR_CREATE_SCHEMA, getOrCreateSchema=wanted)

        connection = await self._serving(topic)
        answer = await self._ask(connection, make, f"registering a schema of {topic}")
        if answer.HasField("error_code"):
            raise from_server(answer.error_code, answer.error_message)
        return bytes(answer.schema_version)

    async def open_topic_watch(self, pattern: str, known_hash: str) -> BrokerTopicWatchChannel:
        _, connection = await self._entrance()
        channel = BrokerTopicWatchChannel(connection, pattern, self._operation_timeout_seconds)
        await channel.open(known_hash)
        return channel

    async def lose_all(self, error: PulsarException) -> None:
        """End every channel with ``error``, so that its owner opens it again elsewhere.

        Answers to sent entries are awaited for a short time first: an entry stored here and sent again elsewhere would
        exist twice."""
        connections = self._connections.all()
        producers = [producer for connection in connections for producer in connection.producers.values()]
        with suppress(TimeoutError):
            async with timeout(LEAVE_SECONDS_MAX):
                await asyncio.gather(
                    *(producer.leave() for producer in producers if isinstance(producer, BrokerProducerChannel))
                )
        for connection in connections:
            connection.end(error)

    async def close(self) -> None:
        await self._connections.close()

    async def _entrance(self) -> tuple[Address, Connection]:
        """Return a connection to one of the addresses. Raises :class:`ConnectError` if none can be reached."""
        error: ConnectError | None = None
        first, count = self._asked, len(self._addresses)
        for number in range(first, first + count):
            address = self._addresses[number % count]
            try:
                connection = await self._connections.get(address)
            except ConnectError as refused:
                error = refused if error is None else ConnectError(f"{error}; {refused}")
                continue
            self._asked = number % count
            self._check_cluster(address, connection)
            return address, connection
        assert error is not None
        raise error

    def _check_cluster(self, address: Address, connection: Connection) -> None:
        """Raise :class:`InvalidUrl` for addresses of two clusters in one URL: that would be a failover that nobody
        decided."""
        if self._cluster is None:
            self._cluster = connection.cluster
        elif self._cluster != connection.cluster and len(self._addresses) > 1:
            raise InvalidUrl(
                f"{self._url}: {address} is of the cluster {connection.cluster or 'of brokers'!r}, and another "
                f"address of {self._cluster or 'of brokers'!r}; a list of addresses is not a failover: give only "
                "addresses of one cluster"
            )

    async def _serving(self, topic: str) -> Connection:
        """Return a connection to the broker that serves a topic."""
        entrance, connection = await self._entrance()
        if connection.cluster:
            return connection
        authoritative = False
        for _ in range(REDIRECTS_MAX):

            def make(request_id: int, authoritative: bool = authoritative) -> BaseCommand:
                wanted = CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
                return BaseCommand(type=T.LOOKUP, lookupTopic=wanted)

            answer = await self._ask(connection, make, f"lookup of {topic}")
            if answer.response == CommandLookupTopicResponse.LookupType.Failed:
                raise from_server(answer.error, answer.message)
            url = answer.brokerServiceUrlTls if entrance.tls else answer.brokerServiceUrl
            broker = Address.parse(url)
            if answer.proxy_through_service_url and broker not in self._addresses:
                broker = replace(entrance, proxy_to=broker.host_and_port)
            connection = await self._connections.get(broker)
            if answer.response == CommandLookupTopicResponse.LookupType.Connect:
                return connection
            authoritative = answer.authoritative
        raise ConnectError(
            f"{self._url}: {topic} was looked up at {REDIRECTS_MAX} brokers, and none serves it: try again when the "
            "brokers have settled"
        )

    async def _ask(self, connection: Connection, make: Callable[[int], BaseCommand], what: str) -> Any:
        return await connection.request(make, f"{connection.address}: {what}", self._operation_timeout_seconds)


class _Connections:
    """Connections of one client by their addresses."""

    def __init__(self, timeout_seconds: float, showing: ConnectionSecurity) -> None:
        self._showing = showing
        self._timeout_seconds = timeout_seconds
        self._open: dict[Address, list[Connection]] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._closed = False

    def all(self) -> list[Connection]:
        return [connection for connections in self._open.values() for connection in connections]

    async def get(self, address: Address) -> Connection:
        """Return a connection with room for one more session. Raises :class:`ConnectError`, :class:`AlreadyClosed`."""
        while True:
            if self._closed:
                raise AlreadyClosed("the client is closed: make a new one")
            for connection in self._open.get(address, ()):
                if connection.sessions < SESSIONS_PER_CONNECTION:
                    return connection
            opening = self._opening.get(address)
            if opening is None:
                opening = self._opening[address] = awaited(self._connect(address), f"connecting to {address}")
                opening.add_done_callback(lambda task: self._opened(address, task))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                if opening.cancelled() and self._closed:
                    raise AlreadyClosed("the client is closed: make a new one") from None
                raise

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in self.all():
            connection.end(AlreadyClosed("the client is closed: make a new one"))

    def _opened(self, address: Address, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        heard(task)  # those who waited for it have it

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        connections = self._open.setdefault(address, [])

        def over(connection: Connection) -> None:
            if connection in connections:
                connections.remove(connection)

        shown = self._showing
        connection = Connection(str(address), over, proxy_to=address.proxy_to, authentication=shown.authentication)
        context = shown.ssl_context() if address.tls else None
        try:
            async with timeout(self._timeout_seconds):
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=context)
                await connection.opened()
        except TimeoutError:
            connection.end(
                ConnectError(
                    f"{address}: no answer within {self._timeout_seconds:g} s; see that a worker or broker runs there "
                    "and can be reached"
                )
            )
            raise ConnectError(
                f"{address}: no answer within {self._timeout_seconds:g} s; see that a worker or broker runs there "
                "and can be reached"
            ) from None
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {why_no_answer(error, remedy='')}") from error
        except BaseException as error:
            connection.end(ConnectError(f"{address}: {error or type(error).__name__}"))
            raise
        connections.append(connection)
        return connection
