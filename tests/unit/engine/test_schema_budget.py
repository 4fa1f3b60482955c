"""Reading large schemas waits for room in the clients' budget of uncompressed bytes; reading small ones does not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, opened

from replicator.engine.errors import IncompatibleSchema, StoreFailed
from replicator.engine.schemas import compatibility, registry
from replicator.engine.schemas.registry import RegisteredSchema
from replicator.engine.schemas.schema import SchemaType, TopicSchema
from replicator.running.byte_budget import SHARES, WaitingBudget
from replicator.running.pacing import CLIENT
from replicator.running.turns import LoopShare

LARGE = 200_000
OTHER = "persistent://public/default/other"


def schema(number: int, size_bytes: int = LARGE) -> TopicSchema:
    fields = [{"name": f"f{each}", "type": ["null", "int"], "default": None} for each in range(number)]
    definition = {"type": "record", "name": "R", "fields": fields, "doc": "x" * size_bytes}
    return TopicSchema(SchemaType.AVRO, json.dumps(definition).encode())


def test_many_checks_of_a_topic_with_large_schemas_hold_no_more_than_one_clients_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    compare = compatibility.check

    async def main() -> None:
        async with opened(tmp_path) as engine:
            budget = engine.unpacking.clients = WaitingBudget(SHARES * 10 * LARGE)

            def noted(*arguments: Any) -> None:
                used.append(budget.used_bytes)
                compare(*arguments)

            for number in range(5):
                await engine.schemas.add(TOPIC, schema(number))
            monkeypatch.setattr(compatibility, "check", noted)
            await asyncio.gather(*(engine.schemas.check(TOPIC, schema(10 + number)) for number in range(20)))
            assert len(used) == 20
            assert min(used) > 5 * LARGE
            assert max(used) <= 10 * LARGE
            await eventually(lambda: budget.used_bytes == 0)

    asyncio.run(main())


def test_large_schemas_wait_for_room_and_small_ones_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            budget = engine.unpacking.clients
            await engine.schemas.add(TOPIC, schema(1))
            whole = await budget.take("somebody", budget.bytes_max, lambda: None)
            large = asyncio.ensure_future(engine.schemas.check(TOPIC, schema(2)))
            await eventually(lambda: budget.waiting == 1)
            await engine.schemas.add(OTHER, schema(1, 100))
            await engine.schemas.add(OTHER, schema(2, 100))
            assert not large.done()
            given_up = asyncio.ensure_future(engine.schemas.check(TOPIC, schema(3)))
            await eventually(lambda: budget.waiting == 2)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            budget.give_back(whole)
            await large
            await eventually(lambda: budget.used_bytes == budget.waiting == 0)

    asyncio.run(main())


def test_a_client_that_waits_for_room_keeps_no_thread_from_other_clients(tmp_path: Path) -> None:
    slow_client, other_client = LoopShare("slow"), LoopShare("other")

    async def check_as(client: LoopShare, schemas: registry.SchemaRegistry, number: int) -> None:
        CLIENT.set(client)
        await schemas.check(TOPIC, schema(number))

    async def main() -> None:
        async with opened(tmp_path) as engine:
            budget = engine.unpacking.clients
            await engine.schemas.add(TOPIC, schema(1))
            share = await budget.take(slow_client, budget.bytes_max // SHARES, lambda: None)
            slow = [asyncio.ensure_future(check_as(slow_client, engine.schemas, 2 + each)) for each in range(4)]
            await eventually(lambda: budget.waiting == len(slow))
            other = asyncio.ensure_future(check_as(other_client, engine.schemas, 10))
            await eventually(other.done)
            assert not any(each.done() for each in slow)
            budget.give_back(share)
            await asyncio.gather(*slow, other)

    asyncio.run(main())


def test_no_thread_reads_a_store_that_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a schema waits for a thread, and the store is closed meanwhile: the request fails."""
    go_on = threading.Event()
    begun: list[int] = []

    def held(*arguments: Any) -> None:
        begun.append(1)
        assert go_on.wait(30)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.schemas.add(TOPIC, schema(1))
            monkeypatch.setattr(compatibility, "check", held)
            checks = [
                asyncio.ensure_future(engine.schemas.check(TOPIC, schema(2 + each)))
                for each in range(registry.APART_MAX + 2)
            ]
            await eventually(lambda: len(begun) == registry.APART_MAX)
            closing = asyncio.ensure_future(engine.schemas.close())
            await asyncio.sleep(0)  # it has begun
            go_on.set()
            await closing
            ended = await asyncio.gather(*checks, return_exceptions=True)
            assert Counter(map(type, ended)) == {type(None): registry.APART_MAX, StoreFailed: 2}
            assert len(begun) == registry.APART_MAX

    asyncio.run(main())


def test_schemas_are_found_by_their_versions_without_reading_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            versions = [await engine.schemas.add(TOPIC, schema(number)) for number in range(3)]
            assert engine.schemas.versions(TOPIC) == versions
            assert engine.schemas.find(TOPIC) == schema(2)
            found = engine.schemas.registered(TOPIC, versions[0])
            assert found is not None
            assert found.schema == schema(0)
            assert engine.schemas.registered(TOPIC, b"no") is None
            assert await engine.schemas.look(TOPIC, len) == 3
            earlier = RegisteredSchema(schema(2), 1)
            assert await engine.schemas.learn(TOPIC, [earlier]) == 1, "an earlier time is news"
            assert engine.schemas.versions(TOPIC) == [versions[2], *versions[:2]]

    asyncio.run(main())


@pytest.mark.parametrize(
    "broken",
    [
        TopicSchema(SchemaType.STRING, b"", {"half": "\ud800"}),
        TopicSchema(SchemaType.STRING, b"", {"\ud800": "half"}),
        TopicSchema(SchemaType.STRING, b"", {}, "\ud800"),
    ],
    ids=["value", "key", "name"],
)
def test_a_schema_with_half_a_character_is_refused(tmp_path: Path, broken: TopicSchema) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            for asked in (
                engine.schemas.add(TOPIC, broken),
                engine.schemas.adopt(TOPIC, broken),
                engine.schemas.learn(TOPIC, [RegisteredSchema(broken, 1)]),
                engine.schemas.check(TOPIC, broken),
            ):
                with pytest.raises(IncompatibleSchema, match="no text"):
                    await asked

    asyncio.run(main())


@pytest.mark.parametrize("at", [float("inf"), float("nan"), -1, 2**70, "5", None, True])
def test_a_time_that_is_none_or_properties_that_are_no_text_are_the_senders_fault(at: Any) -> None:
    row = RegisteredSchema(schema(1, 10), 5).as_json()
    assert RegisteredSchema.from_json(row).registered_at_ms == 5
    for changed in ({"registered_at_ms": at}, {"properties": [at]}, {"properties": {"k": 1}}, {"name": at}):
        if changed != {"name": "5"}:
            with pytest.raises((ValueError, TypeError)):
                RegisteredSchema.from_json({**row, **changed})
