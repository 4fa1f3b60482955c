"""A cluster lost its disk, and its worker was started on an empty directory and used since. The others have the only
copies of its lost messages.

Invariants (DESIGN §3): 2, 3, 5, 6 and 10. The commands run as a user runs them, on real workers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_support import MESH, ORDERS, Mesh, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of

from replicator.client import Client, ConsumerType, InitialPosition

MESSAGES = int(os.environ.get("RECLAIM_USED_MESSAGES", "6000"))
"""Published in the life that is lost."""


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "used") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


async def read_all(url: str, count: int) -> list[bytes]:
    """Read the log from its first message on."""
    async with Client(url, reconnect=False) as client:
        reader = await client.subscribe(
            ORDERS,
            "reader",
            consumer_type=ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=False,
        )
        found: list[bytes] = []
        while len(found) < count:
            message = await reader.receive(timeout_millis=30_000)
            found.append(message.data())
            await reader.acknowledge(message)
        return found


def test_what_was_lost_comes_back_below_what_was_confirmed_since_and_nothing_is_consumed_that_nobody_consumed(
    mesh: Mesh,
) -> None:
    a, b = mesh.client_url("A"), mesh.client_url("B")
    old, since, others = numbered("a", 0, MESSAGES), numbered("n", 0, 50), numbered("b", 0, 100)
    acknowledged: list[bytes] = []

    async def earlier() -> None:
        await publish(a, old)
        await publish(b, others)
        mesh.until(lambda: mesh.messages("A") == mesh.messages("C") == MESSAGES + 100, "copies", 120)
        acknowledged.extend(await take(a, MESSAGES // 2, acknowledge=slice(0, MESSAGES // 2, 2)))

    asyncio.run(earlier())
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere", 120)
    last = mesh.topic("A")["high_water"]["A"]

    mesh.lose("A")
    mesh.start_empty("A")
    mesh.until(
        lambda: mesh.messages("A") == 100 and mesh.has("sub")["A"], "what others published, and the subscription"
    )
    asyncio.run(publish(a, since))
    taken = asyncio.run(take(a, 120, acknowledge=slice(0, 60)))  # of the others' messages, and of the new ones
    acknowledged.extend(taken)
    mesh.kill("A")

    printed = mesh.reclaim("A", "--dry-run")
    assert f"{ORDERS} (an earlier life, below what is here): {MESSAGES} messages after " in printed
    assert "from B (up to " in printed
    printed = mesh.reclaim("A")
    assert f"took back {MESSAGES} messages of {ORDERS} (an earlier life, below what was here)" in printed
    assert "lost: " not in printed
    assert "nothing of A's messages that it lacks" in mesh.reclaim("A")
    mesh.start("A")
    assert mesh.messages("A") == MESSAGES + 150
    everything = asyncio.run(read_all(a, MESSAGES + 150))
    assert everything[:MESSAGES] == old, "in their order, before all that was confirmed since"
    assert sorted(everything[MESSAGES:]) == sorted([*others, *since])
    assert [each for each in everything if each.startswith(b"n")] == since

    left = asyncio.run(take(a, MESSAGES + 150 - len(acknowledged)))
    assert sorted([*left, *acknowledged]) == sorted([*old, *others, *since]), "each is consumed once"
    first, second = (tuple(map(int, each.split(":"))) for each in (last, mesh.topic("A")["high_water"]["A"]))
    assert second > first, "invariant 10"
    mesh.until_nothing_halts()
    mesh.until(lambda: mesh.agree("sub") and mesh.consumed(), "the same state everywhere", 120)
    assert {mesh.messages(name) for name in "ABC"} == {MESSAGES + 150}
    said = " ".join(mesh.command("status").stdout.split())
    assert f"A: {MESSAGES} messages were taken back from other clusters on " in said
    assert "restored to" not in said
    logs = {name: (mesh.path / f"{name}.log").read_text() for name in "AB"}
    assert "messages of this store were taken back from other clusters" in logs["A"]
    assert "this store was restored from a backup" not in logs["A"]
    assert "or a reclaim was run on it" in logs["B"]
    mesh.verify()


def test_a_cluster_that_has_later_messages_and_lacks_the_earlier_life_gets_a_named_gap_that_keeps_both(
    mesh: Mesh,
) -> None:
    """A loses its disk before C had anything of it. Then C gets what A publishes since."""
    a = mesh.client_url("A")
    mesh.pause("A", "C")
    asyncio.run(publish(a, numbered("a", 0, 200)))
    mesh.until(lambda: mesh.messages("B") == 200, "the copy at B")
    mesh.lose("A")
    mesh.start_empty("A")
    asyncio.run(publish(a, numbered("n", 0, 10)))
    mesh.until(lambda: mesh.messages("C") == 10, "the new ones at C")
    mesh.until(lambda: "made-anew" in str(gaps(mesh, "B")), "the link to B says why it stands still")
    mesh.kill("A")
    assert f"took back 200 messages of {ORDERS} (an earlier life, below what was here)" in mesh.reclaim("A")
    mesh.start("A")
    mesh.run_links("resume", "A", "C")  # if the others had heard of the pause, it came back with A's other settings
    mesh.until(lambda: mesh.messages("B") == 210, "the new ones at B, without a word of an operator")
    mesh.until(lambda: "earlier-life" in str(gaps(mesh, "C")), "the link to C names what C lacks")
    assert mesh.messages("A") == 210
    refused = mesh.report("failover", "--from", "A", "--to", "C", "--timeout", "1", status=1)
    assert "it lacks messages that belong to an earlier life" in refused["reason"]
    assert refused["not_received"] == 200
    mesh.run_links("resolve", "A", "C", "--topic", ORDERS, "--policy", "keep-both")
    asyncio.run(publish(a, numbered("n", 10, 20)))
    mesh.until(lambda: mesh.messages("C") == 20 and mesh.messages("B") == 220, "what goes on at C and at B")
    assert mesh.messages("A") == 220, "A keeps both lives"
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    mesh.verify()  # what C lacks is noted there


def gaps(mesh: Mesh, destination: str) -> list[str]:
    links = mesh.status("A")["links"]
    return [gap["kind"] for link in links if link["to"] == destination for gap in link["gaps"]]


def test_a_log_that_was_trimmed_since_takes_back_its_earlier_life_and_claims_nothing_that_it_does_not_know(
    mesh: Mesh,
) -> None:
    a, b = mesh.client_url("A"), mesh.client_url("B")
    old, others = numbered("a", 0, 300), numbered("b", 0, 50)
    acknowledged: list[bytes] = []

    async def earlier() -> None:
        await publish(a, old)
        await publish(b, others)
        mesh.until(lambda: mesh.messages("A") == mesh.messages("C") == 350, "copies")
        acknowledged.extend(await take(a, 200, acknowledge=slice(0, 200, 2)))

    asyncio.run(earlier())
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")
    mesh.lose("A")
    mesh.start_empty("A")
    mesh.until(lambda: mesh.messages("A") == 50 and mesh.has("sub")["A"], "what others published")
    left = 50 - sum(each.startswith(b"b") for each in acknowledged)
    acknowledged.extend(asyncio.run(take(a, left)))
    mesh.truncate("A")  # all is consumed
    trimmed = mesh.topic("A")["trimmed"]
    asyncio.run(publish(a, numbered("n", 0, 10)))
    mesh.kill("A")
    assert f"took back 300 messages of {ORDERS} (an earlier life, below what was here)" in mesh.reclaim("A")
    mesh.start("A")
    assert mesh.topic("A")["messages"] == 360, "what was trimmed counts, as ever"
    assert mesh.topic("A")["trimmed"] < trimmed
    mesh.until_nothing_halts()
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")
    rest = asyncio.run(take(b, 360 - len(acknowledged)))
    published = [*old, *others, *numbered("n", 0, 10)]
    assert sorted([*rest, *acknowledged]) == sorted(published), "each is consumed once, wherever"
    mesh.until(lambda: mesh.left("A", "sub", ORDERS) == 0, "nothing is left at A")
    mesh.verify()
