"""A store takes back the settings that somebody set last, also from a cluster that answers late, and names the others.

Invariants (DESIGN §3): 12, nobody gets a permission back that was revoked; 13, settings that do not count are named,
and a confirmed change is not overwritten.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, eventually, message, opened
from settings_support import Peer, addresses_of, ask_settings, grant, grants, has_all, serving_settings, telling

from replicator.engine.cluster_settings.own import PAUSED_TEXT, TAKEN
from replicator.engine.cluster_settings.putting_back import put_back
from replicator.engine.cluster_settings.state import (
    KeptState,
    Rows,
    SettingsHead,
    SettingsMessage,
    Verdict,
    digest_of,
    taken_back,
)
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError, StoreFull
from replicator.engine.lineage import Deletion
from replicator.engine.policies import PolicyOverrides
from replicator.engine.topic import Topic
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.links.memory import LinkMemory
from replicator.peering.cluster_settings import SettingsKept
from replicator.worker import settings_teller
from replicator.worker.settings_teller import SettingsPublisher
from replicator.worker.taking_settings import take_settings
from snapshots.position import BEFORE_ALL, Position

PLAIN = "persistent://shop/orders/plain"
PARTED = "persistent://shop/orders/parted"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_teller, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(settings_teller, "GATHER_SECONDS", 0.01)


def test_a_silent_cluster_is_asked_later_and_its_newer_version_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            peer = await stack.enter_async_context(serving_settings(eu))
            away = await stack.enter_async_context(serving_settings(ap))
            addresses = addresses_of(peer, away)
            async with opened(tmp_path / "us", "us") as us:
                async with telling(us, peer, away) as teller:
                    await grant(us, "shop", "old", "produce")
                    await teller.settle()
                    await eventually(lambda: has_all(teller, "eu") and has_all(teller, "ap"), "both keep it")
                async with telling(us, away) as teller:
                    await grant(us, "shop", "old")
                    await grant(us, "shop", "new", "produce")
                    await teller.settle()
                    await eventually(lambda: has_all(teller, "ap"), "one keeps the newer version")
            await away.server.stop()
            async with opened(tmp_path / "us-new", "us") as us:
                note = await put_back(us, taken_back("us", await ask_settings(addresses, "us")))
                assert note["silent"] == ["ap"]
                assert list(grants(us)["shop"].roles) == ["old"]
                async with telling(us, peer, away) as teller:
                    status = teller.status()["taken_back"]
                    assert status["permissions"] == ["shop"], "they are shown while a cluster is silent"
                    await away.server.start()
                    await eventually(lambda: list(grants(us)["shop"].roles) == ["new"], "the newer version counts")
                    await eventually(lambda: not us.store.meta(TAKEN)["silent"], "nobody is silent any more")
                    await eventually(lambda: has_all(teller, "eu") and has_all(teller, "ap"), "all know it")
                assert [len(each.kept_settings.of("us")) for each in (eu, ap)] == [1, 1]

    asyncio.run(main())


def test_a_newer_version_that_comes_too_late_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            away = await stack.enter_async_context(serving_settings(ap))
            addresses = addresses_of(away)
            async with opened(tmp_path / "us", "us") as us, telling(us, away) as teller:
                await grant(us, "shop", "old", "produce")
                await teller.settle()
                await eventually(lambda: has_all(teller, "ap"), "it is kept")
            await away.server.stop()
            async with opened(tmp_path / "us-new", "us") as us:
                note = await put_back(us, taken_back("us", await ask_settings(addresses, "us")), ["shop/a"])
                assert note["missing"] == ["shop/a"]
                async with telling(us, away) as teller:
                    await grant(us, "shop", "operator", "produce")
                    await teller.settle()
                    await away.server.start()
                    await eventually(lambda: teller.status()["taken_back"].get("newer"), "the newer version is named")
                    assert list(grants(us)["shop"].roles) == ["operator"]

    asyncio.run(main())


def test_a_revoked_permission_does_not_come_back_with_the_second_lost_disk(tmp_path: Path) -> None:
    """The peer that knows the revocation is away at the first one."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            peer = await stack.enter_async_context(serving_settings(eu))
            away = await stack.enter_async_context(serving_settings(ap))
            async with opened(tmp_path / "us", "us") as us:
                async with telling(us, peer, away) as teller:
                    await grant(us, "shop", "fired", "produce")
                    await teller.settle()
                    await eventually(lambda: has_all(teller, "eu") and has_all(teller, "ap"), "both keep it")
                async with telling(us, away) as teller:
                    await grant(us, "shop", "fired")
                    await teller.settle()
                    await eventually(lambda: has_all(teller, "ap"), "one keeps the revocation")
                    revoked = us.cluster_settings.version
            async with opened(tmp_path / "us-2", "us") as us:
                answers = await ask_settings(addresses_of(peer), "us")
                await put_back(us, taken_back("us", {**answers, "ap": None}))
                assert list(grants(us)["shop"].roles) == ["fired"]
                async with telling(us, peer) as teller:
                    await us.catalog.create_tenant("made-by-a-link")
                    await us.partitioned.adopt(PARTED, 2)  # told by a link, and no operator's change
                    await teller.settle()
                    await eventually(lambda: has_all(teller, "eu"), "the second store tells what it took back")
                    assert us.cluster_settings.version > revoked
            async with opened(tmp_path / "us-3", "us") as us:
                taken = taken_back("us", await ask_settings(addresses_of(peer, away), "us"))
                assert taken.peer == "ap"
                note = await put_back(us, taken)
                assert "shop" not in grants(us), "the permission stays revoked"
                assert note["passed_over"] == [], "nothing was set that it does not know"
                async with telling(us, peer, away) as teller:
                    await eventually(lambda: has_all(teller, "eu") and has_all(teller, "ap"), "all know it")
                assert [len(each.kept_settings.of("us")) for each in (eu, ap)] == [1, 1]

    asyncio.run(main())


@pytest.mark.parametrize("is_set", [False, True])
def test_a_revoked_permission_does_not_come_back_with_a_snapshot_of_the_disk_or_is_named_if_somebody_set_something(
    tmp_path: Path, is_set: bool
) -> None:
    """The peer that knows the revocation is away when the store is reclaimed, and answers later."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            peer = await stack.enter_async_context(serving_settings(eu))
            other = await stack.enter_async_context(serving_settings(ap))
            async with opened(tmp_path / "us", "us") as us, telling(us, peer, other) as teller:
                await grant(us, "shop", "fired", "produce")
                await teller.settle()
                await eventually(lambda: has_all(teller, "eu") and has_all(teller, "ap"), "both keep it")
            shutil.copytree(tmp_path / "us", tmp_path / "snapshot")
            async with opened(tmp_path / "us", "us") as us, telling(us, peer) as teller:
                await grant(us, "shop", "fired")
                await teller.settle()
                await eventually(lambda: has_all(teller, "eu"), "one keeps the revocation")
            async with opened(tmp_path / "snapshot", "us") as us:
                await take_settings(us, addresses_of(peer, other), ["ap"], seconds=5, reclaimed=False)
                assert list(grants(us)["shop"].roles) == ["fired"]
                if is_set:
                    await grant(us, "shop", "clerk", "produce")
                async with telling(us, peer, other):
                    await eventually(lambda: not us.store.meta(TAKEN)["silent"], "the other has answered")
                    await eventually(lambda: ("shop" in grants(us)) == is_set, "the permission is revoked again")
                named = [each["peer"] for each in us.store.meta(TAKEN)["newer"]]
                assert named == (["eu"] if is_set else [])

    asyncio.run(main())


def test_what_an_operator_set_without_knowing_a_revocation_counts_and_the_other_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            eu = await stack.enter_async_context(opened(tmp_path / "eu", "eu"))
            ap = await stack.enter_async_context(opened(tmp_path / "ap", "ap"))
            peer = await stack.enter_async_context(serving_settings(eu))
            away = await stack.enter_async_context(serving_settings(ap))
            for name, tells, role in (("us", away, "one"), ("us-2", peer, "two")):  # two stores without each other
                async with opened(tmp_path / name, "us") as us, telling(us, tells) as teller:
                    await grant(us, "shop", role, "produce")
                    await teller.settle()
                    await eventually(partial(has_all, teller, tells.engine.cluster), "it is kept")
            async with opened(tmp_path / "us-3", "us") as us:
                note = await put_back(us, taken_back("us", await ask_settings(addresses_of(peer, away), "us")))
                assert list(grants(us)["shop"].roles) == ["two"], "it was set last"
                assert [each["peer"] for each in note["passed_over"]] == ["ap"]
                assert SettingsPublisher(us).status()["taken_back"]["permissions"] == ["shop"], "the status shows them"

    asyncio.run(main())


def roles(**given: str) -> Rows:
    """Permissions in ``shop``: by role, its action."""
    found = {role: [action] for role, action in given.items()}
    return {("grants", "shop"): json.dumps({"roles": found}, separators=(",", ":"))}


async def keep(peer: Peer, store: str, version: int, rows: Rows, **earlier: int) -> None:
    """Have ``peer`` keep settings of ``us`` that somebody set in the version ``version`` of ``store``."""
    told = SettingsMessage(SettingsHead("us", store, version, digest_of(rows), earlier), None, rows)
    assert await peer.engine.kept_settings.take(told) is Verdict.KEPT


@dataclass
class Mesh:
    """Store of ``us`` and two clusters that keep its settings; ``ap`` is away at first."""

    us: Engine
    eu: Peer
    ap: Peer

    async def take(self, *asked: str) -> dict[str, Any] | None:
        peers = addresses_of(self.eu, self.ap)
        return await take_settings(self.us, peers, asked, seconds=5, reclaimed=False)

    async def ask_ap_later(self) -> None:
        """Return when ``ap`` has answered."""
        await self.ap.server.start()
        async with telling(self.us, self.eu, self.ap):
            await eventually(lambda: not self.note["silent"], "it has answered")

    @property
    def note(self) -> dict[str, Any]:
        return dict(self.us.store.meta(TAKEN))

    def named(self, kind: str = "passed_over") -> list[str]:
        return [each["peer"] for each in self.note[kind]]

    @property
    def roles(self) -> list[str]:
        return sorted(self.us.catalog.grants.of("shop").roles)


@asynccontextmanager
async def mesh(path: Path) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        us, eu, ap = [await stack.enter_async_context(opened(path / name, name)) for name in ("us", "eu", "ap")]
        made = Mesh(us, *[await stack.enter_async_context(serving_settings(each)) for each in (eu, ap)])
        await made.ap.server.stop()
        yield made


@asynchronous
async def test_settings_that_a_late_answer_replaces_are_named_if_it_never_knew_them_and_can_still_be_read(
    tmp_path: Path,
) -> None:
    async with mesh(tmp_path) as found:
        await keep(found.eu, "first", 100, roles(clerk="produce"))  # somebody else is not let in any more
        await keep(found.ap, "second", 200, roles(fired="produce"))
        await found.take("eu")
        assert found.roles == ["clerk"]
        await found.ask_ap_later()
        assert found.roles == ["fired"], "it was set last"
        assert found.named() == ["us"]
        assert SettingsPublisher(found.us).status()["taken_back"]["permissions"] == ["shop"]
        (kept,) = found.us.kept_settings.states("us")
        assert kept.rows == roles(clerk="produce"), "an operator can compare them"
        await found.take("eu")
        assert "us" in found.named(), "one more reclaim does not forget it"


@asynchronous
async def test_settings_that_a_late_answer_replaces_are_not_named_if_it_knew_them(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await keep(found.eu, "first", 100, roles(clerk="produce"))
        await keep(found.ap, "second", 200, roles(other="produce"), first=150)
        await found.take("eu")
        await found.ask_ap_later()
        assert found.roles == ["other"]
        assert found.named() == []
        assert found.us.kept_settings.of("us") == []


@asynchronous
async def test_settings_of_a_late_answer_that_do_not_count_are_named_and_stay_there(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await keep(found.eu, "first", 200, roles(clerk="produce"))
        await keep(found.ap, "second", 100, roles(fired="produce"))
        await found.take("eu")
        await found.ask_ap_later()
        assert found.roles == ["clerk"]
        assert found.named() == ["ap"]
        async with telling(found.us, found.eu, found.ap) as teller:
            await eventually(lambda: has_all(teller, "ap"), "it keeps what counts")
        assert "second" in [head.store for head in found.ap.engine.kept_settings.of("us")]


@pytest.mark.parametrize("is_known", [False, True])
@asynchronous
async def test_settings_of_an_older_volume_that_are_replaced_are_named_unless_the_newer_ones_knew_them(
    tmp_path: Path, is_known: bool
) -> None:
    async with mesh(tmp_path) as found:
        await grant(found.us, "shop", "clerk", "produce")
        await found.us.cluster_settings.settle()
        head = found.us.cluster_settings.head()
        assert head is not None
        later = head.version + 1_000_000
        await keep(
            found.eu, "second", later, roles(fired="produce"), **({head.store: head.version} if is_known else {})
        )
        note = await found.take("eu")
        assert note is not None
        assert found.roles == ["fired"]
        assert found.named() == ([] if is_known else ["us"])
        await found.take("eu")
        assert found.named() == ([] if is_known else ["us"])


@asynchronous
async def test_settings_that_do_not_count_are_named_by_what_counts_and_not_by_what_peers_have(tmp_path: Path) -> None:
    """The newest settings that a peer keeps do not know the older ones, but those of the store do."""
    async with mesh(tmp_path) as found:
        for peer in (found.eu, found.ap):
            await keep(peer, "first", 100, roles(clerk="produce"))
        await keep(found.ap, "second", 200, roles(fired="produce"))
        await found.take("eu")
        await grant(found.us, "shop", "new", "produce")
        await found.ap.server.start()
        await found.take("ap")
        assert found.roles == ["clerk", "new"]
        assert [each["store"] for each in found.note["passed_over"]] == ["second"]


@asynchronous
async def test_one_more_reclaim_forgets_no_name_and_a_known_one_is_named_no_more(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await keep(found.eu, "first", 100, roles(clerk="produce"))
        await keep(found.eu, "other", 90, roles(old="produce"))
        await keep(found.ap, "second", 200, roles(fired="produce"))
        await found.take("eu")
        await grant(found.us, "shop", "new", "produce")
        await found.ask_ap_later()
        assert (found.named("newer"), found.named()) == (["ap"], ["eu"])
        await found.ap.server.stop()
        for asked in ([], ["eu"], []):
            await found.take(*asked)
            assert (found.named("newer"), found.named()) == (["ap"], ["eu"])
        later = found.us.cluster_settings.version + 1_000_000
        own = {found.us.origin_stores.store: later - 1}
        await keep(found.eu, "third", later, roles(clerk="produce"), second=200, other=90, **own)
        await found.take("eu")
        assert (found.named("newer"), found.named()) == ([], [])


OPERATORS = PolicyOverrides({"max_producers": 3})
Change = tuple[Callable[[Engine], Awaitable[None]], Callable[[Engine], object]]
CHANGES: dict[str, Change] = {
    "permission": (
        lambda us: grant(us, "shop", "clerk", "consume"),
        lambda us: us.catalog.grants.of("shop").roles.get("clerk") == frozenset({"consume"}),
    ),
    "namespace": (
        lambda us: us.catalog.set_namespace("shop/orders", NamespacePolicies(auto_partitions=3)),
        lambda us: us.catalog.namespace("shop/orders").auto_partitions == 3,
    ),
    "topic": (lambda us: topic_of(us).policies.set(OPERATORS), lambda us: topic_of(us).policies.own == OPERATORS),
    "pause": (lambda us: LinkMemory(us, "us>eu").set_paused(True), lambda us: LinkMemory(us, "us>eu").paused),
}
TAKEN_BACK: Rows = {
    ("grants", "shop"): '{"roles":{"clerk":["produce"]}}',
    ("tenants", "shop"): "",
    ("namespaces", "shop/orders"): '{"auto_partitions": 2}',
    ("policies", TOPIC): '{"max_producers": 2}',
}


def topic_of(us: Engine) -> Topic:
    topic = us.find(TOPIC)
    assert topic is not None
    return topic


@pytest.mark.parametrize("change", CHANGES)
@asynchronous
async def test_a_change_that_is_made_while_settings_are_put_back_is_made_on_top_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    make, is_made = CHANGES[change]
    async with opened(tmp_path, "us") as us:
        await us.catalog.create_namespace("shop/orders")
        await us.making.create(TOPIC)
        kept = KeptState(SettingsHead("us", "first", 7, digest_of(TAKEN_BACK)), TAKEN_BACK)
        commit, made = us.writer.put_many, list[asyncio.Future[None]]()

        async def put_many(writes: Any, **options: Any) -> None:
            committing = asyncio.ensure_future(commit(writes, **options))
            if not made and any(key == TAKEN.encode() for _, key, _ in writes):
                await asyncio.sleep(0)  # the writer has the request
                made.append(asyncio.ensure_future(make(us)))
                await asyncio.sleep(0)
            await committing

        monkeypatch.setattr(us.writer, "put_many", put_many)
        await us.cluster_settings.settle()
        await put_back(us, taken_back("us", {"eu": [kept]}), unless_set_since=(0, ""))
        (done,) = made
        await done
        assert is_made(us)
        rows = us.cluster_settings.all_rows()
        await us.cluster_settings.settle()
        assert us.cluster_settings.set_in == us.origin_stores.store, "it counts as set now"
    async with opened(tmp_path, "us") as us:
        assert is_made(us)
        assert us.cluster_settings.all_rows() == rows, "memory and store agree"


@pytest.mark.parametrize("change", CHANGES)
@asynchronous
async def test_nothing_is_put_back_over_a_change_that_is_under_way(tmp_path: Path, change: str) -> None:
    make, is_made = CHANGES[change]
    async with opened(tmp_path, "us") as us:
        await us.catalog.create_namespace("shop/orders")
        await us.making.create(TOPIC)
        kept = KeptState(SettingsHead("us", "first", 7, digest_of(TAKEN_BACK)), TAKEN_BACK)
        await us.cluster_settings.settle()
        made = asyncio.ensure_future(make(us))
        await asyncio.sleep(0)
        with pytest.raises(NotAllowedError):
            await put_back(us, taken_back("us", {"eu": [kept]}), unless_set_since=(0, ""))
        await made
        rows = us.cluster_settings.all_rows()
    async with opened(tmp_path, "us") as us:
        assert is_made(us)
        assert us.cluster_settings.all_rows() == rows, "memory and store agree"


@asynchronous
async def test_links_hear_of_a_pause_that_is_put_back_while_the_address_of_its_peer_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(tmp_path) as found:
        us = found.us
        await keep(found.eu, "first", 100, roles(clerk="produce"))
        await keep(found.ap, "second", 200, {("links", "us>eu"): PAUSED_TEXT})
        await found.take("eu")
        commit, begun, goes_on, heard = us.writer.put_many, asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def put_many(writes: Any, **options: Any) -> None:
            if any(key == TAKEN.encode() for _, key, _ in writes):
                begun.set()
                await goes_on.wait()
            await commit(writes, **options)

        monkeypatch.setattr(us.writer, "put_many", put_many)
        await found.ap.server.start()
        async with telling(us, found.ap) as teller:
            teller.on_put_back = heard.set
            async with asyncio.timeout(60):
                await begun.wait()
            await teller.change({})
            goes_on.set()
            await eventually(heard.is_set, "links are told")
            assert LinkMemory(us, "us>eu").paused
            assert found.note["silent"] == []


async def delete(peer: Peer, number: int, name: str = PARTED, by: str = "us") -> None:
    """Have ``peer`` remember that a cluster deleted a partitioned topic."""
    await peer.engine.origin_stores.take(by, {}, [], [Deletion(name, by, number, BEFORE_ALL, 1)])


@asynchronous
async def test_a_new_store_learns_which_partitioned_topics_its_cluster_deleted(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await delete(found.eu, 7)
        await delete(found.eu, 8)
        await delete(found.eu, 9, by="ap")
        await delete(found.ap, 10)
        await keep(found.eu, "first", 100, {("partitioned", PARTED): '{"partitions": 2}', ("tenants", "shop"): ""})
        await found.take("eu")
        stores = found.us.origin_stores
        assert stores.partitioned_deleted(PARTED) == {"us": 8}
        assert found.us.partitioned.count(PARTED) == 0, "its settings were told before it was deleted"
        await found.ask_ap_later()
        assert stores.partitioned_deleted(PARTED) == {"us": 10}
    async with opened(tmp_path / "us", "us") as us:
        assert us.origin_stores.partitioned_deleted(PARTED) == {"us": 10}


@asynchronous
async def test_a_partitioned_topic_that_was_made_after_its_deletion_is_put_back(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await delete(found.eu, 8)
        row = '{"partitions": 2, "known": {"us": 8}}'
        await keep(found.eu, "first", 100, {("partitioned", PARTED): row, ("tenants", "shop"): ""})
        await found.take("eu")
        assert found.us.partitioned.count(PARTED) == 2


@asynchronous
async def test_no_plain_topic_is_made_of_a_name_whose_partitioned_topic_is_being_put_back(tmp_path: Path) -> None:
    """A store with both could not be opened."""
    async with mesh(tmp_path) as found:
        await keep(found.eu, "first", 100, {("partitioned", PARTED): '{"partitions": 2}', ("tenants", "shop"): ""})
        put_many, tried = found.us.writer.put_many, list[str]()

        async def held(writes: Any, *arguments: Any, **more: Any) -> None:
            if any(table == "partitioned" for table, *_ in writes):
                with pytest.raises(NotAllowedError):
                    await found.us.topic(PARTED)
                tried.append("while it is written")
                if len(tried) == 1:
                    raise StoreFull("no room")
            await put_many(writes, *arguments, **more)

        found.us.writer.put_many = held  # type: ignore[method-assign]
        with pytest.raises(StoreFull):
            await found.take("eu")
        assert found.us.partitioned.count(PARTED) == 0, "nothing is left of what the store refused"
        await found.take("eu")
        assert (found.us.partitioned.count(PARTED), len(tried)) == (2, 2)
    async with opened(tmp_path / "us", "us") as us:
        assert us.partitioned.count(PARTED) == 2


@asynchronous
async def test_policies_of_a_topic_that_may_not_be_made_here_keep_no_other_settings_away(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await found.us.partitioned.adopt(PARTED, 2)  # told by a link
        names = (PARTED, f"{PARTED}-partition-3", TOPIC)
        rows = {("policies", name): '{"max_producers": 3}' for name in names} | roles(clerk="produce")
        await keep(found.eu, "first", 100, rows)
        note = await found.take("eu")
        assert note is not None
        assert note["refused"] == [f"policies {name}" for name in names[:2]]
        assert topic_of(found.us).policies.own == OPERATORS
        assert found.roles == ["clerk"]


@pytest.mark.parametrize("late", [False, True], ids=["at the start", "later"])
@pytest.mark.parametrize("deleted_at", [101, 99], ids=["deleted since", "made again since"])
@asynchronous
async def test_a_topic_with_settings_that_was_deleted_after_they_were_told_stays_deleted(
    tmp_path: Path, deleted_at: int, late: bool
) -> None:
    async with mesh(tmp_path) as found:
        peer = found.ap if late else found.eu
        for life, at_ms in ((4, 50), (7, deleted_at)):
            deletion = Deletion(PLAIN, "us", life, Position(life, 3), at_ms)
            await peer.engine.origin_stores.take("us", {}, [], [deletion])
        rows = {
            ("policies", PLAIN): '{"max_producers": 2}',
            ("grants", PLAIN): '{"roles":{"clerk":["produce"]}}',
            ("policies", TOPIC): '{"max_producers": 2}',
        }
        await keep(peer, "first", 100, rows)
        await found.take("eu")
        if late:
            await found.ask_ap_later()
        assert found.us.find(TOPIC) is not None
        assert (found.us.find(PLAIN) is None) == (deleted_at > 100)
        assert (PLAIN in grants(found.us)) == (deleted_at < 100)


@asynchronous
async def test_a_deleted_topic_with_settings_does_not_come_back_by_a_lost_disk(tmp_path: Path) -> None:
    """Its deletion was told by a link before the other cluster took the next settings."""
    async with mesh(tmp_path) as found:
        async with telling(found.us, found.eu) as teller:
            topic = await found.us.making.create(PLAIN)
            await topic.publish([message()])
            await topic.policies.set(OPERATORS)
            await teller.settle()
            await eventually(lambda: has_all(teller), "it is kept")
        await eventually(lambda: found.us.writer.wall_clock_ms() > found.us.cluster_settings.version)
        await found.us.deleting.delete(PLAIN)
        await found.eu.engine.origin_stores.take("us", {}, [], found.us.origin_stores.own_deletions([PLAIN]))
        async with opened(tmp_path / "us-new", "us") as us:
            await take_settings(us, addresses_of(found.eu), ["eu"], seconds=5, reclaimed=False)
            assert us.find(PLAIN) is None
            assert us.cluster_settings.version > 0


@asynchronous
async def test_deletions_that_make_no_sense_are_not_learned(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        await delete(found.eu, 1 << 70)
        await delete(found.eu, 8, "no topic's name")
        await found.take("eu")
        assert found.us.origin_stores.deletions == {}
    kept = SettingsKept.of_json({"cluster": "eu", "states": []})
    assert kept.deletions == [], "an earlier version names none"
    with pytest.raises(ValueError, match="position"):
        SettingsKept.of_json({"cluster": "eu", "states": [], "deletions": [{"position": "x"}]})
