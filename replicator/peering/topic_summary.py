"""Messages and route by which ``replicator status`` asks a worker for a summary of all its topics.

``GET /replication/v1/topic-summary?limit=10`` gets a :class:`TopicSummary` in JSON. Each of its lists has ``limit``
rows at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

SUMMARY_ROUTE: Final = "/replication/v1/topic-summary"
LIMIT: Final = 10
LIMIT_MAX: Final = 1_000
"""Most rows of each list: a table that people can still read, and some hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Subscription with the number of messages that it has not consumed yet."""

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
        """Return the backlog of a subscription, from its row and its topic's row in ``GET /replication/v1/status``."""
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
class LaggingTopic:
    """Topic that a link has not copied completely; ``lag_ms`` is the age of the oldest missing block."""

    topic: str
    link: str
    backlog_entries: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """Sums over the topics of one cluster, its largest backlogs, and the topics that links lag with most."""

    cluster: str
    topics: int
    messages: int
    subscriptions: int
    backlogs: Sequence[Backlog]
    """Subscriptions with the largest backlogs, the largest first."""
    behind: Sequence[LaggingTopic]
    """Topics with the largest backlogs or the greatest lags of links; each pair of topic and link once."""

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Return the summary in a JSON body. Fields that only newer workers send are ignored.

        Raises KeyError, TypeError or ValueError if the body is malformed.
        """
        return cls(
            str(answer["cluster"]),
            int(answer["topics"]),
            int(answer["messages"]),
            int(answer["subscriptions"]),
            [Backlog(**_known(row, Backlog)) for row in answer["backlogs"]],
            [LaggingTopic(**_known(row, LaggingTopic)) for row in answer["behind"]],
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _known(row: Mapping[str, Any], kind: type[Backlog | LaggingTopic]) -> dict[str, Any]:
    return {each.name: row[each.name] for each in fields(kind)}
