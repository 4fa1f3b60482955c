"""A directory whose log has an earlier life, which a reclaim put back there, read by ``--from-directory``.

Engines, HTTP and the reclaim are real. Invariant (DESIGN §3): 13.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from engine_support import TOPIC, opened
from test_reclaim_faults import clusters, give, live, own
from test_reclaim_lives import both, lost_and_used, published

from replicator.backup.dry_run import plan_reclaim
from replicator.backup.reclaiming import reclaim
from replicator.engine.lineage import CopyWriter

PARTED = "persistent://public/default/parted"


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


def test_no_new_life_begins_because_of_a_later_one_that_only_another_directory_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            aside = tmp_path / "aside"
            await live(found.data, ["publish"] * 2, [0])
            async with opened(found.data) as engine:
                await give(found.peers[0], kept := own(await engine.topic(TOPIC)))
            await live(aside, ["publish"], [0])
            async with opened(aside) as engine:
                await engine.deleting.delete(TOPIC, force=True)
            done = await reclaim(found.topology, "us-east", from_directory=aside)
            assert (done.topics, done.lost, done.begun) == ([], [], []), "links would stop at a new life"
            assert await published(found) == both(kept, [])

    asyncio.run(main())


def test_a_deletion_that_only_another_directory_remembers_counts_and_is_remembered_here(tmp_path: Path) -> None:
    """The link was down when the topic was deleted. Then the volume was not mounted, and an empty store was used."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer, aside = found.peers[0], tmp_path / "aside"
            await live(aside, ["publish"] * 3, [0])
            async with opened(aside) as engine:
                deleted, life = own(await engine.topic(TOPIC)), (await engine.topic(TOPIC)).incarnation
                await give(peer, deleted)
                await engine.deleting.delete(TOPIC, force=True)
                await engine.partitioned.create(PARTED, 2)
                await engine.partitioned.delete(PARTED)
            plan = await plan_reclaim(found.topology, "us-east", from_directory=aside)
            done = await reclaim(found.topology, "us-east", from_directory=aside)
            text = f"{TOPIC} was deleted on purpose up to {deleted[-1].last} (eu-west still has a copy): nothing of "
            assert list(plan.deleted) == done.deleted == [f"{text}that life comes back"]
            assert (plan.topics, done.topics, done.lost) == ((), [], [])
            async with opened(found.data) as engine:
                assert engine.find(TOPIC) is None
                told = engine.origin_stores.deletions[TOPIC, "us-east", life]
                assert told.position == deleted[-1].last, "links tell it on"
                assert engine.origin_stores.partitioned_deleted(PARTED).keys() == {"us-east"}, "no link brings it back"
            again = await reclaim(found.topology, "us-east")
            assert (again.topics, len(again.deleted)) == ([], 1), "without the other directory"

    asyncio.run(main())
