"""Entries above what a cluster lets clients publish come back to it from a backup and from other clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from backup_support import ORDERS, Mesh
from failover_support import deployment
from postgres_support import databases_of

from replicator.client import Client, InitialPosition, MessageTooBig

LINKS = "[{between: [A, B]}]"
ANY_SIZE = f"{LINKS}\nstore: {{message_size_max: 16MiB}}"
SMALL = f"{LINKS}\nstore: {{message_size_max: 64KiB}}"
SIZES = (9_000_000, 8_000_000)
"""Bytes of metadata, of a message before the backup and of one after it."""


@pytest.fixture
def pair(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "large_restored") as databases,
        deployment(tmp_path, "A", "B", links=ANY_SIZE, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def send(pair: Mesh, size: int) -> None:
    """Publish a message with so many bytes of metadata at A."""

    async def main() -> None:
        async with Client(pair.client_url("A")) as client:
            await (await client.create_producer(ORDERS)).send(b"x", {"large": "v" * size})

    asyncio.run(main())


def sizes_at(pair: Mesh, name: str) -> Sequence[int]:
    """Return the sizes of the metadata of all messages that a cluster delivers."""

    async def main() -> Sequence[int]:
        async with Client(pair.client_url(name)) as client:
            consumer = await client.subscribe(ORDERS, "all", initial_position=InitialPosition.Earliest)
            received = [await consumer.receive(timeout_millis=30_000) for _ in SIZES]
            return [len(message.properties()["large"]) for message in received]

    return asyncio.run(main())


def test_stored_entries_above_the_limit_of_a_publish_are_copied_restored_and_taken_back(pair: Mesh) -> None:
    send(pair, SIZES[0])
    pair.create("A")
    send(pair, SIZES[1])
    pair.until(lambda: pair.messages("B") == 2, "both at B")
    pair.lose("A")
    pair.write(SMALL)
    assert "took back 1 messages" in pair.restore("A")
    with pair.away("B"):
        pair.start("A")
    for name in "AB":
        assert sizes_at(pair, name) == list(SIZES)
    with pytest.raises(MessageTooBig):
        send(pair, SIZES[1])
    pair.lose("B")  # all of it comes over the link
    pair.start_empty("B")
    pair.until(lambda: pair.messages("B") == 2, "both at B again", 120)
    assert sizes_at(pair, "B") == list(SIZES)
