"""A planned switch, step by step. Sans-IO: the shell carries out its actions and reports their results.

Invariants (DESIGN §3, §4.5): nothing is switched before the target has every message of the source and equals it in
every replicated subscription (1, 5: lost 0, repeated 0); and until the epoch is written everything can be taken back.

Steps, each begun only when the one before it is done:
0. CHECK: topics that stopped links hold up on their way to the target are looked at, and nothing is fenced yet. If the
   target lacks something of such a topic, the switch is refused. A halt may end by itself, so it gets some time.
1. FENCE: the source takes no producers, finishes what is in flight, lets consumers acknowledge what they hold and then
   go. It reports, for every topic that links carry to the target, its last position: the *goal*. Under the fence no
   message comes after it.
2. DRAIN: the target is asked until it has, of the source, everything up to each goal.
3. FLUSH: both are asked until every replicated subscription has the same state in both.
4. WRITE: the source confirms that it was held all the while (else clients were there again); then the target writes.
5. TELL: the source and the others are told; what does not answer learns by link, poll or at its start.

If a link stops in DRAIN or FLUSH, and the target lacks something of a topic that the link holds up, the switch ends.

A step that fails before the target was asked to write, or the deadline in DRAIN and FLUSH, leads to RELEASE: the source
takes clients again. Once the target was asked, only its own refusal does. Whatever else ends the switch then leaves it
in doubt, and nobody is released, since the target may have taken over; the source asks it when its lease runs out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from replicator.failover.obstacles import Obstacle
from snapshots.position import Position

NAMED_MAX = 3
"""Topics named in a refusal; the report has them all."""
HALTED_MS_MAX = 6_000
"""Longest wait for a halt to end by itself. A link asks its destination within 5 s whether the cause is gone."""


class Step(Enum):
    """Step of a planned switch."""

    CHECK = "check"
    FENCE = "fence"
    DRAIN = "drain"
    FLUSH = "flush"
    WRITE = "write"
    ANNOUNCE = "tell"
    DONE = "done"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"


@dataclass(frozen=True, slots=True)
class RequiredEntries:
    """Entries of one topic that the target must have: those of the source up to ``last``, of that incarnation."""

    incarnation: int
    last: Position
    earlier: tuple[Position, ...] = ()
    """Newest message of each earlier life of the topic that the source has, as after a reclaim."""


@dataclass(frozen=True, slots=True)
class CheckLinks:
    """Find the topics that stopped links hold up, and report them with :meth:`PlannedSwitch.on_checked`."""


@dataclass(frozen=True, slots=True)
class FenceSource:
    """Fence the source, and report with :meth:`PlannedSwitch.on_fenced`."""


@dataclass(frozen=True, slots=True)
class AskTarget:
    """Ask the target what it has of these topics, and report with :meth:`PlannedSwitch.on_copies`."""

    topics: tuple[str, ...]
    earlier: Mapping[str, tuple[Position, ...]] = field(default_factory=dict)
    """For each topic, the newest messages of earlier lives that the target must have, too."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the subscriptions of these topics in both clusters; :meth:`PlannedSwitch.on_compared`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteEpoch:
    """Have the source confirm its hold, then have the target write the epoch; :meth:`PlannedSwitch.on_written`."""


@dataclass(frozen=True, slots=True)
class AnnounceEpoch:
    """Tell every other cluster; then :meth:`PlannedSwitch.on_announced`."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let the source take clients again, because ``reason`` ended the switch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Report that ``reason`` ended the switch before anything was fenced."""

    reason: str


Action = CheckLinks | FenceSource | AskTarget | Compare | WriteEpoch | AnnounceEpoch | Release | Refuse


class PlannedSwitch:
    """One planned switch. ``deadline_ms`` is on the shell's clock, for DRAIN and FLUSH together.

    With ``flush`` False (consumers stay at the source, and go on acknowledging there) FLUSH is left out.
    """

    def __init__(self, source: str, target: str, *, deadline_ms: int, flush: bool = True) -> None:
        self.source = source
        self.target = target
        self.step = Step.CHECK
        self.reason = ""
        self._deadline_ms = deadline_ms
        self._flush = flush
        self._asked_to_write = False
        self._goals: dict[str, RequiredEntries] = {}
        self._missing: dict[str, str] = {}
        """Topics that keep the step from being done, each with why."""
        self._all: tuple[str, ...] = ()
        self._halted_since_ms: dict[str, int] = {}
        """For each topic of ``missing`` that is held up, since when."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Topics that the present step waits for, each with why."""
        return self._missing

    def start(self) -> list[Action]:
        return [CheckLinks()]

    def on_checked(self, held_up: Mapping[str, RequiredEntries]) -> list[Action]:
        """Continue after the check of the links. ``held_up`` has the entries to check, by topic that links hold up."""
        assert self.step is Step.CHECK, self.step
        self._goals = dict(held_up)
        self._missing = dict.fromkeys(held_up, "not compared yet")
        return self._ask() if self._missing else self._checked()

    def on_fenced(self, goals: Mapping[str, RequiredEntries], subscribed: Sequence[str]) -> list[Action]:
        """Begin to drain the fenced source.

        ``subscribed`` are the topics with replicated subscriptions; links carry all of them.
        """
        assert self.step is Step.FENCE, self.step
        self.step = Step.DRAIN
        self._goals = dict(goals)
        self._all = tuple(subscribed)
        self._missing = dict.fromkeys(goals, "not compared yet")
        return self._ask() if self._missing else self._drained()

    def on_copies(
        self,
        copies: Mapping[str, RequiredEntries],
        now_ms: int,
        lacks: Mapping[str, Sequence[Position]] | None = None,
        obstacles: Mapping[str, Obstacle] | None = None,
    ) -> list[Action]:
        """Process the target's answer about the topics that it was asked for.

        ``copies`` has no entry for a topic that the target does not have. ``lacks`` has, by topic, the messages of
        earlier lives that the target lacks. ``obstacles`` has the topics that stopped links hold up.
        """
        assert self.step in (Step.CHECK, Step.DRAIN), self.step
        lacking = missing_of({topic: self._goals[topic] for topic in self._missing}, copies, lacks or {})
        if self.step is Step.CHECK:  # the others come, and the drain waits for them
            lacking = {topic: reason for topic, reason in lacking.items() if topic in (obstacles or {})}
        self._missing = lacking
        if not self._missing:
            return self._checked() if self.step is Step.CHECK else self._drained()
        if stopped := self._stopped(obstacles or {}, now_ms):
            return self.on_failed(stopped)
        if now_ms >= self._deadline_ms:
            return self._give_up("does not have every message")
        return self._ask()

    def on_compared(
        self, different: Mapping[str, str], now_ms: int, obstacles: Mapping[str, Obstacle] | None = None
    ) -> list[Action]:
        """Continue after a comparison. ``different`` has the compared topics whose subscriptions differ, each with
        the reason. ``obstacles`` has the topics that stopped links hold up.
        """
        assert self.step is Step.FLUSH, self.step
        self._missing = dict(different)
        if not different:
            return self._flushed()
        if stopped := self._stopped(obstacles or {}, now_ms):
            return self.on_failed(stopped)
        if now_ms >= self._deadline_ms:
            return self._give_up("does not have every acknowledgement")
        return [Compare(tuple(different))]

    def on_writing(self) -> None:
        """Note that the target is asked to write now: it may have taken over from here on."""
        assert self.step is Step.WRITE, self.step
        self._asked_to_write = True

    def on_written(self) -> list[Action]:
        assert self.step is Step.WRITE, self.step
        self.step = Step.ANNOUNCE
        return [AnnounceEpoch()]

    def on_announced(self) -> list[Action]:
        assert self.step is Step.ANNOUNCE, self.step
        self.step = Step.DONE
        return []

    def on_failed(self, reason: str, *, refused: bool = False) -> list[Action]:
        """End the switch, as a step failed or the operator gave up. ``refused`` says that the asked cluster answered,
        and did nothing.
        """
        if self.step in (Step.ANNOUNCE, Step.DONE, Step.REFUSED, Step.IN_DOUBT):
            return []
        self.reason = reason
        if self.step is Step.CHECK:
            self.step = Step.REFUSED
            return [Refuse(reason)]
        if self._asked_to_write and not refused:
            self.step = Step.IN_DOUBT
            return []
        self.step = Step.REFUSED
        return [Release(reason)]

    def _ask(self) -> list[Action]:
        topics = tuple(self._missing)
        return [AskTarget(topics, {each: earlier for each in topics if (earlier := self._goals[each].earlier)})]

    def _checked(self) -> list[Action]:
        self.step = Step.FENCE
        return [FenceSource()]

    def _stopped(self, obstacles: Mapping[str, Obstacle], now_ms: int) -> str | None:
        """Return why the target never gets what it lacks, or None if it may still get it."""
        since_ms = self._halted_since_ms
        self._halted_since_ms = {topic: since_ms.get(topic, now_ms) for topic in self._missing if topic in obstacles}
        final = {
            topic: obstacles[topic]
            for topic, began_ms in self._halted_since_ms.items()
            if obstacles[topic].lasting or now_ms - began_ms >= HALTED_MS_MAX
        }
        return why_stopped(self.source, self.target, self._missing, final) if final else None

    def _drained(self) -> list[Action]:
        if not self._flush or not self._all:
            return self._flushed()
        self.step = Step.FLUSH
        self._missing = dict.fromkeys(self._all, "not compared yet")
        return [Compare(self._all)]

    def _flushed(self) -> list[Action]:
        self.step = Step.WRITE
        self._missing = {}
        return [WriteEpoch()]

    def _give_up(self, what: str) -> list[Action]:
        listed = _listed([f"{topic} ({reason})" for topic, reason in self._missing.items()], ", ")
        return self.on_failed(f"{self.target} {what} of {self.source} within the time: {listed}")


def missing_of(
    goals: Mapping[str, RequiredEntries],
    copies: Mapping[str, RequiredEntries],
    lacks: Mapping[str, Sequence[Position]],
) -> dict[str, str]:
    """Return the topics of ``goals`` whose copies are incomplete, each with the reason.

    ``lacks`` has, by topic, the messages of earlier lives that the target lacks.
    """
    found = {topic: _lacks(goal, copies.get(topic), lacks.get(topic, ())) for topic, goal in goals.items()}
    return {topic: reason for topic, reason in found.items() if reason is not None}


def why_stopped(source: str, target: str, missing: Mapping[str, str], obstacles: Mapping[str, Obstacle]) -> str:
    """Return why a planned switch cannot end: ``obstacles`` hold up incomplete topics, those of ``missing``."""
    said: dict[str, str] = {}  # partitions of one topic may have the same obstacle
    for topic, each in obstacles.items():
        said.setdefault(each.text, f"{topic} ({missing[topic]}): {each.text}")
    listed = _listed(list(said.values()), "; ")
    return f"{target} cannot get everything of {source} until this is ended: {listed}"


def _listed(topics: Sequence[str], between: str) -> str:
    more = len(topics) - NAMED_MAX
    return between.join(topics[:NAMED_MAX]) + (f" and {more:,} more topic{'s' * (more > 1)}" if more > 0 else "")


def _lacks(goal: RequiredEntries, copy: RequiredEntries | None, earlier: Sequence[Position]) -> str | None:
    """Return the reason why the target's copy is incomplete, or None if it is complete.

    ``earlier`` are the messages of earlier lives that the target lacks.
    """
    if copy is None:
        return "it has nothing of it"
    if copy.incarnation != goal.incarnation:
        return "it has another life of it"
    if copy.last < goal.last:
        return "its newest messages are missing"
    if earlier:
        return "it lacks messages that belong to an earlier life, or that a reclaim put back"
    return None
