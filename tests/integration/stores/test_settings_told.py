"""Workers tell each other their policies and permissions, and a new store takes its own back.

Invariants (DESIGN §3): 8, a worker that is away delays nobody; 13, what is not taken back is named.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from asynchronous import asynchronous
from engine_support import TOPIC, DataPlaneServer, eventually, opened
from settings_support import (
    addresses_of,
    ask_settings,
    grant,
    grants,
    has_all,
    serving_settings,
    settings_digest,
    telling,
)

from replicator.api.guarding import GUARD, ROLE
from replicator.api.linked_sources import LinkedSources
from replicator.api.runs import add_runs
from replicator.engine.cluster_settings import kept, putting_back, state
from replicator.engine.cluster_settings.own import TAKEN
from replicator.engine.cluster_settings.putting_back import note_without, put_back
from replicator.engine.cluster_settings.state import (
    Changes,
    KeptState,
    SettingsHead,
    SettingsMessage,
    Verdict,
    digest_of,
    taken_back,
)
from replicator.engine.engine import Engine
from replicator.engine.policies import BacklogQuota, PolicyOverrides
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.links.link import Link
from replicator.links.memory import LinkMemory
from replicator.peering.cluster_settings import SETTINGS_ROUTE, SettingsKept
from replicator.security.guard import PermissionGuard
from replicator.security.permissions import Permissions
from replicator.worker import settings_teller
from replicator.worker.settings_teller import SettingsPublisher

PARTITIONED = "persistent://shop/orders/lines"
ADMIN = {("grants", "shop"): '{"roles":{"thief":["admin"]}}'}
LIMITED = PolicyOverrides({"max_producers": 3, "backlog_quota": BacklogQuota(bytes_max=1_000)})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_teller, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(settings_teller, "GATHER_SECONDS", 0.01)


async def set_everything(engine: Engine) -> None:
    """Set one of each kind of settings."""
    await engine.catalog.create_namespace("shop/orders", NamespacePolicies(auto_topic_creation=False))
    topic = await engine.making.create(TOPIC)
    await topic.policies.set(LIMITED)
    await engine.partitioned.create(PARTITIONED, 3)
    await grant(engine, "shop/orders", "clerk", "produce")
    await grant(engine, TOPIC, "reader", "consume")


def test_a_cluster_that_sets_nothing_tells_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us", "us") as us,
            opened(tmp_path / "eu", "eu") as eu,
            serving_settings(eu) as peer,
        ):
            await us.topic(TOPIC)
            async with telling(us, peer) as teller:
                await us.topic(TOPIC + "-2")
                await teller.settle()
                assert us.cluster_settings.head() is None
                assert has_all(teller)
            assert (peer.hints, peer.stored) == (0, [])

    asyncio.run(main())


def test_a_change_is_told_by_itself_and_all_rows_only_to_who_lacks_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            us = await stack.enter_async_context(opened(tmp_path / "us", "us"))
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            peer = await stack.enter_async_context(serving_settings(eu))
            await set_everything(us)
            teller = await stack.enter_async_context(telling(us, peer))
            await eventually(lambda: has_all(teller), "all is kept")
            rows = us.cluster_settings.all_rows()
            assert peer.stored == [len(rows)]
            await grant(us, TOPIC, "reader")
            await eventually(lambda: has_all(teller), "the change is kept")
            assert peer.stored == [len(rows), 1]
            asked = peer.hints
            teller.opened("eu")  # its link has opened: it is asked, and has all
            await eventually(lambda: peer.hints > asked and has_all(teller), "it was asked")
            assert peer.stored == [len(rows), 1]
            (kept,) = eu.kept_settings.states("us")
            assert kept.whole
            assert kept.rows == us.cluster_settings.all_rows()
            assert ("grants", TOPIC) not in kept.rows
            assert grants(eu) == {}, "what is kept of another cluster counts for nobody here"

    asyncio.run(main())


def test_a_worker_that_is_away_is_told_when_it_is_back_and_others_do_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            us = await stack.enter_async_context(opened(tmp_path / "us", "us"))
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            peer = await stack.enter_async_context(serving_settings(eu))
            away = await stack.enter_async_context(serving_settings(ap))
            await away.server.stop()
            await set_everything(us)
            teller = await stack.enter_async_context(telling(us, peer, away))
            await eventually(lambda: has_all(teller, "eu"), "the one that is there keeps all")
            await eventually(lambda: teller.status()["told"]["ap"]["reason"], "the other is named")
            await away.server.start()
            await eventually(lambda: has_all(teller, "ap"), "it keeps all once it is there")
            assert ap.kept_settings.states("us")[0].rows == us.cluster_settings.all_rows()

    asyncio.run(main())


def test_a_version_is_never_used_twice_over_restarts_and_a_change_before_one_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us", "us") as us:
            await set_everything(us)
            await us.cluster_settings.settle()
            first = us.cluster_settings.version
            assert first > 0
            await grant(us, "shop", "boss", "admin")  # and the worker ends before anybody settles it
        async with opened(tmp_path / "us", "us") as us:
            await us.cluster_settings.settle()
            second = us.cluster_settings.version
            assert second > first
        async with opened(tmp_path / "us", "us") as us:
            await us.cluster_settings.settle()
            assert us.cluster_settings.version == second

    asyncio.run(main())


def test_every_kind_of_change_is_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us", "us") as us:
            await set_everything(us)
            own = us.cluster_settings
            await own.settle()

            async def differs() -> None:
                before = own.version
                changes = await own.settle()
                assert changes
                assert own.version > before
                assert own.digest == settings_digest(us)

            await us.catalog.create_tenant("new")
            await differs()
            await us.catalog.create_namespace("new/space")
            await differs()
            await us.catalog.set_namespace("new/space", NamespacePolicies(auto_partitions=2))
            await differs()
            await grant(us, "new/space", "x", "produce")
            await differs()
            await us.catalog.delete_namespace("new/space")
            await differs()
            await us.catalog.delete_tenant("new")
            await differs()
            topic = us.find(TOPIC)
            assert topic is not None
            await topic.policies.set(None)
            await differs()
            await topic.policies.set(LIMITED)
            await differs()
            await us.deleting.delete(TOPIC)
            await differs()
            await us.partitioned.create(PARTITIONED + "-2", 2)
            await differs()
            await us.partitioned.delete(PARTITIONED + "-2")
            await differs()
            await us.catalog.delete_namespace("shop/orders", force=True)
            await differs()
            assert await own.settle() == {}

    asyncio.run(main())


def test_a_new_store_takes_back_its_own_and_nothing_of_another_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            peer = await stack.enter_async_context(serving_settings(eu))
            addresses = addresses_of(peer)
            await grant(eu, "theirs", "stranger", "admin")
            async with opened(tmp_path / "us", "us") as us, telling(us, peer) as teller:
                await set_everything(us)
                await teller.settle()
                await eventually(lambda: has_all(teller), "all is kept")
                before, rows = us.cluster_settings.version, us.cluster_settings.all_rows()
            async with opened(tmp_path / "us-new", "us") as us:
                answers = await ask_settings(addresses, "us")
                note = await put_back(us, taken_back("us", answers), ["shop/orders", "shop/unknown"])
                assert us.cluster_settings.all_rows() == rows
                assert note["missing"] == ["shop/unknown"]
                assert note["silent"] == []
            async with opened(tmp_path / "us-new", "us") as us, telling(us, peer) as teller:
                assert us.cluster_settings.all_rows() == rows, "it is durable"
                assert us.cluster_settings.version > before
                await eventually(lambda: has_all(teller), "the new store tells its own")
                assert [head.store for head in eu.kept_settings.of("us")] == [us.origin_stores.store]
                topic = us.find(TOPIC)
                assert topic is not None
                assert topic.policies.own == LIMITED
                assert us.partitioned.count(PARTITIONED) == 3
                assert not us.catalog.namespace("shop/orders").auto_topic_creation

    asyncio.run(main())


def test_the_worker_at_the_configured_address_alone_is_asked_and_believed(tmp_path: Path) -> None:
    """One impostor announces settings in the name of ``us``. A second one answers at the address of a peer."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            us = await stack.enter_async_context(opened(tmp_path / "us", "us"))
            impostor = await stack.enter_async_context(opened(tmp_path / "impostor", "us"))
            peer = await stack.enter_async_context(serving_settings(eu))
            lies = await stack.enter_async_context(serving_settings(impostor))
            teller = await stack.enter_async_context(telling(us, peer))
            await grant(us, "shop", "clerk", "produce")
            await teller.settle()
            await eventually(lambda: has_all(teller), "the real ones are kept")

            await grant(impostor, "shop", "thief", "admin")
            false = SettingsPublisher(impostor)
            stack.push_async_callback(false.stop)
            await false.change(addresses_of(peer))
            await false.start()
            await eventually(lambda: "runs on another store" in false.status()["told"]["eu"]["reason"], "a refusal")
            (kept,) = eu.kept_settings.states("us")
            assert kept.rows == us.cluster_settings.all_rows(), "the impostor was not asked"

            peer.asks("us", "127.0.0.1:9")  # the real worker does not run: nobody else is asked instead
            await grant(impostor, "shop", "thief", "consume")
            reason = false.status()["told"]["eu"]["reason"]
            await eventually(lambda: false.status()["told"]["eu"]["reason"] != reason, "another refusal")
            assert [each.rows for each in eu.kept_settings.states("us")] == [kept.rows]

            own = SettingsMessage(SettingsHead("us", "earlier", 9, digest_of(ADMIN)), None, ADMIN)
            assert await impostor.kept_settings.take(own) is Verdict.KEPT
            answers = await ask_settings({"eu": lies.server.address}, "us")
            assert answers == {"eu": None}, "it is not the cluster that the topology names"

    asyncio.run(main())


def test_a_store_that_began_empty_does_not_wipe_out_what_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            peer = await stack.enter_async_context(serving_settings(eu))
            addresses = addresses_of(peer)
            for name in ("us", "us-empty"):
                async with opened(tmp_path / name, "us") as us, telling(us, peer) as teller:
                    await grant(us, name, "role", "produce")
                    await teller.settle()
                    await eventually(partial(has_all, teller), "it is kept")
            assert len(eu.kept_settings.of("us")) == 2
            (states,) = (await ask_settings(addresses, "us")).values()
            taken = taken_back("us", {"eu": states})
            assert taken.state is not None
            assert ("grants", "us-empty") in taken.state.rows, "the newest counts"
            assert ("grants", "us") not in taken.state.rows, "and nothing is merged into it"

    asyncio.run(main())


def test_only_a_role_that_may_replicate_all_of_it_reads_settings(tmp_path: Path) -> None:
    roles = {"shop": {"worker": frozenset({"replicate"})}}
    guard = PermissionGuard(lambda: Permissions(lambda name: Grants(), roles), lambda: ())

    @web.middleware
    async def asked_by_worker(request: web.Request, handler: Any) -> web.StreamResponse:
        request[ROLE], request[GUARD] = "worker", guard
        response: web.StreamResponse = await handler(request)
        return response

    async def main() -> None:
        async with AsyncExitStack() as stack:
            us = await stack.enter_async_context(opened(tmp_path / "us", "us"))
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            peer = await stack.enter_async_context(serving_settings(eu))
            await grant(us, "shop", "clerk", "produce")
            teller = await stack.enter_async_context(telling(us, peer, middleware=asked_by_worker))
            await eventually(lambda: has_all(teller), "it may replicate all of it")
            await grant(us, "bank", "clerk", "produce")
            await eventually(lambda: "bank" in teller.status()["told"]["eu"]["reason"], "it may not ask for more")
            assert ("grants", "bank") not in eu.kept_settings.states("us")[0].rows
            assert (await ask_settings({"eu": peer.server.address}, "us"))["eu"] is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "body", "status"),
    [
        ("us", {"head": None}, 400),
        ("us", [], 400),
        ("us", {"head": {"cluster": "us", "store": "s", "version": 0, "digest": "0" * 32}}, 400),
        ("us", {"head": {"cluster": "us", "store": "s", "version": 1, "digest": "x" * 32}}, 400),
        ("us", {"head": {"cluster": "ap", "store": "s", "version": 1, "digest": "0" * 32}}, 409),
        ("eu", {"head": {"cluster": "eu", "store": "s", "version": 1, "digest": "0" * 32}}, 409),
        ("us", {"head": {"cluster": "us", "store": "s", "version": math.inf, "digest": "0" * 32}}, 400),
        ("us", {"head": {"cluster": "us", "store": "\ud800", "version": 1, "digest": "0" * 32}}, 400),
        ("us", {"head": {"cluster": "us", "store": "s", "version": 1, "digest": "0" * 32, "set_at": 2}}, 400),
        ("us", {"head": {"cluster": "us", "store": "s" * 70_000, "version": 1, "digest": "0" * 32}}, 413),
        ("ap", {"head": {"cluster": "ap", "store": "s", "version": 1, "digest": "0" * 32}}, 409),
        ("us", {"head": {"cluster": "us", "store": "s", "version": 1, "digest": "0" * 32}}, 503),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_and_changes_nothing(
    tmp_path: Path, source: str, body: Any, status: int
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "eu", "eu") as eu, serving_settings(eu) as peer, ClientSession() as session:
            peer.asks("us", "127.0.0.1:9")  # nobody is there
            url = f"http://{peer.server.address}{SETTINGS_ROUTE}"
            async with session.post(url, params={"from": source}, json=body) as response:
                assert response.status == status, await response.text()
            assert eu.kept_settings.heads == {}
            async with session.get(url) as response:
                assert response.status == 400

    asyncio.run(main())


def test_settings_are_told_while_the_link_is_paused_so_that_its_run_is_not_announced(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "us", "us") as us, opened(tmp_path / "eu", "eu") as eu, AsyncExitStack() as stack:
            peer = await stack.enter_async_context(serving_settings(eu))
            await peer.server.stop()
            routes = peer.server.also

            def add(app: web.Application) -> None:
                routes(app)
                add_runs(app, eu, LinkedSources.of("us"))

            peer.server.also, peer.server.takes_runs = add, False
            await peer.server.start()
            teller = await stack.enter_async_context(telling(us, peer))
            await grant(us, "shop", "clerk", "produce")
            await eventually(lambda: has_all(teller) and eu.kept_settings.of("us"), "it is kept")

    asyncio.run(main())


def test_settings_that_were_taken_back_count_as_old_over_a_restart_until_somebody_sets_something(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        rows = {("grants", "shop"): '{"roles": {"clerk": ["produce"]}}', ("namespaces", "shop/a"): "{}"}
        kept = KeptState(SettingsHead("us", "first", 7, digest_of(rows)), rows)
        async with opened(tmp_path / "us", "us") as us:
            await put_back(us, taken_back("us", {"eu": [kept]}))
        for number in range(2):
            async with opened(tmp_path / "us", "us") as us:
                await us.cluster_settings.settle()
                head = us.cluster_settings.head()
                assert head is not None
                assert (head.rank[0], head.set_in) == (7, "first")
                assert head.version > 7
                await us.catalog.create_tenant(f"made-{number}")
                await us.cluster_settings.settle()
                assert us.cluster_settings.set_at == 7
        async with opened(tmp_path / "us", "us") as us:
            await grant(us, "shop", "clerk")  # before anybody looked
            await us.cluster_settings.settle()
            head = us.cluster_settings.head()
            assert head is not None
            assert (head.rank[0], head.set_in) == (head.version, us.origin_stores.store)

    asyncio.run(main())


def test_a_paused_link_is_paused_again_after_a_lost_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "eu", "eu") as eu, serving_settings(eu) as peer:
            async with opened(tmp_path / "us", "us") as us, telling(us, peer) as teller:
                await LinkMemory(us, "us>eu").set_paused(True)
                await LinkMemory(us, "us>ap").set_paused(True)
                await LinkMemory(us, "us>ap").set_paused(False)
                await teller.settle()
                await eventually(lambda: has_all(teller), "it is kept")
            async with opened(tmp_path / "us-2", "us") as us, telling(us, peer) as teller:
                link = Link(us, "eu", "127.0.0.1:9")
                assert not link.paused
                note = await put_back(us, taken_back("us", await ask_settings(addresses_of(peer), "us")))
                assert note["paused"] == ["us>eu"]
                link.pause_put_back()
                assert link.paused
                await link.resume()
                link.detach()
                await teller.settle()
                await eventually(lambda: has_all(teller), "the end of the pause is kept, too")
            newest = max(eu.kept_settings.states("us"), key=lambda each: each.head.rank)
            assert newest.rows == {}

    asyncio.run(main())


def test_an_earlier_version_answers_that_it_keeps_nothing_that_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "eu", "eu") as eu:
            server = DataPlaneServer(eu)
            await server.start()
            assert (await ask_settings({"eu": server.address, "gone": "127.0.0.1:9"}, "us")) == {
                "eu": None,
                "gone": None,
            }
            await server.stop()

    asyncio.run(main())


@asynchronous
async def test_no_more_settings_of_a_cluster_are_kept_than_the_limit_also_by_single_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "ROWS_MAX", 3)

    def row(number: int) -> tuple[str, str]:
        return "tenants", f"tenant-{number}"

    async def change(engine: Engine, version: int, changes: Changes) -> None:
        (before,) = engine.kept_settings.states("us")
        rows = {key: text for key, text in {**before.rows, **changes}.items() if text is not None}
        head = SettingsHead("us", "store", version, digest_of(rows))
        assert await engine.kept_settings.take(SettingsMessage(head, before.head.digest, changes)) is Verdict.KEPT
        assert engine.kept_settings.states("us")[0].rows == rows

    rows = {row(number): "" for number in range(2)}
    async with opened(tmp_path, "eu") as eu:
        await eu.kept_settings.take(SettingsMessage(SettingsHead("us", "store", 1, digest_of(rows)), None, rows))
        await change(eu, 2, {row(2): ""})
        with pytest.raises(kept.SettingsRefused, match="4 settings"):
            await change(eu, 3, {row(3): ""})
    async with opened(tmp_path, "eu") as eu:
        with pytest.raises(kept.SettingsRefused, match="4 settings"):
            await change(eu, 3, {row(3): ""})
        await change(eu, 3, {row(1): None})
        await change(eu, 4, {row(3): ""})
        monkeypatch.setattr(kept, "ROWS_MAX", 1)
        await change(eu, 5, {row(3): None})
        assert eu.kept_settings.of("us")[0].version == 5, "what takes settings away is not refused"


@asynchronous
async def test_an_answer_with_too_many_settings_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "eu", "eu") as eu, serving_settings(eu) as peer:
        assert (await ask_settings(addresses_of(peer), "us"))["eu"] == []
        monkeypatch.setattr(settings_teller, "KEPT_BYTES_MAX", 10)
        assert (await ask_settings(addresses_of(peer), "us"))["eu"] is None


@asynchronous
async def test_settings_that_other_clusters_keep_are_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that serves clients may get some hundred thousand rows."""
    threads = dict[str, set[int]]()

    def noted(of: Any, name: str) -> None:
        real, seen = getattr(of, name), threads.setdefault(name, set())

        def note(*arguments: Any) -> Any:
            seen.add(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(of, name, note)

    rows = {("tenants", "shop"): "", ("grants", "shop"): '{"roles":{"clerk":["produce"]}}'}
    async with opened(tmp_path / "eu", "eu") as eu, opened(tmp_path / "us", "us") as us, serving_settings(eu) as peer:
        await us.remember(TAKEN, note_without(taken_back("us", {}), us, ["eu"]) | {"set_at": 0, "set_in": ""})
        await eu.kept_settings.take(SettingsMessage(SettingsHead("us", "store", 1, digest_of(rows)), None, rows))
        noted(SettingsKept, "of_json")
        noted(state, "digest_of")
        noted(putting_back, "_read")
        noted(putting_back, "_writes")
        async with telling(us, peer):
            await eventually(lambda: list(grants(us)) == ["shop"], "the late answer counts")
    assert threads.keys() == {"of_json", "digest_of", "_read", "_writes"}
    for name, seen in threads.items():
        assert seen, name
        assert threading.get_ident() not in seen, name
