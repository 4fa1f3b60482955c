"""The staging area over a real store: what is refused, what waits, what goes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, batch, eventually, marker, message, opened
from staging_support import payloads_of

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import (
    AttemptAborted,
    BlockCorrupt,
    ClusterFenced,
    EngineError,
    EntryCorrupt,
    InvalidWriter,
    MessageTooLarge,
    NotAllowedError,
    StagedMissing,
    StagingFull,
    StoreFull,
    TopicNotFound,
)
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.policies import TopicPolicies
from replicator.engine.staging import area, rows
from replicator.engine.staging import service as staging_service
from replicator.engine.staging.area import StagedRun, encode_frame
from replicator.engine.staging.core import (
    KEPT_MS_MAX,
    STAGED_MS_MAX,
    STAGED_MS_MAX_FULL,
    UNKEPT_MS_MAX,
    UNKEPT_MS_MIN,
    UNUSED_SECONDS_MIN,
    StagingLimits,
)
from replicator.engine.staging.fences import FENCED_MS_MAX
from replicator.engine.staging.service import Outcome, StagingService
from replicator.engine.staging.values import (
    AttemptKey,
    CommitRequest,
    EpochKey,
    PendingCommit,
    Progress,
    Receipt,
    check_name,
)
from replicator.engine.topics.namespace_policies import NamespacePolicies

OTHER = "persistent://public/default/other"
KEY = EpochKey("w", "r", 0)
UNUSED_MS_MIN = int(UNUSED_SECONDS_MIN * 1_000)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def staging_over(
    path: Path, limits: StagingLimits | None = None, settings: EngineSettings | None = None
) -> AsyncIterator[StagingService]:
    async with opened(path, settings=settings) as engine:
        service = StagingService(engine, limits)
        service.start()
        try:
            yield service
        finally:
            await service.stop()


async def stage(
    service: StagingService, *payloads: bytes, key: EpochKey = KEY, partition: int = 0, topic: str = TOPIC
) -> Receipt:
    """Stage a sealed attempt with one batch for each payload."""
    attempt = AttemptKey(key, partition, f"a{partition}-{len(service.files.scan())}")
    service.open(attempt)
    at = 0
    for payload in payloads:
        at = await service.append(attempt, at, encode_frame(topic, [batch([payload])], [1], 1))
    await service.seal(attempt, at)
    return Receipt(partition, attempt.attempt, at, len(payloads), len(payloads))


async def commit(
    service: StagingService, *receipts: Receipt, key: EpochKey = KEY, topics: Sequence[str] = (TOPIC,)
) -> Outcome | None:
    return await service.commit(CommitRequest(key, receipts), topics, 5)


def test_a_commit_is_one_transaction_over_its_topics_as_far_as_a_step_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            engine = service._engine
            one = await stage(service, b"a", b"b")
            other = await stage(service, b"c", partition=1, topic=OTHER)
            before = engine.writer.commits
            outcome = await commit(service, other, one, topics=[TOPIC, OTHER])
            assert outcome is not None
            assert (outcome.messages, set(outcome.topics)) == (3, {TOPIC, OTHER})
            assert engine.writer.commits - before == 4, "two topics that are made, the decision, and one step"
            assert (payloads_of(engine, TOPIC), payloads_of(engine, OTHER)) == ([b"a", b"b"], [b"c"])

    asyncio.run(main())


@pytest.mark.parametrize("deduplication", [False, True])
def test_many_steps_are_published_in_order_and_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deduplication: bool
) -> None:
    monkeypatch.setattr(area, "STEP_BYTES_MAX", 1)

    async def main() -> None:
        settings = EngineSettings(policies=TopicPolicies(deduplication=deduplication))
        async with staging_over(tmp_path, settings=settings) as service:
            payloads = [b"%d" % number for number in range(10)]
            receipts = [
                await stage(service, *payloads[:5]),
                await stage(service, *payloads[5:], partition=1),
            ]
            await commit(service, *receipts)
            assert payloads_of(service._engine, TOPIC) == payloads, "entries of equal sequence ids, too"
            assert service.files.scan() == {}

    asyncio.run(main())


def test_nothing_is_staged_where_clients_would_not_get_it(tmp_path: Path) -> None:
    """At a worker beside Apache Pulsar, the brokers do not get what the worker itself publishes."""

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            service._engine.admission.clients_elsewhere = NotAllowedError("the worker of a serves no clients: see b")
            with pytest.raises(NotAllowedError) as caught:
                await stage(service, b"a")
            assert str(caught.value) == (
                "clients would not get what is written to this worker (the worker of a serves no clients: see b): "
                "write to the brokers, by a connector of Spark for them, or to an embedded cluster with a link"
            )
            assert service.files.scan() == {}

    asyncio.run(main())


def test_what_could_not_be_published_is_refused_when_it_is_staged(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            engine = service._engine
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(max_message_bytes=1_000))
            await engine.partitioned.create(OTHER, 2)
            attempt = AttemptKey(KEY, 0, "a")
            whole = encode_frame(TOPIC, [message()], [1], 1)
            cases: list[tuple[bytes, type[EngineError], str]] = [
                (whole[:-1], BlockCorrupt, "cut short"),
                (whole[:-1] + b"x", BlockCorrupt, "checksum"),
                (encode_frame(TOPIC, [b"no entry"], [1], 1), EntryCorrupt, "shorter than its frame"),
                (encode_frame(TOPIC, [message()], [2], 1), EntryCorrupt, "other batch sizes"),
                (encode_frame(TOPIC, [marker()], [1], 1), EntryCorrupt, "with a marker type, which only workers write"),
                (encode_frame(TOPIC, [message(b"x" * 2_000)], [1], 1), MessageTooLarge, "max_message_bytes"),
                (encode_frame(OTHER, [message()], [1], 1), NotAllowedError, "is partitioned"),
                (encode_frame("orders", [message()], [1], 1), NotAllowedError, "must name its topic in full"),
            ]
            for body, error, text in cases:
                with pytest.raises(error, match=text):
                    await service.append(attempt, 0, body)
            assert service.core.staged_bytes == 0

    asyncio.run(main())


def test_a_fence_refuses_before_the_decision_and_delays_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "STEP_BYTES_MAX", 1)

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            engine = service._engine
            receipt = await stage(service, b"a", b"b")
            engine.admission.fence(ClusterFenced("elsewhere"), None)
            with pytest.raises(ClusterFenced):
                await commit(service, receipt)
            with pytest.raises(ClusterFenced):
                service.open(AttemptKey(KEY, 1, "b"))
            engine.admission.fence(None, None)
            read_step = service.files.read_step

            def fenced_after_the_first(*arguments: object) -> area.Step:
                step = read_step(*arguments)  # type: ignore[arg-type]
                if step.last:
                    engine.admission.fence(ClusterFenced("elsewhere"), None)
                return step

            monkeypatch.setattr(service.files, "read_step", fenced_after_the_first)
            assert await service.commit(CommitRequest(KEY, [receipt]), [TOPIC], 0.5) is None
            assert service.obstacles == {KEY: "elsewhere"}
            assert payloads_of(engine, TOPIC) == [b"a"]
            assert await service.abort(KEY) == 0, "it is decided"
            engine.admission.fence(None, None)
            outcome = await commit(service, receipt)
            assert outcome is not None
            assert payloads_of(engine, TOPIC) == [b"a", b"b"]

    asyncio.run(main())


def test_a_step_is_not_appended_behind_a_fence_that_closes_while_the_step_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planned switch takes what is in the log after its fence as all that there is."""

    async def main() -> None:
        settings = EngineSettings(policies=TopicPolicies(deduplication=True))
        async with staging_over(tmp_path, settings=settings) as service:
            engine, loop, numbered = service._engine, asyncio.get_running_loop(), staging_service._numbered
            receipt = await stage(service, b"a")

            def fenced_meanwhile(run: StagedRun) -> object:
                fenced = threading.Event()

                def fence() -> None:
                    engine.admission.fence(ClusterFenced("elsewhere"), None)
                    fenced.set()

                loop.call_soon_threadsafe(fence)
                assert fenced.wait(60)
                return numbered(run)

            with monkeypatch.context() as patch:
                patch.setattr(staging_service, "_numbered", fenced_meanwhile)
                committing = asyncio.ensure_future(commit(service, receipt))
                await eventually(lambda: service.obstacles == {KEY: "elsewhere"} or committing.done())
                assert payloads_of(engine, TOPIC) == []
            engine.admission.fence(None, None)
            await committing
            assert payloads_of(engine, TOPIC) == [b"a"]

    asyncio.run(main())


def test_a_topic_that_is_deleted_after_the_decision_gets_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "STEP_BYTES_MAX", 1)

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            engine = service._engine
            receipts = [await stage(service, b"a"), await stage(service, b"b", partition=1, topic=OTHER)]
            engine.admission.fence(None, None)
            publish_staged = engine.writer.publish_staged

            async def deleting(*arguments: object) -> object:
                places = await publish_staged(*arguments)  # type: ignore[arg-type]
                if engine.find(OTHER) is not None:
                    await engine.deleting.delete(OTHER)
                return places

            monkeypatch.setattr(engine.writer, "publish_staged", deleting)
            outcome = await commit(service, *receipts, topics=[TOPIC, OTHER])
            assert outcome is not None
            assert (list(outcome.topics), outcome.dropped_topics) == ([TOPIC], {OTHER})
            assert engine.find(OTHER) is None

    asyncio.run(main())


def test_a_store_without_room_refuses_before_the_decision(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(store_bytes_max=400_000)
        async with staging_over(tmp_path, settings=settings) as service:
            receipt = await stage(service, b"x" * 1_000_000)
            with pytest.raises(StoreFull, match="the commit has"):
                await commit(service, receipt)
            assert service.core.pending() == []
            assert service._engine.find(TOPIC) is None, "no topic was made for what is refused"

    asyncio.run(main())


def test_a_store_says_that_it_is_full_while_it_refuses_a_commit_that_would_fit_into_an_emptier_one(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        settings = EngineSettings(store_bytes_max=4_000_000, segments=SegmentSettings(segment_bytes=0))
        async with staging_over(tmp_path, settings=settings) as service:
            engine = service._engine
            topic = await engine.topic(TOPIC)
            receipt = await stage(service, b"x" * 1_000_000)
            while engine.store.has_room(receipt.bytes):
                await topic.publish([message(b"y" * 100_000)])
            assert engine.writer.full() is None
            with pytest.raises(StoreFull, match="the commit has"):
                await commit(service, receipt)
            assert "limit of 4000000 bytes" in str(engine.writer.full())
            await topic.publish([message(b"z")])
            await topic.trimming.trim(topic.log.last)
            assert engine.writer.full() is None
            assert await commit(service, receipt)

    asyncio.run(main())


def test_an_attempt_that_a_worker_finds_at_its_start_is_verified_before_it_is_sealed(tmp_path: Path) -> None:
    attempt = AttemptKey(KEY, 0, "a")
    frame = encode_frame(TOPIC, [message()], [1], 1)

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            service.open(attempt)
            await service.append(attempt, 0, frame)
        file = service.files._file(attempt)
        content = file.read_bytes()
        file.write_bytes(content[:-3] + b"???")  # what a power failure may leave of what was not synced
        async with staging_over(tmp_path) as service:
            assert await service.append(attempt, 0, frame) == len(frame), "a request that is repeated changes nothing"
            with pytest.raises(BlockCorrupt):
                await service.seal(attempt, len(frame))
        file.write_bytes(content)
        async with staging_over(tmp_path) as service:
            await service.seal(attempt, len(frame))
            with pytest.raises(StagedMissing, match="is finished"):
                await service.append(attempt, len(frame), frame)

    asyncio.run(main())


def test_what_nobody_comes_back_for_is_swept_epoch_by_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    async def main() -> None:
        async with staging_over(tmp_path, settings=EngineSettings(wall_clock_ms=clock)) as service:
            monkeypatch.setattr(service, "_monotonic", lambda: clock.now_ms / 1_000)
            await stage(service, b"a")
            other = EpochKey("v", "r", 0)
            unkept = await stage(service, b"b", key=other)
            await service.commit(CommitRequest(other, [unkept], kept=False), [TOPIC], 5)
            clock.now_ms += STAGED_MS_MAX
            await stage(service, b"a", partition=1)
            clock.now_ms += STAGED_MS_MAX
            await service.sweep()
            assert service.core.attempts == 2, "a straggler of the epoch has touched it"
            clock.now_ms += UNKEPT_MS_MAX
            await service.sweep()
            assert (service.core.attempts, service.files.scan(), service.core.writers.keys()) == (0, {}, {"v"})
            clock.now_ms += UNUSED_MS_MIN
            await service.sweep()
            assert service.core.writers == {}
            await commit(service, await stage(service, b"c"))
            clock.now_ms += KEPT_MS_MAX
            await service.sweep()
            assert service.core.writers.keys() == {"w"}
            clock.now_ms += 1
            await service.sweep()
            clock.now_ms += UNUSED_MS_MIN
            await service.sweep()
            assert service.status()["swept_attempts"] == 2
        async with staging_over(tmp_path) as service:
            assert service.core.writers == {}

    asyncio.run(main())


def test_a_clock_that_is_far_ahead_for_a_while_makes_no_writer_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may start with a wrong clock, which is set right a while later."""
    clock, seconds = Clock(), 0.0

    async def main() -> None:
        nonlocal seconds
        settings = EngineSettings(wall_clock_ms=clock)
        async with staging_over(tmp_path, settings=settings) as service:
            await commit(service, await stage(service, b"a"))
        clock.now_ms += 2 * KEPT_MS_MAX
        async with staging_over(tmp_path, settings=settings) as service:
            monkeypatch.setattr(service, "_monotonic", lambda: seconds)
            await service.sweep()
            seconds += UNUSED_SECONDS_MIN - 1
            await service.sweep()
            assert service.core.writers.keys() == {"w"}
            clock.now_ms -= 2 * KEPT_MS_MAX
            await service.sweep()
            clock.now_ms += 2 * KEPT_MS_MAX
            seconds += UNUSED_SECONDS_MIN - 1
            await service.sweep()
            assert service.core.writers.keys() == {"w"}, "each time counts for itself"
            clock.now_ms -= 4 * KEPT_MS_MAX
            another = EpochKey("w", "r", 1)
            before = service.core.writers["w"].facts.committed_ms
            await commit(service, await stage(service, b"b", key=another), key=another)
            assert service.core.writers["w"].facts.committed_ms == before, "a clock that is behind makes nothing older"
        async with staging_over(tmp_path) as service:
            assert service.open(AttemptKey(KEY, 0, "again")).done

    asyncio.run(main())


def test_what_a_dead_job_staged_counts_from_its_last_write_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            await stage(service, b"a")
            await stage(service, b"b", key=EpochKey("v", "r", 0))
            file = service.files._file(AttemptKey(KEY, 0, "a0-0"))
        long_ago = time.time() - STAGED_MS_MAX / 1_000 - 60
        os.utime(file, (long_ago, long_ago))
        async with staging_over(tmp_path) as service:
            await service.sweep()
            assert [key.epoch.writer for key in service.files.scan()] == ["v"]
            assert service.core.attempts == 1

    asyncio.run(main())


@pytest.mark.parametrize("of_attempts", [False, True])
def test_what_nobody_has_touched_for_a_while_makes_room_where_others_find_none(
    tmp_path: Path, of_attempts: bool
) -> None:
    clock, dead = Clock(), EpochKey("dead", "r", 0)
    limits = StagingLimits(attempts_max=2) if of_attempts else StagingLimits(staged_bytes_max=3_000)

    async def main() -> None:
        async with staging_over(tmp_path, limits, EngineSettings(wall_clock_ms=clock)) as service:
            await stage(service, b"x" * 2_000, key=dead)
            clock.now_ms += STAGED_MS_MAX_FULL
            await stage(service, b"a", partition=1)
            largest, _ = service.status()["largest"]
            assert (largest["writer"], largest["untouched_ms"]) == ("dead", STAGED_MS_MAX_FULL)
            assert largest["bytes"] > 2_000
            clock.now_ms += 1
            await service.sweep()
            assert service.core.attempts == 2, "there was room for all"
            for _ in range(2):
                with pytest.raises(StagingFull):
                    await stage(service, b"x" * 2_000, partition=2)
                clock.now_ms += 1
            await service.sweep()
            assert {key.epoch.writer for key in service.files.scan()} == {"w"}, "what is in use stays"
            await stage(service, b"x" * 2_000, partition=3)

    asyncio.run(main())


def test_jobs_without_names_make_room_for_other_writers_and_those_with_names_stay(tmp_path: Path) -> None:
    """A stream that writes each of its batches by a nameless job makes many writers a day."""
    clock, limits = Clock(), StagingLimits(writers_max=3)

    async def committed(service: StagingService, writer: str, *, kept: bool) -> None:
        key = EpochKey(writer, "r", 0)
        clock.now_ms += 1
        outcome = await service.commit(
            CommitRequest(key, [await stage(service, b"a", key=key)], kept=kept), [TOPIC], 60
        )
        assert outcome is not None

    async def main() -> None:
        async with staging_over(tmp_path, limits, EngineSettings(wall_clock_ms=clock)) as service:
            await committed(service, "named", kept=True)
            await committed(service, "job-1", kept=False)
            await committed(service, "job-2", kept=False)
            with pytest.raises(StagingFull, match="the oldest job without a name has ended only now"):
                await committed(service, "job-3", kept=False)
            assert service.open(AttemptKey(EpochKey("job-1", "r", 0), 0, "a")).done, "its driver may ask again"
            clock.now_ms += UNKEPT_MS_MIN
            await committed(service, "other", kept=True)
            assert service.core.writers.keys() == {"named", "job-2", "other"}
        async with staging_over(tmp_path, limits, EngineSettings(wall_clock_ms=clock)) as service:
            assert service.core.writers.keys() == {"named", "job-2", "other"}
            await committed(service, "third", kept=True)
            with pytest.raises(StagingFull, match="all of them have names"):
                await committed(service, "fourth", kept=True)

    asyncio.run(main())


def test_topics_that_may_not_be_made_are_named_before_anything_is_staged(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            engine = service._engine
            await engine.partitioned.create(OTHER, 3)
            assert await service.partitions([OTHER, TOPIC]) == {OTHER: 3, TOPIC: 0}
            await engine.catalog.set_namespace("public/default", NamespacePolicies(auto_topic_creation=False))
            with pytest.raises(TopicNotFound, match="auto_topic_creation"):
                await service.partitions([TOPIC])

    asyncio.run(main())


def test_an_abort_waits_for_what_a_request_is_just_writing_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            begun, go_on, append = threading.Event(), threading.Event(), service.files.append

            def held(key: AttemptKey, at: int, body: bytes) -> int:
                begun.set()
                assert go_on.wait(60)
                return append(key, at, body)

            monkeypatch.setattr(service.files, "append", held)
            attempt = AttemptKey(KEY, 0, "job.a")
            frame = encode_frame(TOPIC, [batch([b"a"])], [1], 1)
            appended = asyncio.ensure_future(service.append(attempt, 0, frame))
            await asyncio.to_thread(begun.wait, 60)
            aborted = asyncio.ensure_future(service.abort(KEY, job="job"))
            await eventually(lambda: service.core.attempts == 0)
            assert not aborted.done()
            go_on.set()
            assert await aborted == 1
            with pytest.raises(AttemptAborted, match=r"the job of attempt 'job.a' was aborted"):
                await appended
            assert (service.files.scan(), service.core.staged_bytes) == ({}, 0)

    asyncio.run(main())


def test_a_file_that_a_crash_left_behind_an_abort_goes_at_the_next_start(tmp_path: Path) -> None:
    attempt = AttemptKey(KEY, 0, "job.a")

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            await stage(service, b"a")
            await service.abort(KEY, job="job")
            service.files.append(attempt, 0, b"left")
        async with staging_over(tmp_path) as service:
            await eventually(lambda: service.files.scan().keys() == {AttemptKey(KEY, 0, "a0-0")})
            assert service.core.attempts == 1
            with pytest.raises(AttemptAborted):
                service.open(attempt)

    asyncio.run(main())


def test_fences_are_limited_and_go_with_time_in_the_store_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(service: StagingService) -> set[str]:
        with service._engine.store.env.begin(db=service._engine.store.tables[rows.TABLE]) as txn:
            stored = rows.load_fences((bytes(key), bytes(value)) for key, value in txn.cursor())
        names = {fence.name for fence in stored}
        assert {name for name in "abc" if service.core.fences.covers(AttemptKey(KEY, 0, f"{name}.x"))} == names
        return names

    async def main() -> None:
        async with staging_over(tmp_path, StagingLimits(fences_max=2)) as service:
            clock = Clock()
            monkeypatch.setattr(service, "_clock", clock)
            await service.abort(KEY, job="a")
            await service.abort(KEY, attempts=["a"])
            await service.abort(KEY, job="b")
            assert fenced(service) == {"a", "b"}
            clock.now_ms += 1
            await service.abort(KEY, job="c")
            assert fenced(service) == {"b", "c"}, "the oldest went"
            clock.now_ms += FENCED_MS_MAX
            await service.sweep()
            assert fenced(service) == {"c"}
            clock.now_ms += 1
            await service.sweep()
            assert fenced(service) == set()

    asyncio.run(main())


def test_attempts_are_limited_and_names_are_checked(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path, StagingLimits(attempts_max=1)) as service:
            service.open(AttemptKey(KEY, 0, "a"))
            with pytest.raises(StagingFull, match="1 attempts of tasks are staged, the limit"):
                service.open(AttemptKey(KEY, 0, "b"))
            assert await service.abort(KEY) == 1
            service.open(AttemptKey(KEY, 0, "b"))
            await eventually(lambda: service.core.attempts == 1)

    asyncio.run(main())
    for name in ("", ".hidden", "a/b", "a~b", "x" * 65):
        with pytest.raises(InvalidWriter):
            check_name("writer", name)


def test_a_publishing_that_is_ended_after_its_last_step_decides_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step is durable, and its files are being deleted: all that is left is to answer."""

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            begun, go_on, drop = threading.Event(), threading.Event(), service.files.drop

            def held(keys: Sequence[AttemptKey]) -> None:
                if keys:  # else it is the first sweep
                    begun.set()
                    assert go_on.wait(60)
                drop(keys)

            monkeypatch.setattr(service.files, "drop", held)
            committed = asyncio.ensure_future(commit(service, await stage(service, b"a")))
            await asyncio.to_thread(begun.wait, 60)
            assert service._publishing[KEY].task.interrupt()
            go_on.set()
            outcome = await committed
            assert outcome is not None
            assert (outcome.messages, set(outcome.topics), outcome.repeated) == (1, {TOPIC}, False)
            assert (service.counters.commits, service.status()["publishing"]) == (1, [])
            await commit(service, await stage(service, b"b", key=EpochKey("w", "r", 1)), key=EpochKey("w", "r", 1))
        async with staging_over(tmp_path) as service:
            assert service.core.pending() == []
            assert payloads_of(service._engine, TOPIC) == [b"a", b"b"]

    asyncio.run(main())


@pytest.mark.parametrize("damaged", [False, True])
def test_a_decided_commit_whose_files_are_lost_is_taken_back_and_its_batch_can_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """A backup that is made between the decision and its end holds the decision, and no staged file."""
    monkeypatch.setattr(area, "STEP_BYTES_MAX", 1)

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            receipts = (await stage(service, b"a"), await stage(service, b"b", partition=1))
            decided = PendingCommit(KEY, receipts, {}, kept=True)
            await service._engine.writer.put_many(rows.rows_of_decision(decided))
            files = [service.files._file(AttemptKey(KEY, each.partition, each.attempt)) for each in receipts]
        if damaged:
            files[0].write_bytes(files[0].read_bytes()[:-3] + b"???")
        else:
            files[1].unlink()  # not the first one: nothing of the others may be published either
        async with staging_over(tmp_path) as service:
            engine = service._engine
            await eventually(lambda: service.core.pending() == [])
            again = [await stage(service, b"a"), await stage(service, b"b", partition=1)]
            outcome = await commit(service, *again)
            assert outcome is not None
            assert (outcome.messages, payloads_of(engine, TOPIC)) == (2, [b"a", b"b"])
            another = EpochKey("w", "r", 1)
            await commit(service, await stage(service, b"c", key=another), key=another)
            assert payloads_of(engine, TOPIC) == [b"a", b"b", b"c"]
        async with staging_over(tmp_path) as service:
            assert service.core.pending() == []

    asyncio.run(main())


@pytest.mark.parametrize("damaged", [False, True])
def test_a_commit_whose_files_are_lost_in_its_middle_ends_and_says_what_may_come_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """A backup that is made while a commit is published holds its progress, and no staged file. Its writer goes on."""
    monkeypatch.setattr(area, "STEP_BYTES_MAX", 1)

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            receipts = (await stage(service, b"a"), await stage(service, b"b", partition=1))
            decided = PendingCommit(KEY, receipts, {}, kept=True)
            await service._engine.writer.put_many(
                [*rows.rows_of_decision(decided), *rows.rows_of_step("w", Progress(1, 0))]
            )
            file = service.files._file(AttemptKey(KEY, 1, receipts[1].attempt))
        if damaged:
            file.write_bytes(file.read_bytes()[:-3] + b"???")
        else:
            file.unlink()
        async with staging_over(tmp_path) as service:
            read_step, go_on = service.files.read_step, threading.Event()

            def held(*arguments: object) -> area.Step:
                assert go_on.wait(60)
                return read_step(*arguments)  # type: ignore[arg-type]

            monkeypatch.setattr(service.files, "read_step", held)
            asked = asyncio.ensure_future(commit(service, *receipts))
            await eventually(lambda: service._publishing)
            go_on.set()
            with pytest.raises(StagedMissing, match="Up to 1 of the commit's 2 messages are published already"):
                await asked
            assert (service.core.pending(), service.status()["torn_commits"]) == ([], 1)
            with pytest.raises(StagedMissing, match="run the batch again"):  # who lost the answer asks again
                await commit(service, *receipts)
            assert payloads_of(service._engine, TOPIC) == [], "the first part is not published once more"
            outcome = await commit(service, await stage(service, b"a"), await stage(service, b"b", partition=1))
            assert outcome is not None
            assert outcome.messages == 2
            another = EpochKey("w", "s", 0)
            await commit(service, await stage(service, b"c", key=another), key=another)
        async with staging_over(tmp_path) as service:
            assert service.core.pending() == []
            assert service.core.writers["w"].facts.commits == 2

    asyncio.run(main())


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_staged_file_that_cannot_be_read_ends_its_commit_or_is_shown_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A bad sector stays bad, so the commit ends. Too many open files pass."""

    async def main() -> None:
        async with staging_over(tmp_path) as service:
            receipt = await stage(service, b"a")
            path_open, failing = Path.open, [True]

            def opened_file(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
                if mode == "rb" and failing and path.parent == service.files.path:
                    raise OSError(number, "the disk says so", str(path))
                return path_open(path, mode, *arguments, **more)

            monkeypatch.setattr(Path, "open", opened_file)
            asked = asyncio.ensure_future(commit(service, receipt))
            if number == errno.EIO:
                with pytest.raises(BlockCorrupt, match="the disk has an error there"):
                    await asked
                assert (service.core.pending(), service.status()["publishing"]) == ([], [])
                failing.clear()
            else:
                await eventually(lambda: "the disk says so" in str(service.status()["publishing"]))
                failing.clear()
                await asked
                assert service.status()["publishing"] == []
                assert payloads_of(service._engine, TOPIC) == [b"a"]

    asyncio.run(main())


def test_a_decision_that_the_store_would_not_take_back_is_shown_and_taken_back_with_a_sweep(tmp_path: Path) -> None:
    async def main() -> None:
        async with staging_over(tmp_path) as service:
            receipt = await stage(service, b"a")
            await service._engine.writer.put_many(rows.rows_of_decision(PendingCommit(KEY, [receipt], {}, kept=True)))
            service.files.drop(list(service.files.scan()))
        async with opened(tmp_path) as engine:
            service = StagingService(engine)

            async def full(*_: object, **__: object) -> None:
                raise StoreFull("full")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine.writer, "put_many", full)
                service.start()
                await eventually(lambda: service._publishing == {})
                (shown,) = service.status()["publishing"]
                assert shown["obstacle"] == "full"
            await service.sweep()
            await eventually(lambda: service.core.pending() == [])
            another = EpochKey("w", "s", 0)
            await commit(service, await stage(service, b"c", key=another), key=another)
            await service.stop()

    asyncio.run(main())


def test_an_abort_that_the_store_refused_is_written_down_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = AttemptKey(KEY, 0, "job.a")

    async def main() -> None:
        async with staging_over(tmp_path) as service:

            async def full(*_: object, **__: object) -> None:
                raise StoreFull("full")

            with monkeypatch.context() as patch:
                patch.setattr(service._engine.writer, "put_many", full)
                for _ in range(2):
                    with pytest.raises(StoreFull):
                        await service.abort(KEY, job="job")
            with pytest.raises(AttemptAborted):
                service.open(attempt)
            await service.abort(KEY, job="job")
        async with staging_over(tmp_path) as service:
            with pytest.raises(AttemptAborted):
                service.open(attempt)

    asyncio.run(main())
