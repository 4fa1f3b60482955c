"""The question of ``replicator status`` to a worker about all of its topics: sums, and the topics that lag most.

``GET /replication/v1/topic-summary?limit=10``: :class:`TopicSummary` in JSON, whose lists have ``limit`` rows at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

SUMMARY_ROUTE: Final = "/replication/v1/topic-summary"
LIMIT: Final = 10
LIMIT_MAX: Final = 1_000
"""Rows of each list: a table that somebody may still read, and some hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A subscription and what it has not consumed."""

    topic: str
    subscription: str
    type: str | None
    replicated: bool
    mark_delete: str
    backlog_messages: int
    messages: int
    lac: str

    @classmethod
    def of_status(cls, topic: Mapping[str, Any], subscription: Mapping[str, Any]) -> Self:
        """Take it from the status of a topic, as ``GET /replication/v1/status`` has it."""
        return cls(
            str(topic["name"]),
            str(subscription["name"]),
            subscription["type"],
            bool(subscription["replicated"]),
            str(subscription["mark_delete"]),
            int(subscription["backlog_messages"]),
            int(topic["messages"]),
            str(topic["lac"]),
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """A topic that a link has not copied to its end; ``lag_ms`` is the age of the oldest block that is missing."""

    topic: str
    link: str
    backlog_entries: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """Sums over the topics of one cluster, and those that lag most."""

    cluster: str
    topics: int
    messages: int
    subscriptions: int
    backlogs: Sequence[Backlog]
    """The largest first."""
    behind: Sequence[Behind]
    """The largest backlogs and the greatest lags, each topic and link once."""

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Raise KeyError, TypeError or ValueError for what is no summary. Fields of newer workers are passed over."""
        return cls(
            str(answer["cluster"]),
            int(answer["topics"]),
            int(answer["messages"]),
            int(answer["subscriptions"]),
            [Backlog(**_known(row, Backlog)) for row in answer["backlogs"]],
            [Behind(**_known(row, Behind)) for row in answer["behind"]],
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _known(row: Mapping[str, Any], kind: type[Backlog | Behind]) -> dict[str, Any]:
    return {each.name: row[each.name] for each in fields(kind)}
