"""Faults between clusters: each directed link goes through a TCP proxy of its own, which the drill can make worse.

Owns the proxies, and the topologies that lead through them: in the file of each worker the addresses of the clusters
that it links to are those of its own proxies, so what disturbs one worker's way to another disturbs nobody else's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from replicator.drills.link_fault import HEALTHY, Flow, LinkFault, Shaper
from replicator.running.together import until_all_end
from replicator.topology import Topology

PIECE_BYTES: Final = 64 * 1024
PIECES_HELD_MAX: Final = 256
"""Most pieces on their way in one direction, 16 MiB: more than a fast link's second. Beyond it the sender is slowed."""
BACKLOG: Final = 64


class LinkProxy:
    """Proxy of one directed link. It passes connections on as far as the link's fault allows."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._fault = HEALTHY
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._passing = {flow: asyncio.Event() for flow in Flow}
        self.port = 0
        self.passed_bytes = dict.fromkeys(Flow, 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on the proxy's port, which is the same each time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        await self.set(HEALTHY)

    async def stop(self) -> None:
        """Reset all connections, and refuse new ones."""
        self._close()
        await self._reset()

    async def set(self, fault: LinkFault) -> None:
        """Set the state of the link from now on."""
        self._fault = fault
        for flow, passing in self._passing.items():
            if flow in fault.black_hole:
                passing.clear()
            else:
                passing.set()
        if fault.refuses:
            self._close()
        elif self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=BACKLOG)
        if fault.cut:
            await self._reset()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _reset(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        onward: asyncio.StreamWriter | None = None
        try:
            for passing in self._passing.values():
                await passing.wait()  # the first packets of a connection are lost too
            answers, onward = await asyncio.open_connection(*self._target)
            await until_all_end(self._pass(reader, onward, Flow.FORTH), self._pass(answers, writer, Flow.BACK))
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the link is cut: the other side is reset below
        finally:
            self._connections.discard(task)
            for side in (writer, onward):
                if side is not None:
                    side.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow) -> None:
        """Pass the bytes of one direction on until its end. Raise OSError if one side has gone."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_HELD_MAX)
        shaper, passing = Shaper(), self._passing[flow]

        async def take() -> None:
            more = True
            while more:
                await passing.wait()
                piece = await reader.read(PIECE_BYTES)
                await pieces.put((shaper.due_s(time.monotonic(), len(piece), self._fault), piece))
                more = bool(piece)

        async def give() -> None:
            while True:
                due_s, piece = await pieces.get()
                if (left_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(left_s)
                await passing.wait()
                if not piece:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(piece)
                self.passed_bytes[flow] += len(piece)
                await writer.drain()

        await until_all_end(take(), give())


class LinkFaults:
    """Proxies of all pairs of linked clusters. Call :meth:`start` before :meth:`topology_of`."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._proxies: dict[tuple[str, str], LinkProxy] = {}
        for link in topology.links:
            to = topology.cluster(link.destination)
            self._proxies.setdefault((link.source, link.destination), LinkProxy(to.host, to.port))

    @property
    def pairs(self) -> Mapping[tuple[str, str], LinkProxy]:
        """Return the proxies by source and destination."""
        return self._proxies

    async def start(self) -> None:
        for proxy in self._proxies.values():
            await proxy.start()

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()

    async def set(self, source: str, destination: str, fault: LinkFault) -> None:
        """Set the state of the link from ``source`` to ``destination`` from now on."""
        await self._proxies[source, destination].set(fault)

    def topology_of(self, name: str) -> Topology:
        """Return the topology that the worker of ``name`` is to see: each cluster that it links to is behind its
        proxy.
        """
        clusters = tuple(
            cluster.model_copy(update={"address": self._proxies[name, cluster.name].address})
            if (name, cluster.name) in self._proxies
            else cluster
            for cluster in self._topology.clusters
        )
        return replace(self._topology, clusters=clusters)
