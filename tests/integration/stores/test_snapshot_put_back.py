"""A snapshot of the disk that is taken under traffic, and put back later: real workers, the command, and clients.

Invariants (DESIGN §3): 2, 5, 10, 12 and 13. The worker stands still while its directory is copied, so that the copy is
of one moment, as a snapshot of a disk is.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_support import ORDERS, Mesh, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of

from replicator.client import Client


@pytest.fixture
def pair(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "snapshot") as databases,
        deployment(tmp_path, "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def snapshot(pair: Mesh, name: str) -> Path:
    worker = pair._processes[name]
    worker.send_signal(signal.SIGSTOP)
    try:
        ignored = shutil.ignore_patterns("postgres")
        return Path(shutil.copytree(pair.data(name), pair.path / f"snapshot-{name}", ignore=ignored))
    finally:
        worker.send_signal(signal.SIGCONT)


def put_back(pair: Mesh, name: str, saved: Path) -> None:
    shutil.rmtree(pair.data(name))
    shutil.copytree(saved, pair.data(name))


def gaps(pair: Mesh) -> list[str]:
    return [gap["kind"] for link in pair.status("A")["links"] for gap in link["gaps"]]


def test_what_was_confirmed_after_a_snapshot_comes_back_though_the_store_went_on_since(pair: Mesh) -> None:
    a, b = pair.client_url("A"), pair.client_url("B")
    first, second, third = numbered("first", 0, 400), numbered("second", 0, 50), numbered("third", 0, 30)
    acknowledged: list[bytes] = []

    async def under_traffic() -> Path:
        await publish(a, first[:100])
        acknowledged.extend(await take(a, 40))
        async with Client(a, reconnect=False) as client:
            producer = await client.create_producer(ORDERS, batching_enabled=False)
            for each in first[100:200]:
                await producer.send(each)
            copying = asyncio.create_task(asyncio.to_thread(snapshot, pair, "A"))
            for each in first[200:]:  # one of these waits while the worker stands still
                await producer.send(each)
            return await copying

    saved = asyncio.run(under_traffic())
    pair.kill("A")
    pair.start("A")  # so that the messages after the snapshot lie in two ledgers
    asyncio.run(publish(a, second))
    acknowledged += asyncio.run(take(a, 60, acknowledge=slice(0, 60, 2)))
    pair.until(lambda: pair.messages("B") == 450 and pair.agree("sub"), "all at B")
    pair.kill("A")
    put_back(pair, "A", saved)
    pair.start("A")
    before = pair.messages("A")
    assert 200 <= before < 400
    asyncio.run(publish(a, third))
    pair.until(lambda: gaps(pair) == ["lost-data"], "the link from A stops")
    pair.kill("A")

    printed = pair.reclaim("A", "--dry-run")
    assert f"{ORDERS} (between what is here): {450 - before} messages after " in printed
    assert f"{450 - before} messages)" in printed
    printed = pair.reclaim("A")
    assert f"took back {450 - before} messages of {ORDERS} (between what was here)" in printed
    assert "lost: " not in printed
    assert "nothing of A's messages that it lacks" in pair.reclaim("A")
    pair.start("A")
    pair.until(lambda: pair.messages("A") == pair.messages("B") == 480, "all in both")
    assert (pair.halted("A"), pair.halted("B")) == ({}, {})
    pair.until(lambda: pair.agree("sub"), "the same state in both")
    left = asyncio.run(take(b, 480 - len(acknowledged)))
    assert sorted([*acknowledged, *left]) == sorted([*first, *second, *third]), "each is consumed once"
    pair.until(pair.consumed, "nothing left anywhere")
    pair.verify()
