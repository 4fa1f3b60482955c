"""A directory whose log has an earlier life, which a reclaim put back there, read by ``--from-directory``.

Engines, HTTP and the reclaim are real. Invariant (DESIGN §3): 13.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from engine_support import TOPIC
from test_reclaim_faults import clusters, give
from test_reclaim_lives import both, lost_and_used, published

from replicator.backup.reclaiming import reclaim


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
