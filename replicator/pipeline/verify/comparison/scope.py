"""Scope of a comparison, and the differences that it excuses: pure values that go to every task.

A cluster's copy of an origin's messages has three kinds of holes that are no loss, all known from the cluster itself:

* what it had and trimmed: a prefix of the origin's entries, since copies are in order (invariant 3);
* what links left out (:mod:`replicator.engine.log.left_out`);
* what has not come yet: all above its high-water mark, read before the logs' ends. A mark is written with the block
  that moves it, so up to the mark everything must be in the log that is read later: the cut is consistent, however much
  is copied meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.promises import Promises
from replicator.pipeline.verify.reachability import Reachability
from replicator.topology.apache import BROKER_SUFFIX
from snapshots.position import BEFORE_ALL, Position

ENTRY_ABOVE_ALL: Final = 1 << 33


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of one topic in one cluster, by origin: what it has, what it trimmed, and what links left out.

    ``high_water`` is None if the cluster does not report it: then nothing counts as being on its way.
    """

    runs: Sequence[tuple[int, int, int]] = ()
    """Entries in the log: each ledger with its first and last entry, both included."""
    trimmed: Position = BEFORE_ALL
    trimmed_of: Mapping[str, Position] = field(default_factory=dict)
    high_water: Mapping[str, tuple[int, Position]] | None = None
    left_out: Mapping[str, Sequence[tuple[Position, Position]]] = field(default_factory=dict)
    hidden: int = 0
    """Number of entries that are hidden as duplicates."""
    deleted: Mapping[str, Mapping[int, Position]] = field(default_factory=dict)
    """Lives of the topic that their origin deleted, by origin and incarnation, each with its last position."""
    absent: bool = False
    """Whether the cluster does not have the topic."""
    copied_upto: Position | None = None
    """Last position at which copies of other clusters' entries are compared; None means all of ``runs``.

    It is read before any log's end, so that an origin's log has all that is compared of its copies.
    """

    def trimmed_upto(self, cluster: str, origin: str) -> Position:
        """Return the position of ``origin`` up to which ``cluster`` has trimmed its entries, included."""
        return self.trimmed if cluster == origin else self.trimmed_of.get(origin, BEFORE_ALL)

    def reached(self, cluster: str, origin: str, incarnation: int) -> Position | None:
        """Return the position of ``origin`` up to which ``cluster`` must have its entries, included.

        None means that ``cluster`` must have all of them.
        """
        if cluster == origin or self.high_water is None:
            return None
        mark = self.high_water.get(origin)
        if mark is None or incarnation > mark[0]:
            return BEFORE_ALL
        return mark[1] if incarnation == mark[0] else None

    def is_without(self, cluster: str, origin: str, incarnation: int) -> bool:
        """Return whether ``cluster`` need not have entries of ``origin`` from the topic's life ``incarnation``.

        This is so if ``cluster`` is where ``origin`` publishes, and it made the topic anew since. Other clusters may
        keep the earlier life as closed history.
        """
        mark = None if self.high_water is None else self.high_water.get(origin)
        return cluster == home_of(origin) and mark is not None and incarnation < mark[0]

    @property
    def end(self) -> Position:
        """Return the position of the last entry in the log; :data:`BEFORE_ALL` if it has none."""
        return max((Position(ledger, last) for ledger, _, last in self.runs), default=BEFORE_ALL)

    @property
    def entries(self) -> int:
        return sum(last - first + 1 for _, first, last in self.runs)


@dataclass(frozen=True, slots=True)
class TopicScope:
    """One topic: the clusters between which it is compared, and their states, by the clusters' numbers."""

    name: str
    reachability: Reachability
    standings: Mapping[int, ReplicaState]
    subscriptions: Mapping[str, Mapping[int, Acked]]
    """Replicated subscriptions, in their present state."""
    promises: Mapping[tuple[int, int], Promises]
    told: Mapping[str, Mapping[int, Acked]] | None = None
    """The acknowledgements of a while ago, which the other clusters must have by now. None means ``subscriptions``."""
    deleted: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """The replicated subscriptions that were deleted, each with the generation of its deletion."""

    def deleted_upto(self, origin: str, incarnation: int) -> Position:
        """Return the last position of a life that ``origin`` deleted; :data:`BEFORE_ALL` for any other life.

        Clusters keep their copies of such a life. A cluster that lacks it must not get it from the origin.
        """
        told = (each.deleted.get(origin, {}).get(incarnation, BEFORE_ALL) for each in self.standings.values())
        return max(told, default=BEFORE_ALL)

    def deleted_at(self, number: int, name: str) -> bool:
        """Return whether the cluster ``name``, whose number is ``number``, deleted the topic and has not made it
        anew."""
        return self.standings.get(number, ReplicaState(absent=True)).absent and self.has_deleted(name)

    def has_deleted(self, name: str) -> bool:
        """Return whether the cluster ``name`` has ever deleted the topic, even if it has made the topic anew since."""
        return any(name in map(home_of, each.deleted) for each in self.standings.values())

    def is_deleted_alone(self, name: str, generation: int, way: tuple[str, str], destination: int) -> bool:
        """Return whether a subscription was deleted at the destination of a link, and no link tells its source.

        Then the source rightly keeps the subscription, and the two do not disagree. ``generation`` is that of the
        source's subscription: a later one than the deleted one was made since. ``way`` names source and destination,
        and ``destination`` is the number of the latter.
        """
        buried = self.deleted.get(destination, {}).get(name)
        return buried is not None and generation <= buried and way[::-1] not in self.reachability.acks

    @property
    def must(self) -> Mapping[str, Mapping[int, Acked]]:
        return self.subscriptions if self.told is None else self.told


@dataclass(frozen=True, slots=True)
class Scope:
    """All topics of a comparison. A cluster's number is its index in ``clusters``; a topic's its index in
    ``topics``."""

    clusters: tuple[str, ...]
    urls: tuple[str, ...]
    topics: tuple[TopicScope, ...]
    rewritten: frozenset[tuple[str, str]] = frozenset()
    """Origin and cluster between which a link may have changed messages: their contents are not compared."""

    def names_only(self) -> Scope:
        """Return the scope without details of topics, which reading logs does not need."""
        bare = tuple(TopicScope(topic.name, _NO_WAYS, {}, {}, {}) for topic in self.topics)
        return Scope(self.clusters, self.urls, bare)


_NO_WAYS: Final = Reachability(frozenset(), frozenset())


def home_of(origin: str) -> str:
    """Return the cluster of an origin: its worker publishes the messages, or the brokers that it runs beside."""
    return origin.removesuffix(BROKER_SUFFIX)


def within(ledger: int, position: Position) -> int:
    """Return how many entries of ``ledger`` lie at or before ``position``, 2^33 for all."""
    if position.ledger == ledger:
        return position.entry + 1
    return ENTRY_ABOVE_ALL if position.ledger > ledger else 0
