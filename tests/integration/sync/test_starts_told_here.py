"""A start that is told beside the engine, as the bridge to brokers does, over real links (DESIGN 4.7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starts_support import apart, joined, left, made

from replicator.engine.types import Ack, InitialPosition
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import FROM_THE_FIRST, Start


def test_an_earlier_start_that_is_told_here_opens_what_lay_before_in_every_cluster_and_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, inbox = await made(eu, InitialPosition.LATEST)
            async with joined(nodes):
                await left(nodes, 0)
                subscription = us.topic().subscriptions["sub"]
                merge = us.engine.loaded.starting.merge
                assert subscription.cursor.state.starts["us"].position > BEFORE_ALL
                assert merge(us.topic().name, subscription, {"us": FROM_THE_FIRST, "eu": FROM_THE_FIRST})
                await subscription.saved()
                await left(nodes, 10)
                await inbox.holds(10)
                await consumer.acknowledge([Ack(position) for position in inbox.positions[:4]])
                await left(nodes, 6)
                assert not merge(us.topic().name, subscription, {"us": FROM_THE_FIRST})  # it is no news

    asyncio.run(main())


def test_a_subscription_that_is_made_with_a_start_in_the_middle_of_the_log_passes_over_what_lies_before_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            first = us.topic().log.next_after(BEFORE_ALL)
            assert first is not None
            fourth = Position(first.ledger, first.entry + 3)
            starts = {"us": Start(us.topic().incarnation, fourth), "eu": FROM_THE_FIRST}
            made_here = await us.topic().subscriptions.create("sub", BEFORE_ALL, replicated=True, starts=starts)
            async with joined(nodes):
                await left(nodes, 6)
            assert made_here.cursor.state.starts == eu.topic().subscriptions["sub"].cursor.state.starts == starts

    asyncio.run(main())
