"""Helpers of the tests of the gateway: an engine that serves the binary protocol from a thread, and a bare client.

The official client blocks, so the engine has an event loop in a thread of its own. :class:`BareClient` sends what no
official client would.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

from engine_support import opened, serving

from replicator.engine.engine import Engine, EngineSettings
from replicator.gateway.connection import Addresses
from replicator.gateway.server import Gateway
from replicator.links.link import Link
from replicator.protocol.authentication import AllowAll, Authenticator
from replicator.protocol.client import ClientConnection, Response
from replicator.protocol.commands_pb2 import BaseCommand, CommandLookupTopic, FeatureFlags
from replicator.protocol.errors import Refused
from replicator.protocol.frames import Frame, encode

DEADLINE_SECONDS = 20.0
T = TypeVar("T")


class ServedEngine:
    """An engine and its gateway, on a port of their own."""

    def __init__(self, engine: Engine, gateway: Gateway, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.gateway = gateway
        self.port = port
        self.url = f"pulsar://127.0.0.1:{port}"
        self.loop = loop

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(DEADLINE_SECONDS)

    def ask(self, call: Callable[[], T]) -> T:
        """Call a function on the engine's event loop."""

        async def called() -> T:
            return call()

        return self.run(called())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds on the engine's event loop, looking at it again and again."""

        async def wait() -> None:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not holds():
                assert time.monotonic() < deadline, what
                await asyncio.sleep(0.005)

        self.run(wait())


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engines of a test", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_SECONDS)
        loop.close()


@asynccontextmanager
async def serving_clients(
    engine: Engine, authenticator: Callable[[], Authenticator] = AllowAll, *, broker_metadata: bool = False
) -> AsyncIterator[ServedEngine]:
    """Serve an engine to official clients, on the running loop."""
    bound = socket.create_server(("127.0.0.1", 0))
    port = int(bound.getsockname()[1])
    addresses = Addresses(f"pulsar://127.0.0.1:{port}")
    gateway = Gateway(engine, addresses, authenticator=lambda _: authenticator(), broker_metadata=broker_metadata)
    await gateway.listen(bound)
    try:
        yield ServedEngine(engine, gateway, port, asyncio.get_running_loop())
    finally:
        await gateway.stop()


@contextmanager
def entered(
    loop: asyncio.AbstractEventLoop, context: AbstractAsyncContextManager[T], *, seconds: float = DEADLINE_SECONDS
) -> Iterator[T]:
    """Enter an asynchronous context on a loop in another thread, and yield its value. One task runs it from start to
    end."""
    given: concurrent.futures.Future[T] = concurrent.futures.Future()
    over = asyncio.Event()

    async def stay() -> None:
        try:
            async with context as value:
                given.set_result(value)
                await over.wait()
        except BaseException as error:
            if given.done():
                raise
            given.set_exception(error)

    staying = asyncio.run_coroutine_threadsafe(stay(), loop)
    try:
        yield given.result(seconds)
    finally:
        loop.call_soon_threadsafe(over.set)
        staying.result(seconds)


@contextmanager
def served_engine(
    path: Path, settings: EngineSettings | None = None, authenticator: Callable[[], Authenticator] = AllowAll
) -> Iterator[ServedEngine]:
    """Yield an engine in ``path`` that official clients can use."""

    @asynccontextmanager
    async def served() -> AsyncIterator[ServedEngine]:
        engine = await Engine.open(path, cluster="solo", settings=settings)
        try:
            async with serving_clients(engine, authenticator) as gateway:
                yield gateway
        finally:
            await engine.close()

    with running_loop() as loop, entered(loop, served()) as gateway:
        yield gateway


@contextmanager
def linked_engines(
    path: Path, *names: str, settings: Mapping[str, EngineSettings] | None = None
) -> Iterator[dict[str, ServedEngine]]:
    """Yield clusters by name, each linked with each, that official clients can use; ``settings`` by name."""

    @asynccontextmanager
    async def linked() -> AsyncIterator[dict[str, ServedEngine]]:
        async with AsyncExitStack() as stack:
            engines = {
                name: await stack.enter_async_context(opened(path / name, name, settings=(settings or {}).get(name)))
                for name in names
            }
            servers = {
                name: await stack.enter_async_context(serving(engines[name], [each for each in names if each != name]))
                for name in names
            }
            for source, destination in permutations(names, 2):
                link = Link(engines[source], destination, servers[destination].address)
                stack.push_async_callback(link.stop)
                link.start()
            yield {name: await stack.enter_async_context(serving_clients(engines[name])) for name in names}

    with running_loop() as loop, entered(loop, linked()) as served:
        yield served


class BareClient:
    """Connection on which a test sends every command itself."""

    def __init__(
        self, port: int, *, connect: bool = True, features: FeatureFlags | None = None, token: str = ""
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS)
        self.state = ClientConnection(
            time.monotonic(),
            software="a test",
            features=features,
            method="token" if token else "",
            credentials=token.encode,
        )
        self._steps: list[Frame | Response] = []
        if connect:
            self.socket.sendall(self.state.connect())
            while self.state.peer is None:
                self._receive()

    def __enter__(self) -> BareClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, command: BaseCommand) -> None:
        self.socket.sendall(encode(command))

    def ping(self) -> None:
        """Return when the server has answered."""
        self.request(
            lambda number: BaseCommand(
                type=BaseCommand.LOOKUP, lookupTopic=CommandLookupTopic(topic="t", request_id=number)
            )
        )

    def request(self, make: Callable[[int], BaseCommand]) -> Any:
        """Send the command that ``make`` makes with a new request id; return the answer, or raise :class:`Refused`."""
        number = self.state.request_id()
        self.send(make(number))
        while True:
            for at, step in enumerate(self._steps):
                if isinstance(step, Response) and step.request_id == number:
                    del self._steps[at]
                    if isinstance(step.answer, Refused):
                        raise step.answer
                    return step.answer
            self._receive()

    def next(self, *kinds: BaseCommand.Type) -> Frame:
        """Return the next unasked command of one of these types."""
        while True:
            for at, step in enumerate(self._steps):
                if isinstance(step, Frame) and step.command.type in kinds:
                    del self._steps[at]
                    return step
            self._receive()

    def closed_by_server(self) -> bool:
        """Wait for the server to close the connection; return whether it did."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        for step in self.state.receive(data, time.monotonic()):
            if isinstance(step, bytes):
                self.socket.sendall(step)
            else:
                self._steps.append(step)
