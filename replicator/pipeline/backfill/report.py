"""Report of a backfill by topic and by subscription, with everything that is missing; as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from replicator.pipeline.backfill.progress import format_bytes, format_seconds
from replicator.pipeline.json_types import BackfillAnswer
from replicator.running.screen import Screenful, Sentence

TOPICS_SHOWN_MAX: Final = 12
"""Limit of topics in the table on the screen; JSON has them all."""
REMARK_LINES_MAX: Final = 18
"""Limit of lines on the screen about topics and subscriptions that are incomplete."""


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Result for one topic. ``carried_*`` counts this run's tasks only; the live link and earlier runs brought the
    rest."""

    topic: str
    messages_source: int
    """Number of messages that the source had when the backfill began."""
    messages_there: int
    """Number of messages that the destination has. It can be higher, if the destination or the source published
    more."""
    new_messages: int
    """Number of messages that arrived during this run."""
    carried_entries: int
    carried_bytes: int
    subscriptions: int
    """Number of replicated subscriptions at the source."""
    transferred: int
    """Number of these subscriptions whose whole state is at the destination."""
    missing: str | None
    """Reason why the topic is incomplete at the destination; None if it is complete."""


@dataclass(frozen=True, slots=True)
class MissingState:
    """Replicated subscription whose state is not at the destination."""

    topic: str
    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """Result of a backfill. ``outcome`` is ``done`` only if the destination has everything of the source, and every
    state."""

    source: str
    destination: str
    link: str
    outcome: str
    """``done`` or ``incomplete``."""
    reason: str
    unavailable: bool
    """Whether it is incomplete because a worker did not answer, or a destination took nothing."""
    seconds: float
    carrying_seconds: float
    jobs: int
    carried_bytes: int
    topics: tuple[TopicResult, ...]
    lacking: tuple[MissingState, ...]
    unreplicated: tuple[MissingState, ...] = ()
    """Subscriptions that are not replicated by the users' choice: no fault."""
    beside_brokers: tuple[str, ...] = ()
    """Clusters of the two that run beside Apache Pulsar. Only their workers' contents are compared."""

    @property
    def done(self) -> bool:
        return self.outcome == "done"

    @property
    def rate_bytes(self) -> float | None:
        """Bytes per second while history was carried."""
        return self.carried_bytes / self.carrying_seconds if self.carried_bytes and self.carrying_seconds else None

    def as_json(self) -> BackfillAnswer:
        topics: Any = [asdict(topic) for topic in self.topics]
        lacking: Any = [asdict(each) for each in self.lacking]
        unreplicated: Any = [asdict(each) for each in self.unreplicated]
        return {
            "source": self.source,
            "destination": self.destination,
            "link": self.link,
            "outcome": self.outcome,
            "reason": self.reason,
            "unavailable": self.unavailable,
            "seconds": self.seconds,
            "carrying_seconds": self.carrying_seconds,
            "jobs": self.jobs,
            "carried_bytes": self.carried_bytes,
            "bytes_per_second": self.rate_bytes,
            "subscriptions": sum(topic.subscriptions for topic in self.topics),
            "subscriptions_transferred": sum(topic.transferred for topic in self.topics),
            "topics": topics,
            "not_transferred": lacking,
            "not_replicated": unreplicated,
            "beside_brokers": list(self.beside_brokers),
        }

    def render(self) -> Group:
        """Return the report for people: the topics that lack most come first, and all of it fits a screen."""
        table = Table(title=f"Backfill {self.source} → {self.destination}", title_justify="left")
        for heading in ("topic", "at the source", "there", "carried now", "subscriptions"):
            table.add_column(heading, overflow="fold", justify="left" if heading == "topic" else "right")
        ordered = sorted(self.topics, key=lambda topic: topic.missing is None)
        for topic in ordered[:TOPICS_SHOWN_MAX]:
            there = f"{topic.messages_there} messages"
            table.add_row(
                topic.topic,
                f"{topic.messages_source} messages",
                there if topic.missing is None else Text(there, style="red"),
                format_bytes(topic.carried_bytes),
                f"{topic.transferred} of {topic.subscriptions}" if topic.subscriptions else "–",
            )
        if (more := len(ordered) - TOPICS_SHOWN_MAX) > 0:
            table.add_row(f"… and {more:,} more: --output json", "", "", "", "")
        remarks = Screenful((), self._remarks(), more="--output json", lines_max=REMARK_LINES_MAX)
        return Group(table, remarks, self._summary())

    def _remarks(self) -> Sequence[Sentence]:
        remarks = [
            Sentence(f"not there in full: {topic.topic}: {topic.missing}", "red")
            for topic in self.topics
            if topic.missing is not None
        ]
        remarks += [
            Sentence(f"not transferred: {each.subscription} of {each.topic}: {each.reason}", "red")
            for each in self.lacking
        ]
        remarks += [
            Sentence(f"stays behind: {each.subscription} of {each.topic}: {each.reason}") for each in self.unreplicated
        ]
        remarks += [
            Sentence(
                f"{cluster} runs beside Apache Pulsar: what its worker has was carried and compared; it goes on "
                "reading from the brokers and publishing there; `replicator verify --brokers` compares what lies there"
            )
            for cluster in self.beside_brokers
        ]
        return remarks

    def _summary(self) -> Text:
        carried = f"{format_bytes(self.carried_bytes)} carried in {format_seconds(self.carrying_seconds)}"
        rate = "" if self.rate_bytes is None else f" ({format_bytes(self.rate_bytes)}/s)"
        took = f"{format_seconds(self.seconds)} in all"
        if self.done:
            text = f"done: {self.destination} has everything that {self.source} had, with its consumers' states; "
            return Text(f"{text}{carried}{rate}, {took}", style="green")
        text = f"incomplete: {self.reason}; {carried}{rate}, {took}. The same command goes on from here."
        return Text(text, style="red")


def lacking_of(lacking: Mapping[str, Mapping[str, str]]) -> tuple[MissingState, ...]:
    """Return the lacking states of the phases as a flat list."""
    return tuple(
        MissingState(topic, name, reason)
        for topic, reasons in sorted(lacking.items())
        for name, reason in reasons.items()
    )
