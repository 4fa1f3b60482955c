"""Positions of the topics of one worker, which it answers for the checks and the reports of a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from replicator.engine.engine import Engine
from replicator.engine.fencing import held_entries
from replicator.engine.log.block import BlockKind
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.engine.topics.partitions import base_name
from replicator.failover.served_clients import ServedClients
from snapshots.position import BEFORE_ALL, Position

COUNT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of bytes that are read of one topic's log to count messages that another cluster lacks. Beyond it, the count is
an upper bound.
"""
PAGE_BYTES: Final = 8 * 1024 * 1024
TURN_TOPICS: Final = 1_000
"""Topics of which a brief answer tells before other tasks of the event loop run; this takes some milliseconds."""


Earlier = Mapping[str, Mapping[str, Sequence[Position]]]
"""By topic and origin, the newest message of each earlier life of the topic that another cluster has."""


class Positions:
    """Positions of the topics of ``engine``, and how far its cluster's clients are served."""

    def __init__(self, engine: Engine, clients: ServedClients) -> None:
        self._engine = engine
        self._clients = clients

    def topics(self, names: list[str] | None = None, earlier: Earlier | None = None) -> list[dict[str, Any]]:
        """Return the positions of each topic, for a switch's checks and reports. None as ``names`` means all topics.

        The answer names earlier lives of this cluster's own messages that a reclaim put back. With ``earlier``, it
        names those of all origins, and the messages in ``earlier`` that are missing here.
        """
        return [self._topic(topic, earlier) for topic in self._named(names) if topic.name != EPOCHS_TOPIC]

    async def in_brief(self, names: list[str] | None = None) -> dict[str, Any]:
        """Return topics without positions: all, or those in ``names``.

        ``topics`` has of each its name, the clusters that get its messages (None: all), and the origins of what it has.
        ``partitioned`` has, by the common name of partitions, their number; 0 if there is no such topic. Other tasks
        run after every :data:`TURN_TOPICS` topics.
        """
        found: list[dict[str, Any]] = []
        partitioned: dict[str, int] = {}
        for at, topic in enumerate(self._named(names), 1):
            if topic.name != EPOCHS_TOPIC:
                found.append({"name": topic.name, "clusters": _clusters(topic), "has": list(topic.origins.vector())})
            if at % TURN_TOPICS == 0:
                await asyncio.sleep(0)
        for name in [each["name"] for each in found] if names is None else names:
            if (base := base_name(name)) and base not in partitioned:
                partitioned[base] = self._engine.partitioned.count(base)
        return {"topics": found, "partitioned": partitioned}

    def _named(self, names: Collection[str] | None) -> Sequence[Topic]:
        engine = self._engine
        return list(engine.topics()) if names is None else [topic for name in names if (topic := engine.find(name))]

    def _topic(self, topic: Topic, earlier: Earlier | None) -> dict[str, Any]:
        origins = topic.origins.vector()
        marks = {origin: mark for origin in origins if (mark := topic.origins.high_water(origin)) is not None}
        held = held_entries(topic)
        lives = topic.origins.newest_of_earlier_lives({topic.cluster} if earlier is None else origins)
        lacks = {
            origin: [str(position) for position in positions if topic.origins.lacks(origin, position)]
            for origin, positions in (earlier or {}).get(topic.name, {}).items()
        }
        return {
            "earlier": {origin: list(map(str, positions)) for origin, positions in lives.items()},
            "earlier_messages": {
                origin: topic.reading.messages_through(positions[-1])
                for origin, positions in lives.items()
                if origin == topic.cluster
            },
            "lacks": {origin: positions for origin, positions in lacks.items() if positions},
            "name": topic.name,
            "incarnation": topic.incarnation,
            "clusters": _clusters(topic),
            "has": {
                origin: {"incarnation": mark.incarnation, "position": str(mark.position)}
                for origin, mark in marks.items()
            },
            "served_through": {
                origin: str(reached)
                for origin in marks
                if (reached := self._clients.served_through(topic, origin)) is not None
            },
            "messages": topic.log.messages,
            "subscriptions": {
                each.name: {
                    "replicated": each.replicated,
                    "generation": each.cursor.generation,
                    "mark_delete": str(each.cursor.mark_delete),
                    "backlog_messages": each.backlog_messages(),
                    "held_entries": held.get(each.name, 0),
                    "lags": self._clients.state_lags(topic, each.name) if each.replicated else "",
                }
                for each in list(topic.subscriptions.values())
                if each.durable
            },
        }

    def marks_of(self, origin: str) -> dict[str, dict[str, Any]]:
        """Return the position up to which every topic has the messages of ``origin``."""
        marks = {
            topic.name: topic.origins.high_water(origin)
            for topic in self._engine.topics()
            if topic.name != EPOCHS_TOPIC
        }
        return {
            name: {"incarnation": mark.incarnation, "position": str(mark.position)}
            for name, mark in marks.items()
            if mark is not None
        }

    async def missing(
        self,
        marks: Mapping[str, Position],
        upto: Mapping[str, Position] | None = None,
        names: Collection[str] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Count, by topic, this cluster's own messages above these positions of its own; a topic that is not in
        ``marks`` counts from its beginning. With ``names`` these topics alone are counted. ``upto`` gives where
        counting ends; else it is the log's end. ``exact`` is False where there was too much to count: then it is an
        upper bound.
        """
        found: dict[str, dict[str, Any]] = {}
        for topic in self._named(names):
            if topic.name == EPOCHS_TOPIC or topic.deleted is not None:
                continue
            last = topic.origins.message_vector().get(self._clients.origin)
            if upto is not None and last is not None:
                last = min(last, upto.get(topic.name, BEFORE_ALL))
            if last is None or last <= (mark := marks.get(topic.name, BEFORE_ALL)):
                continue
            messages, exact = await self._count(topic, mark, last)
            if messages:
                found[topic.name] = {"messages": messages, "exact": exact, "last": str(last)}
        return found

    async def _count(self, topic: Topic, after: Position, upto: Position) -> tuple[int, bool]:
        after, upto = self._clients.in_log(topic, after), self._clients.in_log(topic, upto)
        counted, read_bytes = 0, 0
        for blocks, reached in topic.reading.pages(after, upto, bytes_max=PAGE_BYTES, verify=False):
            for stored in blocks:
                read_bytes += len(stored.block)
                header = stored.header
                if header.origin == self._clients.origin and header.kind is BlockKind.MESSAGES:
                    counted += header.messages
            if read_bytes > COUNT_BYTES_MAX:
                return counted + topic.log.messages - topic.reading.messages_through(reached), False
            await asyncio.sleep(0)
        return counted, True


def _clusters(topic: Topic) -> list[str] | None:
    clusters = topic.namespace.policies.replication_clusters
    return None if clusters is None else sorted(clusters)
