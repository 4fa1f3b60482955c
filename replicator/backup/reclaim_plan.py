"""Plan of a reclaim: which of its own messages a cluster lost, and which peers have them. Pure.

Invariants (DESIGN §3): 5, messages that no peer has any more become a hole, and the cluster claims nothing of a hole;
10, a message comes back at its own position, where nothing else lies.

For each topic, with A the cluster that lost data:

1. Each copy at a peer is judged (:mod:`replicator.engine.lineage`). A copy of a life that A deleted on purpose stays at
   the peer, and A takes nothing from it.
2. The newest life of the topic that A or a peer has is the one that goes on. If A's own life is older, A makes the
   topic anew in the newest life. If a peer has A's messages up to m, and A's own last position in that life is p, A
   takes back (p, m].
3. An earlier life that A lost is put back below the newest one (:attr:`TopicPlan.below`). That happens when A's worker
   was started on an empty directory, and so began a new life. All ledger ids of a life are above its incarnation, and
   below the incarnation of the next life. If that is not true because a clock was behind, the earlier life is refused.
   A's own life can be the earlier one, and must stay, as when a volume was missing for a while and is back. Then the
   later life is put back into A's log, and A begins a new life above both (:attr:`Lives.joins`).
4. A peer that has A's messages up to m, and trimmed them up to t, has (t, m] except what links left out. A peer that
   gets them by a link that rewrites or filters messages has nothing that A can take back.
5. What no peer has between p and the highest m is a hole.
6. A peer may fail to give what it was planned to have: it trimmed the messages since, or a block is damaged there. If
   no other peer gives them either, they are a hole too (:func:`holes_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.engine.lineage import Judgement
from snapshots.ack_vector import Range, merged_ranges, without
from snapshots.position import BEFORE_ALL, Position

ABOVE_ALL: Final = 1 << 63
"""Stands for the incarnation of a life that has not begun."""


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """Copy that a peer has of one life of A's topic.

    It reaches up to ``mark``, is trimmed up to ``trimmed``, and lacks the ranges ``left_out``.
    """

    incarnation: int
    mark: Position
    trimmed: Position = BEFORE_ALL
    left_out: Sequence[Range] = ()
    store: str | None = None
    """Id of the store of A that wrote these messages; None if the peer does not know it."""
    deleted: bool = False
    """Whether the peer knows that A deleted this life on purpose."""


@dataclass(frozen=True, slots=True)
class OwnLog:
    """Log that A has of a topic: its life, and the last position in it that A itself published."""

    incarnation: int
    own_last: Position
    runs: Sequence[tuple[int, int, int]] = ()
    """The ledgers of the log in order, each with its first and its last entry."""
    replaceable: bool = True
    """Whether A may delete the topic to make it anew in a later life: whatever is here was deleted on purpose."""
    joins: bool = False
    """Whether A can keep its log, take a later life back into it, and begin a new life above both
    (:mod:`replicator.backup.new_lives`)."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Plan for one life of a topic: take back A's messages in (``after``, ``upto``]."""

    name: str
    incarnation: int
    after: Position
    upto: Position
    made_anew: bool
    """Whether the topic must be made in that life first. Either A has the topic in an older life, or not at all."""
    sources: Mapping[str, Position]
    """The peers to read from, each up to its mark."""
    has: Mapping[str, Sequence[Range]]
    """By peer, the ranges of which the peer has all messages that A published."""
    holes: tuple[Range, ...]
    """The ranges that no peer has, as far as that is known before anything is read."""
    below: bool = False
    """Whether the messages are put back below the end of the log, such as those of an earlier life."""
    between: bool = False
    """Whether the messages are of the newest life, and lie between ledgers of the log; ``below`` is then true as
    well."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Plans for all lives of one topic."""

    newest: TopicPlan | None = None
    below: tuple[TopicPlan, ...] = ()
    """Plans for what is put back below the end of the log: earlier lives first, the oldest of them first."""
    refused: tuple[str, ...] = ()
    """Messages that have no place in the log any more and cannot be taken back, in words."""
    joins: bool = False
    """Whether the plans take back a life that is later than the topic's, so that the topic must begin a new one."""
    deleted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By peer, the lives that A deleted on purpose and of which the peer has a copy. The copies stay at the peer."""

    @property
    def plans(self) -> tuple[TopicPlan, ...]:
        """Plans in the order in which they are carried out."""
        return self.below if self.newest is None else (self.newest, *self.below)


def plan_lives(
    name: str,
    here: OwnLog | None,
    copies: Mapping[str, Sequence[PeerCopy]],
    rewritten: Iterable[str],
    judged: Callable[[str, PeerCopy], Judgement],
) -> Lives:
    """Plan what to take back of all lives of a topic.

    ``here`` is None if A has no such topic. ``copies`` has the copies of each peer, the oldest life first.
    ``rewritten`` are peers that get A's messages changed or filtered. ``judged`` returns the judgement of one peer's
    copy.
    """
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
    joins = False
    newest, top, runs = None, None if here is None else here.incarnation, () if here is None else here.runs
    if wanted and (here is None or max(wanted) >= here.incarnation):
        life = max(wanted)
        if here is not None and life > here.incarnation and not here.replaceable and here.joins:
            joins, top = True, ABOVE_ALL
        elif here is not None and life > here.incarnation and not here.replaceable:
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
    if joins and here is not None:
        above = sorted({*above, here.incarnation})
    for life in sorted(lost):
        if top is None or life >= top:
            continue
        ceiling = next(each for each in above if each > life)
        plan = _plan_below(name, life, ceiling, runs, wanted[life], unusable)
        if isinstance(plan, str):
            refused.append(plan)
        elif plan is not None:
            below.append(plan)
    return Lives(newest, tuple(below), tuple(refused), joins, deleted)


def plan_topic(
    name: str, here: OwnLog | None, peers: Mapping[str, PeerCopy], rewritten: Iterable[str]
) -> TopicPlan | None:
    """Plan what to take back of the newest life that a peer has.

    Return None if A has a newer life, or lacks nothing of this one that a peer has.
    """
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
    """Plan what to take back of an earlier life. Leave out what A's log has of that life already.

    Return None if no peer has more. Return in words why the life is refused if its ledgers do not lie below
    ``ceiling``, the incarnation of the next life.
    """
    end = max(copy.mark for copy in copies.values())  # later ledgers can be of an older life that went on
    below = min(ceiling, end.ledger + 1)
    here = [Position(ledger, last) for ledger, _, last in runs if incarnation < ledger < below]
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
    """Return the ranges of a plan that no peer gives. ``missed`` are, by peer, ranges that a peer had in the plan and
    did not give."""
    return _holes(plan.after, plan.upto, plan.has, missed)


def _holes(
    after: Position, upto: Position, has: Mapping[str, Sequence[Range]], missed: Mapping[str, Sequence[Range]]
) -> tuple[Range, ...]:
    given = [each for peer, ranges in has.items() for each in without(ranges, missed.get(peer, ()))]
    return tuple(without([(after, upto)], merged_ranges(given)))
