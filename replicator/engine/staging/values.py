"""Values of staging: writers and their epochs, attempts of tasks, commits, and the progress of a commit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from replicator.engine.errors import InvalidWriter
from replicator.engine.log.cluster_names import ORIGIN_PATTERN

NAME_CHARACTERS_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of names, which become parts of file names and keys."""
_CLUSTER: Final = re.compile(ORIGIN_PATTERN)
NUMBER_MAX: Final = 2**63 - 1
BATCH_INDEX_MAX: Final = 2**31 - 1
EPOCH_MAX: Final = 2**62
PARTITION_MAX: Final = 2**31
WRITE_ELSEWHERE: Final = "write to the brokers, by a connector of Spark for them, or to an embedded cluster with a link"
"""Advice to users if a worker's clients are those of Apache Pulsar brokers."""


class EpochKey(NamedTuple):
    """Unit of a commit: one micro-batch of a query, or one batch job.

    ``writer`` is the identity that outlives checkpoints. ``run`` is one life of it (the query's id, the job's run), in
    which epochs count up.
    """

    writer: str
    run: str
    epoch: int


class AttemptKey(NamedTuple):
    """Identity of the data that one attempt of one task stages. ``attempt`` is never used twice, and begins with the
    name of its job.

    A job is one try at an epoch, with all its tasks. A driver that tries the epoch again begins another job.
    """

    epoch: EpochKey
    partition: int
    attempt: str

    @property
    def job(self) -> str:
        """The part of the attempt's name before the first dot. An attempt without a dot is its own job."""
        return self.attempt.partition(".")[0]


class StagedFile(NamedTuple):
    """Size of an attempt's file, and the time of its last write."""

    bytes: int
    touched_ms: int


class Origin(NamedTuple):
    """Identity of a topic at the cluster that first published its messages. No other topic has the same incarnation
    there."""

    cluster: str
    incarnation: int


class SourceMark(NamedTuple):
    """Place of a message at its origin."""

    ledger: int
    entry: int
    batch_index: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Summary of a sealed attempt. ``sequence_last`` is the highest sequence id in it, -1 for none."""

    partition: int
    attempt: str
    bytes: int
    entries: int
    messages: int
    sequence_last: int = -1


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Request to commit ``receipts``, one attempt for each partition, and the highest places of the origins of their
    rows.

    ``base`` is the number of commits that the writer had when its tasks asked which rows are published already, or None
    if they did not ask. With ``kept``, the writer's state is kept as long as the writer exists, and not only for
    repeated requests.
    """

    key: EpochKey
    receipts: Sequence[Receipt]
    marks: Mapping[Origin, SourceMark] = field(default_factory=dict)
    base: int | None = None
    kept: bool = True


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A decided commit, which will be published completely in any case. It is durable before anything is published."""

    key: EpochKey
    receipts: Sequence[Receipt]
    marks: Mapping[Origin, SourceMark]
    kept: bool

    @property
    def bytes(self) -> int:
        return sum(receipt.bytes for receipt in self.receipts)

    @property
    def entries(self) -> int:
        return sum(receipt.entries for receipt in self.receipts)

    @property
    def messages(self) -> int:
        return sum(receipt.messages for receipt in self.receipts)

    @property
    def sequence_last(self) -> int:
        return max((receipt.sequence_last for receipt in self.receipts), default=-1)


class Progress(NamedTuple):
    """Published part of a commit: all receipts before ``receipt``, and ``offset`` bytes of that one."""

    receipt: int = 0
    offset: int = 0

    def messages_max(self, commit: PendingCommit) -> int:
        """Return the number of messages of ``commit`` that are published, or more: those of a begun receipt count."""
        begun = self.receipt + (self.offset > 0)
        return sum(receipt.messages for receipt in commit.receipts[:begun])


@dataclass(frozen=True, slots=True)
class RunState:
    """Highest published epoch of a run, and the time of its commit."""

    epoch: int
    committed_ms: int


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """State of a writer besides its runs and marks."""

    commits: int = 0
    committed_ms: int = 0
    sequence_last: int = -1
    kept: bool = True


@dataclass(slots=True)
class WriterState:
    """Published state of one writer, and the commit that is being published."""

    facts: WriterFacts = field(default_factory=WriterFacts)
    runs: dict[str, RunState] = field(default_factory=dict)
    marks: dict[Origin, SourceMark] = field(default_factory=dict)
    pending: PendingCommit | None = None
    progress: Progress = field(default_factory=Progress)

    def is_done(self, key: EpochKey) -> bool:
        run = self.runs.get(key.run)
        return run is not None and key.epoch <= run.epoch


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to a task that begins an attempt. With ``done`` its epoch is published already, so there is nothing to do.

    ``epoch`` is the highest published epoch of its run, -1 for none.
    """

    done: bool
    commits: int
    sequence_from: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Finished:
    """State that the last step of a commit writes and deletes.

    ``dropped_runs`` are runs that are not remembered any longer.
    """

    key: EpochKey
    facts: WriterFacts
    run: RunState
    dropped_runs: tuple[str, ...]
    marks: Mapping[Origin, SourceMark]


def check_commit(request: CommitRequest) -> None:
    """Raise :class:`InvalidWriter` for values that cannot be stored. Otherwise the error would appear only after the
    decision, and again at every start of the worker."""
    name = request.key.writer
    for receipt in request.receipts:
        check_name("attempt", str(receipt.attempt))
        counts = (receipt.partition, receipt.bytes, receipt.entries, receipt.messages)
        if not (
            all(type(number) is int and 0 <= number <= NUMBER_MAX for number in counts)
            and type(receipt.sequence_last) is int
            and -1 <= receipt.sequence_last < NUMBER_MAX
        ):
            raise InvalidWriter(
                f"writer {name!r}: a receipt of its commit has partition, bytes, entries and messages {counts!r:.80} "
                f"and last sequence id {receipt.sequence_last!r:.40}, one of which is out of range: run the worker's "
                "version in Spark too"
            )
    if request.base is not None and type(request.base) is not int:
        raise InvalidWriter(
            f"writer {name!r}: the base of its commit is {request.base!r:.80}, and must be a whole number: run the "
            "worker's version in Spark too"
        )
    for origin, mark in request.marks.items():
        check_mark(origin, mark)


def check_mark(origin: Origin, mark: SourceMark) -> None:
    """Raise :class:`InvalidWriter` for an invalid origin or place, because they become a part of the store's keys."""
    if not isinstance(origin.cluster, str) or _CLUSTER.fullmatch(origin.cluster) is None:
        raise InvalidWriter(f"the origin {str(origin.cluster)[:80]!r} of a message must be the name of a cluster")
    numbers = (origin.incarnation, mark.ledger, mark.entry)
    if not all(type(number) is int and 0 <= number <= NUMBER_MAX for number in numbers) or not (
        type(mark.batch_index) is int and 0 <= mark.batch_index <= BATCH_INDEX_MAX
    ):
        place = ", ".join(map(str, (origin.incarnation, *mark)))[:120]
        raise InvalidWriter(
            f"origin {origin.cluster!r}: incarnation, ledger, entry and batch index are {place}, one of which is out "
            "of range"
        )


def check_name(what: str, name: str) -> str:
    """Return the name of a writer, run or attempt. Raise :class:`InvalidWriter` if it is invalid."""
    if _NAME.fullmatch(name) is None:
        raise InvalidWriter(
            f"{what} {name[:80]!r}: it must have 1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' or '-', and "
            "begin with a letter or digit"
        )
    return name
