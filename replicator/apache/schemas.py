"""Versions of one topic's schemas: the brokers' own, and the engine's, which follow from the content (ADR 40).

Messages name the version of their schema. Brokers count versions, each cluster for itself, so a message that goes from
one to another gets the version that its schema has there. In between, in engines and on links, it has the engine's.

1. A schema is durable in the engine before a message that names it is stored. Links announce it ahead of the message.
2. A schema is at the brokers before a message that names it is published.
3. One :class:`BrokerSchemas` lasts as long as one connection to the topic: a topic that was made anew counts anew.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from replicator.apache.errors import BridgeError, BridgeHalted
from replicator.client.errors import IncompatibleSchema
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.errors import IncompatibleSchema as NotKept
from replicator.engine.errors import SchemaNotFound
from replicator.engine.schemas.registry import SchemaRegistry

log = structlog.get_logger(__name__)


class BrokerSchemas:
    """Translation of schema versions for one topic. A partition has the schemas of its topic."""

    def __init__(self, connector: BrokerConnector, registry: SchemaRegistry, topic: str) -> None:
        self._connector = connector
        self._registry = registry
        self._topic = topic
        self._here: dict[bytes, bytes] = {b"": b""}
        """Versions of the engine, by the brokers' version."""
        self._there: dict[bytes, bytes] = {b"": b""}
        """Versions of the brokers, by the engine's version."""

    async def fetch(self, versions: Iterable[bytes]) -> None:
        """Store in the engine the schemas that have these versions at the brokers. They are durable on return."""
        for version in sorted(set(versions) - self._here.keys()):
            schema = await self._connector.schema(self._topic, version)
            if schema is None:
                log.warning("the brokers lack a message's schema", topic=self._topic, version=version.hex())
                self._here[version] = b""
                continue
            try:
                self._here[version] = await self._registry.adopt(self._topic, schema)
            except NotKept as error:
                raise BridgeHalted(
                    f"{self._topic}: the worker cannot keep a schema that the brokers' messages have: {error}"
                ) from None

    def here(self, version: bytes) -> bytes:
        """Return the engine's version for a fetched version; empty if the brokers no longer have its schema."""
        return self._here[version]

    async def there(self, version: bytes) -> bytes:
        """Return the brokers' version for a version of the engine. Register the schema there if it is new."""
        found = self._there.get(version)
        if found is not None:
            return found
        try:
            schema = self._registry.find(self._topic, version)
        except SchemaNotFound as error:
            raise BridgeError(
                f"{error}: a message needs this schema, and no link has announced it yet; the bridge tries again when "
                "one has"
            ) from None
        try:
            found = await self._connector.register_schema(self._topic, schema)
        except IncompatibleSchema as error:
            raise BridgeHalted(
                f"{self._topic}: the brokers refuse a schema that messages of another cluster have: {error}. "
                "Register it there, or change the compatibility strategy of the namespace"
            ) from None
        self._there[version] = found
        return found
