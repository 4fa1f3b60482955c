"""Messages for one cluster alone, when its clients move to another and back: they hold nothing up, and none is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asynchronous import asynchronous
from engine_support import TOPIC, eventually
from worker_pair import Pair, pair

from replicator.client import Client, ConsumerType, InitialPosition
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata


def entry(payload: bytes, *clusters: str) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=clusters)
    return encode_entry(metadata, payload)


async def consumed(both: Pair, cluster: str, count: int, *, leave: bytes = b"") -> list[bytes]:
    """Receive ``count`` messages at a cluster and acknowledge all but ``leave``; return them."""
    async with Client(both.topology.cluster(cluster).pulsar_url) as client:
        consumer = await client.subscribe(
            TOPIC,
            "sub",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )
        messages = [await consumer.receive(30_000) for _ in range(count)]
        for each in messages:
            if each.data() != leave:
                await consumer.acknowledge(each)
        return [each.data() for each in messages]


@asynchronous
async def test_a_planned_switch_there_and_back_leaves_what_is_for_one_cluster_where_it_is(data_dir: Path) -> None:
    async with pair(data_dir) as both:
        topic = await both.engine("us-east").topic(TOPIC)
        for payload, clusters in ((b"1", ()), (b"here", ("__local__",)), (b"2", ("eu-west",)), (b"3", ())):
            await topic.publish([entry(payload, *clusters)])
        assert await consumed(both, "us-east", 4, leave=b"here") == [b"1", b"here", b"2", b"3"]

        moved = await both.cli("failover", "--from", "us-east", "--to", "eu-west", "--planned")
        assert moved.returncode == 0, moved.stdout + moved.stderr
        there = both.topic("eu-west")
        assert there.log.messages == 3
        assert there.subscriptions["sub"].cursor.backlog_entries() == 0

        await there.publish([entry(b"4"), entry(b"5")])
        assert await consumed(both, "eu-west", 2) == [b"4", b"5"]
        back = await both.cli("failback", "--to", "us-east")
        assert back.returncode == 0, back.stdout + back.stderr
        await eventually(lambda: topic.subscriptions["sub"].cursor.backlog_entries() == 1, "the rest is known")
        async with asyncio.timeout(60):
            assert await consumed(both, "us-east", 1) == [b"here"], "nobody skipped it (invariant 5)"
