"""Versions and features that a peer understands, so that it is sent nothing that it cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.protocol.commands_pb2 import CommandConnect, CommandConnected, FeatureFlags

NEWEST: Final = 21
PING_SINCE: Final = 1
"""First version with keep-alive. Older peers rely on the TCP connection's."""
CLOSE_BY_SERVER_SINCE: Final = 5
"""First version with CLOSE_PRODUCER and CLOSE_CONSUMER from a server. Older clients' connections are closed instead."""
REACHED_END_SINCE: Final = 9
ACTIVE_CONSUMER_SINCE: Final = 12


@dataclass(frozen=True, slots=True)
class Peer:
    """Other side of a connection: its description of itself, and the protocol version that both sides know."""

    software: str
    version: int
    """Protocol version: the lower one of both sides."""
    features: FeatureFlags

    def understands(self, since: int) -> bool:
        """Return whether the peer knows features of protocol version ``since``."""
        return self.version >= since

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether the peer accepts REACHED_END_OF_TOPIC.

        The C++ client, and those around it (Python, Node), close the connection on it, whatever their version, and
        reconnect only to get it again, for ever."""
        return self.understands(REACHED_END_SINCE) and not self.software.startswith("Pulsar-CPP-")


def client_of(command: CommandConnect) -> Peer:
    """Return the client that sent ``command``."""
    return Peer(command.client_version, max(0, min(NEWEST, command.protocol_version)), command.feature_flags)


def server_of(command: CommandConnected) -> Peer:
    """Return the server that answered with ``command``."""
    return Peer(command.server_version, max(0, min(NEWEST, command.protocol_version)), command.feature_flags)
