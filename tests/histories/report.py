"""Report of a run of histories: which steps were reached and how long they took, and programs of failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from histories.drawing import KINDS
from histories.running import History, Outcome
from histories.steps import Step, describe


@dataclass(slots=True)
class Report:
    """Counts of all histories that ended so far."""

    histories: int = 0
    failed: int = 0
    late: int = 0
    """Histories that exceeded a limit of time on a busy machine, and passed when they ran once more alone."""
    fast_seconds: list[float] = field(default_factory=list)
    slow_seconds: list[float] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, history: History, outcome: Outcome) -> str:
        """Count a history. Return a line about it."""
        self.histories += 1
        self.failed += bool(outcome.failure)
        self.late += outcome.late and not outcome.failure
        (self.slow_seconds if history.slow else self.fast_seconds).append(outcome.seconds)
        self.steps.update(step.name for step in outcome.steps)
        for name, seconds in outcome.spent.items():
            self.spent[name] = self.spent.get(name, 0.0) + seconds
        return f"seed {history.seed}: {kind_of(history)}, {len(outcome.steps)} steps, {outcome.seconds:.1f} s"

    def summary(self) -> list[str]:
        """Return lines about all histories: times, and what each kind of step took."""
        lines = [
            f"{len(found)} {kind}: {sum(found) / len(found):.1f} s on average, {max(found):.1f} s at most"
            for kind, found in (("without kills", self.fast_seconds), ("with kills", self.slow_seconds))
            if found
        ]
        for name, seconds in sorted(self.spent.items(), key=lambda row: -row[1]):
            times = self.steps.get(name, self.histories)
            lines.append(f"  {name}: {times} times, {1000 * seconds / times:.0f} ms each, {seconds:.0f} s")
        if self.late:
            lines.append(f"{self.late} were late, and passed when they ran once more alone")
        if unreached := sorted(set(KINDS) - set(self.steps)):
            lines.append(f"never reached: {', '.join(unreached)}")
        return lines


def kind_of(history: History) -> str:
    """Return the parameters of a history in words."""
    return " ".join([
        history.shape.name,
        *(["deduplication"] if history.deduplication else []),
        *(["kills"] if history.slow else []),
        *(["deletions"] if history.deletes else []),
        *(["official client"] if history.official else []),
        *(["a cluster joins"] if history.joins else []),
    ])  # fmt: skip


def program_of(history: History, steps: list[Step]) -> str:
    """Return steps of a history as a program that a person can read and run."""
    return describe(history.shape, steps, deduplication=history.deduplication, official=history.official)
