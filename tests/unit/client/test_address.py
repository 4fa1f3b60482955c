"""Addresses of one cluster in one URL, and what becomes of those that do not answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import serving_clients

from replicator.client import ConnectError, InvalidUrl
from replicator.client.wire.address import ADDRESSES_MAX, Address, parse_addresses, written
from replicator.client.wire.connector import BrokerConnector
from replicator.drills.ports import free_ports


def connector(url: str, seconds: float = 20.0) -> BrokerConnector:
    return BrokerConnector(url, connection_timeout_seconds=seconds, operation_timeout_seconds=20)


def test_a_url_may_name_several_hosts() -> None:
    assert parse_addresses("pulsar://a:1, b,[::1]:3,a:1") == (
        Address("a", 1, False),
        Address("b", 6650, False),
        Address("::1", 3, False),
    )
    assert written(parse_addresses("pulsar+ssl://a,b:1")) == "pulsar+ssl://a:6651,b:1"


@pytest.mark.parametrize("url", ["pulsar://a,", "pulsar://a,pulsar://b", "pulsar://a,b:x", "a,b", "http://a:1,b:1"])
def test_one_of_them_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_addresses(url)


def test_their_number_is_limited() -> None:
    with pytest.raises(InvalidUrl, match=f"names 33 addresses; {ADDRESSES_MAX} at most"):
        parse_addresses("pulsar://" + ",".join(f"h{number}" for number in range(33)))


@asynchronous
async def test_whichever_of_them_answers_is_asked(tmp_path: Path) -> None:
    (dead,) = free_ports(1)
    async with opened(tmp_path, "a") as engine, serving_clients(engine) as served:
        for url in (f"pulsar://127.0.0.1:{dead},127.0.0.1:{served.port}", f"{served.url},127.0.0.1:{dead}"):
            asking = connector(url)
            assert await asking.partitions("persistent://public/default/t", create=False) == 0
            await asking.close()


@asynchronous
async def test_one_that_says_nothing_is_passed_over_and_not_asked_again(tmp_path: Path) -> None:
    connections = 0

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(tmp_path, "a") as engine, serving_clients(engine) as served:
        asking = connector(f"pulsar://127.0.0.1:{port},127.0.0.1:{served.port}")
        for _ in range(3):
            await asking.partitions("persistent://public/default/t", create=False)
        await asking.close()
    server.close()
    assert connections == 1


@asynchronous
async def test_where_none_answers_the_error_names_each() -> None:
    first, second = free_ports(2)
    asking = connector(f"pulsar://127.0.0.1:{first},127.0.0.1:{second}")
    with pytest.raises(ConnectError, match=f"127.0.0.1:{first}.*127.0.0.1:{second}"):
        await asking.partitions("persistent://public/default/t")
    await asking.close()


@asynchronous
async def test_addresses_of_two_clusters_are_no_failover(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "a", "a") as a,
        opened(tmp_path / "b", "b") as b,
        serving_clients(b) as other,
    ):
        async with serving_clients(a) as served:
            asking = connector(f"{served.url},127.0.0.1:{other.port}")
            await asking.partitions("persistent://public/default/t", create=False)

        async def asked() -> None:
            """Answer; the first connection may be used once more before it is found gone."""
            for _ in range(10):
                with suppress(ConnectError):
                    await asking.partitions("persistent://public/default/t", create=False)

        with pytest.raises(InvalidUrl, match="a list of addresses is not a failover"):
            await asked()
        await asking.close()
