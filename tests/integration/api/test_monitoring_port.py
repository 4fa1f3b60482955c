"""A port of its own for health and metrics: whoever reaches it reaches nothing else of the worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from asynchronous import asynchronous

from replicator.drills.ports import free_ports
from replicator.operating.binding import PlaceTaken, take_place
from replicator.security.client_limits import ClientLimits
from replicator.topology import load_topology
from replicator.worker.early import HttpListener, Opening, make_early_app
from replicator.worker.starting import start_worker

ELSEWHERE = (
    *("/", "/dashboard", "/admin/v2/clusters", "/lookup/v2/topic/persistent/public/default/t"),
    *("/replication/v1/status", "/replication/v1/topology", "/replication/v1/store-of/solo", "/ws/v2/consumer"),
)


def written(directory: Path, port: int, more: str = "") -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: {directory / 'data'}}}\n"
        f"pipeline: {{engine: embedded}}\n{more}"
    )
    return file


def with_tokens(directory: Path, port: int) -> Path:
    directory.mkdir(exist_ok=True)
    key, token = directory / "secret.key", directory / "token"
    key.write_bytes(b"k" * 32)
    token.write_text("x")
    auth = f"{{tokens: {{secret_key: {key}}}, token_file: {token}, superusers: [operator]}}"
    return written(directory, port, f"auth: {auth}\n")


async def status_of(url: str, path: str, **options: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}{path}", **options) as response:  # type: ignore[arg-type]
        return response.status, await response.text()


@asynchronous
async def test_whoever_reads_metrics_reaches_nothing_else(data_dir: Path) -> None:
    main, own = free_ports(2)
    worker = await start_worker(load_topology(written(data_dir, main)), "solo", monitoring=f"127.0.0.1:{own}")
    try:
        url = f"http://127.0.0.1:{own}"
        assert (await status_of(url, "/healthz"))[0] == 200
        assert (await status_of(url, "/readyz"))[0] == 200
        found, text = await status_of(url, "/metrics")
        assert (found, "replicator_" in text) == (200, True)
        for path in ELSEWHERE:
            assert (await status_of(url, path))[0] == 404, path
        assert (await status_of(f"http://127.0.0.1:{main}", "/metrics"))[0] == 200
        # A page that a browser was tricked into asking is refused as at the worker's own address.
        assert (await status_of(url, "/metrics", headers={"Host": "attacker.example"}))[0] == 421
        reader, writer = await asyncio.open_connection("127.0.0.1", own)
        writer.write(bytes.fromhex("000000050000000108021200"))  # the binary protocol begins with a size
        assert await reader.read() == b""
        writer.close()
    finally:
        await worker.stop()
    take_place(f"127.0.0.1:{own}", listening=True).close()  # it was given back


@asynchronous
async def test_metrics_ask_for_a_role_at_their_own_port_too(data_dir: Path) -> None:
    main, own = free_ports(2)
    worker = await start_worker(load_topology(with_tokens(data_dir, main)), "solo", monitoring=f"127.0.0.1:{own}")
    try:
        url = f"http://127.0.0.1:{own}"
        assert (await status_of(url, "/metrics"))[0] == 401
        assert (await status_of(url, "/healthz"))[0] == 200
        assert (await status_of(url, "/admin/v2/clusters"))[0] == 401
    finally:
        await worker.stop()


@asynchronous
async def test_a_worker_that_starts_says_at_this_port_that_it_lives_and_tells_nothing() -> None:
    bound = take_place("127.0.0.1:0", listening=True)
    app: web.Application = make_early_app(Opening("solo", has_store=False), None, monitoring=True)
    listener = await HttpListener.start(bound, app, ClientLimits(), None, tls_alone=False)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        assert (await status_of(url, "/healthz"))[0] == 200
        for path in ("/readyz", "/metrics", *ELSEWHERE):
            assert (await status_of(url, path))[0] == 503, path
        assert "topics" not in (await status_of(url, "/replication/v1/store-of/solo"))[1]
    finally:
        await listener.stop()
        bound.close()


@asynchronous
async def test_who_speaks_only_after_the_start_is_not_served_by_the_starting_worker_for_ever() -> None:
    """A connection was accepted before the worker was ready, and its first request comes later. Kept open, it would get
    "not ready" again and again."""
    bound = take_place("127.0.0.1:0", listening=True)
    app: web.Application = make_early_app(Opening("solo", has_store=False), None)
    listener = await HttpListener.start(bound, app, ClientLimits(), None, tls_alone=False)
    try:
        other = await asyncio.open_connection(*bound.getsockname()[:2])
        other[1].write(b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"503" in await other[0].readline(), "so the listener has accepted those before this one"
        early = await asyncio.open_connection(*bound.getsockname()[:2])
        third = await asyncio.open_connection(*bound.getsockname()[:2])
        third[1].write(b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"503" in await third[0].readline()
        await listener.stop()
        early[1].write(b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n")
        with suppress(ConnectionError):
            assert await early[0].read() == b"", "it connects again, and reaches the worker"
        for _, writer in (other, early, third):
            writer.close()
    finally:
        await listener.stop()
        bound.close()


@asynchronous
async def test_a_port_that_is_taken_is_refused_by_the_option_before_anything_is_made(data_dir: Path) -> None:
    (main,) = free_ports(1)
    with take_place("127.0.0.1:0", listening=True) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PlaceTaken, match=f"--monitoring-at: {place} cannot be used"):
            await start_worker(load_topology(written(data_dir, main)), "solo", monitoring=place)
    assert not (data_dir / "data").exists()
