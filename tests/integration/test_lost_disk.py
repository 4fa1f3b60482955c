"""A worker whose disk was lost heals itself at its start, and an older store never serves.

Invariants (DESIGN §3): 2, 3, 5, 10, 12 and 13. Real workers as processes, started as a user starts them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from backup_support import MESH, ORDERS, Mesh, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of


class Losing(Mesh):
    """Clusters A, B and C, whose disks are lost."""

    def readiness(self, name: str) -> tuple[int, Any]:
        """Return status and answer of ``/readyz``; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(self.url(name, "/readyz"), timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def ended(self, name: str) -> tuple[int, str]:
        """Return exit status and log of a worker that ends by itself."""
        status = self._processes.pop(name).wait(timeout=60)
        return status, (self.path / f"{name}.log").read_text()

    def started(self, name: str) -> Any:
        return self.status(name)["start"]

    def set_aside(self, name: str, to: str) -> Path:
        """Move the data directory of a worker that does not run."""
        place = self.path / to
        self.data(name).rename(place)
        return place


SOAK = pytest.mark.skipif("SOAK" not in os.environ, reason="takes a minute; test_store_start.py has it in one process")
COUNT = 100


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Losing]:
    with (
        databases_of("ABC", postgres_server, "lost") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Losing) as deployed,
    ):
        yield deployed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Losing]:
    """Yield a mesh that several tests share. Each test uses its own topic, and must leave all workers running."""
    with (
        databases_of("ABC", postgres_server, "shared") as databases,
        deployment(
            tmp_path_factory.mktemp("shared"), *databases, links=MESH, databases=databases, kind=Losing
        ) as deployed,
    ):
        yield deployed


def filled(mesh: Mesh, count: int = COUNT, topic: str = ORDERS) -> None:
    """Let each cluster publish, and half of what A published be consumed."""

    async def publish_everywhere() -> None:
        await asyncio.gather(
            *(publish(mesh.client_url(name), numbered(name.lower(), 0, count), topic) for name in "ABC")
        )

    asyncio.run(publish_everywhere())
    mesh.until(lambda: everywhere(mesh, topic) == {3 * count}, "copies everywhere")
    asyncio.run(take(mesh.client_url("A"), count, topic=topic))
    mesh.until(lambda: mesh.agree("sub", topic), "the same state everywhere")


def everywhere(mesh: Mesh, topic: str = ORDERS) -> set[int]:
    return {mesh.messages(name, topic) for name in "ABC"}


def delete(mesh: Mesh, topic: str) -> None:
    """Delete a topic at A on purpose, and wait until the others know it."""
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}?force=true"
    urllib.request.urlopen(urllib.request.Request(mesh.url("A", path), method="DELETE"), timeout=20).close()

    def is_told(name: str) -> bool:
        row = mesh.get(name, f"/replication/v1/cuts?topic={topic}")["topics"].get(topic)
        return row is None or bool(row["lineage"].get("A", {}).get("deleted"))

    mesh.until(lambda: is_told("B") and is_told("C"), "the deletion is told")


def test_a_lost_disk_heals_itself_and_nothing_is_lost_or_repeated_and_no_deleted_topic_comes_back(
    shared: Losing,
) -> None:
    mesh, gone = shared, f"{ORDERS}-gone"
    asyncio.run(publish(mesh.client_url("A"), numbered("g", 0, 20), gone))
    filled(mesh)
    mesh.until(lambda: everywhere(mesh, gone) == {20}, "copies everywhere")
    delete(mesh, gone)
    left = mesh.unconsumed("B", "sub")
    mesh.lose("A")
    mesh.start("A")
    assert mesh.started("A")["how"] == "reclaimed"
    mesh.until(lambda: mesh.messages("A") == 3 * COUNT, "everything at A")
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")
    assert mesh.unconsumed("A", "sub") == left, "nothing that was acknowledged is repeated"
    assert mesh.status("A")["restored"]["reclaimed_messages"] == COUNT
    assert mesh.status("A")["restored"]["lost"] == []
    assert mesh.messages("A", gone) == 0
    asyncio.run(publish(mesh.client_url("A"), numbered("a", COUNT, COUNT + 10)))
    mesh.until(lambda: everywhere(mesh) == {3 * COUNT + 10}, "what is published since")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    stores = mesh.status("B")["stores"]["A"]
    assert len(stores["earlier"]) == 1
    assert stores["since_ms"] is not None
    assert "A's store is a new one since" in " ".join(mesh.command("status").stdout.split())


def test_a_worker_that_goes_back_to_an_older_store_keeps_what_both_have(shared: Losing) -> None:
    """Go back with the newer store's directory, and then with that store gone. Nothing is lost."""
    mesh, topic = shared, f"{ORDERS}-back"
    filled(mesh, 50, topic)
    a = mesh.client_url("A")
    mesh.kill("A")
    old = mesh.set_aside("A", "old")
    mesh.start("A")  # the volume was not mounted
    asyncio.run(publish(a, numbered("a", 50, 70), topic))
    mesh.until(lambda: everywhere(mesh, topic) == {170}, "what is published since")
    mesh.kill("A")
    new = mesh.set_aside("A", "new")
    old.rename(mesh.data("A"))

    refused = mesh.start_refused("A")
    assert "has an older store of A" in refused
    assert f"--from-directory {mesh.data('A')}" in refused
    assert "took back 20 messages" in mesh.reclaim("A", "--from-directory", str(new))
    mesh.start("A")
    mesh.until(lambda: mesh.messages("A", topic) == 170, "everything at A")
    asyncio.run(publish(a, numbered("a", 70, 80), topic))
    mesh.until(lambda: everywhere(mesh, topic) == {180}, "what is published after that")
    mesh.kill("A")

    shutil.rmtree(mesh.data("A"))  # the store that A went back to
    new.rename(mesh.data("A"))  # the one before is an older one now
    assert "has an older store of A" in mesh.start_refused("A")
    assert "took back 10 messages" in mesh.reclaim("A"), "what peers hold of the newer one"
    mesh.start("A")
    asyncio.run(publish(a, numbered("a", 80, 85), topic))
    mesh.until(lambda: everywhere(mesh, topic) == {185}, "everything everywhere")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    mesh.report("verify", "--settle", "0", "--topic", topic)  # ends with 0


@SOAK
def test_a_whole_mesh_starts_at_once_on_new_stores_and_with_one_that_has_everything(mesh: Losing) -> None:
    topic = f"{ORDERS}-all"
    filled(mesh, 50, topic)
    for name in "ABC":
        mesh.kill(name)
    for name in "AB":
        shutil.rmtree(mesh.data(name))
    mesh.start("A", "B", "C")
    mesh.until(lambda: everywhere(mesh, topic) == {150}, "everything everywhere")
    assert {name: mesh.started(name)["how"] for name in "ABC"} == {"A": "reclaimed", "B": "reclaimed", "C": "usual"}
    mesh.until(lambda: mesh.agree("sub", topic), "the same state everywhere")
    for name in "ABC":
        mesh.kill(name)
        shutil.rmtree(mesh.data(name))
    mesh.start("A", "B", "C")
    assert {mesh.started(name)["how"] for name in "ABC"} == {"first"}
    assert not any(mesh.started(name)["unasked"] for name in "ABC")


@SOAK
def test_an_operator_can_keep_the_newer_store_and_take_over_what_only_the_older_one_has(mesh: Losing) -> None:
    filled(mesh, 50)
    a = mesh.client_url("A")
    for peer in "BC":
        mesh.pause("A", peer)
    asyncio.run(publish(a, numbered("o", 0, 20)))  # nobody else has these
    mesh.kill("A")
    old = mesh.set_aside("A", "old")
    mesh.start("A")
    asyncio.run(publish(a, numbered("a", 50, 60)))
    mesh.until(lambda: {mesh.messages(name) for name in "ABC"} == {160}, "what is published since")
    mesh.kill("A")
    assert "20 messages" in mesh.reclaim("A", "--from-directory", str(old))
    mesh.start("A")
    assert mesh.messages("A") == 180


@SOAK
def test_a_running_older_store_ends_as_soon_as_a_silent_peer_tells(mesh: Losing) -> None:
    filled(mesh, 20)
    mesh.kill("A")
    old = mesh.set_aside("A", "old")
    mesh.start("A")
    mesh.until(lambda: len(mesh.status("B")["stores"]["A"]["earlier"]) == 1, "B knows the newer one")
    mesh.until(lambda: len(mesh.status("C")["stores"]["A"]["earlier"]) == 1, "C knows the newer one")
    for name in "ABC":
        mesh.kill(name)
    mesh.set_aside("A", "new")
    old.rename(mesh.data("A"))
    mesh.start("A")  # nobody is there to tell
    assert mesh.started("A")["how"] == "usual"
    assert mesh.started("A")["nobody_asked"]
    mesh.start("B")
    status, log = mesh.ended("A")
    assert status == 2
    assert "has an older store of A" in log
    assert len(mesh.status("B")["stores"]["A"]["earlier"]) == 1, "its link did not make it the newest again"


@SOAK
def test_a_start_that_is_killed_in_the_middle_goes_on_with_one_peer_down(mesh: Losing) -> None:
    for number in range(8):
        topic = f"{ORDERS}-{number}"
        asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 50), topic))
    mesh.until(lambda: all(mesh.messages("B", f"{ORDERS}-{n}") == 50 for n in range(8)), "copies at B")
    mesh.lose("A")
    mesh.kill("C")
    for _ in range(10):
        mesh.launch("A")
        mesh.until(lambda: mesh.readiness("A")[1].get("start", {}).get("state") in ("reclaiming", None), "it begins")
        time.sleep(random.uniform(0, 0.5))  # a moment of the reclaim, or after it
        mesh.kill("A")
    mesh.start("A")
    assert all(mesh.messages("A", f"{ORDERS}-{n}") == 50 for n in range(8))
    assert mesh.status("A")["restored"]["lost"] == ["C was not asked: what only it has of A's messages"]
    mesh.start("C")
    mesh.until(lambda: mesh.started("A")["unasked"] == {}, "C is asked later")
    assert mesh.halted("A") == {}


@SOAK
def test_a_worker_waits_for_a_peer_if_postgres_has_rows_of_an_earlier_store(mesh: Losing) -> None:
    filled(mesh, 20)
    for name in "ABC":
        mesh.kill(name)
    shutil.rmtree(mesh.data("A"))
    mesh.launch("A")
    mesh.until(lambda: mesh.readiness("A")[1].get("start", {}).get("state") == "waiting", "it waits")
    status, answer = mesh.readiness("A")
    assert status == 503
    assert set(answer["start"]["peers"]) == {"B", "C"}
    assert "--on-empty-store start" in answer["reason"]
    assert not (mesh.data("A") / "log").exists(), "nothing was changed"
    assert urllib.request.urlopen(mesh.url("A", "/healthz"), timeout=5).status == 200
    assert "The worker waits for B, C" in mesh.report("status", status=3)["A"]["error"]
    mesh.start("B")
    mesh.wait_ready("A")
    assert mesh.started("A")["how"] == "reclaimed"
    mesh.until(lambda: mesh.messages("A") == 40, "what A and B published")

    mesh.kill("B")
    mesh.lose("A")
    mesh.launch("A")
    mesh.until(lambda: mesh.readiness("A")[1].get("start", {}).get("state") == "waiting", "it waits")
    mesh.stop()  # SIGTERM ends the wait
    mesh.start_empty("A")
    assert mesh.started("A")["how"] == "empty"


@SOAK
def test_a_worker_that_is_to_refuse_names_the_command_and_changes_nothing(mesh: Losing) -> None:
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 20)))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 20, "copies")
    mesh.lose("A")
    done = forked_commands.run(
        "worker", "--cluster", "A", "-f", "topology.yaml", "--on-empty-store", "refuse", cwd=mesh.path
    )
    assert done.returncode == 2
    assert "replicator backup reclaim -f FILE --cluster A" in done.stderr
    assert not (mesh.data("A") / "log").exists()
    mesh.reclaim("A")
    mesh.start("A", options=("--on-empty-store", "refuse"))
    assert mesh.messages("A") == 20


@SOAK
def test_a_first_start_whose_peers_do_not_run_serves_and_says_that_nobody_was_asked(
    tmp_path: Path, postgres_server: str
) -> None:
    with databases_of("AB", postgres_server, "first") as databases:
        deployed = Losing(tmp_path, "AB", "[{between: [A, B]}]", databases)
        try:
            deployed.launch("A")
            deployed.wait_ready("A")
            start = deployed.started("A")
            assert start["how"] == "first"
            assert start["nobody_asked"]
            assert "B" in start["unasked"]
            assert "no other cluster was asked" in " ".join(deployed.command("status").stdout.split())
            deployed.start("B")
            deployed.until(lambda: deployed.started("A")["unasked"] == {}, "B is asked later")
            assert not deployed.started("A")["nobody_asked"]
        finally:
            deployed.stop()
