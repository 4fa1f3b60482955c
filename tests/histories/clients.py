"""Clusters of a history, their clients, and requests to their workers. Each request has a time limit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from failover_support import Deployment
from sqlalchemy import make_url

from histories.judging import Violation
from histories.model import Model
from histories.records import Subscription
from histories.shapes import Shape
from histories.steps import TYPES, is_replicated
from histories.watch import REQUEST_SECONDS, Late, Watch, patient
from replicator.client import (
    Client,
    CompressionType,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
    PulsarException,
    Timeout,
)
from replicator.client.errors import ChunkMissing, UnknownError
from replicator.drills.ports import free_ports

NAMESPACE: Final = "public/default"
SURE_SECONDS: Final = 3.0
"""Time for which a consumer waits for a message that must come."""
FIRST_SECONDS: Final = 0.05
"""Time for which a consumer waits for the first message, if there may be none."""
NEXT_SECONDS: Final = 0.02
CHUNK_BYTES: Final = 600
POLL_SECONDS: Final = 0.02
STOP_SECONDS: Final = 20.0
IN_USE_MS: Final = 2_000
"""Time for which a worker asks others before it deletes a subscription. A cluster that is down costs all of it."""


class Regions(Deployment):
    """Workers of a history, with deduplication off unless a subclass switches it on."""

    deduplication = False

    def add(self, name: str) -> None:
        """Add a cluster to those that the topology file names when it is written next."""
        self.ports[name], self.pulsar_ports[name] = free_ports(2)

    def pids(self) -> list[int]:
        """Return the ids of the workers' processes."""
        return [process.pid for process in self._processes.values()]

    def is_ready(self, name: str) -> bool:
        """Return whether a worker that was launched serves clients, or ended."""
        if self._processes[name].poll() is not None:
            return True
        try:
            urllib.request.urlopen(self.url(name, "/readyz"), timeout=1).close()
        except OSError:
            return False
        return True

    def allow_database(self, name: str, *, allowed: bool) -> None:
        """Allow or forbid connections to the database of a cluster, and end those that are open if they are
        forbidden."""
        url = make_url(self._databases[name])
        with psycopg.connect(url.set(database="postgres").render_as_string(hide_password=False), autocommit=True) as it:
            it.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS {str(allowed).lower()}".encode())
            if not allowed:
                it.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [url.database])

    def stop_one(self, name: str) -> None:
        """Stop a worker by SIGTERM, and wait for its end."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=patient(STOP_SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
            raise Late(f"{name} did not stop within {patient(STOP_SECONDS):.0f} s") from None

    def write(self, links: str, file: str = "topology.yaml") -> Path:
        path = super().write(links, file)
        more = f"sync: {{in_use_timeout_ms: {IN_USE_MS}}}\n"
        if self.deduplication:
            more += "policies: {deduplication: true}\n"
        path.write_text(path.read_text() + more)
        return path


class Deduplicating(Regions):
    """Workers with deduplication on."""

    deduplication = True


class ClusterClients:
    """Clients of all clusters of one history, and the model of that history."""

    def __init__(
        self,
        shape: Shape,
        regions: Regions,
        *,
        deduplication: bool,
        name: str = "h",
        official: bool = False,
        joins: bool = False,
    ) -> None:
        """``official`` lets the official Python client do what clients do. ``joins`` lets another cluster join."""
        self.regions = regions
        self._official = official
        self.model = Model(shape, deduplication=deduplication, joins=joins)
        self._name = name
        """Part of the names of this history's topics. So histories can share clusters, one after the other."""
        self._clients: dict[str, Any] = {}
        self._producers: dict[tuple[str, str, str], Any] = {}
        self._number = 0
        self._watch = Watch(regions.pids)
        self._sent_ms: dict[str, int] = {}
        """Time (ms since the epoch) before which no producer had sent the message. A time lies so between messages."""
        self._asked_again: set[Consumer] = set()
        """Consumers that got an incomplete message. Such a message comes again, with the messages sent behind it."""

    @property
    def shape(self) -> Shape:
        """Return the clusters and links that there are now."""
        return self.model.shape

    def _known(self, topic: str, name: str, at: str) -> Subscription:
        found = self.model.find(topic, name, at, replicated=is_replicated(name))
        assert found is not None
        return found

    def _full(self, topic: str) -> str:
        return f"persistent://{self._path(topic)}"

    def _path(self, topic: str) -> str:
        return f"{NAMESPACE}/{self._name}-{topic}"

    def _uid(self, at: str) -> str:
        self._number += 1
        return f"{at}{self._number}"

    def _client(self, at: str) -> Any:
        if at not in self._clients:
            url = self.regions.client_url(at)
            if self._official:
                from histories.official import OfficialClient

                self._clients[at] = OfficialClient(url)
            else:
                self._clients[at] = Client(url, operation_timeout_seconds=patient(REQUEST_SECONDS))
        return self._clients[at]

    async def _producer(self, at: str, topic: str, how: str) -> Any:
        key = (at, topic, how)
        if key not in self._producers:
            more: dict[str, Any] = {"batching_enabled": how in ("batch", "mixed")}
            if how == "chunks":
                more |= {"chunking_enabled": True, "chunk_max_message_size": CHUNK_BYTES}
            if how == "compressed":
                more["compression_type"] = CompressionType.ZSTD
            making = self._client(at).create_producer(self._full(topic), **more)
            self._producers[key] = await self._in_time(making, f"a producer of {topic} at {at}")
        return self._producers[key]

    async def _consumer(self, at: str, topic: str, name: str, *, earliest: bool) -> Consumer:
        making = self._client(at).subscribe(
            self._full(topic),
            name,
            ConsumerType[TYPES[name.partition("-")[2]]],
            initial_position=InitialPosition.Earliest if earliest else InitialPosition.Latest,
            replicate_subscription_state_enabled=is_replicated(name),
            negative_ack_redelivery_delay_ms=50,
            ack_receipt_enabled=True,
            acknowledgement_group_time_ms=0,
        )
        made: Consumer = await self._in_time(making, f"a consumer of {topic} {name} at {at}")
        return made

    async def _receive(self, consumer: Consumer, count: int, *, first_seconds: float = FIRST_SECONDS) -> list[Message]:
        """Receive up to ``count`` messages. Wait for the first one, and only briefly for more."""
        got: list[Message] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + first_seconds
        while len(got) < count and (left := deadline - loop.time()) > 0:
            try:
                more = await consumer.receive_many(count - len(got), timeout_millis=max(1, int(left * 1000)))
            except ChunkMissing:  # skipping counts entries: it may leave the end of a message
                self._asked_again.add(consumer)
                continue
            if not more:
                break
            got += more
            deadline = loop.time() + NEXT_SECONDS
        return got

    async def _receive_surely(
        self, consumer: Consumer, count: int, is_due: Callable[[], object], what: str
    ) -> list[Message]:
        """Receive up to ``count`` messages. While some are due, wait for them until no worker works any more.

        Return an empty list if none comes. Raise :class:`Late` if workers do not stop working.
        """
        deadline = time.monotonic() + patient(REQUEST_SECONDS)
        while True:
            due = is_due()
            messages = await self._receive(consumer, count, first_seconds=SURE_SECONDS if due else FIRST_SECONDS)
            if messages or not due or not await self._watch.is_busy():
                return messages
            if time.monotonic() > deadline:
                raise Late(f"{what} got nothing that is due within {patient(REQUEST_SECONDS):.0f} s")

    async def _leave(self, at: str) -> None:
        """Close the clients of the worker ``at``, which is about to stop or has stopped."""
        await self._forget_producers(at, close=False)
        client = self._clients.pop(at, None)
        if client is not None:
            with suppress(PulsarException, TimeoutError):
                await asyncio.wait_for(client.close(), 2.0)

    async def _forget_producers(self, at: str, *, close: bool = True) -> None:
        for key in [key for key in self._producers if key[0] == at]:
            producer = self._producers.pop(key)
            if close:
                with suppress(PulsarException):
                    await producer.close()

    async def _in_time(self, awaitable: Any, what: str) -> Any:
        try:
            return await self._watch.ended(awaitable, what)
        except Timeout as error:
            raise Late(f"{what} did not end: {error}") from error
        except UnknownError as error:
            raise Violation(f"{what}: {error}") from error

    async def _until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + patient(REQUEST_SECONDS)
        while not await condition():
            if time.monotonic() > deadline:
                raise Late(f"{what} did not end within {patient(REQUEST_SECONDS):.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _admin(self, at: str, method: str, path: str, *, allow: tuple[int, ...] = ()) -> Any:
        return await self._ask(at, method, f"/admin/v2/persistent/{path}", allow=allow)

    async def _ask(self, at: str, method: str, path: str, body: Any = None, *, allow: tuple[int, ...] = ()) -> Any:
        """Return the JSON that a worker answers; None for an answer with a status in ``allow``."""
        asking = asyncio.to_thread(partial(self.regions.ask, at, method, path, body, seconds=patient(REQUEST_SECONDS)))
        try:
            return await self._watch.ended(asking, f"{method} {path} at {at}")
        except urllib.error.HTTPError as error:
            if error.code in allow:
                return None
            raise Violation(f"{method} {path} at {at}: {error.code} {error.read()[:300]!r}") from None
        except TimeoutError:
            raise Late(f"{method} {path} at {at} did not end") from None

    async def _status(self, at: str, method: str, path: str) -> int:
        """Return the HTTP status that a worker answers; 200 for each success."""
        asking = asyncio.to_thread(self.regions.ask, at, method, path)
        try:
            await self._watch.ended(asking, f"{method} {path} at {at}")
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    async def close(self) -> None:
        for at in list(self._clients):
            await self._leave(at)
