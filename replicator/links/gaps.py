"""Gaps: where a link cannot go on without losing messages or joining two histories, and what may be done. Pure.

Invariants (DESIGN §3): 2 and 5, no message is passed over in silence, and no history is put after another's beginning
unless somebody decides it; 12, each gap has a way on that loses nothing, and its text names that way first.

For every origin that a link carries of a topic, what is here is compared with what the destination has:

1. A later life here than there: the topic was deleted and made anew, or its cluster lost its store (``made-anew``).
2. The destination has messages of the source itself that the source lost (``lost-data``), or a later life of its topic.
3. Messages above what the destination has are missing here, because they were trimmed, or because they were left out
   on their way to here (``trimmed``). A destination that was never copied to starts with what there is, unless
   the origin's messages also come to it on another way: those are waited for.

4. Messages of an earlier life of a topic are here, as after a reclaim, and the destination has only a later life
   (``earlier-life``). What the destination lacks below its mark it is asked, of the few topics with earlier lives.

Positions of later lives are greater, so one mark for each origin says how far all lives are there (docs/adr/0080).
Markers are no messages, and say nothing of lives: where the destination has only markers of the earlier life, or the
earlier life is in the log here too, the life there is raised without asking (:func:`lives_to_raise`).

``keep-both`` ends 1: the destination keeps the earlier life as closed history, and the link goes on with the later one.
It ends 4: the source keeps the earlier life, and the destination notes a hole.
``skip-and-record`` goes over a gap of kind 3: the next block says that something was left out before it. ``copy-anew``
deletes the destination's copy for 1 and 3. Nothing but an operator ends 2: what only the destination has stays there,
and is written down here as a hole of the source itself, which it never claims.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

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
"""Ways to end a gap, the one that loses nothing first."""

_ENDED_BY: Final = {
    TRIMMED: (SKIP_AND_RECORD, COPY_ANEW),
    MADE_ANEW: (KEEP_BOTH, COPY_ANEW),
    EARLIER_LIFE: (KEEP_BOTH,),
}

Hole = tuple[Position, Position]


def policies_for(kind: str) -> list[str]:
    """Return the policies by which an operator can end a gap of that kind, the one that loses nothing first."""
    return [policy for policy in POLICIES if Gap(kind, "", "").allows(policy, asked=True)]


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a topic stopped. ``kind`` is one of :data:`KINDS`."""

    kind: str
    origin: str
    detail: str
    reclaim_only: bool = False
    """Whether no policy ends it: the source's store is an older one, and has to take back what it lost."""

    @classmethod
    def trimmed(cls, origin: str, have: Position, missing: Position, held: int | None = None) -> Gap:
        return cls(
            TRIMMED,
            origin,
            f"messages of {origin} after {have} up to {missing} are not here any more, and the destination does not "
            "have them; `replicator links resolve --policy skip-and-record` goes on without them and deletes nothing "
            f"(copy-anew deletes the destination's copy, {_held(held)} and its subscriptions, and copies what is left "
            "here)",
        )

    @classmethod
    def earlier_life(cls, origin: str, upto: Position, destination: str) -> Gap:
        """Return the gap of messages that lie below the mark of the destination, where :func:`find_gap` sees none."""
        return cls(
            EARLIER_LIFE,
            origin,
            f"messages of an earlier life of the topic of {origin}, up to {upto}, are here, and {destination} does not "
            "have all of them, but later ones; they cannot be put before those; `replicator links resolve --policy "
            f"keep-both` goes on: they stay here, {destination} notes that it lacks them, and nothing is lost",
        )

    def allows(self, policy: str, *, asked: bool = False) -> bool:
        """Return whether the policy can end it: the link's own policy, or one that an operator ``asked`` for."""
        if self.reclaim_only:
            return False
        if self.kind == LOST_DATA:
            return policy == SKIP_AND_RECORD and asked
        return policy in _ENDED_BY[self.kind]


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest position of an origin, and the newest incarnation of the origin's topic that is known there."""

    incarnation: int
    position: Position
    messages: Position | None = None
    """Position of the newest message of the origin. BEFORE_ALL: there are only markers. None: an older worker did not
    say."""
    held: int | None = None
    """How many messages the log of the topic has, of all origins. None if it was not said."""
    store: str | None = None
    """The origin's store that wrote that life, as far as whoever says the mark knows."""
    deleted: bool = False
    """Whether whoever says the mark knows that the origin deleted that life on purpose."""

    @property
    def is_markers_only(self) -> bool:
        """Whether there are markers of the origin and no message."""
        return self.messages == BEFORE_ALL


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not here of a topic though its origins published it: what was trimmed, and what links left out."""

    trimmed: Mapping[str, Position] = field(default_factory=dict)
    """By origin, the newest message that was trimmed."""
    holes: Mapping[str, Sequence[Hole]] = field(default_factory=dict)
    """By origin, (after, upto] of what was left out, in order."""

    def before(self, origin: str, first: Position) -> Position:
        """The newest message of ``origin`` below ``first`` that is missing; BEFORE_ALL if none is."""
        newest = self.trimmed.get(origin, BEFORE_ALL)
        holes = self.holes.get(origin, ())
        at = bisect_left(holes, first, key=lambda hole: hole[1])
        return max(newest, holes[at - 1][1]) if at else newest

    def newest(self, origin: str) -> Position:
        """The newest message of ``origin`` that is missing; BEFORE_ALL if none is."""
        holes = self.holes.get(origin, ())
        return max(self.trimmed.get(origin, BEFORE_ALL), holes[-1][1] if holes else BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class Here:
    """What the source knows of one topic."""

    cluster: str
    destination: str
    incarnation: int
    marks: Mapping[str, Mark]
    missing: Missing
    has: Callable[[Position], bool]
    """Whether the source's own position was ever in its log, or is known to have been lost by a restore."""
    has_earlier: Callable[[str, Mark], bool]
    """Whether the log has, or had, the entry at a mark of an earlier life of an origin."""

    def incarnation_of(self, origin: str) -> int | None:
        """Return the newest life of ``origin`` that is known here; None if nothing of the origin is here."""
        if origin == self.cluster:
            return self.incarnation
        mark = self.marks.get(origin)
        return None if mark is None else mark.incarnation


def find_gap(
    here: Here,
    there: Mapping[str, Mark],
    origins: Collection[str],
    *,
    copied_before: bool,
    comes_elsewhere: Callable[[str], bool],
) -> Gap | None:
    """The first gap between what is here and what the destination has of ``origins``; None if copying may start."""
    for origin in sorted(origins, key=lambda name: (name != here.cluster, name)):
        theirs = there.get(origin)
        if theirs is not None and (gap := _other_lineage(here, origin, theirs)) is not None:
            return gap
        have = BEFORE_ALL if theirs is None else theirs.position
        missing = here.missing.newest(origin)
        lost_its_copy = copied_before and not there  # what was never copied of one origin is not lost
        if missing > have and (theirs is not None or lost_its_copy or comes_elsewhere(origin)):
            return Gap.trimmed(origin, have, missing, held_at(there))
    return None


def held_at(there: Mapping[str, Mark]) -> int | None:
    """Return how many messages the destination's log of the topic has; None if it did not say."""
    return next((mark.held for mark in there.values() if mark.held is not None), None)


def lives_to_raise(
    here: Here, there: Mapping[str, Mark], origins: Collection[str], *, asked: bool = False
) -> dict[str, Mark]:
    """Return, by origin, the marks of which the destination is to learn the life that is here.

    If nobody ``asked`` for that, only lives that it may take up without a decision are returned: it has no message of
    the earlier life, or that one is in the log here too, so that somebody decided it for this cluster before.
    """
    raised: dict[str, Mark] = {}
    for origin in origins:
        theirs, incarnation = there.get(origin), here.incarnation_of(origin)
        if theirs is None or incarnation is None or incarnation <= theirs.incarnation:
            continue
        if asked or _joins_by_itself(here, origin, theirs):
            ours = here.marks.get(origin)
            raised[origin] = Mark(incarnation, BEFORE_ALL if ours is None else ours.position)
    return raised


def _joins_by_itself(here: Here, origin: str, theirs: Mark) -> bool:
    return theirs.is_markers_only or here.has_earlier(origin, theirs)


def _other_lineage(here: Here, origin: str, theirs: Mark) -> Gap | None:
    """Going on would splice two histories, and let a subscription that consumed all of this one pass for one that
    consumed what only the destination has (invariant 5). What was trimmed here was once in the log."""
    incarnation = here.incarnation_of(origin)
    if incarnation is not None and incarnation > theirs.incarnation:
        return None if _joins_by_itself(here, origin, theirs) else _made_anew(here, origin, incarnation, theirs)
    if origin != here.cluster:
        return None  # a later life is there already: what is here of earlier ones lies below it
    if here.incarnation < theirs.incarnation:
        return Gap(
            LOST_DATA,
            origin,
            f"the destination knows a later life of the topic ({theirs.incarnation}) than this cluster "
            f"({here.incarnation}), with messages up to {theirs.position}: this cluster's store is older, as after a "
            "restore from an old copy; stop its worker, and bring the newer data back: `replicator backup reclaim`",
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
        f"{BEFORE_ALL if ours is None else ours.position}): this cluster lost data, as after a restore from an old "
        "copy; stop its worker, and bring the newer data back: `replicator backup reclaim` (`replicator links resolve "
        "--policy skip-and-record` goes on without it, for good: it stays at the destination only)",
    )


def _made_anew(here: Here, origin: str, incarnation: int, theirs: Mark) -> Gap:
    return Gap(
        MADE_ANEW,
        origin,
        f"the destination has another life of the topic of {origin} (incarnation {theirs.incarnation}) up to "
        f"{theirs.messages or theirs.position}, which is not here; here is a later one (incarnation {incarnation}); "
        f"`replicator links resolve --policy keep-both` keeps the earlier one at {here.destination} as closed history, "
        f"and goes on with the later one: nothing is lost (copy-anew deletes the copy at {here.destination}, "
        f"{_held(theirs.held)} and its subscriptions, for good)",
    )


def _held(messages: int | None) -> str:
    return "its messages" if messages is None else f"its {messages} messages"
