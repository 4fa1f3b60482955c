"""What a failover needs of those who are connected to a cluster: to turn them away, and to know what they have done.

There is one implementation a kind of cluster: the engine's own clients (:mod:`replicator.failover.engine_clients`), and
those of the brokers that a worker runs beside (:mod:`replicator.apache.broker_clients`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from replicator.engine.errors import MovedTo
from replicator.engine.gate import Gate
from replicator.engine.topic import Topic
from snapshots.position import Position


class ServedClients(Protocol):
    """The clients of one cluster."""

    origin: str
    """Of the messages that they publish."""

    def on_addresses(self, address_of: Mapping[str, str], service_urls: Mapping[str, MovedTo]) -> None:
        """Where the clients of each cluster connect; ``service_urls`` where those of the binary protocol do."""

    def set_gate(self, gate: Gate) -> None:
        """Take and refuse them, from now on. Does not wait; what cannot be done at once is tried until it is done."""

    async def settle(self, operation: str, *, keep_consumers: bool) -> int:
        """In a planned switch, after the gate was closed: returns when nobody publishes, or, unless they are kept,
        acknowledges any more, and all that they did is durable in the engine. Returns how many entries consumers held
        unacknowledged then. Raises :class:`EngineError` if it cannot be had."""

    async def ended(self) -> None:
        """Returns when the gate is closed and all that was published before is in the engine."""

    def in_log(self, topic: Topic, position: Position) -> Position:
        """Where in the engine's log an entry lies of which the origin position is known."""

    def served_through(self, topic: Topic, origin: str) -> Position | None:
        """Up to where they are served messages of an origin, where that is not all that the engine has of it."""

    def state_lags(self, topic: Topic, subscription: str) -> str:
        """Why a subscription is not for them as it is in the engine; empty if it is."""

    def unknown(self) -> str:
        """Why the engine may lack what they did; empty if it has all of it."""
