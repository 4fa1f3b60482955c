"""Reclaims that refuse something: each refusal names a way on, and that way loses nothing.

Invariant (DESIGN §3): 12. Engines, HTTP, links and the reclaim are real.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
from engine_support import TOPIC, entries_of, eventually, message, opened
from test_reclaim_faults import clusters, give, live, own
from test_reclaim_keeps_what_is_here import give_life, here
from test_reclaim_lives import both, published
from test_ways_on import OWN, Lives, short_pauses

from replicator.backup.dry_run import plan_reclaim
from replicator.engine.lineage import Deletion
from replicator.links.errors import NotResolved
from replicator.links.link import Link

pytestmark = pytest.mark.usefixtures(short_pauses.__name__)


async def goes_on(lives: Lives, peer: str, policy: str) -> None:
    """End the gap of the link to ``peer`` by the gap policy ``policy``.

    Check that the peer keeps its messages, and gets new ones.
    """
    kept = lives.at(peer)
    async with lives.running() as (engine, made):
        link: Link = made[peer]
        await eventually(lambda: bool(link.status()["gaps"]), "the link names the gap")
        try:
            await link.resolve(TOPIC, policy)
        except NotResolved:  # what was trimmed here, of which a link would have been waited for
            await link.resolve(TOPIC, "skip-and-record")
        last = await lives.publish(engine)
        await eventually(lambda: lives.at(peer)[-1:] == [last], "the peer gets what is new")
    assert lives.at(peer)[: len(kept)] == kept


def test_an_older_life_that_reaches_above_and_was_not_deleted_stays_at_the_peer_and_a_new_life_goes_on(
    tmp_path: Path,
) -> None:
    """An older store went on with life 1, and was lost. The store with life 2 came back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            await live(tmp_path / "first", ["publish"] * 2, [0])
            await live(found.data, ["publish"], [0])
            await live(tmp_path / "first", ["publish"], [0])
            async with opened(tmp_path / "first") as engine:
                first = own(await engine.topic(TOPIC))
            await give(peer, first)
            second, incarnation = await here(found)
            assert first[0].header.incarnation < incarnation < first[-1].last.ledger
            done = await found.reclaim()
            assert "They stay there, and cannot come back" in str(done.lost)
            assert len(done.begun) == 1
            assert await published(found) == both([], second)
            await goes_on(Lives(found, random.Random(0)), "eu-west", "keep-both")
            again = await found.reclaim()
            assert again.begun == [], "one new life is enough"

    asyncio.run(main())


def test_own_messages_above_a_deleted_later_life_that_a_peer_copied_get_a_new_life_after_the_named_command(
    tmp_path: Path,
) -> None:
    """One peer knows the later life, and the other one has copied what was published since the older store is back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            knows, copied = found.peers
            await live(found.data, ["publish"] * 2, [0])
            shutil.copytree(found.data, tmp_path / "snapshot")
            async with opened(found.data) as engine:
                await engine.deleting.delete(TOPIC, force=True)
                await (await engine.topic(TOPIC)).publish([message(b"second")])
                line = engine.origin_stores.line
            second, later = await here(found)
            await give_life(knows, second, later)
            gone = Deletion(TOPIC, OWN, later, second[-1].last, 1)
            await knows.engine.origin_stores.take(OWN, {OWN: line}, [], [gone])
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "snapshot", found.data)
            async with opened(found.data) as engine:
                await (await engine.topic(TOPIC)).publish([message(b"since")])
            shutil.copytree(found.data, tmp_path / "shorter")
            async with opened(found.data) as engine:
                await (await engine.topic(TOPIC)).publish([message(b"since then")])
            since, _ = await here(found)
            await give(copied, since)
            shutil.move(found.data, tmp_path / "whole")
            shutil.move(tmp_path / "shorter", found.data)
            plan = await plan_reclaim(found.topology, OWN)
            assert "topics delete" not in str(plan), "the copy has a message that is not here"
            assert "The 6 messages that ap-south has in it of us-east can be the only ones: keep them" in str(plan)
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "whole", found.data)
            done = await found.reclaim()
            command = f"`replicator topics delete {TOPIC} -f FILE --cluster ap-south --force`"
            assert f"{command} deletes the copy of ap-south: 6 messages, all of us-east, which has 6 here" in str(
                done.lost
            )
            assert done.begun == []
            await (await copied.engine.topic(TOPIC)).publish([message(b"of its own")])
            kept = str((await found.reclaim()).lost)
            assert "delete" not in kept
            assert "The 7 messages that ap-south has in it of ap-south, us-east can be the only ones: keep them" in kept
            await copied.engine.deleting.delete(TOPIC, force=True)
            done = await found.reclaim()
            assert len(done.begun) == 1
            assert [at for at, _ in await published(found)] == [each.position for each in since]
            lives = Lives(found, random.Random(0))
            async with opened(found.data) as engine:
                ours = entries_of(await engine.topic(TOPIC), OWN)
            async with lives.running() as (engine, made):
                last = await lives.publish(engine)
                assert not await lives.settle(engine, made)
                await eventually(partial(lives.have, last), "what is new is everywhere")
            assert lives.at("ap-south") == [*ours, last], "copied anew"
            assert len(lives.at("eu-west")) > len(second), "it keeps the later life"

    asyncio.run(main())
