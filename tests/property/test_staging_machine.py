"""Invariant 2 for staged commits, with repeated, aborted, lost and killed stagings. An epoch of a writer's run
whose commit was decided is visible whole and once, in the order of its partitions; any other is not visible.

An abort is final: later requests of an aborted job's tasks are refused and leave nothing, also after a restart.

The core decides; files and the store's transactions are models that lose what a crash loses: everything in memory, and
with the power also what was written and not sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicator.engine.errors import AttemptAborted, CommitPending, EngineError, StagedMissing, StagingFull
from replicator.engine.staging import rows
from replicator.engine.staging.core import StagingCore, StagingLimits
from replicator.engine.staging.fences import Fence
from replicator.engine.staging.values import AttemptKey, CommitRequest, EpochKey, Progress, Receipt, StagedFile

FRAME_BYTES = 10
"""A frame of the model is one number."""
LIMITS = StagingLimits(staged_bytes_max=40 * FRAME_BYTES, attempts_max=12, staged_ms_max=1_000)

epochs = st.builds(EpochKey, st.sampled_from(["a", "b"]), st.sampled_from(["r", "s"]), st.integers(0, 2))


class Staging(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.number = 0
        self.disk: dict[AttemptKey, list[int]] = {}
        self.sealed: set[AttemptKey] = set()
        self.table: dict[bytes, bytes] = {}
        self.log: list[int] = []
        self.decided: dict[EpochKey, list[int]] = {}
        """The model: what each decided commit is to publish."""
        self.done: set[EpochKey] = set()
        self.owners: dict[int, EpochKey] = {}
        self.begun: list[AttemptKey] = []
        self.aborted: set[Fence] = set()
        """The model: the jobs and attempts whose abort was answered."""
        self.core = self._started()

    def _started(self) -> StagingCore:
        files = {key: StagedFile(len(frames) * FRAME_BYTES, self.now_ms) for key, frames in self.disk.items()}
        writers, fences = rows.load_writers(self.table.items()), rows.load_fences(self.table.items())
        core = StagingCore(writers, files, self.now_ms, LIMITS, fences)
        attempts, _ = core.sweep(self.now_ms, self.now_ms / 1000)  # as the service does when it starts
        self._drop(attempts)
        return core

    # The shell, over models.

    def _write(self, written: Sequence[rows.Row], appended: Sequence[int] = ()) -> None:
        """Write in one transaction."""
        for _, key, value in written:
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value
        self.log += appended

    def _drop(self, keys: Sequence[AttemptKey]) -> None:
        for key in keys:
            self.disk.pop(key, None)
            self.sealed.discard(key)

    def _step(self, key: EpochKey, frames_max: int) -> bool:
        """Publish at most ``frames_max`` frames of a commit; return whether it is complete."""
        state = self.core.writers[key.writer]
        assert state.pending is not None
        assert state.pending.key == key
        at, offset = state.progress
        taken: list[int] = []
        while at < len(state.pending.receipts):
            receipt = state.pending.receipts[at]
            frames = self.disk[AttemptKey(key, receipt.partition, receipt.attempt)] if receipt.bytes else []
            first = offset // FRAME_BYTES
            more = frames[first : min(first + frames_max - len(taken), receipt.bytes // FRAME_BYTES)]
            taken += more
            offset += len(more) * FRAME_BYTES
            if offset < receipt.bytes:
                break
            at, offset = at + 1, 0
            if len(taken) >= frames_max:
                break
        if at == len(state.pending.receipts):
            finished = self.core.last_step(key, self.now_ms)
            self._write(rows.rows_of_last_step(finished), taken)
            self._drop(self.core.finish(finished))
            self.done.add(key)
            return True
        progress = Progress(at, offset)
        self._write(rows.rows_of_step(key.writer, progress), taken)
        self.core.moved(key, progress)
        return False

    # What happens.

    @rule(epoch=epochs, tasks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=4))
    def a_job_stages(self, epoch: EpochKey, tasks: list[tuple[int, int]]) -> None:
        """Stage ``tasks``. Several attempts at one partition are a task that was tried again, or ran twice."""
        self.number += 1
        job = f"j{self.number}"
        for partition, frames in tasks:
            self._stage(epoch, job, partition, frames, repeated=frames % 2 == 0, sealed=True)

    @rule(
        epoch=epochs,
        partition=st.integers(0, 2),
        frames=st.integers(0, 4),
        repeated=st.booleans(),
        sealed=st.booleans(),
    )
    def a_task_stages(self, epoch: EpochKey, partition: int, frames: int, *, repeated: bool, sealed: bool) -> None:
        self._stage(epoch, f"j{self.number}", partition, frames, repeated=repeated, sealed=sealed)

    def _stage(self, epoch: EpochKey, job: str, partition: int, frames: int, *, repeated: bool, sealed: bool) -> None:
        self.number += 1
        key = AttemptKey(epoch, partition, f"{job}.t{self.number}")
        if self._is_aborted(key):
            return
        self.begun.append(key)
        try:
            if self.core.open(key, self.now_ms).done:
                return
            self.disk.setdefault(key, [])
            for index in range(frames):
                self.number += 1
                self.owners[self.number] = epoch
                at = index * FRAME_BYTES
                if self.core.begin_append(key, at, FRAME_BYTES, self.now_ms):
                    self.disk[key] = [*self.disk[key][:index], self.number]
                    self.core.end_append(key, len(self.disk[key]) * FRAME_BYTES)
                if repeated:
                    assert not self.core.begin_append(key, at, FRAME_BYTES, self.now_ms)
            if sealed:
                assert not self.core.to_be_verified(key, frames * FRAME_BYTES)
                self.core.sealed(key, frames * FRAME_BYTES, self.now_ms)
                self.sealed.add(key)
        except (StagingFull, CommitPending):
            pass

    @precondition(lambda self: self.sealed or self.decided)
    @rule(
        which=st.integers(0, 20),
        choice=st.integers(0, 7),
        steps=st.none() | st.integers(0, 4),
        frames=st.integers(1, 3),
    )
    def a_driver_commits(self, which: int, choice: int, steps: int | None, frames: int) -> None:
        """Commit as a driver. With ``steps`` the worker is killed: 0 before the decision is durable, else after so many
        steps."""
        known = sorted({key.epoch for key in self.sealed} | self.decided.keys())
        epoch = known[which % len(known)]
        chosen: dict[int, AttemptKey] = {}
        for key in sorted(self.sealed):
            if (
                key.epoch == epoch
                and not self._is_aborted(key)
                and (key.partition not in chosen or choice & 1 << key.partition)
            ):
                chosen[key.partition] = key
        receipts = [
            Receipt(key.partition, key.attempt, len(self.disk[key]) * FRAME_BYTES, 0, 0)
            for key in reversed(chosen.values())
        ]
        was_done = epoch in self.done
        try:
            commit = self.core.decide(CommitRequest(epoch, receipts), self.now_ms)
        except CommitPending:
            return
        if commit is None:
            run = [other for other in self.done if other[:2] == epoch[:2]]
            assert run
            assert max(run).epoch >= epoch.epoch, "only what is done, or older, is a repetition"
            return
        assert not was_done
        if epoch not in self.decided:
            if steps == 0:
                self._restart()
                return
            self._write(rows.rows_of_decision(commit))
            self.decided[epoch] = [frame for _, key in sorted(chosen.items()) for frame in self.disk[key]]
        taken = 0
        while not self._step(epoch, frames):
            taken += 1
            if steps is not None and taken >= steps:
                self._restart()
                return

    @rule(epoch=epochs)
    def a_commit_of_what_is_not_there_is_refused(self, epoch: EpochKey) -> None:
        receipt = Receipt(0, "nobody", FRAME_BYTES, 0, 0)
        state = self.core.writers.get(epoch.writer)
        if state is not None and (state.pending is not None or state.is_done(epoch)):
            return
        try:
            self.core.decide(CommitRequest(epoch, [receipt]), self.now_ms)
        except StagedMissing:
            return
        raise AssertionError("it was decided")

    @precondition(lambda self: self.core.pending())
    @rule(frames=st.integers(1, 3), steps=st.integers(1, 5))
    def a_worker_goes_on(self, frames: int, steps: int) -> None:
        for commit in self.core.pending():
            for _ in range(steps):
                if self._step(commit.key, frames):
                    break

    @precondition(lambda self: self.begun)
    @rule(which=st.integers(0, 30), what=st.sampled_from(["job", "attempt", "epoch"]), killed=st.booleans())
    def a_driver_aborts(self, which: int, what: str, killed: bool) -> None:
        """Abort as a driver. With ``killed``, kill the worker before the fence is durable, so that no answer comes."""
        key = self.begun[-1 - which % len(self.begun)]
        known = {each.job for each in self.disk if each.epoch == key.epoch}
        job, attempts = (key.job if what == "job" else None), ([key.attempt] if what == "attempt" else [])
        aborted = self.core.abort(key.epoch, self.now_ms, job=job, attempts=attempts)
        if killed:
            self._restart()
            return
        self._write(rows.rows_of_fences(aborted.fences, self.now_ms))
        self._write(rows.rows_of_fences(aborted.dropped_fences, None))
        self._drop(aborted.attempts)
        names = known if what == "epoch" else {job or key.attempt}
        self.aborted |= {Fence(key.epoch, name) for name in names}

    def _is_aborted(self, key: AttemptKey) -> bool:
        return bool({Fence(key.epoch, key.attempt), Fence(key.epoch, key.job)} & self.aborted)

    @precondition(lambda self: any(map(self._is_aborted, self.begun)))
    @rule(which=st.integers(0, 30), newcomer=st.booleans(), frames=st.integers(0, 2))
    def a_task_of_an_aborted_job_goes_on(self, which: int, newcomer: bool, frames: int) -> None:
        aborted = [key for key in self.begun if self._is_aborted(key)]
        key = aborted[which % len(aborted)]
        if newcomer and Fence(key.epoch, key.job) in self.aborted:
            key = key._replace(attempt=f"{key.job}.late")
        state = self.core.writers.get(key.epoch.writer)
        if state is not None and (state.is_done(key.epoch) or state.pending is not None):
            return  # it is refused, or repeated, by the commit that there is
        before = self.core.attempts, self.core.staged_bytes
        receipt = Receipt(key.partition, key.attempt, frames * FRAME_BYTES, 0, 0)
        for late in (
            lambda: self.core.open(key, self.now_ms),
            lambda: self.core.begin_append(key, frames * FRAME_BYTES, FRAME_BYTES, self.now_ms),
            lambda: self.core.sealed(key, frames * FRAME_BYTES, self.now_ms),
            lambda: self.core.decide(CommitRequest(key.epoch, [receipt]), self.now_ms),
        ):
            try:
                late()
            except AttemptAborted:
                continue
            raise AssertionError(f"{key} was aborted, and is taken")
        assert (self.core.attempts, self.core.staged_bytes) == before

    @rule(power=st.booleans(), kept=st.integers(0, 3))
    def a_worker_is_killed(self, power: bool, kept: int) -> None:
        if power:  # what was not sealed is cut off somewhere
            for key in self.disk.keys() - self.sealed:
                del self.disk[key][kept:]
        self._restart()

    def _restart(self) -> None:
        self.core = self._started()

    @rule(elapsed_ms=st.sampled_from([0, 400, 2_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        attempts, writers = self.core.sweep(self.now_ms, self.now_ms / 1000)
        assert not writers
        self._drop(attempts)

    # What must hold.

    @invariant()
    def what_is_visible_was_decided_and_is_in_order(self) -> None:
        visible: dict[EpochKey, list[int]] = {}
        for number in self.log:
            visible.setdefault(self.owners[number], []).append(number)
        for epoch, numbers in visible.items():
            assert epoch in self.decided, f"{epoch} is visible and was never decided"
            assert numbers == self.decided[epoch][: len(numbers)], f"{epoch} is not published in order, or twice"
        for epoch in self.done:
            assert visible.get(epoch, []) == self.decided[epoch], f"{epoch} is done and not whole"

    @invariant()
    def of_what_was_aborted_nothing_stays_but_what_a_decided_commit_publishes(self) -> None:
        decided = {commit.key for commit in self.core.pending()}
        assert not [key for key in self.disk if self._is_aborted(key) and key.epoch not in decided]

    @invariant()
    def what_is_counted_is_on_disk(self) -> None:
        assert self.core.staged_bytes == sum(len(frames) for frames in self.disk.values()) * FRAME_BYTES
        assert self.core.staged_bytes <= LIMITS.staged_bytes_max
        assert self.core.attempts <= LIMITS.attempts_max

    def teardown(self) -> None:
        self._restart()
        for commit in self.core.pending():
            while not self._step(commit.key, 1):
                pass
        assert self.decided.keys() == self.done
        self.what_is_visible_was_decided_and_is_in_order()


TestStaging = Staging.TestCase
TestStaging.settings = settings(stateful_step_count=40)


def test_a_refusal_is_an_error_of_the_engine() -> None:
    assert issubclass(StagedMissing, EngineError)
