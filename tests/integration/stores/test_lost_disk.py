"""A worker whose disk was lost heals itself at its start, and an older store never serves.

Invariants (DESIGN §3): 2, 3, 5, 10, 12 and 13. Whole workers in this process, with clients and commands of users.
``test_lost_disk_moments.py`` has workers as processes that are killed under traffic.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from asynchronous import asynchronous
from backup_support import ORDERS, numbered, take
from engine_support import eventually
from lost_disk_support import Workers, until_true, workers
from postgres_support import databases_of

from replicator.client import Client, InitialPosition
from replicator.engine.engine import Engine
from replicator.worker import asking_peers, store_start
from replicator.worker.store_start import EmptyStoreRefused, StoppedEarly, StoreReplaced

COUNT = 50
TWO = "[{between: [A, B]}]"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_start, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(asking_peers, "RETRY_SECONDS", 0.05)


@asynchronous
async def test_a_lost_disk_heals_itself_and_nothing_is_lost_or_repeated_and_no_deleted_topic_comes_back(
    tmp_path: Path,
) -> None:
    gone, parted = f"{ORDERS}-gone", f"{ORDERS}-parted"
    async with workers(tmp_path) as mesh:
        a = mesh.engine("A")
        await a.partitioned.create(parted, 3)
        await mesh.publish("A", numbered("g", 0, 20), gone)
        await mesh.publish("A", numbered("p", 0, 20), parted)
        await mesh.fill(COUNT)
        await mesh.until(lambda: mesh.everywhere(gone) == {20}, "copies everywhere")
        await mesh.until(lambda: partitions_of(mesh.engine("C"), parted) == partitions_of(a, parted), "its partitions")
        await a.deleting.delete(gone, force=True)
        await a.partitioned.delete(parted, force=True)
        await a.catalog.grants.change("public", lambda of: of.with_role("clerk", ["produce"]), lambda: None)
        deleted = set(a.origin_stores.deletions)
        peers = mesh.engine("B"), mesh.engine("C")
        await mesh.until(lambda: all(deleted <= set(each.origin_stores.deletions) for each in peers), "deletions")
        await mesh.until(lambda: all(keeps_all(each, a) for each in peers), "the settings are kept")
        left = await mesh.unconsumed("B")

        await mesh.lose("A")
        await mesh.start("A")
        assert mesh.started("A")["how"] == "reclaimed"
        await mesh.until(lambda: mesh.messages("A") == 3 * COUNT, "everything at A")
        await mesh.until_agreed()
        assert await mesh.unconsumed("A") == left, "nothing that was acknowledged is repeated"
        _, status = await mesh.get("A", "/replication/v1/status")
        assert (status["restored"]["reclaimed_messages"], status["restored"]["lost"]) == (COUNT, [])
        assert status["start"]["database"] == "away", "a worker serves without Postgres, and says so"
        assert list(mesh.engine("A").catalog.grants.of("public").roles) == ["clerk"]

        await mesh.publish("A", numbered("a", COUNT, COUNT + 10))
        await mesh.until(lambda: mesh.everywhere() == {3 * COUNT + 10}, "what is published since")
        assert mesh.messages("A", gone) == 0
        assert mesh.engine("A").partitioned.count(parted) == 0
        assert mesh.engine("B").partitioned.count(parted) == 3
        assert mesh.gaps() == {}
        said = " ".join((await mesh.command("status", "-f", "topology.yaml")).stdout.split())
        assert all(f"{peer}: A's store is a new one since" in said for peer in "BC")
        assert "Postgres did not answer" in said
        card = (await mesh.get("B", "/"))[1]
        assert "a new store since" in card


@asynchronous
async def test_a_deleted_partitioned_topic_does_not_come_back_when_two_of_three_disks_are_lost(tmp_path: Path) -> None:
    """The cluster that remembers the deletion tells it at the start. Its link may come later than that of the other."""
    parted = f"{ORDERS}-parted"
    async with workers(tmp_path) as mesh:
        a, peers = mesh.engine("A"), [mesh.engine("B"), mesh.engine("C")]
        await a.partitioned.create(parted, 2)
        await mesh.until(lambda: all(each.partitioned.count(parted) == 2 for each in peers), "it is everywhere")
        await a.partitioned.delete(parted)
        for each in (a, peers[0]):
            await each.catalog.grants.change("public", lambda of: of.with_role("clerk", ["produce"]), lambda: None)
        deleted = set(a.origin_stores.deletions)
        await mesh.until(lambda: all(deleted <= set(each.origin_stores.deletions) for each in peers), "deletions")
        await mesh.until(lambda: all(keeps_all(peers[1], each) for each in (a, peers[0])), "the settings are kept")
        for link in mesh.running["C"].parts.links:
            await link.pause()
        await mesh.lose("A", "B")
        await mesh.start("B")
        assert mesh.engine("B").partitioned.count(parted) == 2, "its settings are back"
        await mesh.start("A")
        assert deleted <= set(mesh.engine("A").origin_stores.deletions)
        await mesh.publish("B", numbered("b", 0, 1))
        await mesh.until(lambda: mesh.messages("A") == 1, "what is announced before a message")
        assert mesh.engine("A").partitioned.count(parted) == 0


def partitions_of(engine: Engine, name: str) -> list[int]:
    """Return the number of messages of each partition; -1 for one that is not there."""
    found = [engine.find(f"{name}-partition-{index}") for index in range(3)]
    return [-1 if each is None else each.log.messages for each in found]


def keeps_all(peer: Engine, of: Engine) -> bool:
    """Return whether ``peer`` keeps the newest settings of ``of``."""
    rows = of.cluster_settings.all_rows()
    return any(each.rows == rows for each in peer.kept_settings.states(of.cluster))


@asynchronous
async def test_a_worker_that_goes_back_to_an_older_store_keeps_what_both_have(tmp_path: Path) -> None:
    """Go back with the newer store's directory, and then with that store gone. Nothing is lost."""
    async with workers(tmp_path) as mesh:
        await mesh.fill(COUNT)
        await mesh.until_stores_known()
        await mesh.stop("A")
        old = mesh.set_aside("A", "old")
        await mesh.start("A")  # the volume was not mounted
        await mesh.publish("A", numbered("a", COUNT, COUNT + 20))
        await mesh.until(lambda: mesh.everywhere() == {3 * COUNT + 20}, "what is published since")
        await mesh.until_stores_known()
        await mesh.stop("A")
        new = mesh.set_aside("A", "new")
        old.rename(mesh.data("A"))

        with pytest.raises(StoreReplaced, match="has an older store of A") as refused:
            await mesh.start("A")
        assert f"--from-directory {mesh.data('A')}" in str(refused.value)
        assert "took back 20 messages" in await mesh.reclaim("A", "--from-directory", str(new))
        await mesh.start("A")
        await mesh.until(lambda: mesh.messages("A") == 3 * COUNT + 20, "everything at A")
        await mesh.publish("A", numbered("a", COUNT + 20, COUNT + 30))
        await mesh.until(lambda: mesh.everywhere() == {3 * COUNT + 30}, "what is published after that")
        await mesh.until_stores_known()
        await mesh.stop("A")

        shutil.rmtree(mesh.data("A"))  # the store that A went back to
        new.rename(mesh.data("A"))  # the one before is an older one now
        with pytest.raises(StoreReplaced, match="has an older store of A"):
            await mesh.start("A")
        assert "took back 10 messages" in await mesh.reclaim("A"), "what peers hold of the newer one"
        await mesh.start("A")
        await mesh.publish("A", numbered("a", COUNT + 30, COUNT + 35))
        await mesh.until(lambda: mesh.everywhere() == {3 * COUNT + 35}, "everything everywhere")
        assert mesh.gaps() == {}
        verified = await mesh.command("verify", "-f", "topology.yaml", "--settle", "0")
        assert verified.returncode == 0, verified.stdout


@asynchronous
async def test_a_cluster_that_only_consumes_repeats_nothing_and_loses_its_local_subscriptions(tmp_path: Path) -> None:
    """It acknowledged nearly all messages of the other cluster, and then lost its disk."""
    async with workers(tmp_path, "AB", TWO) as mesh:
        await mesh.publish("A", numbered("a", 0, COUNT))
        await mesh.until(lambda: mesh.everywhere() == {COUNT}, "copies")
        acknowledged = await take(mesh.client_url("B"), COUNT, acknowledge=slice(0, COUNT - 5))
        async with Client(mesh.client_url("B"), reconnect=False) as client:
            await client.subscribe(ORDERS, "local", initial_position=InitialPosition.Earliest)
        await mesh.until_agreed()
        left = await mesh.unconsumed("A")

        await mesh.lose("B")
        await mesh.start("B")
        await mesh.until(lambda: mesh.messages("B") == COUNT, "everything at B")
        await mesh.until_agreed()
        assert await mesh.unconsumed("A") == left
        for name in "AB":
            topic = mesh.engine(name).find(ORDERS)
            assert topic is not None
            assert set(topic.subscriptions) == {"sub"}, "the subscription that was not replicated is gone"
        assert set(await take(mesh.client_url("A"), 5)) == set(numbered("a", 0, COUNT)) - set(acknowledged)
        assert mesh.gaps() == {}


@asynchronous
async def test_the_status_names_the_position_after_which_all_is_lost_that_no_other_cluster_had(tmp_path: Path) -> None:
    """Messages that only the lost disk had lie after it. It stays when the worker starts again."""
    only_here = f"{ORDERS}-only-here"
    async with workers(tmp_path, "AB", TWO) as mesh:
        await mesh.fill(20)
        await mesh.stop("B")
        newest = newest_own(mesh.engine("A"))  # the last one that B has
        await mesh.publish("A", numbered("o", 0, 7))
        await mesh.publish("A", numbered("o", 0, 3), only_here)

        await mesh.lose("A")
        await mesh.start("B")
        await mesh.start("A")
        for _ in range(2):
            _, status = await mesh.get("A", "/replication/v1/status")
            named = {row["name"]: row.get("taken_back") for row in status["topics"]}
            assert status["start"]["topics_taken_back"] == 1
            assert list(named) == [ORDERS], "nothing of the other topic came back"
            assert named[ORDERS] == newest
            await mesh.publish("A", numbered("a", 20, 25))
            await mesh.stop("A")
            await mesh.start("A")
        said = " ".join((await mesh.command("status", "-f", "topology.yaml")).stdout.split())
        assert "had what it confirmed after the position `taken_back` of each topic" in said
        await mesh.engine("A").deleting.delete(ORDERS, force=True)
        await mesh.publish("A", numbered("a", 0, 1))
        _, status = await mesh.get("A", "/replication/v1/status")
        assert [row.get("taken_back") for row in status["topics"]] == [None], "another topic of the same name"


def newest_own(engine: Engine) -> str:
    """Return the position of the newest message of the engine's own cluster."""
    topic = engine.find(ORDERS)
    assert topic is not None
    return str(topic.origins.message_vector()[engine.cluster])


@asynchronous
async def test_a_whole_mesh_starts_at_once_on_new_stores_and_with_one_that_has_everything(tmp_path: Path) -> None:
    async with workers(tmp_path) as mesh:
        await mesh.fill(20)
        await mesh.lose("A", "B")
        await mesh.stop("C")
        await mesh.start("A", "B", "C")
        await mesh.until(lambda: mesh.everywhere() == {60}, "everything everywhere")
        how = {name: mesh.started(name)["how"] for name in "ABC"}
        assert how == {"A": "reclaimed", "B": "reclaimed", "C": "usual"}
        await mesh.until_agreed()
        await mesh.lose("A", "B", "C")
        await mesh.start("A", "B", "C")
        assert {mesh.started(name)["how"] for name in "ABC"} == {"first"}
        assert not any(mesh.started(name)["unasked"] for name in "ABC")


@asynchronous
async def test_an_operator_can_keep_the_newer_store_and_take_over_what_only_the_older_one_has(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", TWO) as mesh:
        await mesh.fill(20)
        for link in mesh.running["A"].parts.links:
            await link.pause()
        await mesh.publish("A", numbered("o", 0, 20))  # nobody else has these
        await mesh.stop("A")
        old = mesh.set_aside("A", "old")
        await mesh.start("A")
        for link in mesh.running["A"].parts.links:
            await link.resume()  # if the others had heard of the pause, it came back
        await mesh.publish("A", numbered("a", 20, 30))
        await mesh.until(lambda: mesh.everywhere() == {50}, "what is published since")
        await mesh.stop("A")
        assert "20 messages" in await mesh.reclaim("A", "--from-directory", str(old))
        await mesh.start("A")
        assert mesh.messages("A") == 70


@asynchronous
async def test_a_running_older_store_ends_as_soon_as_a_silent_peer_tells(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", TWO) as mesh:
        await mesh.fill(20)
        await mesh.until_stores_known()
        await mesh.stop("A")
        old = mesh.set_aside("A", "old")
        await mesh.start("A")
        seen = mesh.engine("B").origin_stores.newest_stores
        await mesh.until(lambda: len(seen()["A"]["earlier"]) == 1, "it knows the newer store")
        await mesh.stop("A", "B")
        mesh.set_aside("A", "new")
        old.rename(mesh.data("A"))
        await mesh.start("A")  # nobody is there to tell
        assert (mesh.started("A")["how"], mesh.started("A")["nobody_asked"]) == ("usual", True)
        await mesh.start("B")
        watch = mesh.running["A"].parts.stores
        await watch.look()
        assert watch.replaced.is_set()
        assert "has an older store of A" in watch.reason
        earlier = mesh.engine("B").origin_stores.newest_stores()["A"]["earlier"]
        assert len(earlier) == 1, "its link did not make it the newest again"


@asynchronous
async def test_rows_in_postgres_make_a_worker_wait_for_a_peer_and_name_what_no_peer_has(
    tmp_path: Path, postgres_server: str
) -> None:
    with databases_of("A", postgres_server, "lost") as databases:
        async with workers(tmp_path, databases=databases) as mesh:
            await mesh.fill(20)
            for link in mesh.running["A"].parts.links:
                await link.pause()
            await mesh.publish("A", numbered("o", 0, 20), f"{ORDERS}-only-here")
            await take(mesh.client_url("A"), 5, topic=f"{ORDERS}-only-here")
            await mesh.lose("A")
            await mesh.stop("B", "C")

            stopping = asyncio.Event()
            starting = mesh.starting("A", stopping)
            await until_true(lambda: waits(mesh))
            status, ready = await mesh.get("A", "/readyz")
            assert status == 503
            assert set(ready["start"]["peers"]) == {"B", "C"}
            assert "--on-empty-store start" in ready["reason"]
            assert not (mesh.data("A") / "log").exists(), "nothing was changed"
            assert (await mesh.get("A", "/healthz"))[0] == 200
            told = await mesh.command("status", "-f", "topology.yaml", "--output", "json")
            assert "The worker waits for B, C" in told.stdout
            await mesh.start("B")
            mesh.running["A"] = await starting
            started = mesh.started("A")
            assert (started["how"], started["database"]) == ("reclaimed", "earlier")
            (lost,) = started["lost"]
            assert f"1 topic of an earlier store that no cluster that was asked has: {ORDERS}-only-here" in lost
            assert lost.endswith("C was not asked")
            await mesh.until(lambda: mesh.messages("A") == 40, "what A and B published")
            said = " ".join((await mesh.command("status", "-f", "topology.yaml")).stdout.split())
            assert "only-here" in said

            await mesh.lose("A")
            await mesh.stop("B")
            starting = mesh.starting("A", stopping)
            await until_true(lambda: waits(mesh))
            stopping.set()  # as SIGTERM does
            with pytest.raises(StoppedEarly):
                await starting
            await mesh.start("A", setting="start")
            assert mesh.started("A")["how"] == "empty"


async def waits(mesh: Workers) -> bool:
    """Return whether A's worker says that it waits."""
    try:
        _, answer = await mesh.get("A", "/readyz")
    except OSError:
        return False
    return bool(answer.get("start", {}).get("state") == "waiting")


@asynchronous
async def test_a_worker_that_is_to_refuse_names_the_command_and_changes_nothing(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", TWO) as mesh:
        await mesh.publish("A", numbered("a", 0, 20))
        await mesh.until(lambda: mesh.everywhere() == {20}, "copies")
        await mesh.lose("A")
        with pytest.raises(EmptyStoreRefused, match="replicator backup reclaim -f FILE --cluster A"):
            await mesh.start("A", setting="refuse")
        assert not (mesh.data("A") / "log").exists()
        await mesh.reclaim("A")
        await mesh.start("A", setting="refuse")
        assert mesh.messages("A") == 20


@asynchronous
async def test_a_reclaim_by_command_takes_newer_policies_and_permissions_back_and_a_restore_does(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path, "AB", TWO) as mesh:
        a, peer = mesh.engine("A"), mesh.engine("B")

        async def grant(role: str) -> None:
            engine = mesh.engine("A")
            await engine.catalog.grants.change("public", lambda of: of.with_role(role, ["produce"]), lambda: None)
            await eventually(lambda: keeps_all(peer, engine), "the settings are kept")

        def roles() -> list[str]:
            return sorted(mesh.engine("A").catalog.grants.of("public").roles)

        await mesh.publish("A", numbered("a", 0, 20))
        await grant("first")
        made = await mesh.command("backup", "create", "-f", "topology.yaml", "-c", "A", "--at", "backups")
        assert made.returncode == 0, made.stderr
        await grant("later")
        await mesh.until(lambda: mesh.everywhere() == {20}, "copies")
        version = a.cluster_settings.version

        await mesh.lose("A")
        assert f"took back policies and permissions of version {version} from B" in await mesh.reclaim("A")
        assert "policies and permissions" not in await mesh.reclaim("A"), "it has them"
        await mesh.start("A")
        assert roles() == ["first", "later"]

        await grant("last")
        await mesh.lose("A")
        restored = await mesh.command("backup", "restore", "-f", "topology.yaml", "-c", "A", "--at", "backups")
        assert restored.returncode == 0, restored.stderr
        assert "took back policies and permissions" in restored.stdout
        await mesh.start("A")
        assert roles() == ["first", "last", "later"]


@asynchronous
async def test_a_restore_that_makes_a_deleted_topic_anew_does_not_bring_revoked_permissions_back(
    tmp_path: Path,
) -> None:
    """The permissions of the deleted topic go with it. Nobody set that, so it does not make the backup the newest."""
    async with workers(tmp_path, "AB", TWO) as mesh:
        peer = mesh.engine("B")

        async def grant(name: str, role: str, *actions: str) -> None:
            engine = mesh.engine("A")
            await engine.catalog.grants.change(name, lambda of: of.with_role(role, actions), lambda: None)
            await eventually(lambda: keeps_all(peer, engine), "the settings are kept")

        await mesh.publish("A", numbered("a", 0, 20))
        await grant("public", "fired", "produce")
        await grant(ORDERS, "clerk", "produce")
        await mesh.until(lambda: mesh.everywhere() == {20}, "copies")
        made = await mesh.command("backup", "create", "-f", "topology.yaml", "-c", "A", "--at", "backups")
        assert made.returncode == 0, made.stderr
        a = mesh.engine("A")
        await a.deleting.delete(ORDERS, force=True)
        deleted = set(a.origin_stores.deletions)
        await mesh.until(lambda: deleted <= set(peer.origin_stores.deletions), "the deletion is known")
        await mesh.publish("A", numbered("n", 0, 5))
        (link,) = mesh.running["A"].parts.links
        await mesh.until(lambda: link.status()["gaps"] or mesh.messages("B") == 25, "the new life is noticed")
        if link.status()["gaps"]:
            await link.resolve(ORDERS, "keep-both")
        await mesh.until(lambda: mesh.messages("B") == 25, "both lives")
        await grant("public", "fired")
        await grant("public", "hired", "produce")

        await mesh.lose("A")
        restored = await mesh.command("backup", "restore", "-f", "topology.yaml", "-c", "A", "--at", "backups")
        assert restored.returncode == 0, restored.stderr
        assert "the topic was made again" in restored.stdout
        assert "took back policies and permissions" in restored.stdout
        await mesh.start("A")
        assert list(mesh.engine("A").catalog.grants.of("public").roles) == ["hired"]
        assert not mesh.engine("A").catalog.grants.of(ORDERS).roles


@asynchronous
async def test_a_first_start_whose_peers_do_not_run_serves_and_says_that_nobody_was_asked(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", TWO, started="A") as mesh:
        start = mesh.started("A")
        assert (start["how"], start["nobody_asked"], set(start["unasked"])) == ("first", True, {"B"})
        said = " ".join((await mesh.command("status", "-f", "topology.yaml")).stdout.split())
        assert "no other cluster was asked" in said
        await mesh.start("B")
        await mesh.running["A"].parts.stores.look()
        assert mesh.started("A")["unasked"] == {}
        assert not mesh.started("A")["nobody_asked"]
