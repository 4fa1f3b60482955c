"""Standings of a cluster's topics, from its worker: the positions that exist, and their order. Pure.

A :class:`ClusterTopics` is kept over many answers: a worker reports ten thousand topics once, then only those that
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from snapshots.position import BEFORE_ALL, Position

Run = tuple[int, int, int]
"""Ledger, with its first and last existing entry."""


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """Existing entries of one topic: whole runs, one for each ledger, in order."""

    name: str
    incarnation: int
    trimmed: Position
    """Position up to which everything was trimmed."""
    runs: tuple[Run, ...]

    @property
    def last(self) -> Position:
        """LAC; the position up to which the log was trimmed if it is empty."""
        return Position(self.runs[-1][0], self.runs[-1][2]) if self.runs else self.trimmed

    def runs_between(self, after: Position, upto: Position) -> Iterator[Run]:
        """Yield the runs of entries p with ``after < p <= upto``."""
        for ledger, first, last in self.runs:
            if after.ledger <= ledger <= upto.ledger:
                low = max(first, after.entry + 1) if ledger == after.ledger else first
                high = min(last, upto.entry) if ledger == upto.ledger else last
                if low <= high:
                    yield ledger, low, high

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return the number of entries p with ``after < p <= upto``."""
        return sum(high - low + 1 for _, low, high in self.runs_between(after, upto))

    def advance(self, after: Position, entries: int) -> Position:
        """Return the last of the next ``entries`` entries above ``after``, as far as they exist; ``after`` if none
        does."""
        reached = after
        for ledger, low, high in self.runs_between(after, self.last):
            if entries <= 0:
                break
            reached = Position(ledger, min(high, low + entries - 1))
            entries -= high - low + 1
        return reached

    def lost_after(self, after: Position) -> bool:
        """Return whether entries above ``after`` are gone, so that a reader that continues there would miss them."""
        return after < self.trimmed

    def replaced_since(self, position: Position) -> bool:
        """Return whether the topic was deleted and made anew since ``position`` was read.

        Ids of ledgers and incarnations of a cluster come from one rising counter, an incarnation's before its ledgers'.
        """
        return BEFORE_ALL < position < Position(self.incarnation, 0)


@dataclass(frozen=True, slots=True)
class StandingsChange:
    """One answer of a worker; ``whole`` says that it names every topic."""

    cluster: str
    token: str
    whole: bool
    topics: tuple[TopicPositions, ...]
    deleted: tuple[str, ...] = ()


@dataclass(slots=True)
class ClusterTopics:
    """Topics of one cluster, as of the last answer."""

    cluster: str = ""
    token: str = ""
    topics: dict[str, TopicPositions] = field(default_factory=dict)

    def apply(self, change: StandingsChange) -> None:
        self.cluster, self.token = change.cluster, change.token
        if change.whole:
            self.topics = {}
        for name in change.deleted:
            self.topics.pop(name, None)
        self.topics.update((topic.name, topic) for topic in change.topics)


@dataclass(frozen=True, slots=True)
class Measured:
    """Size of the blocks from the start of a range up to ``reached``."""

    reached: Position
    entries: int
    messages: int
    size_bytes: int


def topic_positions(rows: Iterable[Sequence[object]]) -> tuple[TopicPositions, ...]:
    """Parse the worker's rows. Raises ValueError, TypeError or InvalidPosition for a malformed one."""
    found = []
    for name, incarnation, trimmed, runs in rows:
        if not isinstance(incarnation, int) or not isinstance(runs, list):
            raise TypeError(f"the row of topic {name!r} is not of the form [name, incarnation, trimmed, runs]")
        checked = tuple((int(ledger), int(first), int(last)) for ledger, first, last in runs)
        if any(first > last for _, first, last in checked) or list(checked) != sorted(checked):
            raise ValueError(f"the ranges of entries of topic {name!r} are out of order")
        found.append(TopicPositions(str(name), incarnation, Position.parse(str(trimmed)), checked))
    return tuple(found)


def water_fill(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide ``limit``: small demands get all they want, the others equal shares of the rest.

    The shares add up to the limit, or to the sum of ``wanted``. If shares are uneven, the mapping's order decides which
    are larger by one.
    """
    shares: dict[str, int] = {}
    left = limit
    for remaining, (name, amount) in zip(
        range(len(wanted), 0, -1), sorted(wanted.items(), key=lambda item: item[1]), strict=True
    ):
        shares[name] = min(amount, -(-left // remaining))
        left -= shares[name]
    return shares
