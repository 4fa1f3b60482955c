"""A reclaim of a store whose topic has an earlier life than a peer has: what only this store has stays.

Engines, HTTP and the reclaim are real. Invariants (DESIGN §3): 12 and 13.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from engine_support import TOPIC, entries_of, message, opened
from test_reclaim_faults import Clusters, Peer, blocks_of, clusters, live, own
from test_reclaim_lives import both, published

from replicator.engine.lineage import CopyWriter, Deletion
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.restored import MARK, RestoredMark, put_mark
from replicator.engine.types import InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL


async def give_life(peer: Peer, blocks: list[StoredBlock], incarnation: int) -> None:
    """Copy the blocks of one life, above the earlier ones that the peer keeps."""
    copy = await peer.engine.topic(TOPIC)
    mark = copy.origins.high_water("us-east")
    if mark is not None:
        await peer.engine.writer.keep_both(copy.tail, {"us-east": HighWater(incarnation, mark.position)})
    previous = BEFORE_ALL if mark is None else mark.position
    for each in blocks:
        await copy.writing.copy([CopiedBlock(previous, bytes(each.block))])
        previous = each.header.origin_last


async def here(found: Clusters) -> tuple[list[StoredBlock], int]:
    async with opened(found.data) as engine:
        topic = await engine.topic(TOPIC)
        return own(topic), topic.incarnation


async def used_and_gone(found: Clusters, steps: list[str]) -> list[StoredBlock]:
    """Live a life, of whose store and blocks the first peer is told, and delete its directory. Return what us-east
    published in it."""
    peer = found.peers[0]
    await live(found.data, steps, [100])
    blocks, incarnation = await here(found)
    await give_life(peer, blocks, incarnation)
    async with opened(found.data) as engine:
        line = engine.origin_stores.line
    writer = CopyWriter(TOPIC, "us-east", incarnation, line.store)
    await peer.engine.origin_stores.take("us-east", {"us-east": line}, [writer], [])
    shutil.rmtree(found.data)
    return blocks


@pytest.mark.parametrize("restored", [False, True], ids=["put-back", "restored"])
@pytest.mark.parametrize("peer_has_earlier", [False, True])
def test_a_directory_that_comes_back_after_an_empty_one_was_used_keeps_what_it_has(
    tmp_path: Path, restored: bool, peer_has_earlier: bool
) -> None:
    """The volume was not mounted, a worker began an empty store, and now the volume, or a backup of it, is back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            await live(found.data, ["publish"] * 4, [0])
            before, incarnation = await here(found)
            if peer_has_earlier:
                await give_life(peer, before, incarnation)
            shutil.move(found.data, tmp_path / "volume")
            later = await used_and_gone(found, ["publish"] * 2)
            shutil.move(tmp_path / "volume", found.data)
            if restored:
                async with opened(found.data) as engine:
                    await engine.remember(MARK, RestoredMark("1", "backup", 1, 1).as_json())
            done = await found.reclaim()
            assert await published(found) == both(before, later), done
            assert done.lost == []
            assert len(done.begun) == 1
            _, goes_on = await here(found)
            assert goes_on > later[-1].last.ledger, "what is published next lies above both lives"
            again = await found.reclaim()
            assert (again.topics, again.lost, again.begun) == ([], [], []), again

    asyncio.run(main())


@pytest.mark.parametrize(
    ("copies", "subscribed", "granted"), [(4, True, False), (4, False, False), (0, True, False), (0, False, True)]
)
def test_an_older_store_with_only_copies_or_a_subscription_or_permissions_keeps_them_when_a_later_life_comes_back(
    tmp_path: Path, copies: int, subscribed: bool, granted: bool
) -> None:
    """us-east published nothing in the topic before its volume was away. Others can have trimmed what they wrote."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            await live(found.data, ["copy"] * copies, [0])
            options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=False)
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                if subscribed:
                    (await topic.subscribe("audit", options, lambda _: None)).close()
                if granted:
                    await engine.catalog.grants.change(
                        TOPIC, lambda of: of.with_role("clerk", ["consume"]), lambda: None
                    )
                copied = entries_of(topic, "others")
            assert len(copied) == 3 * copies
            shutil.move(found.data, tmp_path / "volume")
            later = await used_and_gone(found, ["publish"] * 2)
            shutil.move(tmp_path / "volume", found.data)
            done = await found.reclaim()
            assert await published(found) == both([], later), done
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                assert entries_of(topic, "others") == copied, done
                assert list(topic.subscriptions) == ["audit"] * subscribed, done
                assert list(engine.catalog.grants.of(TOPIC).roles) == ["clerk"] * granted, done
            assert done.lost == []
            again = await found.reclaim()
            assert (again.topics, again.lost, again.begun) == ([], [], []), again

    asyncio.run(main())


def test_a_later_life_among_whose_ledgers_only_copies_lie_here_comes_back_whole_or_is_named(tmp_path: Path) -> None:
    """Two stores of us-east ran by turns. The one that goes on has a ledger with copies between those of the other."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            copied = [0]
            await live(found.data, ["copy"], copied)
            shutil.move(found.data, tmp_path / "volume")
            await live(found.data, ["publish"] * 2, [100])
            await live(tmp_path / "volume", ["copy"], copied)
            await live(found.data, ["publish"] * 2, [100])
            later, incarnation = await here(found)
            await give_life(found.peers[0], later, incarnation)
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "volume", found.data)
            done = await found.reclaim()
            assert await published(found) == both([], later) or "all stay where they are" in str(done.lost), done
            async with opened(found.data) as engine:
                assert len(entries_of(await engine.topic(TOPIC), "others")) == 6

    asyncio.run(main())


def test_an_older_life_without_any_messages_or_subscriptions_makes_way_for_a_later_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            async with opened(found.data) as engine:
                await engine.topic(TOPIC)
            shutil.move(found.data, tmp_path / "volume")
            await live(found.data, ["publish"] * 2, [100])
            later, incarnation = await here(found)
            await give_life(found.peers[0], later, incarnation)
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "volume", found.data)
            done = await found.reclaim()
            assert await published(found) == both([], later), done
            assert (await here(found))[1] == incarnation, "links go on in the life that they know"
            assert done.begun == []

    asyncio.run(main())


def test_a_life_that_a_snapshot_of_the_disk_lost_and_a_backup_has_is_not_deleted_for_a_later_one(
    tmp_path: Path,
) -> None:
    """Invariant 13: the same store made the later life, but nobody deleted the earlier one."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            async with opened(found.data):
                pass
            shutil.copytree(found.data, tmp_path / "snapshot")
            await live(found.data, ["publish"] * 2, [0])
            before, _ = await here(found)
            shutil.move(found.data, tmp_path / "backup")
            shutil.move(tmp_path / "snapshot", found.data)
            later = await used_and_gone(found, ["publish"])
            shutil.move(tmp_path / "backup", found.data)
            async with opened(found.data) as engine:
                put_mark(engine.store, RestoredMark("1", "backup", 1, 1))
            done = await found.reclaim()
            assert await published(found) == both(before, later), done
            assert len(done.begun) == 1

    asyncio.run(main())


def test_what_was_confirmed_since_a_snapshot_of_the_disk_was_put_back_stays(tmp_path: Path) -> None:
    """The topic was deleted and made anew after the snapshot, and published to after the snapshot was put back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            await live(found.data, ["publish"] * 4, [0])
            shutil.copytree(found.data, tmp_path / "snapshot")
            async with opened(found.data) as engine:
                await engine.deleting.delete(TOPIC, force=True)
                topic = await engine.topic(TOPIC)
                await topic.publish([message(b"anew")])
            later, incarnation = await here(found)
            await give_life(peer, later, incarnation)
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "snapshot", found.data)
            async with opened(found.data) as engine:
                await (await engine.topic(TOPIC)).publish([message(b"confirmed since")])
            before, _ = await here(found)
            done = await found.reclaim()
            back = await published(found)
            assert not [at for at, _ in both(before, []) if at not in dict(back)], f"confirmed, and gone: {done}"
            assert [at for at, _ in back] == sorted(at for at, _ in both(before, later)), f"both lives: {done}"
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                assert own(topic)[-1].header.incarnation == topic.incarnation > later[-1].last.ledger
                assert [each.header.incarnation for each in own(topic)[:-1]] == [
                    *[before[0].header.incarnation] * (len(before) - 1),
                    incarnation,
                ]

    asyncio.run(main())


def test_a_store_whose_life_lies_below_the_end_of_a_deleted_older_one_begins_a_new_life(tmp_path: Path) -> None:
    """Life 1 went on at a snapshot that was put back, was copied and deleted. Then the store with life 2 came back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            await live(found.data, ["publish"] * 2, [0])
            shutil.copytree(found.data, tmp_path / "snapshot")
            async with opened(found.data) as engine:
                await engine.deleting.delete(TOPIC, force=True)
                await (await engine.topic(TOPIC)).publish([message(b"second")])
            shutil.move(found.data, tmp_path / "second")
            shutil.move(tmp_path / "snapshot", found.data)
            async with opened(found.data) as engine:
                await (await engine.topic(TOPIC)).publish([message(b"first goes on")])
                line = engine.origin_stores.line
            first, incarnation = await here(found)
            await give_life(peer, first, incarnation)
            gone = Deletion(TOPIC, "us-east", incarnation, first[-1].last, 1)
            await peer.engine.origin_stores.take("us-east", {"us-east": line}, [], [gone])
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "second", found.data)
            second, later = await here(found)
            assert later < first[-1].last.ledger
            done = await found.reclaim()
            assert len(done.begun) == 1
            assert await published(found) == both([], second)
            _, goes_on = await here(found)
            assert goes_on > first[-1].last.ledger, "the peer can keep both"
            again = await found.reclaim()
            assert (again.topics, again.begun) == ([], [])

    asyncio.run(main())


def test_what_a_cluster_that_was_not_asked_may_have_is_not_said_to_be_at_nobodys(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await live(found.data, ["publish"] * 4, [0])
            before, incarnation = await here(found)
            one, two = found.peers
            await give_life(one, before, incarnation)
            await give_life(two, before, incarnation)
            topic = await one.engine.topic(TOPIC)
            await topic.trimming.trim(blocks_of(topic)[1].last)
            shutil.rmtree(found.data)
            done = await found.reclaim(without=frozenset({"ap-south"}))
            assert "nobody that was asked has us-east's messages" in str(done.lost), done.lost

    asyncio.run(main())
