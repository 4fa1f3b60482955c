"""Carrying segments between real workers' data planes, without Spark: what a task does, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_support import TOPIC, eventually, logged, message
from link_support import Web, web

from replicator.api import link_streams
from replicator.links import plans
from replicator.links.copier import LANES_MAX
from replicator.links.errors import PeerUnavailable
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.live import lane
from replicator.pipeline.live.carrying import PLAN_STALE, Carrier, LinkWork
from replicator.pipeline.live.lane import LaneTask, carry_lane
from replicator.pipeline.live.link_plans import PlanId
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL

A_TO_B = LinkSpec("a", "b", compression="lz4")


@asynccontextmanager
async def clusters(path: Path, *, started: bool = True) -> AsyncIterator[Web]:
    async with web(path, [A_TO_B], engine=SPARK, started=started) as made:
        await made.carriers["a>b"].stop()
        made.links["a>b"].planner.release("stand-in")
        yield made


def work(made: Web, stream: str = "0") -> LinkWork:
    url = f"http://{made.servers['a'].address}"
    return LinkWork(url, "a>b", "a", "b", made.servers["b"].address, compression="lz4", stream=stream)


def segment(made: Web, *names: str, number: int = 1, skip: int = 0) -> dict[str, Any]:
    """All blocks of topics but the first ``skip`` of each, as the link would plan them."""
    topics = []
    for name in names or (TOPIC,):
        topic = made.engines["a"].find(name)
        assert topic is not None
        rows, previous, after = [], BEFORE_ALL, BEFORE_ALL
        for index, stored in enumerate(topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)[0]):
            row = [stored.position.ledger, stored.position.entry, stored.header.entries, len(stored.block)]
            if index >= skip:
                rows.append([*row, previous.ledger, previous.entry, 0])
            else:
                after = stored.last
            previous = stored.header.origin_last
        upto = str(topic.log.last)
        topics.append({"topic": topic.name, "after": str(after), "upto": upto, "blocks": rows})
    return {"segment": number, "bytes": 0, "topics": topics}


def copied(made: Web, name: str = TOPIC) -> bool:
    here, there = (made.engines[cluster].find(name) for cluster in "ab")
    return here is not None and there is not None and logged(here) == logged(there)


def refusals(done: dict[str, Any]) -> dict[str, str]:
    return {row["topic"].rpartition("/")[2]: row["refused"]["code"] for row in done["topics"] if row["refused"]}


def test_a_segment_of_many_topics_and_of_blocks_of_any_size_is_carried_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            names = [f"topic-{number}" for number in range(30)]
            for name in names:
                await made.publish("a", 0, 9, name)
            large = await made.engines["a"].topic("large")
            for number in range(6):
                await large.publish([message(bytes([number]) * 3_000_000)])
            async with Carrier(work(made)) as carrier:
                done = await carrier.carry(segment(made, *names, "large"))
            assert all(copied(made, name) for name in [*names, "large"])
            assert refusals(done) == {}
            assert [row["reached"] for row in done["topics"]] == [
                str(made.engines["a"].find(name).log.last)  # type: ignore[union-attr]
                for name in [*names, "large"]
            ]
            assert (done["segment"], done["entries"], done["messages"]) == (1, 30 * 9 + 6, 30 * 9 + 6)
            assert done["bytes"] > 18_000_000 > done["wire_bytes"] > 0, "the link compresses"

    asyncio.run(main())


def test_segments_follow_each_other_over_one_connection_and_what_is_carried_again_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            await made.publish("a", 0, 30)
            first = segment(made)
            await made.publish("a", 30, 30)
            second = segment(made, number=2, skip=len(first["topics"][0]["blocks"]))
            async with Carrier(work(made)) as carrier:
                dones = await asyncio.gather(*map(carrier.start, (first, second, first, second)))
            assert [done["segment"] for done in dones] == [1, 2, 1, 2]
            assert not any(map(refusals, dones))
            assert copied(made)

    asyncio.run(main())


def test_a_block_that_is_not_there_any_more_stops_its_topic_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            for name in ("stale", "gone", "whole"):
                await made.publish("a", 0, 12, name)
            planned = segment(made, "stale", "gone", "whole")
            blocks = planned["topics"][0]["blocks"]
            blocks[2][1] += 10_000
            await made.engines["a"].deleting.delete("gone", force=True)
            async with Carrier(work(made)) as carrier:
                done = await carrier.carry(planned)
            assert refusals(done) == {"stale": PLAN_STALE, "gone": PLAN_STALE}
            reached = [row["reached"] for row in done["topics"]]
            assert reached[:2] == [f"{blocks[1][0]}:{blocks[1][1] + blocks[1][2] - 1}", str(BEFORE_ALL)]
            assert copied(made, "whole")
            assert made.entries("b", "a", "stale") == made.entries("a", "a", "stale")[:6]

    asyncio.run(main())


def test_a_topic_that_the_destination_refuses_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            for name in ("holed", "whole"):
                await made.publish("a", 0, 12, name)
            planned = segment(made, "holed", "whole")
            del planned["topics"][0]["blocks"][1]
            async with Carrier(work(made)) as carrier:
                done = await carrier.carry(planned)
            assert refusals(done) == {"holed": "CopyGap"}
            assert copied(made, "whole")
            assert made.entries("b", "a", "holed") == [], "a frame's blocks of a topic are taken whole or not at all"
            assert done["topics"][0]["reached"] == str(BEFORE_ALL)

    asyncio.run(main())


def test_a_link_has_streams_of_several_names_at_once_and_a_newer_one_of_a_name_takes_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            made.servers["b"].also = lambda app: app.__setitem__(link_streams.STREAMS, {})
            await made.servers["b"].stop()
            await made.servers["b"].start()
            for name in ("one", "two"):
                await made.publish("a", 0, 3, name)
            async with Carrier(work(made, "one")) as one, Carrier(work(made, "two")) as two:
                await one.carry(segment(made, "one"))
                await two.carry(segment(made, "two"))
                await one.carry(segment(made, "one"))
                async with Carrier(work(made, "one")) as newer:
                    await newer.carry(segment(made, "one"))
                    with pytest.raises(PeerUnavailable):
                        await one.carry(segment(made, "one"))
                await two.carry(segment(made, "two"))

    asyncio.run(main())


def test_a_link_of_as_many_lanes_as_there_may_be_keeps_its_own_stream_and_those_of_all_tasks(tmp_path: Path) -> None:
    """A lane has two tasks while one relieves the other. Streams of tasks that are long gone are cut, the oldest first;
    the link's own is never cut, because all plans would be gone with it."""

    async def main() -> None:
        streams: dict[Any, Any] = {}

        async with clusters(tmp_path, started=False) as made, contextlib.AsyncExitStack() as tasks:

            async def carry(number: int) -> None:
                await (await tasks.enter_async_context(Carrier(work(made, f"{number}")))).carry(segment(made))

            made.servers["b"].also = lambda app: app.__setitem__(link_streams.STREAMS, streams)
            await made.servers["b"].stop()
            await made.servers["b"].start()
            made.links["a>b"].start()
            await made.publish("a", 0, 3)
            await eventually(lambda: [name for _, name in streams] == [""])
            (own,) = streams.values()
            for number in range(2 * LANES_MAX):
                await carry(number)
            assert [name for _, name in streams] == ["", *map(str, range(2 * LANES_MAX))]
            await carry(2 * LANES_MAX)
            assert [name for _, name in streams] == ["", *map(str, range(1, 2 * LANES_MAX + 1))]
            assert next(iter(streams.values())) is own

    asyncio.run(main())


def test_a_lane_that_two_tasks_carry_at_once_is_carried_once(tmp_path: Path) -> None:
    """Spark does so by speculation, and when it takes a live task for lost."""

    async def main() -> None:
        async with clusters(tmp_path) as made:
            planner = made.links["a>b"].planner
            await made.publish("a", 0, 60)
            await eventually(lambda: made.links["a>b"].state != "connecting")
            plan = await planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            tasks = [
                LaneTask(work(made, name), PlanId(plan["session"], plan["plan"]), 0, plan["lanes"][0], 1.0)
                for name in ("first", "second")
            ]
            carrying = [asyncio.create_task(asyncio.to_thread(carry_lane, task)) for task in tasks]
            for number in range(60, 360, 6):
                await made.publish("a", number, 6)
                await asyncio.sleep(0.005)
            results = await asyncio.gather(*carrying)
            assert [result.error for result in results] == [None, None]
            planner.done(plan["session"], plan["plan"], [done for result in results for done in result.unreported])
            there, here = made.entries("b", "a"), made.entries("a", "a")
            assert len(there) > 60
            assert there == here[: len(there)]

    asyncio.run(main())


def test_a_lane_has_several_segments_under_way_and_fetches_each_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "SEGMENT_BYTES", 400)

    async def main() -> None:
        async with clusters(tmp_path) as made:
            await made.publish("a", 0, 120)
            await eventually(lambda: made.links["a>b"].state != "connecting")
            planner = made.links["a>b"].planner
            plan = await planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            task = LaneTask(work(made), PlanId(plan["session"], plan["plan"]), 0, plan["lanes"][0], 2.0)
            carrying = asyncio.create_task(asyncio.to_thread(carry_lane, task))
            await eventually(lambda: copied(made))
            result = await carrying
            assert (result.unreported, result.error) == ([], None), "it has reported everything itself"
            assert asked == sorted(set(asked))
            assert made.links["a>b"].figures.entries == 120
            assert made.links["a>b"].status()["backlog_entries"] == 0

    with blocks_asked(monkeypatch) as asked:
        asyncio.run(main())


@contextlib.contextmanager
def blocks_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The first entries of the blocks that are fetched, in that order."""
    asked: list[int] = []
    fetch = DataPlane.block_list

    def counted(self: DataPlane, topics: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> Any:
        asked.extend(first for _, blocks in topics for _, first in blocks)
        return fetch(self, topics)

    with monkeypatch.context() as patch:
        patch.setattr(DataPlane, "block_list", counted)
        yield asked


def test_a_lane_goes_on_after_its_task_until_the_next_one_relieves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two micro-batches of Spark nothing stands still, nothing is fetched twice, and the destination is not
    asked where it is."""

    async def main() -> None:
        async with clusters(tmp_path) as made:
            link = made.links["a>b"]
            await eventually(lambda: link.state != "connecting")
            await made.publish("a", 0, 6)
            plan = await link.planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            first, published = plan["lanes"][0], 6
            asks = counted_asks(link, monkeypatch)
            for shift in range(6):
                task = LaneTask(
                    work(made, str(shift)), PlanId(plan["session"], plan["plan"]), 0, first, 0.05, linger_seconds=60.0
                )
                result = await asyncio.to_thread(carry_lane, task)
                assert (result.unreported, result.error) == ([], None)
                await eventually(lambda published=published: link.figures.entries == published)
                await eventually(lambda: lanes_carried() == 1, "the one before has stopped")
                after = (plan["session"], plan["plan"])
                quiet = await link.planner.plan("driver", lanes=1, bytes_max=400, wait_ms=0, after=after)
                assert quiet["session"] == "", "there is nothing to carry"
                planning = asyncio.create_task(
                    link.planner.plan("driver", lanes=1, bytes_max=400, wait_ms=30_000, after=after)
                )
                await asyncio.sleep(0)
                for _ in range(5):  # its time is over, and there is no other
                    await made.publish("a", published, 6)
                    published += 6
                await eventually(lambda: copied(made))
                plan = await planning
                assert (plan["lanes"], plan["relieves"]) == ([None], plan["plan"] - 1)
                first = None
            assert asked == sorted(set(asked))
            assert made.entries("b", "a") == made.entries("a", "a")
            await eventually(lambda: link.figures.entries == published)
            assert asks == []
            link.planner.release("driver")
            await eventually(lambda: not lanes_carried())

    with blocks_asked(monkeypatch) as asked:
        asyncio.run(main())


def lanes_carried() -> int:
    """Return the lanes that this process carries."""
    return sum(thread.name.startswith("lane ") for thread in threading.enumerate())


def counted_asks(link: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that fills with the topics for which the link asks how much the destination has."""
    asks: list[str] = []
    topics = link.planner._transfer.topics
    ask = topics.ask

    def noted(names: Sequence[str], *, halted_too: bool = False) -> None:
        asks.extend(names)
        ask(names, halted_too=halted_too)

    monkeypatch.setattr(topics, "ask", noted)
    return asks


def test_lanes_in_shifts_carry_everything_once_and_in_order_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 2 and 3. Some shifts end before those before them have; some are cut short by a lost process."""
    monkeypatch.setattr(lane, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(plans, "HAND_OVER_SECONDS", 0.3)

    async def main() -> None:
        async with clusters(tmp_path) as made:
            link, names = made.links["a>b"], [f"topic-{number}" for number in range(8)]
            await eventually(lambda: link.state != "connecting")

            async def publish() -> None:
                number = 0
                while number < 60 or shifts <= 15:  # a fast machine carries sixty in fewer
                    for name in names:
                        await made.publish("a", number, 6, name)
                    number += 6
                    await asyncio.sleep(0.01 if number < 60 else 0.1)

            shifts = 0
            publishing = asyncio.create_task(publish())
            after: tuple[str, int] | None = None
            while not publishing.done() or not all(copied(made, name) for name in names):
                plan = await link.planner.plan("driver", lanes=3, bytes_max=400, wait_ms=500, after=after)
                if not plan["session"]:
                    continue
                after = (plan["session"], plan["plan"])
                # Longer and longer, or on a busy machine no task ever has its turn before the next shift comes.
                seconds = 0.05 + shifts / 500
                tasks = [
                    LaneTask(
                        work(made, f"{shifts} {number}"), PlanId(*after), number, first, seconds, linger_seconds=60.0
                    )
                    for number, first in enumerate(plan["lanes"])
                    if shifts % 4 or number  # a process that is lost: Spark tries its task again, too late
                ]
                await asyncio.gather(*(asyncio.to_thread(carry_lane, task) for task in tasks))
                shifts += 1
            await publishing
            link.planner.release("driver")
            await eventually(lambda: not lanes_carried())
            for name in names:
                assert made.entries("b", "a", name) == made.entries("a", "a", name)

    asyncio.run(main())


def test_lanes_that_nothing_comes_for_leave_and_the_next_plan_has_first_segments(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            planner = made.links["a>b"].planner
            await made.publish("a", 0, 6)
            await eventually(lambda: made.links["a>b"].state != "connecting")
            broken = await planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            planner.failed(broken["session"], broken["plan"], "the executor was lost")
            plan = await planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            which = PlanId(plan["session"], plan["plan"])
            task = LaneTask(work(made), which, 0, plan["lanes"][0], 0.05, linger_seconds=0.3)
            await asyncio.to_thread(carry_lane, task)
            await eventually(lambda: not lanes_carried())
            await made.publish("a", 6, 6)
            after = await planner.plan(
                "driver", lanes=1, bytes_max=400, wait_ms=5_000, after=(which.session, which.plan)
            )
            assert after["relieves"] is None
            assert [topic["topic"] for topic in after["lanes"][0]["topics"]]
            assert made.links["a>b"].detail == "", "the batch before did not fail"

    asyncio.run(main())


def test_a_lane_that_fails_after_its_task_says_so_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            link = made.links["a>b"]
            await made.publish("a", 0, 6)
            await eventually(lambda: link.state != "connecting")
            plan = await link.planner.plan("driver", lanes=1, bytes_max=400, wait_ms=5_000)
            which = PlanId(plan["session"], plan["plan"])
            task = LaneTask(work(made), which, 0, plan["lanes"][0], 0.05, linger_seconds=60.0)
            await asyncio.to_thread(carry_lane, task)
            link.planner.failed(which.session, which.plan, "gone")  # as another lane may say
            await made.publish("a", 6, 6)
            await eventually(lambda: not lanes_carried())
            after = await link.planner.plan(
                "driver", lanes=1, bytes_max=4000, wait_ms=5_000, after=(which.session, which.plan)
            )
            assert after["relieves"] is None
            assert after["lanes"][0]["topics"]

    asyncio.run(main())


def test_a_lane_without_its_destination_says_so_and_one_without_its_plan_is_quiet(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            await made.publish("a", 0, 6)
            await eventually(lambda: made.links["a>b"].state != "connecting")
            plan = await made.links["a>b"].planner.plan("driver", lanes=1, bytes_max=10**6, wait_ms=5_000)
            unknown = LaneTask(work(made), PlanId(plan["session"], plan["plan"] + 1), 0, None, 5.0)
            result = await asyncio.to_thread(carry_lane, unknown)
            assert (result.unreported, result.error) == ([], None)
            nowhere = replace(work(made), address="127.0.0.1:1")
            task = LaneTask(nowhere, PlanId(plan["session"], plan["plan"]), 0, plan["lanes"][0], 5.0)
            result = await asyncio.to_thread(carry_lane, task)
            assert result.error is not None
            assert "127.0.0.1:1" in result.error

    asyncio.run(main())


@pytest.mark.parametrize(
    "body", ["", "[]", '{"topics": 1}', '{"topics": [["orders", [[1]]]]}', '{"topics": [["orders", [[1, -1]]]]}']
)
def test_a_list_of_blocks_that_cannot_be_read_is_refused_by_name(tmp_path: Path, body: str) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made, aiohttp.ClientSession() as session:
            await made.publish("a", 0, 3)
            url = f"{made.servers['a'].url}/blocks"
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                answer = await response.json()
            assert (response.status, answer["error"]) == (400, "BadRequest")
            assert "topics" in answer["message"]

    asyncio.run(main())
