"""The repository on a real PostgreSQL: what is written is read, twice is once, clusters do not see each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from postgres_support import opened

from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository import (
    AuditEntry,
    DrillRun,
    FailoverEpoch,
    LinkState,
    RepositoryUnavailable,
    RowsRefused,
    SnapshotRepository,
    SubscriptionState,
)

TOPIC = "persistent://public/default/flights"
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def mapping(local: int, remote: int, peer: str = "eu-west", snapshot_id: str = "s") -> SnapshotMapping:
    return SnapshotMapping(snapshot_id, Position(7, local), peer, Position(9, remote))


def state(name: str, entry: int, topic: str = TOPIC, generation: int = 1) -> SubscriptionState:
    return SubscriptionState(topic, name, generation, Position(7, entry), replicated=True)


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


def test_thinning_removes_what_is_not_kept_and_nothing_else(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        await repository.record_mappings([(TOPIC, mapping(entry, entry)) for entry in range(10)])
        await repository.record_mappings([("persistent://a/b/c", mapping(0, 0))])
        kept = [mapping(entry, entry).local for entry in range(4, 10)]
        assert await repository.keep_mappings(TOPIC, mapping(0, 0).peer, kept) == 4
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
            await west.keep_mappings(TOPIC, mapping(1, 2).peer, [])
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


def test_what_is_acknowledged_beyond_and_what_was_deleted_is_kept_with_the_states(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        vector = {"us-east": {"through": "7:4", "beyond": 12}}
        exact = replace(state("exact", 4), acked_beyond=12, holes=3, ack_vector=vector)
        buried = SubscriptionState.buried(TOPIC, "buried", 8)
        await repository.save_subscription_states([exact, buried])
        assert await repository.subscription_states() == [exact]
        assert await repository.subscription_states(TOPIC, tombstones=True) == [buried, exact]
        await repository.save_subscription_states([state("buried", 1, generation=9)])
        assert await repository.subscription_states() == [state("buried", 1, generation=9), exact]

    in_repository(body)


def test_mappings_that_are_not_kept_are_removed_for_that_topic_and_peer_alone(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        await repository.record_mappings([(TOPIC, mapping(entry, entry)) for entry in range(6)])
        await repository.record_mappings(
            [(TOPIC, mapping(1, 1, peer="ap-south")), ("persistent://a/b/c", mapping(1, 1))]
        )
        assert await repository.keep_mappings(TOPIC, "eu-west", [Position(7, 2), Position(7, 5), Position(9, 9)]) == 4
        assert [each.local.entry for each in await repository.mappings(TOPIC, "eu-west")] == [2, 5]
        assert await repository.keep_mappings(TOPIC, "eu-west", []) == 2
        assert await repository.count_mappings() == 2

    in_repository(body)


def test_of_a_link_and_topic_the_last_state_stands(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        first = LinkState("us-east>eu-west", TOPIC, "copying", Position(7, 3), 10)
        gap = LinkState("us-east>eu-west", TOPIC, "gap", Position(7, 3), 20, "x" * 2_000)
        other = LinkState("us-east>eu-west#bulk", TOPIC, "idle", BEFORE_ALL, 0)
        await repository.save_link_states([first, other])
        await repository.save_link_states([gap])
        assert await repository.link_states() == [replace(gap, detail="x" * 999 + "…"), other]
        assert await repository.link_states(other.link_key) == [other]
        assert await repository.delete_link(gap.link_key) == 1
        await repository.delete_topics([TOPIC])
        assert await repository.link_states() == []

    in_repository(body)


def test_failover_epochs_are_completed_in_place_and_come_newest_first(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        running = FailoverEpoch(1, "us-east", "eu-west", "planned", NOW)
        done = replace(running, completed_at=NOW + timedelta(seconds=3), report={"lost": 0})
        back = FailoverEpoch(2, "eu-west", "us-east", "failback", NOW + timedelta(days=1))
        await repository.record_failover_epochs([running, back])
        await repository.record_failover_epochs([done])
        assert await repository.failover_epochs() == [back, done]
        assert await repository.failover_epochs(newest=1) == [back]

    in_repository(body)


def test_drill_runs_are_listed_without_and_shown_with_their_reports(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        run = DrillRun("d1", "kill-primary", "digest", NOW)
        await repository.save_drill_run(run)
        done = replace(run, ended_at=NOW + timedelta(seconds=9), passed=True, report={"lost": 0})
        later = DrillRun("d2", "partition", "digest", NOW + timedelta(hours=1), passed=False)
        await repository.save_drill_run(done)
        await repository.save_drill_run(later)
        assert await repository.drill_runs() == [later, replace(done, report=None)]
        assert await repository.drill_runs(scenario="kill-primary") == [replace(done, report=None)]
        assert await repository.drill_runs(newest=1) == [later]
        assert await repository.drill_run("d1") == done
        assert await repository.drill_run("d3") is None

    in_repository(body)


def test_an_audit_entry_that_is_sent_twice_stands_once_and_is_never_changed(in_repository: InRepository) -> None:
    async def body(repository: SnapshotRepository) -> None:
        seek = AuditEntry(uuid4(), NOW, "ops", "seek", f"{TOPIC} sub", {"to": "7:3"})
        failover = AuditEntry(uuid4(), NOW + timedelta(seconds=1), "ops", "failover", "us-east")
        await repository.append_audit([seek, failover])
        await repository.append_audit([replace(seek, actor="somebody else")])
        await repository.append_audit([])
        assert await repository.audit_log() == [failover, seek]
        assert await repository.audit_log(action="seek") == [seek]
        assert await repository.audit_log(since=NOW + timedelta(milliseconds=1)) == [failover]
        assert await repository.audit_log(newest=1) == [failover]

    in_repository(body)
