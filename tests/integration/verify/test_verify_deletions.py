"""Verify while topics are deleted: such a topic is left out and named, and the others are compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from engine_support import eventually
from sync_support import Cluster, acknowledged, clusters, having, taking
from verify_support import LINKS, change_block, copied, served
from wire_worker import batch_entry

from replicator.api.data_plane import ENGINE
from replicator.engine.errors import TopicNotFound
from replicator.peering.comparing import DIGESTS_ROUTE, STATES_ROUTE
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import Link

NAMES = [f"persistent://public/default/t{number}" for number in range(6)]
DOOMED, DAMAGED = NAMES[2], NAMES[4]


async def deleted(name: str, *nodes: Cluster) -> None:
    for node in nodes:
        with suppress(TopicNotFound):
            await node.engine.deleting.delete(name, force=True)


@asynccontextmanager
async def filled(path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Two clusters with equal topics, but for one that lacks a block in the second."""
    async with clusters(path, "us-east", "eu-west") as (us, eu):
        for name in NAMES:
            topic = await us.engine.topic(name)
            await topic.publish([batch_entry([b"a", b"b"])])
            await topic.publish([batch_entry([b"c", b"d"])])
            copy = await copied(topic, eu.engine, 4)
            if name == DAMAGED:
                change_block(copy, 0, lambda _: None)
        yield us, eu


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("path", [STATES_ROUTE, DIGESTS_ROUTE, "/replication/v1/raw-blocks", "/replication/v1/cuts"])
def test_a_topic_that_is_deleted_while_it_is_compared_is_left_out_and_named(
    tmp_path: Path, path: str, both: bool
) -> None:
    async def main() -> None:
        async with filled(tmp_path) as (us, eu):

            async def delete(request: web.Request) -> None:
                """Delete the topic when its cluster, which has listed it then, is asked. Both are asked at once."""
                at_us = request.app[ENGINE] is us.engine
                if at_us and request.path == path and request.query.get("topic") in (None, DOOMED):
                    await deleted(DOOMED, us, *([eu] if both else []))

            async with served(us, eu, before=delete) as urls:
                settings = VerifySettings(settle_seconds=0.2, digests="digests" in path, parquet=tmp_path / "rows")
                report = await asyncio.to_thread(verify, None, urls, LINKS, settings=settings)
            assert [finding.topic for finding in report.findings] == [DAMAGED]
            assert report.missing == 2
            assert set(report.topics) == set(NAMES) - {DOOMED}
            (remark,) = report.remarks
            assert DOOMED in remark
            assert "deleted" in remark
            (file,) = (tmp_path / "rows").iterdir()
            assert set(pq.read_table(file)["topic"].to_pylist()) == {DAMAGED}

    asyncio.run(main())


def test_verify_ends_while_topics_are_deleted_all_the_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path) as (us, eu):
            left = [name for name in NAMES if name != DAMAGED]

            async def delete(request: web.Request) -> None:
                """Delete the topic that is asked for, or any."""
                if not request.path.endswith(("/topics", "/links")) and left:
                    name = request.query.get("topic", left[0])
                    if name in left:
                        left.remove(name)
                        await deleted(name, us, eu)

            async with served(us, eu, before=delete) as urls:
                settings = VerifySettings(settle_seconds=0.2, digests=False)
                report = await asyncio.to_thread(verify, None, urls, LINKS, settings=settings)
            assert not left
            assert report.topics == (DAMAGED,)
            assert report.missing == 2

    asyncio.run(main())


@pytest.mark.parametrize("republished", [False, True])
def test_what_a_cluster_deleted_on_purpose_is_not_missing_there(tmp_path: Path, republished: bool) -> None:
    """The other cluster keeps its copy, with a mark. It may go on publishing."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            here, there = await us.engine.topic(NAMES[0]), await eu.engine.topic(NAMES[0])
            await here.publish([batch_entry([b"a", b"b"])])
            await there.publish([batch_entry([b"c", b"d"])])
            await eventually(lambda: here.log.messages == there.log.messages == 4, "all messages in both")
            await deleted(NAMES[0], us)

            def is_marked() -> bool:
                rows = eu.engine.origin_stores.as_json(there)
                return bool(rows.get("us-east", {}).get("deleted"))

            await eventually(is_marked, "the deletion is known")
            if republished:
                await there.publish([batch_entry([b"e", b"f"])])
                await eventually(lambda: us.engine.find(NAMES[0]) is not None, "the topic is made anew by the link")
                made = us.engine.find(NAMES[0])
                assert made is not None
                await eventually(lambda: made.log.messages == 4, "all messages of eu-west came")
            async with served(us, eu) as urls:
                settings = VerifySettings(settle_seconds=0.2)
                report = await asyncio.to_thread(verify, None, urls, LINKS, settings=settings)
            assert report.findings == ()
            named = "deleted, and kept by other clusters: " + f"{NAMES[0]} (by us-east)"
            assert (named in report.remarks) is not republished

    asyncio.run(main())


@pytest.mark.parametrize("leads_back", [False, True])
def test_a_subscription_that_was_deleted_is_no_mismatch_where_nobody_tells_the_cluster_that_keeps_it(
    tmp_path: Path, leads_back: bool
) -> None:
    """A link leads from A to B alone, and B deleted the subscription: ``verify`` reports nothing. With a link back it
    reports a mismatch, because A should have heard of the deletion."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west", links=[("us-east", "eu-west")]) as (us, eu):
            here = await us.engine.topic(NAMES[0])
            await here.publish([batch_entry([b"a", b"b"])])
            consumer, inbox = await taking(us, 1, topic=NAMES[0])
            await acknowledged(consumer, inbox)
            there = await having(eu, 2, "sub", NAMES[0])
            await eventually(lambda: there.subscriptions["sub"].cursor.is_consumed(there.log.last), "it is told")
            await there.subscriptions.delete("sub")
            async with served(us, eu) as urls:
                links = [Link("us-east", "eu-west"), *([Link("eu-west", "us-east")] if leads_back else [])]
                settings = VerifySettings(settle_seconds=0.2)
                report = await asyncio.to_thread(verify, None, urls, links, settings=settings)
            assert report.ack_mismatch == 2 * leads_back

    asyncio.run(main())
