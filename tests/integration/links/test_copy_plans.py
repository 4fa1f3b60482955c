"""The plans of a link over HTTP: who gets what, what is given again, and what becomes of carriers that die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from carrier_support import PlanClient, PlanGone, Refused
from engine_support import TOPIC, eventually
from link_support import Web, carrier_of, web

from replicator.api.json_in_slices import MARKS_MAX
from replicator.links import plans
from replicator.links.link_topics import BEING_ASKED
from replicator.links.planner import carrier_name
from replicator.pipeline.live.carrying import LinkWork, carry
from replicator.topology import SPARK, PipelineSettings, Topology
from replicator.topology import Link as LinkSpec
from replicator.worker.running_links import RunningLinks

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

A_TO_B = LinkSpec("a", "b", engine=SPARK)
EMBEDDED_LINK = LinkSpec("a", "b")
ASKED = {"carrier": "me", "lanes": 1, "bytes_max": 1000, "wait_ms": 5000}


@asynccontextmanager
async def planned(path: Path, spec: LinkSpec = A_TO_B) -> AsyncIterator[tuple[Web, PlanClient]]:
    """Yield the link without a carrier, and a client by which a test asks as one."""
    async with web(path, [spec]) as made, aiohttp.ClientSession() as session:
        if made.carriers:
            await made.carriers.pop(spec.key).stop()
            await eventually(lambda: made.links[spec.key].state != "connecting")
            made.links[spec.key].planner.release("stand-in")
        yield made, PlanClient(session, f"http://{made.servers['a'].address}", spec.key)


async def carried(made: Web, segment: dict[str, Any]) -> dict[str, Any]:
    base = f"http://{made.servers['a'].address}"
    return await asyncio.to_thread(
        carry, LinkWork(base, "a>b", "a", "b", made.servers["b"].address, stream="test"), segment
    )


def which(plan: dict[str, Any]) -> dict[str, Any]:
    return {"session": plan["session"], "plan": plan["plan"], "lane": 0, "bytes_max": 1000}


def test_carriers_that_die_again_and_again_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, _):
            entries: list[bytes] = []
            for number in range(6):
                carrier = carrier_of(made, A_TO_B, name=f"carrier {number}")
                carrier.start()
                for first in range(0, 60, 6):
                    entries += await made.publish("a", 60 * number + first, 6)
                await eventually(lambda carrier=carrier: carrier.segments > 0, "it carries")
                await carrier.stop()
            last = carrier_of(made, A_TO_B, name="the last")
            last.start()
            await eventually(lambda: made.entries("b", "a") == entries)
            await eventually(lambda: made.links["a>b"].backlog_entries() == 0)
            await last.stop()

    asyncio.run(main())


def test_a_lane_that_lost_its_segment_is_given_it_again_and_one_that_holds_it_gets_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            entries = await made.publish("a", 0, 60)
            plan = await client.post("plan", ASKED)
            (first,) = plan["lanes"]
            assert (await client.post("next", which(plan)))["segment"] == first
            second = (await client.post("next", {**which(plan), "holding": [first["segment"]]}))["segment"]
            assert second["topics"][0]["after"] == first["topics"][0]["upto"]
            assert await client.again(plan["session"], plan["plan"]) == {**plan, "state": "copying"}
            done = [await carried(made, first), await carried(made, second)]
            for _ in range(2):  # a report that is repeated counts once
                await client.post("next", {**which(plan), "done": done, "bytes_max": 0})
            assert made.links["a>b"].figures.entries == sum(each["entries"] for each in done)
            acknowledged = made.links["a>b"].acknowledged()[TOPIC]
            assert str(acknowledged) == second["topics"][0]["upto"]
            assert made.entries("b", "a") == entries[: made.links["a>b"].figures.entries]

    asyncio.run(main())


def test_a_new_plan_starts_where_the_destination_is_whatever_became_of_the_one_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            entries = await made.publish("a", 0, 60)
            plan = await client.post("plan", ASKED)
            (first,) = plan["lanes"]
            await carried(made, first)  # and it is not reported
            plan2 = await client.post("plan", ASKED)
            assert plan2["lanes"][0]["topics"][0]["after"] == first["topics"][0]["upto"]
            with pytest.raises(PlanGone):
                await client.post("next", which(plan))
            with pytest.raises(PlanGone):
                await client.again(plan["session"], plan["plan"])
            await client.post("failed", {**which(plan2), "error": "as the test says"})
            assert (made.links["a>b"].state, made.links["a>b"].detail) == (
                "failed",
                "the last batch failed: as the test says",
            )
            plan3 = await client.post("plan", {**ASKED, "bytes_max": 1 << 20})
            assert plan3["lanes"][0]["topics"][0]["after"] == first["topics"][0]["upto"]
            done = await carried(made, plan3["lanes"][0])
            await client.post("done", {**which(plan3), "done": [done]})
            assert made.entries("b", "a") == entries
            assert made.links["a>b"].backlog_entries() == 0
            assert (made.links["a>b"].state, made.links["a>b"].detail) == ("idle", "")

    asyncio.run(main())


def test_a_topic_of_which_the_destination_is_only_asked_has_not_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            await made.publish("a", 0, 10)
            await client.post("plan", ASKED)
            link = made.links["a>b"]
            link.planner.release("me")
            assert link._copier.topics[TOPIC].halted == BEING_ASKED
            assert (link.status()["halted"], link.status()["halted_count"]) == ({}, 0)

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["the topic is not named", "it is reached in part"])
def test_what_a_report_does_not_say_is_there_is_planned_again(tmp_path: Path, lost: str) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            await made.publish("a", 0, 30)
            plan = await client.post("plan", ASKED)
            (first,) = plan["lanes"]
            topic = {**first["topics"][0], "reached": first["topics"][0]["after"]}
            done = {"segment": first["segment"], "topics": [topic] if "part" in lost else []}
            again = (await client.post("next", {**which(plan), "done": [done], "wait_ms": 5000}))["segment"]
            assert again["topics"] == first["topics"]
            assert made.links["a>b"].backlog_entries() == 30

    asyncio.run(main())


def test_who_waits_gets_what_is_published_meanwhile_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            await eventually(lambda: made.links["a>b"].state == "waiting")
            assert "no driver" in made.links["a>b"].detail
            asking = asyncio.create_task(client.post("plan", {**ASKED, "wait_ms": 30_000}))
            await eventually(lambda: made.links["a>b"].state == "idle")
            await made.publish("a", 0, 3)
            async with asyncio.timeout(5):
                plan = await asking
            assert plan["lanes"][0]["topics"][0]["topic"] == TOPIC
            assert plan["state"] == "copying"
            assert (await client.post("plan", {**ASKED, "wait_ms": 0, "carrier": "newer"}))["plan"] > plan["plan"]

    asyncio.run(main())


def test_a_server_that_stops_lets_those_who_wait_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            asking = asyncio.create_task(client.post("plan", {**ASKED, "wait_ms": 30_000}))
            await eventually(lambda: made.links["a>b"].planner.carriers.holder == "me", "the request")
            started = time.monotonic()
            await made.servers["a"].stop()
            assert (await asking)["lanes"] == [None]
            assert time.monotonic() - started < 5

    asyncio.run(main())


def test_a_carrier_that_is_silent_loses_the_link_which_then_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plans.CARRIER_SILENCE_SECONDS, plans.LIVE, 0.2)

    async def main() -> None:
        async with planned(tmp_path) as (made, client):
            await made.publish("a", 0, 30)
            plan = await client.post("plan", ASKED)
            assert plan["lanes"][0]
            await eventually(lambda: made.links["a>b"].state == "waiting")
            with pytest.raises(PlanGone):
                await client.post("next", which(plan))

    asyncio.run(main())


def test_a_backfill_has_a_link_that_its_worker_carries_until_it_lets_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path, EMBEDDED_LINK) as (made, client):
            link = made.links["a>b"]
            await eventually(lambda: link.state == "idle")
            asked = {**ASKED, "kind": "backfill", "topics": ["public/default/wanted"]}
            empty = await client.post("plan", {**asked, "wait_ms": 0})
            assert (empty["lanes"], empty["state"]) == ([None], "idle")
            await eventually(lambda: link.state == "backfilling")
            with pytest.raises(Refused, match="LinkTaken: link a>b is being backfilled by me"):
                await client.post("plan", {**asked, "carrier": "another"})
            other = await made.publish("a", 0, 3, "other")
            wanted = await made.publish("a", 0, 3, "wanted")
            plan = await client.post("plan", asked)
            assert [each["topic"] for each in plan["lanes"][0]["topics"]] == ["persistent://public/default/wanted"]
            await client.post("done", {**which(plan), "done": [await carried(made, plan["lanes"][0])]})
            assert made.entries("b", "a", "wanted") == wanted
            assert made.entries("b", "a", "other") == []
            await client.post("release", {"carrier": "another"})
            assert link.state == "backfilling"
            await client.post("release", {"carrier": "me"})
            await eventually(lambda: made.entries("b", "a", "other") == other)
            await eventually(lambda: link.state == "idle")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("plan", []),
        ("plan", {**ASKED, "carrier": ""}),
        ("plan", {**ASKED, "kind": "other"}),
        ("plan", {**ASKED, "lanes": 1000}),
        ("plan", {**ASKED, "lanes": "1"}),
        ("plan", {**ASKED, "bytes_max": 0}),
        ("plan", {**ASKED, "topics": ["("]}),
        ("plan", {**ASKED, "topics": [1]}),
        ("next", {"session": "s", "plan": True}),
        ("next", {"session": "s", "plan": 1, "lane": 0, "bytes_max": 1, "done": {}}),
        ("next", {"session": "s", "plan": 1, "lane": 0, "bytes_max": 1, "done": [{"segment": 1}]}),
        ("failed", {"session": "s", "plan": 1}),
        ("release", {"carrier": 1}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(tmp_path: Path, path: str, body: Any) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (_, client):
            with pytest.raises(Refused, match=r"BadRequest|BadReport"):
                await client.post(path, body)

    asyncio.run(main())


def test_a_body_that_would_stop_the_event_loop_is_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with planned(tmp_path) as (_, client):
            with pytest.raises(
                Refused, match=r"the body is not JSON that can be read: its JSON has more than about [0-9,]+ values"
            ):
                await client.post("release", {"carrier": [[]] * (MARKS_MAX // 2 + 1)})

    asyncio.run(main())


def test_a_driver_that_is_no_more_has_no_links_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(tmp_path, [A_TO_B], started=False) as made:
            running = RunningLinks(made.engines["a"])
            await running.change(Topology(made.clusters(tmp_path), (A_TO_B,), PipelineSettings(engine=SPARK)))
            running.waits_for("for Spark: its driver is starting")
            (link,) = running
            await eventually(lambda: link.state == "waiting")
            carrier = carrier_name(4711) + "1a2b"
            await link.planner.plan(carrier, lanes=1, bytes_max=1000)
            running.driver_ended(471)
            assert (link.planner.carriers.holder, link.state) == (carrier, "idle")
            running.driver_ended(4711)
            assert (link.state, link.detail) == ("waiting", "for Spark: its driver is starting")
            await running.stop()

    asyncio.run(main())
