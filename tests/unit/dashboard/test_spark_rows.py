"""Spark's drivers and queries, from what workers say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.overview import LinkRow, Overview
from replicator.dashboard.rendering import render
from replicator.dashboard.spark_rows import Backfill, driver_rows, query_rows


def worker(driver: str, *links: dict[str, Any], detail: str = "") -> Answer:
    told = {"driver": driver, "detail": detail, "pid": None, "starts": 2, "master": "local[2]"}
    return Answer({"pipeline": told, "links": list(links)})


def link(key: str, engine: str = "spark", **changes: Any) -> dict[str, Any]:
    return {"key": key, "engine": engine, "carrier": None, "messages": 5, "backfill": None, **changes}


def row(key: str) -> LinkRow:
    return LinkRow(key[0], key[-1], key, "good", "copying", lag_ms=90, backlog_entries=3, messages_per_second=1.5)


@pytest.mark.parametrize(
    ("driver", "links", "tone", "state"),
    [
        ("running", [link("A>B")], "good", "runs"),
        ("waiting", [link("A>B")], "bad", "ended, and is started again"),
        ("off", [link("A>B")], "warn", "is off"),
        ("external", [link("A>B")], "unknown", "is started by somebody else"),
        ("off", [link("A>B", "embedded")], "unknown", "is not needed: Spark carries none of its links"),
    ],
)
def test_a_driver_counts_only_where_it_has_links(driver: str, links: list[Any], tone: str, state: str) -> None:
    (found,) = driver_rows({"A": worker(driver, *links)})
    assert (found.tone, found.state, found.starts) == (tone, state, 2)


def test_queries_are_those_of_links_that_spark_carries_and_of_workers_that_answer() -> None:
    backfill = {"bytes_total": 100, "bytes_left": 25, "percent": 75}
    answers = {
        "A": worker("running", link("A>B", carrier="host 7 query", backfill=backfill), link("A>C", "embedded")),
        "B": Answer(error="B does not answer", status=0),
        "C": worker("running", link("C>A"), link("C>Z")),
    }
    rows = query_rows(Overview((), (row("A>B"), row("A>C"), row("B>A"), row("C>A"))), answers)
    assert [(each.link.key, each.carrier, each.backfill) for each in rows] == [
        ("A>B", "host 7 query", Backfill(100, 25, 75)),
        ("C>A", "", None),
    ]
    drivers = driver_rows(answers)
    assert [(each.cluster, each.queries, each.detail) for each in drivers] == [
        ("A", 1, ""),
        ("B", 0, "B does not answer"),
        ("C", 2, ""),
    ]
    shown = render("parts/spark_queries.html", rows=rows)
    assert '<progress value="75" max="100" aria-label="Backfill of A&gt;B">' in shown
    assert "nobody now" in shown
    assert "B does not answer" in render("parts/spark_drivers.html", rows=drivers)
