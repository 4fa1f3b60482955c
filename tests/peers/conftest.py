"""The peers that tests here run beside, each once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from peers_support import pulsar_peer

from replicator.drills.peers.pulsar.broker import PulsarBroker

pytest.register_assert_rewrite("bridge_contract", "bridge_contract_halves", "bridge_contract_starts")


@pytest.fixture(scope="session")
def pulsar_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    """An Apache Pulsar broker with its defaults."""
    with pulsar_peer(tmp_path_factory.mktemp("pulsar")) as broker:
        yield broker
