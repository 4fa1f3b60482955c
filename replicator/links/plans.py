"""Plans of a link whose blocks others carry: the segments that it handed out, and their carrier. Pure; the clock is
passed in.

Invariants (DESIGN §3): 2, a segment counts as carried once, even if it is reported twice. If nobody will report it any
more, it is planned again after the destination was asked. 11, one carrier, one plan, a few segments a lane.

1. A **carrier** asks for a **plan**: it then has the link, and gets a **segment** for each **lane** that has something
   to copy. One link has one carrier, and a carrier one plan.
2. A lane asks for its next segment when it has carried one, or a little before. A segment that it was given and does
   not hold is given to it again, because its task was started anew.
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
"""Time after which a silent carrier loses the link. A segment over a slow network takes some of that time, and so does
a micro-batch on an overloaded machine. A carrier that replaces a dead one does not wait for it."""
LANE_SILENCE_SECONDS: Final = 5.0
"""Time after which a silent task without segments counts as ended. It asks at least once a second."""
HAND_OVER_SECONDS: Final = 5.0
"""Time for a relieved task to finish what it carries. It reports each second; else its segments are given out again."""
SUPERSEDED_MAX: Final = 16
"""Most carriers remembered that lost the link to newer ones. Each is a driver that ended."""

PlannedBlock = tuple[int, int, int, int, int, int, int]
"""Ledger, first entry, number of entries, bytes, ledger and entry of the previous position of the same origin, and
flags: :data:`LEFT_OUT` if messages between the two may be left out, :data:`NOTE` if a note goes in its place."""
LEFT_OUT: Final = 1
NOTE: Final = 2
"""Flag of a block that is not for the destination. Its carrier asks for a note instead, and never gets the block."""


@dataclass(slots=True)
class PlannedTopic:
    """Blocks of one topic that a segment has. They lie at positions in (``after``, ``upto``]."""

    topic: str
    after: Position
    upto: Position
    blocks: list[PlannedBlock] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "after": str(self.after), "upto": str(self.upto), "blocks": self.blocks}


@dataclass(frozen=True, slots=True)
class Segment:
    """Blocks that one lane gets to carry at once. :class:`Copier` counts it as the frame ``number``."""

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
    """Position that a topic of a segment reached at the destination, and the refusal that stopped it there."""

    reached: Position
    refused: tuple[str, str] | None = None
    """Code and message of the refusal; None if the destination refused nothing."""


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
        """Parse a report from the network. Raises :class:`BadReport` if it is malformed."""
        if not isinstance(raw, Mapping):
            raise BadReport(
                f"a carrier's report of a segment must be an object, not {raw!r:.80}: run the same version in Spark "
                "and in the worker"
            )
        rows = raw.get("topics")
        if not isinstance(rows, list):
            raise BadReport(
                f"topics of a carrier's report must be a list, not {rows!r:.80}: run the same version in Spark and in "
                "the worker"
            )
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
        raise BadReport(
            f"a topic of a carrier's report lacks the texts topic and reached: {row!r:.80}; run the same version in "
            "Spark and in the worker"
        )
    refused = row.get("refused")
    if refused is not None and not (
        isinstance(refused, Mapping)
        and isinstance(refused.get("code"), str)
        and isinstance(refused.get("message"), str)
    ):
        raise BadReport(
            f"refused of {row['topic'][:200]!r} in a carrier's report must have code and message, both text, and is "
            f"{refused!r:.80}; run the same version in Spark and in the worker"
        )
    try:
        reached = Position.parse(row["reached"])
    except InvalidPosition as error:
        raise BadReport(
            f"reached of {row['topic'][:200]!r} in a carrier's report is no position: {error}; run the same version in "
            "Spark and in the worker"
        ) from None
    return row["topic"], CarriedTopic(reached, None if refused is None else (refused["code"], refused["message"]))


def _count(raw: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field, default)
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadReport(
            f"{field} of a carrier's report must be a number from 0 to 2**63-1, not {value!r:.80}: run the same "
            "version in Spark and in the worker"
        )
    return value


@dataclass(slots=True)
class _Lane:
    """State of one lane: its segments that are not reported yet, and its task."""

    open: dict[int, Segment] = field(default_factory=dict)
    left: bool = False
    """Whether the lane's task said that it stops."""
    heard_at: float | None = None
    relieved: bool = True
    """Whether this plan's task has asked. Until then the task of the plan before goes on."""
    inherited: frozenset[int] = frozenset()
    """Numbers of the segments that the task before was still carrying when it was relieved."""
    settled_by: float = 0.0


class Shift(Enum):
    """State of a plan's tasks at the time when their carrier asks for the next plan."""

    BUSY = auto()
    """The tasks go on, and have something to carry: let others relieve them."""
    QUIET = auto()
    """The tasks go on, and nothing has come."""
    OVER = auto()
    """The tasks have stopped, or at least one of them is silent."""


class Plan:
    """One plan: its unreported segments, by lane. Times are those of the clock of :class:`Carriers`."""

    def __init__(self, number: int, lanes: int, bytes_max: int) -> None:
        self.number = number
        self.bytes_max = bytes_max
        self.first: list[Segment | None] = [None] * lanes
        """First segment of each lane, for a carrier that asks for the plan again."""
        self.before: int | None = None
        """Number of the plan that this one relieves; None if there is none."""
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
        """Return how many segments the lane was given and has not reported."""
        return len(self._lanes[lane].open)

    def lost(self, lane: int, holding: Iterable[int]) -> Segment | None:
        """Return the oldest segment that the lane was given and does not hold; None if it holds all."""
        held = frozenset(holding)
        return next((segment for number, segment in self._lanes[lane].open.items() if number not in held), None)

    def reported(self, number: int) -> Segment | None:
        """Remove and return segment ``number``, which was reported; None if this plan does not have it open."""
        for lane in self._lanes:
            if number in lane.open:
                return lane.open.pop(number)
        return None

    def unreported(self) -> list[Segment]:
        return [segment for lane in self._lanes for segment in lane.open.values()]

    # Shifts.

    def shift(self, now_seconds: float) -> Shift:
        """Return the state of this plan's tasks, for the carrier that asks for the next plan."""
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
        """Return the next plan, which takes over this plan's lanes."""
        after = Plan(number, self.lanes, self.bytes_max)
        after.before = self.number
        after._lanes = [_Lane(lane.open, heard_at=lane.heard_at, relieved=lane.left) for lane in self._lanes]
        return after

    def heard(self, lane: int, number: int, now_seconds: float) -> None:
        """Record that the lane's task under plan ``number``, this one or the one before, is alive."""
        its = self._lanes[lane]
        its.heard_at = now_seconds
        if number != self.number:
            its.settled_by = now_seconds + HAND_OVER_SECONDS

    def leaves(self, lane: int, number: int) -> None:
        """Record that the lane's task under plan ``number`` stops, and asks no more."""
        its = self._lanes[lane]
        if number == self.number:
            its.left = True
        else:
            its.relieved, its.settled_by = True, 0.0

    def is_relieved(self, lane: int, number: int) -> bool:
        """Return whether the lane's task under plan ``number`` must stop, because the next task is there."""
        return number != self.number and self._lanes[lane].relieved

    def relieve(self, lane: int, now_seconds: float) -> bool:
        """Record that this plan's task has asked for the lane. Return whether it is the first time."""
        its = self._lanes[lane]
        if its.relieved:
            return False
        its.relieved, its.inherited, its.settled_by = True, frozenset(its.open), now_seconds + HAND_OVER_SECONDS
        return True

    def settling_seconds(self, lane: int, now_seconds: float) -> float:
        """Return how long the lane's task still waits for what the task before carries; 0 when it may begin."""
        its = self._lanes[lane]
        if its.inherited.isdisjoint(its.open):
            return 0.0
        return max(its.settled_by - now_seconds, 0.0)


class Carriers:
    """Carrier that has the link now. Times are seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.kind = LIVE
        self.heard_at = 0.0
        self._superseded: dict[str, None] = {}

    @property
    def backfilling(self) -> bool:
        return self.holder is not None and self.kind == BACKFILL

    def asks(self, link: str, carrier: str, kind: str, now_seconds: float) -> bool:
        """Give ``carrier`` the link if it may have it. Return whether it has it now.

        Raises :class:`LinkTaken` to a backfill while another backfill has the link.
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
        """Record that ``carrier`` is alive. Return whether it has the link."""
        if carrier != self.holder:
            return False
        self.heard_at = now_seconds
        return True

    def release(self, carrier: str) -> bool:
        """Take the link from ``carrier``, which gives it back. Return whether it had it."""
        if carrier != self.holder:
            return False
        self.holder = None
        return True

    def silent(self, now_seconds: float) -> str | None:
        """Take the link from a carrier that was silent for too long. Return its name; None if there is none."""
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
