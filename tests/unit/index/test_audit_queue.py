"""Audit entries that wait for the database outlive a restart, are bounded, and keep nothing from being done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from asynchronous import asynchronous

from replicator.engine.engine import Engine
from replicator.index import audit_queue
from replicator.index.audit_queue import AuditQueue
from snapshots.repository import AuditEntry

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def entry(number: int) -> AuditEntry:
    at = BEGAN + timedelta(milliseconds=number)
    return AuditEntry(UUID(int=number), at, "operator", f"action {number}", "subject", {"n": number})


async def settled() -> None:
    """Return when the background work is over."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if "audit" in task.get_name()))


async def found_after_restart(path: Path, act: Iterable[AuditEntry], written: Iterable[int] = ()) -> list[AuditEntry]:
    engine = await Engine.open(path, cluster="a")
    queue = AuditQueue(engine)
    for each in act:
        queue.keep(each)
    queue.written(UUID(int=number) for number in written)
    await settled()
    await engine.close()
    engine = await Engine.open(path, cluster="a")
    found = AuditQueue(engine).found
    await engine.close()
    return found


@asynchronous
async def test_what_waits_is_there_after_a_restart_in_its_order_and_what_was_written_is_not(tmp_path: Path) -> None:
    entries = [entry(number) for number in (3, 1, 2, 4)]
    assert await found_after_restart(tmp_path, entries, written=[2]) == [entry(1), entry(3), entry(4)]


@asynchronous
async def test_invariant_11_past_the_limit_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_queue, "KEPT_MAX", 3)
    assert await found_after_restart(tmp_path, [entry(number) for number in range(1, 6)]) == [
        entry(3),
        entry(4),
        entry(5),
    ]


@asynchronous
async def test_a_store_that_takes_nothing_more_keeps_nothing_from_being_noted(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, cluster="a")
    queue = AuditQueue(engine)
    await engine.writer.close()
    queue.keep(entry(1))
    await settled()
    assert len(queue) == 1
    engine.store.close()
