"""The schemas of this cluster's topics: kept in the store, oldest first, the partitions of a topic sharing theirs.

Invariant: a topic's list only grows, and each schema has the version that its content gives it
(:mod:`replicator.engine.schemas.schema`). A schema is stored before a producer hears its version, so no message with a
version that this cluster gave is ever published before the schema is durable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from replicator.engine.errors import IncompatibleSchema, SchemaNotFound
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.schemas import compatibility
from replicator.engine.schemas.compatibility import Strategy
from replicator.engine.schemas.schema import TopicSchema
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name

TABLE: Final = "schemas"
SCHEMAS_MAX: Final = 1_000
"""Of one topic."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a topic, and when this cluster first saw it."""

    schema: TopicSchema
    registered_at_ms: int


class SchemaRegistry:
    """Reads from the store whenever it is asked: clients ask once as they connect."""

    def __init__(
        self, store: Store, writer: Writer, wall_clock_ms: Callable[[], int], strategy: Strategy = Strategy.FULL
    ) -> None:
        self._store = store
        self._writer = writer
        self._wall_clock_ms = wall_clock_ms
        self._strategy = strategy
        """As upstream's default. One for all topics, for now."""
        self._changing = asyncio.Lock()

    def schemas(self, topic: str) -> list[RegisteredSchema]:
        """Of the topic, or of the one that it is a partition of; oldest first."""
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            stored = txn.get(_key(topic))
        if stored is None:
            return []
        rows: list[dict[str, Any]] = json.loads(bytes(stored))
        return [RegisteredSchema(TopicSchema.from_json(row), row["registered_at_ms"]) for row in rows]

    def find(self, topic: str, version: bytes | None = None) -> TopicSchema:
        """The schema of that version, or the newest. Raises :class:`SchemaNotFound`."""
        known = self.schemas(topic)
        found = [each.schema for each in known if version is None or each.schema.version == version]
        if not found:
            what = "no schema" if version is None else f"no schema of version {version.hex()}"
            raise SchemaNotFound(f"topic {topic} has {what}")
        return found[-1]

    async def add(self, topic: str, schema: TopicSchema) -> bytes:
        """The version of a producer's schema, which is registered if it is new.

        Raises :class:`IncompatibleSchema` for one that the topic's strategy does not let follow those that it has.
        """
        schema.check()
        async with self._changing:
            known = self.schemas(topic)
            version = schema.version
            if any(each.schema.version == version for each in known):
                return version
            compatibility.check(schema, [each.schema for each in known], self._strategy)
            if len(known) >= SCHEMAS_MAX:
                raise IncompatibleSchema(f"topic {topic} has {SCHEMAS_MAX} schemas, the limit")
            known.append(RegisteredSchema(schema, self._wall_clock_ms()))
            rows = [{**each.schema.as_json(), "registered_at_ms": each.registered_at_ms} for each in known]
            await self._writer.put(TABLE, _key(topic), json.dumps(rows).encode())
            return version

    async def add_or_check_consumer(self, topic: str, schema: TopicSchema) -> None:
        """A consumer's schema: of a topic without one it becomes the first; else it must read what is written.

        Raises :class:`IncompatibleSchema`.
        """
        schema.check()
        known = [each.schema for each in self.schemas(topic)]
        if known:
            compatibility.check_consumer(schema, known, self._strategy)
        else:
            await self.add(topic, schema)


def _key(topic: str) -> bytes:
    parsed = parse_topic(topic)
    return (base_name(str(parsed)) if parsed.partition >= 0 else str(parsed)).encode()
