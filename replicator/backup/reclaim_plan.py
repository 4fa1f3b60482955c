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
4. A's log can have gone on in the same life after it was put back to an earlier state, as by a snapshot of the disk.
   Ids of ledgers are never used twice, so what was lost lies between ledgers of A's log, and is put back there
   (:attr:`TopicPlan.between`).
5. A peer that has A's messages up to m, and trimmed them up to t, has (t, m] except what links left out. A peer that
   gets them by a link that rewrites or filters messages has nothing that A can take back.
6. What no peer has between p and the highest m is a hole.
7. A peer may fail to give what it was planned to have: it trimmed the messages since, or a block is damaged there. If
   no other peer gives them either, they are a hole too (:func:`holes_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.engine.lineage import Judgement
from replicator.engine.log.ledger_ends import LEDGER_ENDS_MAX
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
    ledgers: Sequence[tuple[int, int, int]] | None = None
    """A's ledgers that the peer has entries of, each with the first and the last of them. None if the peer's version is
    earlier and does not tell them."""


@dataclass(frozen=True, slots=True)
class OwnLog:
    """Log that A has of a topic: its life, and the last position in it that A itself published."""

    incarnation: int
    own_last: Position
    runs: Sequence[tuple[int, int, int]] = ()
    """The ledgers of the log in order, each with its first and its last entry."""
    trimmed: Position = BEFORE_ALL
    """Position up to which the log is trimmed."""
    trimmed_ends: Sequence[Position] = ()
    """The last entries of trimmed ledgers, in order. The oldest ones can be forgotten."""
    left_out: Sequence[Range] = ()
    """The ranges that A knows to be lost for good."""
    replaceable: bool = True
    """Whether A may delete the topic to make it anew in a later life: everything in it was deleted on purpose, or it is
    empty."""
    joins: bool = False
    """Whether A can keep its log, take a later life back into it, and begin a new life above both
    (:mod:`replicator.backup.new_lives`)."""

    @property
    def last(self) -> Position:
        """Position of the last entry of the log, or ``own_last`` if that is higher."""
        return max(self.own_last, Position(self.runs[-1][0], self.runs[-1][2])) if self.runs else self.own_last

    def ends(self) -> dict[int, int]:
        """Return the last entry that each ledger of the life had, by ledger, in order. Trimmed ledgers count, too."""
        found = {end.ledger: end.entry for end in self.trimmed_ends}
        found |= {ledger: last for ledger, _, last in self.runs}
        return {ledger: found[ledger] for ledger in sorted(found) if ledger > self.incarnation}


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
    """For each peer, the ranges in which the peer has all messages that A published."""
    holes: tuple[Range, ...]
    """The ranges that no peer has, as far as that is known before anything is read."""
    firsts: Mapping[str, Position] = field(default_factory=dict)
    """For each peer, the first position of the plan that the peer has, if that is known. Reading starts there."""
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
    """Plans for messages that go below the end of the log. Earlier lives come first, the oldest of them first."""
    refused: tuple[str, ...] = ()
    """Messages that have no place in the log any more and cannot be taken back, in words."""
    joins: bool = False
    """Whether the plans take back a life that is later than the topic's, so that the topic must begin a new one."""
    apart: frozenset[int] = frozenset()
    """Lives that have refused messages, because they reach above the begin of a later life. The messages stay at the
    peers."""
    deleted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each peer, the lives that A deleted on purpose and that the peer has a copy of. The copies stay at the
    peer.
    """

    @property
    def plans(self) -> tuple[TopicPlan, ...]:
        """Return all plans to take back the topic's lost messages, in the order in which they are carried out.

        ``newest`` comes first, then those of ``below``.
        """
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
    between: list[TopicPlan] = []
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
            if here is not None and here.incarnation == life:
                between = plan_between(name, here, wanted[life], unusable)
                if any(plan.upto > here.own_last for plan in between):  # A's log went on without messages of its own
                    newest = plan_topic(name, replace(here, own_last=here.last), wanted[life], unusable)
            if newest is not None and newest.made_anew:
                runs = ()
    below: list[TopicPlan] = []
    apart: set[int] = set()
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
            apart.add(life)
        elif plan is not None:
            below.append(plan)
    return Lives(newest, (*below, *between), tuple(refused), joins, frozenset(apart), deleted)


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


def plan_between(name: str, here: OwnLog, peers: Mapping[str, PeerCopy], rewritten: Iterable[str]) -> list[TopicPlan]:
    """Plan what to take back of A's life between ledgers of A's log, in order. ``peers`` have copies of that life.

    A gap reaches from the end of one ledger to the first position of the next one. Lost messages in it were in the rest
    of the ledger before it, or in ledgers that A lost. Nothing is planned for a gap in which no peer had anything.
    """
    ends, unusable = here.ends(), frozenset(rewritten)
    plans: list[TopicPlan] = []
    start = Position(here.incarnation, -1)
    is_known = here.trimmed <= start and len(here.trimmed_ends) < LEDGER_ENDS_MAX
    for ledger, last in ends.items():
        if is_known:  # before the first end that is known, ledgers can be trimmed and forgotten
            for gap in without([(start, Position(ledger, -1))], here.left_out):
                if (plan := _plan_gap(name, here.incarnation, gap, peers, unusable)) is not None:
                    plans.append(plan)
        start, is_known = Position(ledger, last), True
    return plans


def _plan_gap(
    name: str, incarnation: int, gap: Range, peers: Mapping[str, PeerCopy], unusable: frozenset[str]
) -> TopicPlan | None:
    """Plan what to take back of one gap. Return None if no peer has or had anything in it."""
    after, before = gap
    ledgers = {peer: _ledgers_within(copy, gap) for peer, copy in peers.items()}
    tops: dict[int, int] = {}
    for of_peer in ledgers.values():
        for ledger, (_, last) in of_peer.items():
            tops[ledger] = max(last, tops.get(ledger, -1))
    known = [Position(*each) for each in tops.items()]
    known += [at for copy in peers.values() for at in (copy.mark, copy.trimmed) if after < at < before]
    if not known:
        return None
    has: dict[str, Sequence[Range]] = {}
    firsts: dict[str, Position] = {}
    for peer, copy in peers.items():
        if peer in unusable or not (own := ledgers[peer]):
            continue
        lacks: list[Range] = []
        if copy.ledgers is not None:  # otherwise it had everything before its mark when it got that
            lacks = [
                (Position(ledger, own[ledger][1] if ledger in own else -1), Position(ledger, top))
                for ledger, top in tops.items()
                if ledger in own or ledger > copy.trimmed.ledger
            ]
        end = max(Position(ledger, last) for ledger, (_, last) in own.items())
        if ranges := without([(max(after, copy.trimmed), end)], [*copy.left_out, *lacks]):
            has[peer] = ranges
            if copy.ledgers is not None:
                firsts[peer] = min(Position(ledger, first) for ledger, (first, _) in own.items())
    sources = {peer: ranges[-1][1] for peer, ranges in has.items()}
    upto = max(known)
    holes = _holes(after, upto, has, {})
    return TopicPlan(name, incarnation, after, upto, False, sources, has, holes, firsts, below=True, between=True)


def _ledgers_within(copy: PeerCopy, gap: Range) -> dict[int, tuple[int, int]]:
    """Return the ledgers that a peer has entries of in ``gap``, with the first and the last of these entries.

    A peer that does not tell its ledgers has at least the entry at its mark, unless that is trimmed.
    """
    after, before = gap
    told = [(copy.mark.ledger, copy.mark.entry, copy.mark.entry)] if copy.ledgers is None else copy.ledgers
    found: dict[int, tuple[int, int]] = {}
    for ledger, first, last in told:
        end = Position(ledger, last)
        low = max(Position(ledger, first - 1), after, copy.trimmed)
        if low < end < before:
            found[ledger] = (low.entry + 1 if low.ledger == ledger else first, last)
    return found


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
            f"id of the life after it ({ceiling}), as where a clock was behind or an older store went on. They stay "
            "there, and cannot come back"
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
