"""The clients that are connected to the engine itself, as a failover sees them.

The gate closes in one step for all topics. Producers that are let go of have their answers: what was in flight is
durable when :meth:`EngineClients.settle` returns, and nothing came after it. Consumers of a planned switch get nothing
more and have a moment to acknowledge what they hold (:mod:`replicator.failover.grace`); then they go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import ClusterFenced, EngineError, Redirect, TooBusy
from replicator.engine.fencing import disconnect_consumers, disconnect_producers, held_entries, resume_dispatch
from replicator.engine.gate import Closed, Gate
from replicator.engine.topic import Topic
from replicator.failover.grace import ConsumerGrace
from snapshots.position import Position

GRACE_STEP_SECONDS: Final = 0.02

log = structlog.get_logger(__name__)


class EngineClients:
    """See :class:`~replicator.failover.served_clients.ServedClients`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.origin = engine.cluster
        self._address_of: Mapping[str, str] = {}
        self._service_urls: Mapping[str, Redirect] = {}

    def on_addresses(self, address_of: Mapping[str, str], service_urls: Mapping[str, Redirect]) -> None:
        self._address_of, self._service_urls = address_of, service_urls

    def set_gate(self, gate: Gate) -> None:
        """Set the gate. Disconnect the clients that it refuses at once, except consumers in a planned switch:
        :meth:`settle` ends these.
        """
        admission = self._engine.admission
        producers, consumers = self._error(gate, gate.producers), self._error(gate, gate.consumers)
        admission.fence(producers, consumers)
        if producers is not None:
            gone = disconnect_producers(self._engine.topics(), producers)
            if gone:
                log.info("producers let go", cluster=self._engine.cluster, producers=gone, reason=str(producers))
        if consumers is None:
            if admission.dispatch_paused:
                admission.finished()
                resume_dispatch(self._engine.topics())
        elif gate.consumers is not Closed.SWITCHING:
            disconnect_consumers(self._engine.topics(), consumers)
            admission.finished()

    async def settle(self, operation: str, *, keep_consumers: bool) -> int:
        if keep_consumers:
            await self._barrier(operation)
            return 0
        finishing = self._engine.admission.pause_dispatch()
        try:
            await self._barrier(operation)
            held = await self._let_consumers_finish(finishing)
        finally:
            if not finishing.is_set():
                self._engine.admission.finished()
        await self._barrier(operation)
        return held

    async def ended(self) -> None:
        """Wait for what was in flight when the gate closed: it is stored, and its producers get their answers."""
        await self._barrier("ended")

    def in_log(self, topic: Topic, position: Position) -> Position:
        return position

    def served_through(self, topic: Topic, origin: str) -> Position | None:
        return None

    def state_lags(self, topic: Topic, subscription: str) -> str:
        return ""

    def unknown(self) -> str:
        return ""

    def _error(self, gate: Gate, closed: Closed | None) -> EngineError | None:
        cluster, serving = self._engine.cluster, gate.serving
        where = f"{serving} at {self._address_of.get(serving, 'an address that the topology does not have')}"
        match closed:
            case None:
                return None
            case Closed.STARTING:
                return TooBusy(f"{cluster} is starting, and asks the other clusters whether one of them took over")
            case Closed.SWITCHING:
                return ClusterFenced(f"{cluster} is being switched to {where}: try again in a moment, here or there")
            case Closed.FENCED:
                reason = f"{cluster} is served by {where} since failover epoch {gate.epoch}: connect there"
                return ClusterFenced(reason, self._service_urls.get(serving))

    async def _barrier(self, operation: str) -> None:
        """Wait until everything that was published and acknowledged before is durable: the writer keeps the order."""
        await self._engine.remember("failover_barrier", operation)

    async def _let_consumers_finish(self, finishing: asyncio.Event) -> int:
        """Wait a moment for acknowledgements, while dispatch is paused, then disconnect the consumers. Return how many
        entries they held unacknowledged then.
        """
        loop = asyncio.get_running_loop()
        grace = ConsumerGrace(loop.time())
        holding = list(self._engine.topics())
        while True:
            holding = [topic for topic in holding if held_entries(topic)]  # nothing is added while dispatch is paused
            held = sum(sum(held_entries(topic).values()) for topic in holding)
            if finishing.is_set():  # the switch was given up, or its end was heard of
                return held
            if grace.is_over(held, loop.time()):
                break
            await asyncio.sleep(GRACE_STEP_SECONDS)
        error = self._engine.admission.consumers
        if error is not None:
            disconnect_consumers(self._engine.topics(), error)
        return held
