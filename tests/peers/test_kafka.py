"""The recipe of Kafka and MirrorMaker 2: what stands at one broker is copied to another, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from peers_support import require_kafka

from replicator.drills.peers.jvm import PeerFailed
from replicator.drills.peers.kafka.cluster import KafkaBroker, MirrorMaker

confluent_kafka = pytest.importorskip("confluent_kafka")
MESSAGES: Final = 100
SECONDS_MAX: Final = 120.0


def test_mirror_maker_copies_what_stands_at_a_broker_and_all_are_gone_after_their_end(tmp_path: Path) -> None:
    require_kafka()
    settings = {"a->b.topics": "copied", "refresh.topics.interval.seconds": "1"}
    with KafkaBroker(tmp_path / "a") as a, KafkaBroker(tmp_path / "b") as b:
        producer = confluent_kafka.Producer({"bootstrap.servers": a.address})
        for number in range(MESSAGES):
            producer.produce("copied", str(number).encode())
        assert producer.flush(SECONDS_MAX) == 0
        with MirrorMaker(tmp_path / "mirror", ("a", a), ("b", b), settings) as mirror:
            assert _copied(b, mirror) == [str(number).encode() for number in range(MESSAGES)]
            pids = [each.pid for each in (a, b, mirror)]
    for port in (a.port, b.port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _copied(broker: KafkaBroker, mirror: MirrorMaker) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": "500",
        }
    )
    came: list[bytes] = []
    with closing(consumer):
        consumer.subscribe(["a.copied"])
        deadline = time.monotonic() + SECONDS_MAX
        while len(came) < MESSAGES:
            mirror.check_alive()
            assert time.monotonic() < deadline, mirror.log_tail()
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:  # the topic may not be there yet
                came.append(message.value())
    return came


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    require_kafka()
    with pytest.raises(PeerFailed, match="no number"), KafkaBroker(tmp_path, {"num.io.threads": "no number"}):
        pass
