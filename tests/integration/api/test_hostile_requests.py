"""Requests that are made to cost much: every route of a running worker refuses them, and goes on serving others.

Invariant 11. The routes are taken from the running application, so a new one cannot be forgotten.
"""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import aiohttp
import pytest
from api_support import goes_on, topology, writing
from asynchronous import asynchronous
from engine_support import eventually

from replicator.api import pages as api_pages
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import ZLIB, MessageMetadata
from replicator.topology import load_topology
from replicator.worker.starting import start_worker

TOPIC = "persistent/public/default/there"
MIB = 1024 * 1024
NESTED = {
    "lists": b"[" * 60_000,
    "objects": b'{"a":' * 12_000,
    "whole lists": b"[" * 30_000 + b"]" * 30_000,
    "lists in an object": b'{"topics": ' + b"[" * 900 + b"]" * 900 + b"}",
}


@asynchronous
async def test_json_that_is_nested_without_end_is_the_senders_fault_at_every_route(data_dir: Path) -> None:
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
            for method, path in writing(worker):
                for what, body in NESTED.items():
                    async with session.request(method, f"{url}{path}", data=body) as answer:
                        assert answer.status not in (500, 502), (method, path, what, await answer.text())
            await goes_on(session, url)
    finally:
        await worker.stop()


@asynchronous
async def test_bodies_that_are_compressed_are_refused_at_every_route_before_they_are_unpacked(data_dir: Path) -> None:
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    url = f"http://127.0.0.1:{port}"
    bomb = gzip.compress(bytes(16 * MIB))
    try:
        async with aiohttp.ClientSession() as session:
            for method, path in writing(worker):
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
                async with session.request(method, f"{url}{path}", data=bomb, headers=headers) as answer:
                    assert answer.status == 415, (method, path)
            await goes_on(session, url)
    finally:
        await worker.stop()


@pytest.mark.parametrize(
    "lines",
    [
        b"GET /" + b"x" * 9_000 + b" HTTP/1.1",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9_000,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 9_000 + b": x",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n".join(b"X-%d: x" % number for number in range(200)),
    ],
    ids=["path", "value", "name", "number"],
)
@asynchronous
async def test_heads_that_are_too_large_are_refused(data_dir: Path, lines: bytes) -> None:
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(lines + b"\r\n\r\n")
            assert (await reader.readline()).split()[1] in (b"400", b"414", b"431")
            writer.close()
            # Nor is a head kept that has no end.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * MIB)
            assert (await reader.readline()).split()[1] in (b"400", b"414", b"431")
            writer.close()
        async with aiohttp.ClientSession() as session:
            await goes_on(session, f"http://127.0.0.1:{port}")
    finally:
        await worker.stop()


@asynchronous
async def test_what_a_few_bytes_become_is_bounded_for_all_who_look_at_them_together(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of 32 kB that is 32 MiB uncompressed, more than sockets hold, and readers who take nothing of it."""
    monkeypatch.setattr(api_pages, "PAGES_BYTES_MAX", 64 * MIB)
    zeros = bytes(32 * MIB)
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=ZLIB, uncompressed_size=len(zeros)
    )
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    base = f"http://127.0.0.1:{port}/admin/v2/{TOPIC}"
    url = f"{base}/examinemessage"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.put(base) as made:
                assert made.status == 204
            topic = await worker.parts.engine.topic(TOPIC.replace("/", "://", 1))
            entry = encode_entry(metadata, compress(zeros, ZLIB))
            assert len(entry) < MIB // 16
            await topic.publish([entry])
            async with session.get(url) as whole:
                assert whole.headers["Content-Type"] == "application/octet-stream"
                assert await whole.read() == zeros
            slow = [await session.get(url) for _ in range(2)]  # their bodies are not read
            async with session.get(url) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            for each in slow:
                each.close()
            pages = worker._app[api_pages.PAGES_IN_FLIGHT]
            await eventually(lambda: not pages, "those who left are still sent something")
            async with session.get(url) as whole:
                assert await whole.read() == zeros
    finally:
        await worker.stop()
