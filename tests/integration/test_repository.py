"""The repository on a real PostgreSQL: what is written is read, twice is once, clusters do not see each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from replicator.database import Database
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository import RepositoryUnavailable, RowsRefused, SnapshotRepository, SubscriptionState

TOPIC = "persistent://public/default/flights"


def mapping(local: int, remote: int, peer: str = "eu-west", snapshot_id: str = "s") -> SnapshotMapping:
    return SnapshotMapping(snapshot_id, Position(7, local), peer, Position(9, remote))


def state(name: str, entry: int, topic: str = TOPIC, generation: int = 1) -> SubscriptionState:
    return SubscriptionState(topic, name, generation, Position(7, entry), replicated=True)


@asynccontextmanager
async def opened(url: str, data: Path) -> AsyncIterator[Database]:
    database = Database(url, data, cluster="us-east", known_good=False)
    try:
        await database.start()
        yield database
    finally:
        await database.stop()


@pytest.fixture
def in_repository(
    postgres_url: str, data_dir: Path
) -> Callable[[Callable[[SnapshotRepository], Awaitable[None]]], None]:
    """Runs a coroutine function with the repository of ``us-east``."""

    def run(body: Callable[[SnapshotRepository], Awaitable[None]]) -> None:
        async def main() -> None:
            async with opened(postgres_url, data_dir) as database:
                assert database.engine is not None
                await body(SnapshotRepository(database.engine, "us-east"))

        asyncio.run(main())

    return run


InRepository = Callable[[Callable[[SnapshotRepository], Awaitable[None]]], None]


def test_mappings_come_back_by_peer_and_oldest_first(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        written = [mapping(30, 3), mapping(9, 1), mapping(100, 4), mapping(5, 5, peer="ap-south")]
        await repository.record_mappings([(TOPIC, item) for item in written])
        assert await repository.mappings(TOPIC) == [
            mapping(5, 5, peer="ap-south"),
            mapping(9, 1),
            mapping(30, 3),
            mapping(100, 4),
        ]
        assert await repository.mappings(TOPIC, "ap-south") == [mapping(5, 5, peer="ap-south")]
        assert await repository.mappings("persistent://public/default/other") == []

    in_repository(body)


def test_what_is_written_twice_stands_once_with_its_last_values(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        for _ in range(2):
            await repository.record_mappings([(TOPIC, mapping(9, 1)), (TOPIC, mapping(9, 2, snapshot_id="later"))])
            await repository.save_subscription_states([state("s", 4), state("s", 5), state("t", 1)])
        assert await repository.mappings(TOPIC) == [mapping(9, 2, snapshot_id="later")]
        assert await repository.subscription_states() == [state("s", 5), state("t", 1)]
        await repository.save_subscription_states([state("s", 2, generation=2)])
        assert await repository.subscription_states(TOPIC) == [state("s", 2, generation=2), state("t", 1)]

    in_repository(body)


def test_the_positions_at_both_ends_of_their_range_are_kept(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        last = Position(2**63 - 1, 2**63 - 1)
        edge = SnapshotMapping("s", BEFORE_ALL, "eu-west", last)
        await repository.record_mappings([(TOPIC, edge)])
        assert await repository.mappings(TOPIC) == [edge]

    in_repository(body)


def test_more_rows_than_a_statement_takes_are_written(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        await repository.record_mappings([(TOPIC, mapping(entry, entry)) for entry in range(2_345)])
        assert await repository.count_mappings() == await repository.count_mappings(TOPIC) == 2_345
        await repository.record_mappings([])
        await repository.save_subscription_states([])

    in_repository(body)


def test_pruning_removes_what_is_below_and_nothing_else(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        await repository.record_mappings([(TOPIC, mapping(entry, entry)) for entry in range(10)])
        await repository.record_mappings([("persistent://a/b/c", mapping(0, 0))])
        assert await repository.prune_mappings(TOPIC, Position(7, 4)) == 4
        assert [item.local.entry for item in await repository.mappings(TOPIC)] == [4, 5, 6, 7, 8, 9]
        assert await repository.count_mappings("persistent://a/b/c") == 1

    in_repository(body)


def test_rows_that_were_not_written_again_since_a_moment_are_removed(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        await repository.record_mappings([(TOPIC, mapping(1, 1)), (TOPIC, mapping(2, 2))])
        await repository.save_subscription_states([state("s", 1), state("t", 1)])
        moment = await repository.now()
        await repository.record_mappings([(TOPIC, mapping(2, 2)), (TOPIC, mapping(3, 3))])
        await repository.save_subscription_states([state("t", 1)])
        assert await repository.prune_not_written_since(moment) == 2
        assert await repository.mappings(TOPIC) == [mapping(2, 2), mapping(3, 3)]
        assert await repository.subscription_states() == [state("t", 1)]

    in_repository(body)


def test_a_deleted_subscription_is_gone_and_its_neighbours_are_not(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        other = state("s", 3, topic="persistent://a/b/c")
        await repository.save_subscription_states([state("s", 1), state("t", 2), other])
        await repository.delete_subscription_state(TOPIC, "s")
        await repository.delete_subscription_state(TOPIC, "never there")
        assert await repository.subscription_states() == [other, state("t", 2)]

    in_repository(body)


def test_clusters_that_share_a_database_do_not_see_each_other(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with opened(postgres_url, data_dir) as database:
            assert database.engine is not None
            east, west = (SnapshotRepository(database.engine, name) for name in ("us-east", "us-west"))
            await east.record_mappings([(TOPIC, mapping(1, 1))])
            await west.record_mappings([(TOPIC, mapping(1, 2))])
            await east.save_subscription_states([state("s", 1)])
            await west.prune_mappings(TOPIC, Position(7, 100))
            await west.delete_subscription_state(TOPIC, "s")
            assert await east.mappings(TOPIC) == [mapping(1, 1)]
            assert await east.subscription_states() == [state("s", 1)]
            assert await west.mappings(TOPIC) == []

    asyncio.run(main())


def test_a_failed_write_keeps_nothing_of_its_batch(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        rows = [state(f"s{index}", index) for index in range(1_500)]
        with pytest.raises(RowsRefused):
            await repository.save_subscription_states([*rows, state("nul\0", 1)])
        assert await repository.subscription_states() == []

    in_repository(body)


def test_errors_say_what_is_wrong_without_statement_and_values(postgres_url: str, data_dir: Path) -> None:
    async def main() -> None:
        async with opened(postgres_url, data_dir) as database:
            assert database.engine is not None
            repository = SnapshotRepository(database.engine, "us-east")
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute("DROP TABLE snapshot_mappings")
            with pytest.raises(RepositoryUnavailable) as caught:
                await repository.record_mappings([(TOPIC, mapping(1, 1, snapshot_id="not for the log"))])
            assert "snapshot_mappings" in str(caught.value)
            assert "INSERT" not in str(caught.value)
            assert "not for the log" not in str(caught.value)

    asyncio.run(main())
