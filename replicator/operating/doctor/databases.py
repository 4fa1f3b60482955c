"""Findings of the doctor on a cluster's Postgres: whether it answers, its version, and the schema's revision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from replicator.index.database import head_revision
from replicator.operating.doctor.findings import Finding, Level
from replicator.operating.start_checks import Setup

CHECK: Final = "database"
VERSION_MIN: Final = 14
"""The oldest that Postgres' makers care for."""


def judge_database(setup: Setup) -> Iterator[Finding]:
    """Yield findings on the cluster's Postgres: that it does not answer, or its version and its schema's revision.

    Yield nothing if the worker's start check already refused the database: the finding of that check has the reason.
    """
    name = setup.cluster.name
    if setup.database_away is not None:
        remedy = "start Postgres; until then the worker runs without its index (docs/operating.md)"
        yield Finding(CHECK, name, Level.WARNING, setup.database_away, remedy)
    if setup.database is not None:
        yield _version(name, setup.database.version)
        yield _revision(name, setup.database.revision)


def _version(name: str, version: int) -> Finding:
    major = version // 10_000
    text = f"Postgres {major}.{version % 10_000} answers"
    if major < VERSION_MIN:
        remedy = f"upgrade Postgres to {VERSION_MIN} or newer: older versions get no fixes any more"
        return Finding(CHECK, name, Level.WARNING, text, remedy)
    return Finding(CHECK, name, Level.OK, text)


def _revision(name: str, revision: str | None) -> Finding:
    head = head_revision()
    if revision == head:
        return Finding("migrations", name, Level.OK, f"the schema is at revision {revision}")
    if revision is None:
        return Finding(
            "migrations", name, Level.OK, "the database is empty: the worker makes the schema when it starts"
        )
    remedy = "start the worker, which upgrades the schema, or run `replicator db upgrade -f FILE` before"
    text = f"the schema is at revision {revision}, not {head}, as this version needs it"
    return Finding("migrations", name, Level.WARNING, text, remedy)
