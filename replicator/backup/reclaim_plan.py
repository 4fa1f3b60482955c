"""What a restored cluster lost of its own messages, and who has which of them. Pure.

Invariants (DESIGN §3): 5, what nobody has any more becomes a hole, of which the cluster claims nothing; 10, only what
lies above the log's own end is taken.

For each topic, with A the restored cluster and p its own last position there:

1. The newest life of the topic that anybody has is the one that counts. If A's is older, A had made the topic anew.
2. A peer that has A's messages up to m, trimmed up to t, has (t, m] without what its links left out. A peer that gets
   them through a link that rewrites or filters messages has nothing that could be taken back.
3. Between p and the highest m, what no peer has is a hole.
4. A copy of a topic that A deleted on purpose is left alone (:mod:`replicator.engine.lineage`).
5. A peer may not give what it has: it was trimmed since, or a block is damaged there. What no other peer gives is then
   a hole too (:func:`holes_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from replicator.engine.lineage import CopyElsewhere, Judgement, OwnTopic, judge
from snapshots.ack_vector import Range, merged_ranges, without
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """What a peer has of A's messages in one topic."""

    incarnation: int
    mark: Position
    trimmed: Position = BEFORE_ALL
    left_out: Sequence[Range] = ()
    store: str | None = None
    """A's store that wrote it; None if the peer does not know."""
    deleted: bool = False
    """Whether A told the peer that it deleted this life on purpose."""


@dataclass(frozen=True, slots=True)
class OwnLog:
    """What A has of a topic: in which life, and up to where of its own."""

    incarnation: int
    own_last: Position


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What is to be done with one topic."""

    name: str
    incarnation: int
    after: Position
    upto: Position
    made_anew: bool
    """The topic is to be made in that life; one of an older life is in the way, or there is none."""
    sources: Mapping[str, Position]
    """The peers to read from, each up to its mark."""
    has: Mapping[str, Sequence[Range]]
    """For each of them, the ranges of which it has all that there was."""
    holes: tuple[Range, ...]
    """The ranges that no peer has, as far as is known before anything is read."""


def deleted_on_purpose(own: OwnTopic, peers: Mapping[str, PeerCopy]) -> frozenset[str]:
    """Return the peers whose copy is of a topic that A deleted on purpose: nothing is taken back from those."""
    copies = {
        peer: CopyElsewhere(copy.incarnation, copy.mark, copy.store, copy.deleted) for peer, copy in peers.items()
    }
    return frozenset(peer for peer, copy in copies.items() if judge(copy, own) is Judgement.DELETED_ON_PURPOSE)


def plan_topic(
    name: str, here: OwnLog | None, peers: Mapping[str, PeerCopy], rewritten: Iterable[str]
) -> TopicPlan | None:
    """None where A lost nothing that a peer knows of."""
    if not peers:
        return None
    incarnation = max(copy.incarnation for copy in peers.values())
    if here is not None and here.incarnation > incarnation:
        return None  # they have an older life of it: the links say so
    made_anew = here is None or here.incarnation < incarnation
    after = BEFORE_ALL if here is None or made_anew else here.own_last
    copies = {peer: copy for peer, copy in peers.items() if copy.incarnation == incarnation}
    upto = max(copy.mark for copy in copies.values())
    if upto <= after:
        return None
    unusable = frozenset(rewritten)
    has: dict[str, Sequence[Range]] = {}
    for peer, copy in copies.items():
        ranges = without([(max(after, copy.trimmed), copy.mark)], copy.left_out)
        if peer not in unusable and ranges:
            has[peer] = ranges
    sources = {peer: copies[peer].mark for peer in has}
    return TopicPlan(name, incarnation, after, upto, made_anew, sources, has, _holes(after, upto, has, {}))


def holes_of(plan: TopicPlan, missed: Mapping[str, Sequence[Range]]) -> tuple[Range, ...]:
    """Return the ranges of a plan that nobody gives, where the peers did not give what is in ``missed``."""
    return _holes(plan.after, plan.upto, plan.has, missed)


def _holes(
    after: Position, upto: Position, has: Mapping[str, Sequence[Range]], missed: Mapping[str, Sequence[Range]]
) -> tuple[Range, ...]:
    given = [each for peer, ranges in has.items() for each in without(ranges, missed.get(peer, ()))]
    return tuple(without([(after, upto)], merged_ranges(given)))
