"""What staging talks of: writers and their epochs, attempts of tasks, commits, and how far one is published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from replicator.engine.errors import InvalidWriter
from replicator.engine.log.cluster_names import ORIGIN_PATTERN

NAME_CHARACTERS_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names become parts of file names and keys."""
_CLUSTER: Final = re.compile(ORIGIN_PATTERN)
NUMBER_MAX: Final = 2**63 - 1
BATCH_INDEX_MAX: Final = 2**31 - 1
EPOCH_MAX: Final = 2**62
PARTITION_MAX: Final = 2**31
WRITE_ELSEWHERE: Final = "write to the brokers, by a connector of Spark for them, or to an embedded cluster with a link"
"""What to do where a worker's clients are those of Apache Pulsar brokers."""


class EpochKey(NamedTuple):
    """What is committed at once: one micro-batch of a query, or one batch job.

    ``writer`` is the identity that outlives checkpoints; ``run`` one life of it (the query's id, the job's run), in
    which epochs count up.
    """

    writer: str
    run: str
    epoch: int


class AttemptKey(NamedTuple):
    """What one attempt of one task stages. ``attempt`` is never used twice; it begins with the name of its job.

    A job is one try at an epoch, with all its tasks. A driver that tries the epoch again begins another job.
    """

    epoch: EpochKey
    partition: int
    attempt: str

    @property
    def job(self) -> str:
        """What stands before the first dot; an attempt without one is a job of its own."""
        return self.attempt.partition(".")[0]


class Origin(NamedTuple):
    """A topic at the cluster that first published there: its incarnation is no other topic's."""

    cluster: str
    incarnation: int


class SourceMark(NamedTuple):
    """A message's place at its origin."""

    ledger: int
    entry: int
    batch_index: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a sealed attempt staged. ``sequence_last`` is the highest sequence id in it, -1 for none."""

    partition: int
    attempt: str
    bytes: int
    entries: int
    messages: int
    sequence_last: int = -1


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The attempts that count, one for each partition, and how far the origins of their rows reach.

    ``base`` is how many commits the writer had when its tasks asked which rows are published already; None where they
    did not ask. ``kept``: the writer's state is needed as long as the writer exists, not just for repeated requests.
    """

    key: EpochKey
    receipts: Sequence[Receipt]
    marks: Mapping[Origin, SourceMark] = field(default_factory=dict)
    base: int | None = None
    kept: bool = True


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that is decided: it will be published to its end, whatever happens. Durable before anything is."""

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
    """How much of a commit is published: all receipts before ``receipt``, and ``offset`` bytes of that one."""

    receipt: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """The highest epoch of a run that is published, and when that was."""

    epoch: int
    committed_ms: int


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """What is kept of a writer besides its runs and marks."""

    commits: int = 0
    committed_ms: int = 0
    sequence_last: int = -1
    kept: bool = True


def check_commit(request: CommitRequest) -> None:
    """Raises :class:`InvalidWriter` for what could not be written down: it would be found after the decision only, and
    at every start of the worker again."""
    name = request.key.writer
    for receipt in request.receipts:
        check_name("attempt", str(receipt.attempt))
        counts = (receipt.partition, receipt.bytes, receipt.entries, receipt.messages)
        if not (
            all(type(number) is int and 0 <= number <= NUMBER_MAX for number in counts)
            and type(receipt.sequence_last) is int
            and -1 <= receipt.sequence_last < NUMBER_MAX
        ):
            raise InvalidWriter(f"writer {name!r}: a receipt of its commit has numbers that none can have")
    if request.base is not None and type(request.base) is not int:
        raise InvalidWriter(f"writer {name!r}: the base of its commit is no whole number")
    for origin, mark in request.marks.items():
        check_mark(origin, mark)


def check_mark(origin: Origin, mark: SourceMark) -> None:
    """Raises :class:`InvalidWriter` for what is no place at an origin: it becomes a part of the store's keys."""
    if not isinstance(origin.cluster, str) or _CLUSTER.fullmatch(origin.cluster) is None:
        raise InvalidWriter(f"origin {str(origin.cluster)[:80]!r}: it must be the name of a cluster")
    numbers = (origin.incarnation, mark.ledger, mark.entry)
    if not all(type(number) is int and 0 <= number <= NUMBER_MAX for number in numbers) or not (
        type(mark.batch_index) is int and 0 <= mark.batch_index <= BATCH_INDEX_MAX
    ):
        place = ", ".join(map(str, (origin.incarnation, *mark)))[:120]
        raise InvalidWriter(f"origin {origin.cluster!r}: incarnation, ledger, entry and batch index are {place}")


def check_name(what: str, name: str) -> str:
    """A writer's, run's or attempt's name; raises :class:`InvalidWriter`."""
    if _NAME.fullmatch(name) is None:
        raise InvalidWriter(
            f"{what} {name[:80]!r}: it must have 1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' or '-', and "
            "begin with a letter or digit"
        )
    return name
