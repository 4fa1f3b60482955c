"""Announcements of topics' schemas to a link's destination, ahead of the messages that need them.

A message carries the version of its schema, and the version means the same everywhere (ADR 40). So nothing is
translated: the destination only has to know the schema before it has a message of it.

1. Connected: the schemas of every topic that the link carries are announced, some in each request, because the link
   does not know what the destination has. Schemas that it has already change nothing there.
2. A schema that is registered here (or was announced here by another cluster, so that it goes on along the links) is
   announced before the next frame of blocks. A schema is durable before a producer hears its version, so no block that
   is sent after that request holds a version that the destination does not know.
3. A topic whose schemas the destination refuses goes on without; the reason is in the link's status until the next
   connection, or until the destination takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from replicator.engine.engine import Engine

SCHEMAS: Final = "schemas: "
"""How a refusal of schemas begins. The topic's messages go on."""
SCHEMAS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 512 * 1024
"""Bytes of schema definitions after which the next request begins. One schema has at most half of that."""

log = structlog.get_logger(__name__)

Rows = dict[str, list[dict[str, Any]]]
"""Schemas by topic, as JSON."""


class Transport(Protocol):
    """Interface of the connection, as :class:`SchemaAnnouncer` uses it."""

    async def announce_schemas(self, topics: Rows) -> Mapping[str, tuple[str, str]]: ...


class SchemaAnnouncer:
    """Announces schemas over one link. ``carries`` returns whether the link carries a topic."""

    def __init__(self, engine: Engine, to: str, carries: Callable[[str], bool]) -> None:
        self._engine = engine
        self._to = to
        self._carries = carries
        self._unannounced: dict[str, None] = {}
        self._known: dict[str, set[bytes]] = {}
        """For each topic, the versions that were announced over this connection."""
        self.refused: dict[str, str] = {}
        """For each topic whose schemas the destination refuses, the reason."""

    def on_connected(self) -> None:
        """Announce everything: nobody knows what the destination has."""
        self.refused.clear()
        self._known.clear()
        self._unannounced = dict.fromkeys(self._engine.schemas.topics())

    def announce_all_again(self) -> None:
        """Announce all topics, as the link may carry others now. Nothing is announced twice over one connection."""
        self._unannounced |= dict.fromkeys(self._engine.schemas.topics())

    def changed(self, topic: str) -> None:
        """Announce ``topic``, which has another schema."""
        self._unannounced[topic] = None

    async def announce(self, transport: Transport) -> None:
        """Announce what was not announced. Raises the transport's errors; the next connection announces all."""
        while self._unannounced:
            topics, self._unannounced = [name for name in self._unannounced if self._carries(name)], {}
            for rows in self._pieces(topics):
                refused = await transport.announce_schemas(rows)
                for name in rows:
                    self._answered(name, refused.get(name))

    def _pieces(self, topics: Sequence[str]) -> Iterator[Rows]:
        rows: Rows = {}
        count = size = 0
        for topic in topics:
            known = self._known.setdefault(topic, set())
            for version in self._engine.schemas.versions(topic):
                if version in known or (each := self._engine.schemas.registered(topic, version)) is None:
                    continue
                known.add(version)
                rows.setdefault(topic, []).append(each.as_json())
                count, size = count + 1, size + len(each.schema.definition)
                if count >= SCHEMAS_AT_ONCE or size >= BYTES_AT_ONCE:
                    yield rows
                    rows, count, size = {}, 0, 0
        if rows:
            yield rows

    def _answered(self, topic: str, refusal: tuple[str, str] | None) -> None:
        if refusal is None:
            self.refused.pop(topic, None)
            return
        reason = f"{SCHEMAS}{refusal[0]}: {refusal[1]}"
        if self.refused.get(topic) != reason:
            log.error("link: schemas refused", cluster=self._engine.cluster, to=self._to, topic=topic, reason=reason)
        self.refused[topic] = reason
