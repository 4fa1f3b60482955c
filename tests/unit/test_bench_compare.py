"""The table of all systems: what was measured, what could not be, and what a system does not have."""

from __future__ import annotations

from typing import Any

from bench.compare import table


def report(rpo: int, rto: float | None, **repeated: int) -> dict[str, Any]:
    lag = {"p50": 10.0, "p99": 250.5}
    return {
        "lost": 0, "out_of_order": 0, "rpo_messages": rpo, "rto_seconds": rto, "copy_lag_ms": lag,
        "sync_lag_ms": {"p50": None, "p99": None},
        "subscriptions": [
            {"name": f"drill-{kind}", "repeated": count, "repeated_acked_before_kill": 0,
             "repeated_acked_over_1s_before_kill": 0}
            for kind, count in repeated.items()
        ],
    }  # fmt: skip


def test_medians_stand_with_the_least_and_the_greatest_and_what_is_not_there_is_not_zero() -> None:
    reports = {
        "ours": [report(0, 0.25, exclusive=3, shared=5), report(0, 0.25, exclusive=9, shared=5)],
        "theirs": [report(8, None, exclusive=1000)],
    }
    rows = [line.strip("| ").split(" | ") for line in table(reports).splitlines()]
    cells = {row[0]: row[1:] for row in rows[2:]}
    assert rows[0] == ["ours", "theirs"]
    assert cells["stranded (RPO)"] == ["0", "8"]
    assert cells["RTO, s"] == ["0.25", "–"]
    assert cells["copy lag p99, ms"] == ["250", "250"]
    assert cells["sync lag p50, ms"] == ["–", "–"]
    assert cells["exclusive: repeated"] == ["6 (3 to 9)", "1,000"]
    assert cells["shared: repeated"] == ["5", "none"]
