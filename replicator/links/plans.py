"""What a link that others carry for has handed out, and to whom. Pure; the clock is passed in.

Invariants (DESIGN §3): 2, a segment counts as carried once, however often that is reported, and one of which nobody
will report any more is planned again after the destination was asked; 11, one carrier, one plan, a few segments a lane.

1. A **carrier** asks for a **plan**: it then has the link, and gets a **segment** for each **lane** that has something
   to copy. One link has one carrier, and a carrier one plan.
2. A lane asks for its next segment when it has carried one, or a little before. What it was given, and says that it
   does not hold, is given to it again: its task was started anew.
3. A plan ends when it is reported done or failed, or when its carrier asks for another, loses the link or is silent.
   Or it is *relieved*: a carrier whose tasks come in shifts asks for the plan after it, and each lane goes on with its
   old task until the new one asks. The old one then only reports, and the new one waits for that, so that no lane
   stands still between two shifts, and none has two tasks that carry.
4. The newest live carrier has the link: the one before is dead or about to be. It does not get it back before the newer
   one is silent, so that two do not take the link from each other for ever.
5. A backfill takes the link from live copy, and keeps it until it releases it or is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from replicator.links.errors import BadReport, LinkTaken
from snapshots.errors import InvalidPosition
from snapshots.position import Position

LIVE: Final = "live"
BACKFILL: Final = "backfill"
KINDS: Final = (LIVE, BACKFILL)

CARRIER_SILENCE_SECONDS: Final = {LIVE: 60.0, BACKFILL: 60.0}
"""Not heard of for so long, a carrier has lost the link. A segment over a slow network takes some of that, and so does
a micro-batch on a machine that is overloaded; who comes instead of a dead one does not wait for it."""
LANE_SILENCE_SECONDS: Final = 5.0
"""A lane's task that has nothing to carry asks at least once a second."""
HAND_OVER_SECONDS: Final = 5.0
"""A task that is relieved finishes what it carries, and says so once a second; else that is given again."""
SUPERSEDED_MAX: Final = 16
"""Carriers remembered that lost the link to newer ones: each is a driver that ended."""

PlannedBlock = tuple[int, int, int, int, int, int, int]
"""Ledger and first entry, entries, bytes, the ledger and entry of the position of its origin that goes before it, and
flags: :data:`LEFT_OUT` where messages between the two may be left out, :data:`NOTE` where a note goes in its place."""
LEFT_OUT: Final = 1
NOTE: Final = 2
"""The block is not for the destination: whoever carries it asks for the note, and never has the block."""


@dataclass(slots=True)
class PlannedTopic:
    """What is to be carried of one topic: all of ``blocks``, which lie in (``after``, ``upto``]."""

    topic: str
    after: Position
    upto: Position
    blocks: list[PlannedBlock] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "after": str(self.after), "upto": str(self.upto), "blocks": self.blocks}


@dataclass(frozen=True, slots=True)
class Segment:
    """What a lane carries at once. ``number`` is the copy state machine's for the frame."""

    number: int
    lane: int
    size_bytes: int
    topics: Mapping[str, PlannedTopic]

    def as_json(self) -> dict[str, Any]:
        return {
            "segment": self.number,
            "bytes": self.size_bytes,
            "topics": [planned.as_json() for planned in self.topics.values()],
        }


@dataclass(frozen=True, slots=True)
class CarriedTopic:
    """How far a topic of a segment is at the destination, and why no further."""

    reached: Position
    refused: tuple[str, str] | None = None
    """Code and message."""


@dataclass(frozen=True, slots=True)
class Done:
    """A carrier's report of one segment."""

    segment: int
    topics: Mapping[str, CarriedTopic]
    blocks: int = 0
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    wire_bytes: int = 0

    @classmethod
    def parse(cls, raw: object) -> Done:
        """Read a report as it comes from the network; raises :class:`BadReport`."""
        if not isinstance(raw, Mapping):
            raise BadReport("a report of a segment is not an object")
        rows = raw.get("topics")
        if not isinstance(rows, list):
            raise BadReport("topics of a report is not a list")
        return cls(
            _count(raw, "segment"),
            dict(map(_carried, rows)),
            _count(raw, "blocks", 0),
            _count(raw, "entries", 0),
            _count(raw, "messages", 0),
            _count(raw, "bytes", 0),
            _count(raw, "wire_bytes", 0),
        )


def _carried(row: object) -> tuple[str, CarriedTopic]:
    if not isinstance(row, Mapping) or not isinstance(row.get("topic"), str) or not isinstance(row.get("reached"), str):
        raise BadReport("a topic of a report has no topic and reached")
    refused = row.get("refused")
    if refused is not None and not (
        isinstance(refused, Mapping)
        and isinstance(refused.get("code"), str)
        and isinstance(refused.get("message"), str)
    ):
        raise BadReport(f"refused of {row['topic'][:200]!r} has no code and message")
    try:
        reached = Position.parse(row["reached"])
    except InvalidPosition as error:
        raise BadReport(f"reached of {row['topic'][:200]!r}: {error}") from None
    return row["topic"], CarriedTopic(reached, None if refused is None else (refused["code"], refused["message"]))


def _count(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name, default)
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadReport(f"{name} of a report is not a number")
    return value


@dataclass(slots=True)
class _Lane:
    """What a lane was given and has not reported, and who carries it."""

    open: dict[int, Segment] = field(default_factory=dict)
    left: bool = False
    """Its task said that it stops."""
    heard_at: float | None = None
    relieved: bool = True
    """The task of this plan has asked; until then that of the plan before goes on."""
    inherited: frozenset[int] = frozenset()
    """What the task before was still carrying when it was relieved."""
    settled_by: float = 0.0


class Shift(Enum):
    """What the tasks of a plan do whose carrier asks for the plan after it."""

    BUSY = auto()
    """They go on, and have something to carry: let others relieve them."""
    QUIET = auto()
    """They go on, and nothing has come."""
    OVER = auto()
    """They have stopped, or at least one of them is not heard of any more."""


class Plan:
    """One plan: the segments that were handed out under it and not reported, by lane. Times as of :class:`Carriers`."""

    def __init__(self, number: int, lanes: int, bytes_max: int) -> None:
        self.number = number
        self.bytes_max = bytes_max
        self.first: list[Segment | None] = [None] * lanes
        """What each lane began with, for whoever asks for the plan again."""
        self.before: int | None = None
        """The plan that this one relieves."""
        self._lanes = [_Lane() for _ in range(lanes)]
        self._handed_out = 0
        self._handed_out_in_shift: int | None = None

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def handed_out(self, segment: Segment) -> None:
        self._handed_out += 1
        self._lanes[segment.lane].open[segment.number] = segment

    def open_in(self, lane: int) -> int:
        """Segments that the lane was given and has not reported."""
        return len(self._lanes[lane].open)

    def lost(self, lane: int, holding: Iterable[int]) -> Segment | None:
        """The oldest that was given to the lane and that it does not hold."""
        held = frozenset(holding)
        return next((segment for number, segment in self._lanes[lane].open.items() if number not in held), None)

    def reported(self, number: int) -> Segment | None:
        """It was carried. None if that is known already, or it is none of this plan's."""
        for lane in self._lanes:
            if number in lane.open:
                return lane.open.pop(number)
        return None

    def unreported(self) -> list[Segment]:
        return [segment for lane in self._lanes for segment in lane.open.values()]

    # Shifts.

    def shift(self, now_seconds: float) -> Shift:
        """How its tasks are, seen by the carrier that asks for the plan after it."""
        if self._handed_out_in_shift is None:
            self._handed_out_in_shift = self._handed_out
        lanes = [lane for lane in self._lanes if not lane.left]
        if not lanes or any(
            lane.heard_at is None or (now_seconds - lane.heard_at > LANE_SILENCE_SECONDS and not lane.open)
            for lane in lanes
        ):
            return Shift.OVER
        busy = self._handed_out > self._handed_out_in_shift or any(lane.open for lane in self._lanes)
        return Shift.BUSY if busy else Shift.QUIET

    def relief(self, number: int) -> Plan:
        """The plan after it, which goes on with its lanes."""
        after = Plan(number, self.lanes, self.bytes_max)
        after.before = self.number
        after._lanes = [_Lane(lane.open, heard_at=lane.heard_at, relieved=lane.left) for lane in self._lanes]
        return after

    def heard(self, lane: int, number: int, now_seconds: float) -> None:
        """The lane's task under plan ``number``, this one or the one before, asks or waits for an answer."""
        its = self._lanes[lane]
        its.heard_at = now_seconds
        if number != self.number:
            its.settled_by = now_seconds + HAND_OVER_SECONDS

    def leaves(self, lane: int, number: int) -> None:
        """The lane's task under plan ``number`` stops, and asks no more."""
        its = self._lanes[lane]
        if number == self.number:
            its.left = True
        else:
            its.relieved, its.settled_by = True, 0.0

    def is_relieved(self, lane: int, number: int) -> bool:
        """Whether the task that carries the lane under plan ``number`` is to stop, since the next one is there."""
        return number != self.number and self._lanes[lane].relieved

    def relieve(self, lane: int, now_seconds: float) -> bool:
        """The task of this plan is there; returns whether that was not known."""
        its = self._lanes[lane]
        if its.relieved:
            return False
        its.relieved, its.inherited, its.settled_by = True, frozenset(its.open), now_seconds + HAND_OVER_SECONDS
        return True

    def settling_seconds(self, lane: int, now_seconds: float) -> float:
        """How long the lane's task waits at most for what the one before it still carries; 0 when it may begin."""
        its = self._lanes[lane]
        if its.inherited.isdisjoint(its.open):
            return 0.0
        return max(its.settled_by - now_seconds, 0.0)


class Carriers:
    """Who has the link. Times are seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.kind = LIVE
        self.heard_at = 0.0
        self._superseded: dict[str, None] = {}

    @property
    def backfilling(self) -> bool:
        return self.holder is not None and self.kind == BACKFILL

    def asks(self, link: str, carrier: str, kind: str, now_seconds: float) -> bool:
        """``carrier`` wants to carry; returns whether it has the link now.

        Raises :class:`LinkTaken` to a backfill while another has it.
        """
        self.silent(now_seconds)
        if self.holder is not None and self.holder != carrier:
            if self.kind == BACKFILL and kind == BACKFILL:
                seconds = int(now_seconds - self.heard_at)
                raise LinkTaken(
                    f"link {link} is being backfilled by {self.holder}, last heard of {seconds} s ago; wait until it "
                    "is done, or until it was not heard of for a minute"
                )
            if self.kind == BACKFILL or (kind == LIVE and carrier in self._superseded):
                return False
            if kind == LIVE:
                self._supersede(self.holder)
        self.holder, self.kind, self.heard_at = carrier, kind, now_seconds
        self._superseded.pop(carrier, None)
        return True

    def heard(self, carrier: str, now_seconds: float) -> bool:
        """It is alive; returns whether it has the link."""
        if carrier != self.holder:
            return False
        self.heard_at = now_seconds
        return True

    def release(self, carrier: str) -> bool:
        """It does not want the link any more; returns whether it had it."""
        if carrier != self.holder:
            return False
        self.holder = None
        return True

    def silent(self, now_seconds: float) -> str | None:
        """Take the link from a carrier that was not heard of for too long; returns which."""
        gone = self.holder
        if gone is None or now_seconds - self.heard_at <= CARRIER_SILENCE_SECONDS[self.kind]:
            return None
        self.holder = None
        return gone

    def _supersede(self, carrier: str | None) -> None:
        if carrier is not None:
            self._superseded[carrier] = None
        if len(self._superseded) > SUPERSEDED_MAX:
            del self._superseded[next(iter(self._superseded))]
