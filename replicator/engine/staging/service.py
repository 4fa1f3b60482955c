"""Staging area of one worker: carries out the decisions of :mod:`replicator.engine.staging.core` on files and the
engine.

1. A thread checks the data of tasks (frames, checksums, entries, the topic's limits), and appends it to the attempt's
   file.
2. The core checks a commit. Its topics are created, and must take messages, and the store must have room. Then the
   decision is made durable, and a task of the worker publishes the commit, step by step.
3. A step that cannot be done now (the cluster is fenced, a quota is exceeded, the store is full) is tried again until
   it can: :attr:`StagingService.obstacles` has the reason. Commits that a worker finds when it starts go on like that.
4. An abort is answered only when it is durable and its files are gone, even a file that was just being written.
5. A topic that is deleted after the decision gets nothing more, as if its part had been published before the deletion.
6. No decided commit stands still: what could not be published, or taken back, is tried again with each sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_never, wait_exponential

from replicator.engine.engine import Engine
from replicator.engine.errors import (
    BlockCorrupt,
    EngineError,
    MessageTooLarge,
    NotAllowedError,
    StagedMissing,
    StoreFailed,
    StoreFull,
    TooBusy,
    TopicNotFound,
)
from replicator.engine.log.requests import StagedPart
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.deduplication import SequencedEntry
from replicator.engine.producing.publishing import PUBLISH_ENTRIES_MAX, check_entries
from replicator.engine.staging import rows
from replicator.engine.staging.area import StagedRun, StagingFiles, Step, check_frames
from replicator.engine.staging.core import StagingCore, StagingLimits
from replicator.engine.staging.figures import StagingCounters, figures
from replicator.engine.staging.values import (
    WRITE_ELSEWHERE,
    AttemptKey,
    CommitRequest,
    EpochKey,
    Opened,
    PendingCommit,
    Progress,
    SourceMark,
    check_commit,
)
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.running.short_tasks import to_the_end
from replicator.running.supervisor import SupervisedTask
from replicator.running.turns import FairScheduler
from snapshots.position import Position

SWEEP_SECONDS: Final = 60.0
RETRY_SECONDS_MAX: Final = 5.0
REQUESTS_BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit of request bodies that are checked and written at the same time, which bounds the memory that many tasks can
use."""
TOPICS_REPORTED_MAX: Final = 1_000
"""Limit of topics in the outcome of a commit."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Outcome:
    """Result of a commit, or its state so far. ``topics`` has first and last position by topic, at most
    :data:`TOPICS_REPORTED_MAX`. ``dropped_topics`` were deleted meanwhile. With ``repeated``, the commit had been
    published before."""

    repeated: bool = False
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    topics: dict[str, tuple[Position, Position]] = field(default_factory=dict)
    dropped_topics: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Publishing:
    """A commit that is being published. ``outcome`` is set when it is complete. ``so_far`` outlives a task that ends
    before."""

    task: SupervisedTask
    outcome: asyncio.Future[Outcome]
    so_far: Outcome


class StagingService:
    """Staging area of one worker. Call :meth:`start` once the engine is open, and :meth:`stop` before it is closed.
    Runs on the engine's event loop."""

    def __init__(self, engine: Engine, limits: StagingLimits | None = None) -> None:
        self._engine = engine
        self._clock = engine.writer.wall_clock_ms
        self._monotonic = time.monotonic
        self.files = StagingFiles(engine.store.path)
        with engine.store.env.begin(db=engine.store.tables[rows.TABLE]) as txn:
            found = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        self.core = StagingCore(
            rows.load_writers(found), self.files.scan(), self._clock(), limits, rows.load_fences(found)
        )
        self.counters = StagingCounters()
        self.obstacles: dict[EpochKey, str] = {}
        """Reasons why commits that are being published do not go on at the moment."""
        self._decided: set[EpochKey] = {commit.key for commit in self.core.pending()}
        """Commits whose decision is durable."""
        self._publishing: dict[EpochKey, _Publishing] = {}
        self._upkeep = engine.supervisor.task("staging upkeep", "staging upkeep", self._sweep_periodically)
        self._unwritten_fences: dict[bytes, rows.Row] = {}
        """Fence rows, by key, that the core has and the store does not have yet."""
        self._body_bytes = 0
        self._appending: dict[AttemptKey, asyncio.Event] = {}
        """Files that threads are writing to. They must not be deleted meanwhile, or the thread would create them
        again."""

    def start(self) -> None:
        for commit in self.core.pending():
            log.info("commit goes on", writer=commit.key.writer, run=commit.key.run, epoch=commit.key.epoch)
            self._publish_in_background(commit)
        self._upkeep.start()

    async def stop(self) -> None:
        """Stop publishing. The next start goes on with decided commits."""
        await self._upkeep.stop()  # it starts publishing too
        publishing = list(self._publishing.values())
        await asyncio.gather(*(each.task.stop() for each in publishing))
        for each in publishing:
            each.outcome.cancel()

    @property
    def turns(self) -> FairScheduler:
        """Return the turns of the event loop on which this runs."""
        return self._engine.turns

    def status(self) -> dict[str, Any]:
        """Return figures for the worker's status."""
        return figures(self.core, self.counters, self.obstacles, self._clock())

    # Staging.

    def open(self, key: AttemptKey) -> Opened:
        """Begin an attempt as :meth:`StagingCore.open` does. Raise an error while the cluster takes no producers, and
        if its clients use another cluster and would not get the messages."""
        if (why_it_serves_no_clients := self._engine.admission.clients_elsewhere) is not None:
            raise NotAllowedError(
                f"clients would not get what is written to this worker ({why_it_serves_no_clients}): {WRITE_ELSEWHERE}"
            )
        self._engine.admission.check_producer()
        return self.core.open(key, self._clock())

    def marks(self, writer: str) -> list[tuple[str, int, SourceMark]]:
        """Return the highest published place of each origin, by origin and incarnation."""
        state = self.core.writers.get(writer)
        return [] if state is None else [(*origin, mark) for origin, mark in state.marks.items()]

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        """Return, by given name, the number of partitions of topics that are about to be written to; 0 for none.

        Raises :class:`InvalidTopicName`, and :class:`TopicNotFound` for a missing topic that may not be created.
        """
        found = {}
        for name in names:
            parsed = parse_topic(name)
            found[name] = await self._engine.by_use.partitions(name)
            policies = self._engine.catalog.policies_of(parsed.full_namespace)
            if not found[name] and self._engine.find(name) is None and not policies.auto_topic_creation:
                raise TopicNotFound(
                    f"cluster {self._engine.cluster!r} has no topic {str(parsed)!r}, and its namespace does not make "
                    "topics by their use (auto_topic_creation): create it first"
                )
        return found

    async def append(self, key: AttemptKey, at: int, body: bytes) -> int:
        """Stage the frames of ``body`` at offset ``at``, and return the attempt's size.

        Raises the errors of :meth:`StagingCore.begin_append`, and errors for malformed frames.
        """
        if self._body_bytes + len(body) > REQUESTS_BYTES_MAX:
            raise TooBusy(f"this worker is busy with {self._body_bytes} bytes that Spark tasks send: try again later")
        self._body_bytes += len(body)
        try:
            for name, entry_bytes in (await asyncio.to_thread(check_frames, body)).items():
                self._check_topic(name, entry_bytes)
            if not self.core.begin_append(key, at, len(body), self._clock()):
                return at + len(body)
            written = self._appending[key] = asyncio.Event()
            try:
                await to_the_end(asyncio.to_thread(self.files.append, key, at, body))
            except OSError as error:
                raise StoreFull(
                    f"{self.files.path}: nothing more can be staged, because the disk refuses it: {error.strerror}; "
                    "look at that disk"
                ) from None
            finally:
                self.core.end_append(key, self.files.size(key))
                del self._appending[key]
                written.set()
                self.counters.staged_bytes += len(body)
        finally:
            self._body_bytes -= len(body)
        self.core.fences.check(key)  # aborted while it was written
        return at + len(body)

    def _check_topic(self, name: str, entry_bytes_max: int) -> None:
        """Raise an error if entries of ``entry_bytes_max`` could not be published to the topic."""
        if (full_name := str(parse_topic(name))) != name:
            raise NotAllowedError(
                f"a staged frame must name its topic in full, as {full_name}, not as {name}: run the worker's version "
                "in Spark too"
            )
        if self._engine.partitioned.count(name):
            raise NotAllowedError(
                f"a staged frame names {name}, which is partitioned; it must name one of its partitions: run the "
                "worker's version in Spark too"
            )
        topic = self._engine.find(name)
        self._engine.admission.check_entry(entry_bytes_max)
        limit = None if topic is None else topic.policies.effective.max_message_bytes
        if limit is not None and entry_bytes_max > limit:
            raise MessageTooLarge(
                f"entry of {entry_bytes_max} bytes is over the limit of {name}, {limit} bytes (max_message_bytes): let "
                "batches be smaller (batch_bytes)"
            )

    async def seal(self, key: AttemptKey, size_bytes: int) -> None:
        """Make an attempt with ``size_bytes`` durable. Raise :class:`StagedMissing` or :class:`BlockCorrupt`."""
        if size_bytes:
            verify = self.core.to_be_verified(key, size_bytes)
            with contextlib.suppress(FileNotFoundError):  # it was dropped meanwhile: the core says why
                await asyncio.to_thread(self.files.seal, key, verify=verify)
            self.core.sealed(key, size_bytes, self._clock())

    async def abort(self, key: EpochKey, *, job: str | None = None, attempts: Sequence[str] = ()) -> int:
        """Abort as :meth:`StagingCore.abort` does, and return how many attempts were dropped. Later requests are
        refused."""
        now_ms = self._clock()
        aborted = self.core.abort(key, now_ms, job=job, attempts=attempts)
        self.counters.aborted_attempts += len(aborted.attempts)
        try:
            await self._write_fences(
                rows.rows_of_fences(aborted.fences, now_ms) + rows.rows_of_fences(aborted.dropped_fences, None)
            )
        finally:
            await self._delete(aborted.attempts)
        return len(aborted.attempts)

    async def _write_fences(self, changed: Sequence[rows.Row]) -> None:
        """Wait until these rows are durable, and also earlier ones that the store refused or others are still
        writing."""
        for row in changed:
            self._unwritten_fences[row[1]] = row
        unwritten = list(self._unwritten_fences.values())
        if unwritten:
            await self._engine.writer.put_many(unwritten)
        for row in unwritten:
            if self._unwritten_fences.get(row[1]) is row:
                del self._unwritten_fences[row[1]]

    async def _delete(self, keys: Sequence[AttemptKey]) -> None:
        """Delete the files of attempts that the core has dropped."""
        for written in [self._appending[key] for key in keys if key in self._appending]:
            await written.wait()
        await asyncio.to_thread(self.files.drop, keys)

    # Committing.

    async def commit(self, request: CommitRequest, topics: Sequence[str], wait_seconds: float) -> Outcome | None:
        """Publish staged attempts. ``topics`` are all topics of their messages. Return None if it takes longer than
        ``wait_seconds``.

        Then it goes on in the background, so ask again. Raises the errors of :meth:`StagingCore.decide` and, before
        anything is decided, the reason why a topic or the store would not take it.
        """
        check_commit(request)
        key = request.key
        if key not in self._publishing:
            if not self._is_decided(key):
                self.core.check_not_aborted(request)
                await self._check_takes(request, topics)
                try:
                    await asyncio.to_thread(self.files.check, request)
                except StagedMissing:
                    if not self._is_decided(key):  # once it is, its files go
                        raise
            commit = self.core.decide(request, self._clock())
            if commit is None:
                self.counters.repeated += 1
                return Outcome(repeated=True)
            if key not in self._publishing:  # the core knows it from here on, so whoever asks again joins
                self._publish_in_background(commit)
        done, _ = await asyncio.wait({self._publishing[key].outcome}, timeout=wait_seconds)
        return next(iter(done)).result() if done else None

    def _is_decided(self, key: EpochKey) -> bool:
        state = self.core.writers.get(key.writer)
        return state is not None and (state.is_done(key) or state.pending is not None)

    async def _check_takes(self, request: CommitRequest, topics: Sequence[str]) -> None:
        size = sum(receipt.bytes for receipt in request.receipts)
        self._engine.admission.check_producer()
        if not self._engine.store.has_room(size):
            self._engine.writer.note_beyond_limit(size)
            raise StoreFull(
                f"the commit has {size} bytes, for which the store has no room left below its limit of "
                f"{self._engine.store.size_max}: consume messages, shorten retention, or raise store.size_max"
            )
        for name in topics:
            topic = await self._engine.topic(name)
            topic.writing.check_takes()

    def _publish_in_background(self, commit: PendingCommit) -> None:
        key = commit.key
        task = self._engine.supervisor.task(
            "commit publishing", f"publishing of {key}", lambda: self._publish_to_the_end(commit), until_done=True
        )
        so_far = Outcome(entries=commit.entries, messages=commit.messages, bytes=commit.bytes)
        self._publishing[key] = _Publishing(task, asyncio.get_running_loop().create_future(), so_far)
        task.start()

    async def _publish_to_the_end(self, commit: PendingCommit) -> None:
        """Publish all remaining steps of a commit. Started again, go on after the last durable step."""
        key = commit.key
        outcome, so_far = self._publishing[key].outcome, self._publishing[key].so_far
        obstacle = None
        try:
            await self._publish(commit, so_far)
        except EngineError as error:  # it has no decision any more: who asked has to ask again, or run the batch again
            obstacle = str(error)
            log.error("commit not published", writer=key.writer, run=key.run, epoch=key.epoch, reason=str(error))  # noqa: TRY400
            outcome.set_exception(error)
            outcome.exception()  # maybe nobody is left to ask
        else:
            outcome.set_result(so_far)
        del self._publishing[key]
        self.obstacles.pop(key, None)
        if obstacle is not None and self._is_pending(commit):  # its decision could not be taken back yet
            self.obstacles[key] = obstacle

    async def _publish(self, commit: PendingCommit, outcome: Outcome) -> None:
        key = commit.key
        if key not in self._decided and self._is_pending(commit):
            await to_the_end(self._make_durable(commit))
        while self._is_pending(commit):  # not so where a task before this one ended after the last step
            progress = self.core.writers[key.writer].progress
            try:
                step = await asyncio.to_thread(self._read_step, commit, progress)
            except (StagedMissing, BlockCorrupt) as error:
                await to_the_end(self._take_back(commit))
                if progress == Progress():
                    raise
                self.counters.torn_commits += 1
                raise StagedMissing(
                    f"{error}. Up to {progress.messages_max(commit)} of the commit's {commit.messages} messages are "
                    "published already, and come twice when the batch runs again"
                ) from None
            except OSError as error:  # such as too many open files: the supervisor tries again
                self.obstacles[key] = f"a staged file cannot be read: {error}"
                raise
            await self._publish_step(commit, step, outcome)
        if not self._is_done(key):
            raise StoreFailed(f"the commit of {key} was not stored: send the commit again")
        self.counters.commits += 1
        self.counters.messages += commit.messages
        self.counters.bytes += commit.bytes

    def _is_pending(self, commit: PendingCommit) -> bool:
        state = self.core.writers.get(commit.key.writer)
        return state is not None and state.pending is commit

    def _is_done(self, key: EpochKey) -> bool:
        state = self.core.writers.get(key.writer)
        return state is not None and state.is_done(key)

    async def _make_durable(self, commit: PendingCommit) -> None:
        # The rows of forgotten writers go first: one that comes back would lose what it commits until then.
        forgotten = self.core.take_forgotten()
        cleared = [prefix for writer in forgotten for prefix in rows.prefixes_of(writer)]
        facts = [rows.row_of_facts(writer) for writer in forgotten]
        try:
            await self._engine.writer.put_many([*facts, *rows.rows_of_decision(commit)], cleared=cleared)
        except EngineError:
            self.core.undecided(commit.key)
            raise
        self._decided.add(commit.key)

    def _read_step(self, commit: PendingCommit, progress: Progress) -> Step:
        """Return the next step of a commit. Before the first one, raise :class:`StagedMissing` if any file is lost."""
        if progress == Progress():
            self.files.check(commit)
        return self.files.read_step(commit, progress)

    async def _take_back(self, commit: PendingCommit) -> None:
        """Cancel the decision of a commit whose files are lost or damaged. Otherwise its writer could never commit
        again."""
        await self._engine.writer.put_many(rows.rows_without_decision(commit.key.writer))
        dropped = self.core.lost(commit)
        self._decided.discard(commit.key)
        await self._delete(dropped)

    async def _publish_step(self, commit: PendingCommit, step: Step, outcome: Outcome) -> None:
        """Publish one step, with as many tries as needed."""
        async for attempt in AsyncRetrying(
            stop=stop_never,  # the decision stands: only a restart of the worker is another way to go on
            wait=wait_exponential(multiplier=0.05, max=RETRY_SECONDS_MAX),
            retry=retry_if_exception_type(EngineError),
            before_sleep=lambda state: self._note_obstacle(commit.key, state),
        ):
            with attempt:
                topics = [self._engine.find(run.topic) for run in step.runs]
                for topic, run in zip(topics, step.runs, strict=True):
                    if topic is not None:
                        await topic.writing.admit(sum(map(len, run.entries)))
                await to_the_end(self._append_step(commit, step, topics, outcome))
        self.obstacles.pop(commit.key, None)

    async def _append_step(
        self, commit: PendingCommit, step: Step, topics: Sequence[Topic | None], outcome: Outcome
    ) -> None:
        """Append the entries of a step. Do not cancel this in the middle, because the core must learn what is
        durable."""
        parts = []
        for topic, run in zip(topics, step.runs, strict=True):
            if topic is None or topic.deleted is not None:
                outcome.dropped_topics.add(run.topic)
            else:
                numbered = await asyncio.to_thread(_numbered, run) if topic.policies.effective.deduplication else None
                parts.append((run.topic, StagedPart(topic.tail, run.entries, run.batch_sizes, numbered)))
        key = commit.key
        if step.last:
            finished = self.core.last_step(key, self._clock())
            writes = rows.rows_of_last_step(finished)
        else:
            finished = None
            writes = rows.rows_of_step(key.writer, step.progress)
        if parts:  # a fence may have closed while the numbers were read; after it, nothing enters the writer's queue
            self._engine.admission.check_producer()
        places = await self._engine.writer.publish_staged([part for _, part in parts], writes)
        for (name, _), place in zip(parts, places, strict=True):
            if place is None:
                outcome.dropped_topics.add(name)
            elif name in outcome.topics or len(outcome.topics) < TOPICS_REPORTED_MAX:
                outcome.topics[name] = (outcome.topics.get(name, place)[0], place[1])
        if finished is None:
            self.core.moved(key, step.progress)
        else:
            dropped = self.core.finish(finished)
            self._decided.discard(key)
            await self._delete(dropped)

    def _note_obstacle(self, key: EpochKey, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if key not in self.obstacles:
            log.warning("commit waits", writer=key.writer, run=key.run, epoch=key.epoch, reason=str(error))
        self.obstacles[key] = str(error)

    # Upkeep.

    async def sweep(self) -> None:
        """Drop abandoned attempts, and forget writers that are not needed any more. Publish decided commits that
        nobody publishes now."""
        for commit in self.core.pending():
            if commit.key not in self._publishing:
                self._publish_in_background(commit)
        attempts, writers = self.core.sweep(self._clock(), self._monotonic())
        self.counters.swept_attempts += len(attempts)
        await self._delete(attempts)
        await self._write_fences(rows.rows_of_fences(self.core.fences.sweep(self._clock()), None))
        for writer in writers:
            if writer in self.core.writers:
                continue  # it came back meanwhile
            log.info("staging: a writer is forgotten, because it was not used for long", writer=writer)
            await self._engine.writer.put_many([rows.row_of_facts(writer)], cleared=rows.prefixes_of(writer))

    async def _sweep_periodically(self) -> None:
        while True:
            with contextlib.suppress(EngineError):  # the store refuses: the next pass deletes again
                await to_the_end(self.sweep())  # the core forgets first: who ends half-way leaves files behind
            await asyncio.sleep(SWEEP_SECONDS)


def _numbered(run: StagedRun) -> list[SequencedEntry]:
    """Return the ids that deduplication records for each entry."""
    numbered: list[SequencedEntry] = []
    for first in range(0, len(run.entries), PUBLISH_ENTRIES_MAX):
        entries = run.entries[first : first + PUBLISH_ENTRIES_MAX]
        numbered += check_entries(entries, TopicPolicies(deduplication=True)).numbered or ()
    return numbered
