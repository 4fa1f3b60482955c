"""Schemas of this cluster's topics, in the store. Partitions of a topic share its schemas.

Invariants:

1. Each schema has the version that its content gives it (:mod:`replicator.engine.schemas.schema`), in every cluster.
2. A schema is stored before a producer gets its version, so no message with a version from this cluster is published
   before its schema is durable. Links announce schemas before the messages that use them (ADR 40).
3. A topic's list has the schemas that this cluster registered and those that others announced. It is ordered by the
   time of registration, then by version. Merging is commutative, associative and idempotent, so clusters that have
   heard of each other have the same list. What is registered here is later than all that is known here.
4. Large schemas are read and compared in threads, a few at a time: the event loop goes on. Their bytes count in the
   clients' budget (:mod:`replicator.engine.unpacking`) before they are read. A client whose schema is registered
   already waits for nobody.
5. A list is bounded: in schemas by :data:`SCHEMAS_MAX`, for what others announce by :data:`ANNOUNCED_MAX`; in bytes by
   :data:`TOPIC_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from replicator.engine.errors import IncompatibleSchema, SchemaNotFound, StoreFailed
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.policies import SchemaStrategy, TopicPolicies
from replicator.engine.schemas import compatibility
from replicator.engine.schemas.schema import VERSION_BYTES, TopicSchema
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name
from replicator.engine.unpacking import Unpacking, finished
from replicator.running.pacing import CLIENT

TABLE: Final = "schemas"
SCHEMAS_MAX: Final = 1_000
"""Limit of schemas of one topic. Beyond it, its clients can register no more."""
ANNOUNCED_MAX: Final = 2 * SCHEMAS_MAX
"""Limit of schemas of one topic for those of other clusters. Beyond it, none is taken over: both clusters may have been
full."""
TOPIC_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of the bytes of all schemas of one topic, because a new schema is compared with the whole list."""
APART_BYTES: Final = 16 * 1024
"""Size from which schemas are read and compared in a thread, because that takes milliseconds, or much longer."""
APART_MAX: Final = 2
"""Limit of threads that compare at once. Each slows the event loop down a little."""
REGISTERED_AT_MS_MAX: Final = 1 << 53
"""Limit of the time of a registration: JSON holds smaller numbers exactly, and no clock reaches it."""
_REGISTERED_AT: Final = re.compile(rb'"registered_at_ms":(\d+)\}\Z')
"""Pattern of the end of a row, as :meth:`RegisteredSchema.as_json` writes it."""
_REGISTERED_AT_BYTES_MAX: Final = 64
"""Length of the end of a row that contains the time of registration."""
_T = TypeVar("_T")
_END: Final = b"\0"
"""Separator between a topic's name and the version in a key. No name contains it."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a topic, and the time at which some cluster first saw it."""

    schema: TopicSchema
    registered_at_ms: int

    def as_json(self) -> dict[str, Any]:
        """Return the schema as it is stored, and announced to other clusters."""
        return {**self.schema.as_json(), "registered_at_ms": self.registered_at_ms}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RegisteredSchema:
        """Return the schema of a row. Raise :class:`ValueError`, :class:`KeyError` or :class:`TypeError`."""
        registered_at_ms = row["registered_at_ms"]
        if type(registered_at_ms) is not int or not 0 <= registered_at_ms < REGISTERED_AT_MS_MAX:
            raise ValueError(
                "the time at which a schema was registered must be a number of milliseconds from 0 on; run the same "
                "version in all clusters"
            )
        return cls(TopicSchema.from_json(row), registered_at_ms)


class _Row(NamedTuple):
    """Time and size of a stored schema, which are known without parsing it."""

    registered_at_ms: int
    size_bytes: int


class SchemaRegistry:
    """Registry of schemas. It reads from the store on each call, because clients ask only once, when they connect."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        wall_clock_ms: Callable[[], int],
        policies_of: Callable[[str], TopicPolicies] = lambda topic: TopicPolicies(),
        unpacking: Unpacking | None = None,
    ) -> None:
        """Create the registry. ``policies_of`` returns the effective policies of a topic, by its full name without a
        partition's number. ``unpacking`` has the budget for large schemas."""
        self._store = store
        self._writer = writer
        self._wall_clock_ms = wall_clock_ms
        self._policies_of = policies_of
        self._unpacking = unpacking or Unpacking()
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of topics whose lists are being changed."""
        self._threads = asyncio.Semaphore(APART_MAX)
        self._running: set[asyncio.Future[Any]] = set()
        """Work on threads, which reads the store."""
        self._closed = False
        self.listeners: list[Callable[[str], None]] = []
        """Functions that are called with a topic's name, without a partition's number, after a new schema of it is
        durable."""

    # Reading.

    def topics(self) -> Iterator[str]:
        """Yield the topics that have schemas, without partitions' numbers, in order."""
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
        """Return the schemas of the topic, or of its partitioned topic, oldest first."""
        found = [RegisteredSchema.from_json(row) for _, row in self._read(topic, lambda row: json.loads(bytes(row)))]
        return sorted(found, key=lambda each: (each.registered_at_ms, each.schema.version))

    def versions(self, topic: str) -> list[bytes]:
        """Return the versions that the topic has, oldest first. No schema is read for it."""
        rows = self._listed(topic)
        return sorted(rows, key=lambda version: (rows[version].registered_at_ms, version))

    async def look(self, topic: str, look: Callable[[list[RegisteredSchema]], _T]) -> _T:
        """Return what ``look`` makes of the topic's schemas, oldest first. If they are large, a thread does it."""
        return await self._apart(_size(self._listed(topic)), lambda: look(self.schemas(topic)))

    def find(self, topic: str, version: bytes | None = None) -> TopicSchema:
        """Return the schema with that version, or the newest one. Raise :class:`SchemaNotFound`."""
        if version is None:
            if versions := self.versions(topic):
                return self.find(topic, versions[-1])
            raise SchemaNotFound(f"topic {topic} has no schema")
        found = self.registered(topic, version)
        if found is None:
            raise SchemaNotFound(f"topic {topic} has no schema of version {version.hex()}")
        return found.schema

    def registered(self, topic: str, version: bytes) -> RegisteredSchema | None:
        """Return the schema of that version, and when it was registered; None if the topic does not have it."""
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            row = txn.get(_prefix(topic) + version) if len(version) == VERSION_BYTES else None
        return None if row is None else RegisteredSchema.from_json(json.loads(bytes(row)))

    # What clients bring.

    async def add(self, topic: str, schema: TopicSchema) -> bytes:
        """Return the version of a producer's schema. Register the schema if it is new.

        Raises :class:`IncompatibleSchema` if the topic's policies do not let it follow the existing schemas.
        """
        await self._apart(len(schema.definition), schema.check)
        version = schema.version
        if self._has(topic, version):
            return version
        async with self._lock(topic):
            rows = self._listed(topic)
            if version in rows:
                return version
            policies = self._policies(topic)
            if not policies.schema_auto_update:
                raise IncompatibleSchema(
                    f"topic {topic} does not have this schema, and its clients may not register new ones "
                    "(isAllowAutoUpdateSchema): use a schema that it has, or let an operator register this one"
                )
            await self._compare(topic, rows, schema, policies.schema_compatibility)
            await self._append(topic, rows, schema, SCHEMAS_MAX)
            return version

    async def adopt(self, topic: str, schema: TopicSchema) -> bytes:
        """Return the version of a schema from the brokers beside this worker. Register it if it is new. It is not
        compared with other schemas, because messages of it exist already.

        Raises :class:`IncompatibleSchema` for a schema that no cluster registers, and past the limits.
        """
        await self._apart(len(schema.definition), schema.check)
        async with self._lock(topic):
            rows = self._listed(topic)
            if schema.version not in rows:
                await self._append(topic, rows, schema, ANNOUNCED_MAX)
            return schema.version

    async def add_or_check_consumer(self, topic: str, schema: TopicSchema) -> None:
        """Register a consumer's schema as the first one of a topic without schemas. Otherwise check that it can read
        the topic.

        Raises :class:`IncompatibleSchema`.
        """
        await self._apart(len(schema.definition), schema.check)
        if rows := self._listed(topic):
            await self._compare(
                topic, rows, schema, self._policies(topic).schema_compatibility, compatibility.check_consumer
            )
        else:
            await self.add(topic, schema)

    def check_without(self, topic: str) -> None:
        """Raise :class:`IncompatibleSchema` for a producer without a schema if its topic has one and requires it."""
        if self._policies(topic).schema_validation_enforced and self._listed(topic):
            raise IncompatibleSchema(
                f"topic {topic} has a schema, and takes no producer without one (schemaValidationEnforced): connect "
                "with a schema"
            )

    def strategy(self, topic: str) -> SchemaStrategy:
        """Return the topic's strategy, which decides which schemas may follow its existing ones."""
        return self._policies(topic).schema_compatibility

    async def check(self, topic: str, schema: TopicSchema) -> None:
        """Raise :class:`IncompatibleSchema` for a schema that the topic's strategy does not allow after the existing
        ones."""
        await self._apart(len(schema.definition), schema.check)
        rows = self._listed(topic)
        if schema.version not in rows:
            await self._compare(topic, rows, schema, self.strategy(topic))

    async def remove(self, topic: str) -> None:
        """Delete all schemas of the topic in this cluster. Another cluster that has them announces them again."""
        async with self._lock(topic):
            prefix = _prefix(topic)
            await self._writer.put_many([(TABLE, prefix + version, None) for version in self._listed(topic)])

    # What other clusters announce.

    async def learn(self, topic: str, announced: Sequence[RegisteredSchema]) -> int:
        """Take over schemas of another cluster. Return how many are new here, or were registered earlier than known.

        They are not compared with the schemas here, because messages of both exist already.

        Raises :class:`IncompatibleSchema`, and takes over none, for a schema that no cluster registers, and past the
        limits.
        """
        for each in announced:
            await self._apart(len(each.schema.definition), each.schema.check)
        async with self._lock(topic):
            rows = self._listed(topic)
            news = []
            for each in announced:
                row = rows.get(each.schema.version)
                if row is None or each.registered_at_ms < row.registered_at_ms:
                    news.append(each)
            if len(rows.keys() | {each.schema.version for each in news}) > ANNOUNCED_MAX:
                raise IncompatibleSchema(
                    f"topic {topic} would have over {ANNOUNCED_MAX} schemas with those of another cluster, the limit: "
                    "use fewer schemas for this topic"
                )
            if news:
                await self._put(topic, rows, news)
            return len(news)

    async def close(self) -> None:
        """Wait until no thread reads the store any more. Let none begin."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)

    def _lock(self, topic: str) -> asyncio.Lock:
        return self._changing.setdefault(_name(topic), asyncio.Lock())

    async def _apart(self, size_bytes: int, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, or raise its error.

        If it is about many bytes, they are claimed of the clients' budget first, and a thread does the work. Waiting
        for bytes keeps no thread from others. Raises :class:`StoreFailed` if the store closes before.
        """
        if size_bytes <= APART_BYTES:
            return work()
        clients = self._unpacking.clients
        # Nothing cuts it off: it waits only for threads that work, and keeps nothing when it is done.
        claim = await clients.take(CLIENT.get() or self, size_bytes, lambda: None)
        try:
            async with self._threads:
                if self._closed:
                    raise StoreFailed("the store is closed")
                running = asyncio.get_running_loop().run_in_executor(None, work)
                self._running.add(running)
                running.add_done_callback(self._running.discard)
                return await finished(running)
        finally:
            clients.give_back(claim)

    async def _compare(
        self,
        topic: str,
        rows: Mapping[bytes, _Row],
        schema: TopicSchema,
        strategy: SchemaStrategy,
        rule: Callable[[TopicSchema, Sequence[TopicSchema], SchemaStrategy], None] | None = None,
    ) -> None:
        """Raise :class:`IncompatibleSchema` if the schema may not go with those of the topic, which ``rows`` lists.

        ``rule`` compares them; None is the rule for a new schema.
        """

        def compare() -> None:
            (rule or compatibility.check)(schema, [each.schema for each in self.schemas(topic)], strategy)

        await self._apart(_size(rows) + len(schema.definition), compare)

    def _has(self, topic: str, version: bytes) -> bool:
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            return txn.get(_prefix(topic) + version) is not None

    def _policies(self, topic: str) -> TopicPolicies:
        return self._policies_of(_name(topic))

    def _listed(self, topic: str) -> dict[bytes, _Row]:
        """Return, by version, when each schema of the topic was registered, and its size. Do not copy the schemas."""
        return dict(self._read(topic, lambda row: _Row(_registered_at_ms(row), len(row))))

    def _read(self, topic: str, take: Callable[[memoryview], _T]) -> Iterator[tuple[bytes, _T]]:
        """Yield the versions that are stored of the topic, each with what ``take`` makes of its row."""
        prefix = _prefix(topic)
        with self._store.env.begin(db=self._store.tables[TABLE], buffers=True) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and (key := bytes(cursor.key())).startswith(prefix):
                yield key[len(prefix) :], take(cursor.value())
                more = cursor.next()

    async def _append(
        self,
        topic: str,
        rows: Mapping[bytes, _Row],
        schema: TopicSchema,
        schemas_max: int,
    ) -> None:
        """Store a schema as the newest of the topic, which has those of ``rows``."""
        if len(rows) >= schemas_max:
            raise IncompatibleSchema(
                f"topic {topic} has {len(rows)} schemas; {schemas_max} are allowed: use one that it has, or another "
                "topic"
            )
        newest_ms = max((row.registered_at_ms for row in rows.values()), default=-1)
        await self._put(topic, rows, [RegisteredSchema(schema, max(self._wall_clock_ms(), newest_ms + 1))])

    async def _put(self, topic: str, rows: Mapping[bytes, _Row], news: Iterable[RegisteredSchema]) -> None:
        new = {each.schema.version: json.dumps(each.as_json(), separators=(",", ":")).encode() for each in news}
        size = _size({version: row for version, row in rows.items() if version not in new})
        size += sum(map(len, new.values()))
        if size > TOPIC_BYTES_MAX:
            raise IncompatibleSchema(
                f"the schemas of topic {topic} would have {size} bytes; {TOPIC_BYTES_MAX} are allowed: use one that "
                "it has, or another topic"
            )
        prefix = _prefix(topic)
        await self._writer.put_many([(TABLE, prefix + version, row) for version, row in new.items()])
        for listener in list(self.listeners):
            listener(_name(topic))


def _registered_at_ms(row: memoryview) -> int:
    """Return when some cluster first saw the schema of a stored row."""
    found = _REGISTERED_AT.search(row[-_REGISTERED_AT_BYTES_MAX:])
    return int(found[1]) if found else int(json.loads(bytes(row))["registered_at_ms"])


def _size(rows: Mapping[bytes, _Row]) -> int:
    return sum([row.size_bytes for row in rows.values()])


def _name(topic: str) -> str:
    parsed = parse_topic(topic)
    return base_name(str(parsed)) if parsed.partition >= 0 else str(parsed)


def _prefix(topic: str) -> bytes:
    return _name(topic).encode() + _END
