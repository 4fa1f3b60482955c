"""The places of a worker are taken when it starts, before anything is made; and others reach none unless they shall."""

from __future__ import annotations

import socket
from errno import EAFNOSUPPORT
from pathlib import Path

import pytest

from replicator.operating.binding import WorkerError, bind, take_place
from replicator.running.connecting import plain_host
from replicator.topology import Cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cluster_at(port: int, **fields: object) -> Cluster:
    given = {"name": "solo", "address": f"127.0.0.1:{port}", "data": str(Path("/data")), "database": "embedded"}
    return Cluster.model_validate({**given, **fields}, context=Path())


def test_of_two_workers_that_start_at_once_on_one_address_the_second_is_refused() -> None:
    port = free_port()
    first = bind(cluster_at(port))
    with pytest.raises(WorkerError, match=r"clusters\.solo\.address: 127\.0\.0\.1:\d+ cannot be used"):
        bind(cluster_at(port))
    first.close()
    bind(cluster_at(port)).close()


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_on_loopback_a_worker_listens_without_more(listen: str) -> None:
    skip_without_ipv6(listen)
    bound = bind(cluster_at(free_port(), address="us-east.example:7101", listen=f"{listen}:{free_port()}"))
    assert bound.exposed == ()
    bound.close()


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]"])
def test_where_others_reach_it_a_worker_listens_only_when_it_is_told_that_this_is_insecure(listen: str) -> None:
    """An insecure worker asks nobody for credentials."""
    skip_without_ipv6(listen)
    place, port = f"{listen}:{free_port()}", free_port()
    wanted = cluster_at(port, listen=place)
    with pytest.raises(WorkerError, match=r"clusters\.solo\.listen: .* reached from other hosts.* `insecure: true`"):
        bind(wanted)
    bound = bind(cluster_at(port, listen=place, insecure=True))
    assert bound.exposed == (place,)
    bound.close()


def test_at_every_address_of_ipv6_those_of_ipv4_are_taken_too_and_shown_as_usual() -> None:
    with take_place("[::]:0", listening=True) as bound:
        port = bound.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        _, peer = bound.accept()
        assert plain_host(peer[0]) == "127.0.0.1"
        if bound.family is socket.AF_INET6:
            socket.create_connection(("::1", port), timeout=10).close()
            assert plain_host(bound.accept()[1][0]) == "::1"


def test_on_a_host_without_ipv6_every_address_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyIPv4(socket.socket):
        def __init__(self, family: int = -1, kind: int = -1, protocol: int = -1) -> None:
            if family == socket.AF_INET6:
                raise OSError(EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, kind, protocol)

    monkeypatch.setattr(socket, "socket", OnlyIPv4)
    with take_place("[::]:0", listening=True) as bound:
        assert bound.family is socket.AF_INET
        assert bound.getsockname()[0] == "0.0.0.0"
    with pytest.raises(OSError, match="Address family"):
        take_place("[::1]:0", listening=True)


def test_a_further_port_that_others_reach_is_refused_likewise_and_nothing_stays_bound() -> None:
    port, own = free_port(), free_port()
    with pytest.raises(WorkerError, match=r"clusters\.solo\.pulsar: "):
        bind(cluster_at(port, pulsar=f"{address_of_this_host()}:{own}"))
    bind(cluster_at(port, pulsar=f"127.0.0.1:{own}")).close()


def skip_without_ipv6(host: str) -> None:
    if ":" in host:
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6")


def address_of_this_host() -> str:
    """Return an address that others reach; without a network there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which address would be used
        except OSError:
            pytest.skip("this host has no address but loopback")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this host has no address but loopback")
    return found
