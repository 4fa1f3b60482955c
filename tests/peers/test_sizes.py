"""Our worker takes what a broker takes: official clients send metadata of all sizes to both."""

from __future__ import annotations

from contextlib import suppress

import pytest
from official_client import official_client
from served_worker import served_worker

from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.engine.log.entry import MESSAGE_BYTES_MAX, METADATA_ROOM_BYTES

pulsar = pytest.importorskip("pulsar")
TOPIC = "persistent://public/default/metadata"
TAKEN = (METADATA_ROOM_BYTES + 1, 1_800_000, 5_242_820)
"""Sizes of properties that a broker takes under its limit of 5 MiB."""
SIZES = (*TAKEN, *range(MESSAGE_BYTES_MAX - 50, MESSAGE_BYTES_MAX + 51, 10), MESSAGE_BYTES_MAX + METADATA_ROOM_BYTES)


def taken(url: str, *, batched: bool) -> list[int]:
    """Publish messages with larger and larger properties. Return the sizes, in bytes, that the broker confirmed."""
    topic, confirmed = f"{TOPIC}-{batched}", []
    with official_client(url) as client:
        for size in SIZES:
            # The name is metadata too: one that a cluster makes may be longer than that of another one.
            producer = client.create_producer(topic, f"p-{size}", batching_enabled=batched, send_timeout_millis=20_000)
            with suppress(pulsar.MessageTooBig):
                producer.send(b"x", {"large": "v" * size})
                confirmed.append(size)
            producer.close()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [len(reader.read_next(20_000).properties()["large"]) for _ in confirmed] == confirmed
    return confirmed


@pytest.mark.parametrize("batched", [False, True])
def test_metadata_that_a_broker_takes_is_taken_here_too(pulsar_broker: PulsarBroker, batched: bool) -> None:
    theirs = taken(pulsar_broker.url, batched=batched)
    with served_worker() as worker:
        ours = taken(worker.pulsar_url, batched=batched)
    assert set(TAKEN) <= set(theirs) <= set(ours)
