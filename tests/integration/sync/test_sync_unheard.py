"""A subscription that a cluster made, or replicates again, without knowing of a deletion elsewhere: all keep it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, message, subscribed
from restored_support import Cluster, carry_until

from replicator.engine.types import InitialPosition
from snapshots.position import BEFORE_ALL


async def in_step(*clusters: Cluster) -> list[tuple[Cluster, Cluster]]:
    """Start clusters with six messages and a subscription, all in step. Return their links."""
    first, *others = clusters
    for each in clusters:
        await each.start()
    await first.topic.publish([message()] * 6)
    await first.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
    links = list(permutations(clusters, 2))
    await carry_until(lambda: all("sub" in each.topic.subscriptions and each.backlog == 6 for each in others), *links)
    return links


def there(*clusters: Cluster) -> bool:
    return all("sub" in each.topic.subscriptions for each in clusters)


def gone(*clusters: Cluster) -> bool:
    return not any("sub" in each.topic.subscriptions for each in clusters)


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("by", ["an operator", "a consumer", "an operator, and a restart"])
def test_invariant_5_a_subscription_that_is_replicated_again_outlives_what_was_deleted_meanwhile(
    tmp_path: Path, by: str, forced: bool
) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        links = await in_step(a, b)
        await a.subscription.set_replicated(False)
        await b.subscription.deleting.delete(force=forced)
        await carry_until(lambda: a.sync.counted.updates_ignored > 0, (b, a))
        if by == "a consumer":
            consumer, inbox = await subscribed(
                a.topic, "sub", replicated=True, initial=InitialPosition.LATEST, permits=10
            )
            await inbox.holds(6)
        else:
            await a.subscription.set_replicated(True)
            if by.endswith("restart"):
                await a.stop()
                await a.start()
        await carry_until(lambda: there(a, b) and a.backlog == b.backlog == 6, *links)
        assert {each.subscription.cursor.generation for each in (a, b)} == {3}
        if by == "a consumer":
            assert not consumer.closed
            consumer.close()
        await b.subscription.deleting.delete(force=True)
        await carry_until(lambda: gone(a, b), *links)
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_a_deletion_is_told_though_the_subscription_was_just_made_for_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are durable by one commit: the cluster hears of the deletion before it goes on where it made it."""

    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        for each in (a, b):
            await each.start()
        await a.topic.publish([message()] * 6)
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        put_many, durable, told = b.engine.writer.put_many, list[str](), asyncio.Event()

        async def told_together(writes: Sequence[Any], **cleared: Any) -> None:
            await put_many(writes, **cleared)
            if any(table in ("cursors", "tombstones") for table, *_ in writes):
                durable.append("deleted" if cleared.get("cleared") else "made")
                await told.wait()

        monkeypatch.setattr(b.engine.writer, "put_many", told_together)
        await carry_until(lambda: durable == ["made"], (a, b))
        await a.subscription.set_replicated(False)
        deleting = asyncio.ensure_future(b.subscription.deleting.delete(force=True))
        await eventually(lambda: durable == ["made", "deleted"], "a deletion that is durable")
        told.set()
        await deleting
        await carry_until(lambda: a.sync.counted.updates_ignored > 0, (b, a))
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_a_subscription_made_anew_outlives_old_deletions_and_its_consumers_stay(tmp_path: Path) -> None:
    """A cluster may lack a tombstone: it joined later, or deleted a thousand subscriptions since."""

    async def main() -> None:
        a, b, c = clusters = [Cluster(name, tmp_path) for name in "abc"]
        links = await in_step(*clusters)
        for by in (b, c):
            await by.subscription.deleting.delete(force=True)
            await carry_until(lambda: gone(*clusters), *links)
            if by is b:
                await c.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
                await carry_until(lambda: there(*clusters), *links)
        tombstones = a.topic.subscriptions.tombstones
        assert tombstones["sub"] == 4
        await a.stop()
        await a.start()
        await a.engine.writer.put_many(a.topic.subscriptions.tombstones.removal("sub"))
        await a.stop()
        await a.start()
        consumer, inbox = await subscribed(a.topic, "sub", replicated=True, permits=10)
        await inbox.holds(6)
        await carry_until(lambda: there(*clusters) and b.backlog == c.backlog == 6, *links)
        assert not consumer.closed
        assert {each.subscription.cursor.generation for each in clusters} == {5}
        consumer.close()
        for each in clusters:
            await each.stop()

    asyncio.run(main())
