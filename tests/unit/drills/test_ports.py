"""Ports for workers: none that the kernel gives to connections that go out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from replicator.drills import ports
from replicator.drills.ports import PORTS, free_ports

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_different_and_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_process_is_not_given_a_port_twice() -> None:
    """It may bind its ports later than it asks for the next ones."""
    assert not set(free_ports(400)) & set(free_ports(400))


@pytest.mark.skipif(not OUTGOING.exists(), reason="Linux says which ports it gives to outgoing connections")
def test_no_outgoing_connection_can_take_one() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    assert not set(PORTS) & set(range(first, last + 1))


def test_ports_that_are_taken_are_passed_over_and_none_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)
