"""Versions and features: what a peer understands, so that nobody is sent what it cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.protocol.commands_pb2 import CommandConnect, CommandConnected, FeatureFlags

NEWEST: Final = 21
PING_SINCE: Final = 1
"""Peers of version 0 know no keep-alive: theirs is the TCP connection's."""
CLOSE_BY_SERVER_SINCE: Final = 5
"""Older clients know no CLOSE_PRODUCER and CLOSE_CONSUMER from a server: their connection is closed instead."""
REACHED_END_SINCE: Final = 9
ACTIVE_CONSUMER_SINCE: Final = 12


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, as it said it is."""

    software: str
    version: int
    """Of the protocol: the lower one of both sides."""
    features: FeatureFlags

    def understands(self, since: int) -> bool:
        """Whether it knows what came with protocol version ``since``."""
        return self.version >= since

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether it takes REACHED_END_OF_TOPIC. The C++ client, and those around it (Python, Node), end the connection
        for it as for garbage, whatever version they say, and come back for the same again, for ever."""
        return self.understands(REACHED_END_SINCE) and not self.software.startswith("Pulsar-CPP-")


def client_of(command: CommandConnect) -> Peer:
    """The client that sent it."""
    return Peer(command.client_version, max(0, min(NEWEST, command.protocol_version)), command.feature_flags)


def server_of(command: CommandConnected) -> Peer:
    """The server that answered with it."""
    return Peer(command.server_version, max(0, min(NEWEST, command.protocol_version)), command.feature_flags)
