"""Generations of a subscription that begin in one cluster while another one has what it does not know of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import message
from restored_support import Cluster, carry, carry_until, consume_all

from snapshots.position import BEFORE_ALL


def test_what_a_seek_elsewhere_did_not_know_of_stays_consumed_and_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        for each in (a, b):
            await each.start()
        await a.topic.publish([message()] * 3)
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await carry_until(lambda: "sub" in b.topic.subscriptions, (a, b))
        await b.topic.publish([message()] * 3)
        await consume_all(b)
        first = a.topic.log.first
        assert first is not None
        await a.subscription.moves.seek(first)  # of b it knows nothing yet
        await carry_until(lambda: b.subscription.cursor.generation == 2, (a, b))
        assert b.backlog == 3
        await carry(b, a)
        await carry_until(lambda: len(a.messages()) == 6 and a.backlog == 3, (b, a))
        for each in (a, b):
            await each.stop()

    asyncio.run(main())
