"""Errors of connecting to a worker name the cause in words."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest

from replicator.running.connecting import START_IT, why_no_answer, why_not_connected
from replicator.security.certificate_making import Authority


async def _why(url: str, context: ssl.SSLContext | bool = True) -> str:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as failed:
            await session.get(url)
        return why_not_connected(failed.value)


def test_reasons_of_the_system_and_of_tls_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.give("worker", "worker.example"))
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        plain = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port, plain_port = server.sockets[0].getsockname()[1], plain.sockets[0].getsockname()[1]
        stranger = ssl.create_default_context(cafile=other.file)
        assert (await _why(f"https://127.0.0.1:{port}", stranger)).startswith("its certificate is not taken: ")
        trusted = ssl.create_default_context(cafile=authority.file)
        said = await _why(f"https://127.0.0.2:{port}", trusted)
        assert said == "connection refused", "nobody listens there"
        server.close()
        plain.close()
        assert await _why(f"http://127.0.0.1:{plain_port}") == "connection refused"

    asyncio.run(main())


def test_a_name_that_a_certificate_does_not_have_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.give("worker"))
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        trusted = ssl.create_default_context(cafile=authority.file)
        said = await _why(f"https://127.0.0.3:{port}", trusted)
        assert "127.0.0.3" in said
        server.close()

    asyncio.run(main())


def test_a_refused_connection_is_told_with_what_to_do_and_without_words_of_a_library() -> None:
    async def ask(url: str) -> str:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError) as failed:
                await session.get(url)
        return why_no_answer(failed.value)

    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert asyncio.run(ask(f"http://127.0.0.1:{port}")) == f"connection refused; {START_IT}"
        with pytest.raises(OSError, match="refused") as plain:
            socket.create_connection(("127.0.0.1", port), timeout=5)
    assert why_no_answer(plain.value) == f"connection refused; {START_IT}"
    assert why_no_answer(plain.value, remedy="") == "connection refused"
    assert why_no_answer(TimeoutError()) == "no answer in time"
    assert why_no_answer(ValueError("its answer is no object")) == "its answer is no object"
