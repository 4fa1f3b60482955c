"""``replicator status`` of many topics: workers make a summary; topics are listed where somebody asks for them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from engine_support import eventually
from rich.console import Console
from sync_support import Cluster, clusters
from typer.testing import CliRunner
from verify_support import Status, copied
from wire_worker import single_entry

from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.cli.main import app
from replicator.links import backlog_sum
from replicator.links import status as link_status
from replicator.operating.status import LISTED_TOPICS_MAX, fetch_all, fetch_summaries, look, summary_of
from replicator.peering.topic_summary import SUMMARY_ROUTE
from replicator.topology import Topology, load_topology
from snapshots.position import BEFORE_ALL

MANY = LISTED_TOPICS_MAX + 5


class Reports(Status):
    """Stand-in for a worker's status, with the fields that the tables show."""

    def __init__(self, node: Cluster) -> None:
        super().__init__(node)
        self._node = node

    def status(self) -> dict[str, Any]:
        return {
            "cluster": self._node.engine.cluster,
            "store": {"failed": None, "bytes": 5_000_000},
            "database": {"state": "up", "detail": ""},
            "links": [link.status() for link in self._node.links],
        }


@asynccontextmanager
async def running(path: Path, *, old: bool = False) -> AsyncIterator[tuple[Path, Topology, Cluster, Cluster]]:
    """Two clusters, their topology's file, and the topology. ``old`` workers have no summary, and know no patterns."""
    async with clusters(path, "us-east", "eu-west") as (us, eu):
        runners, lines = [], []
        for node in (us, eu):
            application = make_app(node.engine, Reports(node), LinkedSources())
            if old:
                application.middlewares.append(_old)
            runner = web.AppRunner(application, shutdown_timeout=0.2)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
            address = f"127.0.0.1:{runner.addresses[0][1]}"
            lines.append(f"  {node.engine.cluster}: {{address: '{address}', data: ./{node.engine.cluster}}}\n")
        file = path / "topology.yaml"
        file.write_text("clusters:\n" + "".join(lines) + "links: [{between: [us-east, eu-west]}]\n")
        try:
            yield file, load_topology(file), us, eu
        finally:
            for runner in runners:
                await runner.cleanup()


@web.middleware
async def _old(request: web.Request, handler: Any) -> Any:
    if request.path == SUMMARY_ROUTE:
        raise web.HTTPNotFound
    return await handler(request.clone(rel_url=request.rel_url.with_query({})))


async def fill(us: Cluster, eu: Cluster) -> None:
    """Topic ``n`` has n messages, and a subscription that consumed none of them."""
    for number in range(MANY):
        topic = await us.engine.topic(f"persistent://shop/eu/orders-{number:02d}")
        for _ in range(number):
            await topic.publish([single_entry(b"1")])
        await topic.subscriptions.create("billing", BEFORE_ALL)
        if number:
            await copied(topic, eu.engine, number)


def text_of(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("old", [False, True])
def test_a_summary_has_sums_and_the_topics_that_lag_most_and_old_workers_give_it_too(tmp_path: Path, old: bool) -> None:
    async def main() -> None:
        async with running(tmp_path, old=old) as (_, topology, us, eu):
            await fill(us, eu)
            answers, summaries = await fetch_summaries(topology, 3)
            here = summaries["us-east"]
            assert (here.topics, here.messages, here.subscriptions) == (MANY, sum(range(MANY)), MANY)
            assert summaries["eu-west"].topics == MANY - 1
            assert [each.backlog_messages for each in here.backlogs] == [MANY - 1, MANY - 2, MANY - 3]
            assert here.backlogs[0].subscription == "billing"
            whole = await fetch_all(topology)
            assert summary_of(whole["us-east"], 3) == replace(here, behind=[])
            shown = text_of((await look(topology, top=3))[1])
            assert shown.index("Workers") < shown.index("Links") < shown.index("Nothing is wrong.")
            assert shown.index("Nothing is wrong.") < shown.index("Largest backlogs: 3 at most")
            assert f"shop/eu/orders-{MANY - 1}" in shown
            assert "shop/eu/orders-10" not in shown
            assert "shop/eu/orders-10" in text_of((await look(topology, every=True))[1])
            some = text_of((await look(topology, ["shop/eu/orders-1[0-4]"]))[1])
            assert ("shop/eu/orders-10" in some, "shop/eu/orders-15" in some) == (True, False)
            assert "topics" in answers["us-east"] or not old

    asyncio.run(main())


def test_topics_that_a_link_is_behind_with_are_told_with_their_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_, topology, us, eu):
            for name, messages in (("a", 1), ("b", 3)):
                topic = await us.engine.topic(f"persistent://shop/eu/{name}")
                await topic.publish([single_entry(b"0")])
                await copied(topic, eu.engine, 1)
                (link,) = us.links
                await link.pause()
                await topic.publish([single_entry(b"1")] * messages)
                await link.resume() if name == "a" else None
                if name == "a":
                    await copied(topic, eu.engine, 2)
            _, summaries = await fetch_summaries(topology)
            assert [(each.topic, each.backlog_entries) for each in summaries["us-east"].behind] == [
                ("persistent://shop/eu/b", 3)
            ]
            assert summaries["us-east"].behind[0].lag_ms >= 0
            shown = text_of((await look(topology))[1])
            assert "us-east: link to eu-west is paused" in shown
            assert "ready, but see below" in shown

    asyncio.run(main())


def test_json_has_all_topics_and_the_table_only_those_that_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (file, _, us, eu):
            await fill(us, eu)

            async def run(*given: str) -> str:
                done = await asyncio.to_thread(CliRunner().invoke, app, ["status", "-f", str(file), *given])
                assert done.exit_code == 0, done.output
                return done.stdout

            whole = json.loads(await run("--output", "json", "--top", "1"))
            assert len(whole["us-east"]["topics"]) == MANY
            some = json.loads(await run("--output", "json", "--topic", "shop/eu/orders-0.*"))
            assert len(some["us-east"]["topics"]) == 10
            assert (await run()).count("billing") == 10
            assert (await run("--top", "2")).count("billing") == 2
            assert (await run("--all")).count("billing") == MANY
            assert (await run("--topic", "shop/eu/orders-03")).count("billing") == 1
            few = await run("--topic", "shop/eu/orders-0.*", "--top", "2")
            assert ("shop/eu/orders-09" in few, "shop/eu/orders-08" in few, few.count("billing")) == (True, True, 2)
            for wrong in (["--topic", "["], ["--all", "--top", "3"]):
                refused = await asyncio.to_thread(CliRunner().invoke, app, ["status", "-f", str(file), *wrong])
                assert refused.exit_code == 2

    asyncio.run(main())


def test_others_have_their_turn_while_a_link_is_asked_what_it_is_behind_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(link_status, "TURN_TOPICS", 1)
        async with clusters(tmp_path, "us-east", "eu-west") as (us, _):
            (link,) = us.links
            await link.pause()
            for number in range(10):
                topic = await us.engine.topic(f"late-{number}")
                await topic.publish([single_entry(b"x")])
            while len(await link.backlog_by_topic()) < 10:  # noqa: ASYNC110 - the link hears of topics by itself
                await asyncio.sleep(0.01)
            asked = asyncio.ensure_future(link.behind(5))
            turns = 0
            while not asked.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 20
            assert len(asked.result()) >= 5

    asyncio.run(main())


def test_the_backlog_of_a_link_with_many_late_topics_comes_together_in_turns_and_goes_to_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(backlog_sum, "COUNTED_AT_ONCE", 3)
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            (link,) = us.links
            await link.pause()
            topics = [await us.engine.topic(f"late-{number}") for number in range(20)]
            for topic in topics:
                await topic.publish([single_entry(b"x")] * 2)
            await eventually(lambda: len(link._topics.copier.topics) >= 20, "the link knows all topics")
            assert sum((await link.backlog_by_topic()).values()) == 40 == link.backlog_entries()
            await us.engine.deleting.delete("late-0", force=True)
            assert link.backlog_entries() == 38
            await link.resume()
            for topic in topics[1:]:
                await copied(topic, eu.engine, 2)
            await eventually(lambda: link.backlog_entries() == 0, "nothing is late")

    asyncio.run(main())
