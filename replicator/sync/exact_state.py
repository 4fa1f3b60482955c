"""The exact state of one topic's subscriptions: what of it is announced, and how what others announce is merged (DESIGN
4.4). Pure.

It serves invariants 5 and 6, with :class:`~replicator.sync.topic_acks.TopicAcks` for what identities mean here:

1. An update of a generation that is past says nothing.
2. A newer generation starts over. Its first update is whole, and what is acknowledged of origins that it does not name
   stays, and is told: who put the subscription elsewhere did not know of them. From a cluster that tells no exact
   state, a newer generation starts at its mark-delete position.
3. What an update acknowledges is merged with what waits, and placed. What is not here yet waits, durably.
4. When messages come, what waits is placed again, before a consumer gets them.
5. What is said of messages that were trimmed here before the generation began means nothing here, but others may have
   them. It is kept, and told on as it came. So is, where it is to be told on at all, what is said of messages that a
   link left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from pyroaring import BitMap

from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.cursor import Cursor
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector, union
from snapshots.actions import ApplyUpdate
from snapshots.position import Position
from snapshots.position_set import PositionSet


class Merges(Protocol):
    """What takes over into a subscription what others say of it. Methods say whether they changed it; none saves it."""

    def acks(self, positions: PositionSet, batches: Mapping[Position, BitMap], *, announce: bool) -> bool: ...
    def mark_delete(self, position: Position, generation: int) -> bool: ...
    def adopt_generation(self, generation: int, unclaimed: Mapping[str, Position] | None = None) -> None: ...
    def outlive(self, generation: int) -> None: ...


class Replicated(Protocol):
    """A subscription, as far as its exact state goes."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def merging(self) -> Merges: ...
    def note_heard(self) -> None: ...
    def note_all(self) -> None: ...


class ExactState:
    """Tells and merges. ``origins`` gives every origin of which something is or was here."""

    def __init__(
        self,
        acks: TopicAcks,
        pending: PendingAcks,
        origins: Callable[[], Mapping[str, HighWater]],
        *,
        exact: bool = True,
    ) -> None:
        self.acks = acks
        self.pending = pending
        self._origins = origins
        self._exact = exact

    # Telling.

    def take(self, subscription: Replicated, *, whole: bool) -> tuple[AckVector, bool]:
        """What of a subscription is unannounced, or all of it; see :class:`~snapshots.announcing.AckSource`."""
        unannounced = subscription.cursor.state.take_unannounced()
        if whole or unannounced.whole:
            return self.whole(subscription), True
        delta, later = self.acks.delta_of(unannounced, subscription.cursor.state)
        subscription.cursor.state.announce_later(later)
        if unannounced.heard:
            delta.merge(self.pending.heard(subscription.name, subscription.cursor.generation))
        return delta, False

    def whole(self, subscription: Replicated) -> AckVector:
        """All that is known to be acknowledged, of messages that are not here as well."""
        state, name = subscription.cursor.state, subscription.name
        vector = self.acks.vector_of(state, self._origins())
        vector.merge(self.pending.of(name, state.generation))
        vector.merge(self.pending.heard(name, state.generation))
        return vector

    def unconsumed(self, subscription: Replicated) -> AckVector:
        """See :meth:`TopicAcks.unconsumed`."""
        return self.acks.unconsumed(subscription.cursor.state, self._origins())

    # Merging.

    def merge_update(self, subscription: Replicated, update: ApplyUpdate, *, relay: bool) -> bool:
        """Take over what another cluster announces; ``relay`` passes it on. Returns whether anything changed."""
        cursor = subscription.cursor
        if update.generation < cursor.generation:
            return False
        vector, changed = update.acks, False
        if update.generation > cursor.generation:
            changed = True
            kept = self._of_others(subscription, vector) if update.whole else AckVector()
            subscription.merging.adopt_generation(update.generation, self.unclaimed(cursor.state.read_compacted))
            if kept:
                vector = union([vector, kept])
                subscription.note_all()
        if self._exact:
            changed |= self._merge(subscription, vector, relay=relay)
        if update.position is not None:
            changed |= subscription.merging.mark_delete(update.position, update.generation)
        return changed

    def outlive(self, subscription: Replicated, generation: int) -> None:
        """Keep the subscription, with what waits for messages, though another cluster deleted it in ``generation``."""
        name, before = subscription.name, subscription.cursor.generation
        waiting, heard = self.pending.of(name, before), self.pending.heard(name, before)
        subscription.merging.outlive(generation)
        self.pending.put(name, subscription.cursor.generation, waiting, heard)

    def unclaimed(self, read_compacted: bool) -> Mapping[str, Position]:
        """What a subscription does not claim that begins here because another cluster says so: what is trimmed."""
        return {} if read_compacted else self.acks.trimmed_through(self._origins())

    def messages_came(self, subscription: Replicated, *, relay: bool) -> bool:
        """Messages have come that may have been acknowledged elsewhere. Returns whether anything changed."""
        return self._merge(subscription, AckVector(), relay=relay)

    def waiting_for(self, origins: Collection[str]) -> list[str]:
        """The subscriptions that wait for messages of these origins."""
        return self.pending.waiting_for(origins)

    def _merge(self, subscription: Replicated, vector: AckVector, *, relay: bool) -> bool:
        cursor, name = subscription.cursor, subscription.name
        waiting, heard = self.pending.of(name, cursor.generation), self.pending.heard(name, cursor.generation)
        claims = union([vector, waiting]) if waiting else vector
        placed = self.acks.place(claims, cursor.mark_delete)
        news = self.acks.up_to(claims, cursor.state.unclaimed or {})
        if relay:
            news.merge(self.acks.of_missing(claims))
        hearing = union([heard, news]) if news else heard
        is_news = hearing != heard
        if waiting or placed.rest or is_news:
            self.pending.put(name, cursor.generation, placed.rest, hearing)
        changed = subscription.merging.acks(placed.positions, placed.batches, announce=relay)
        if is_news and relay:
            subscription.note_heard()
        return changed or is_news

    def _of_others(self, subscription: Replicated, vector: AckVector) -> AckVector:
        """What is acknowledged of origins that ``vector`` does not name."""
        whole = self.whole(subscription)
        return AckVector({origin: acks for origin, acks in whole.origins.items() if origin not in vector.origins})
