"""The address of a worker is taken when it starts, before anything is made."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from replicator.topology import Cluster
from replicator.worker.starting import WorkerError, _bind


def cluster_at(port: int) -> Cluster:
    return Cluster(name="solo", address=f"127.0.0.1:{port}", data=Path("data"), database="embedded")


def test_of_two_workers_that_start_at_once_on_one_address_the_second_is_refused() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    refused = pytest.raises(WorkerError, match=r"clusters\.solo\.address: 127\.0\.0\.1:\d+ cannot be used")
    with _bind(cluster_at(port)), refused:
        _bind(cluster_at(port))
