"""Messages that an earlier start opens are delivered after their acknowledgements, however late those come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import eventually, settled
from starts_support import apart, joined, left, made, said
from sync_node_support import backlog
from sync_support import Cluster

from replicator.engine.log.writer import CopiedBlock
from replicator.engine.types import Ack, InitialPosition, SubscriptionType
from replicator.sync import opened_starts
from snapshots.position import BEFORE_ALL

LATE_SECONDS = 1.0
"""Four times what dispatch once waited for at most."""


async def carry_markers(source: Cluster, destination: Cluster) -> None:
    """Carry what ``source`` wrote, one block after another, as a link does that stalls between them."""
    name = source.engine.cluster
    blocks, _ = source.topic().reading.blocks(BEFORE_ALL, bytes_max=1 << 30, origins={name})
    before = destination.topic().origins.vector().get(name, BEFORE_ALL)
    for stored in blocks:
        await destination.topic().writing.copy([CopiedBlock(before, stored.block)])
        before = stored.header.origin_last
        await asyncio.sleep(LATE_SECONDS)  # it is what this is about


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE])
def test_acknowledgements_that_come_a_second_after_an_earlier_start_are_not_delivered_again(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            _, inbox = await made(us, InitialPosition.LATEST, kind)
            consumer, theirs = await made(eu, InitialPosition.EARLIEST, kind)
            await theirs.holds(10)
            start = eu.topic().log.last
            await eventually(
                lambda: eu.topic().log.last > start or len(eu.topic().log.markers) > 0, "its start is told"
            )
            await consumer.acknowledge([Ack(position) for position in theirs.positions[:6]])
            await settled(lambda: eu.topic().log.entries, 0.1)

            await carry_markers(eu, us)
            assert said(inbox) == []
            async with joined(nodes):
                await left(nodes, 4)
                await inbox.holds(4)
                assert said(inbox) == ["6", "7", "8", "9"]

    asyncio.run(main())


def test_an_answer_ends_the_wait_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_starts, "QUIET_SECONDS", 1_000.0)
    monkeypatch.setattr(opened_starts, "HELD_SECONDS_MAX", 1_000.0)

    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            _, inbox = await made(us, InitialPosition.LATEST)
            consumer, theirs = await made(eu, InitialPosition.EARLIEST)
            await theirs.holds(10)
            await consumer.acknowledge([Ack(theirs.positions[3])])
            async with joined(nodes):
                await inbox.holds(9)
                assert "3" not in said(inbox)
                assert not us.topic().subscriptions["sub"].dispatching.pump.held

    asyncio.run(main())


def test_invariant_8_a_source_that_cannot_answer_delays_delivery_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_starts, "QUIET_SECONDS", 0.2)

    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            _, inbox = await made(us, InitialPosition.LATEST)
            await made(eu, InitialPosition.EARLIEST)
            async with joined(nodes, ("eu", "us")):
                await eventually(lambda: backlog(us) == 10, "the start of eu in us")
                await inbox.holds(10)

    asyncio.run(main())
