"""A role that may replicate something tells lies about other clusters, and workers ask the clusters themselves.

Invariants (DESIGN §3): 11, a flood of claims costs few questions; 12 and 13, no claim ends a worker or deletes a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from asynchronous import asynchronous
from engine_support import TOPIC, DataPlaneServer, entries_of, eventually, message, opened, subscribed

from replicator.api.cluster_settings import settings_routes
from replicator.api.link_routes import add_links
from replicator.api.runs import AUDIT
from replicator.api.store_of import add_store_of, store_known
from replicator.engine.engine import Engine
from replicator.engine.lineage import StoreLine
from replicator.engine.topics.grants import Grants
from replicator.links import lineage_teller
from replicator.links.errors import NotResolved
from replicator.links.link import Link
from replicator.peering.claim_checker import ClaimChecker, ClaimNotChecked
from replicator.peering.cluster_settings import OWN_SETTINGS_ROUTE
from replicator.worker.asking_peers import announce_later, ask_all
from replicator.worker.settings_teller import SettingsPublisher
from replicator.worker.start_decision import older_store
from snapshots.position import BEFORE_ALL

LIE = "a store that nobody has"
FAR = 1 << 62


class Cluster:
    """A cluster whose worker serves what others ask; ``asked`` counts requests by path."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.server = DataPlaneServer(engine, {"us", "eu"} - {engine.cluster})
        self.server.also = self._add
        self.links_made: list[Link] = []
        self.asked: dict[str, int] = {}
        self.audited: list[tuple[str, str, str]] = []

    def _add(self, app: web.Application) -> None:
        @web.middleware
        async def counted(request: web.Request, handler: Any) -> web.StreamResponse:
            self.asked[request.path] = self.asked.get(request.path, 0) + 1
            response: web.StreamResponse = await handler(request)
            return response

        def audit(actor: str, action: str, subject: str, _: Mapping[str, Any] | None = None) -> None:
            self.audited.append((actor, action, subject))

        app.middlewares.append(counted)
        app.add_routes(settings_routes())
        add_store_of(app, partial(store_known, self.engine), self.engine)
        add_links(app, self)
        app[AUDIT] = audit

    def links(self) -> list[Link]:
        return self.links_made

    async def post(self, path: str, body: Any, **params: str) -> int:
        """Send a claim as a hostile role does; return the status."""
        url = f"{self.server.url}/{path}"
        async with ClientSession() as session, session.post(url, params=params, json=body) as response:
            return response.status


@asynccontextmanager
async def two(path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """The clusters us and eu, which ask each other at their addresses."""
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        found = []
        for name in ("us", "eu"):
            cluster = Cluster(await stack.enter_async_context(opened(path / name, name)))
            cluster.server.asking = ClaimChecker(name, pause_seconds=0.01, failed_pause_seconds=0.02)
            await cluster.server.start()
            stack.push_async_callback(cluster.server.stop)
            found.append(cluster)
        us, eu = found
        us.server.asking.change({"eu": eu.server.address})
        eu.server.asking.change({"us": us.server.address})
        yield us, eu


async def grant(engine: Engine, name: str, role: str, *actions: str) -> None:
    await engine.catalog.grants.change(name, lambda grants: grants.with_role(role, actions), lambda: None)


def head(store: str, version: int = FAR, **more: Any) -> dict[str, Any]:
    return {"head": {"cluster": "us", "store": store, "version": version, "digest": "0" * 32, **more}}


# Settings.


@asynchronous
async def test_made_up_settings_are_neither_kept_nor_do_they_drop_what_is_kept(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        await grant(us.engine, "shop", "clerk", "produce")
        teller = SettingsPublisher(us.engine)
        await teller.change({"eu": eu.server.address})
        await teller.start()
        await eventually(lambda: teller.status()["told"]["eu"]["kept"], "eu keeps what us says")
        true, before = us.engine.origin_stores.store, eu.engine.kept_settings.states("us")
        rows = [["grants", "shop", (Grants({"thief": frozenset({"admin"})}).encode() or b"").decode()]]
        lies = [
            {**head(true), "base": None, "rows": rows},
            {**head(LIE, earlier={true: FAR}), "base": None, "rows": rows},
            {**head(LIE), "base": before[0].head.digest, "rows": rows},
            *(head(f"{LIE} {number}") for number in range(10)),
        ]
        for lie in lies:
            await eu.post("settings", lie, **{"from": "us"})
            assert eu.engine.kept_settings.states("us") == before
        await grant(us.engine, "shop", "clerk")
        await teller.settle()
        await eventually(lambda: teller.status()["told"]["eu"]["kept"], "a true change still counts")
        assert eu.engine.kept_settings.states("us")[0].rows == us.engine.cluster_settings.all_rows()
        await teller.stop()


@asynchronous
async def test_nothing_is_kept_of_a_cluster_that_is_away_whoever_speaks_for_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        await us.server.stop()
        assert await eu.post("settings", head(LIE), **{"from": "us"}) == 503
        assert eu.engine.kept_settings.heads == {}


@asynchronous
async def test_another_cluster_at_the_address_is_not_believed(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu), opened(tmp_path / "ap", "ap") as engine:
        ap = Cluster(engine)
        await ap.server.start()
        await grant(engine, "shop", "clerk", "produce")
        eu.server.asking.change({"us": ap.server.address})
        assert await eu.post("settings", head(LIE), **{"from": "us"}) == 503
        await eu.engine.origin_stores.take("us", {"us": us.engine.origin_stores.line}, [], [])
        line = StoreLine(engine.origin_stores.store, (us.engine.origin_stores.store,))
        assert await eu.post("store-of", line.as_json(), cluster="us") == 503
        assert eu.engine.kept_settings.heads == {}
        await ap.server.stop()


@asynchronous
async def test_a_flood_of_hints_costs_few_questions_and_does_not_keep_a_true_one_waiting(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        await grant(us.engine, "shop", "clerk", "produce")
        eu.server.asking = ClaimChecker("eu", pause_seconds=0.2)
        eu.server.asking.change({"us": us.server.address})
        await eu.server.stop()
        await eu.server.start()
        flood = [asyncio.ensure_future(eu.post("settings", head(LIE), **{"from": "us"})) for _ in range(60)]
        teller = SettingsPublisher(us.engine)
        await teller.change({"eu": eu.server.address})
        await teller.start()
        await eventually(lambda: teller.status()["told"]["eu"]["kept"], "eu keeps what us says")
        assert set(await asyncio.gather(*flood)) == {409}
        assert us.asked[OWN_SETTINGS_ROUTE] <= 10
        await teller.stop()


# Stores.


async def ends(us: Cluster, eu: Cluster) -> bool:
    """Return whether the worker of us would end because of eu's report on its store."""
    answers, _ = await ask_all({"eu": eu.server.address}, "us", seconds=5, new=False, counted=False)
    return older_store("us", "DIR", us.engine.origin_stores.line, answers) is not None


@pytest.mark.parametrize("known", [True, False], ids=["known before", "not known before"])
@asynchronous
async def test_a_made_up_store_ends_no_worker(tmp_path: Path, known: bool) -> None:
    async with two(tmp_path) as (us, eu):
        true = us.engine.origin_stores.line
        if known:
            assert await eu.post("lineage", lineage(true), **{"from": "us"}) == 200
        lies = [
            StoreLine(LIE, (true.store,)),
            StoreLine(LIE, (), (true.store,)),
            StoreLine(LIE),
            StoreLine(true.store, (LIE,)),
        ]
        for lie in lies:
            await eu.post("store-of", lie.as_json(), cluster="us")
            await eu.post("lineage", lineage(lie), **{"from": "us"})
            await eu.post("lineage", lineage(lie, origin="eu"), **{"from": "us"})
            assert not await ends(us, eu), lie
        newest = eu.engine.origin_stores.newest_store("us")
        assert newest is None or newest.line == true
        assert newest is None or newest.earlier == ()


def lineage(line: StoreLine, origin: str = "us") -> dict[str, Any]:
    return {"stores": {origin: line.as_json()}, "copies": [], "deletions": []}


@asynchronous
async def test_a_store_of_a_worker_that_does_not_answer_is_doubted_and_the_rest_of_the_message_counts(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as (us, eu):
        await us.server.stop()
        deletion = {"topic": TOPIC, "origin": "us", "incarnation": 1, "position": "1:1", "at_ms": 1}
        body = {**lineage(us.engine.origin_stores.line), "deletions": [deletion]}
        url = f"{eu.server.url}/lineage"
        async with ClientSession() as session, session.post(url, params={"from": "us"}, json=body) as response:
            answer = await response.json()
        assert (answer["refused"], answer["doubted"]["us"]["code"]) == ({}, "ClaimNotChecked")
        assert eu.engine.origin_stores.newest_store("us") is None
        assert len(eu.engine.origin_stores.deletions) == 1


@asynchronous
async def test_a_restored_store_counts_once_it_answers_at_the_address_of_its_cluster(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        running = us.engine.origin_stores.line
        await eu.engine.origin_stores.take("us", {"us": running}, [], [])
        async with opened(tmp_path / "restored", "us") as engine:
            engine.origin_stores.line = line = StoreLine("restored", (running.store,))
            await announce_later(eu.server.address, "us", line)
            assert not await ends(us, eu), "the worker at the address runs on another store"
            restored = Cluster(engine)
            await restored.server.start()
            eu.server.asking.change({"us": restored.server.address})
            await announce_later(eu.server.address, "us", line)
            assert await ends(us, eu)
            await restored.server.stop()


@asynchronous
async def test_a_link_tells_its_store_again_until_its_worker_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_teller, "RETRY_SECONDS", 0.02)
    async with two(tmp_path) as (us, eu):
        await us.server.stop()
        link = Link(us.engine, "eu", eu.server.address)
        link.start()
        topic = await us.engine.topic(TOPIC)
        await topic.publish([message(b"1")])
        await eventually(lambda: eu.engine.find(TOPIC), "it is copied all the same")
        await us.server.start()
        await eventually(lambda: eu.engine.origin_stores.newest_store("us"), "its store is known")
        await link.stop()
        link.detach()


@asynchronous
async def test_a_store_of_a_third_cluster_counts_if_the_worker_that_passes_it_on_says_so(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        asking = eu.server.asking
        line = StoreLine("of ap", ("before",))
        with pytest.raises(Exception, match=r"of 'ap' is not believed: the worker of 'us' .*names another one"):
            await asking.store_line("us", "ap", line)
        await us.engine.origin_stores.take("ap", {"ap": line}, [], [])
        assert await asking.store_line("us", "ap", StoreLine("of ap", ("made up",))) == line


# Copies.


@asynchronous
async def test_made_up_marks_delete_no_copy(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        await copied(us, eu)
        topic = eu.engine.find(TOPIC)
        assert topic is not None
        await subscribed(topic, "local")
        mark = {"incarnation": topic.origins.high_waters()["us"].incarnation, "position": f"{1 << 40}:0"}
        for marks in ({}, {"us": mark}, {"us": mark, "eu": mark}):
            assert await eu.post("delete-copy", {"origins": marks}, topic=TOPIC, **{"from": "us"}) == 409
        await us.server.stop()
        assert await eu.post("delete-copy", {"origins": {}}, topic=TOPIC, **{"from": "us"}) == 503
        assert eu.engine.find(TOPIC) is topic
        assert list(topic.subscriptions) == ["local"]
        assert eu.audited == []


@asynchronous
async def test_a_copy_is_deleted_if_a_link_wants_to_copy_the_topic_anew_and_that_is_audited(tmp_path: Path) -> None:
    async with two(tmp_path) as (us, eu):
        await copied(us, eu)
        await us.engine.deleting.delete(TOPIC)
        topic = await us.engine.topic(TOPIC)
        await topic.publish([message(b"new")])
        link = Link(us.engine, "eu", eu.server.address)
        us.links_made.append(link)
        link.start()
        await eventually(lambda: link.status()["gaps"], "there is a gap")
        await us.server.stop()
        with pytest.raises(NotResolved, match="eu believes claims about us only if its worker"):
            await link.resolve(TOPIC, "copy-anew")
        await us.server.start()
        assert eu.audited == []
        await link.resolve(TOPIC, "copy-anew")
        assert eu.audited == [("link from us", "delete copy", TOPIC)]
        await eventually(lambda: contents(eu.engine) == contents(us.engine), "it is copied anew")
        url, params = f"{us.server.url}/copied-anew", {"topic": TOPIC, "to": "eu"}
        async with ClientSession() as session, session.get(url, params=params) as response:
            assert response.status == 409, "it wants that no more"
        await link.stop()
        link.detach()


@asynchronous
async def test_what_a_link_does_to_lives_of_a_topic_is_audited_and_what_is_refused_or_only_asked_is_not(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as (us, eu):
        await copied(us, eu)
        topic = eu.engine.find(TOPIC)
        assert topic is not None
        first = next(iter(topic.origins.high_waters().values())).incarnation
        about = {"from": "us", "topic": TOPIC}

        def marks(incarnation: int, position: str) -> dict[str, Any]:
            return {"origins": {"us": {"incarnation": incarnation, "position": position}}}

        earlier = marks(first - 1, f"{first - 1}:0")
        assert await eu.post("keep-both", earlier, **about) == 409
        assert await eu.post("earlier-lives", earlier, **about) == 200
        assert eu.audited == []
        assert await eu.post("earlier-lives", earlier, note="true", **about) == 200
        assert eu.audited == [("link from us", "leave out", TOPIC)]
        assert await eu.post("earlier-lives", earlier, note="true", **about) == 200
        assert len(eu.audited) == 1, "nothing is new"
        assert await eu.post("keep-both", marks(FAR, str(BEFORE_ALL)), **about) == 200
        assert eu.audited[1:] == [("link from us", "keep both", TOPIC)]


@pytest.mark.parametrize("what", ["an incarnation", "a ledger", "an entry", "no number"])
@asynchronous
async def test_invariant_12_numbers_that_no_store_can_write_are_refused_and_writing_goes_on(
    tmp_path: Path, what: str
) -> None:
    async with two(tmp_path) as (us, eu):
        await copied(us, eu)
        topic = eu.engine.find(TOPIC)
        assert topic is not None
        here = topic.origins.high_waters()["us"]
        incarnation, position = {
            "an incarnation": (2**64, "0:-1"),
            "a ledger": (2**62, f"{2**63}:0"),
            "an entry": (0, f"{here.position.ledger - 1}:{2**64 - 1}"),
            "no number": (float("inf"), "0:-1"),
        }[what]
        marks = {"origins": {"us": {"incarnation": incarnation, "position": position}}}
        about = {"from": "us", "topic": TOPIC}
        assert await eu.post("keep-both", marks, **about) == 400
        assert await eu.post("earlier-lives", marks, note="true", **about) == 400
        row = {"topic": TOPIC, "origin": "us", "incarnation": incarnation}
        deletion = {**row, "position": position, "at_ms": 1}
        lines = lineage(us.engine.origin_stores.line)
        assert await eu.post("lineage", {**lines, "deletions": [deletion]}, **{"from": "us"}) == 400
        assert eu.engine.origin_stores.deletions == {}
        await topic.publish([message(b"3")])
        assert eu.engine.writer.failed is None


def contents(engine: Engine) -> list[bytes]:
    topic = engine.find(TOPIC)
    return [] if topic is None else entries_of(topic, "us")


async def copied(us: Cluster, eu: Cluster) -> None:
    """Let eu have a copy of a topic of us, by a link that is stopped then."""
    topic = await us.engine.topic(TOPIC)
    await topic.publish([message(b"1"), message(b"2")])
    link = Link(us.engine, "eu", eu.server.address, route=None)
    link.start()
    await eventually(lambda: len(contents(eu.engine)) == 2, "it is copied")
    await link.stop()
    link.detach()


# Questions that share.


@asynchronous
async def test_whoever_asks_meanwhile_gets_the_answer_to_a_question_that_began_later() -> None:
    asking, began, go_on = ClaimChecker("eu", pause_seconds=0), list[int](), asyncio.Event()

    async def question() -> int:
        began.append(number := len(began))
        await go_on.wait()
        return number

    first = asyncio.ensure_future(asking.shared(("k",), question))
    await eventually(lambda: began == [0], "it is under way")
    others = [asyncio.ensure_future(asking.shared(("k",), question)) for _ in range(5)]
    others[0].cancel()
    go_on.set()
    assert await first == 0
    assert await asyncio.gather(*others[1:]) == [1] * 4
    assert began == [0, 1]


@asynchronous
async def test_a_failed_question_is_everybodys_who_shared_it_and_the_next_one_is_asked_after_a_pause() -> None:
    asking, times = ClaimChecker("eu", pause_seconds=0, failed_pause_seconds=0.1), list[float]()
    clock = asyncio.get_running_loop().time

    async def fails() -> int:
        times.append(clock())
        raise ClaimNotChecked("no")

    async def answers() -> int:
        times.append(clock())
        return 1

    failed = await asyncio.gather(*(asking.shared(("k",), fails) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in failed] == [ClaimNotChecked] * 3
    assert await asking.shared(("k",), answers) == 1
    assert len(times) == 2
    assert times[1] - times[0] >= 0.1
