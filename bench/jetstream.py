"""Peer of group ``copy``: a NATS JetStream mirror between two servers, with file storage.

Server 1 has the stream, server 2 mirrors it over a leaf node connection, each with a JetStream domain of its own:
how JetStream copies between independent clusters. Its defaults hold: no sync for each message. Its client has
no batches, so one figure serves both our batched and our single messages.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import nats
from nats.aio.client import Client as NatsClient
from nats.js.api import ExternalStream, StorageType, StreamConfig, StreamSource
from nats.js.errors import NotFoundError

from bench.arrival import seconds_to_arrive
from bench.brokers import alone
from bench.cases import RUNS, Case
from bench.disk import settle
from replicator.drills.ports import free_ports

PEER: Final = "JetStream mirror"
START_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 10.0
PUBLISHED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Bytes published between two flushes: pipelined, and below the size at which the server calls a client slow."""
_SYSTEM_PLACES: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""Directories where Debian installs ``nats-server``; not every PATH has them."""


def find_server() -> str | None:
    """Return the path of ``nats-server``; None if it is not installed, or if peers are to be left out."""
    if alone() is not None:
        return None
    return shutil.which("nats-server") or shutil.which("nats-server", path=_SYSTEM_PLACES)


class PeerFailed(Exception):
    """A peer did not start, or did not do what is measured; the text says what happened."""


class JetStreamPair:
    """Two linked NATS servers, as an async context manager; on leaving it they are stopped.

    ``server`` is the path of ``nats-server``; the servers' files go into ``directory``, which the caller removes.
    """

    def __init__(self, server: str, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._processes: list[asyncio.subprocess.Process] = []
        self._clients: list[NatsClient] = []

    async def __aenter__(self) -> Self:
        port_1, port_2, leaf_port = free_ports(3)
        listen = f"leafnodes {{ listen: 127.0.0.1:{leaf_port} }}"
        dial = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://127.0.0.1:{leaf_port}" }} ] }}'
        try:
            await self._start("one", port_1, listen)
            await self._start("two", port_2, dial)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def mirror_rates(self, case: Case) -> list[float]:
        """Fill a stream with the messages of ``case``, mirror it :data:`RUNS` times; return the rate of each run."""
        source, destination = (client.jetstream(timeout=30) for client in self._clients)
        stream, mirror = f"S{case.size_bytes}", f"M{case.size_bytes}"
        await source.add_stream(StreamConfig(name=stream, subjects=[stream], storage=StorageType.FILE))
        await self._fill(stream, case)

        async def mirrored() -> int:
            try:
                return (await destination.stream_info(mirror)).state.messages
            except NotFoundError:
                return 0

        rates = []
        for _ in range(RUNS):
            await settle()
            origin = StreamSource(name=stream, external=ExternalStream(api="$JS.one.API"))
            await destination.add_stream(StreamConfig(name=mirror, mirror=origin, storage=StorageType.FILE))
            rates.append(case.rate(case.messages, await seconds_to_arrive(mirrored, case.messages)))
            await destination.delete_stream(mirror)
        await source.delete_stream(stream)
        return rates

    async def _fill(self, stream: str, case: Case) -> None:
        client, payload = self._clients[0], bytes(case.size_bytes)
        between_flushes = max(1, PUBLISHED_AT_ONCE_BYTES // (case.size_bytes + 20))
        for index in range(1, case.messages + 1):
            await client.publish(stream, payload)
            if index % between_flushes == 0:
                await client.flush(30)
        await client.flush(30)
        jetstream = client.jetstream(timeout=30)

        async def stored() -> int:
            return (await jetstream.stream_info(stream)).state.messages

        await seconds_to_arrive(stored, case.messages)

    async def _start(self, name: str, port: int, leaf: str) -> None:
        directory = self._directory / name
        directory.mkdir()
        configuration = directory / "server.conf"
        configuration.write_text(
            f"server_name: {name}\nlisten: 127.0.0.1:{port}\n"
            f'jetstream {{ store_dir: "{directory}", domain: {name} }}\n{leaf}\n'
        )
        log = directory / "server.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                self._server,
                "--config",
                str(configuration),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await self._connect(port)
        except TimeoutError:
            raise PeerFailed(f"nats-server did not start: {log.read_text(errors='replace')[-500:]}") from None

    async def _connect(self, port: int) -> None:
        while True:
            try:
                client = await nats.connect(
                    f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=1, error_cb=_ignore
                )
            except (OSError, nats.errors.Error):
                await asyncio.sleep(0.05)
                continue
            self._clients.append(client)
            return

    async def _stop(self) -> None:
        for client in self._clients:
            await client.close()
        for process in self._processes:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_SECONDS_MAX):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _ignore(_: Exception) -> None:
    """Ignore an error of the NATS client, which would print a traceback for each attempt before the server listens."""
