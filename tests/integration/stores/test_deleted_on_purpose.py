"""A topic that was deleted on purpose does not come back: not by a restore, not by a reclaim.

Invariants (DESIGN §3): 12 and 13. The commands are run as a user runs them, on real workers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import lmdb
import pytest
from backup_support import MESH, ORDERS, Mesh, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of

from replicator.engine.log.store_tables import HEAD, TABLES
from snapshots.position import BEFORE_ALL, Position

GOING = "persistent://public/default/going"


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "deleted") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


@pytest.fixture
def ring(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    links = "[{from: A, to: B, forward: true}, {from: B, to: C, forward: true}, {from: C, to: A, forward: true}]"
    with (
        databases_of("ABC", postgres_server, "ring") as databases,
        deployment(tmp_path, *databases, links=links, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def delete(mesh: Mesh, name: str, topic: str) -> None:
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}?force=true"
    urllib.request.urlopen(urllib.request.Request(mesh.url(name, path), method="DELETE"), timeout=20).close()


def marked(mesh: Mesh, name: str, topic: str = GOING) -> bool:
    """Return whether a cluster knows that A deleted its messages of a topic."""
    rows = mesh.get(name, f"/replication/v1/cuts?topic={topic}")["topics"]
    return topic in rows and bool(rows[topic]["lineage"].get("A", {}).get("deleted"))


def head(mesh: Mesh, name: str) -> dict[str, object]:
    """Return the head row of a cluster's store, while its worker does not run."""
    with lmdb.open(str(mesh.data(name) / "log"), readonly=True, lock=False, max_dbs=1) as env, env.begin() as txn:
        row = txn.get(HEAD.encode(), db=env.open_db(b"meta", txn=txn, create=False))
        assert row is not None
        found: dict[str, object] = json.loads(bytes(row))
        return found


def published(mesh: Mesh) -> None:
    """50 messages of two topics each, which all clusters have."""
    for topic in (ORDERS, GOING):
        asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 50), topic))
    copied(mesh)


def copied(mesh: Mesh) -> None:
    everywhere = [(name, topic) for name in "BC" for topic in (ORDERS, GOING)]
    mesh.until(lambda: all(mesh.messages(*each) == 50 for each in everywhere), "copies")


def test_a_topic_that_was_deleted_does_not_come_back_by_a_restore_or_a_reclaim_of_an_empty_directory(
    mesh: Mesh,
) -> None:
    mesh.create("A")
    published(mesh)
    delete(mesh, "A", GOING)
    mesh.until(lambda: marked(mesh, "B") and marked(mesh, "C"), "the marks")
    old = str(mesh.status("A")["cluster"])
    assert old == "A"
    before = head_after(mesh)
    printed = mesh.restore("A")
    assert f"took back 50 messages of {ORDERS}" in printed
    assert f"not taken back: {GOING} was deleted on purpose up to " in printed
    assert "(B, C still have copies): nothing of that life comes back\n" in printed
    restored = head(mesh, "A")
    assert restored["store_id"] != before["store_id"]
    assert restored["predecessors"] == [before["store_id"]]
    mesh.start("A")
    mesh.until_nothing_halts(lambda: mesh.topic("A") is not None)
    assert mesh.topic("A", GOING) is None
    assert mesh.messages("B", GOING) == mesh.messages("C", GOING) == 50, "the copies stay"

    mesh.lose("A")
    printed = mesh.reclaim("A")
    assert f"took back 50 messages of {ORDERS}" in printed
    assert f"not taken back: {GOING} was deleted on purpose" in printed
    mesh.start("A")
    assert mesh.topic("A", GOING) is None


def head_after(mesh: Mesh) -> dict[str, object]:
    """Kill A's worker and delete its data directory. Return the head row, with the store's id, that its store had."""
    mesh.kill("A")
    found = head(mesh, "A")
    shutil.rmtree(mesh.data("A"))
    return found


def test_a_restore_that_brings_a_deleted_topic_itself_names_it(mesh: Mesh) -> None:
    published(mesh)
    mesh.create("A")
    delete(mesh, "A", GOING)
    mesh.until(lambda: marked(mesh, "B") and marked(mesh, "C"), "the marks")
    mesh.lose("A")
    printed = mesh.restore("A")
    assert f"{GOING} was deleted on purpose" in printed
    assert "this store has it again: to delete the topic again would delete 50 messages here, of all its" in printed
    mesh.start("A")
    mesh.until_nothing_halts()
    assert mesh.messages("A", GOING) == 50
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 50, 60), GOING))
    mesh.until(lambda: mesh.messages("B", GOING) == mesh.messages("C", GOING) == 60, "it is in use again")
    mesh.lose("A")
    assert f"took back 60 messages of {GOING}" in mesh.reclaim("A"), "what was confirmed since is no deleted topic"


def test_invariant_12_a_restore_that_brings_a_topic_of_before_two_deletions_has_a_way_on(mesh: Mesh) -> None:
    published(mesh)
    mesh.create("A")
    delete(mesh, "A", GOING)
    asyncio.run(publish(mesh.client_url("A"), numbered("n", 0, 10), GOING))
    for name in "BC":
        gap = f"{name} {GOING}"
        mesh.until(lambda gap=gap: "keep-both" in mesh.halted("A").get(gap, ""), "the gap")  # type: ignore[misc]
        mesh.run_links("resolve", "A", name, "--topic", GOING, "--policy", "keep-both")
    mesh.until(lambda: mesh.messages("B", GOING) == mesh.messages("C", GOING) == 60, "both lives")
    delete(mesh, "A", GOING)
    mesh.until(lambda: marked(mesh, "B") and marked(mesh, "C"), "the marks")
    mesh.lose("A")
    assert "to delete the topic again would delete 50 messages here" in mesh.restore("A")
    mesh.start("A")
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 50, 60), GOING))
    for policy in ("keep-both", "skip-and-record"):
        ends = ("--from", "A", "--to", "B", "--topic", GOING, "--policy", policy)
        forked_commands.run("links", "resolve", "-f", "topology.yaml", *ends, cwd=mesh.path)
    mesh.until(lambda: mesh.messages("B", GOING) == 70, "what is confirmed since at B", 15)


@pytest.mark.parametrize("by_command", [True, False], ids=["by a command", "by the start alone"])
def test_a_topic_that_was_deleted_does_not_come_back_in_a_ring(ring: Mesh, by_command: bool) -> None:
    """C hears of it by B, and B alone tells A's reclaim of it where C has not heard yet."""
    published(ring)
    ring.pause("B", "C")
    delete(ring, "A", GOING)
    ring.until(lambda: marked(ring, "B"), "the mark")
    assert not marked(ring, "C")
    ring.lose("A")
    if by_command:
        printed = ring.reclaim("A")
        assert f"took back 50 messages of {ORDERS}" in printed
        assert f"not taken back: {GOING} was deleted on purpose" in printed
    ring.start("A")
    assert ring.messages("A") == 50
    ring.run_links("resume", "B", "C")
    ring.until(lambda: marked(ring, "C"), "the mark at C")
    asyncio.run(publish(ring.client_url("A"), numbered("a", 50, 60)))
    ring.until(lambda: ring.messages("C") == 60, "what goes on")
    assert ring.topic("A", GOING) is None


def test_a_deleted_topic_is_not_made_again_by_markers_of_a_cluster_that_has_not_heard_of_the_deletion(
    mesh: Mesh,
) -> None:
    """The deletion and a marker of B cross: A's links, which would tell B of it, are paused."""
    published(mesh)
    asyncio.run(take(mesh.client_url("B"), 10, topic=GOING))
    mesh.until(lambda: mesh.agree("sub", GOING), "the same state everywhere")
    mesh.pause("A", "B")
    mesh.pause("A", "C")
    delete(mesh, "A", GOING)
    assert not marked(mesh, "B")
    asyncio.run(take(mesh.client_url("B"), 10, topic=GOING))
    mesh.until(lambda: marked(mesh, "B"), "B's own link has asked")
    mesh.kill("A")
    mesh.start("A")
    mesh.until(lambda: all(link["state"] == "idle" for link in mesh.status("B")["links"]), "links are back")
    assert mesh.topic("A", GOING) is None
    asyncio.run(publish(mesh.client_url("B"), numbered("b", 0, 5), GOING))
    mesh.until(lambda: mesh.messages("A", GOING) == 5, "what is published elsewhere since comes")


def test_an_upgraded_cluster_takes_nothing_back_that_it_trimmed_or_that_its_own_store_deleted(mesh: Mesh) -> None:
    """With retention 0, what is consumed everywhere is trimmed. No copy knew its store before the upgrade."""
    published(mesh)
    for topic in (ORDERS, GOING):
        asyncio.run(take(mesh.client_url("A"), 50, topic=topic))
    mesh.until(lambda: mesh.agree("sub") and mesh.agree("sub", GOING), "the same state everywhere")
    for topic in (ORDERS, GOING):
        trim_without_retention(mesh, "A", topic)

    def stores() -> set[object]:
        rows = [mesh.get(name, "/replication/v1/cuts")["topics"][topic] for name in "BC" for topic in (ORDERS, GOING)]
        return {store for row in rows for store in row["lineage"].get("A", {"stores": {"": ""}})["stores"].values()}

    for started_before in (False, True):
        for name in "ABC":
            mesh.kill(name)
            forget_stores(mesh, name)
        mesh.start("B", "C")
        assert stores() == {""}, "no copy has a store id"
        before, store = head(mesh, "A"), str(head(mesh, "A")["store_id"])
        for options in (("--dry-run",), ()):
            printed = mesh.reclaim("A", *options)
            assert "have nothing of A's messages that it lacks" in printed, (started_before, options)
        assert head(mesh, "A") == before
        mesh.start("A")
        mesh.until(lambda store=store: stores() == {store}, "the copies know the store")  # type: ignore[misc]
        mesh.until_nothing_halts()
        restored = mesh.get("A", "/replication/v1/status")["restored"]
        assert (restored["reclaimed_messages"], restored["lost"]) == (0, []), "nor did the start take anything back"
    delete(mesh, "A", GOING)
    mesh.until(lambda: marked(mesh, "B") and marked(mesh, "C"), "the marks")
    mesh.kill("A")
    printed = mesh.reclaim("A")
    assert "took back" not in printed
    assert f"not taken back: {GOING} was deleted on purpose" in printed
    mesh.start("A")
    mesh.until_nothing_halts()
    assert mesh.topic("A", GOING) is None, "nor do markers of the others make it again"
    asyncio.run(publish(mesh.client_url("B"), numbered("b", 0, 5), GOING))
    mesh.until(lambda: mesh.messages("A", GOING) == 5, "what is published elsewhere since comes, as ever")


def trim_without_retention(mesh: Mesh, name: str, topic: str) -> None:
    """Set retention to 0, and trim what is consumed and copied everywhere. A log keeps its last block."""
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}"

    def post(verb: str, body: bytes) -> None:
        request = urllib.request.Request(mesh.url(name, f"{path}/{verb}"), body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=20).close()

    def trimmed() -> bool:
        post("trim", b"")
        cut = mesh.get(name, f"/replication/v1/cuts?topic={topic}")["topics"][topic]
        return Position.parse(cut["trimmed"]) > BEFORE_ALL

    post("retention", b'{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}')
    mesh.until(trimmed, "what all have is trimmed")


def forget_stores(mesh: Mesh, name: str) -> None:
    """Leave a store as the version before left it: it knows nothing of stores."""
    with lmdb.open(str(mesh.data(name) / "log"), map_size=1 << 30, max_dbs=len(TABLES)) as env:
        for table in ("lineage", "deletions"):
            database = env.open_db(table.encode(), create=False)
            with env.begin(write=True) as txn:
                txn.drop(database)
        with env.begin(write=True) as txn:
            txn.delete(b"origin stores", db=env.open_db(b"meta", txn=txn, create=False))


def test_a_cluster_that_was_started_on_an_empty_directory_says_that_it_lost_data_and_takes_it_back(
    mesh: Mesh,
) -> None:
    published(mesh)
    mesh.lose("A")
    mesh.start_empty("A")
    asyncio.run(publish(mesh.client_url("A"), numbered("new", 0, 5)))
    # A refusal halts the topic until the destination has said what it has: the cause is known a moment later.
    mesh.until(
        lambda: sum("another store of A" in reason for reason in mesh.halted("A").values()) == 2,
        "both links say that another store of A wrote the copy",
    )
    for reason in mesh.halted("A").values():
        assert "`replicator backup reclaim -f FILE --cluster A`" in reason
        assert "delete" not in reason, "the copy is the only one"
        assert "copy-anew" not in reason
    for link in mesh.status("A")["links"]:
        assert list(link["lost_here"]) == [GOING]
        assert link["deleted_here"] == []
    shown = " ".join(mesh.command("status").stdout.split())
    assert "1 topics that were lost here" in shown
    listed = forked_commands.run("links", "list", "-f", "topology.yaml", "-c", "A", cwd=mesh.path)
    assert "lost here:" in " ".join(listed.stdout.split())
    log = (mesh.path / "A.log").read_text()
    for text in (shown, listed.stdout, log):
        assert "delete the" not in text
        assert "topics delete" not in text
    mesh.kill("A")
    printed = mesh.reclaim("A")
    assert f"took back 50 messages of {ORDERS} (an earlier life, below what was here)" in printed
    assert f"took back 50 messages of {GOING}" in printed
    mesh.start("A")
    mesh.until_nothing_halts(lambda: mesh.messages("A") == 55)
    assert mesh.messages("A", GOING) == 50


def test_a_snapshot_of_the_disk_that_was_put_back_takes_back_topics_that_were_made_since(mesh: Mesh) -> None:
    """It is the same store: what it does not know because it is older is lost, and not deleted on purpose."""
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 10)))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 10, "copies")
    mesh.kill("A")
    shutil.copytree(mesh.data("A"), mesh.path / "snapshot")
    mesh.start("A")
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 10, 50)))
    later = [f"persistent://public/default/later-{number}" for number in range(3)]
    for topic in (GOING, *later):
        asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 50), topic))
    copied(mesh)
    mesh.until(lambda: all(mesh.messages(name, topic) == 50 for name in "BC" for topic in later), "copies")
    mesh.lose("A")
    shutil.copytree(mesh.path / "snapshot", mesh.data("A"))
    printed = mesh.reclaim("A")
    assert f"took back 40 messages of {ORDERS}" in printed
    for topic in (GOING, *later):
        assert f"took back 50 messages of {topic} (the topic was made again)" in printed
    mesh.start("A")
    mesh.until_nothing_halts(lambda: mesh.messages("A", GOING) == 50)
    mesh.verify()


def test_a_topic_whose_earlier_life_was_put_back_is_deleted_with_both_lives(mesh: Mesh) -> None:
    """A was started once on an empty directory, took its messages back below its new ones, and deleted the topic."""
    published(mesh)
    before = head_after(mesh)
    mesh.start_empty("A")
    asyncio.run(publish(mesh.client_url("A"), numbered("new", 0, 5)))
    mesh.until(lambda: mesh.messages("A") == 5, "what is new")
    mesh.kill("A")
    mesh.reclaim("A")
    mesh.start("A")
    mesh.until_nothing_halts(lambda: mesh.messages("A") == 55)
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 55, "both lives everywhere")

    def lives(name: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = mesh.get(name, "/replication/v1/cuts")["topics"][ORDERS]["lineage"]["A"]
        return found

    mesh.until(lambda: len(lives("B")["stores"]) == 2, "the writers of both lives")
    store = head(mesh, "A")["store_id"]
    assert store != before["store_id"]
    mesh.until(lambda: {*lives("B")["stores"].values(), *lives("C")["stores"].values()} == {store}, "the store")
    delete(mesh, "A", ORDERS)
    mesh.until(lambda: len(lives("B")["deleted"]) == len(lives("C")["deleted"]) == 2, "the marks of both lives")
    mesh.lose("A")
    printed = mesh.reclaim("A")
    assert f"took back 50 messages of {GOING}" in printed
    assert f"not taken back: {ORDERS} was deleted on purpose" in printed
    assert f"messages of {ORDERS}" not in printed
