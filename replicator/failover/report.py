"""Reports of failovers: the values and JSON of one switch and of the current state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from replicator.failover.json_types import FailoverStatus, SwitchAnswer

WHAT_IS_LEFT: Final = "what is left: "
"""Beginning of evidence that has digests and positions. It shows that two states agree."""


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """One replicated subscription at the source and at the target.

    ``equal`` is None where the states were not compared. ``may_be_repeated`` are messages acknowledged at the source
    that the target does not know to be: 0 where the states are equal, else an upper bound; None where that is unknown.
    ``held_entries`` were delivered at the source
    and not acknowledged: they are delivered again, as after any disconnect.
    """

    name: str
    equal: bool | None
    evidence: str
    may_be_repeated: int | None
    held_entries: int = 0

    @property
    def difference(self) -> str:
        """Return in words how the states differ. The text is empty if the target only lacks messages: the evidence then
        has digests and positions of the rest, which is the same.
        """
        return "" if self.evidence.startswith(WHAT_IS_LEFT) else self.evidence


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic. ``missing_messages`` are the source's that the target does not have; None where that is unknown, since
    the source does not answer. ``target_has`` is the position of the source up to which the target has all."""

    topic: str
    carried: bool
    source_last: str | None
    target_has: str | None
    missing_messages: int | None
    exact: bool = True
    subscriptions: tuple[SubscriptionReport, ...] = ()


@dataclass(slots=True)
class SwitchReport:
    """Result of a switch, or of a dry run. ``outcome`` is ``done``, ``dry run`` or ``refused``."""

    kind: str
    source: str
    target: str
    homes: tuple[str, ...]
    epoch_before: int
    epoch: int | None = None
    outcome: str = "refused"
    reason: str = ""
    source_answers: bool = True
    unknown_since_ms: int | None = None
    """Without the source: the wall clock when the target heard of it last; None if it never did since it started."""
    source_unknown: str = ""
    """Why the source's worker does not know everything about its own cluster; empty if it does."""
    topics: list[TopicReport] = field(default_factory=list)
    announced: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, float]] = field(default_factory=list)
    """Each step that was begun, and its seconds."""
    notes: list[str] = field(default_factory=list)
    differences: list[str] | None = None
    """Differences between the clusters that clients of the source would notice at the target; None if they were not
    compared.
    """

    @property
    def not_received(self) -> int | None:
        """Return how many messages of the source the target lacks (RPO); None if the source does not answer, or does
        not know all that its clients published.
        """
        carried = [topic.missing_messages for topic in self.topics if topic.carried]
        if not self.source_answers or self.source_unknown or any(missing is None for missing in carried):
            return None
        return sum(missing for missing in carried if missing is not None)

    @property
    def may_be_repeated(self) -> int | None:
        """Return how many messages may be repeated; see :class:`SubscriptionReport`."""
        found = [each.may_be_repeated for topic in self.topics for each in topic.subscriptions]
        if not self.source_answers or any(each is None for each in found):
            return None
        return sum(each for each in found if each is not None)

    def as_json(self) -> SwitchAnswer:
        topics: Any = [asdict(topic) for topic in self.topics]
        return {
            "kind": self.kind,
            "from": self.source,
            "to": self.target,
            "homes": list(self.homes),
            "outcome": self.outcome,
            "reason": self.reason,
            "epoch_before": self.epoch_before,
            "epoch": self.epoch,
            "source_answers": self.source_answers,
            "unknown_since_ms": self.unknown_since_ms,
            "not_received": self.not_received,
            "may_be_repeated": self.may_be_repeated,
            "told": self.announced,
            "steps": [{"step": step, "seconds": round(seconds, 3)} for step, seconds in self.steps],
            "notes": self.notes,
            "differences": self.differences,
            "topics": topics,
        }


@dataclass(frozen=True, slots=True)
class Stranded:
    """Messages that the source of a switch took and its target had not received then."""

    topic: str
    messages: int
    exact: bool
    flowed: bool
    """Whether the target has them by now."""


@dataclass(slots=True)
class StatusReport:
    """State of a deployment: each worker's own answer, and the outcome of the newest switch."""

    epoch: int
    writer: str
    states: dict[str, Any]
    """By cluster, its worker's state, or ``{"error": text}``."""
    switch: Any = None
    """The newest record, if there was a switch."""
    stranded: Sequence[Stranded] | None = None
    """Messages that the target lacked; None if unknown: there was no switch, or one of the two clusters does not
    answer.
    """
    unknown: str = ""
    """Why it is not known, or not all of it."""

    @property
    def agreed(self) -> bool:
        """Return whether all workers that answer know the same record."""
        return len({str(state["record"]) for state in self.states.values() if "error" not in state}) <= 1

    def as_json(self) -> FailoverStatus:
        stranded: Any = None if self.stranded is None else [asdict(each) for each in self.stranded]
        return {
            "epoch": self.epoch,
            "writer": self.writer,
            "agreed": self.agreed,
            "clusters": self.states,
            "switch": self.switch,
            "stranded": stranded,
            "stranded_unknown": self.unknown,
        }
