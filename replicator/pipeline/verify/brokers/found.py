"""Findings at brokers, and their addition to the report on the logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from replicator.pipeline.verify.brokers.differences import Difference
from replicator.pipeline.verify.report import BrokerCounts, Finding, VerifyReport, joined_findings


def brokers_of(cluster: str) -> str:
    """Return the name for the brokers of a cluster."""
    return f"the brokers of {cluster}"


def spool_of(cluster: str) -> str:
    """Return the name for the log of the worker beside a cluster's brokers."""
    return f"the spool of {cluster}"


@dataclass(slots=True)
class BrokersFound:
    """All findings at brokers. :func:`brokers_of` and :func:`spool_of` name the places; embedded clusters have their
    own names."""

    differences: dict[str, list[Difference]] = field(default_factory=dict)
    """Differences by topic."""
    brokers: dict[str, BrokerCounts] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    subscriptions: int = 0
    behind: int = 0

    def add(self, topic: str, differences: Iterable[Difference]) -> None:
        self.differences.setdefault(topic, []).extend(differences)

    def joined(self, report: VerifyReport, *, fix: bool) -> VerifyReport:
        """Return ``report`` with the findings at brokers. With ``fix`` it has a line for each that nothing was done."""
        found = [
            Finding(each.kind, topic, each.messages, each.examples)
            for topic, differences in self.differences.items()
            for each in differences
        ]
        counts = {
            kind: getattr(report, kind) + sum(each.count for each in found if each.fault == kind)
            for kind in {each.fault for each in found}
        }
        return replace(
            report,
            **counts,
            findings=joined_findings([*report.findings, *found]),
            topics=tuple(sorted({*report.topics, *self.differences})),
            brokers=dict(self.brokers),
            unreachable={**report.unreachable, **self.unreachable},
            remarks=(*report.remarks, *self.remarks),
            behind=report.behind + self.behind,
            subscriptions=report.subscriptions + self.subscriptions,
            steps=(*report.steps, *(left_at_brokers(topic) for topic in sorted({each.topic for each in found}) if fix)),
        )


def left_at_brokers(topic: str) -> str:
    """Return the line of ``--fix`` for a topic with findings at brokers."""
    return (
        f"left: {topic} at brokers: nothing there is changed by verify; docs/apache-pulsar.md says what can be done, "
        "and which differences heal by themselves"
    )


def not_read(clusters: Iterable[str]) -> str:
    """Return the remark that brokers were left out."""
    return f"what lies at the brokers of {', '.join(clusters)} was not compared: --brokers reads it"
