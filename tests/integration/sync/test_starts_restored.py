"""Starts of subscriptions when a cluster loses its disk, is restored from a backup, and takes back what others have.

Invariant 5 (DESIGN §3, 4.7). The commands are run as a user runs them, on real workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backup_support import ORDERS, Mesh, numbered, publish
from failover_support import deployment
from postgres_support import databases_of

from replicator.client import Client, ConsumerType, InitialPosition


@pytest.fixture
def pair(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "starts_restored") as databases,
        deployment(tmp_path, "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def published(pair: Mesh, first: int, last: int) -> None:
    """Publish at A, and return when B has it."""
    asyncio.run(publish(pair.client_url("A"), numbered("a", first, last), batching_enabled=False))
    pair.until(lambda: pair.messages("A") == last == pair.messages("B"), f"{last} messages at both")


def subscribed(pair: Mesh, name: str, initial: InitialPosition, *, acknowledging: int = 0) -> list[bytes]:
    """Subscribe in a cluster, and receive and acknowledge so many messages."""

    async def main() -> list[bytes]:
        async with Client(pair.client_url(name), reconnect=False) as client:
            consumer = await client.subscribe(
                ORDERS,
                "sub",
                consumer_type=ConsumerType.Shared,
                initial_position=initial,
                replicate_subscription_state_enabled=True,
            )
            taken = []
            for _ in range(acknowledging):
                message = await consumer.receive(timeout_millis=30_000)
                await consumer.acknowledge(message)
                taken.append(message.data())
            return taken

    return asyncio.run(main())


def told(pair: Mesh, name: str) -> Any:
    """Return a cluster's knowledge of the subscription: the start, and the acknowledged messages."""
    return pair.get(name, f"/replication/v1/ack-vectors?topic={ORDERS}")["subscriptions"]["sub"]


def place(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(":")))


def left(pair: Mesh) -> list[int]:
    return [pair.left(name, "sub", ORDERS) if pair.has("sub")[name] else -1 for name in "AB"]


def test_invariant_5_a_restored_store_takes_the_earlier_start_and_the_acknowledgements_of_others(pair: Mesh) -> None:
    """A begins at the latest message; B, which A does not hear, from the earliest on. Then A loses its disk.

    Its restored store asks B for the state before it serves, although the link from B is paused.
    """
    published(pair, 0, 5)
    pair.pause("B", "A")
    assert subscribed(pair, "B", InitialPosition.Earliest, acknowledging=1) == numbered("a", 0, 1)
    subscribed(pair, "A", InitialPosition.Latest)
    start = told(pair, "A")["starts"]
    pair.create("A")
    published(pair, 5, 10)  # only B has it when A is lost
    assert subscribed(pair, "A", InitialPosition.Latest, acknowledging=2) == numbered("a", 5, 7)
    pair.until(lambda: left(pair) == [3, 7], "A tells what was acknowledged after the start")

    pair.lose("A")
    assert "took back 5 messages" in pair.restore("A")
    pair.start("A")
    assert told(pair, "A")["starts"] == told(pair, "B")["starts"] != start
    assert left(pair) == [7, 7], "A knows the earlier start, and what was acknowledged"
    published(pair, 10, 11)
    assert left(pair) == [8, 8]
    pair.run_links("resume", "B", "A")
    pair.until(lambda: told(pair, "A")["digest"] == told(pair, "B")["digest"], "A has what B wrote")
    assert left(pair) == [8, 8]
    assert sorted(subscribed(pair, "A", InitialPosition.Latest, acknowledging=8)) == sorted(
        numbered("a", 1, 5) + numbered("a", 7, 11)
    )
    pair.until(lambda: left(pair) == [0, 0], "nothing is left")


@pytest.mark.parametrize("backup", [True, False], ids=["from a backup", "without one"])
def test_invariant_5_what_a_cluster_takes_back_from_before_a_start_is_neither_delivered_nor_claimed(
    pair: Mesh, backup: bool
) -> None:
    """The subscription was made after the backup, at the latest message: B tells of it when A is back."""
    published(pair, 0, 5)
    if backup:
        pair.create("A")
    published(pair, 5, 10)
    subscribed(pair, "A", InitialPosition.Latest)
    pair.until(lambda: left(pair) == [0, 0], "the subscription at B")
    start = told(pair, "B")["starts"]
    pair.lose("A")
    printed = pair.restore("A") if backup else pair.reclaim("A")
    assert f"took back {5 if backup else 10} messages" in printed
    pair.start("A")
    pair.until(lambda: left(pair) == [0, 0], "the subscription at A")
    published(pair, 10, 12)
    pair.until(lambda: left(pair) == [2, 2], "what comes later")
    for name in "AB":
        assert told(pair, name)["starts"] == start
        claimed = told(pair, name)["vector"]["A"]
        assert all(place(after) >= place(start["A"][1]) for after, _ in claimed["ranges"])
        assert claimed["beyond"] == []
    assert subscribed(pair, "A", InitialPosition.Earliest, acknowledging=2) == numbered("a", 10, 12)
