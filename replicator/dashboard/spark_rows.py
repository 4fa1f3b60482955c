"""State of Spark for links: the driver of each cluster, and its query for each link, from what workers say. Pure.

A driver has one Structured Streaming query for each link (docs/live-copy.md). How far it is says the link: what is not
copied yet, how fast it goes, and of a backfill how much is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.overview import BAD, GOOD, UNKNOWN, WARN, LinkRow, Overview

SPARK: Final = "spark"
_DRIVERS: Final = {
    "running": (GOOD, "runs"),
    "waiting": (BAD, "ended, and is started again"),
    "external": (UNKNOWN, "is started by somebody else"),
    "off": (UNKNOWN, "is off"),
}


@dataclass(frozen=True, slots=True)
class DriverRow:
    """The driver that one cluster's worker has, or why it is not known."""

    cluster: str
    tone: str
    state: str
    detail: str = ""
    master: str = ""
    pid: int | None = None
    starts: int | None = None
    queries: int = 0


@dataclass(frozen=True, slots=True)
class Backfill:
    bytes_total: int
    bytes_left: int
    percent: int


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The query of one link."""

    link: LinkRow
    carrier: str
    """Carrier that asks for the link's plans now; empty if there is none."""
    messages: int
    backfill: Backfill | None


def driver_rows(answers: Mapping[str, Answer]) -> list[DriverRow]:
    """Return a row for each cluster, in the order of the answers."""
    return [_driver_row(name, answer) for name, answer in answers.items()]


def _driver_row(cluster: str, answer: Answer) -> DriverRow:
    if not answer.good:
        return DriverRow(cluster, UNKNOWN, "is not known", answer.error)
    told, queries = answer.value["pipeline"], len(_spark_links(answer))
    tone, state = _DRIVERS.get(told["driver"], (UNKNOWN, told["driver"]))
    detail = told["detail"]
    if not queries:
        tone, state, detail = UNKNOWN, "is not needed: Spark carries none of its links", ""
    elif told["driver"] == "off":
        tone = WARN
    return DriverRow(cluster, tone, state, detail, told["master"], told["pid"], told["starts"], queries)


def query_rows(overview: Overview, answers: Mapping[str, Answer]) -> list[QueryRow]:
    """Return a row for every link that Spark carries from a cluster that answers."""
    return [
        QueryRow(row, link["carrier"] or "", link["messages"], _backfill(link["backfill"]))
        for cluster, answer in answers.items()
        for link in _spark_links(answer)
        if (row := overview.link(cluster, link["key"])) is not None
    ]


def _spark_links(answer: Answer) -> list[Mapping[str, Any]]:
    return [link for link in answer.value["links"] if link["engine"] == SPARK] if answer.good else []


def _backfill(told: Mapping[str, Any] | None) -> Backfill | None:
    return None if told is None else Backfill(told["bytes_total"], told["bytes_left"], told["percent"])
