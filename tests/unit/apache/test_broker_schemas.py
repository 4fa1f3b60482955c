"""Translation of schema versions between an engine and brokers, for which a stand-in answers here.

Brokers count the versions of a topic's schema. The engine makes a version from the schema's content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, opened

from replicator.apache.errors import BridgeError, BridgeHalted
from replicator.apache.schemas import BrokerSchemas
from replicator.client.errors import IncompatibleSchema
from replicator.engine.engine import Engine
from replicator.engine.schemas.schema import SCHEMA_BYTES_MAX, SchemaType, TopicSchema

FIRST, SECOND = (TopicSchema(SchemaType.STRING, b"", {"number": str(number)}) for number in (1, 2))


class Brokers:
    """A broker's registry of one topic, as far as a connector asks it."""

    def __init__(self, *schemas: TopicSchema) -> None:
        self.schemas = list(schemas)
        self.asked = 0
        self.refuses = False

    async def schema(self, topic: str, version: bytes) -> TopicSchema | None:
        self.asked += 1
        number = int.from_bytes(version, "big")
        return self.schemas[number] if number < len(self.schemas) else None

    async def register_schema(self, topic: str, schema: TopicSchema) -> bytes:
        self.asked += 1
        if self.refuses:
            raise IncompatibleSchema("not after these")
        if schema not in self.schemas:
            self.schemas.append(schema)
        return version(self.schemas.index(schema))


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def between(tmp_path: Path, brokers: Any, work: Callable[[BrokerSchemas, Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await work(BrokerSchemas(brokers, engine.schemas, TOPIC), engine)

    asyncio.run(main())


def test_what_is_fetched_is_in_the_engine_in_the_brokers_order_and_is_asked_for_once(tmp_path: Path) -> None:
    brokers = Brokers(FIRST, SECOND)

    async def work(schemas: BrokerSchemas, engine: Engine) -> None:
        for _ in range(2):
            await schemas.fetch([version(1), b"", version(0), version(1)])
        assert [each.schema for each in engine.schemas.schemas(TOPIC)] == [FIRST, SECOND]
        assert (schemas.here(version(0)), schemas.here(version(1))) == (FIRST.version, SECOND.version)
        assert schemas.here(b"") == b""
        assert brokers.asked == 2

    between(tmp_path, brokers, work)


def test_what_the_brokers_have_not_kept_is_no_version_and_what_cannot_be_kept_here_halts(tmp_path: Path) -> None:
    brokers = Brokers(TopicSchema(SchemaType.STRING, bytes(SCHEMA_BYTES_MAX + 1)))

    async def work(schemas: BrokerSchemas, engine: Engine) -> None:
        await schemas.fetch([version(7)])
        assert schemas.here(version(7)) == b""
        with pytest.raises(
            BridgeHalted,
            match=f"{TOPIC}: the worker cannot keep a schema that the brokers' messages have: the schema has",
        ):
            await schemas.fetch([version(0)])
        assert engine.schemas.schemas(TOPIC) == []

    between(tmp_path, brokers, work)


def test_a_schema_of_another_cluster_is_registered_once_and_has_the_brokers_version(tmp_path: Path) -> None:
    brokers = Brokers(FIRST)

    async def work(schemas: BrokerSchemas, engine: Engine) -> None:
        await engine.schemas.adopt(TOPIC, SECOND)
        assert [await schemas.there(SECOND.version) for _ in range(2)] == [version(1)] * 2
        assert brokers.asked == 1
        assert await schemas.there(b"") == b""

    between(tmp_path, brokers, work)


def test_one_that_is_not_known_yet_waits_and_one_that_is_refused_halts(tmp_path: Path) -> None:
    brokers = Brokers(FIRST)
    brokers.refuses = True

    async def work(schemas: BrokerSchemas, engine: Engine) -> None:
        with pytest.raises(BridgeError, match="no link has announced it yet") as unknown:
            await schemas.there(SECOND.version)
        assert not isinstance(unknown.value, BridgeHalted)
        await engine.schemas.adopt(TOPIC, SECOND)
        with pytest.raises(BridgeHalted, match=r"the brokers refuse a schema .*: not after these"):
            await schemas.there(SECOND.version)

    between(tmp_path, brokers, work)
