"""Subscription sync and the catalog: topics that go and come anew, and namespaces that are not copied everywhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from engine_support import eventually, message, opened, serving
from sync_node_support import TOPIC, Node, RecordingIndex, consume_all, mesh

from replicator.engine.errors import TopicNotFound
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.sync.service import SubscriptionSync
from snapshots.actions import ApplyUpdate, ControllerSettings
from snapshots.position import BEFORE_ALL

FAST = ControllerSettings(snapshot_interval_ms=20, update_interval_ms=10)


async def delete_everywhere(*nodes: Node) -> None:
    """Delete the topic until no cluster has it: what another cluster still has comes back, such as its markers (ADR
    14)."""
    while having := [node for node in nodes if node.engine.find(TOPIC) is not None]:
        for node in having:
            with suppress(TopicNotFound):
                await node.engine.deleting.delete(TOPIC, force=True)


def test_a_topic_made_anew_everywhere_is_kept_in_step_from_its_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            for life in range(3):
                topic = await us.engine.topic(TOPIC)
                await topic.publish([message(b"%d" % n) for n in range(10 + life)])
                await consume_all(topic, 10 + life)
                await eventually(
                    lambda: (there := eu.subscription()) is not None and there.cursor.backlog_entries() == 0,
                    f"an empty backlog in eu-west in life {life}",
                )
                await delete_everywhere(us, eu)
                assert us.index.mark_deletes == {}
                assert eu.index.mark_deletes == {}

    asyncio.run(main())


def test_who_still_holds_a_deleted_topic_cannot_take_the_place_of_the_new_one(tmp_path: Path) -> None:
    """A seek by time was on its way through the log when the topic was deleted, and moves the old cursor afterwards."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            old = await us.engine.topic(TOPIC)
            await old.publish([message()])
            await consume_all(old, 1)
            await old.publish([message()])
            held = old.subscriptions["sub"]
            await eventually(lambda: eu.subscription() is not None)
            await delete_everywhere(us, eu)
            for late in (held.moves.seek(BEFORE_ALL), held.moves.consume_through(old.log.last)):
                with pytest.raises(TopicNotFound):
                    await late
            assert us.index.mark_deletes == {}
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % n) for n in range(5)])
            await consume_all(topic, 5)
            await eventually(
                lambda: (there := eu.subscription()) is not None and there.cursor.backlog_entries() == 0,
                "an empty backlog in eu-west",
            )

    asyncio.run(main())


@pytest.mark.parametrize("made_before", [False, True])
def test_a_state_that_is_asked_of_a_deleted_topic_or_told_to_it_leaves_the_one_made_anew_in_step(
    tmp_path: Path, made_before: bool
) -> None:
    """The caller held the topic while it waited for something else, such as an answer of another cluster."""

    async def main() -> None:
        async with opened(tmp_path) as engine, serving(engine):
            sync = SubscriptionSync(
                engine, peers=["eu-west"], reachable_origins=["eu-west"], settings=FAST, index=RecordingIndex()
            )
            await sync.start()
            old = await engine.topic(TOPIC)
            await old.publish([message()])
            held = await old.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await engine.deleting.delete(TOPIC, force=True)
            topic = await engine.topic(TOPIC) if made_before else None
            sync.vector(old, held)
            with pytest.raises(TopicNotFound):
                await sync.merge_told(old, ApplyUpdate("sub", 1, None, "eu-west"))
            topic = topic or await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await topic.publish([message()])
            await eventually(lambda: topic.log.markers, "a snapshot request in the topic that was made anew")
            assert sync._topics[TOPIC].topic is topic
            await sync.stop()

    asyncio.run(main())


def test_a_topic_of_a_namespace_that_is_not_copied_gets_no_markers_and_keeps_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine, serving(engine):
            await engine.catalog.create_namespace("acme/home", NamespacePolicies(replication_clusters=()))
            sync = SubscriptionSync(
                engine, peers=["eu-west"], reachable_origins=["eu-west"], settings=FAST, index=RecordingIndex()
            )
            await sync.start()
            home, away = await engine.topic("acme/home/orders"), await engine.topic("acme/away/orders")
            for topic in (home, away):
                await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
                await topic.publish([message()])
            await eventually(lambda: away.log.markers, "a snapshot request in the topic that is copied")
            assert not home.log.markers
            await engine.catalog.set_namespace("acme/home", NamespacePolicies())
            await eventually(lambda: home.log.markers, "a snapshot request, once the topic is copied")
            await sync.stop()

    asyncio.run(main())
