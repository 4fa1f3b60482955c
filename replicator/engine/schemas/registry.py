"""The schemas of this cluster's topics: kept in the store, the partitions of a topic sharing theirs.

Invariants:

1. Each schema has the version that its content gives it (:mod:`replicator.engine.schemas.schema`), in every cluster.
2. A schema is stored before a producer hears its version, so no message with a version that this cluster gave is ever
   published before its schema is durable. Links announce schemas before the messages behind them (ADR 40).
3. A topic's list is the union of what this cluster registered and what others announced, ordered by the time of
   registration, then by version. Merging is commutative, associative and idempotent, so clusters that have heard of
   each other have the same list. What is registered here is later than all that is known here.
4. Large schemas are read and compared in threads, a few at a time: the event loop goes on. A client whose schema is
   registered already waits for nobody.
5. A list is bounded: in schemas by :data:`SCHEMAS_MAX`, for what others announce by :data:`ANNOUNCED_MAX`; in bytes by
   :data:`TOPIC_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from replicator.engine.errors import IncompatibleSchema, SchemaNotFound
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.policies import SchemaStrategy, TopicPolicies
from replicator.engine.schemas import compatibility
from replicator.engine.schemas.schema import VERSION_BYTES, TopicSchema
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name

TABLE: Final = "schemas"
SCHEMAS_MAX: Final = 1_000
"""Of one topic, after which its clients register no more."""
ANNOUNCED_MAX: Final = 2 * SCHEMAS_MAX
"""Of one topic, after which nothing is taken over from other clusters: both sides may have been full."""
TOPIC_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all schemas of one topic: a list is read whole to compare a new one with it."""
APART_BYTES: Final = 16 * 1024
"""Schemas of more bytes are read and compared in a thread: that takes milliseconds, or much longer."""
APART_MAX: Final = 2
"""Threads that compare at once. Each slows the event loop down a little."""
_REGISTERED_AT: Final = re.compile(rb'"registered_at_ms":(\d+)\}\Z')
"""The end of a row, as :meth:`RegisteredSchema.as_json` has it."""
_T = TypeVar("_T")
_END: Final = b"\0"
"""Between a topic's name and the version in a key: no name has it."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a topic, and when some cluster first saw it."""

    schema: TopicSchema
    registered_at_ms: int

    def as_json(self) -> dict[str, Any]:
        """As it is stored, and announced to other clusters."""
        return {**self.schema.as_json(), "registered_at_ms": self.registered_at_ms}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RegisteredSchema:
        return cls(TopicSchema.from_json(row), int(row["registered_at_ms"]))


class SchemaRegistry:
    """Reads from the store whenever it is asked: clients ask once as they connect."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        wall_clock_ms: Callable[[], int],
        policies_of: Callable[[str], TopicPolicies] = lambda topic: TopicPolicies(),
    ) -> None:
        """``policies_of`` gives what counts for a topic, by its full name without a partition's number."""
        self._store = store
        self._writer = writer
        self._wall_clock_ms = wall_clock_ms
        self._policies_of = policies_of
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of topics whose lists are being changed."""
        self._threads = asyncio.Semaphore(APART_MAX)
        self.listeners: list[Callable[[str], None]] = []
        """Called with the name of a topic, without a partition's number, that has another schema; it is durable."""

    # Reading.

    def topics(self) -> Iterator[str]:
        """The topics that have schemas, without partitions' numbers, in order."""
        after = b""
        while True:
            with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
                cursor = txn.cursor()
                if not cursor.set_range(after):
                    return
                name = bytes(cursor.key())[: -len(_END) - VERSION_BYTES]
            yield name.decode()
            after = name + b"\1"

    def schemas(self, topic: str) -> list[RegisteredSchema]:
        """Of the topic, or of the one that it is a partition of; oldest first."""
        return _in_order(self._rows(topic))

    def find(self, topic: str, version: bytes | None = None) -> TopicSchema:
        """The schema of that version, or the newest. Raises :class:`SchemaNotFound`."""
        if version is None:
            if rows := self._rows(topic):
                newest = max(rows, key=lambda each: (_registered_at_ms(rows[each]), each))
                return RegisteredSchema.from_json(json.loads(rows[newest])).schema
            raise SchemaNotFound(f"topic {topic} has no schema")
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            row = txn.get(_prefix(topic) + version) if len(version) == VERSION_BYTES else None
        if row is None:
            raise SchemaNotFound(f"topic {topic} has no schema of version {version.hex()}")
        return RegisteredSchema.from_json(json.loads(bytes(row))).schema

    # What clients bring.

    async def add(self, topic: str, schema: TopicSchema) -> bytes:
        """The version of a producer's schema, which is registered if it is new.

        Raises :class:`IncompatibleSchema` for one that the topic's policies do not let follow those that it has.
        """
        await self._apart(len(schema.definition), schema.check)
        version = schema.version
        if self._has(topic, version):
            return version
        async with self._lock(topic):
            rows = self._rows(topic)
            if version in rows:
                return version
            policies = self._policies(topic)
            if not policies.schema_auto_update:
                raise IncompatibleSchema(
                    f"topic {topic} has no such schema, and its clients may not register any (isAllowAutoUpdateSchema)"
                )
            known = await self._checked(rows, schema, policies.schema_compatibility)
            await self._append(topic, rows, known, schema, SCHEMAS_MAX)
            return version

    async def adopt(self, topic: str, schema: TopicSchema) -> bytes:
        """The version of a schema that the brokers beside this worker have, which is registered if it is new. It is not
        compared with what is here: messages of it exist already.

        Raises :class:`IncompatibleSchema` for what no cluster registers, and past the limits.
        """
        await self._apart(len(schema.definition), schema.check)
        async with self._lock(topic):
            rows = self._rows(topic)
            if schema.version not in rows:
                known = await self._apart(_size(rows), lambda: _in_order(rows))
                await self._append(topic, rows, known, schema, ANNOUNCED_MAX)
            return schema.version

    async def add_or_check_consumer(self, topic: str, schema: TopicSchema) -> None:
        """A consumer's schema: of a topic without one it becomes the first; else it must read what is written.

        Raises :class:`IncompatibleSchema`.
        """
        await self._apart(len(schema.definition), schema.check)
        if rows := self._rows(topic):
            strategy = self._policies(topic).schema_compatibility

            def check() -> None:
                compatibility.check_consumer(schema, [each.schema for each in _in_order(rows)], strategy)

            await self._apart(_size(rows) + len(schema.definition), check)
        else:
            await self.add(topic, schema)

    def check_without(self, topic: str) -> None:
        """A producer brings no schema: raises :class:`IncompatibleSchema` where its topic has one and insists."""
        if self._policies(topic).schema_validation_enforced and self._rows(topic):
            raise IncompatibleSchema(
                f"topic {topic} has a schema, and takes no producer without one (schemaValidationEnforced)"
            )

    def strategy(self, topic: str) -> SchemaStrategy:
        """Which schemas may follow those that the topic has."""
        return self._policies(topic).schema_compatibility

    async def check(self, topic: str, schema: TopicSchema) -> None:
        """Raises :class:`IncompatibleSchema` for a schema that the topic's strategy does not let follow those that it
        has."""
        await self._apart(len(schema.definition), schema.check)
        rows = self._rows(topic)
        if schema.version not in rows:
            await self._checked(rows, schema, self.strategy(topic))

    async def remove(self, topic: str) -> None:
        """Forget all schemas of the topic, in this cluster; one that still has them announces them again."""
        async with self._lock(topic):
            prefix = _prefix(topic)
            await self._writer.put_many([(TABLE, prefix + version, None) for version in self._rows(topic)])

    # What other clusters announce.

    async def learn(self, topic: str, announced: Sequence[RegisteredSchema]) -> int:
        """Take over what another cluster has, and return how many of its schemas are new here, or older than they were.

        They are not compared with those that are here: messages of both exist already.

        Raises :class:`IncompatibleSchema` for what no cluster registers, and past the limits; then none is taken over.
        """
        for each in announced:
            await self._apart(len(each.schema.definition), each.schema.check)
        async with self._lock(topic):
            rows = self._rows(topic)
            news = []
            for each in announced:
                row = rows.get(each.schema.version)
                if row is None or each.registered_at_ms < _registered_at_ms(row):
                    news.append(each)
            if len(rows.keys() | {each.schema.version for each in news}) > ANNOUNCED_MAX:
                raise IncompatibleSchema(f"topic {topic} would have over {ANNOUNCED_MAX} schemas, the limit")
            if news:
                await self._put(topic, rows, news)
            return len(news)

    def _lock(self, topic: str) -> asyncio.Lock:
        return self._changing.setdefault(_name(topic), asyncio.Lock())

    async def _apart(self, size_bytes: int, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, or raise its error. If it is about many bytes, a thread does it."""
        if size_bytes <= APART_BYTES:
            return work()
        async with self._threads:
            return await asyncio.to_thread(work)

    async def _checked(
        self, rows: Mapping[bytes, bytes], schema: TopicSchema, strategy: SchemaStrategy
    ) -> list[RegisteredSchema]:
        """Return the schemas of ``rows``, oldest first. Raise :class:`IncompatibleSchema` if the new one may not follow
        them."""

        def check() -> list[RegisteredSchema]:
            known = _in_order(rows)
            compatibility.check(schema, [each.schema for each in known], strategy)
            return known

        return await self._apart(_size(rows) + len(schema.definition), check)

    def _has(self, topic: str, version: bytes) -> bool:
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            return txn.get(_prefix(topic) + version) is not None

    def _policies(self, topic: str) -> TopicPolicies:
        return self._policies_of(_name(topic))

    def _rows(self, topic: str) -> dict[bytes, bytes]:
        """By version, as stored."""
        prefix = _prefix(topic)
        found: dict[bytes, bytes] = {}
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and (key := bytes(cursor.key())).startswith(prefix):
                found[key[len(prefix) :]] = bytes(cursor.value())
                more = cursor.next()
        return found

    async def _append(
        self,
        topic: str,
        rows: Mapping[bytes, bytes],
        known: Sequence[RegisteredSchema],
        schema: TopicSchema,
        schemas_max: int,
    ) -> None:
        """As the newest; ``known`` are those of ``rows``, in order."""
        if len(known) >= schemas_max:
            raise IncompatibleSchema(f"topic {topic} has {len(known)} schemas; {schemas_max} are allowed")
        newest_ms = known[-1].registered_at_ms if known else -1
        await self._put(topic, rows, [RegisteredSchema(schema, max(self._wall_clock_ms(), newest_ms + 1))])

    async def _put(self, topic: str, rows: Mapping[bytes, bytes], news: Iterable[RegisteredSchema]) -> None:
        new = {each.schema.version: json.dumps(each.as_json(), separators=(",", ":")).encode() for each in news}
        size = _size({**rows, **new})
        if size > TOPIC_BYTES_MAX:
            raise IncompatibleSchema(
                f"the schemas of topic {topic} would have {size} bytes; {TOPIC_BYTES_MAX} are allowed"
            )
        prefix = _prefix(topic)
        await self._writer.put_many([(TABLE, prefix + version, row) for version, row in new.items()])
        for listener in list(self.listeners):
            listener(_name(topic))


def _in_order(rows: Mapping[bytes, bytes]) -> list[RegisteredSchema]:
    """Of rows as they are stored, oldest first."""
    found = [RegisteredSchema.from_json(json.loads(row)) for row in rows.values()]
    return sorted(found, key=lambda each: (each.registered_at_ms, each.schema.version))


def _registered_at_ms(row: bytes) -> int:
    """Return when some cluster first saw the schema of a stored row."""
    found = _REGISTERED_AT.search(row, max(0, len(row) - 64))
    return int(found[1]) if found else int(json.loads(row)["registered_at_ms"])


def _size(rows: Mapping[bytes, bytes]) -> int:
    return sum(map(len, rows.values()))


def _name(topic: str) -> str:
    parsed = parse_topic(topic)
    return base_name(str(parsed)) if parsed.partition >= 0 else str(parsed)


def _prefix(topic: str) -> bytes:
    return _name(topic).encode() + _END
