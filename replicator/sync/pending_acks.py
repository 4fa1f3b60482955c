"""Acknowledgements of messages that are not here yet: kept for each subscription until the messages come (DESIGN 4.3).

They are stored before the marker that brought them counts as handled, so that a crash does not lose them, and are
few: what a cluster acknowledged that a third one's link has not brought here yet.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.log.store import TOPIC_KEY
from snapshots.ack_vector import AckVector
from snapshots.errors import MarkerCorrupt
from snapshots.markers import MarkerType, SubscriptionsUpdate, SubscriptionUpdate, decode_marker, encode_marker

TABLE: Final = "pending_acks"

log = structlog.get_logger(__name__)


class PendingAcks:
    """Those of one topic, by subscription, each for one generation."""

    __slots__ = ("_changed", "_engine", "_kept", "_topic_id")

    def __init__(self, engine: Engine, topic_id: int) -> None:
        self._engine = engine
        self._topic_id = topic_id
        self._changed: dict[str, None] = {}
        self._kept = {name: update for name, update in self._load().items() if update.acks}

    def _load(self) -> dict[str, SubscriptionUpdate]:
        found: dict[str, SubscriptionUpdate] = {}
        for name, stored in self._engine.store.pending_acks(self._topic_id).items():
            try:
                marker = decode_marker(MarkerType.SUBSCRIPTIONS_UPDATE, stored)
            except MarkerCorrupt as error:
                log.error("acknowledgements that waited are lost", subscription=name, reason=str(error))  # noqa: TRY400
                continue
            assert isinstance(marker, SubscriptionsUpdate)
            found[name] = marker.updates[0]
        return found

    def waiting_for(self, origins: Collection[str]) -> list[str]:
        """The subscriptions with acknowledgements of messages of one of these origins."""
        return [name for name, update in self._kept.items() if any(each in update.acks.origins for each in origins)]

    def of(self, name: str, generation: int) -> AckVector:
        """What waits for that subscription; nothing of another generation."""
        update = self._kept.get(name)
        return AckVector() if update is None or update.generation != generation else update.acks

    def put(self, name: str, generation: int, vector: AckVector) -> None:
        """From now on this waits, and nothing else."""
        if vector:
            self._kept[name] = SubscriptionUpdate(name, {}, generation, vector)
        elif self._kept.pop(name, None) is None:
            return
        self._changed[name] = None

    async def save(self) -> None:
        """Durable when it returns. Raises the store's errors; what was not written is still to be."""
        while self._changed:
            changed, self._changed = self._changed, {}
            try:
                await self._engine.writer.put_many([(TABLE, self._key(name), self._encoded(name)) for name in changed])
            except BaseException:
                self._changed = {**changed, **self._changed}
                raise

    def _key(self, name: str) -> bytes:
        return TOPIC_KEY.pack(self._topic_id) + name.encode()

    def _encoded(self, name: str) -> bytes | None:
        update = self._kept.get(name)
        return None if update is None else encode_marker(SubscriptionsUpdate((update,)))[1]
