"""What a cluster lost of its own messages, and who has which of them. Pure.

Invariants (DESIGN §3): 5, what nobody has any more becomes a hole, of which the cluster claims nothing; 10, a message
comes back at its own position, where nothing else lies.

For each topic, with A the cluster that lost data:

1. Each copy at a peer is judged (:mod:`replicator.engine.lineage`). One that was deleted on purpose stays where it is.
2. The newest life of the topic that A or a peer has is the one that counts. If A's is older, A had made the topic anew.
   A peer that has A's messages up to m goes on after A's own last position p in that life.
3. An earlier life that A lost is put back below the newest one (:class:`TopicPlan`, ``below``): a store that was
   started on an empty directory has begun a life of its own. All ids of a life are above its incarnation, and below
   the incarnation of the next life. A life for which that is not true is refused: a clock was behind.
4. A peer that has A's messages up to m, trimmed up to t, has (t, m] without what its links left out. A peer that gets
   them through a link that rewrites or filters messages has nothing that could be taken back.
5. Between p and the highest m, what no peer has is a hole.
6. A peer may not give what it has: it was trimmed since, or a block is damaged there. What no other peer gives is then
   a hole too (:func:`holes_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from replicator.engine.lineage import Judgement
from snapshots.ack_vector import Range, merged_ranges, without
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """What a peer has of one life of A's topic."""

    incarnation: int
    mark: Position
    trimmed: Position = BEFORE_ALL
    left_out: Sequence[Range] = ()
    store: str | None = None
    """The store of A that wrote it; None if the peer does not know."""
    deleted: bool = False
    """Whether the peer was told that A deleted this life on purpose."""


@dataclass(frozen=True, slots=True)
class OwnLog:
    """What A has of a topic: in which life, and up to where of its own."""

    incarnation: int
    own_last: Position
    runs: Sequence[tuple[int, int, int]] = ()
    """The ledgers of the log in order, each with its first and its last entry."""
    replaceable: bool = True
    """Whether the topic may be deleted where a peer has a later life of it: whatever is here was deleted on purpose."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What is to be done with one life of a topic."""

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
    below: bool = False
    """Whether it is put back below what is in the log, such as an earlier life."""
    between: bool = False
    """Whether it is of the life that goes on, and lies between ledgers of the log; ``below`` is true then."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Plans for all lives of one topic."""

    newest: TopicPlan | None = None
    below: tuple[TopicPlan, ...] = ()
    """The earlier lives, the oldest first."""
    refused: tuple[str, ...] = ()
    """Losses that have no place any more, in words."""
    deleted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Peers with copies of lives that A deleted on purpose, which stay there; each with these lives."""

    @property
    def plans(self) -> tuple[TopicPlan, ...]:
        """In the order in which they are carried out."""
        return self.below if self.newest is None else (self.newest, *self.below)


def plan_lives(
    name: str,
    here: OwnLog | None,
    copies: Mapping[str, Sequence[PeerCopy]],
    rewritten: Iterable[str],
    judged: Callable[[str, PeerCopy], Judgement],
) -> Lives:
    """Plan what comes back of all lives of a topic. ``judged`` judges a copy of the peer that is named."""
    unusable = frozenset(rewritten)
    wanted: dict[int, dict[str, PeerCopy]] = {}
    lost: set[int] = set()
    deleted: dict[str, tuple[int, ...]] = {}
    for peer, lives in sorted(copies.items()):
        for copy in lives:
            judgement = judged(peer, copy)
            if judgement is Judgement.DELETED_ON_PURPOSE:
                deleted[peer] = (*deleted.get(peer, ()), copy.incarnation)
                continue
            wanted.setdefault(copy.incarnation, {})[peer] = copy
            if judgement is not Judgement.SAME:
                lost.add(copy.incarnation)
    refused: list[str] = []
    newest, top, runs = None, None if here is None else here.incarnation, () if here is None else here.runs
    if wanted and (here is None or max(wanted) >= here.incarnation):
        life = max(wanted)
        if here is not None and life > here.incarnation and not here.replaceable:
            refused.append(
                f"{name}: {', '.join(sorted(wanted[life]))} has messages of a life with a higher id ({life}) than the "
                f"one that goes on here ({here.incarnation}), which has messages, too: all stay where they are. To "
                "have both lives, move this directory aside, and run `replicator backup reclaim --from-directory` with "
                "it on the directory that has the later life, or without one: the earlier one is then put back below"
            )
        else:
            newest = plan_topic(name, here, wanted[life], unusable)
            top = life
            if newest is not None and newest.made_anew:
                runs = ()
    below: list[TopicPlan] = []
    above = sorted(each for each in {*wanted, top} if each is not None)
    for life in sorted(lost):
        if top is None or life >= top:
            continue
        ceiling = next(each for each in above if each > life)
        plan = _plan_below(name, life, ceiling, runs, wanted[life], unusable)
        if isinstance(plan, str):
            refused.append(plan)
        elif plan is not None:
            below.append(plan)
    return Lives(newest, tuple(below), tuple(refused), deleted)


def plan_topic(
    name: str, here: OwnLog | None, peers: Mapping[str, PeerCopy], rewritten: Iterable[str]
) -> TopicPlan | None:
    """Plan what comes back of the newest life. Return None where A lost nothing of it that a peer knows of."""
    if not peers:
        return None
    incarnation = max(copy.incarnation for copy in peers.values())
    if here is not None and here.incarnation > incarnation:
        return None
    made_anew = here is None or here.incarnation < incarnation
    after = BEFORE_ALL if here is None or made_anew else here.own_last
    copies = {peer: copy for peer, copy in peers.items() if copy.incarnation == incarnation}
    return _plan(name, incarnation, after, copies, rewritten, made_anew=made_anew)


def _plan_below(
    name: str,
    incarnation: int,
    ceiling: int,
    runs: Sequence[tuple[int, int, int]],
    copies: Mapping[str, PeerCopy],
    rewritten: Iterable[str],
) -> TopicPlan | str | None:
    """Plan an earlier life. The log may have some of it already. Return in words why it has no place."""
    here = [Position(ledger, last) for ledger, _, last in runs if incarnation < ledger < ceiling]
    plan = _plan(name, incarnation, max(here, default=Position(incarnation, -1)), copies, rewritten, made_anew=False)
    if plan is None:
        return None
    if plan.upto.ledger >= ceiling:
        return (
            f"{name}: {', '.join(sorted(copies))} has messages of an earlier life up to {plan.upto}, above the first "
            f"id of the life after it ({ceiling}): a clock was behind. They stay there, and cannot come back"
        )
    return replace(plan, below=True)


def _plan(
    name: str,
    incarnation: int,
    after: Position,
    copies: Mapping[str, PeerCopy],
    rewritten: Iterable[str],
    *,
    made_anew: bool,
) -> TopicPlan | None:
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
