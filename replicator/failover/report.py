"""The report of a switch, and of how things stand: values, their JSON, and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from replicator.engine.topic_name import SCHEME
from replicator.failover.json_types import FailoverStatus, SwitchAnswer

ROWS_SHOWN_MAX: Final = 100
"""Topics in a table; the JSON has them all."""


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """One replicated subscription at the source and at the target.

    ``may_be_repeated`` are messages acknowledged at the source that the target does not know to be: 0 where the states
    are equal, else an upper bound; None where the source does not answer. ``held_entries`` were delivered at the source
    and not acknowledged: they are delivered again, as after any disconnect.
    """

    name: str
    equal: bool | None
    evidence: str
    may_be_repeated: int | None
    held_entries: int = 0


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
    """What a switch did, or would do. ``outcome`` is ``done``, ``dry run`` or ``refused``."""

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
    topics: list[TopicReport] = field(default_factory=list)
    announced: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, float]] = field(default_factory=list)
    """Each step that was begun, and its seconds."""
    notes: list[str] = field(default_factory=list)
    differences: list[str] | None = None
    """Where the target treats clients of the source otherwise; None where they were not compared."""

    @property
    def not_received(self) -> int | None:
        """Messages of the source that the target does not have (RPO); None where the source does not answer."""
        carried = [topic.missing_messages for topic in self.topics if topic.carried]
        if not self.source_answers or any(missing is None for missing in carried):
            return None
        return sum(missing for missing in carried if missing is not None)

    @property
    def may_be_repeated(self) -> int | None:
        """See :class:`SubscriptionReport`."""
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

    def render(self) -> Group:
        """For people: one line of what happened, the figures, and the topics that are not at 0 first."""
        return Group(*self._lines(), *([self._table()] if self.topics else []))

    def _lines(self) -> list[Text | str]:
        done = {
            "done": Text(f"{self.target} serves {', '.join(self.homes)} since epoch {self.epoch}.", style="green"),
            "dry run": Text(f"Dry run: {self.target} would serve {', '.join(self.homes)}. Nothing was changed."),
        }.get(self.outcome, Text(f"Refused: {self.reason}. Nothing was switched.", style="red"))
        lines: list[Text | str] = [done]
        since = "" if self.unknown_since_ms is None else f" since {_moment(self.unknown_since_ms)}"
        unknown = f"unknown{since}: {self.source} does not answer"
        received = self.not_received
        lines.append(f"not received by {self.target}: {unknown if received is None else f'{received} messages'}")
        repeated = self.may_be_repeated
        lines.append(f"acknowledged and may be repeated: {unknown if repeated is None else f'{repeated} messages'}")
        for cluster, result in self.announced.items():
            lines.append(f"{cluster}: {result}")
        lines += self.notes
        if self.differences:
            lines.append(Text(f"differences that clients would find at {self.target}:", style="yellow"))
            lines += [Text(f"  {difference}") for difference in self.differences]
        elif self.differences is not None:
            lines.append(
                "tenants, namespaces, permissions, policies, schemas, partitions: the same "
                f"at {self.target} as at {self.source}"
            )
        return lines

    def _table(self) -> Table:
        """Return a table of the source's topics; topics that lack something come first. Positions are only in the JSON.

        Usual names must fit a terminal of 100 columns.
        """
        table = Table(title=f"Topics of {self.source}", title_justify="left")
        for heading in ("topic", "missing", "subscription", "state", "repeated", "held"):
            table.add_column(heading, overflow="fold")
        ordered = sorted(self.topics, key=lambda topic: (topic.missing_messages == 0, topic.topic))
        for topic in ordered[:ROWS_SHOWN_MAX]:
            missing = "not carried" if not topic.carried else _count(topic.missing_messages, exact=topic.exact)
            head = [topic.topic.removeprefix(SCHEME), missing]
            for each in topic.subscriptions or (None,):
                row = ["", "", "", ""]
                if each is not None:
                    state = {True: "equal", False: "differs", None: "unknown"}[each.equal]
                    state = f"{state} ({each.evidence})" if each.evidence else state
                    row = [each.name, state, _count(each.may_be_repeated), str(each.held_entries)]
                table.add_row(*head, *row)
                head = ["", ""]
        if len(ordered) > ROWS_SHOWN_MAX:
            table.add_row(f"… and {len(ordered) - ROWS_SHOWN_MAX} more", "", "", "", "", "")
        return table


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
    """How a deployment stands: each worker's own word, and what came of the newest switch."""

    epoch: int
    writer: str
    states: dict[str, Any]
    """By cluster, its worker's state, or ``{"error": text}``."""
    switch: Any = None
    """The newest record, if there was a switch."""
    stranded: Sequence[Stranded] | None = None
    """None where that is not known: there was no switch, or one of the two does not answer."""
    unknown: str = ""

    @property
    def agreed(self) -> bool:
        """Whether all that answer know the same record."""
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

    def render(self) -> Group:
        table = Table(title=f"Failover epoch {self.epoch}", title_justify="left")
        for heading in ("cluster", "epoch", "serves", "served by", "producers", "consumers"):
            table.add_column(heading, overflow="fold")
        for cluster, state in self.states.items():
            if "error" in state:
                table.add_row(cluster, Text(state["error"], style="red"), "", "", "", "")
                continue
            style = "red" if state["fenced"] else "green"
            serves = ", ".join(state["serves"]) or "nobody: fenced"
            table.add_row(
                cluster,
                str(state["epoch"]),
                Text(serves, style=style),
                state["served_by"],
                state["producers"],
                state["consumers"],
            )
        lines: list[Text | str | Table] = [table]
        if not self.agreed:
            lines.append(Text("The clusters do not agree on the epoch; the highest wins as soon as they hear of it."))
        if self.switch is not None:
            switch = self.switch
            moment = _moment(switch["at_ms"])
            lines.append(f"Newest switch: {switch['kind']}, {switch['source']} to {switch['target']}, {moment}.")
            lines.append(self._stranded_line(str(switch["source"]), str(switch["target"])))
        return Group(*lines)

    def _stranded_line(self, source: str, target: str) -> str:
        if self.stranded is None:
            return f"What {target} had not received then is unknown: {self.unknown}."
        if not self.stranded:
            return f"{target} had received every message of {source} then."
        total = sum(each.messages for each in self.stranded)
        waiting = [each.topic for each in self.stranded if not each.flowed]
        state = f"{len(waiting)} topics still wait for theirs" if waiting else "all of them have come since"
        return f"{target} had not received {total} messages of {source} in {len(self.stranded)} topics: {state}."


def _count(number: int | None, *, exact: bool = True) -> str:
    return "unknown" if number is None else f"{'' if exact else 'at most '}{number}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
