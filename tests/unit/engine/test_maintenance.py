"""TTL, backlog quotas and retention in a running engine, with the clock in hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_support import PUBLISH_TIME_MS, TOPIC, eventually, make_block, marker, message, opened, subscribed

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BacklogQuotaExceeded, StoreFull
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, SubscriptionType
from replicator.engine.upkeep.maintenance import LOOK_BYTES_MIN
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

EVICTION = QuotaPolicy.CONSUMER_BACKLOG_EVICTION


class Clock:
    """Wall time in milliseconds, from :data:`PUBLISH_TIME_MS` on."""

    def __init__(self) -> None:
        self.now_ms = PUBLISH_TIME_MS

    def __call__(self) -> int:
        return self.now_ms

    def pass_seconds(self, seconds: float) -> None:
        self.now_ms += int(1000 * seconds)

    def message(self, size_bytes: int = 10) -> bytes:
        """Return an entry that is published now."""
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=self.now_ms)
        return encode_entry(metadata, b"x" * size_bytes)


class Bench:
    """One engine with one topic."""

    def __init__(self, engine: Engine, topic: Topic, clock: Clock) -> None:
        self.engine, self.topic, self.clock = engine, topic, clock

    async def publish(self, count: int, *, seconds_apart: float = 0, size_bytes: int = 10) -> list[Position]:
        """``count`` messages, each a block of its own."""
        positions: list[Position] = []
        for _ in range(count):
            positions += await self.topic.publish([self.clock.message(size_bytes)])
            self.clock.pass_seconds(seconds_apart)
        return positions

    def readable(self) -> list[Position]:
        return [entry.position for entry in self.topic.reading.entries(BEFORE_ALL, None, 10**6, 10**9)]

    def block_bytes(self) -> int:
        (span,) = self.engine.store.block_spans(self.topic.topic_id, BEFORE_ALL, blocks_max=1)
        return span.size_bytes


@asynccontextmanager
async def bench(path: Path, policies: TopicPolicies | None = None, clock: Clock | None = None) -> AsyncIterator[Bench]:
    clock = clock or Clock()
    settings = EngineSettings(wall_clock_ms=clock, policies=policies or TopicPolicies())
    async with opened(path, settings=settings) as engine:
        yield Bench(engine, await engine.topic(TOPIC), clock)


def run(path: Path, policies: TopicPolicies, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench(path, policies) as made:
            await scenario(made)

    asyncio.run(main())


NOTHING_KEPT = TopicPolicies(retention=Retention(0, 0))


# Retention.


def test_by_default_nothing_is_ever_trimmed(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        positions = await bench.publish(3)
        bench.clock.pass_seconds(10**9)
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions

    run(tmp_path, TopicPolicies(), scenario)


def test_what_every_durable_subscription_consumed_goes_and_the_last_block_stays(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        fast, _ = await subscribed(bench.topic, "fast")
        slow, _ = await subscribed(bench.topic, "slow")
        positions = await bench.publish(6)
        await fast.acknowledge([Ack(position) for position in positions])
        await slow.acknowledge([Ack(position) for position in positions[:2]])
        await slow.acknowledge([Ack(positions[3])])
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[2:]
        assert bench.topic.log.first == positions[2]
        assert bench.engine.loaded.cache.get(bench.topic.topic_id, positions[1]) is None
        assert bench.engine.loaded.cache.get(bench.topic.topic_id, positions[2]) is not None
        slow_cursor = bench.topic.subscriptions["slow"].cursor
        assert slow_cursor.backlog_entries() == 3
        assert bench.topic.subscriptions["slow"].backlog_messages() == 3
        await slow.acknowledge([Ack(positions[2]), Ack(positions[4]), Ack(positions[5])])
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[5:]
        assert bench.topic.subscriptions["slow"].backlog_messages() == 0
        assert bench.topic.log.messages == 6

    run(tmp_path, NOTHING_KEPT, scenario)


def test_a_subscription_that_is_not_durable_holds_nothing_back_and_goes_on_at_what_is_left(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        _, inbox = await subscribed(bench.topic, "reader", SubscriptionType.EXCLUSIVE, durable=False, permits=1)
        positions = await bench.publish(5)
        await inbox.holds(1)
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[4:]
        reader = bench.topic.subscriptions["reader"]
        assert reader.backlog_messages() == 1
        next(iter(reader.consumers.values())).flow(10)
        await inbox.holds(2)
        assert inbox.positions == [positions[0], positions[4]]

    run(tmp_path, NOTHING_KEPT, scenario)


def test_without_subscriptions_the_policy_alone_decides(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        positions = await bench.publish(5, seconds_apart=10)
        await bench.topic.policies.set(TopicPolicies(retention=Retention(age_seconds_max=30)))
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[3:]

    run(tmp_path, TopicPolicies(), scenario)


def test_what_is_consumed_is_kept_up_to_the_size_of_the_policy(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        positions = await bench.publish(200)
        kept_bytes = 70 * bench.block_bytes()
        await bench.topic.policies.set(TopicPolicies(retention=Retention(bytes_max=kept_bytes)))
        for gone in (130, 131, 180):
            await bench.engine.maintenance.run_once()
            assert bench.readable() == positions[gone:]
            positions += await bench.publish(1 if gone == 130 else 49)

    run(tmp_path, TopicPolicies(), scenario)


def test_a_link_that_lags_holds_the_log_back(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        positions = await bench.publish(5)
        bench.topic.holds.positions["link to eu-west"] = positions[1]
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[2:]
        bench.topic.holds.positions["link to eu-west"] = positions[4]
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[4:]

    run(tmp_path, NOTHING_KEPT, scenario)


def test_a_block_of_which_one_entry_is_wanted_stays_whole(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        positions = await bench.topic.publish([bench.clock.message()] * 4)
        await bench.publish(1)
        await consumer.acknowledge([Ack(position) for position in positions[:3]])
        await bench.engine.maintenance.run_once()
        assert bench.topic.log.first == positions[0]
        await consumer.acknowledge([Ack(positions[3])])
        await bench.engine.maintenance.run_once()
        assert bench.topic.log.first is not None
        assert bench.topic.log.first > positions[3]

    run(tmp_path, NOTHING_KEPT, scenario)


def test_a_seek_back_while_a_pass_runs_keeps_what_it_went_back_to(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        positions = await bench.publish(5)
        await consumer.acknowledge([Ack(position) for position in positions])
        subscription = bench.topic.subscriptions["sub"]
        pass_over = asyncio.ensure_future(bench.engine.maintenance.run_once())
        await asyncio.sleep(0)
        await subscription.moves.seek(positions[1])
        await pass_over
        first = bench.topic.log.first
        assert first is not None
        assert subscription.cursor.mark_delete == max(positions[0], bench.topic.log.trimmed)
        await bench.engine.maintenance.run_once()
        assert bench.topic.log.first == first

    run(tmp_path, NOTHING_KEPT, scenario)


def test_invariant_5_whoever_asks_for_a_trim_gets_no_more_than_nobody_wants(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        positions = await bench.publish(5)
        await consumer.acknowledge([Ack(position) for position in positions[:3]])
        bench.topic.holds.positions["link to eu-west"] = positions[0]
        await bench.topic.trimming.trim(bench.topic.log.last)
        assert bench.readable() == positions[1:]
        bench.topic.holds.positions.clear()
        await bench.topic.trimming.trim(bench.topic.log.last)
        assert bench.readable() == positions[3:]
        await bench.topic.subscriptions["sub"].moves.seek(positions[1])
        assert bench.topic.subscriptions["sub"].cursor.mark_delete == positions[2], "what is gone cannot be sought"

    run(tmp_path, TopicPolicies(), scenario)


def test_a_store_that_is_full_can_be_trimmed_and_takes_messages_again(tmp_path: Path) -> None:
    """Deleting and acknowledging take fresh pages too; they have a reserve."""

    async def main() -> None:
        settings = EngineSettings(store_bytes_max=2**20, policies=NOTHING_KEPT)
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic, permits=0)
            positions: list[Position] = []

            async def fill(size: int) -> None:
                while True:
                    positions.extend(await topic.publish([message(b"x" * size)]))

            for size in (50_000, 1_000, 10):
                with pytest.raises(StoreFull):
                    await fill(size)
            for position in positions[1:-1:2]:
                await consumer.acknowledge([Ack(position)])
            await consumer.acknowledge([Ack(position) for position in positions])
            await engine.maintenance.run_once()
            assert engine.store.block_spans(topic.topic_id, BEFORE_ALL, blocks_max=9)[0].first == positions[-1]
            for _ in range(15):
                await topic.publish([message(b"x" * 50_000)])

    asyncio.run(main())


def test_what_a_store_did_not_delete_is_deleted_by_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        async def refuse(topic_id: int, upto: Position) -> None:
            raise StoreFull("in this test")

        positions = await bench.publish(3)
        with monkeypatch.context() as patch:
            patch.setattr(bench.engine.writer, "trim", refuse)
            await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[2:], "what cannot be read any more is out of the way at once"
        await bench.engine.maintenance.run_once()
        spans = bench.engine.store.block_spans(bench.topic.topic_id, BEFORE_ALL, blocks_max=9)
        assert [span.first for span in spans] == positions[2:]

    run(tmp_path, NOTHING_KEPT, scenario)


# What must survive trimming.


def test_invariant_10_a_trimmed_topic_reuses_nothing_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with bench(tmp_path, NOTHING_KEPT, clock) as made:
            consumer, _ = await subscribed(made.topic)
            positions = await made.publish(5)
            await consumer.acknowledge([Ack(position) for position in positions])
            await made.engine.maintenance.run_once()
            vector, messages = made.topic.origins.message_vector(), made.topic.log.messages
        async with bench(tmp_path, NOTHING_KEPT, clock) as made:
            topic = made.topic
            assert (
                (topic.origins.message_vector(), topic.log.messages)
                == (vector, messages)
                == ({"us-east": positions[4]}, 5)
            )
            assert (topic.log.trimmed, topic.log.first) == (positions[3], positions[4])
            assert topic.origins.vector() == {"us-east": positions[4]}
            (following,) = await made.publish(1)
            assert following > positions[4]
            assert topic.reading.messages_through(positions[2]) == 4, (
                "what is trimmed counts, as far as it is told apart"
            )
            assert topic.subscriptions["sub"].backlog_messages() == 1

    asyncio.run(main())


def test_invariant_2_what_was_trimmed_is_not_copied_again_and_its_mapping_is_gone(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        def copied(first: int) -> CopiedBlock:
            previous = Position(3, first - 1) if first else BEFORE_ALL
            return CopiedBlock(previous, make_block(Position(3, first), [message()] * 2, origin="eu-west"))

        await bench.topic.writing.copy([copied(0)])
        (own,) = await bench.publish(1)
        await bench.topic.writing.copy([copied(2)])
        topic, store = bench.topic, bench.engine.store
        await bench.publish(1)
        where = store.translate(topic.topic_id, "eu-west", 7, Position(3, 3))
        await bench.topic.trimming.trim(own)
        assert topic.log.trimmed == own
        assert store.translate(topic.topic_id, "eu-west", 7, Position(3, 1)) is None
        assert store.translate(topic.topic_id, "eu-west", 7, Position(3, 3)) == where
        assert await topic.writing.copy([copied(0), copied(2)]) == []
        await topic.trimming.trim(topic.log.last)
        assert store.message_vector(topic.topic_id, store.high_waters(topic.topic_id)) == topic.origins.message_vector()
        assert topic.origins.message_vector()["eu-west"] == Position(3, 3)

    run(tmp_path, NOTHING_KEPT, scenario)


def test_more_blocks_than_one_transaction_takes_are_trimmed_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.engine.log.trim.TRIM_BLOCKS_MAX", 3)

    async def scenario(bench: Bench) -> None:
        positions = await bench.publish(11)
        commits = bench.engine.writer.commits
        await bench.engine.maintenance.run_once()
        assert bench.engine.writer.commits - commits == 4
        stored = bench.engine.store.block_spans(bench.topic.topic_id, BEFORE_ALL, blocks_max=100)
        assert [span.first for span in stored] == positions[10:]

    run(tmp_path, NOTHING_KEPT, scenario)


def test_a_late_acknowledgement_of_what_is_trimmed_is_harmless(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        positions = await bench.publish(4)
        await consumer.acknowledge([Ack(position) for position in positions[:3]])
        await bench.engine.maintenance.run_once()
        await consumer.acknowledge([Ack(positions[0]), Ack(positions[1], (0,))])
        assert bench.topic.subscriptions["sub"].cursor.mark_delete == positions[2]

    run(tmp_path, NOTHING_KEPT, scenario)


def test_markers_go_with_the_log_and_do_not_count(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        first = await bench.publish(1)
        await bench.topic.writing.marker(marker())
        second = await bench.publish(1)
        await bench.topic.writing.marker(marker())
        assert len(bench.topic.log.markers) == 2
        await consumer.acknowledge([Ack(first[0])])
        await bench.engine.maintenance.run_once()
        assert bench.readable()[0] == second[0]
        assert len(bench.topic.log.markers) == 1
        assert list(bench.engine.store.marker_runs(bench.topic.topic_id)) == [(bench.topic.log.last, 1)]
        assert bench.topic.subscriptions["sub"].backlog_messages() == 1

    run(tmp_path, NOTHING_KEPT, scenario)


# TTL.


def test_what_is_older_than_the_ttl_expires_for_durable_subscriptions(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, "durable", permits=0)
        await subscribed(bench.topic, "reader", durable=False, permits=0)
        positions = await bench.publish(2, seconds_apart=10)
        await bench.topic.writing.marker(marker())
        positions += await bench.publish(2, seconds_apart=10)
        await bench.engine.maintenance.run_once()
        assert bench.topic.subscriptions["durable"].backlog_messages() == 3
        bench.clock.pass_seconds(10)
        await bench.engine.maintenance.run_once()
        durable, reader = (bench.topic.subscriptions[name].cursor for name in ("durable", "reader"))
        assert durable.mark_delete == Position(positions[2].ledger, positions[2].entry - 1), "over the marker"
        assert reader.mark_delete == BEFORE_ALL
        assert bench.readable()[0] == positions[0], "TTL consumes, retention deletes"

    run(tmp_path, TopicPolicies(message_ttl_seconds=30), scenario)


def test_what_expired_survives_a_restart_and_can_be_trimmed_in_the_same_pass(tmp_path: Path) -> None:
    async def main() -> None:
        clock, policies = Clock(), TopicPolicies(retention=Retention(0, 0), message_ttl_seconds=30)
        async with bench(tmp_path, policies, clock) as made:
            await subscribed(made.topic, permits=0)
            positions = await made.publish(4, seconds_apart=20)
            await made.engine.maintenance.run_once()
            assert made.readable() == positions[3:]
        async with bench(tmp_path, policies, clock) as made:
            assert made.topic.subscriptions["sub"].cursor.mark_delete == positions[2]

    asyncio.run(main())


def test_messages_of_one_block_expire_each_in_its_time(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, permits=0)
        entries: list[bytes] = []
        for _ in range(4):
            entries.append(bench.clock.message())
            bench.clock.pass_seconds(10)
        positions = await bench.topic.publish(entries)
        await bench.engine.maintenance.run_once()
        assert bench.topic.subscriptions["sub"].cursor.mark_delete == positions[1]

    run(tmp_path, TopicPolicies(message_ttl_seconds=25), scenario)


# Backlog quotas.


@pytest.mark.parametrize("limit", ["bytes", "age"])
def test_publishes_wait_while_a_backlog_is_over_its_quota_and_go_on_when_it_is_consumed(
    tmp_path: Path, limit: str
) -> None:
    async def scenario(bench: Bench) -> None:
        consumer, _ = await subscribed(bench.topic)
        positions = await bench.publish(3, seconds_apart=10)
        quota = BacklogQuota(bytes_max=2 * bench.block_bytes()) if limit == "bytes" else BacklogQuota(None, 25)
        await bench.topic.policies.set(TopicPolicies(backlog_quota=quota))
        await bench.engine.maintenance.run_once()
        assert bench.topic.writing.quota_exceeded is QuotaPolicy.PRODUCER_REQUEST_HOLD
        waiting = asyncio.ensure_future(bench.publish(1))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await consumer.acknowledge([Ack(positions[0])])
        await asyncio.wait_for(waiting, 5)
        assert bench.topic.writing.quota_exceeded is None

    run(tmp_path, TopicPolicies(), scenario)


def test_publishes_are_refused_by_name_where_the_policy_says_so(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, permits=0)
        await bench.publish(3)
        await bench.engine.maintenance.run_once()
        with pytest.raises(BacklogQuotaExceeded):
            await bench.publish(1)
        await bench.topic.subscriptions["sub"].moves.clear_backlog()
        await eventually(lambda: bench.topic.writing.quota_exceeded is None, "the quota to be met")
        await bench.publish(1)

    run(tmp_path, TopicPolicies(backlog_quota=BacklogQuota(1, None, QuotaPolicy.PRODUCER_EXCEPTION)), scenario)


def test_deleting_the_slow_subscription_lets_publishes_go_on(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, permits=0)
        await bench.publish(3)
        await bench.engine.maintenance.run_once()
        await bench.topic.subscriptions["sub"].deleting.delete(force=True)
        await eventually(lambda: bench.topic.writing.quota_exceeded is None, "the quota to be met")

    run(tmp_path, TopicPolicies(backlog_quota=BacklogQuota(1)), scenario)


def test_taking_the_quota_away_lets_publishes_go_on_at_the_next_pass(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, permits=0)
        await bench.publish(3)
        await bench.engine.maintenance.run_once()
        assert bench.topic.writing.quota_exceeded is not None
        await bench.topic.policies.set(TopicPolicies())
        await bench.engine.maintenance.run_once()
        assert bench.topic.writing.quota_exceeded is None

    run(tmp_path, TopicPolicies(backlog_quota=BacklogQuota(1)), scenario)


def test_eviction_by_size_moves_the_slow_over_their_oldest_and_nobody_else(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        slow, _ = await subscribed(bench.topic, "slow", permits=0)
        fast, _ = await subscribed(bench.topic, "fast")
        positions = await bench.publish(200)
        await fast.acknowledge([Ack(position) for position in positions[:150]])
        quota = BacklogQuota(100 * bench.block_bytes(), None, EVICTION)
        await bench.topic.policies.set(TopicPolicies(backlog_quota=quota))
        await bench.engine.maintenance.run_once()
        moved = {name: each.cursor.mark_delete for name, each in bench.topic.subscriptions.items()}
        assert moved == {"slow": positions[109], "fast": positions[149]}
        assert bench.topic.writing.quota_exceeded is None
        await slow.acknowledge([Ack(positions[120])])

    run(tmp_path, TopicPolicies(), scenario)


def test_eviction_by_age_moves_over_what_is_too_old(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, permits=0)
        positions = await bench.publish(5, seconds_apart=10)
        await bench.engine.maintenance.run_once()
        assert bench.topic.subscriptions["sub"].cursor.mark_delete == positions[1]

    run(tmp_path, TopicPolicies(backlog_quota=BacklogQuota(None, 30, EVICTION)), scenario)


def test_a_reader_that_is_not_durable_is_no_backlog(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await subscribed(bench.topic, durable=False, permits=0)
        await bench.publish(3)
        await bench.engine.maintenance.run_once()
        assert bench.topic.writing.quota_exceeded is None

    run(tmp_path, TopicPolicies(backlog_quota=BacklogQuota(1, 0)), scenario)


# Policies, and the passes themselves.


def test_policies_of_a_topic_survive_a_restart_and_can_be_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        own = TopicPolicies(retention=Retention(60, None), max_consumers=3)
        async with bench(tmp_path, NOTHING_KEPT) as made:
            assert made.topic.policies.effective == NOTHING_KEPT
            await made.topic.policies.set(own)
        async with bench(tmp_path, NOTHING_KEPT) as made:
            assert made.topic.policies.effective == own
            await made.topic.policies.set(None)
            assert made.topic.policies.effective == NOTHING_KEPT
        async with bench(tmp_path) as made:
            assert made.topic.policies.effective == TopicPolicies()

    asyncio.run(main())


def test_passes_come_by_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(policies=NOTHING_KEPT, maintenance_seconds=0.02)
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            for _ in range(2):
                positions = [(await topic.publish([message()]))[0] for _ in range(3)]
                await eventually(lambda last=positions[-1]: topic.log.first == last, "the log to be trimmed")

    asyncio.run(main())


def test_what_comes_fast_is_trimmed_as_it_comes_though_no_pass_is_due(tmp_path: Path) -> None:
    size = 4_000_000

    async def main() -> None:
        policies = TopicPolicies(retention=Retention(None, 3 * size))
        async with opened(tmp_path, settings=EngineSettings(policies=policies, maintenance_seconds=3600)) as engine:
            bench = Bench(engine, await engine.topic(TOPIC), Clock())
            for _ in range(3):  # each time as much as a look waits for, and what is kept
                await bench.publish(LOOK_BYTES_MIN // size + 1, size_bytes=size)
                last = bench.topic.log.last
                await eventually(lambda: len(bench.readable()) == 2, "only what is kept is there")
                assert bench.readable()[-1] == last

    asyncio.run(main())


def test_a_topic_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        broken = await bench.engine.topic("a-broken-one")
        await broken.publish([message()])
        with bench.engine.store.env.begin(write=True, db=bench.engine.store.tables["blocks"]) as txn:
            ((key, value),) = list(txn.cursor())
            txn.put(key, value[:20] + b"XXXX" + value[24:])
        positions = await bench.publish(3)
        await bench.engine.maintenance.run_once()
        assert bench.readable() == positions[2:]

    run(tmp_path, NOTHING_KEPT, scenario)
