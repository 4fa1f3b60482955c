"""A backfill, step by step. Sans-IO: the shell runs what it says, and reports what came of it.

Invariants (DESIGN §3): a backfill is done only when the destination has everything that the source had when it began,
and every replicated subscription's state (2, 5); it ends in bounded time where nothing moves any more (11). What is
appended is appended by the rule of links, so nothing here can lose or repeat anything, whenever it is killed.

1. CARRY: the link is taken over. A plan of it is made and carried as one Spark job, and again, until what a plan has
   left is small enough that the live link has it in a moment; one of those is carried too, as Spark runs already. A job
   that fails is followed by another plan: that one starts at the destination's high-water marks.
2. HAND_OVER: the link is released.
3. CATCH_UP: the destination is asked until it has each topic up to its goal. Topics that the link cannot go on with are
   not waited for.
4. TELL: the source tells the whole state of every replicated subscription. What it has then is what is compared.
5. COMPARE: the destination is asked until it has each of these states. What was told is told again now and then: a
   worker that is killed forgets what it was about to tell.

In every phase there is a limit on how long nothing may move: then the backfill gives up, and releases the link if it
holds it. It can be begun again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

SMALL_BYTES: Final = 4 * 1024 * 1024
"""With less than this left, the live link takes over. It is less than a live link has in flight."""
STALL_SECONDS_MAX: Final = 60.0
"""Longer than a worker takes to be killed and started again, its database included."""
CARRIER_SECONDS_MAX: Final = 180.0
"""How long a live link may wait for its carrier before that counts as standing still: a busy machine needs a minute and
more to start the driver of a link that is Spark's."""
WAITING: Final = "waiting"
"""The state of a link that waits for a carrier begins with this word."""
EMPTY_SECONDS_MAX: Final = 5.0
"""How long a link may plan nothing while much is left: it asks the destination where topics go on."""
TELL_AGAIN_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 2.0
NAMED_MAX: Final = 3
"""How many topics a reason names; the report names all of them."""


class Phase(Enum):
    """Where a backfill is."""

    CARRY = "carrying history"
    HAND_OVER = "handing over to the live link"
    CATCH_UP = "waiting for the live link"
    TELL = "telling subscription states"
    COMPARE = "comparing subscription states"
    DONE = "done"
    GAVE_UP = "given up"


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Have the source plan; :meth:`Backfill.on_plan`, or :meth:`Backfill.on_unreachable`."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """Carry the plan that was made last; :meth:`Backfill.on_job`."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the link back to its live copy; :meth:`Backfill.on_released`."""


@dataclass(frozen=True, slots=True)
class AskCopies:
    """Ask what the destination lacks of these topics; :meth:`Backfill.on_copies`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Have the source tell all of these topics' subscriptions, and note their states, but not ``again``: what was noted
    first stands. :meth:`Backfill.on_told`."""

    topics: tuple[str, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class AskStates:
    """Compare the subscriptions of these topics with what was noted; :meth:`Backfill.on_states`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; then ``then``."""

    seconds: float
    then: Action


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over: :attr:`Backfill.phase` says how."""


Action = MakePlan | RunJob | Release | AskCopies | Tell | AskStates | Pause | Finish


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, as far as it decides what is next."""

    state: str
    detail: str
    lane_bytes: tuple[int, ...] = ()
    """The sizes of the segments in the plan."""
    full: bool = False
    """Whether a segment has the largest allowed size, so that its lane has more to carry."""
    opened: bool = True
    """Whether there is a plan at all: a link that is just connecting has none yet."""
    bytes_left: int = 0
    """Of all topics that the link can go on with."""


@dataclass(slots=True)
class _Clock:
    """How long nothing has moved."""

    since: float
    pause_seconds: float = PAUSE_SECONDS

    def moved(self, now: float) -> None:
        self.since, self.pause_seconds = now, PAUSE_SECONDS

    def next_pause(self) -> float:
        pause, self.pause_seconds = self.pause_seconds, min(PAUSE_SECONDS_MAX, 2 * self.pause_seconds)
        return pause


@dataclass(slots=True)
class Backfill:
    """One backfill. ``topics`` are those with a goal, ``subscribed`` those of them with replicated subscriptions; times
    are seconds on the shell's clock. Every event returns the one action that is next."""

    topics: tuple[str, ...]
    subscribed: tuple[str, ...]
    now: float
    stall_seconds_max: float = STALL_SECONDS_MAX
    phase: Phase = Phase.CARRY
    reason: str = ""
    """Why it gave up."""
    unavailable: bool = False
    """Whether that was for a worker that did not answer or could not go on."""
    missing: dict[str, str] = field(default_factory=dict)
    """Topics that the destination does not have in full, each with why."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Those of them that the link cannot go on with."""
    lacking: dict[str, dict[str, str]] = field(default_factory=dict)
    """By topic, the subscriptions whose state is not at the destination, each with why."""
    _clock: _Clock = field(init=False)
    _released_at: float = 0.0
    _told_at: float | None = None
    _carried: bool = False
    """Whether a job has brought something: Spark runs."""
    _swept: bool = False
    """Whether a last, small plan was carried too."""

    def __post_init__(self) -> None:
        self._clock = _Clock(self.now)

    def start(self) -> Action:
        return MakePlan()

    # CARRY

    def on_plan(self, plan: Planned, now: float) -> Action:
        """The source planned. A link that is paused stays so: an operator wants it."""
        assert self.phase is Phase.CARRY, self.phase
        if plan.state == "paused":
            return self._give_up("the link is paused; `replicator links resume` lets it go on")
        if plan.lane_bytes and (plan.full or sum(plan.lane_bytes) > SMALL_BYTES):
            return RunJob()
        if plan.lane_bytes and self._carried and not self._swept:
            self._swept = True
            return RunJob()
        if not plan.opened or (not plan.lane_bytes and plan.state in ("connecting", "failed")):
            return self._again(f"the link is not connected to its destination: {plan.detail or plan.state}", now)
        waited = now - self._clock.since
        if not plan.lane_bytes and plan.bytes_left > SMALL_BYTES and waited < EMPTY_SECONDS_MAX:
            return Pause(self._clock.next_pause(), MakePlan())
        return self._hand_over(now)

    def on_job(self, error: str | None, now: float, *, moved: bool) -> Action:
        """The job is over, and brought topics on if it ``moved``; with ``error`` parts of it failed."""
        assert self.phase is Phase.CARRY, self.phase
        if moved:
            self._carried = True
            self._clock.moved(now)
        elif error is None:
            error = "the destination took nothing of what was planned"
        return MakePlan() if error is None else self._again(error, now)

    def on_unreachable(self, reason: str, now: float) -> Action:
        """A worker did not answer. It is asked again for a while: it may be being restarted."""
        match self.phase:
            case Phase.CARRY:
                return self._again(reason, now)
            case Phase.HAND_OVER:
                return self._again(reason, now, Release())
            case Phase.CATCH_UP:
                return self._again(reason, now, AskCopies(self.topics))
            case Phase.TELL:
                return self._again(reason, now, Tell(self._to_tell(), again=self._told_at is not None))
            case Phase.COMPARE:
                return self._again(reason, now, AskStates(self._to_tell()))
        raise AssertionError(self.phase)

    def on_refused(self, reason: str) -> Action:
        """A worker refuses what was asked: asking again would not help."""
        return self._give_up(reason)

    # HAND_OVER, CATCH_UP

    def on_released(self, now: float) -> Action:
        assert self.phase is Phase.HAND_OVER, self.phase
        self.phase = Phase.CATCH_UP
        self._released_at = now
        self._clock.moved(now)
        return AskCopies(self.topics) if self.topics else self._caught_up(now)

    def on_copies(self, missing: Mapping[str, str], stopped: Mapping[str, str], now: float, link: str = "") -> Action:
        """What the destination lacks of its goals, and which topics the link cannot go on with, each with why; ``link``
        is what the link says of itself."""
        assert self.phase is Phase.CATCH_UP, self.phase
        starting = link.startswith(WAITING) and now - self._released_at < CARRIER_SECONDS_MAX
        if starting or dict(missing) != self.missing:
            self._clock.moved(now)
        self.missing = dict(missing)
        self.stopped = {topic: reason for topic, reason in stopped.items() if topic in missing}
        waiting = tuple(topic for topic in missing if topic not in self.stopped)
        if not waiting:
            return self._caught_up(now)
        if self._clock_is_up(now):
            said = f"nothing has come for a while, the link is {link or 'live'}, of"
            return self._give_up(_named(said, {topic: missing[topic] for topic in waiting}))
        return Pause(self._clock.next_pause(), AskCopies(tuple(missing)))

    # TELL, COMPARE

    def on_told(self, now: float) -> Action:
        assert self.phase is Phase.TELL, self.phase
        self.phase = Phase.COMPARE
        if self._told_at is None:
            self._clock.moved(now)
        self._told_at = now
        return AskStates(self._to_tell())

    def on_states(self, lacking: Mapping[str, Mapping[str, str]], now: float) -> Action:
        """The subscriptions whose state is not at the destination, by topic, each with why."""
        assert self.phase is Phase.COMPARE, self.phase
        states = {topic: dict(reasons) for topic, reasons in lacking.items() if reasons}
        if states != self.lacking:
            self._clock.moved(now)
        self.lacking = states
        if not states:
            return self._end()
        if self._clock_is_up(now):
            shown = {topic: "; ".join(f"{name}: {why}" for name, why in each.items()) for topic, each in states.items()}
            return self._give_up(_named("subscription states did not come:", shown))
        if self._told_at is None or now - self._told_at >= TELL_AGAIN_SECONDS:
            self.phase = Phase.TELL
            return Tell(tuple(states), again=True)
        return Pause(self._clock.next_pause(), AskStates(tuple(states)))

    # What they come to.

    def _hand_over(self, now: float) -> Action:
        self.phase = Phase.HAND_OVER
        self._clock.moved(now)
        return Release()

    def _caught_up(self, now: float) -> Action:
        if not self._to_tell():
            return self._end()
        self.phase = Phase.TELL
        self._clock.moved(now)
        return Tell(self._to_tell())

    def _to_tell(self) -> tuple[str, ...]:
        return tuple(topic for topic in self.subscribed if topic not in self.missing)

    def _end(self) -> Action:
        if self.missing:
            return self._give_up(_named("the link cannot go on with", self.missing))
        self.phase = Phase.DONE
        return Finish()

    def _again(self, reason: str, now: float, then: Action | None = None) -> Action:
        if self._clock_is_up(now):
            self.unavailable = True
            return self._give_up(reason)
        return Pause(self._clock.next_pause(), then or MakePlan())

    def _clock_is_up(self, now: float) -> bool:
        return now - self._clock.since >= self.stall_seconds_max

    def _give_up(self, reason: str) -> Action:
        self.reason = reason
        self.phase = Phase.GAVE_UP
        return Finish()


def _named(what: str, reasons: Mapping[str, str]) -> str:
    named = [f"{topic} ({reason})" for topic, reason in list(reasons.items())[:NAMED_MAX]]
    more = len(reasons) - len(named)
    return f"{what} {', '.join(named)}" + (f" and {more} more topics" if more else "")


def sizes_of(lanes: Sequence[Mapping[str, Any] | None], bytes_max: int) -> tuple[tuple[int, ...], bool]:
    """For a :class:`Planned`, of the segments as the source answers them: their sizes, and whether one is as large as
    ``bytes_max`` allows it to be."""
    sizes = tuple(int(lane["bytes"]) for lane in lanes if lane is not None)
    return sizes, any(size >= bytes_max // 2 for size in sizes)
