"""Links through the drill's proxies fare as they are told to: over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replicator.drills.faults import LinkFaults, LinkProxy
from replicator.drills.link_fault import BLACK_HOLE, CUT, HEALTHY, Flow, LinkFault, Shaper
from replicator.topology import Cluster, Link, Topology

ANSWER_SECONDS_MAX = 5.0


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Sends back whatever comes, until the end of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[LinkProxy]:
    async with echo_server() as port:
        proxy = LinkProxy("127.0.0.1", port)
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(proxy: LinkProxy) -> Connection:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def echoed(connection: Connection, sent: bytes) -> bytes:
    reader, writer = connection
    writer.write(sent)
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        return await reader.readexactly(len(sent))


async def is_silent(connection: Connection, sent: bytes) -> bool:
    """Return whether nothing comes back for a while. The time itself is tested, so there is nothing to wait for."""
    reader, writer = connection
    writer.write(sent)
    try:
        async with asyncio.timeout(0.3):
            return not await reader.read(1)
    except TimeoutError:
        return True


async def is_reset(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await connection[0].read() == b""
    except ConnectionError:
        return True


def test_a_healthy_link_passes_both_ways_and_its_end() -> None:
    async def main() -> None:
        async with proxied() as proxy:
            connection = await connect(proxy)
            content = bytes(range(256)) * 4096
            assert await echoed(connection, content) == content
            connection[1].write_eof()
            assert await is_reset(connection)
            assert proxy.passed_bytes == dict.fromkeys(Flow, len(content))

    asyncio.run(main())


def test_a_cut_link_resets_what_is_open_refuses_what_is_new_and_is_there_again_on_the_same_port() -> None:
    async def main() -> None:
        async with proxied() as proxy:
            connection, port = await connect(proxy), proxy.port
            assert await echoed(connection, b"before") == b"before"
            await proxy.set(CUT)
            assert await is_reset(connection)
            with pytest.raises(ConnectionRefusedError):
                await connect(proxy)
            await proxy.set(HEALTHY)
            assert proxy.port == port
            assert await echoed(await connect(proxy), b"after") == b"after"

    asyncio.run(main())


def test_a_link_that_refuses_leaves_open_connections_alone() -> None:
    async def main() -> None:
        async with proxied() as proxy:
            connection = await connect(proxy)
            assert await echoed(connection, b"before") == b"before"
            await proxy.set(LinkFault(refuse=True))
            assert await echoed(connection, b"still") == b"still"
            with pytest.raises(ConnectionRefusedError):
                await connect(proxy)

    asyncio.run(main())


@pytest.mark.parametrize("flow", list(Flow))
def test_a_black_hole_swallows_one_direction_in_silence_and_gives_it_back(flow: Flow) -> None:
    async def main() -> None:
        async with proxied() as proxy:
            connection = await connect(proxy)
            assert await echoed(connection, b"before") == b"before"
            passed = dict(proxy.passed_bytes)
            await proxy.set(LinkFault(black_hole=frozenset({flow})))
            assert await is_silent(connection, b"lost?")
            other = Flow.BACK if flow is Flow.FORTH else Flow.FORTH
            reached = {each: proxy.passed_bytes[each] - passed[each] for each in Flow}
            assert reached == {flow: 0, other: 5 if flow is Flow.BACK else 0}
            await proxy.set(HEALTHY)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                assert await connection[0].readexactly(5) == b"lost?"

    asyncio.run(main())


def test_a_connection_that_is_made_into_a_black_hole_hangs_until_it_is_over() -> None:
    async def main() -> None:
        async with proxied() as proxy:
            await proxy.set(BLACK_HOLE)
            connection = await connect(proxy)
            assert await is_silent(connection, b"hello")
            await proxy.set(HEALTHY)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                assert await connection[0].readexactly(5) == b"hello"

    asyncio.run(main())


def test_a_slow_link_delays_each_way_and_holds_the_rate() -> None:
    async def main() -> None:
        async with proxied() as proxy:
            connection = await connect(proxy)
            await proxy.set(LinkFault(delay_ms=100))
            began = time.monotonic()
            await echoed(connection, b"x")
            assert time.monotonic() - began >= 0.2
            await proxy.set(LinkFault(rate_bytes=1_000_000))
            began = time.monotonic()
            content = bytes(300_000)
            assert await echoed(connection, content) == content
            assert time.monotonic() - began >= 0.3

    asyncio.run(main())


def test_pieces_keep_their_order_whatever_becomes_of_the_link() -> None:
    shaper, slow = Shaper(), LinkFault(delay_ms=500, rate_bytes=1000)
    due = [shaper.due_s(0.0, 1000, slow), shaper.due_s(0.0, 1000, slow), shaper.due_s(0.1, 10, HEALTHY)]
    assert due == [1.5, 2.5, 2.5]
    assert shaper.due_s(9.0, 1000, HEALTHY) == 9.0


def test_each_worker_sees_the_others_behind_its_own_proxies_and_itself_as_it_is() -> None:
    names = ("a", "b", "c")
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": str(Path("/data") / name)})
        for n, name in enumerate(names)
    )
    topology = Topology(clusters, (Link("a", "b"), Link("b", "a"), Link("a", "b", name="more"), Link("b", "c")))

    async def main() -> None:
        faults = LinkFaults(topology)
        await faults.start()
        try:
            assert set(faults.pairs) == {("a", "b"), ("b", "a"), ("b", "c")}
            seen: dict[str, Callable[[str], str]] = {
                name: lambda other, name=name: faults.topology_of(name).cluster(other).address  # type: ignore[misc]
                for name in names
            }
            assert seen["a"]("a") == "127.0.0.1:7000"
            assert seen["a"]("b") == faults.pairs["a", "b"].address
            assert seen["a"]("c") == "127.0.0.1:7002"  # no link leads there
            assert seen["b"]("a") == faults.pairs["b", "a"].address
            assert len({proxy.address for proxy in faults.pairs.values()}) == 3
            assert faults.topology_of("a").links == topology.links
        finally:
            await faults.stop()

    asyncio.run(main())
