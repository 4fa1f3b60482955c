"""TLS on a port of its own and on the address, beside what is not encrypted; with the official client."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asynchronous import asynchronous
from failover_support import free_ports
from gateway_support import BareClient
from security_support import write_certificate

from replicator.operating.binding import WorkerError
from replicator.topology import TopologyError, load_topology
from replicator.worker.starting import start_worker

WAIT_MS = 10_000


def topology(directory: Path, more: str) -> tuple[Path, int]:
    (port,) = free_ports(1)
    directory.mkdir(mode=0o755, exist_ok=True)
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: {directory / 'data'}{more}}}\n"
        "pipeline: {engine: embedded}\n"
    )
    return file, port


def produced_and_consumed(url: str, trusted: Path, topic: str) -> None:
    pulsar = pytest.importorskip("pulsar")
    options: dict[str, Any] = {} if not url.startswith("pulsar+ssl") else {
        "tls_trust_certs_file_path": str(trusted), "tls_validate_hostname": True
    }  # fmt: skip
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send_async(b"%d" % number + b"x" * 10_000, None)
    assert [int(consumer.receive(WAIT_MS).data().rstrip(b"x")) for _ in range(100)] == list(range(100))
    client.close()


@asynchronous
async def test_the_official_client_uses_tls_on_both_ports_and_others_none(data_dir: Path) -> None:
    certificate, key = write_certificate(data_dir)
    (own,) = free_ports(1)
    file, port = topology(data_dir, f", pulsar_tls: '127.0.0.1:{own}', tls: {{certificate: {certificate}, key: {key}}}")
    worker = await start_worker(load_topology(file), "solo")
    try:
        for number, url in enumerate(
            (f"pulsar+ssl://127.0.0.1:{own}", f"pulsar+ssl://127.0.0.1:{port}", f"pulsar://127.0.0.1:{port}")
        ):
            await asyncio.to_thread(produced_and_consumed, url, certificate, f"t{number}")
        context = ssl.create_default_context(cafile=str(certificate))
        async with aiohttp.ClientSession() as session:
            for scheme in ("http", "https"):
                async with session.get(f"{scheme}://127.0.0.1:{port}/readyz", ssl=context) as response:
                    assert response.status == 200
                lookup = f"{scheme}://127.0.0.1:{port}/lookup/v2/topic/persistent/public/default/t0"
                async with session.get(lookup, ssl=context) as response:
                    answer = await response.json()
                    assert answer["brokerUrlTls"] == answer["brokerUrlSsl"] == f"pulsar+ssl://127.0.0.1:{own}"
                    assert answer["brokerUrl"] == f"pulsar://127.0.0.1:{port}"
        await asyncio.to_thread(_nobody_is_disturbed, port, own)
    finally:
        await worker.stop()


def _nobody_is_disturbed(port: int, own: int) -> None:
    """Half a handshake, garbage as a handshake, nothing at all, and no TLS where there is nothing else."""
    sockets = []
    for to, sent in (
        (port, b"\x16\x03\x01"),
        (port, b"\x16" + b"x" * 100),
        (port, b""),
        (own, b"\x16\x03"),
        (own, b"GET /"),
    ):
        sockets.append(socket.create_connection(("127.0.0.1", to), timeout=10))
        sockets[-1].sendall(sent)
    with BareClient(port) as client:
        assert client.state.peer is not None
    for each in sockets:
        each.close()
    with BareClient(port) as client:
        assert client.state.peer is not None


@asynchronous
async def test_clients_without_a_certificate_are_refused_where_one_is_asked_for(data_dir: Path) -> None:
    certificate, key = write_certificate(data_dir)
    tls = f"{{certificate: {certificate}, key: {key}, ca: {certificate}}}"
    file, port = topology(data_dir, f", tls: {tls}")
    worker = await start_worker(load_topology(file), "solo")
    try:
        without = ssl.create_default_context(cafile=str(certificate))
        showing = ssl.create_default_context(cafile=str(certificate))
        showing.load_cert_chain(certificate, key)
        url = f"https://127.0.0.1:{port}/readyz"
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=showing) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                async with session.get(url, ssl=without):
                    pass
    finally:
        await worker.stop()


@asynchronous
async def test_certificates_that_were_replaced_are_taken_by_a_reload_and_open_connections_stay(data_dir: Path) -> None:
    """On both ports; those that cannot be used are refused, and nothing changes."""
    certificate, key = write_certificate(data_dir)
    first = certificate.read_bytes()
    (own,) = free_ports(1)
    file, port = topology(data_dir, f", pulsar_tls: '127.0.0.1:{own}', tls: {{certificate: {certificate}, key: {key}}}")
    worker = await start_worker(load_topology(file), "solo")

    def shown() -> list[bytes]:
        return [ssl.get_server_certificate(("127.0.0.1", each)).encode() for each in (port, own)]

    try:
        assert await asyncio.to_thread(shown) == [first, first]
        trusted = ssl.create_default_context(cafile=str(certificate))
        async with aiohttp.ClientSession() as session:

            async def goes_on() -> None:
                async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=trusted) as response:
                    assert response.status == 200
                    await response.read()

            await goes_on()
            other, other_key = write_certificate(data_dir / "other")
            certificate.write_bytes(other.read_bytes())
            with pytest.raises(TopologyError, match=r"clusters\.solo\.tls"):
                await worker.reload_file()  # the key is still that of the first one
            assert await asyncio.to_thread(shown) == [first, first]
            key.write_bytes(other_key.read_bytes())
            await worker.reload_file(dry_run=True)
            assert await asyncio.to_thread(shown) == [first, first]
            await worker.reload_file()
            assert await asyncio.to_thread(shown) == [other.read_bytes()] * 2
            await goes_on()  # over the connection that knew the first one
        await asyncio.to_thread(produced_and_consumed, f"pulsar+ssl://127.0.0.1:{own}", other, "t")
    finally:
        await worker.stop()


@asynchronous
async def test_files_that_cannot_be_used_are_named_and_nothing_is_made(data_dir: Path) -> None:
    file, _ = topology(data_dir, ", tls: {certificate: none.pem, key: none.key}")
    with pytest.raises(WorkerError, match=r"clusters\.solo\.tls: certificate .*none\.pem.*No such file"):
        await start_worker(load_topology(file), "solo")
    assert [each.name for each in data_dir.iterdir()] == ["topology.yaml"]  # noqa: ASYNC240


def test_a_port_for_tls_needs_a_certificate(tmp_path: Path) -> None:
    file, _ = topology(tmp_path, ", pulsar_tls: '127.0.0.1:1'")
    with pytest.raises(TopologyError, match="pulsar_tls: needs `tls`"):
        load_topology(file)
