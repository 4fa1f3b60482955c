"""A cluster of a mesh is restored from an old copy: what of it comes back, what is lost, and that both are said.

Invariants (DESIGN §3): 2, 3, 5, 6 and 10. The commands are run as a user runs them, on real workers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from backup_support import MESH, ORDERS, Mesh, numbered, publish, take, timed
from failover_support import deployment
from peers.apache_support import official
from postgres_support import databases_of

MESSAGES = int(os.environ.get("BACKUP_MESH_MESSAGES", "5000"))
"""Published and acknowledged after the copy; 100,000 by hand."""
LATER = "persistent://public/default/later"
QUIET = "persistent://public/default/quiet"
SUBSCRIPTIONS = [("sub", ORDERS), ("sub", QUIET), ("sub", LATER), ("late", ORDERS)]


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "backup") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def high(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(":")))


def test_a_restored_cluster_of_a_mesh_takes_back_all_that_others_have_and_no_acknowledgement_is_lost(
    mesh: Mesh,
) -> None:
    """Invariants 2, 3, 5, 6, 10: made, then thousands of messages and acknowledgements later."""
    a, b, c = (mesh.client_url(name) for name in "ABC")
    quarter = MESSAGES // 4
    acknowledged: list[bytes] = []

    async def before() -> None:
        await asyncio.gather(
            publish(a, numbered("a", 0, 300)), publish(b, numbered("b", 0, 300)), publish(c, numbered("c", 0, 300))
        )
        await publish(a, numbered("q", 0, 100), QUIET)
        mesh.until(lambda: mesh.messages("A") == 900, "all messages at A")
        acknowledged.extend(await take(a, 300, acknowledge=slice(0, 300, 3)))
        await take(a, 100, acknowledge=slice(0, 10), topic=QUIET)
        await take(a, 1, subscription="gone", topic=QUIET)

    async def after() -> None:
        await asyncio.gather(
            publish(a, numbered("a", 300, 300 + 2 * quarter)),
            publish(b, numbered("b", 300, 300 + quarter)),
            publish(c, numbered("c", 300, 300 + quarter)),
            publish(a, numbered("l", 0, 200), LATER),
        )
        mesh.until(lambda: mesh.messages("A") == 900 + 4 * quarter, "all messages at A", 300)
        acknowledged.extend(await take(a, 3 * quarter))
        await take(a, 90, acknowledge=slice(0, 60), topic=QUIET)  # nothing else happens there: nobody is told by it
        await take(a, 200, acknowledge=slice(0, 200, 2), topic=LATER)
        await take(a, 300, subscription="late", acknowledge=slice(0, 50))
        mesh.delete_subscription("A", "gone", QUIET)
        mesh.until(lambda: not any(mesh.has("gone", QUIET).values()), "the deletion everywhere")

    def settled() -> bool:
        return all(mesh.agree(*each) for each in SUBSCRIPTIONS) and not any(map(mesh.halted, "ABC"))

    asyncio.run(before())
    mesh.until(lambda: mesh.agree("sub") and mesh.agree("sub", QUIET), "the same state everywhere")
    mesh.until(lambda: all(mesh.has("gone", QUIET).values()), "the subscription everywhere")
    since = time.monotonic()
    mesh.create("A")
    since = timed("backup", since)
    asyncio.run(after())
    since = timed("traffic", since)
    mesh.until(settled, "the same state everywhere", 300)
    since = timed("settling", since)
    left = {each: mesh.unconsumed("B", *each) for each in SUBSCRIPTIONS}
    last = mesh.topic("A")["high_water"]["A"]

    mesh.lose("A")
    printed = mesh.restore("A")
    assert "delivered again" in printed
    assert "takes the place of a worker of A that still runs elsewhere" in " ".join(printed.split())
    assert f"took back {2 * quarter} messages of {ORDERS}, " in printed
    assert f"took back 200 messages of {LATER} (the topic was made again), " in printed
    since = timed("restore", since)
    mesh.start("A")
    since = timed("start", since)
    mesh.until(settled, "the same state everywhere", 300)
    since = timed("healing", since)
    assert {each: mesh.unconsumed("A", *each) for each in SUBSCRIPTIONS} == left
    mesh.until(lambda: not any(mesh.has("gone", QUIET).values()), "what was deleted since is deleted again")
    mesh.verify()  # ends with 0
    since = timed("verify", since)
    assert mesh.status("A")["restored"]["reclaimed_messages"] == 2 * quarter + 200
    assert "this store was restored from a backup" in (mesh.path / "A.log").read_text()

    async def go_on() -> list[bytes]:
        await publish(a, numbered("a", 1_000_000, 1_000_010))
        mesh.until(lambda: mesh.agree("sub"), "the new ones everywhere")
        return await take(a, 900 + 4 * quarter + 10 - len(acknowledged))

    taken = asyncio.run(go_on())
    mesh.until(mesh.consumed, "nothing is left anywhere")
    published = [
        *numbered("a", 0, 300 + 2 * quarter),
        *numbered("b", 0, 300 + quarter),
        *numbered("c", 0, 300 + quarter),
        *numbered("a", 1_000_000, 1_000_010),
    ]
    assert sorted([*taken, *acknowledged]) == sorted(published), "each is consumed once"
    assert high(mesh.topic("A")["high_water"]["A"]) > high(last)
    timed("the rest", since)


def test_what_no_other_cluster_had_is_lost_and_said_and_the_links_go_on(mesh: Mesh) -> None:
    """And the worker is not started before the others were asked; a failover since is known by then."""
    a, b = mesh.client_url("A"), mesh.client_url("B")
    asyncio.run(publish(a, numbered("a", 0, 50)))
    mesh.until(lambda: mesh.messages("C") == mesh.messages("B") == 50, "copies")
    mesh.create("A")
    asyncio.run(publish(a, numbered("a", 50, 70)))
    mesh.until(lambda: mesh.messages("C") == mesh.messages("B") == 70, "copies")
    for to in ("B", "C"):
        mesh.pause("A", to)
    asyncio.run(publish(a, numbered("a", 70, 80)))
    assert mesh.messages("A") == 80
    last = mesh.topic("A")["high_water"]["A"]
    mesh.lose("A")
    mesh.report("failover", "--from", "A", "--to", "B", "--unplanned")
    asyncio.run(publish(b, numbered("b", 0, 5)))

    mesh.restore("A", "--no-reclaim")
    refused = mesh.start_refused("A")
    assert "replicator backup reclaim" in refused
    mesh.kill("C")
    printed = mesh.reclaim("A", status=3)
    assert "--without C" in printed
    printed = mesh.reclaim("A", "--without", "C")
    assert f"took back 20 messages of {ORDERS}, " in printed
    assert "epoch 1" in printed
    assert "lost: C was not asked" in printed
    mesh.start("C")
    mesh.start("A")
    assert mesh.state("A")["fenced"]
    mesh.until(lambda: mesh.messages("A") == mesh.messages("B") == mesh.messages("C") == 75, "70 of A, 5 of B")
    mesh.report("failback", "--to", "A")
    for to in ("B", "C"):
        mesh.run_links("resume", "A", to)  # the pause is a setting of A, and came back with its messages
    asyncio.run(publish(a, numbered("a", 100, 110)))
    mesh.until(lambda: mesh.messages("A") == mesh.messages("B") == mesh.messages("C") == 85, "the new ones everywhere")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    assert high(mesh.topic("A")["high_water"]["A"]) > high(last), "invariant 10"
    assert "C was asked later" in mesh.status("A")["restored"]["lost"][0]
    shown = " ".join(mesh.command("status").stdout.split())
    assert "restored to" in shown
    assert "20 messages came back" in shown
    mesh.verify()

    mesh.lose("A")  # once more, now that it has written an epoch itself
    printed = mesh.restore("A")
    assert "epoch 2" in printed
    mesh.start("A")
    assert not mesh.state("A")["fenced"]
    mesh.until(lambda: mesh.messages("A") == mesh.messages("B") == 85, "the same once more")
    mesh.report("failover", "--from", "A", "--to", "B")
    mesh.until(lambda: mesh.state("C")["epoch"] == 3, "the epoch at C")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]


def test_what_only_a_cluster_has_that_was_not_asked_stops_its_link_until_an_operator_goes_on(mesh: Mesh) -> None:
    """Messages that an operator gave up do not come back."""
    a = mesh.client_url("A")
    asyncio.run(publish(a, numbered("a", 0, 10)))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 10, "copies")
    mesh.create("A")
    mesh.pause("A", "B")
    asyncio.run(publish(a, numbered("a", 10, 20)))
    mesh.until(lambda: mesh.messages("C") == 20, "the copy at C")
    mesh.lose("A")
    mesh.restore("A", "--without", "C")
    mesh.start("A")
    mesh.run_links("resume", "A", "B")  # if the others had heard of the pause, it came back
    asyncio.run(publish(a, numbered("a", 100, 105)))
    mesh.until(lambda: mesh.messages("B") == 15, "what goes on at B")
    mesh.until(lambda: "is not in the log here" in str(mesh.halted("A")), "the link to C says why it stands still")
    report = mesh.report("verify", "--settle", "0", status=1)
    assert report["missing"] >= 10, "what A lacks is named"
    mesh.run_links("resolve", "A", "C", "--topic", ORDERS, "--policy", "skip-and-record")
    mesh.until(lambda: mesh.messages("C") == 25, "what goes on at C")
    mesh.verify()  # what an operator left out counts as such
    mesh.kill("A")
    assert "nothing of A's messages that it lacks" in mesh.reclaim("A")


def test_what_only_a_cluster_has_that_was_not_asked_comes_back_when_it_is_asked_later(mesh: Mesh) -> None:
    """B has later messages and lacks what comes back: each link and switch says so until an operator decides."""
    a = mesh.client_url("A")
    asyncio.run(publish(a, numbered("a", 0, 10)))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 10, "copies")
    mesh.create("A")
    mesh.pause("A", "B")
    asyncio.run(publish(a, numbered("a", 10, 20)))
    mesh.until(lambda: mesh.messages("C") == 20, "the copy at C")
    mesh.lose("A")
    mesh.restore("A", "--without", "C")
    mesh.start("A")
    mesh.run_links("resume", "A", "B")  # if the others had heard of the pause, it came back
    asyncio.run(publish(a, numbered("a", 100, 105)))
    mesh.until(lambda: mesh.messages("B") == 15, "what goes on at B")
    mesh.kill("A")
    printed = mesh.reclaim("A")
    assert f"took back 10 messages of {ORDERS} (between what was here)" in printed
    assert f"lost: {ORDERS}: B lacks what came back after" in printed
    mesh.start("A")
    mesh.until(lambda: mesh.messages("A") == mesh.messages("C") == 25, "all at A and C, without a word")
    mesh.until(lambda: "that a reclaim put back" in str(mesh.status("A")["links"]), "the link to B names the gap")
    refused = mesh.report("failover", "--from", "A", "--to", "B", "--timeout", "1", status=1)
    assert "that a reclaim put back" in refused["reason"]
    mesh.run_links("resolve", "A", "B", "--topic", ORDERS, "--policy", "keep-both")
    asyncio.run(publish(a, numbered("a", 105, 110)))
    mesh.until(lambda: mesh.messages("B") == 20, "what goes on at B")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    mesh.verify()  # what B lacks is noted there
    mesh.report("failover", "--from", "A", "--to", "B")


def test_a_start_that_restores_waits_for_a_silent_cluster_and_then_takes_back(mesh: Mesh) -> None:
    """It is tried again until all have answered. Before that no worker starts."""
    a = mesh.client_url("A")
    asyncio.run(publish(a, numbered("a", 0, 10)))
    mesh.create("A")
    asyncio.run(publish(a, numbered("a", 10, 20)))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 20, "copies")
    mesh.lose("A")
    mesh.kill("B")
    for _ in range(2):
        assert "B" in mesh.restore("A", "--if-empty", status=3)
    assert "has a store: nothing was restored" in mesh.restore("A", "--if-empty", "--no-reclaim")
    assert "backup reclaim" in mesh.start_refused("A")
    mesh.start("B")
    (mesh.data("A") / "restoring").mkdir()  # a restore was killed when its store was in place already
    assert "was cut off" in mesh.start_refused("A")
    assert "took back 10 messages" in mesh.restore("A", "--if-empty")
    assert "nothing was restored" in mesh.restore("A", "--if-empty")
    mesh.start("A")
    assert mesh.messages("A") == 20


def test_what_others_had_trimmed_is_a_hole_that_the_restored_cluster_never_claims(mesh: Mesh) -> None:
    """Invariant 5: C did not consume what A lost, and B had trimmed it."""
    a = mesh.client_url("A")

    async def some(first: int, last: int) -> None:
        for number in range(first, last):
            await publish(a, numbered("a", number, number + 1))

    asyncio.run(some(0, 5))
    mesh.until(lambda: mesh.messages("B") == mesh.messages("C") == 5, "copies")
    mesh.create("A")
    asyncio.run(some(5, 15))
    asyncio.run(take(a, 15))
    mesh.until(lambda: mesh.agree("sub") and mesh.messages("C") == 15, "the same state everywhere")
    for name in "BC":
        mesh.truncate(name)
    mesh.lose("A")
    printed = mesh.restore("A")
    assert "lost: " in printed
    assert "nobody has" in printed
    mesh.start("A")
    mesh.until_nothing_halts()
    (hole,) = mesh.get("A", "/replication/v1/cuts")["topics"][ORDERS]["left_out"]["A"]
    assert high(hole[0]) < high(hole[1]) <= high(mesh.topic("A")["high_water"]["A"])
    assert mesh.messages("A") == 5
    asyncio.run(publish(a, numbered("a", 100, 110)))
    mesh.until(lambda: mesh.messages("A") == 15 and mesh.messages("B") == mesh.messages("C") == 25, "the new ones")
    mesh.until(lambda: mesh.has("sub")["A"] and mesh.left("A", "sub", ORDERS) == 10, "what others know of it")
    taken = asyncio.run(take(a, 10))
    assert sorted(taken) == sorted(numbered("a", 100, 110)), "what was consumed stays so"
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]


def test_a_cluster_that_lost_its_disk_and_has_no_backup_takes_back_its_own_messages_too(mesh: Mesh) -> None:
    a, b = mesh.client_url("A"), mesh.client_url("B")

    async def some() -> None:
        await publish(a, numbered("a", 0, 500))
        await publish(b, numbered("b", 0, 100))
        mesh.until(lambda: mesh.messages("A") == mesh.messages("C") == 600, "copies")
        await take(a, 600, acknowledge=slice(0, 600, 2))

    asyncio.run(some())
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")
    left, last = mesh.unconsumed("C", "sub"), mesh.topic("A")["high_water"]["A"]
    mesh.lose("A")
    assert f"took back 500 messages of {ORDERS}" in mesh.reclaim("A")
    mesh.start("A")
    mesh.until(lambda: mesh.agree("sub") and not any(map(mesh.halted, "ABC")), "the same state everywhere")
    assert mesh.unconsumed("A", "sub") == left
    asyncio.run(publish(a, numbered("a", 500, 510)))
    mesh.until(lambda: mesh.messages("C") == 610, "the new ones")
    assert high(mesh.topic("A")["high_water"]["A"]) > high(last), "invariant 10"
    mesh.verify()


def test_metadata_larger_than_what_may_be_published_now_is_restored_and_taken_back(
    tmp_path: Path, postgres_server: str
) -> None:
    """Both clusters took it under a larger limit, which is the usual one again when A is restored."""
    larger, sizes = "\nstore: {message_size_max: 20MiB}", [7_000_000, 9_000_000]

    def send(name: str, size: int) -> None:
        with official(pair.client_url(name)) as client:
            producer = client.create_producer(ORDERS, send_timeout_millis=60_000)
            producer.send(b"x", {"large": "v" * size})

    def read(name: str) -> list[int]:
        with official(pair.client_url(name)) as client:
            reader = client.create_reader(ORDERS, pulsar.MessageId.earliest)
            return [len(reader.read_next(30_000).properties()["large"]) for _ in sizes]

    links = "[{between: [A, B]}]"
    with (
        databases_of("AB", postgres_server, "metadata") as databases,
        deployment(tmp_path, "A", "B", links=links + larger, databases=databases, kind=Mesh) as pair,
    ):
        send("A", sizes[0])
        pair.create("A")
        send("A", sizes[1])
        pair.until(lambda: pair.messages("B") == 2, "copies")
        pair.lose("A")
        pair.write(links)
        assert f"took back 1 messages of {ORDERS}, " in pair.restore("A")
        pair.start("A")
        with pytest.raises(pulsar.MessageTooBig):
            send("A", sizes[0])
        assert read("A") == sizes
        pair.kill("B")
        pair.start("B")
        assert read("B") == sizes
        pair.verify()
