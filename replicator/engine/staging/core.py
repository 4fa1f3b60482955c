"""Decisions of staging: which attempts are staged, may be committed, and were committed. Sans-IO.

Invariants (DESIGN §3): 1, a commit is confirmed only when its last entry is durable; 2, the messages of each epoch of a
writer's run are published at most once, and exactly once if its commit was ever decided; 11, staged bytes, attempts and
remembered writers are limited, and past a limit the sender gets a named error. Nothing is visible before the decision,
and a decided commit becomes visible as a whole, in the order of the partitions.

1. Tasks stage: each attempt appends to a file of its own. An append says where it begins, so that one that is sent
   again changes nothing; then the attempt is sealed, which makes the file durable.
2. A commit names one sealed attempt for each partition. It is *decided* when it is durable as a row
   (:class:`PendingCommit`), after all of it was checked; from then on it cannot be aborted.
3. It is published in steps. Each step is one transaction that appends entries and updates the row with the commit's
   progress (:class:`Progress`); the last one notes the epoch and deletes the commit's rows. So a worker that is killed
   goes on exactly where it was, and a repeated commit request either joins the commit or learns that it is done.
   If files of the commit are lost, such as by a restore, the decision is taken back, and the batch can run again. Then
   messages of earlier steps come twice: the error says how many (ADR 124).
4. An epoch at or below the run's highest is done: staging for it is refused, a commit of it is a repetition, and its
   files are deleted.
5. A writer whose rows have origins keeps *marks*: for each origin the highest place that is published. Tasks leave out
   rows at or below them. So a query that starts over without its checkpoint does no harm. Marks are only right if
   nobody else commits in between: a commit says on how many commits its marks are based (*base*).
6. An abort is final: staged data of the job is deleted, and later data is refused (:mod:`.fences`). A commit that was
   decided before goes on.
7. Attempts that nobody has touched for a time are swept, by epochs: the tasks of one job end at different times.
8. A wall clock that is wrong for a while deletes no writer: the writer must be unused for an hour by another clock too.

The caller supplies clock and files: see :mod:`replicator.engine.staging.service`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from replicator.engine.errors import CommitPending, InvalidWriter, StagedMissing, StagingFull, TooBusy, WriterMoved
from replicator.engine.staging.fences import FENCES_MAX, Fence, Fences
from replicator.engine.staging.values import (
    AttemptKey,
    CommitRequest,
    EpochKey,
    Finished,
    Opened,
    PendingCommit,
    Progress,
    RunState,
    StagedFile,
    WriterFacts,
    WriterState,
)

STAGED_BYTES_MAX: Final = 4 * 1024**3
"""Limit of the bytes of all attempts together, on disk. A job that stages more before its commit must be split."""
ATTEMPTS_MAX: Final = 20_000
"""Limit of attempts, each with its own file: a job of ten thousand tasks, some of them run twice."""
STAGED_MS_MAX: Final = 6 * 60 * 60 * 1000
"""Time after which untouched attempts of an epoch are deleted: longer than a slow task takes, and shorter than a
weekend."""
STAGED_MS_MAX_FULL: Final = 30 * 60 * 1000
"""Time that replaces it while the staging area is full and others wait. A job that is so slow has to run again."""
WRITERS_MAX: Final = 10_000
UNKEPT_MS_MAX: Final = 24 * 60 * 60 * 1000
"""Time for which the state of a job without a name is kept, so that its driver can ask again whether it was
committed."""
UNKEPT_MS_MIN: Final = 15 * 60 * 1000
"""Shortest time for which it is kept if there are too many writers. Its driver asks again for ten minutes at most."""
KEPT_MS_MAX: Final = 180 * 24 * 60 * 60 * 1000
"""Time for which the state of a named writer, or of a query, is kept after its last commit. So queries that nobody runs
any more do not fill the memory for ever."""
UNUSED_SECONDS_MIN: Final = 60 * 60.0
"""Time, by a clock that nobody sets, for which every sweep must find a writer unused before the worker forgets it. A
machine may start with a clock that is months ahead, until it is corrected."""
RUNS_MAX: Final = 1_000
"""Limit of remembered runs of one writer. The longest unused run is forgotten first. If a forgotten batch job is run
again, it counts as a new run."""
MARKS_MAX: Final = 200_000
"""Limit of marks of one writer, one for each origin that it has published from. They are held in memory."""
SEQUENCE_IDS_PER_MS: Final = 8192
"""Factor between the clock's milliseconds and the first sequence id of an attempt. No task writes as many messages in a
millisecond. So ids of a later attempt are above those of an earlier one, as deduplication in other clusters expects."""


@dataclass(frozen=True, slots=True)
class StagingLimits:
    staged_bytes_max: int = STAGED_BYTES_MAX
    attempts_max: int = ATTEMPTS_MAX
    staged_ms_max: int = STAGED_MS_MAX
    writers_max: int = WRITERS_MAX
    runs_max: int = RUNS_MAX
    fences_max: int = FENCES_MAX


@dataclass(slots=True)
class Attempt:
    """State of one attempt's file. With ``recovered`` it was found at the start, and its content must be verified
    before it is sealed."""

    bytes: int = 0
    touched_ms: int = 0
    sealed: bool = False
    recovered: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """Changes of an abort: ``attempts`` whose files are deleted, new fences to store, and old fences to delete."""

    attempts: list[AttemptKey]
    fences: list[Fence]
    dropped_fences: list[Fence]


class StagingCore:
    """State of a worker's staging area. ``files`` has the attempts whose files were found at the start."""

    def __init__(
        self,
        writers: Mapping[str, WriterState],
        files: Mapping[AttemptKey, StagedFile],
        now_ms: int,
        limits: StagingLimits | None = None,
        fences: Mapping[Fence, int] | None = None,
    ) -> None:
        self.limits = limits or StagingLimits()
        self.fences = Fences(fences or {}, self.limits.fences_max)
        self.writers = dict(writers)
        self._attempts: dict[AttemptKey, Attempt] = {
            key: Attempt(file.bytes, min(now_ms, file.touched_ms), recovered=True) for key, file in files.items()
        }
        self.staged_bytes = sum(file.bytes for file in files.values())
        self._was_full = False
        """Whether there was no room for an attempt since the last sweep."""
        self._forgotten: list[str] = []
        self._unused_since: dict[str, float] = {}
        """Writers that every sweep since then found unused; seconds of a clock that nobody sets."""

    @property
    def attempts(self) -> int:
        return len(self._attempts)

    def epochs(self) -> dict[EpochKey, Attempt]:
        """Return each epoch that has attempts, with their bytes together and the last touch of any."""
        epochs: dict[EpochKey, Attempt] = {}
        for key, attempt in self._attempts.items():
            epoch = epochs.setdefault(key.epoch, Attempt())
            epoch.bytes += attempt.bytes
            epoch.touched_ms = max(epoch.touched_ms, attempt.touched_ms)
        return epochs

    def pending(self) -> list[PendingCommit]:
        """Return the decided commits that are not fully published."""
        return [state.pending for state in self.writers.values() if state.pending is not None]

    # Staging.

    def open(self, key: AttemptKey, now_ms: int) -> Opened:
        """Begin an attempt of a task. Raise :class:`AttemptAborted`, :class:`CommitPending` or :class:`StagingFull`."""
        self.fences.check(key)
        state = self.writers.get(key.epoch.writer) or WriterState()
        run = state.runs.get(key.epoch.run)
        opened = Opened(
            done=state.is_done(key.epoch),
            commits=state.facts.commits,
            sequence_from=max(now_ms * SEQUENCE_IDS_PER_MS, state.facts.sequence_last + 1),
            epoch=-1 if run is None else run.epoch,
        )
        if opened.done:
            return opened
        if state.pending is not None and state.pending.key != key.epoch:
            raise CommitPending(
                f"writer {key.epoch.writer!r}: epoch {state.pending.key.epoch} is still being published; wait until "
                "it is, and try again"
            )
        self._touch(key, now_ms)
        return opened

    def begin_append(self, key: AttemptKey, at: int, length_bytes: int, now_ms: int) -> bool:
        """Return whether ``length_bytes`` must be written at offset ``at``; False if they are there already.

        The file is first cut off at ``at``. Space is reserved at once, and :meth:`end_append` reports the outcome.
        Raises :class:`AttemptAborted`, :class:`StagingFull`, :class:`StagedMissing`, :class:`TooBusy`.
        """
        self.fences.check(key)
        state = self.writers.get(key.epoch.writer)
        if state is not None and state.is_done(key.epoch):
            raise StagedMissing(
                f"epoch {key.epoch.epoch} of writer {key.epoch.writer!r} was committed meanwhile: nothing is to be done"
            )
        attempt = self._touch(key, now_ms)
        if attempt.busy:
            raise TooBusy(f"task attempt {key.attempt!r} is being written by an earlier request: try again later")
        if at > attempt.bytes:
            raise StagedMissing(
                f"the worker has {attempt.bytes} bytes of task attempt {key.attempt!r}, and the next ones begin at "
                f"{at}: those between were deleted as too old, or lost; run the task again"
            )
        if at + length_bytes <= attempt.bytes:
            return False
        if attempt.sealed:
            raise StagedMissing(
                f"task attempt {key.attempt!r} is finished (sealed) with {attempt.bytes} bytes, and takes no more: run "
                "the task again"
            )
        more = at + length_bytes - attempt.bytes
        if self.staged_bytes + more > self.limits.staged_bytes_max:
            self._was_full = True
            raise StagingFull(
                f"{self.staged_bytes} bytes are staged, and {more} more would be over the limit of "
                f"{self.limits.staged_bytes_max}: wait until batches are committed, or let batches be smaller (the "
                "source's limits for a trigger)"
            )
        attempt.busy = True
        self.staged_bytes += more
        attempt.bytes += more
        return True

    def end_append(self, key: AttemptKey, size_bytes: int) -> None:
        """Record that a write of :meth:`begin_append` ended, successful or not: the file has ``size_bytes`` now.

        Nothing changes if the attempt was dropped meanwhile.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        self.staged_bytes += size_bytes - attempt.bytes
        attempt.bytes = size_bytes
        attempt.busy = False

    def to_be_verified(self, key: AttemptKey, size_bytes: int) -> bool:
        """Return whether an attempt's file must be read and verified before it is sealed.

        Raises :class:`StagedMissing` if it does not have ``size_bytes``, and :class:`AttemptAborted`.
        """
        self.fences.check(key)
        attempt = self._attempts.get(key)
        if attempt is None or attempt.busy or attempt.bytes != size_bytes:
            here = 0 if attempt is None else attempt.bytes
            raise StagedMissing(
                f"the worker has {here} bytes of task attempt {key.attempt!r}, and the task says that it sent "
                f"{size_bytes}: run the task again"
            )
        return attempt.recovered and not attempt.sealed

    def sealed(self, key: AttemptKey, size_bytes: int, now_ms: int) -> None:
        """Record that the file is durable. Raise the errors of :meth:`to_be_verified` if the attempt was dropped or
        written meanwhile."""
        self.to_be_verified(key, size_bytes)
        attempt = self._attempts[key]
        attempt.sealed, attempt.recovered, attempt.touched_ms = True, False, now_ms

    def _touch(self, key: AttemptKey, now_ms: int) -> Attempt:
        attempt = self._attempts.get(key)
        if attempt is None:
            if len(self._attempts) >= self.limits.attempts_max:
                self._was_full = True
                raise StagingFull(
                    f"{len(self._attempts)} attempts of tasks are staged, the limit: wait until earlier batches are "
                    "committed, or write with fewer tasks"
                )
            attempt = self._attempts[key] = Attempt()
        attempt.touched_ms = now_ms
        return attempt

    # Committing.

    def decide(self, request: CommitRequest, now_ms: int) -> PendingCommit | None:
        """Return the commit to publish, which must be made durable first; None if it is published already.

        If it was decided before, return that commit, with the attempts that were chosen then. Raises
        :class:`CommitPending`, :class:`AttemptAborted`, :class:`StagedMissing`, :class:`WriterMoved`,
        :class:`InvalidWriter`, or :class:`StagingFull` for too many writers, and changes nothing then.
        """
        key = request.key
        state = self.writers.get(key.writer) or WriterState()
        if state.is_done(key):
            return None
        if state.pending is not None:
            if state.pending.key == key:
                return state.pending
            raise CommitPending(
                f"writer {key.writer!r}: epoch {state.pending.key.epoch} is still being published; wait until it is, "
                "and try again"
            )
        if request.base is not None and request.base != state.facts.commits:
            raise WriterMoved(
                f"writer {key.writer!r}: something was committed under this name while this epoch was being written; "
                "is another query running with the same `writer`? Give each its own, then restart this one"
            )
        if len({receipt.partition for receipt in request.receipts}) < len(request.receipts):
            raise InvalidWriter(
                f"writer {key.writer!r}: a commit names two attempts of one partition: run the batch again"
            )
        self.check_not_aborted(request)
        for receipt in request.receipts:
            if not receipt.bytes:
                continue  # it has no file, so that a worker that was started anew does not know of it
            attempt = self._attempts.get(AttemptKey(key, receipt.partition, receipt.attempt))
            if attempt is None or attempt.busy or attempt.bytes != receipt.bytes:
                raise StagedMissing(
                    f"writer {key.writer!r}, epoch {key.epoch}: what partition {receipt.partition} staged is not here "
                    f"any more (attempt {receipt.attempt!r}, {receipt.bytes} bytes): run the batch again"
                )
        if len(state.marks.keys() | request.marks.keys()) > MARKS_MAX:
            raise StagingFull(
                f"writer {key.writer!r} would have published from more than {MARKS_MAX} topics, the limit: split the "
                "stream over several writers"
            )
        if key.writer not in self.writers:
            if len(self.writers) >= self.limits.writers_max:
                self._forget_unkept(now_ms)
            self.writers[key.writer] = state
        receipts = tuple(sorted(request.receipts, key=lambda receipt: receipt.partition))
        state.pending = PendingCommit(key, receipts, dict(request.marks), request.kept)
        state.progress = Progress()
        return state.pending

    def _forget_unkept(self, now_ms: int) -> None:
        """Forget the job without a name whose commit is the oldest. Raise :class:`StagingFull` if there is none."""
        unkept = {name: state for name, state in self.writers.items() if not state.facts.kept and state.pending is None}
        oldest = min(unkept, key=lambda name: unkept[name].facts.committed_ms, default=None)
        if oldest is None:
            raise StagingFull(
                f"the worker remembers {len(self.writers)} writers of Spark's sinks, the limit, and all of them have "
                "names: use fewer different names as `writer`"
            )
        if now_ms - unkept[oldest].facts.committed_ms < UNKEPT_MS_MIN:
            raise StagingFull(
                f"the worker remembers {len(self.writers)} writers of Spark's sinks, the limit, and the oldest job "
                "without a name has ended only now: give your jobs a `writer`, and each its own `run`"
            )
        del self.writers[oldest]
        self._forgotten.append(oldest)

    def take_forgotten(self) -> list[str]:
        """Return the writers that were forgotten for others since the last call. Their rows can be deleted."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def check_not_aborted(self, request: CommitRequest) -> None:
        """Raise :class:`AttemptAborted` if an attempt of the commit was aborted."""
        for receipt in request.receipts:
            self.fences.check(AttemptKey(request.key, receipt.partition, receipt.attempt))

    def undecided(self, key: EpochKey) -> None:
        """Cancel the decision of a commit that could not be made durable."""
        state = self.writers[key.writer]
        state.pending, state.progress = None, Progress()
        if not state.facts.commits:
            del self.writers[key.writer]

    def lost(self, commit: PendingCommit) -> list[AttemptKey]:
        """Cancel the decision of a commit whose files are lost or damaged. Return its attempts, whose files can be
        deleted: who asks for the same commit again must hear that it cannot be published."""
        self.undecided(commit.key)
        chosen = [AttemptKey(commit.key, receipt.partition, receipt.attempt) for receipt in commit.receipts]
        return self._drop(key for key in chosen if key in self._attempts)

    def moved(self, key: EpochKey, progress: Progress) -> None:
        """Record that a step is durable."""
        state = self.writers[key.writer]
        assert state.pending is not None, f"{key} has no commit"
        assert state.pending.key == key
        assert progress > state.progress, "a commit goes forwards only"
        state.progress = progress

    def last_step(self, key: EpochKey, now_ms: int) -> Finished:
        """Return the state that the transaction of the last step writes besides the entries. Change nothing yet."""
        state = self.writers[key.writer]
        commit = state.pending
        assert commit is not None, f"{key} has no commit"
        assert not state.is_done(key), "an epoch is published once"
        facts = WriterFacts(
            commits=state.facts.commits + 1,
            committed_ms=max(state.facts.committed_ms, now_ms),
            sequence_last=max(state.facts.sequence_last, commit.sequence_last),
            kept=commit.kept or (state.facts.commits > 0 and state.facts.kept),
        )
        others = sorted((run for run in state.runs if run != key.run), key=lambda run: state.runs[run].committed_ms)
        dropped = tuple(others[: max(len(others) + 1 - self.limits.runs_max, 0)])
        marks = {origin: max(mark, state.marks.get(origin, mark)) for origin, mark in commit.marks.items()}
        return Finished(key, facts, RunState(key.epoch, now_ms), dropped, marks)

    def finish(self, finished: Finished) -> list[AttemptKey]:
        """Record that the last step is durable. Return the attempts whose files can be deleted: those of all done
        epochs of the run."""
        state = self.writers[finished.key.writer]
        state.facts = finished.facts
        state.runs[finished.key.run] = finished.run
        for run in finished.dropped_runs:
            del state.runs[run]
        state.marks.update(finished.marks)
        state.pending, state.progress = None, Progress()
        return self._drop(
            key for key in self._attempts if key.epoch[:2] == finished.key[:2] and key.epoch.epoch <= finished.key.epoch
        )

    def abort(self, key: EpochKey, now_ms: int, *, job: str | None = None, attempts: Iterable[str] = ()) -> Aborted:
        """Abort a job of an epoch, or only those attempts. Without both, abort all jobs of the epoch that are known by
        now.

        A decided commit is published nevertheless: a driver that lost the answer to its commit may well abort.
        """
        names = set(attempts) | ({job} if job is not None else set())
        if not names:
            names = {each.job for each in self._attempts if each.epoch == key}
        state = self.writers.get(key.writer)
        if state is not None and state.pending is not None and state.pending.key == key:
            chosen = {receipt.attempt for receipt in state.pending.receipts}
        else:
            chosen = set()
        fenced = () if self._is_done(key) else sorted(names)  # of what is done, nothing is taken anyway
        fences, dropped_fences = self.fences.add((Fence(key, name) for name in fenced), now_ms)
        dropped = self._drop(
            each
            for each in self._attempts
            if each.epoch == key and each.attempt not in chosen and (each.attempt in names or each.job in names)
        )
        return Aborted(dropped, fences, dropped_fences)

    # Upkeep.

    def sweep(self, now_ms: int, clock_seconds: float) -> tuple[list[AttemptKey], list[str]]:
        """Return abandoned attempts, whose files can be deleted, and writers that need not be remembered.

        ``clock_seconds`` is the time of a monotonic clock.

        Attempts of a done epoch are abandoned at once. Those of other epochs are abandoned if none was touched for a
        time, which is shorter if the area was found full. Aborted attempts are found here only after a crash between
        storing the fence and deleting the files.
        """
        publishing = {commit.key for commit in self.pending()}
        staged_ms_max = self.limits.staged_ms_max
        if self._was_full:
            staged_ms_max, self._was_full = min(staged_ms_max, STAGED_MS_MAX_FULL), False
        abandoned = {
            epoch
            for epoch, its in self.epochs().items()
            if epoch not in publishing and (now_ms - its.touched_ms > staged_ms_max or self._is_done(epoch))
        }
        attempts = self._drop(
            key
            for key in self._attempts
            if key.epoch in abandoned or (self.fences.covers(key) and key.epoch not in publishing)
        )
        self._unused_since = {
            name: self._unused_since.get(name, clock_seconds)
            for name, state in self.writers.items()
            if state.pending is None
            and now_ms - state.facts.committed_ms > (KEPT_MS_MAX if state.facts.kept else UNKEPT_MS_MAX)
        }
        forgotten = [name for name, since in self._unused_since.items() if clock_seconds - since >= UNUSED_SECONDS_MIN]
        for name in forgotten:
            del self.writers[name]
        return attempts, forgotten

    def _is_done(self, key: EpochKey) -> bool:
        state = self.writers.get(key.writer)
        return state is not None and state.is_done(key)

    def _drop(self, keys: Iterable[AttemptKey]) -> list[AttemptKey]:
        dropped = list(keys)
        for key in dropped:
            self.staged_bytes -= self._attempts.pop(key).bytes
        return dropped
