"""Connection of our client over real sockets, on each Python: its promises about the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from raw_servers import start_server

from replicator.client.errors import ConnectError, PulsarException
from replicator.client.wire.connection import WRITE_BUFFER_BYTES, Connection
from replicator.protocol.commands_pb2 import BaseCommand, CommandAck, CommandConnected
from replicator.protocol.frames import encode

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(peer: Peer, made: type[Connection] = Connection) -> tuple[asyncio.Server, Connection]:
    server = await start_server(peer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: made(f"127.0.0.1:{port}", lambda _: None), "127.0.0.1", port
    )
    return server, connection


def test_a_request_between_the_end_of_the_stream_and_the_loss_is_answered_like_all_others() -> None:
    """A timer of acknowledgements may fire there."""

    async def main() -> None:
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        answers: list[Any] = []
        lost: list[PulsarException] = []
        over = asyncio.Event()

        class Consumer:
            def on_lost(self, error: PulsarException) -> None:
                lost.append(error)
                over.set()

        class Asking(Connection):
            def eof_received(self) -> None:
                asyncio.get_running_loop().call_soon(ask, self)  # the transport closes itself when this returns

        def ask(connection: Connection) -> None:
            connection.ask(lambda request_id: ack(request_id), answers.append)

        def ack(request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.Type.ACK,
                ack=CommandAck(request_id=request_id, consumer_id=1, ack_type=CommandAck.Individual),
            )

        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(WRITE_BUFFER_BYTES)  # what is not read makes a reset of the end
            writer.write(
                encode(BaseCommand(type=BaseCommand.Type.CONNECTED, connected=CommandConnected(server_version="1")))
            )
            writer.close()

        server, connection = await connected(leave, Asking)
        connection.consumers[1] = Consumer()  # type: ignore[assignment]
        async with server, asyncio.timeout(10):
            await over.wait()
        assert not failed
        assert [type(error) for error in lost] == [ConnectError]
        assert [type(answer) for answer in answers] == [ConnectError]

    asyncio.run(main())


def test_who_fails_to_hear_of_the_end_keeps_nobody_else_from_hearing_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        heard: list[str] = []

        class Session:
            def __init__(self, name: str) -> None:
                self.name = name

            def on_lost(self, error: PulsarException) -> None:
                heard.append(self.name)
                if self.name == "first":
                    raise RuntimeError("a bug of the first")

        async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server, connection = await connected(stay)
        async with server:
            for number, name in enumerate(("first", "second")):
                connection.producers[number] = Session(name)  # type: ignore[assignment]
            connection.end(ConnectError("over"))
        return heard

    assert asyncio.run(main()) == ["first", "second"]
    assert "a bug of the first" in caplog.text


def test_it_says_when_the_socket_takes_no_more() -> None:
    async def main() -> None:
        told = asyncio.Event()

        async def read_when_told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await told.wait()
            while await reader.read(WRITE_BUFFER_BYTES):
                pass
            writer.close()

        resumed = asyncio.Event()

        class Producer:
            def on_writable(self) -> None:
                resumed.set()

            def on_lost(self, error: PulsarException) -> None:
                pass

        server, connection = await connected(read_when_told)
        connection.producers[1] = Producer()  # type: ignore[assignment]
        async with server, asyncio.timeout(10):
            written = 0
            while connection.writable and written < 64 * WRITE_BUFFER_BYTES:
                connection.write(b"head" + bytes(WRITE_BUFFER_BYTES))
                written += WRITE_BUFFER_BYTES
            paused = not connection.writable
            told.set()
            if paused:
                await resumed.wait()
            connection.end(ConnectError("over"))
        assert paused

    asyncio.run(main())
