"""Ports for workers: none that the kernel gives to connections that go out."""

from __future__ import annotations

import socket
import subprocess
import sys
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


def test_two_processes_are_not_given_the_same_port_and_one_that_has_ended_keeps_none() -> None:
    ours = free_ports(8)
    for port in ours:
        ports._unlock(port)

    def asking(count: int) -> subprocess.Popen[bytes]:
        """Start a process that prints ``count`` of our ports, and ends with its input."""
        imported = f"from replicator.drills import ports; ports.PORTS = {ours}"
        program = f"{imported}; print(*ports.free_ports({count}), flush=True); input()"
        return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def given(process: subprocess.Popen[bytes]) -> set[int]:
        assert process.stdout is not None
        return {int(port) for port in process.stdout.readline().split()}

    both = asking(4), asking(4)
    assert set().union(*map(given, both)) == set(ours)
    for process in both:
        process.communicate(b"\n")
    last = asking(8)
    assert given(last) == set(ours)
    last.communicate(b"\n")


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
