"""A directory whose log has an earlier life, which a reclaim put back there, read by ``--from-directory``.

Engines, HTTP and the reclaim are real. Invariant (DESIGN §3): 13.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from engine_support import TOPIC, opened
from test_reclaim_faults import clusters, give
from test_reclaim_lives import both, lost_and_used, published

from replicator.backup.reclaiming import reclaim
from replicator.engine.lineage import CopyWriter


def test_earlier_lives_that_only_another_directory_has_come_back_or_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since = await lost_and_used(found, ["publish"] * 3, ["publish"] * 2)
            peer = found.peers[0]
            await give(peer, before)
            assert (await found.reclaim()).lost == []
            await peer.engine.deleting.delete(TOPIC, force=True, on_purpose=False)
            shutil.move(found.data, tmp_path / "aside")
            done = await reclaim(found.topology, "us-east", from_directory=tmp_path / "aside")
            assert await published(found) == both(before, since) or done.lost, done

    asyncio.run(main())


def test_an_earlier_life_that_was_put_back_and_trimmed_since_does_not_come_back_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _ = await lost_and_used(found, ["publish"] * 3, ["publish"] * 2)
            await give(found.peers[0], before)
            assert (await found.reclaim()).lost == []
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                line = engine.origin_stores.line
                await topic.trimming.trim(topic.log.last)
            for told in (False, True):
                if told:
                    writer = CopyWriter(TOPIC, "us-east", before[0].header.incarnation, line.store)
                    await found.peers[0].engine.origin_stores.take("us-east", {"us-east": line}, [writer], [])
                done = await found.reclaim()
                assert (done.topics, done.lost, done.deleted) == ([], [], [])

    asyncio.run(main())
