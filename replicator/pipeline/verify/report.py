"""Report of verify, as values, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table
from rich.text import Text

from replicator.pipeline.json_types import FaultFound, VerifyAnswer
from replicator.running.screen import in_one_line
from snapshots.position import Position

EXAMPLES_MAX: Final = 10
"""Limit of kept examples of each fault of each topic."""
FINDING_LINES_MAX: Final = 20
"""Limit of lines of findings on the screen, so that the whole table fits one."""
REMARKS_SHOWN_MAX: Final = 5
"""Limit of remarks on the screen, and of steps of a repair."""

FAULTS: Final = {
    "missing": "in one cluster of a link and not in the other, nor on its way there",
    "duplicated": "more than once in one cluster",
    "reordered": "after something of its origin that was published later",
    "corrupted": "the same message with other content, or a damaged block",
    "mismapped": "snapshot mapping that promises what is not there, or exact mapping that names another place",
    "hidden": "hidden as a duplicate of another message, though its content differs",
    "ack_mismatch": "acknowledged here, and not where the link leads",
    "gaps": "topics at which a link has stopped: replicator links list",
}
"""Every kind of fault, with its explanation, in the order of reports."""

_MARKER_NAMES: Final = {
    10: "snapshot_request",
    11: "snapshot_response",
    12: "snapshot",
    13: "subscription_update",
    101: "filler",
}


def marker_name(marker_type: int) -> str:
    """Return the name of a marker type in reports."""
    return _MARKER_NAMES.get(marker_type, f"type_{marker_type}")


@dataclass(frozen=True, slots=True)
class Finding:
    """Number of faults of one kind in one topic, and up to :data:`EXAMPLES_MAX` of them in words."""

    fault: str
    topic: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class DamagedBlock:
    """Block that ``cluster`` does not serve, by its first position there."""

    cluster: str
    topic: str
    position: Position
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """Counts of messages and markers read from one cluster. ``markers`` is by type, the cluster's own ones included."""

    messages: int
    markers: Mapping[str, int]
    duplicates: int = 0
    """Messages that are hidden because another entry has the same message; ``messages`` includes them."""


@dataclass(slots=True)
class BrokerCounts:
    """Counts of entries and messages read from the Apache Pulsar brokers of one cluster."""

    entries: int = 0
    messages: int = 0
    gone: int = 0
    """Number of messages in other places that are older than everything of their origin at these brokers."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Outcome of verify. ``messages`` counts distinct messages over all clusters; ``findings`` is empty if all is
    well."""

    missing: int
    duplicated: int
    reordered: int
    corrupted: int
    mismapped: int
    ack_mismatch: int
    gaps: int
    messages: int
    clusters: Mapping[str, ClusterCounts]
    topics: tuple[str, ...]
    findings: tuple[Finding, ...]
    mappings: int
    """Number of snapshot mappings that were checked."""
    subscriptions: int
    """Number of replicated subscriptions that were compared, counted once for each topic."""
    seconds: float
    hidden: int = 0
    behind: int = 0
    """Messages on their way to a destination, over links that work or are paused."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Clusters that were not compared, each with the reason."""
    remarks: tuple[str, ...] = ()
    """Remarks: faults that a sample can miss, paused links, parts that were not compared."""
    damaged: tuple[DamagedBlock, ...] = ()
    """Blocks that a cluster cannot read, or whose checksum is wrong. They count as ``corrupted``, too."""
    brokers: Mapping[str, BrokerCounts] = field(default_factory=dict)
    """Counts of the brokers that were read, by cluster."""
    steps: tuple[str, ...] = ()
    """Steps that ``--fix`` did, and those that it leaves to an operator."""

    @property
    def clean(self) -> bool:
        return not any(getattr(self, fault) for fault in FAULTS)

    @property
    def exit_status(self) -> int:
        """Exit status: 0 if all is well, 1 for faults, 3 if a cluster was away and the others have no faults."""
        if not self.clean:
            return 1
        return 3 if self.unreachable else 0

    def as_json(self) -> VerifyAnswer:
        """Return the report as plain values; ``topics`` has the findings of each topic, none for a clean one."""
        of_topics: dict[str, dict[str, FaultFound]] = {topic: {} for topic in self.topics}
        for each in self.findings:
            of_topics[each.topic][each.fault] = {"count": each.count, "examples": list(each.examples)}
        return {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "corrupted": self.corrupted,
            "mismapped": self.mismapped,
            "hidden": self.hidden,
            "ack_mismatch": self.ack_mismatch,
            "gaps": self.gaps,
            "messages": self.messages,
            "mappings": self.mappings,
            "subscriptions": self.subscriptions,
            "clusters": {
                name: {
                    "messages": counts.messages,
                    "markers": dict(counts.markers),
                    "duplicates": counts.duplicates,
                }
                for name, counts in self.clusters.items()
            },
            "topics": of_topics,
            "brokers": {
                name: {"entries": counts.entries, "messages": counts.messages, "gone": counts.gone}
                for name, counts in self.brokers.items()
            },
            "behind": self.behind,
            "unreachable": dict(self.unreachable),
            "remarks": list(self.remarks),
            "damaged": [
                {"cluster": each.cluster, "topic": each.topic, "position": str(each.position), "reason": each.reason}
                for each in self.damaged
            ],
            "fix": list(self.steps),
            "seconds": round(self.seconds, 3),
        }


def joined_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each kind and topic, with as many examples as are shown, in the order of reports."""
    of_each: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        of_each.setdefault((finding.fault, finding.topic), []).append(finding)
    joined = (
        Finding(
            fault,
            topic,
            sum(finding.count for finding in each),
            tuple(example for finding in each for example in finding.examples)[:EXAMPLES_MAX],
        )
        for (fault, topic), each in of_each.items()
    )
    return tuple(sorted(joined, key=lambda finding: (list(FAULTS).index(finding.fault), finding.topic)))


def format_report(report: VerifyReport, *, details: bool = False) -> Table:
    """Return a table of the counters, with topics and examples below those that are not zero.

    Without ``details`` it shows the worst topics, and as many examples as fit a screen.
    """
    shown, examples_max = (report.findings, EXAMPLES_MAX) if details else _fitting(report.findings)
    remarks_max = None if details else REMARKS_SHOWN_MAX
    read = ", ".join(f"{name} {counts.messages:,}" for name, counts in report.clusters.items())
    outcome = "FAULTS FOUND" if not report.clean else "NOT ALL COMPARED" if report.unreachable else "clean"
    table = Table(
        title=f"verify: {outcome}",
        caption=f"topics: {len(report.topics)}, messages: {read}; {report.mappings:,} mappings, "
        f"{report.subscriptions:,} replicated subscriptions; {report.seconds:.1f} s",
    )
    table.add_column("fault")
    table.add_column("count", justify="right")
    table.add_column("meaning, examples", overflow="fold")
    for fault, meaning in FAULTS.items():
        count = getattr(report, fault)
        table.add_row(fault, f"{count:,}", meaning, style="red" if count else "green")
        for finding in shown:
            if finding.fault == fault:
                lines = [finding.topic, *finding.examples[:examples_max]]
                table.add_row("", f"{finding.count:,}", Text("\n  ".join(map(in_one_line, lines))))
        left_out = sum(each.fault == fault for each in report.findings) - sum(each.fault == fault for each in shown)
        if left_out:
            table.add_row("", "", f"… and {left_out:,} more topics: --details")
    for name, read_there in report.clusters.items():
        if read_there.duplicates:
            text = f"{name}: {read_there.duplicates:,} messages came by two ways and are delivered once: no fault"
            table.add_row("duplicates", "", Text(text))
    for block in report.damaged[:EXAMPLES_MAX]:
        text = f"{block.cluster}: {block.topic} at {block.position}: {block.reason}"
        table.add_row("damaged block", "", Text(text), style="red")
    if (more := len(report.damaged) - EXAMPLES_MAX) > 0:
        table.add_row("damaged block", f"{more:,}", "more: --output json names them all", style="red")
    for name, counts in report.brokers.items():
        text = f"of {name}: {counts.entries:,} entries with {counts.messages:,} messages were read"
        if counts.gone:
            text += f"; {counts.gone:,} messages are older than all of their origin there: retention, or never there"
        table.add_row("brokers", "", Text(text))
    if report.behind:
        table.add_row("behind", f"{report.behind:,}", "on their way: no fault")
    for cluster, reason in report.unreachable.items():
        table.add_row("not compared", "", Text(f"{cluster}: {reason}"), style="red")
    for heading, texts in (("", report.remarks), ("fix", report.steps)):
        for text in texts[:remarks_max]:
            table.add_row(heading, "", Text(text))
        if remarks_max is not None and (more := len(texts) - remarks_max) > 0:
            table.add_row(heading, "", f"… and {more:,} more: --details")
    return table


def _fitting(findings: Sequence[Finding]) -> tuple[Sequence[Finding], int]:
    """Return the findings for one screen, the worst of each fault first, and how many examples each may show."""
    of_fault: dict[str, list[Finding]] = {}
    for each in sorted(findings, key=lambda each: (-each.count, each.topic)):
        of_fault.setdefault(each.fault, []).append(each)
    faults = len(of_fault)
    shown = [each for group in of_fault.values() for each in group[: FINDING_LINES_MAX // max(faults, 1)]]
    for examples_max in range(EXAMPLES_MAX, 0, -1):
        if sum(1 + min(len(each.examples), examples_max) for each in shown) <= FINDING_LINES_MAX:
            return shown, examples_max
    return shown, 0
