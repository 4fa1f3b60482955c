"""The audit logs of all clusters as one list."""

from __future__ import annotations

from typing import Any

from replicator.dashboard.audit_rows import DETAIL_CHARS_MAX, audit_rows
from replicator.dashboard.fan_out import Answer


def entry(at_ms: int, action: str = "pause", **detail: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, "actor": "chief", "action": action, "subject": "link A>B", "detail": detail or None}


def test_the_newest_of_all_clusters_come_first_and_who_is_silent_is_named() -> None:
    answers = {
        "A": Answer({"entries": [entry(30), entry(10)]}),
        "B": Answer({"entries": [entry(20, **{"from": "10.0.0.1"})]}),
        "C": Answer(error="C does not answer"),
    }
    rows, silent = audit_rows(answers, "", 2)
    assert [(row.at_ms, row.cluster, row.asked_from, row.detail) for row in rows] == [
        (30, "A", "", ""),
        (20, "B", "10.0.0.1", ""),
    ]
    assert silent == ["C does not answer"]


def test_what_is_searched_may_stand_anywhere_and_a_long_detail_is_cut() -> None:
    long = entry(1, "PUT namespaces", before={"x": "y" * 2 * DETAIL_CHARS_MAX})
    answers = {"A": Answer({"entries": [entry(2), long]})}
    (row,) = audit_rows(answers, "NameSpaces", 10)[0]
    assert len(row.detail) == DETAIL_CHARS_MAX + 1
    assert len(audit_rows(answers, "CHIEF", 10)[0]) == 2
    assert audit_rows(answers, "nobody", 10)[0] == []
