"""The schemas of this cluster's topics: kept in the store, the partitions of a topic sharing theirs.

Invariants:

1. Each schema has the version that its content gives it (:mod:`replicator.engine.schemas.schema`), in every cluster.
2. A schema is stored before a producer hears its version, so no message with a version that this cluster gave is ever
   published before its schema is durable. Links announce schemas before the messages behind them (ADR 40).
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
"""Of one topic, after which its clients register no more."""
ANNOUNCED_MAX: Final = 2 * SCHEMAS_MAX
"""Of one topic, after which nothing is taken over from other clusters: both sides may have been full."""
TOPIC_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all schemas of one topic: a list is read whole to compare a new one with it."""
APART_BYTES: Final = 16 * 1024
"""Schemas of more bytes are read and compared in a thread: that takes milliseconds, or much longer."""
APART_MAX: Final = 2
"""Threads that compare at once. Each slows the event loop down a little."""
REGISTERED_AT_MS_MAX: Final = 1 << 53
"""Latest time of a registration: what JSON holds exactly, beyond any clock."""
_REGISTERED_AT: Final = re.compile(rb'"registered_at_ms":(\d+)\}\Z')
"""The end of a row, as :meth:`RegisteredSchema.as_json` has it."""
_REGISTERED_AT_BYTES_MAX: Final = 64
"""Length of the end of a row that holds when the schema was registered."""
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
        """Return the schema of a row. Raise :class:`ValueError`, :class:`KeyError` or :class:`TypeError`."""
        registered_at_ms = row["registered_at_ms"]
        if type(registered_at_ms) is not int or not 0 <= registered_at_ms < REGISTERED_AT_MS_MAX:
            raise ValueError("the time of a schema is no time")
        return cls(TopicSchema.from_json(row), registered_at_ms)


class _Row(NamedTuple):
    """Stored schema, as far as it is known without reading it."""

    registered_at_ms: int
    size_bytes: int


class SchemaRegistry:
    """Reads from the store whenever it is asked: clients ask once as they connect."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        wall_clock_ms: Callable[[], int],
        policies_of: Callable[[str], TopicPolicies] = lambda topic: TopicPolicies(),
        unpacking: Unpacking | None = None,
    ) -> None:
        """``policies_of`` gives what counts for a topic, by its full name without a partition's number. ``unpacking``
        has the budget in which large schemas count."""
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
        """The schema of that version, or the newest. Raises :class:`SchemaNotFound`."""
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
        """The version of a producer's schema, which is registered if it is new.

        Raises :class:`IncompatibleSchema` for one that the topic's policies do not let follow those that it has.
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
                    f"topic {topic} has no such schema, and its clients may not register any (isAllowAutoUpdateSchema)"
                )
            await self._compare(topic, rows, schema, policies.schema_compatibility)
            await self._append(topic, rows, schema, SCHEMAS_MAX)
            return version

    async def adopt(self, topic: str, schema: TopicSchema) -> bytes:
        """The version of a schema that the brokers beside this worker have, which is registered if it is new. It is not
        compared with what is here: messages of it exist already.

        Raises :class:`IncompatibleSchema` for what no cluster registers, and past the limits.
        """
        await self._apart(len(schema.definition), schema.check)
        async with self._lock(topic):
            rows = self._listed(topic)
            if schema.version not in rows:
                await self._append(topic, rows, schema, ANNOUNCED_MAX)
            return schema.version

    async def add_or_check_consumer(self, topic: str, schema: TopicSchema) -> None:
        """A consumer's schema: of a topic without one it becomes the first; else it must read what is written.

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
        """A producer brings no schema: raises :class:`IncompatibleSchema` where its topic has one and insists."""
        if self._policies(topic).schema_validation_enforced and self._listed(topic):
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
        rows = self._listed(topic)
        if schema.version not in rows:
            await self._compare(topic, rows, schema, self.strategy(topic))

    async def remove(self, topic: str) -> None:
        """Forget all schemas of the topic, in this cluster; one that still has them announces them again."""
        async with self._lock(topic):
            prefix = _prefix(topic)
            await self._writer.put_many([(TABLE, prefix + version, None) for version in self._listed(topic)])

    # What other clusters announce.

    async def learn(self, topic: str, announced: Sequence[RegisteredSchema]) -> int:
        """Take over what another cluster has, and return how many of its schemas are new here, or older than they were.

        They are not compared with those that are here: messages of both exist already.

        Raises :class:`IncompatibleSchema` for what no cluster registers, and past the limits; then none is taken over.
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
                raise IncompatibleSchema(f"topic {topic} would have over {ANNOUNCED_MAX} schemas, the limit")
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
            raise IncompatibleSchema(f"topic {topic} has {len(rows)} schemas; {schemas_max} are allowed")
        newest_ms = max((row.registered_at_ms for row in rows.values()), default=-1)
        await self._put(topic, rows, [RegisteredSchema(schema, max(self._wall_clock_ms(), newest_ms + 1))])

    async def _put(self, topic: str, rows: Mapping[bytes, _Row], news: Iterable[RegisteredSchema]) -> None:
        new = {each.schema.version: json.dumps(each.as_json(), separators=(",", ":")).encode() for each in news}
        size = _size({version: row for version, row in rows.items() if version not in new})
        size += sum(map(len, new.values()))
        if size > TOPIC_BYTES_MAX:
            raise IncompatibleSchema(
                f"the schemas of topic {topic} would have {size} bytes; {TOPIC_BYTES_MAX} are allowed"
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
