"""Workers beside brokers whose two ports (binary protocol and admin API) can fail one by one, and workers whose clocks
are apart.

Between a worker and each port of its brokers stands a proxy that the test makes worse. Applications, and the test, go
to the brokers directly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from forked_commands import CLOCK_AHEAD_SECONDS
from peers.apache_support import Beside, Peer
from postgres_support import databases_of, served_postgres

from replicator.drills.faults import LinkProxy
from replicator.drills.link_fault import HEALTHY, LinkFault
from replicator.protocol.commands_pb2 import BaseCommand
from replicator.running.together import until_all_end

BINARY: Final = "binary"
ADMIN: Final = "admin"
PIECE_BYTES: Final = 64 * 1024
LINKS: Final = "[{between: [A, B], forward: true}]"


class Halved(Beside):
    """Clusters whose workers reach their brokers through proxies, one for each port."""

    def __init__(self, path: Path, names: Sequence[str], databases: Mapping[str, str], brokers: Mapping[str, Peer]):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._proxies: dict[tuple[str, str], LinkProxy] = {}
        self._rewriting: list[asyncio.Server] = []
        for name, broker in brokers.items():
            self._run(self._open(name, broker))
        super().__init__(path, names, LINKS, databases, brokers)

    def pulsar(self, name: str) -> str:
        urls = f"service_url: 'pulsar://{self.address(name, BINARY)}', admin_url: 'http://{self.address(name, ADMIN)}'"
        return f", kind: pulsar, apache: {{{urls}}}"

    def address(self, name: str, half: str) -> str:
        """Return the address at which a cluster's worker finds one port of its brokers: that of a proxy."""
        return self._proxies[name, half].address

    @contextmanager
    def fails(self, name: str, half: str, fault: LinkFault) -> Iterator[None]:
        """Put ``fault`` between a cluster's worker and one port of its brokers, until the block ends."""
        proxy = self._proxies[name, half]
        self._run(proxy.set(fault))
        try:
            yield
        finally:
            self._run(proxy.set(HEALTHY))

    def stop(self) -> None:
        super().stop()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self, name: str, broker: Peer) -> None:
        admin = urlsplit(broker.admin_url)
        self._proxies[name, ADMIN] = LinkProxy(str(admin.hostname), admin.port or 0)
        lookups = _Lookups(broker.url)
        server = await asyncio.start_server(lookups.serve, "127.0.0.1", 0)
        self._rewriting.append(server)
        self._proxies[name, BINARY] = LinkProxy("127.0.0.1", server.sockets[0].getsockname()[1])
        for half in (ADMIN, BINARY):
            await self._proxies[name, half].start()
        lookups.answer = f"pulsar://{self.address(name, BINARY)}"

    async def _close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()
        for server in self._rewriting:
            server.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class _Lookups:
    """Passes everything on to a broker, and answers lookups with another address than the broker's own: who looked a
    topic up would go there, past the proxy."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self.answer = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            answers, onward = await asyncio.open_connection(self._target.hostname, self._target.port)
            await until_all_end(_forth(reader, onward), self._back(answers, writer))
        except (OSError, EOFError):
            pass  # a side has gone: so does the other one
        finally:
            for side in (writer, onward):
                if side is not None:
                    side.transport.abort()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(int.from_bytes(head, "big"))
            size = int.from_bytes(frame[4:8], "big")
            command = BaseCommand.FromString(frame[8 : 8 + size])
            if command.type == BaseCommand.LOOKUP_RESPONSE and command.lookupTopicResponse.brokerServiceUrl:
                command.lookupTopicResponse.brokerServiceUrl = self.answer
                said = command.SerializeToString()
                frame = (len(said) + 4).to_bytes(4, "big") + len(said).to_bytes(4, "big") + said
            writer.write(frame)
            await writer.drain()


async def _forth(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    raise EOFError


@contextmanager
def halved(path: Path, brokers: Mapping[str, Peer]) -> Iterator[Halved]:
    """A worker beside each of the brokers A and B, linked both ways."""
    with served_postgres() as server, databases_of("AB", server, "halves") as databases:
        made = Halved(path, "AB", databases, brokers)
        try:
            made.start("A", "B")
            yield made
        finally:
            made.stop()


def restarted(made: Halved, **ahead_seconds: int) -> None:
    """Start workers again, with clocks that are so far ahead of the true time."""
    for name, seconds in ahead_seconds.items():
        made.kill(name)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(CLOCK_AHEAD_SECONDS, str(seconds))
            made.start(name)
