"""Gaps: reasons why a link cannot go on with a topic without losing messages or joining two histories. Pure.

A life is a topic from when it is made until it is deleted; its incarnation names it. "Here" is the source of the link.
Invariants (DESIGN §3): 2 and 5, no message is passed over in silence, and two histories are joined only if an operator
or a policy decides it; 12, each gap can be ended without loss, and its text names that way first.

For every origin that a link carries of a topic, the source's log is compared with the destination's copy:

1. ``made-anew``: the source has a later life of the topic than the destination. The topic was deleted and made again,
   or its cluster lost its store.
2. ``lost-data``: the destination has messages of the source itself that the source lost, or a later life of the
   source's topic.
3. ``trimmed``: messages above the destination's high-water mark are missing here, because they were trimmed, or because
   the link that brought the topic here left them out. A destination that never had a copy starts with what the source
   has. But if another link also brings the origin's messages, this link waits until they have come. One gap names all
   origins whose messages are missing, because the policy that ends it passes over all of them. It is found last, so
   that nobody passes over messages before the other kinds are decided.
4. ``earlier-life``: the source has messages of an earlier life, or messages that a reclaim put back between its
   ledgers, and the destination has only later ones. The destination is asked what it lacks below its mark: about the
   last message of each earlier life, and of each ledger that was put back. This is done only for the few topics that
   have such messages.

Positions of later lives are greater. So one mark for each origin says how far the destination has all lives
(docs/adr/0080). Markers are no messages and prove no life. The destination takes up the later life without a decision
in two cases: its copy has only markers of the earlier life, or the source's log has the earlier life, too
(:func:`lives_to_raise`).

``keep-both`` ends gap 1: the destination keeps the earlier life as closed history, and the link goes on with the later
one. It also ends gap 4: the source keeps the earlier life, and the destination records a hole. ``skip-and-record`` ends
gap 3: the next block says that messages before it were left out. ``copy-anew`` ends gaps 1 and 3: it deletes the
destination's copy. Only an operator ends gap 2. The messages then stay at the destination alone, and this cluster
records them as a hole of its own, which it never claims.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.lineage import LOST_HERE, Judgement, reclaim_command
from snapshots.position import BEFORE_ALL, Position

TRIMMED: Final = "trimmed"
MADE_ANEW: Final = "made-anew"
LOST_DATA: Final = "lost-data"
EARLIER_LIFE: Final = "earlier-life"
KINDS: Final = (TRIMMED, MADE_ANEW, LOST_DATA, EARLIER_LIFE)

STOP: Final = "stop"
KEEP_BOTH: Final = "keep-both"
SKIP_AND_RECORD: Final = "skip-and-record"
COPY_ANEW: Final = "copy-anew"
POLICIES: Final = (KEEP_BOTH, SKIP_AND_RECORD, COPY_ANEW)
"""Policies that end a gap; the policy that loses nothing comes first."""

_ENDED_BY: Final = {
    TRIMMED: (SKIP_AND_RECORD, COPY_ANEW),
    MADE_ANEW: (KEEP_BOTH, COPY_ANEW),
    EARLIER_LIFE: (KEEP_BOTH,),
}

Hole = tuple[Position, Position]


def policies_for(kind: str) -> list[str]:
    """Return the policies by which an operator can end most gaps of ``kind``, the policy that loses nothing first.

    :meth:`Gap.policies` says it of one gap.
    """
    return Gap(kind, "", "").policies()


@dataclass(frozen=True, slots=True)
class GapPlace:
    """Link and topic of a gap. The text of the gap has whole commands by it."""

    source: str
    destination: str
    topic: str
    name: str = ""
    """Name of the link; "" if it has none."""

    def resolve(self, policy: str) -> str:
        """Return the command that ends the gap by ``policy``."""
        named = f" --name {shlex.quote(self.name)}" if self.name else ""
        ends = f"--from {self.source} --to {self.destination}{named} --topic {shlex.quote(self.topic)}"
        return f"`replicator links resolve -f FILE {ends} --policy {policy}`"

    def reclaim(self) -> str:
        """Return the command that brings back what the source lost."""
        return f"`{reclaim_command(self.source)}`"


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """Refusal of the destination to end a gap by ``policy``."""

    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Reason why a link stopped copying a topic. ``kind`` is one of :data:`KINDS`."""

    kind: str
    origin: str
    what: str
    """Text that says what is wrong, without advice."""
    reclaim_only: bool = False
    """Whether no policy ends the gap: the source's store is an older copy, and a reclaim must come first."""
    markers_only: bool = False
    """Whether the destination has only markers of a later life, so that no message would be lost with them."""
    held: int | None = None
    """Number of messages that ``copy-anew`` would delete; None if the destination did not report it."""
    place: GapPlace = GapPlace("SOURCE", "DESTINATION", "TOPIC")
    judgement: Judgement | None = None
    """Why the source does not have what the destination has; None if the gap does not depend on it."""
    cause: str = ""
    """The judgement in words, with the way to repair it; "" if there is nothing to repair."""
    refused: PolicyRefused | None = None
    """The last refusal of the destination to end this gap."""
    missing: Mapping[str, Hole] = field(default_factory=dict)
    """For each origin, the range (after, upto] of a ``trimmed`` gap; empty for the other kinds."""

    @classmethod
    def trimmed(cls, missing: Mapping[str, Hole], held: int | None = None) -> Gap:
        """Return the gap for the range (after, upto] of messages of each origin that is missing here and there."""
        ranges = ", ".join(f"of {origin} after {after} up to {upto}" for origin, (after, upto) in missing.items())
        what = f"messages {ranges} are not here any more, and the destination does not have them"
        return cls(TRIMMED, next(iter(missing)), what, held=held, missing=missing)

    def by_origin(self) -> list[Gap]:
        """Return the parts of a ``trimmed`` gap, one for each origin; a gap of another kind is one part."""
        return [Gap.trimmed({origin: hole}, self.held) for origin, hole in self.missing.items()] or [self]

    @classmethod
    def earlier_life(cls, origin: str, upto: Position, destination: str) -> Gap:
        """Return the gap for messages of an earlier life that lie below the destination's mark; :func:`find_gap` cannot
        see it."""
        return cls(
            EARLIER_LIFE,
            origin,
            f"messages of {origin} that belong to an earlier life of the topic, or that a reclaim put back, up to "
            f"{upto}, are here, and {destination} does not have all of them, but later ones; they cannot be put before "
            "those",
        )

    @classmethod
    def unknown_lives(cls, origin: str, upto: Position, destination: str) -> Gap:
        """Return the gap for messages of an earlier life if the destination cannot say whether it has them, because its
        version is earlier."""
        return cls(
            EARLIER_LIFE,
            origin,
            f"messages of {origin} that belong to an earlier life of the topic, or that a reclaim put back, up to "
            f"{upto}, are here, and the version of {destination} cannot say whether it has them",
            cause=f"upgrade {destination}, and the link asks again",
        )

    @property
    def detail(self) -> str:
        """The gap in words: the last refusal, what is wrong, the cause, and the ways to end it. The way that loses
        nothing comes before the others."""
        refused = self.refused and f"the destination refuses {self.refused.policy}: {self.refused.reason}"
        cause = self.cause and f"Cause: {self.cause}"
        return ". ".join(part for part in (refused, self.what, cause, *self._ways()) if part)

    def _ways(self) -> list[str]:
        there, resolve = self.place.destination, self.place.resolve
        if self.kind == LOST_DATA:
            return self._choices_for_lost_data()
        if self.kind == EARLIER_LIFE and self.cause:
            return [f"{resolve(KEEP_BOTH)} goes on without asking until this worker starts again: they stay here"]
        if self.kind == EARLIER_LIFE:
            return [
                f"{resolve(KEEP_BOTH)} goes on: they stay here, {there} notes that it lacks them, and nothing is lost"
            ]
        if self.kind == TRIMMED:
            skip = f"{resolve(SKIP_AND_RECORD)} goes on without them and deletes nothing"
            return [skip + self._copy_anew_remark(", and copies what is left here")]
        keeps = f"keeps the earlier life at {there} as closed history, and goes on with the later one"
        if self.judgement in LOST_HERE:  # the copy may be the only one, so that copy-anew is no advice
            return [f"{resolve(KEEP_BOTH)} before that does no harm: it {keeps}"]
        ways = [f"{resolve(KEEP_BOTH)} {keeps}: nothing is lost" + self._copy_anew_remark(", for good")]
        if self.refused is None or self.refused.policy != KEEP_BOTH:
            return ways
        begin = f"Stop the worker of {self.place.source}, and begin a new life of the topic: {self.place.reclaim()}"
        return [begin, *ways]

    def _choices_for_lost_data(self) -> list[str]:
        source, there = self.place.source, self.place.destination
        if self.markers_only:
            if self.refused is not None:
                return []
            return [
                f"{self.place.resolve(COPY_ANEW)} deletes the copy at {there}, {_held(self.held)} and its "
                "subscriptions, and copies what is here. The destination refuses it if a message would be lost"
            ]
        deleted = self.judgement is Judgement.DELETED_ON_PURPOSE
        if deleted and self.reclaim_only:
            begin = f"Stop the worker of {source}, and begin a new life of the topic: {self.place.reclaim()}"
            return [f"{begin}. Nothing is lost by that"]
        skip = f"{self.place.resolve(SKIP_AND_RECORD)} goes on without it, for good: it stays at {there} only"
        if deleted:
            return [skip]
        back = f"Stop the worker of {source}, and bring the newer data back: {self.place.reclaim()}"
        ways = [] if self.judgement in LOST_HERE else [back]  # otherwise the cause says it
        return ways if self.reclaim_only else [*ways, f"The other way loses data: {skip}"]

    def _copy_anew_remark(self, then: str) -> str:
        """Return the sentence that offers an operator ``--policy copy-anew`` and says how much it deletes.

        Return "" if the destination has refused that policy, or does not say how many messages its copy has.
        """
        if self.held is None or (self.refused is not None and self.refused.policy == COPY_ANEW):
            return ""
        return (
            f" (`--policy copy-anew` deletes the copy at {self.place.destination}, {_held(self.held)} and its "
            f"subscriptions{then})"
        )

    def policies(self) -> list[str]:
        """Return the policies by which an operator can end the gap, the policy that loses nothing first.

        A policy that the destination has refused is left out.
        """
        refused = None if self.refused is None else self.refused.policy
        return [policy for policy in POLICIES if policy != refused and self.allows(policy, asked=True)]

    def allows(self, policy: str, *, asked: bool = False) -> bool:
        """Return whether ``policy`` can end the gap. ``asked`` is True if an operator chose the policy, and False if it
        is the setting of the link."""
        if self.reclaim_only:
            return False
        if self.markers_only:
            return policy == COPY_ANEW and asked
        if policy == COPY_ANEW and self.judgement in LOST_HERE:
            return False  # the copy that it deletes may be the only one
        if self.kind == LOST_DATA:
            return policy == SKIP_AND_RECORD and asked
        return policy in _ENDED_BY.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Mark:
    """High-water mark of an origin in a topic, with the newest incarnation of the origin's topic that the cluster
    knows."""

    incarnation: int
    position: Position
    messages: Position | None = None
    """Position of the origin's newest message; BEFORE_ALL if the topic has only markers of it; None if an older worker
    did not report it."""
    held: int | None = None
    """Number of stored messages of all origins in the topic; None if an older worker did not report it."""
    store: str | None = None
    """Id of the origin's store that wrote this life; None if the reporting cluster does not know it."""
    deleted: bool = False
    """Whether the reporting cluster knows that the origin deleted this life on purpose."""

    @property
    def is_markers_only(self) -> bool:
        """Whether the topic has markers of the origin but no messages of it."""
        return self.messages == BEFORE_ALL


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages of a topic that this cluster lacks: they were trimmed here, or links left them out."""

    trimmed: Mapping[str, Position] = field(default_factory=dict)
    """For each origin, the newest message that was trimmed."""
    holes: Mapping[str, Sequence[Hole]] = field(default_factory=dict)
    """For each origin, the ranges (after, upto] that links left out, in order."""

    def before(self, origin: str, first: Position) -> Position:
        """Return the newest missing message of ``origin`` below ``first``; BEFORE_ALL if none is missing."""
        newest = self.trimmed.get(origin, BEFORE_ALL)
        holes = self.holes.get(origin, ())
        at = bisect_left(holes, first, key=lambda hole: hole[1])
        return max(newest, holes[at - 1][1]) if at else newest

    def newest(self, origin: str) -> Position:
        """Return the newest missing message of ``origin``; BEFORE_ALL if none is missing."""
        holes = self.holes.get(origin, ())
        return max(self.trimmed.get(origin, BEFORE_ALL), holes[-1][1] if holes else BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of one topic at the source of a link."""

    cluster: str
    destination: str
    incarnation: int
    marks: Mapping[str, Mark]
    missing: Missing
    has: Callable[[Position], bool]
    """Returns whether a position of the source's own was ever in its log, or is recorded as lost by a restore."""
    has_earlier: Callable[[str, Mark], bool]
    """Returns whether the log has, or had, the entry at a mark of an earlier life of an origin."""

    def incarnation_of(self, origin: str) -> int | None:
        """Return the newest incarnation of ``origin``'s topic that the source knows; None if it has nothing of that
        origin."""
        if origin == self.cluster:
            return self.incarnation
        mark = self.marks.get(origin)
        return None if mark is None else mark.incarnation


def find_gap(
    here: SourceState,
    there: Mapping[str, Mark],
    origins: Collection[str],
    *,
    copied_before: bool,
    comes_elsewhere: Callable[[str], bool],
    accepted: Mapping[str, Hole],
) -> Gap | None:
    """Return the gap between the local log and the destination's copy that must be ended first; None if copying may
    start.

    ``accepted`` has, by origin, the range of missing messages that may be passed over (:func:`reached`).
    """
    in_order = sorted(origins, key=lambda name: (name != here.cluster, name))
    for origin in in_order:
        if origin in there and (gap := _other_lineage(here, origin, there[origin])) is not None:
            return gap
    lost_its_copy = copied_before and not there  # what was never copied of one origin is not lost
    found: dict[str, Hole] = {}
    for origin in in_order:
        have, missing = reached(there, origin, accepted), here.missing.newest(origin)
        if missing > have and (origin in there or lost_its_copy or comes_elsewhere(origin)):
            found[origin] = have, missing
    return Gap.trimmed(found, _held_at(there)) if found else None


def reached(there: Mapping[str, Mark], origin: str, accepted: Mapping[str, Hole]) -> Position:
    """Return up to where the destination has the messages of ``origin``, or a decision says that it may lack them.

    The decision counts for the range that it named: not if the destination has less now than it had then.
    """
    have = there[origin].position if origin in there else BEFORE_ALL
    after, upto = accepted.get(origin, (BEFORE_ALL, BEFORE_ALL))
    return max(have, upto) if have >= after else have


def _held_at(there: Mapping[str, Mark]) -> int | None:
    """Return how many messages the destination's log of the topic has; None if it did not say."""
    return next((mark.held for mark in there.values() if mark.held is not None), None)


def lives_to_raise(
    here: SourceState, there: Mapping[str, Mark], origins: Collection[str], *, asked: bool = False
) -> dict[str, Mark]:
    """Return, by origin, the marks of later lives that the destination should learn.

    With ``asked``, an operator or a policy decided it, and all later lives are returned. Otherwise only lives are
    returned that the destination may learn without a decision. This is so if it has only markers of the earlier life,
    or if the earlier life is in the source's log, too.
    """
    raised: dict[str, Mark] = {}
    for origin in origins:
        theirs, incarnation = there.get(origin), here.incarnation_of(origin)
        if theirs is None or incarnation is None or incarnation <= theirs.incarnation:
            continue
        if asked or _needs_no_decision(here, origin, theirs):
            ours = here.marks.get(origin)
            # A life of the source's own begins without messages; then the mark here is of an earlier one.
            begins = ours is None or (origin == here.cluster and ours.position.ledger < incarnation)
            raised[origin] = Mark(incarnation, BEFORE_ALL if ours is None or begins else ours.position)
    return raised


def _needs_no_decision(here: SourceState, origin: str, theirs: Mark) -> bool:
    return theirs.is_markers_only or here.has_earlier(origin, theirs)


def _other_lineage(here: SourceState, origin: str, theirs: Mark) -> Gap | None:
    """Going on would splice two histories, and let a subscription that consumed all of this one pass for one that
    consumed what only the destination has (invariant 5). What was trimmed here was once in the log."""
    incarnation = here.incarnation_of(origin)
    if incarnation is not None and incarnation > theirs.incarnation:
        return None if _needs_no_decision(here, origin, theirs) else _made_anew(origin, incarnation, theirs)
    if origin != here.cluster:
        return None  # the destination has a later life, and earlier lives here lie below it
    if here.incarnation < theirs.incarnation and theirs.is_markers_only:
        return Gap(
            LOST_DATA,
            origin,
            f"the destination knows a later life of the topic ({theirs.incarnation}) than this cluster "
            f"({here.incarnation}), but only by markers, and has no message of {origin}",
            markers_only=True,
            held=theirs.held,
        )
    if here.incarnation < theirs.incarnation:
        return Gap(
            LOST_DATA,
            origin,
            f"the destination knows a later life of the topic ({theirs.incarnation}) than this cluster "
            f"({here.incarnation}), with messages up to {theirs.position}: this cluster's store is older, as after a "
            "restore from an old copy",
            reclaim_only=True,
        )
    newest = theirs.position if theirs.messages is None else theirs.messages
    if newest == BEFORE_ALL or newest.ledger < here.incarnation or here.has(newest):
        return None
    ours = here.marks.get(origin)
    return Gap(
        LOST_DATA,
        origin,
        f"the destination has messages of {origin} up to {newest}, which is not in the log here (it ends at "
        f"{BEFORE_ALL if ours is None else ours.position}), as after a restore from an old copy",
    )


def _made_anew(origin: str, incarnation: int, theirs: Mark) -> Gap:
    return Gap(
        MADE_ANEW,
        origin,
        f"the destination has another life of the topic of {origin} (incarnation {theirs.incarnation}) up to "
        f"{theirs.messages or theirs.position}, which is not here; here is a later one (incarnation {incarnation})",
        held=theirs.held,
    )


def _held(messages: int | None) -> str:
    return "its messages" if messages is None else "its only message" if messages == 1 else f"its {messages} messages"
