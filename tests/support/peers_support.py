"""Helpers of the tests beside peers: they skip if the peer cannot run, but fail in ``.ci/peers``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers_required import require

from replicator.drills.peers.kafka import cluster as kafka
from replicator.drills.peers.pulsar.broker import PulsarBroker, missing, pulsar_broker


def require_pulsar() -> None:
    """Skip, or fail where ``REPLICATOR_PEERS=required``, if no Apache Pulsar broker can run here."""
    require(missing())


def require_kafka() -> None:
    """Skip if Apache Kafka and MirrorMaker 2 cannot run here, or fail if ``REPLICATOR_PEERS=required``."""
    require(kafka.missing())


@contextmanager
def pulsar_peer(directory: Path, *, token: str | None = None, **settings: str) -> Iterator[PulsarBroker]:
    """Yield an Apache Pulsar broker for a session or a module of tests; ``token`` is its superuser's, if it asks for
    one."""
    require_pulsar()
    with pulsar_broker(directory, settings=settings, token=token) as broker:
        yield broker
