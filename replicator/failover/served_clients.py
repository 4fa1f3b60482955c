"""Interface to the clients of a cluster that a failover needs: to turn them away, and to know what they have done.

There is one implementation a kind of cluster: the engine's own clients (:mod:`replicator.failover.engine_clients`), and
those of the brokers that a worker runs beside (:mod:`replicator.apache.broker_clients`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from replicator.engine.errors import Redirect
from replicator.engine.gate import Gate
from replicator.engine.topic import Topic
from snapshots.position import Position


class ServedClients(Protocol):
    """The clients of one cluster."""

    origin: str
    """Origin of the messages that the clients publish."""

    def on_addresses(self, address_of: Mapping[str, str], service_urls: Mapping[str, Redirect]) -> None:
        """Take over where the clients of each cluster connect; ``service_urls`` is for the binary protocol."""

    def set_gate(self, gate: Gate) -> None:
        """Let ``gate`` decide from now on which clients are taken. Do not wait; repeat what cannot be done at once."""

    async def settle(self, operation: str, *, keep_consumers: bool) -> int:
        """Settle a planned switch after the gate was closed. Return when nobody publishes any more, nor acknowledges
        unless ``keep_consumers``, and all of it is durable in the engine. Return how many entries consumers then
        held unacknowledged. Raise :class:`EngineError` if that cannot be reached.
        """

    async def ended(self) -> None:
        """Wait until the gate is closed and all that was published before is in the engine."""

    def in_log(self, topic: Topic, position: Position) -> Position:
        """Translate an origin position to a local one."""

    def served_through(self, topic: Topic, origin: str) -> Position | None:
        """Return the last position of ``origin`` that clients can receive, or None if they can receive everything."""

    def state_lags(self, topic: Topic, subscription: str) -> str:
        """Return why a subscription differs between these clients and the engine; empty if it does not."""

    def unknown(self) -> str:
        """Return why the engine may lack what the clients did; empty if it has all of it."""
