"""Verify by digests, on clusters that run: what is in step is not read, what is not in step is, and found."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from sync_support import clusters
from verify_support import LINKS, change_block, copied, faults, flipped, served
from wire_worker import batch_entry, single_entry

from replicator.api import topic_digests
from replicator.api.data_plane import ENGINE, list_topics
from replicator.api.verifying import cuts
from replicator.engine.engine import Engine
from replicator.engine.topic_digest import DIGEST_FORM
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.peering.comparing import DIGESTS_ROUTE, STATES_ROUTE, TOPICS_MAX
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify import comparison_runs
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.pipeline.verify.verify import VerifyReport, VerifySettings, verify
from replicator.running import pacing
from snapshots.position import BEFORE_ALL

BLOCKS = "/replication/v1/raw-blocks"
TOPICS = [f"persistent://public/default/many-{number:02d}" for number in range(12)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topics whose blocks verify asks for."""
    found: list[str] = []
    raw_blocks = VerifyPlane.raw_blocks

    def noting(self: VerifyPlane, topic: str, *positions: Any) -> Any:
        found.append(topic)
        return raw_blocks(self, topic, *positions)

    monkeypatch.setattr(VerifyPlane, "raw_blocks", noting)
    return found


async def look(urls: Any, steps: list[str] | None = None, **settings: Any) -> VerifyReport:
    def progress(step: str, done: int, total: int) -> None:
        if steps is not None:
            steps.append(step)
        assert 0 <= done <= total

    chosen = VerifySettings(settle_seconds=0, **settings)
    return await asyncio.to_thread(verify, None, urls, LINKS, settings=chosen, progress=progress)


async def acknowledge(engine: Engine, name: str, acks: int) -> None:
    """Acknowledge, in a topic's subscription ``s``, the first entry, and the first message of ``acks`` others.

    These are the entries from the third one on, which must be batches.
    """
    topic = await engine.topic(name)
    options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=True)
    consumer = await topic.subscribe("s", options, lambda _: None)
    entries = topic.reading.entries(BEFORE_ALL, None, 1_000, 1 << 20)
    places = [each.position for each in entries if not each.marker]
    await consumer.acknowledge([Ack(places[0]), *(Ack(place, (0,)) for place in places[2 : 2 + acks])])
    consumer.close()


async def in_step(urls: Any) -> VerifyReport:
    """Return the report, once acknowledgements have come across."""
    for _ in range(200):
        report = await look(urls)
        if report.clean and not report.behind:
            return report
        await asyncio.sleep(0.1)
    raise AssertionError(report.as_json())


def test_topics_that_are_in_step_are_not_read_and_one_that_is_damaged_is(tmp_path: Path, read: list[str]) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            for number, name in enumerate(TOPICS):
                origin = us if number % 2 else eu
                topic = await origin.engine.topic(name)
                await topic.publish([batch_entry([b"%d" % n, b"+1"]) for n in range(6)])
                await topic.publish([single_entry(b"last")])
                await copied(topic, (eu if number % 2 else us).engine, 13)
            for name in TOPICS[:4]:
                await acknowledge(us.engine, name, 2)
            await in_step(urls)
            read.clear()
            steps: list[str] = []
            report = await look(urls, steps)
            assert report.clean
            assert read == []
            assert {"states of us-east", "digests of us-east", "digests of eu-west"} <= set(steps)
            assert report.messages == 13 * len(TOPICS)
            assert report.subscriptions == 4
            assert set(report.topics) == set(TOPICS)
            whole = await look(urls, digests=False)
            assert set(read) == set(TOPICS)
            ignored = ("seconds", "remarks")
            told, known = ({k: v for k, v in each.as_json().items() if k not in ignored} for each in (report, whole))
            assert told == known

            read.clear()
            damaged = eu.engine.find(TOPICS[5])
            assert damaged is not None
            change_block(damaged, 0, flipped(-3))
            report = await look(urls)
            assert faults(report) == {"corrupted": 12}
            assert set(read) == {TOPICS[5]}

    asyncio.run(main())


class Together:
    """Requests that are answered only when ``parties`` of them are under way at once: by route, the first ones."""

    def __init__(self, parties: int, routes: Collection[str]) -> None:
        self._parties = parties
        self.asked = dict.fromkeys(routes, 0)
        self._complete = {route: asyncio.Event() for route in routes}

    async def before(self, request: web.Request) -> None:
        if request.path not in self.asked:
            return
        self.asked[request.path] += 1
        if self.asked[request.path] >= self._parties:
            self._complete[request.path].set()
        async with asyncio.timeout(20):  # a verify that asks one after the other fails
            await self._complete[request.path].wait()


def test_clusters_are_asked_about_all_topics_at_once_and_logs_are_read_by_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_runs, "READ_TOGETHER", 1)

    async def main() -> None:
        told = Together(2, (STATES_ROUTE, DIGESTS_ROUTE))
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            for name in TOPICS:
                topic = await us.engine.topic(name)
                await topic.publish([single_entry(b"1")])
                await copied(topic, eu.engine, 1)
            async with served(us, eu, before=told.before) as urls:
                assert (await look(urls)).clean
            assert told.asked[DIGESTS_ROUTE] == 2, "each cluster once, about all topics"
            assert told.asked[STATES_ROUTE] == 4, "each cluster twice, about all topics"
            read = Together(comparison_runs.READERS, (BLOCKS,))
            async with served(us, eu, before=read.before) as urls:
                assert (await look(urls, digests=False)).clean
            assert read.asked[BLOCKS] >= 2 * len(TOPICS)

    asyncio.run(main())


def test_what_is_published_and_not_copied_is_told_by_digests_too(tmp_path: Path, read: list[str]) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            topic = await us.engine.topic(TOPICS[0])
            await topic.publish([single_entry(b"1")])
            there = await copied(topic, eu.engine, 1)
            await in_step(urls)
            read.clear()
            change_block(there, 0, lambda _: None)
            assert faults(await look(urls)) == {"missing": 1}
            assert set(read) == {TOPICS[0]}

    asyncio.run(main())


def test_answers_in_parts_and_topics_too_large_for_a_digest_change_nothing(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu), served(us, eu) as urls:
            for name in TOPICS[:3]:
                topic = await us.engine.topic(name)
                await topic.publish([single_entry(bytes(1_000 if name == TOPICS[2] else 10))])
                await copied(topic, eu.engine, 1)
            await in_step(urls)
            read.clear()
            monkeypatch.setattr(topic_digests, "ANSWER_SECONDS", 0.0)
            monkeypatch.setattr(topic_digests, "TURN_SECONDS", 0.0)
            with VerifyPlane(urls["us-east"]) as worker:
                answer = await asyncio.to_thread(worker.digests, dict.fromkeys(TOPICS[:3], ()))
                assert answer is not None
                assert (set(answer.topics), set(answer.left)) == ({TOPICS[0]}, set(TOPICS[1:3]))
                states = await asyncio.to_thread(worker.states, TOPICS[:3], mappings=False)
                assert states is not None
                assert (set(states.subscriptions), set(states.left)) == ({TOPICS[0]}, set(TOPICS[1:3]))
            monkeypatch.setattr(topic_digests, "DIGEST_BYTES_MAX", 900)
            report = await look(urls)
            assert report.clean
            assert report.messages == 3
            assert set(read) == {TOPICS[2]}

    asyncio.run(main())


def test_a_worker_says_what_it_cannot_answer(tmp_path: Path) -> None:
    def post(url: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["message"]

    async def main() -> None:
        async with clusters(tmp_path, "us-east") as (us,), served(us) as urls:
            await us.engine.topic(TOPICS[0])
            url = urls["us-east"]

            async def asked(route: str, body: Any) -> tuple[int, Any]:
                return await asyncio.to_thread(post, url + route, body)

            many = [f"t-{number}" for number in range(TOPICS_MAX + 1)]
            assert await asked(STATES_ROUTE, {"topics": many}) == (
                400,
                f"{TOPICS_MAX + 1} topics were asked for at once, the limit is {TOPICS_MAX}",
            )
            positions = [["a", ["1:1"] * 10_001]]
            status, said = await asked(DIGESTS_ROUTE, {"form": DIGEST_FORM, "topics": positions})
            assert (status, said) == (400, "10001 positions were asked for at once, the limit is 10000")
            for body in ({}, [], {"topics": 1}, {"form": 1, "topics": [["a", ["nowhere"]]]}):
                assert (await asked(DIGESTS_ROUTE, body))[0] == 400
            status, answer = await asked(DIGESTS_ROUTE, {"form": DIGEST_FORM + 1, "topics": [[TOPICS[0], []]]})
            assert (status, answer["form"], answer["topics"], answer["left"]) == (200, DIGEST_FORM, {}, [])
            status, answer = await asked(
                DIGESTS_ROUTE, {"form": DIGEST_FORM, "topics": [["gone", []], [TOPICS[0], []]]}
            )
            assert set(answer["topics"]) == {TOPICS[0]}
            with VerifyPlane(url) as worker, pytest.raises(UnexpectedAnswer, match="the limit is"):
                await asyncio.to_thread(worker.states, many, mappings=True)

    asyncio.run(main())


def test_others_have_their_turn_while_all_topics_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(pacing.Pace, "slice_seconds", 0.0)
        async with clusters(tmp_path, "us-east") as (us,):
            for name in TOPICS:
                await us.engine.topic(name)
            app = web.Application()
            app[ENGINE] = us.engine
            for handler in (list_topics, cuts):
                asked = asyncio.ensure_future(handler(make_mocked_request("GET", "/", app=app)))
                turns = 0
                while not asked.done():
                    await asyncio.sleep(0)
                    turns += 1
                assert turns >= len(TOPICS)
                assert len(json.loads(str(asked.result().text))["topics"]) == len(TOPICS)

    asyncio.run(main())
