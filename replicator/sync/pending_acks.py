"""Acknowledgements of messages that are not here, kept for each subscription (DESIGN 4.3). Pure; the rows are for the
shell to write.

1. Acknowledgements that *wait* are of messages that are not here yet. They are few: a cluster acknowledged messages
   that a third cluster's link has not brought here. If that link is missing, they stay for good.
2. Acknowledgements that were *heard* are of messages that were trimmed here before the generation began
   (:attr:`CursorState.unclaimed`). They have no effect here, but other clusters may need them from this one.

Both are stored before the marker that brought them counts as handled, so that a crash does not lose them. They are
bounded (invariant 11): whole entries are compressed, and only the first :data:`BATCHES_MAX` partly acknowledged batches
are kept. At worst, the messages of dropped ones are delivered again.

============ ======================= ==========================================================================
table        key                     value
============ ======================= ==========================================================================
pending_acks topic id | subscription updates (:mod:`snapshots.markers`): acknowledgements that wait, and then those
                                     that were heard, if there are any
============ ======================= ==========================================================================
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from replicator.engine.log.store_tables import TOPIC_KEY
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.markers import MarkerType, SubscriptionsUpdate, SubscriptionUpdate, decode_marker, encode_marker

TABLE: Final = "pending_acks"

BATCHES_MAX: Final = 10_000
"""Most batches kept for one subscription and origin: those that will come first, with up to some hundred bytes each.
More would make each update slow, because a row is written whole."""

RowWrite = tuple[str, bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class _Kept:
    generation: int
    waits: AckVector
    heard: AckVector


class PendingAcks:
    """Pending acknowledgements of one topic, by subscription, each for one generation."""

    __slots__ = ("_changed", "_kept", "_topic_id")

    def __init__(self, topic_id: int, stored: Mapping[str, bytes]) -> None:
        """Load ``stored``, the values of the rows by subscription. Raises :class:`MarkerCorrupt`."""
        self._topic_id = topic_id
        self._changed: dict[str, None] = {}
        self._kept: dict[str, _Kept] = {}
        for name, value in stored.items():
            marker = decode_marker(MarkerType.SUBSCRIPTIONS_UPDATE, value)
            assert isinstance(marker, SubscriptionsUpdate)
            waits, *heard = marker.updates
            self._kept[name] = _Kept(waits.generation, waits.acks, heard[0].acks if heard else AckVector())

    def waiting_for(self, origins: Collection[str]) -> list[str]:
        """Return the subscriptions with waiting acknowledgements of messages of one of ``origins``."""
        return [name for name, kept in self._kept.items() if any(each in kept.waits.origins for each in origins)]

    def of(self, name: str, generation: int) -> AckVector:
        """Return the waiting acknowledgements of a subscription; empty if they are of another generation."""
        kept = self._kept.get(name)
        return AckVector() if kept is None or kept.generation != generation else kept.waits

    def heard(self, name: str, generation: int) -> AckVector:
        """Return the heard acknowledgements of messages trimmed here; empty if they are of another generation."""
        kept = self._kept.get(name)
        return AckVector() if kept is None or kept.generation != generation else kept.heard

    def put(self, name: str, generation: int, waits: AckVector, heard: AckVector | None = None) -> None:
        """Replace everything that is kept for the subscription ``name``."""
        kept = _Kept(generation, _bounded(waits), AckVector() if heard is None else _bounded(heard))
        if kept.waits or kept.heard:
            if kept == self._kept.get(name):
                return
            self._kept[name] = kept
        elif self._kept.pop(name, None) is None:
            return
        self._changed[name] = None

    def take_changes(self) -> dict[str, RowWrite]:
        """Return, by subscription, the rows that changed since the last call and must be written."""
        changed, self._changed = self._changed, {}
        return {name: (TABLE, TOPIC_KEY.pack(self._topic_id) + name.encode(), self._encoded(name)) for name in changed}

    def not_written(self, names: Iterable[str]) -> None:
        """Mark the rows of the subscriptions ``names`` as changed again, because they could not be written."""
        self._changed.update(dict.fromkeys(names))

    def _encoded(self, name: str) -> bytes | None:
        kept = self._kept.get(name)
        if kept is None:
            return None
        vectors = [kept.waits, kept.heard] if kept.heard else [kept.waits]
        updates = tuple(SubscriptionUpdate(name, {}, kept.generation, vector) for vector in vectors)
        return encode_marker(SubscriptionsUpdate(updates))[1]


def _bounded(vector: AckVector) -> AckVector:
    return AckVector({origin: _with_few_batches(acks) for origin, acks in vector.origins.items() if acks})


def _with_few_batches(acks: OriginAcks) -> OriginAcks:
    """Return ``acks`` without batches that are acknowledged whole by now, and without batches over the limit."""
    if not acks.batches:
        return acks
    open_batches = heapq.nsmallest(BATCHES_MAX, (at for at in acks.batches if not acks.covers(at)))
    if len(open_batches) == len(acks.batches):
        return acks
    return OriginAcks(acks.incarnation, acks.ranges, acks.positions, {at: acks.batches[at] for at in open_batches})
