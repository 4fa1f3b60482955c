"""A deletion without force that reaches a cluster in which consumers use the subscription: all clusters keep it."""

from __future__ import annotations

import asyncio
from itertools import permutations
from pathlib import Path

import pytest
from engine_support import eventually, message, subscribed
from restored_support import Cluster, carry, carry_until

from replicator.engine.types import Ack, SubscriptionType
from replicator.sync.marker_log import Counters, MarkerLog
from replicator.topology import load_topology
from snapshots.actions import ApplyUpdate
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate
from snapshots.position import BEFORE_ALL

HUB = """
clusters:
  a: {address: "127.0.0.1:6650", data: a}
  b: {address: "127.0.0.1:6651", data: b}
  c: {address: "127.0.0.1:6652", data: c}
links:
  - {between: [a, b]}
  - {between: [b, c]}
pipeline: {engine: embedded}
"""


async def started(a: Cluster, *others: Cluster) -> list[tuple[Cluster, Cluster]]:
    """Clusters with six messages and a subscription, all in step; returns their links."""
    for each in (a, *others):
        await each.start()
    positions = await a.topic.publish([message()] * 6)
    await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
    links = list(permutations((a, *others), 2))
    await carry_until(lambda: all("sub" in each.topic.subscriptions for each in others), *links)
    await a.subscription.acknowledge([Ack(positions[0]), Ack(positions[4])])
    await carry_until(lambda: all(each.backlog == 4 for each in others), *links)
    return links


def gone(cluster: Cluster) -> bool:
    return "sub" not in cluster.topic.subscriptions


@pytest.mark.parametrize("exact", [True, False])
def test_a_consumer_that_came_after_the_question_keeps_the_subscription_in_all_clusters(
    tmp_path: Path, exact: bool
) -> None:
    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path, exact=exact) for name in "abc")
        links = await started_at_any_rate(a, b, c, exact=exact)
        await a.subscription.deleting.delete()  # nobody is asked, so nobody used it
        await carry_until(lambda: gone(c), (a, c), (c, a))
        consumer, inbox = await subscribed(b.topic, "sub", SubscriptionType.SHARED, permits=100, replicated=True)
        left = b.backlog
        await inbox.holds(left)
        await carry_until(lambda: not gone(a) and not gone(c) and a.backlog == c.backlog == left, *links)
        assert {each.subscription.cursor.generation for each in (a, b, c)} == {3}
        assert (consumer.closed, len(inbox.positions)) == (False, left)
        if exact:  # positions alone travel by snapshots, which messages bring about
            await consumer.acknowledge([Ack(inbox.positions[0])])
            await carry_until(lambda: a.backlog == c.backlog == left - 1, *links)
        consumer.close()
        await c.subscription.deleting.delete()
        await carry_until(lambda: gone(a) and gone(b), *links)
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())


def test_with_force_the_subscription_goes_also_where_it_is_used(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path) for name in "abc")
        links = await started(a, b, c)
        consumer, _ = await subscribed(b.topic, "sub", replicated=True)
        await a.subscription.deleting.delete(force=True)
        await carry_until(lambda: gone(b) and gone(c), *links)
        assert consumer.closed
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())


@pytest.mark.parametrize("generation", [2, 3])
def test_a_later_generation_that_comes_during_a_deletion_brings_the_subscription_back(
    tmp_path: Path, generation: int
) -> None:
    async def main() -> None:
        a = Cluster("a", tmp_path)
        await a.start()
        await a.topic.publish([message()])
        subscription = await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        deletion = asyncio.ensure_future(subscription.deleting.delete())
        await asyncio.sleep(0)
        assert subscription.deleting.begun
        assert not deletion.done()
        await a.sync.merge_told(a.topic, ApplyUpdate("sub", generation, None, "b", whole=True))
        await deletion
        assert gone(a) == (generation == 2), "at an equal generation a deletion wins"
        assert gone(a) or a.subscription.cursor.generation == generation
        await a.stop()

    asyncio.run(main())


def test_a_subscription_that_outlives_two_deletions_at_once_is_told_in_its_last_generation(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        for each in (a, b):
            await each.start()
        await a.topic.publish([message()] * 6)
        await a.topic.subscriptions.create("sub", a.topic.log.last, replicated=True)
        links = [(a, b), (b, a)]
        await carry_until(lambda: not gone(b) and len(b.messages()) == 6, *links)
        consumer, _ = await subscribed(b.topic, "sub", replicated=True)
        deletions = [ApplyUpdate("sub", each, None, "a", deleted=True, unless_in_use=True) for each in (2, 4)]
        await asyncio.gather(*(b.sync.merge_told(b.topic, each) for each in deletions))
        assert b.subscription.cursor.generation == 5
        await carry_until(lambda: a.subscription.cursor.generation == 5, *links)
        consumer.close()
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_a_kept_subscription_that_was_put_elsewhere_skips_nothing_for_one_that_was_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        links = await started(a, b)
        consumer, _ = await subscribed(b.topic, "sub", SubscriptionType.SHARED, replicated=True)
        await b.subscription.moves.seek(b.messages()[2].position)
        await carry_until(lambda: a.subscription.cursor.generation == 2, *links)
        await a.subscription.deleting.delete()
        await a.topic.subscriptions.create("sub", a.topic.log.last, replicated=True)
        await carry_until(lambda: {each.subscription.cursor.generation for each in (a, b)} == {4}, *links)
        await carry_until(lambda: a.backlog == 4, *links)
        assert (b.backlog, consumer.closed) == (4, False)
        consumer.close()
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


@pytest.mark.parametrize("forced", [True, False])
def test_a_hub_tells_on_whether_a_deletion_was_forced(tmp_path: Path, forced: bool) -> None:
    async def main() -> None:
        file = tmp_path / "topology.yaml"
        file.write_text(HUB)
        topology = load_topology(file)
        a, hub, c = (Cluster(name, tmp_path, topology=topology) for name in "abc")
        for each in (a, hub, c):
            await each.start()
        await a.topic.publish([message()] * 6)
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        links = [(a, hub), (hub, a), (hub, c), (c, hub)]
        await carry_until(lambda: not gone(c), *links)
        consumer, _ = await subscribed(c.topic, "sub", replicated=True)
        await a.subscription.deleting.delete(force=forced)
        await carry_until(lambda: gone(hub), (a, hub))
        if forced:
            await carry_until(lambda: gone(c), *links)
        else:
            await carry_until(lambda: not gone(a) and not gone(hub), *links)
            assert {each.subscription.cursor.generation for each in (a, hub, c)} == {3}
        assert consumer.closed == forced
        for each in (a, hub, c):
            await each.stop()

    asyncio.run(main())


@pytest.mark.parametrize("forced", [True, False])
def test_a_deletion_that_is_told_again_after_a_restart_still_says_whether_it_was_forced(
    tmp_path: Path, forced: bool
) -> None:
    async def main() -> None:
        a = Cluster("a", tmp_path)
        await a.start()
        await a.topic.publish([message()])
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await a.subscription.deleting.delete(force=forced)
        await eventually(lambda: len(deletions(a)) == 1, "it is told")
        await a.stop()
        await a.start()
        a.sync.announce_all()
        await eventually(lambda: len(deletions(a)) == 2, "it is told again")
        assert {each.unless_in_use for each in deletions(a)} == {not forced}
        await a.stop()

    asyncio.run(main())


def deletions(cluster: Cluster) -> list[SubscriptionUpdate]:
    log = MarkerLog(cluster.topic, Counters())
    found = [marker for stored in log.newest_first() for _, marker in log.markers(stored)]
    return [
        each for marker in found if isinstance(marker, SubscriptionsUpdate) for each in marker.updates if each.deleted
    ]


async def started_at_any_rate(a: Cluster, *others: Cluster, exact: bool) -> list[tuple[Cluster, Cluster]]:
    """Start the clusters as :func:`started` does. If only mark-delete positions travel, acknowledge nothing out of
    order."""
    if exact:
        return await started(a, *others)
    for each in (a, *others):
        await each.start()
    await a.topic.publish([message()] * 6)
    await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
    links = list(permutations((a, *others), 2))
    await carry_until(lambda: all("sub" in each.topic.subscriptions for each in others), *links)
    for link in links:
        await carry(*link)
    return links
