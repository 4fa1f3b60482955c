"""What a worker's failover does to its engine: closes and opens the gate, lets clients finish, and reads positions.

The gate closes in one step for all topics. Producers that are let go of have their answers: what was in flight is
durable when :meth:`Gatekeeper.settled` returns, and nothing came after it. Consumers of a planned switch get nothing
more and have a moment to acknowledge what they hold; then they go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import ClusterFenced, EngineError, MovedTo, TooBusy
from replicator.engine.fencing import disconnect_consumers, disconnect_producers, held_entries, resume_dispatch
from replicator.engine.log.block import BlockKind
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.failover.core import Closed, Gate
from snapshots.position import BEFORE_ALL, Position

CONSUMER_GRACE_SECONDS: Final = 1.0
"""How long consumers may acknowledge what they hold. What they do not is delivered again by the other cluster."""
GRACE_STEP_SECONDS: Final = 0.02
COUNT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of one topic's log, read to count messages that another cluster lacks: past that the count is an upper bound."""
PAGE_BYTES: Final = 8 * 1024 * 1024

log = structlog.get_logger(__name__)


class Gatekeeper:
    """The engine as a failover sees it. ``address_of`` gives where the clients of a cluster connect, ``service_urls``
    where those of the binary protocol do."""

    def __init__(self, engine: Engine, address_of: Mapping[str, str], service_urls: Mapping[str, MovedTo]) -> None:
        self.engine = engine
        self.address_of = address_of
        self.service_urls = service_urls
        self.on_gate: Callable[[Gate], None] = lambda gate: None
        """Told of each gate, before anybody is let go of."""

    def set_gate(self, gate: Gate) -> None:
        """Take and refuse clients, from now on; those that are refused are let go of, but for consumers of a planned
        switch: :meth:`let_consumers_finish` is for them."""
        admission = self.engine.admission
        producers, consumers = self._error(gate, gate.producers), self._error(gate, gate.consumers)
        admission.fence(producers, consumers)
        self.on_gate(gate)
        if producers is not None:
            gone = disconnect_producers(self.engine.topics(), producers)
            if gone:
                log.info("producers let go", cluster=self.engine.cluster, producers=gone, reason=str(producers))
        if consumers is None:
            if admission.dispatch_paused:
                admission.dispatch_paused = False
                resume_dispatch(self.engine.topics())
        elif gate.consumers is not Closed.SWITCHING:
            disconnect_consumers(self.engine.topics(), consumers)

    def _error(self, gate: Gate, closed: Closed | None) -> EngineError | None:
        cluster, serving = self.engine.cluster, gate.serving
        where = f"{serving} at {self.address_of.get(serving, 'an address that the topology does not have')}"
        match closed:
            case None:
                return None
            case Closed.STARTING:
                return TooBusy(f"{cluster} is starting, and asks the other clusters whether one of them took over")
            case Closed.SWITCHING:
                return ClusterFenced(f"{cluster} is being switched to {where}: try again in a moment, here or there")
            case Closed.FENCED:
                reason = f"{cluster} is served by {where} since failover epoch {gate.epoch}: connect there"
                return ClusterFenced(reason, self.service_urls.get(serving))

    async def settled(self, operation: str) -> None:
        """Returns when all that was published and acknowledged before is durable: the writer keeps the order."""
        await self.engine.remember("failover_barrier", operation)

    async def let_consumers_finish(self) -> int:
        """While dispatch is paused: wait a moment for acknowledgements, then let go of the consumers.

        Returns how many entries they held unacknowledged then.
        """
        admission = self.engine.admission
        loop = asyncio.get_running_loop()
        until = loop.time() + CONSUMER_GRACE_SECONDS
        while any(map(held_entries, self.engine.topics())) and loop.time() < until:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(GRACE_STEP_SECONDS)
        held = sum(sum(held_entries(topic).values()) for topic in self.engine.topics())
        error = admission.consumers
        if error is not None:  # else the switch was given up meanwhile
            disconnect_consumers(self.engine.topics(), error)
        admission.dispatch_paused = False
        return held

    # Positions.

    def topics(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """How far topics are, for a switch's checks and reports; ``names`` None means all."""
        engine = self.engine
        found = engine.topics() if names is None else [topic for name in names if (topic := engine.find(name))]
        return [self._topic(topic) for topic in found if topic.name != EPOCHS_TOPIC]

    def _topic(self, topic: Topic) -> dict[str, Any]:
        clusters = topic.namespace.policies.replication_clusters
        origins = topic.origins.vector()
        marks = {origin: mark for origin in origins if (mark := topic.origins.high_water(origin)) is not None}
        held = held_entries(topic)
        return {
            "name": topic.name,
            "incarnation": topic.incarnation,
            "clusters": None if clusters is None else sorted(clusters),
            "has": {
                origin: {"incarnation": mark.incarnation, "position": str(mark.position)}
                for origin, mark in marks.items()
            },
            "messages": topic.log.messages,
            "subscriptions": {
                each.name: {
                    "replicated": each.replicated,
                    "generation": each.cursor.generation,
                    "mark_delete": str(each.cursor.mark_delete),
                    "backlog_messages": each.backlog_messages(),
                    "held_entries": held.get(each.name, 0),
                }
                for each in list(topic.subscriptions.values())
                if each.durable
            },
        }

    def marks_of(self, origin: str) -> dict[str, dict[str, Any]]:
        """Up to where every topic has the messages of ``origin``."""
        marks = {
            topic.name: topic.origins.high_water(origin) for topic in self.engine.topics() if topic.name != EPOCHS_TOPIC
        }
        return {
            name: {"incarnation": mark.incarnation, "position": str(mark.position)}
            for name, mark in marks.items()
            if mark is not None
        }

    async def missing(
        self, marks: Mapping[str, Position], upto: Mapping[str, Position] | None = None
    ) -> dict[str, dict[str, Any]]:
        """How many messages of this cluster's own lie above these positions of its own, by topic; a topic that is not
        named counts from its beginning. ``upto`` gives where counting ends; else it is the log's end. ``exact`` is
        False where there was too much to count: then it is an upper bound."""
        found: dict[str, dict[str, Any]] = {}
        for topic in self.engine.topics():
            if topic.name == EPOCHS_TOPIC or topic.deleted is not None:
                continue
            last = topic.origins.message_vector().get(self.engine.cluster)
            if upto is not None and last is not None:
                last = min(last, upto.get(topic.name, BEFORE_ALL))
            if last is None or last <= (mark := marks.get(topic.name, BEFORE_ALL)):
                continue
            messages, exact = await self._count(topic, mark, last)
            if messages:
                found[topic.name] = {"messages": messages, "exact": exact, "last": str(last)}
        return found

    async def _count(self, topic: Topic, after: Position, upto: Position) -> tuple[int, bool]:
        counted, read_bytes, reached = 0, 0, after
        while True:
            blocks, following = topic.reading.blocks(reached, upto, bytes_max=PAGE_BYTES, verify=False)
            for stored in blocks:
                read_bytes += len(stored.block)
                header = stored.header
                if header.origin == self.engine.cluster and header.kind is BlockKind.MESSAGES:
                    counted += header.messages
            if following == reached or not blocks:
                return counted, True
            reached = following
            if read_bytes > COUNT_BYTES_MAX:
                return counted + topic.log.messages - topic.reading.messages_through(reached), False
            await asyncio.sleep(0)
