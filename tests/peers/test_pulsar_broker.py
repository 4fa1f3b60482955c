"""The recipe of the peer itself: it runs, keeps its data over a restart, and is gone after its end.

After ``kill -9`` it starts again, but not always are its topics served within a minute: of that a test cannot ask more.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from peers_support import require_pulsar

from replicator.drills.peers.jvm import PeerFailed
from replicator.drills.peers.pulsar.broker import PulsarBroker, pulsar_broker

pulsar = pytest.importorskip("pulsar")
TOPIC = "persistent://public/default/kept"


def client_of(broker: PulsarBroker) -> pulsar.Client:
    return pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def test_a_broker_keeps_what_was_sent_over_a_restart_starts_after_a_kill_and_is_gone_after_its_end(
    tmp_path: Path,
) -> None:
    require_pulsar()
    with pulsar_broker(tmp_path) as broker:
        client = client_of(broker)
        client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"before")
        client.close()
        broker.stop()
        broker.start()
        client = client_of(broker)
        assert client.subscribe(TOPIC, "s").receive(20_000).data() == b"before"
        client.close()
        broker.kill()
        broker.start()
        assert broker.admin("GET", "clusters") == ["peer"]
        pid, port = broker.pid, broker.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    if pid is not None:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    require_pulsar()
    with (
        pytest.raises(PeerFailed, match="brokerServicePort"),
        pulsar_broker(tmp_path, settings={"brokerServicePort": "no port"}),
    ):
        pass
