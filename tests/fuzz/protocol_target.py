"""Fuzzing target: the codec and both sides of a connection. They may raise protocol errors only, and keep at most a
frame.

The first byte chooses whether CONNECT went before, and the size of the pieces in which the bytes come.
"""

from __future__ import annotations

import contextlib

from replicator.protocol.client import ClientConnection
from replicator.protocol.commands_pb2 import BaseCommand, CommandConnect, CommandConnected
from replicator.protocol.data_commands import Acks, Sends
from replicator.protocol.errors import ProtocolError
from replicator.protocol.frames import FrameDecoder, encode, frame_bytes_max, split_broker_metadata
from replicator.protocol.server import COMMANDS, ServerConnection

CONNECT = encode(BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="x", protocol_version=21)))
CONNECTED = encode(BaseCommand(type=BaseCommand.CONNECTED, connected=CommandConnected(server_version="x")))


def take(data: bytes) -> None:
    """Pass one input of the fuzzer to the codec and to both sides of a connection. Only ProtocolError may be raised."""
    if not data:
        return
    how, data = data[0], data[1:]
    size = 1 + (how >> 1) if how < 200 else len(data) + 1
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    decoder = FrameDecoder()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            for frame in decoder.receive(piece):
                assert not isinstance(frame, Sends)  # which is for servers alone
                with contextlib.suppress(ProtocolError):
                    split_broker_metadata(frame.rest)
            assert decoder.waits <= min(frame_bytes_max(), len(data))
    server, client = ServerConnection(0.0, software="x"), ClientConnection(0.0, software="x", gathers=True)
    if how & 1:
        list(server.receive(CONNECT, 0.0))
        list(client.receive(CONNECTED, 0.0))
    try:
        for number, piece in enumerate(pieces):
            for step in server.receive(piece, float(number)):
                assert isinstance(step, bytes | Sends | Acks) or step.command.type in COMMANDS
            server.tick(float(number))
    except ProtocolError:
        assert server.over
    with contextlib.suppress(ProtocolError):
        for number, piece in enumerate(pieces):
            list(client.receive(piece, float(number)))
            client.tick(float(number))
