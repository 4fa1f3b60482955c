"""Two live copies of one store as an operator meets them: real workers, commands, metrics, and the way out.

Invariants (DESIGN §3): 2, 12, 13.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_support import ORDERS, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of
from twins_support import Twins

from replicator.client import Client, ConsumerType, InitialPosition
from replicator.engine.log.store_files import lock_directory


@pytest.fixture
def both(tmp_path: Path, postgres_server: str) -> Iterator[Twins]:
    with (
        databases_of("ABC", postgres_server, "twins") as databases,
        deployment(tmp_path, "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Twins) as deployed,
    ):
        yield deployed


async def received(url: str, count: int, subscription: str = "all", *, acknowledged: int = 0) -> set[bytes]:
    """Receive so many messages of a subscription that is not replicated, and acknowledge the first of them."""
    async with Client(url, reconnect=False) as client:
        consumer = await client.subscribe(
            ORDERS, subscription, consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        messages = [await consumer.receive(timeout_millis=20_000) for _ in range(count)]
        for each in messages[:acknowledged]:
            await consumer.acknowledge(each)
        return {each.data() for each in messages}


@pytest.mark.parametrize("stays", ["A", "copy"])
def test_two_live_copies_are_named_by_both_serve_their_clients_and_end_without_a_loss(both: Twins, stays: str) -> None:
    goes = "copy" if stays == "A" else "A"
    asyncio.run(publish(both.client_url("A"), numbered("both", 0, 100)))
    both.until(lambda: both.messages("B") == 100, "messages at B")
    both.start_copy()
    both.until(lambda: both.run("A")["twins"] and both.run("copy")["twins"], "that both are told of each other")
    first, second = both.run("A"), both.run("copy")
    assert {each["id"] for each in first["twins"]} == {second["id"]}
    assert {each["id"] for each in second["twins"]} == {first["id"]}
    assert (first["twins"][0]["served"], second["twins"][0]["served"]) == (False, True)
    assert both.metric("A") == both.metric("copy") == 1
    # Both go on serving clients; nothing is taken from the second.
    asyncio.run(publish(both.client_url("A"), numbered("first", 0, 50)))
    asyncio.run(publish(both.client_url("copy"), numbered("second", 0, 50)))
    both.until(lambda: both.messages("B") == 150, "messages of the first at B")
    assert both.messages("copy") == 150
    assert both.halted("A") == both.halted("copy") == {}
    shown = both.links("twins", status=1)
    assert first["id"][:8] in shown
    rows = json.loads(both.links("twins", "--output", "json", status=1))
    assert {row["cluster"]: [each["id"] for each in row["twins"]] for row in rows} == {"A": [second["id"]], "B": []}
    for file, other, served in (
        ("topology.yaml", second, "B serves this one alone"),
        ("copy.yaml", first, "B serves that one, and takes nothing from this"),
    ):
        said = " ".join(both.command("status", file=file).stdout.split())
        assert f"two live copies of its store: run {other['id']} on " in said
        assert served in said
    # The operator says which one stays.
    run = both.run(stays)["id"]
    assert "told: B" in both.links("stays", "--cluster", "A", "--run", run)
    both.until(lambda: not both.run(stays)["twins"], "that the one that stays has no twin any more")
    assert both.metric(goes) == 1
    both.kill(goes)
    both.kill(stays)
    if stays == "copy":
        shutil.move(both.data("A"), both.path / "data-other")
        shutil.move(both.path / "data-copy", both.data("A"))
    else:
        shutil.move(both.path / "data-copy", both.path / "data-other")
    said = both.reclaim("A", "--from-directory", str(both.path / "data-other"))
    assert "took back 50 messages" in said
    both._processes.pop("copy", None)
    both.start("A")
    every = {*numbered("both", 0, 100), *numbered("first", 0, 50), *numbered("second", 0, 50)}
    assert asyncio.run(received(both.client_url("A"), 200)) == every
    both.until(lambda: both.messages("B") == 200, "what both copies had at B")
    assert asyncio.run(received(both.client_url("B"), 200)) == every
    assert not both.halted("A")


def test_what_comes_back_between_the_ledgers_is_consumed_as_far_as_the_other_copy_says(both: Twins) -> None:
    """Invariant 5: the cursor of the copy that stays lies above what only the other one had."""
    a = both.client_url("A")
    asyncio.run(publish(a, numbered("both", 0, 20)))
    asyncio.run(take(a, 20, subscription="work"))
    asyncio.run(take(a, 1, subscription="idle", acknowledge=slice(0, 0)))
    asyncio.run(received(a, 20, "local", acknowledged=20))
    both.until(lambda: both.messages("B") == 20, "messages at B")
    both.start_copy()
    copy = both.client_url("copy")
    both.until(lambda: both.run("copy")["twins"], "that they are twins")
    asyncio.run(publish(a, numbered("first", 0, 50), batching_enabled=False))
    consumed = asyncio.run(take(a, 50, subscription="work", acknowledge=slice(0, 50, 2)))
    asyncio.run(received(a, 50, "local", acknowledged=10))  # what no other cluster can tell
    asyncio.run(publish(copy, numbered("second", 0, 30)))
    asyncio.run(received(copy, 30, "local", acknowledged=30))
    assert set(asyncio.run(take(copy, 30, subscription="work"))) == set(numbered("second", 0, 30))
    both.links("stays", "--cluster", "A", "--run", both.run("copy")["id"])
    both.kill("A")
    both.kill("copy")
    shutil.move(both.data("A"), both.path / "data-other")
    shutil.move(both.path / "data-copy", both.data("A"))
    said = both.reclaim("A", "--from-directory", str(both.path / "data-other"), "--dry-run")
    assert "between what is here" in said
    both.reclaim("A", "--from-directory", str(both.path / "data-other"))
    both.start("A")
    left = set(numbered("first", 0, 50)) - set(consumed)
    assert both.left("A", "work", ORDERS) == len(left) == 25
    assert set(asyncio.run(take(a, 25, subscription="work"))) == left
    assert both.left("A", "idle", ORDERS) == 100
    assert both.left("A", "local", ORDERS) == 40


def test_what_comes_back_behind_the_back_of_a_peer_is_named(both: Twins) -> None:
    """Invariant 13: a link goes on behind the last message that its destination has."""
    a = both.client_url("A")
    asyncio.run(publish(a, numbered("both", 0, 20)))
    both.part()
    said = both.reclaim("A", "--from-directory", str(both.path / "data-copy"))
    assert "took back 30 messages" in said
    assert "lost: persistent://public/default/orders: B lacks what came back after" in said
    both._processes.pop("copy", None)
    both.start("A")
    both.until(lambda: "earlier-life" in str(both.status("A")["links"]), "the link names what B lacks")
    both.run_links("resolve", "A", "B", "--topic", ORDERS, "--policy", "keep-both")
    every = {*numbered("both", 0, 20), *numbered("second", 0, 30), *numbered("third", 0, 10)}
    assert asyncio.run(received(a, 60)) == every


def test_a_reclaim_beside_its_running_worker_is_refused_says_what_to_do_and_disturbs_nobody(both: Twins) -> None:
    """Also if another cluster is away, which must not be named as the cause."""
    a = both.client_url("A")
    asyncio.run(publish(a, numbered("both", 0, 10)))
    both.until(lambda: both.messages("B") == 10, "what was published, at B")

    def is_refused(*options: str, directory: Path | None = None) -> None:
        refused = both.run_backup("reclaim", "-f", "topology.yaml", "-c", "A", *options)
        assert refused.returncode == 2, refused.stderr
        held = directory or both.data("A")
        assert f"data directory {held} is in use by another worker: stop it first" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert refused.stdout == ""

    is_refused()
    is_refused("--dry-run")
    is_refused("--bytes-per-second", "1000", "--without", "B")
    both.kill("B")
    is_refused()
    is_refused("--dry-run")
    both.start("B")
    asyncio.run(publish(a, numbered("both", 10, 20)))
    both.until(lambda: both.messages("B") == 20, "the worker goes on")
    assert not both.halted("A")
    assert both.status("A").get("restored") is None, "no reclaim was begun"
    both.kill("A")
    copy = both.path / "copy"
    shutil.copytree(both.data("A"), copy)
    with lock_directory(copy):  # as the worker of the other copy does
        is_refused("--from-directory", str(copy), directory=copy)
        is_refused("--dry-run", "--from-directory", str(copy), directory=copy)
    assert "nothing of A's messages that it lacks" in both.reclaim("A"), "stopped, it is done"


def test_a_worker_does_not_read_its_own_directory_or_one_that_is_no_store(both: Twins) -> None:
    asyncio.run(publish(both.client_url("A"), numbered("both", 0, 10)))
    both.kill("A")
    own = both.run_backup("reclaim", "-f", "topology.yaml", "-c", "A", "--from-directory", str(both.data("A")))
    assert own.returncode == 2
    assert "directory of A itself" in own.stderr
    (both.path / "empty").mkdir()
    empty = both.run_backup("reclaim", "-f", "topology.yaml", "-c", "A", "--from-directory", str(both.path / "empty"))
    assert empty.returncode == 2
    assert "has no store" in empty.stderr
    wrong = both.run_backup("reclaim", "-f", "topology.yaml", "-c", "A", "--from-directory", str(both.data("B")))
    assert wrong.returncode == 2, wrong.stderr
