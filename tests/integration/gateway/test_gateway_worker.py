"""A worker serves HTTP and the binary protocol on one port, and the latter on a further one where that is wanted."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from io import StringIO
from pathlib import Path

import aiohttp
import pytest
from asynchronous import asynchronous
from failover_support import free_ports
from gateway_support import BareClient
from rich.console import Console

from replicator.operating.binding import WorkerError
from replicator.operating.status import fetch, render
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandFlow,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandSubscribe,
    FeatureFlags,
)
from replicator.protocol.frames import split_broker_metadata
from replicator.topology import load_topology
from replicator.worker import starting
from replicator.worker.starting import start_worker


def lookup(port: int) -> CommandLookupTopicResponse:
    def asked(request_id: int) -> BaseCommand:
        wanted = CommandLookupTopic(topic="persistent://public/default/t", request_id=request_id)
        return BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=wanted)

    with BareClient(port) as client:
        found: CommandLookupTopicResponse = client.request(asked)
        return found


def topology(directory: Path, more: str = "") -> tuple[Path, int]:
    (port,) = free_ports(1)
    directory.mkdir(mode=0o755)
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: {directory / 'data'}{more}}}\n"
        "pipeline: {engine: embedded}\n"
    )
    return file, port


@asynchronous
async def test_both_protocols_are_on_the_address_and_a_port_of_its_own_is_there_too(data_dir: Path) -> None:
    (own,) = free_ports(1)
    file, port = topology(data_dir, f", pulsar: '127.0.0.1:{own}', advertised: 'outside.example:6650'")
    worker = await start_worker(load_topology(file), "solo")
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert response.status == 200
        for each in (port, own):
            answer = await asyncio.to_thread(lookup, each)
            assert answer.brokerServiceUrl == "pulsar://outside.example:6650"
        open_for_now = await asyncio.to_thread(BareClient, port)
        with pytest.raises(WorkerError, match=r"clusters\.solo\.address"):
            await start_worker(load_topology(file), "solo")
    finally:
        await worker.stop()
    assert await asyncio.to_thread(open_for_now.closed_by_server)
    open_for_now.socket.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", own))


@asynchronous
async def test_a_worker_listens_elsewhere_than_others_reach_it_and_says_that_it_is_insecure(data_dir: Path) -> None:
    (inside,) = free_ports(1)
    file, _ = topology(data_dir, f", listen: '0.0.0.0:{inside}', insecure: true, advertised: 'outside.example:6650'")
    refused = file.with_name("refused.yaml")
    refused.write_text(file.read_text().replace(", insecure: true", ""))
    with pytest.raises(WorkerError, match="insecure: true"):
        await start_worker(load_topology(refused), "solo")
    assert not (data_dir / "data").exists(), "nothing was made"
    worker = await start_worker(load_topology(file), "solo")
    try:
        answer = await asyncio.to_thread(lookup, inside)
        assert answer.brokerServiceUrl == "pulsar://outside.example:6650"
        async with aiohttp.ClientSession() as session:
            shown = await fetch(session, f"127.0.0.1:{inside}")
        assert shown["exposed"] == [f"0.0.0.0:{inside}"]
        console = Console(width=200, file=StringIO())
        console.print(render({"solo": shown}))
        assert f"insecure: anybody can connect to 0.0.0.0:{inside}" in console.file.getvalue()  # type: ignore[attr-defined]
    finally:
        await worker.stop()


@asynchronous
async def test_who_begins_a_request_and_says_no_more_is_let_go_of(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise anybody could hold all allowed connections for an hour (invariant 11)."""
    monkeypatch.setattr(starting, "KEEPALIVE_SECONDS", 0.2)
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: a")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
    finally:
        await worker.stop()


@asynchronous
async def test_what_the_topology_says_of_messages_is_what_clients_are_told(data_dir: Path) -> None:
    """The largest one, and whether they hear of indexes."""
    file, port = topology(data_dir, ", broker_entry_metadata: true")
    file.write_text(f"{file.read_text()}store: {{message_size_max: 8MiB}}\n")
    worker = await start_worker(load_topology(file), "solo")

    def first_of_a_topic() -> BrokerEntryMetadata | None:
        with BareClient(port, features=FeatureFlags(supports_broker_entry_metadata=True)) as client:
            assert client.state.message_bytes_max == 8 * 1024 * 1024
            client.request(
                lambda number: BaseCommand(
                    type=BaseCommand.SUBSCRIBE,
                    subscribe=CommandSubscribe(
                        topic="t", subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=number
                    ),
                )
            )
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/topics/persistent/public/default/t", b'{"messages": [{"payload": "m"}]}'
            )
            request.add_header("Content-Type", "application/json")
            urllib.request.urlopen(request, timeout=10).close()
            client.send(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=1)))
            return split_broker_metadata(client.next(BaseCommand.MESSAGE).rest)[0]

    try:
        found = await asyncio.to_thread(first_of_a_topic)
        assert found is not None
        assert found.index == 0
    finally:
        await worker.stop()


@asynchronous
async def test_a_port_for_the_protocol_that_is_taken_is_named_and_nothing_is_made(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file, _ = topology(data_dir, f", pulsar: '127.0.0.1:{taken.getsockname()[1]}'")
        with pytest.raises(WorkerError, match=r"clusters\.solo\.pulsar: 127\.0\.0\.1:\d+ cannot be used"):
            await start_worker(load_topology(file), "solo")
    assert [each.name for each in data_dir.iterdir()] == ["topology.yaml"]  # noqa: ASYNC240
