"""An HTTP connection is handed on in pieces; it reads no more while received bytes wait."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.base_protocol import BaseProtocol

from replicator.gateway import counted
from replicator.gateway.counted import PIECE_BYTES, READ_BYTES, UNREAD_BYTES_MAX, CountedConnection, unread
from replicator.running.turns import SLICE_SECONDS, TURN_SECONDS, FairScheduler, LoopShare
from replicator.security.client_limits import ClientLimits


class Loop:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls: list[Callable[[], None]] = []
        self.turns = FairScheduler(lambda: self.now, self.calls.append)

    def turn(self) -> None:
        calls = self.calls[:]
        del self.calls[:]
        for call in calls:
            call()


class Transport:
    def __init__(self) -> None:
        self.reads = True
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 1234) if name == "peername" else None

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Http(asyncio.Protocol):
    """Takes as long as a test says for each byte."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.seconds_per_byte = 0.0
        self.came: list[bytes] = []
        self.lost = False
        self._reading_paused = False

    def data_received(self, data: bytes) -> None:
        assert not self.lost
        self.loop.now += len(data) * self.seconds_per_byte
        self.came.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


def made() -> tuple[Loop, Http, CountedConnection, Transport]:
    loop, transport = Loop(), Transport()
    http = Http(loop)
    connection = CountedConnection(http, ClientLimits(), loop.turns)
    connection.connection_made(cast(asyncio.Transport, transport))
    return loop, http, connection, transport


def test_what_is_small_is_handed_on_at_once() -> None:
    loop, http, connection, transport = made()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert http.came == [b"GET / HTTP/1.1\r\n\r\n"]
    assert transport.reads
    assert loop.calls == []


def test_a_flood_is_handed_on_in_slices_and_in_order() -> None:
    loop, http, connection, transport = made()
    http.seconds_per_byte = SLICE_SECONDS / PIECE_BYTES
    flood = bytes(range(256)) * 1024
    connection.data_received(flood)
    assert len(b"".join(http.came)) <= 2 * PIECE_BYTES
    assert not transport.reads
    connection.data_received(b"more")
    while not transport.reads:
        before = loop.now
        loop.turn()
        assert loop.now - before <= TURN_SECONDS + SLICE_SECONDS
    assert b"".join(http.came) == flood + b"more"


def test_reading_goes_on_only_if_http_wants_more() -> None:
    """The transport must not be told again to stop a reading that is stopped already."""
    loop, http, connection, transport = made()
    http.seconds_per_byte = SLICE_SECONDS / PIECE_BYTES
    connection.data_received(bytes(4 * PIECE_BYTES))
    http._reading_paused = True
    for _ in range(5):
        loop.turn()
    assert len(b"".join(http.came)) == 4 * PIECE_BYTES
    assert not transport.reads
    assert {"_reading_paused", "_buffer_paused"} <= set(BaseProtocol.__slots__), "aiohttp calls it otherwise now"


def test_what_came_before_the_client_left_is_handed_on_before_that_is_told() -> None:
    loop, http, connection, _ = made()
    http.seconds_per_byte = SLICE_SECONDS / PIECE_BYTES
    connection.data_received(bytes(4 * PIECE_BYTES))
    connection.connection_lost(None)
    assert len(b"".join(http.came)) == 4 * PIECE_BYTES
    assert http.lost
    for _ in range(5):
        loop.turn()
    assert loop.turns.client("10.0.0.1:1234") is None


def test_a_client_that_used_much_waits_while_others_do() -> None:
    loop, http, connection, transport = made()
    share = loop.turns.client("10.0.0.1:1234")
    assert share is not None
    loop.turns.spend(share, 1.0, loop.now)
    loop.turn()
    loop.turns.wait(LoopShare("10.0.0.2:1"), lambda: False)
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert http.came == []
    assert not transport.reads
    loop.turn()
    assert len(http.came) == 1
    assert transport.reads


def test_an_operator_ends_it() -> None:
    loop, _, _, transport = made()
    for share in loop.turns.clients("10.0.0.1"):
        assert share.end is not None
        share.end()
    assert transport.aborted


@contextmanager
def failed_connection(size: int) -> Iterator[tuple[asyncio.Transport, socket.socket]]:
    """Yield a transport whose socket holds bytes that a client sent, and the client's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        failed, _ = listening.accept()
    with client, failed:
        client.settimeout(30)
        client.sendall(bytes(size))
        select.select([failed], [], [], 30)
        transport = SimpleNamespace(get_extra_info=lambda name: failed if name == "socket" else None)
        yield cast(asyncio.Transport, transport), client


def test_no_more_than_a_limit_is_read_of_a_connection_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is still connected may send faster than it is read: gigabytes came, and blocked the event loop."""
    monkeypatch.setattr(counted, "UNREAD_BYTES_MAX", READ_BYTES)
    with failed_connection(2 * READ_BYTES) as (transport, _):
        assert 0 < sum(map(len, unread(transport))) < 2 * READ_BYTES


@pytest.mark.parametrize("read", [0, 1])
def test_the_socket_of_a_failed_connection_closes_though_its_last_bytes_are_not_read(read: int) -> None:
    with failed_connection(2 * READ_BYTES) as (transport, client):
        pieces = unread(transport)
        for _ in range(read):
            next(pieces)
        transport.get_extra_info("socket").close()
        del pieces
        everything = bytes(UNREAD_BYTES_MAX)  # more than the kernel takes if nobody reads
        with pytest.raises(ConnectionError):
            client.sendall(4 * everything)
