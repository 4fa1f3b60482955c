"""Verify on clusters that publish, copy and consume meanwhile, and on stores that really lost or damaged something."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web
from engine_support import eventually
from sync_node_support import TOPIC
from sync_support import Cluster, clusters, taking
from verify_support import LINKS, change_block, copied, faults, flipped, served
from wire_worker import batch_entry, single_entry

from replicator.api.data_plane import ENGINE
from replicator.engine.log.block import BlockKind
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.pipeline.verify.blocks import Selection
from replicator.pipeline.verify.report import VerifyReport
from replicator.pipeline.verify.verify import VerifySettings, verify
from snapshots.position import BEFORE_ALL

AT_REST = VerifySettings(settle_seconds=0)


async def look(urls: Mapping[str, str], settings: VerifySettings = AT_REST) -> VerifyReport:
    return await asyncio.to_thread(verify, None, urls, LINKS, settings=settings)


def test_clusters_that_publish_and_consume_all_the_time_are_clean_and_a_lost_block_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            topics = [await node.engine.topic(TOPIC) for node in (us, eu)]
            stop = asyncio.Event()

            async def produce(topic: Topic) -> None:
                while not stop.is_set():
                    await topic.publish([batch_entry([b"a", b"b"]) for _ in range(3)])
                    await asyncio.sleep(0.05)  # twice as fast, a busy machine tells acknowledgements ever later

            async def consume(node: Cluster) -> None:
                consumer, inbox = await taking(node, 1)
                acknowledged = 0
                while not stop.is_set():
                    taken = inbox.positions[acknowledged:]
                    for number, position in enumerate(taken, acknowledged):
                        if number % 20 != 7:
                            await consumer.acknowledge([Ack(position, () if number % 20 else (0,))])
                    acknowledged += len(taken)
                    await asyncio.sleep(0.02)

            running = [asyncio.create_task(work) for work in (*map(produce, topics), consume(us))]
            try:
                settings = VerifySettings(settle_seconds=20)
                await eventually(lambda: all(topic.log.messages > 200 for topic in topics), "some messages")
                for _ in range(2):
                    report = await look(urls, settings)
                    assert faults(report) == {}, report.findings
                    assert report.messages > 0
                    assert report.subscriptions == 1
                blocks = [stored.header for stored in topics[1].reading.blocks(BEFORE_ALL, bytes_max=1 << 30)[0]]
                number = next(n for n, header in enumerate(blocks) if n > 2 and header.kind is BlockKind.MESSAGES)
                change_block(topics[1], number, lambda _: None)
                report = await look(urls, settings)
                assert faults(report) == {"missing": blocks[number].messages}, report.findings
            finally:
                stop.set()
                await asyncio.gather(*running)

    asyncio.run(main())


def test_what_is_published_and_copied_between_the_readings_of_two_clusters_is_not_missing_at_its_origin(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        asked: list[str] = []

        async def publish_and_copy(request: web.Request) -> None:
            """Before eu-west says where its logs end, us-east has said so, publishes, and eu-west has the copy."""
            if request.path == "/replication/v1/cuts" and request.app[ENGINE] is eu.engine:
                number = asked.count("eu-west")
                asked.append("eu-west")
                await eventually(lambda: asked.count("us-east") > number, "us-east has said where its logs end")
                await topic.publish([single_entry(b"between")])
                await copied(topic, eu.engine, topic.log.messages)

        def note(request: web.Request) -> None:
            if request.path == "/replication/v1/cuts" and request.app[ENGINE] is us.engine:
                asked.append("us-east")

        async with (
            clusters(tmp_path, "us-east", "eu-west") as (us, eu),
            served(us, eu, before=publish_and_copy, after=note) as urls,
        ):
            topic = await us.engine.topic(TOPIC)
            await topic.publish([single_entry(b"first")])
            await copied(topic, eu.engine, 1)
            report = await look(urls, VerifySettings(settle_seconds=0, digests=False))
            assert asked.count("eu-west") > 1
            assert faults(report) == {}, report.findings

    asyncio.run(main())


def test_damaged_blocks_are_found_by_their_checksums_and_the_rest_is_compared(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            topic = await us.engine.topic(TOPIC)
            for _ in range(12):
                await topic.publish([batch_entry([b"a", b"b", b"c"]) for _ in range(4)])
            copy = await copied(topic, eu.engine, 144)
            assert (await look(urls)).clean
            change_block(copy, 2, flipped(-1))
            assert faults(await look(urls)) == {"corrupted": 12}
            sampled = await look(urls, VerifySettings(Selection(sample=1e-9), settle_seconds=0))
            assert sampled.clean
            assert "a sample" in sampled.remarks[0]
            assert faults(await look(urls, VerifySettings(Selection(sample=1.0), settle_seconds=0))) == {
                "corrupted": 12
            }

            change_block(copy, 5, flipped(40))
            report = await look(urls)
            assert report.corrupted == 12 + 4, "of a block whose header is wrong, only entries can be counted"
            assert report.missing == 12
            assert report.messages == 144
            assert any("eu-west cannot read" in example for each in report.findings for example in each.examples)
            change_block(copy, 7, lambda _: None)
            assert (await look(urls, VerifySettings(Selection(sample=1e-9), settle_seconds=0))).missing >= 12

    asyncio.run(main())


def test_what_was_published_before_the_time_is_not_looked_at(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            topic = await us.engine.topic(TOPIC)
            await topic.publish([single_entry(b"old")] * 3)
            old = us.engine.store.block_heads(topic.topic_id, topic.log.trimmed, topic.log.last, blocks_max=9)
            since_ms = old[-1].header.publish_time_ms + 1
            await eventually(lambda: us.engine.writer.wall_clock_ms() > since_ms, "time to go on")
            await topic.publish([single_entry(b"new")] * 2)
            copy = await copied(topic, eu.engine, 5)
            change_block(copy, 0, lambda _: None)
            assert faults(await look(urls)) == {"missing": 3}
            report = await look(urls, VerifySettings(Selection(since_ms=since_ms), settle_seconds=0))
            assert (faults(report), report.messages) == ({}, 2)
            change_block(copy, 0, lambda _: None)
            report = await look(urls, VerifySettings(Selection(since_ms=since_ms), settle_seconds=0))
            assert faults(report) == {"missing": 2}

    asyncio.run(main())
