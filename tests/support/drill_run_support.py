"""Stored runs of drills, for tests of code that lists and shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from replicator.drills.run_store import StorePlace, digest_of, new_run, opened_store
from replicator.topology import Cluster, Link, Topology
from snapshots.repository import DrillRun


def topology() -> Topology:
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}"})
        for n, name in enumerate("ab")
    )
    return Topology(clusters, (Link("a", "b"),))


def report(scenario: str, **changes: Any) -> dict[str, Any]:
    lag = {"p50": 1.0, "p99": 2.0, "samples": 3}
    counts = ("published", "confirmed", "consumed_unique", "lost", "repeated", "repeated_acked_before_kill",
              "repeated_acked_over_1s_before_kill",
              "repeated_acked_before_planned", "out_of_order", "late", "rpo_messages", "snapshot_mappings",
              "subscription_updates")  # fmt: skip
    return {
        "scenario": scenario, "engine": "embedded", "seed": 1, "sync": "exact", "links": "both-ways",
        "passed": True, "failures": [], "rto_seconds": 0.5, "copy_lag_ms": lag, "sync_lag_ms": lag, "wall_seconds": 9.0,
        "verify": {"missing": 0}, "subscriptions": [], "failovers": [], "phases": [],
    } | dict.fromkeys(counts, 0) | changes  # fmt: skip


def two_runs() -> list[DrillRun]:
    """Return two runs, a day apart, the older one first."""
    day = datetime(2026, 1, 5, 12, tzinfo=UTC)
    return [
        new_run("kill-primary", digest_of(topology()), day, report("kill-primary", repeated=3)),
        new_run("planned", digest_of(topology()), day + timedelta(days=1), report("planned", passed=False)),
    ]


async def keep(place: StorePlace, runs: Iterable[DrillRun]) -> None:
    async with opened_store(place, make=True) as repository:
        for run in runs:
            await repository.save_drill_run(run)


def kept_runs(place: StorePlace) -> list[DrillRun]:
    """Store two runs; return them, the older one first."""
    runs = two_runs()
    asyncio.run(keep(place, runs))
    return runs
