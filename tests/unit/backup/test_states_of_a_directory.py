"""States of subscriptions from another copy of a store; it says nothing of ledgers that it does not have.

Invariant (DESIGN §3): 5.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, message, opened

from replicator.backup.directory_peer import _state
from replicator.backup.putting_back import _told
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position


def test_what_the_other_copy_does_not_have_was_not_consumed_there(tmp_path: Path) -> None:
    """A peer may have an earlier life, which comes back in the same run."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL)
            places = await topic.publish([message(b"%d" % number) for number in range(4)])
            await subscription.acknowledge([Ack(at) for at in places[:3]])
            told = _told(_state(topic, "sub"), engine.cluster)
            assert [told.acks.covers(at) for at in places] == [True, True, True, False]
            assert not told.acks.covers(Position(topic.incarnation - 1, 0)), "a message of an earlier life"
            await topic.trimming.trim(places[1])
            told = _told(_state(topic, "sub"), engine.cluster)
            assert [told.acks.covers(at) for at in places] == [True, True, True, False]

    asyncio.run(main())
