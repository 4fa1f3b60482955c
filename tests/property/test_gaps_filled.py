"""Several gaps of one topic that reclaims filled: a link asks its destination about each of them.

Invariants (DESIGN §3): 2, 5 and 12. Engines, HTTP, links and the reclaim are real.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from engine_support import TOPIC, eventually, opened
from test_reclaim_after_snapshot import own_in
from test_reclaim_faults import Clusters, clusters, give, live
from test_reclaim_lives import published
from test_ways_on import OWN, Lives, short_pauses

from replicator.engine.log.commit.putting_back import (
    PUT_BACK_BETWEEN,
    PUT_BACK_LEDGERS,
    PUT_BACK_LEDGERS_MAX,
    put_back_between,
)
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.topics.topic_deletion import TOPIC_FACTS

pytestmark = pytest.mark.usefixtures(short_pauses.__name__)


async def two_runs_lost(found: Clusters, *, between: list[str]) -> list[list[StoredBlock]]:
    """Lose what us-east published, twice, each time to a snapshot of its disk.

    Return its runs in order: the first one, the first that was lost, what was published ``between``, the second that
    was lost, and the last one.
    """
    runs: list[list[StoredBlock]] = []
    known: set[object] = set()

    async def note() -> None:
        blocks = [each for each in await own_in(found.data) if each.position not in known]
        known.update(each.position for each in blocks)
        runs.append(blocks)

    await live(found.data, ["publish"], [0])
    await note()
    for steps in (between, ["publish"]):
        shutil.copytree(found.data, found.path / "snapshot")
        await live(found.data, ["publish"], [0])
        await note()
        shutil.rmtree(found.data)
        shutil.move(found.path / "snapshot", found.data)
        await live(found.data, steps, [0])
        await note()
    return runs


@pytest.mark.parametrize("between", [["publish"], []], ids=["two gaps", "one gap with two ledgers"])
def test_invariant_12_a_link_asks_about_every_gap_that_was_filled_and_keep_both_goes_on(
    tmp_path: Path, between: list[str]
) -> None:
    """The second peer has all but the first run that was lost."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            one, two = found.peers
            first, lost, middle, lost_again, last = await two_runs_lost(found, between=between)
            await give(one, [*first, *lost])
            await give(two, [*first, *middle, *lost_again, *last])
            done = await found.reclaim()
            (named,) = done.lost
            assert f"ap-south lacks what came back after {first[-1].last} up to {lost[-1].last}" in named
            everything = [*first, *lost, *middle, *lost_again, *last]
            assert [at for at, _ in await published(found)] == [each.position for each in everything]
            lives = Lives(found, random.Random(0))
            async with lives.running() as (engine, made):
                link = made["ap-south"]
                await eventually(lambda: bool(link.status()["gaps"]), "the link names what the peer lacks")
                (gap,) = link.status()["gaps"]
                assert gap["kind"] == "earlier-life"
                assert str(lost[-1].last) in gap["detail"]
                await link.resolve(TOPIC, "keep-both")
                new = await lives.publish(engine)
                await eventually(lambda: lives.at("ap-south")[-1:] == [new], "the link goes on")
                topic = two.engine.find(TOPIC)
                assert topic is not None
                assert topic.origins.left_out(OWN) == [(first[-1].last, lost[-1].last)], "nobody claims it"
            async with lives.running() as (engine, made):
                new = await lives.publish(engine)
                await eventually(lambda: lives.at("ap-south")[-1:] == [new], "it does not stop again")

    asyncio.run(main())


def test_a_store_of_an_earlier_version_knows_the_last_gap_and_the_next_reclaim_adds_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            one, _ = found.peers
            first, lost, middle, lost_again, last = await two_runs_lost(found, between=["publish"])
            await give(one, [*first, *lost])
            assert (await found.reclaim()).lost == []
            async with opened(found.data) as engine:
                topic_id = (await engine.topic(TOPIC)).topic_id
                assert put_back_between(engine.store, topic_id) == [lost[-1].last]
                key = f"{PUT_BACK_LEDGERS} {topic_id}".encode()
                await engine.writer.put_many([("meta", key, None)])
                assert put_back_between(engine.store, topic_id) == [lost[-1].last]
            await give(one, [*middle, *lost_again, *last])
            assert (await found.reclaim()).lost == []
            async with opened(found.data) as engine:
                assert put_back_between(engine.store, topic_id) == [lost[-1].last, lost_again[-1].last]
                assert engine.store.meta(f"{PUT_BACK_BETWEEN} {topic_id}") == str(lost_again[-1].last)
                topic = await engine.topic(TOPIC)
                newest = topic.origins.newest_of_earlier_lives({OWN})
                assert newest == {OWN: [lost[-1].last, lost_again[-1].last]}
                await topic.trimming.trim(middle[-1].last)
                assert topic.origins.newest_of_earlier_lives({OWN}) == {OWN: [lost_again[-1].last]}, "what is left"
        assert PUT_BACK_LEDGERS in TOPIC_FACTS, "gone with the topic"
        assert PUT_BACK_LEDGERS_MAX <= 200, "a link asks one question for each"

    asyncio.run(main())
