"""Partitioned topics: made once, durable, and never the name of a plain topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened

from replicator.engine.errors import InvalidPartitions, InvalidTopicName, NotAllowedError
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import PARTITIONS_MAX, base_name


def test_a_partitioned_topic_has_its_partitions_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.partitioned.create("orders", 4)
            assert engine.partitioned.count(TOPIC) == engine.partitioned.count("public/default/orders") == 4
            assert sorted(topic.name for topic in engine.topics()) == [f"{TOPIC}-partition-{n}" for n in range(4)]
        async with opened(tmp_path) as engine:
            assert engine.partitioned.count(TOPIC) == 4
            await (await engine.topic(f"{TOPIC}-partition-3")).publish([message()])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("orders-partition-12", "orders"),
        ("orders-partition-x-partition-0", "orders-partition-x"),
        ("orders-partition-007", "orders"),
        ("orders-partition-archive", ""),
        ("orders-partition-1234567", ""),
        ("orders-partition-", ""),
        ("orders", ""),
        ("12", ""),
        ("-partition-0", ""),
        (".-partition-0", ""),
    ],
)
def test_only_a_name_with_an_index_is_that_of_a_partition(name: str, base: str) -> None:
    full = parse_topic(name)
    assert base_name(str(full)) == (f"persistent://public/default/{base}" if base else "")
    assert (full.partition >= 0) is bool(base)


def test_what_is_not_partitioned_has_no_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic("plain")
            assert engine.partitioned.count("plain") == engine.partitioned.count("unknown") == 0

    asyncio.run(main())


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_a_number_of_partitions_out_of_range_is_refused(tmp_path: Path, partitions: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            with pytest.raises(InvalidPartitions, match="1 to"):
                await engine.partitioned.create(TOPIC, partitions)
            assert engine.topics() == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("orders-partition-2", NotAllowedError),
        ("a/b", InvalidTopicName),
        (f"public/default/{'x' * 365}", NotAllowedError),
    ],
)
def test_a_name_that_partitions_cannot_be_made_of_is_refused(tmp_path: Path, name: str, error: type[Exception]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            with pytest.raises(error):
                await engine.partitioned.create(name, 3)
            assert engine.topics() == []

    asyncio.run(main())


def test_a_name_is_a_plain_topic_or_a_partitioned_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic("plain")
            with pytest.raises(NotAllowedError, match="without partitions"):
                await engine.partitioned.create("plain", 3)
            assert engine.partitioned.count("plain") == 0
            await engine.partitioned.create("parted", 3)
            with pytest.raises(NotAllowedError, match="no log of its own"):
                await engine.topic("parted")
            for name in ("parted-partition-3", "parted-partition-01"):
                with pytest.raises(NotAllowedError, match="is not a partition"):
                    await engine.topic(name)

    asyncio.run(main())


def test_a_plain_topic_that_is_just_being_made_keeps_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            plain = asyncio.ensure_future(engine.topic("orders"))
            await asyncio.sleep(0)
            with pytest.raises(NotAllowedError):
                await engine.partitioned.create("orders", 3)
            await plain

    asyncio.run(main())


def test_topics_that_stand_where_no_partition_can_be_are_in_the_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic("orders-partition-7")
            with pytest.raises(NotAllowedError, match="is not a partition"):
                await engine.partitioned.create("orders", 7)
            await engine.partitioned.create("orders", 8)

    asyncio.run(main())


def test_a_restart_makes_the_partitions_that_are_missing_and_another_number_is_refused(tmp_path: Path) -> None:
    """A worker that was killed after the number was stored, and before the partitions were made."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.writer.put("partitioned", TOPIC.encode(), b'{"partitions": 3}')
        async with opened(tmp_path) as engine:
            assert engine.partitioned.count(TOPIC) == len(engine.topics()) == 3
            await engine.deleting.delete(f"{TOPIC}-partition-1")
            await engine.partitioned.create(TOPIC, 3)
            assert len(engine.topics()) == 3
            with pytest.raises(NotAllowedError, match="exists with 3 partitions, not 4"):
                await engine.partitioned.create(TOPIC, 4)

    asyncio.run(main())
