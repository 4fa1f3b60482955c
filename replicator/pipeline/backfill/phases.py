"""Phases of a backfill. Sans-IO: the shell carries out the actions, and reports the results as events.

Invariants (DESIGN §3): a backfill is done only if the destination has everything that the source had when it began, and
every replicated subscription's state (2, 5). It ends in bounded time if nothing moves any more (11). Blocks are
appended by the rule of links, so a kill at any time loses or repeats nothing.

1. CARRY: the link is taken over. A plan of it is made and carried as one Spark job. This repeats until a plan leaves so
   little that the live link has it in a moment; one such plan is carried too, as Spark runs already. After a job that
   fails comes another plan, which starts at the destination's high-water marks. It ends too when the destination has
   all goals: topics in use may always have more.
2. HAND_OVER: the link is released.
3. CATCH_UP: the destination is asked until it has each topic up to its goal. Topics that the link cannot continue are
   not waited for.
4. TELL: the source announces the whole state of every replicated subscription. These states are then compared.
5. COMPARE: the destination is asked until it has each of these states. They are announced again now and then: a
   worker that is killed forgets pending announcements.

In every phase there is a limit on how long nothing may move: then the backfill gives up, and releases the link if it
holds it. It can be begun again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

SMALL_BYTES: Final = 4 * 1024 * 1024
"""Amount below which the live link takes over. A live link has more in flight."""
STALL_SECONDS_MAX: Final = 60.0
"""Longest time without progress. A worker that is killed needs less to start again, its database included."""
CARRIER_SECONDS_MAX: Final = 180.0
"""Longest time that a live link may wait for its carrier before that counts as no progress.

A busy machine needs a minute and more to start the driver of a link that Spark carries."""
WAITING: Final = "waiting"
"""First word of the state of a link that waits for a carrier."""
EMPTY_SECONDS_MAX: Final = 5.0
"""Longest time that a link may plan nothing while much is left: it asks the destination where topics continue."""
GOALS_SECONDS_MIN: Final = 10.0
"""Shortest time between two questions, while history is carried, whether the destination has all goals."""
TELL_AGAIN_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 2.0
NAMED_MAX: Final = 3
"""Limit of topics that a reason names; the report names all of them."""


class Phase(Enum):
    """Phase of a backfill."""

    CARRY = "carrying history"
    HAND_OVER = "handing over to the live link"
    CATCH_UP = "waiting for the live link"
    TELL = "telling subscription states"
    COMPARE = "comparing subscription states"
    DONE = "done"
    GAVE_UP = "given up"


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Make the source plan; answered by :meth:`Backfill.on_plan` or :meth:`Backfill.on_unreachable`."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """Carry the plan that was made last; answered by :meth:`Backfill.on_job`."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the link back to its live copy; answered by :meth:`Backfill.on_released`."""


@dataclass(frozen=True, slots=True)
class AskCopies:
    """Ask what the destination lacks of these topics; answered by :meth:`Backfill.on_copies`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnnounceStates:
    """Make the source announce the states of these topics' subscriptions, and note them; answered by
    :meth:`Backfill.on_states_announced`.

    With ``again``, the states noted first stay."""

    topics: tuple[str, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class AskStates:
    """Compare the subscriptions of these topics with the noted states; answered by :meth:`Backfill.on_states`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for ``seconds``, then do ``then``."""

    seconds: float
    then: Action


@dataclass(frozen=True, slots=True)
class Finish:
    """End the backfill. :attr:`Backfill.phase` says how it ended."""


Action = MakePlan | RunJob | Release | AskCopies | AnnounceStates | AskStates | Pause | Finish


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Values of a plan that decide the next step."""

    state: str
    detail: str
    lane_bytes: tuple[int, ...] = ()
    """Sizes of the segments in the plan."""
    full: bool = False
    """Whether a segment has the largest allowed size, so that its lane has more to carry."""
    opened: bool = True
    """Whether there is a plan at all. A link that is still connecting has none."""
    bytes_left: int = 0
    """Bytes left of all topics that the link can continue."""


@dataclass(slots=True)
class _Clock:
    """Time since the last progress, and the next pause."""

    since: float
    pause_seconds: float = PAUSE_SECONDS

    def moved(self, now: float) -> None:
        self.since, self.pause_seconds = now, PAUSE_SECONDS

    def next_pause(self) -> float:
        pause, self.pause_seconds = self.pause_seconds, min(PAUSE_SECONDS_MAX, 2 * self.pause_seconds)
        return pause


@dataclass(slots=True)
class Backfill:
    """Core of one backfill. Every event returns the next action.

    ``topics`` are those with a goal, ``subscribed`` those of them with replicated subscriptions. Times are seconds on
    the shell's clock."""

    topics: tuple[str, ...]
    subscribed: tuple[str, ...]
    now: float
    stall_seconds_max: float = STALL_SECONDS_MAX
    phase: Phase = Phase.CARRY
    reason: str = ""
    """Reason for giving up."""
    unavailable: bool = False
    """Whether it gave up because a worker did not answer or could not continue."""
    missing: dict[str, str] = field(default_factory=dict)
    """Topics that the destination does not have in full, each with the reason."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Topics among :attr:`missing` that the link cannot continue, each with the reason."""
    lacking: dict[str, dict[str, str]] = field(default_factory=dict)
    """Subscriptions, by topic, whose state is not at the destination, each with the reason."""
    _clock: _Clock = field(init=False)
    _released_at: float = 0.0
    _told_at: float | None = None
    _carried: bool = False
    """Whether a job has carried something, so Spark runs."""
    _goals_asked_at: float = field(init=False)
    _swept: bool = False
    """Whether a last, small plan was carried too."""

    def __post_init__(self) -> None:
        self._clock = _Clock(self.now)
        self._goals_asked_at = self.now

    def start(self) -> Action:
        return MakePlan()

    # CARRY

    def on_plan(self, plan: PlanResult, now: float) -> Action:
        """Handle a plan of the source. A paused link ends the backfill, because an operator paused it."""
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
        """Handle the end of a job. ``moved`` says that topics made progress; ``error`` that parts of it failed."""
        assert self.phase is Phase.CARRY, self.phase
        if moved:
            self._carried = True
            self._clock.moved(now)
        elif error is None:
            error = "the destination took nothing of what was planned"
        if error is None and self.topics and now - self._goals_asked_at >= GOALS_SECONDS_MIN:
            self._goals_asked_at = now
            return AskCopies(self.topics)
        return MakePlan() if error is None else self._again(error, now)

    def on_unreachable(self, reason: str, now: float) -> Action:
        """Handle a worker that does not answer. It is asked again for a while, because it may be restarting."""
        match self.phase:
            case Phase.CARRY:
                return self._again(reason, now)
            case Phase.HAND_OVER:
                return self._again(reason, now, Release())
            case Phase.CATCH_UP:
                return self._again(reason, now, AskCopies(self.topics))
            case Phase.TELL:
                return self._again(reason, now, AnnounceStates(self._to_tell(), again=self._told_at is not None))
            case Phase.COMPARE:
                return self._again(reason, now, AskStates(self._to_tell()))
        raise AssertionError(self.phase)

    def on_refused(self, reason: str) -> Action:
        """Give up, because a worker refused a request and asking again would not help."""
        return self._give_up(reason)

    # HAND_OVER, CATCH_UP

    def on_released(self, now: float) -> Action:
        assert self.phase is Phase.HAND_OVER, self.phase
        self.phase = Phase.CATCH_UP
        self._released_at = now
        self._clock.moved(now)
        return AskCopies(self.topics) if self.topics else self._caught_up(now)

    def on_copies(self, missing: Mapping[str, str], stopped: Mapping[str, str], now: float, link: str = "") -> Action:
        """Handle the answer of the destination: ``missing`` has topics short of their goal, with reasons.

        ``stopped`` has the topics that the link cannot continue, with reasons; ``link`` is the link's own state."""
        assert self.phase in (Phase.CARRY, Phase.CATCH_UP), self.phase
        if self.phase is Phase.CARRY:
            return MakePlan() if missing.keys() - stopped.keys() else self._hand_over(now)
        starting = link.startswith(WAITING) and now - self._released_at < CARRIER_SECONDS_MAX
        if starting or dict(missing) != self.missing:
            self._clock.moved(now)
        self.missing = dict(missing)
        self.stopped = {topic: reason for topic, reason in stopped.items() if topic in missing}
        waiting = tuple(topic for topic in missing if topic not in self.stopped)
        if not waiting:
            return self._caught_up(now)
        if self._is_stalled(now):
            said = f"nothing has come for a while, the link is {link or 'live'}, of"
            return self._give_up(_named(said, {topic: missing[topic] for topic in waiting}))
        return Pause(self._clock.next_pause(), AskCopies(tuple(missing)))

    # TELL, COMPARE

    def on_states_announced(self, now: float) -> Action:
        assert self.phase is Phase.TELL, self.phase
        self.phase = Phase.COMPARE
        if self._told_at is None:
            self._clock.moved(now)
        self._told_at = now
        return AskStates(self._to_tell())

    def on_states(self, lacking: Mapping[str, Mapping[str, str]], now: float) -> Action:
        """Handle the comparison. ``lacking`` has, by topic, subscriptions whose state is not at the destination, with
        reasons."""
        assert self.phase is Phase.COMPARE, self.phase
        states = {topic: dict(reasons) for topic, reasons in lacking.items() if reasons}
        if states != self.lacking:
            self._clock.moved(now)
        self.lacking = states
        if not states:
            return self._end()
        if self._is_stalled(now):
            shown = {topic: "; ".join(f"{name}: {why}" for name, why in each.items()) for topic, each in states.items()}
            return self._give_up(_named("subscription states did not come:", shown))
        if self._told_at is None or now - self._told_at >= TELL_AGAIN_SECONDS:
            self.phase = Phase.TELL
            return AnnounceStates(tuple(states), again=True)
        return Pause(self._clock.next_pause(), AskStates(tuple(states)))

    # Transitions.

    def _hand_over(self, now: float) -> Action:
        self.phase = Phase.HAND_OVER
        self._clock.moved(now)
        return Release()

    def _caught_up(self, now: float) -> Action:
        if not self._to_tell():
            return self._end()
        self.phase = Phase.TELL
        self._clock.moved(now)
        return AnnounceStates(self._to_tell())

    def _to_tell(self) -> tuple[str, ...]:
        return tuple(topic for topic in self.subscribed if topic not in self.missing)

    def _end(self) -> Action:
        if self.missing:
            return self._give_up(_named("the link cannot go on with", self.missing))
        self.phase = Phase.DONE
        return Finish()

    def _again(self, reason: str, now: float, then: Action | None = None) -> Action:
        if self._is_stalled(now):
            self.unavailable = True
            return self._give_up(reason)
        return Pause(self._clock.next_pause(), then or MakePlan())

    def _is_stalled(self, now: float) -> bool:
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
    """Return the sizes of a plan's segments, and whether one is about as large as ``bytes_max`` allows."""
    sizes = tuple(int(lane["bytes"]) for lane in lanes if lane is not None)
    return sizes, any(size >= bytes_max // 2 for size in sizes)
