"""Gaps: where a link cannot go on without losing messages or joining two histories, and what may be done. Pure.

Invariants (DESIGN §3): 2 and 5, no message is passed over in silence, and no history is put after another's beginning.

For every origin that a link carries of a topic, what is here is compared with what the destination has:

1. Another incarnation here than there: the topic was deleted and made anew (``made-anew``). Going on would splice.
2. The destination has messages of the source itself that the source never had: it lost data (``lost-data``).
3. Messages above what the destination has are missing here, because they were trimmed, or because they were left out
   on their way to here (``trimmed``). A destination that was never copied to starts with what there is, unless
   the origin's messages also come to it on another way: those are waited for.

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

STOP: Final = "stop"
SKIP_AND_RECORD: Final = "skip-and-record"
COPY_ANEW: Final = "copy-anew"

Hole = tuple[Position, Position]


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a topic stopped. ``kind`` is :data:`TRIMMED`, :data:`MADE_ANEW` or :data:`LOST_DATA`."""

    kind: str
    origin: str
    detail: str

    @classmethod
    def trimmed(cls, origin: str, have: Position, missing: Position) -> Gap:
        return cls(
            TRIMMED,
            origin,
            f"messages of {origin} after {have} up to {missing} are not here any more, and the destination does not "
            "have them; `replicator links resolve` goes on without them (skip-and-record) or copies the topic anew",
        )

    def allows(self, policy: str, *, asked: bool = False) -> bool:
        """Whether the policy can end it, of the link, or as an operator ``asked`` for this topic."""
        if self.kind == LOST_DATA:
            return policy == SKIP_AND_RECORD and asked
        return policy == COPY_ANEW or (policy == SKIP_AND_RECORD and self.kind == TRIMMED)


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest position of an origin, and the incarnation of the origin's topic that it belongs to."""

    incarnation: int
    position: Position
    store: str | None = None
    """The origin's store that wrote that life, as far as whoever says the mark knows."""
    deleted: bool = False
    """Whether whoever says the mark knows that the origin deleted that life on purpose."""


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
    """What the source knows of one topic. ``has`` says whether its own position was ever in its log, or is known to
    have been lost by a restore."""

    cluster: str
    destination: str
    incarnation: int
    marks: Mapping[str, Mark]
    missing: Missing
    has: Callable[[Position], bool]


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
            return Gap.trimmed(origin, have, missing)
    return None


def _other_lineage(here: Here, origin: str, theirs: Mark) -> Gap | None:
    """Going on would splice two histories, and let a subscription that consumed all of this one pass for one that
    consumed what only the destination has (invariant 5). What was trimmed here was once in the log."""
    ours = here.marks.get(origin)
    if origin == here.cluster:
        if here.incarnation != theirs.incarnation:
            return Gap(
                MADE_ANEW,
                origin,
                f"the destination has incarnation {theirs.incarnation}, here is {here.incarnation}: the topic was "
                f"deleted and made anew here; to copy the new one, delete the old one at {here.destination}, or "
                "`replicator links resolve --policy copy-anew`",
            )
        if not here.has(theirs.position):
            return Gap(
                LOST_DATA,
                origin,
                f"the destination has messages of {origin} up to {theirs.position}, which is not in the log here (it "
                f"ends at {BEFORE_ALL if ours is None else ours.position}): this cluster lost data, as after a restore "
                "from an old copy; bring the newer data back (`replicator backup reclaim`, before its worker starts), "
                "or `replicator links resolve --policy skip-and-record` goes on without it, for good",
            )
    elif ours is not None and ours.incarnation != theirs.incarnation:
        return Gap(
            MADE_ANEW,
            origin,
            f"the destination has incarnation {theirs.incarnation} of the topic of {origin}, here is "
            f"{ours.incarnation}: it was deleted and made anew at {origin}; delete the older copy",
        )
    return None
