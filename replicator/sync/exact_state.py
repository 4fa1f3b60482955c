"""The exact state of one topic's subscriptions: what this cluster announces, and how it merges announcements (DESIGN
4.4). Pure.

The module serves invariants 5 and 6. :class:`~replicator.sync.topic_acks.TopicAcks` translates between identities
(origin and origin position) and local positions. A subscription's generation counts its seeks and resets. Its start is
the position, for each origin, before which it never had to consume.

1. An update of a past generation is ignored.
2. An update of a newer generation replaces the state. The first update of a generation has the whole state.
   Acknowledgements and starts of origins that it does not name stay, and are announced: the cluster that moved the
   subscription did not know these origins. If the sender announces no exact state, the newer generation begins at the
   sender's mark-delete position. A cluster that relays announces the newer generation even if nothing is acknowledged
   in it. That it must do so is saved together with the generation.
3. Acknowledgements of an update are merged with those that wait for messages, and translated to local positions.
   Acknowledgements of messages that are not here yet wait, durably.
4. When messages come, the waiting acknowledgements are translated again, before a consumer gets the messages.
5. Acknowledgements of messages that were trimmed here before the generation began, or that lie before the start, have
   no effect here, but other clusters may have the messages. They are kept, and announced again unchanged. If this
   cluster relays announcements, acknowledgements of messages that a link left out are kept in the same way.

The start of the subscription (DESIGN 4.7) is merged first:

6. The earlier start of each origin counts. Messages between the new start and the old one become unconsumed, unless
   somebody acknowledged them. Trimmed ones among them cannot be delivered here, and are not claimed.
7. Entries before the start count as consumed here, but are not announced as acknowledged. This also holds for entries
   before the start that come later.
8. A cursor of an earlier version has no start. It takes the start that other clusters announce, and keeps its
   acknowledgements.
9. A message with two entries, one before the start and one after it, is delivered. Acknowledgements of one entry also
   count for the other when the start moves back.
10. A mark-delete position from another cluster is ignored in two cases: the starts that came with it are later than the
    subscription's, or a reclaim has since brought entries back below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from pyroaring import BitMap

from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.cursor import Cursor
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.topic_acks import TopicAcks
from snapshots import starts
from snapshots.ack_vector import AckVector, union
from snapshots.actions import ApplyUpdate
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Starts


class Merges(Protocol):
    """Interface that merges other clusters' announcements into a subscription.

    Methods return whether they changed the subscription. No method saves it.
    """

    def acks(self, positions: PositionSet, batches: Mapping[Position, BitMap], *, announce: bool) -> bool: ...
    def mark_delete(self, position: Position, generation: int) -> bool: ...
    def adopt_generation(self, generation: int, unclaimed: Mapping[str, Position] | None = None) -> None: ...
    def start(self, starts: Starts, uncovered: PositionSet, unclaimed: Mapping[str, Position] | None) -> None: ...
    def outlive(self, generation: int) -> None: ...


class Replicated(Protocol):
    """Interface of a replicated subscription for :class:`ExactState`."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def merging(self) -> Merges: ...
    def note_heard(self) -> None: ...
    def note_all(self) -> None: ...


class ExactState:
    """Exact states of one topic's subscriptions: announced to other clusters, and merged with their announcements.

    ``origins`` returns every origin whose entries the log has or had. Mark-delete positions that other clusters
    announce are ignored up to ``unproven_through``: a reclaim brought entries back below it after positions were
    mapped.
    """

    def __init__(
        self,
        acks: TopicAcks,
        pending: PendingAcks,
        origins: Callable[[], Mapping[str, HighWater]],
        *,
        exact: bool = True,
        unproven_through: Position = BEFORE_ALL,
    ) -> None:
        self.acks = acks
        self.pending = pending
        self._origins = origins
        self._exact = exact
        self._unproven_through = unproven_through
        self._ahead: dict[str, frozenset[str]] = {}
        """By subscription, the origins from which messages before the start may still come."""
        self._placed: dict[str, tuple[Starts, Mapping[str, Position]]] = {}
        """By subscription, its starts before which no message can come any more, with the last position before each
        start."""

    # Telling.

    def take(self, subscription: Replicated, *, whole: bool) -> tuple[AckVector, bool]:
        """Return acknowledgements to announce as identities, and whether they are the subscription's whole state.

        They are the whole state if ``whole`` is true, or if the subscription is noted as unannounced as a whole.
        Otherwise they are the changes since the last call. See :class:`~snapshots.announcing.AckSource`.
        """
        unannounced = subscription.cursor.state.take_unannounced()
        if whole or unannounced.whole:
            return self.whole(subscription), True
        delta, later = self.acks.delta_of(unannounced, subscription.cursor.state)
        subscription.cursor.state.announce_later(later)
        if unannounced.heard:
            delta.merge(self.pending.heard(subscription.name, subscription.cursor.generation))
        return delta, False

    def whole(self, subscription: Replicated) -> AckVector:
        """Return all known acknowledgements of a subscription as identities, also those of messages that the log
        lacks."""
        state, name = subscription.cursor.state, subscription.name
        vector = self.acks.vector_of(state, self._origins())
        vector.merge(self.pending.of(name, state.generation))
        vector.merge(self.pending.heard(name, state.generation))
        return vector

    def unconsumed(self, subscription: Replicated) -> AckVector:
        """Return the entries of the log that ``subscription`` has not consumed, as identities.

        For a batch that is partly acknowledged, return the message indexes that *are* acknowledged.
        """
        return self.acks.unconsumed(subscription.cursor.state, self._origins())

    # Merging.

    def merge_update(self, subscription: Replicated, update: ApplyUpdate, *, relay: bool) -> bool:
        """Merge an announcement of another cluster. Return whether anything changed.

        With ``relay``, also record the merged state as unannounced, so that this cluster announces it to others.
        """
        cursor = subscription.cursor
        if update.generation < cursor.generation:
            return False
        vector, changed = update.acks, False
        if update.generation > cursor.generation:
            changed = True
            kept = self._of_others(subscription, vector) if update.whole else AckVector()
            kept_starts = {origin: each for origin, each in cursor.state.starts.items() if origin not in vector.origins}
            subscription.merging.adopt_generation(update.generation, self.unclaimed(cursor.state.read_compacted))
            if kept:
                vector = union([vector, kept])
            if kept or relay or (update.whole and starts.is_anything_before(kept_starts)):
                subscription.note_all()
            if update.whole and kept_starts:
                self._start(subscription, kept_starts)
        if self._start(subscription, update.starts):
            changed = True
            if relay:
                subscription.note_all()
            vector = union([vector, self.pending.heard(subscription.name, cursor.generation)])
        if self._exact:
            changed |= self._merge(subscription, vector, relay=relay)
        else:
            changed |= self._place_start(subscription)
        position = update.position
        if position is not None and position > self._unproven_through and self._counts(subscription, update.starts):
            changed |= subscription.merging.mark_delete(position, update.generation)
        return changed

    def outlive(self, subscription: Replicated, generation: int) -> None:
        """Keep the subscription, although another cluster deleted it in ``generation``. It gets the next generation.

        Acknowledgements that wait for their messages are kept, too.
        """
        name, before = subscription.name, subscription.cursor.generation
        waiting, heard = self.pending.of(name, before), self.pending.heard(name, before)
        subscription.merging.outlive(generation)
        self.pending.put(name, subscription.cursor.generation, waiting, heard)

    def unclaimed(self, read_compacted: bool) -> Mapping[str, Position]:
        """Return, by origin, the position up to which entries are trimmed in this cluster; empty if the subscription
        reads compacted.

        These entries are not announced as acknowledged for a subscription that another cluster made.
        """
        return {} if read_compacted else self.acks.trimmed_through(self._origins())

    def messages_came(self, subscription: Replicated, *, relay: bool) -> bool:
        """Merge acknowledgements that waited for messages that have come now. Return whether anything changed."""
        return self._merge(subscription, AckVector(), relay=relay)

    def waiting_for(self, origins: Collection[str]) -> list[str]:
        """Return the names of the subscriptions that wait for messages of ``origins``."""
        names = dict.fromkeys(self.pending.waiting_for(origins))
        names.update((name, None) for name, ahead in self._ahead.items() if not ahead.isdisjoint(origins))
        return list(names)

    def forget(self, name: str) -> None:
        """Drop the cached start positions of the subscription ``name``, because it was deleted."""
        self._ahead.pop(name, None)
        self._placed.pop(name, None)

    # Starts.

    def merge_start(self, subscription: Replicated, said: Starts) -> bool:
        """Merge the starts ``said`` of a subscription that was also created at this cluster's brokers.

        Return whether anything changed. If so, the subscription's whole state is recorded as unannounced.
        """
        if not self._start(subscription, said):
            return False
        subscription.note_all()
        if self._exact:
            self._merge(subscription, self.pending.heard(subscription.name, subscription.cursor.generation), relay=True)
        else:
            self._place_start(subscription)
        return True

    def duplicates_came(self, subscription: Replicated, entries: Collection[Position]) -> bool:
        """Deliver messages that have a second entry here: the entry in ``entries`` lies after the start, the other
        before it.

        Such an entry counts as consumed only because its other entry lies before the start. Nobody acknowledged the
        message. Return whether anything changed.
        """
        cursor = subscription.cursor
        state = cursor.state
        if not starts.is_anything_before(state.starts):
            return False
        consumed = {position: None for position in entries if cursor.is_consumed(position)}
        heard = self.pending.heard(subscription.name, state.generation)
        found = self.acks.beyond_start(consumed, state.starts, heard)
        if found:
            subscription.merging.start(state.starts, found, state.unclaimed)
        return bool(found)

    def _start(self, subscription: Replicated, said: Starts) -> bool:
        """Merge the starts ``said`` into those of the subscription. Return whether anything changed.

        If the start of an origin moves back, unacknowledged entries after the new start count as unconsumed.
        """
        state, name = subscription.cursor.state, subscription.name
        before, after = state.starts, starts.merged(state.starts, said)
        if after == before:
            return False
        origins = self._origins()
        known = self.acks.known(origins)
        acknowledged = self.acks.up_to(self.whole(subscription), starts.ends_before(after, known))
        trimmed = self.acks.trimmed_through(origins)
        if state.read_compacted:  # compacted-away messages count as consumed, but nobody acknowledged them
            for origin, acks in acknowledged.origins.items():
                acks.discard_through(trimmed.get(origin, BEFORE_ALL))
        unclaimed, uncovered = dict(state.unclaimed or {}), PositionSet()
        for origin in before:
            if origin not in known or after[origin] == before[origin]:
                continue
            reached, end = starts.end_before(after, origin), starts.end_before(before, origin)
            uncovered.update(self.acks.between(origin, reached, end, above=BEFORE_ALL))
            gone = min(end, trimmed.get(origin, BEFORE_ALL))
            if gone > reached:
                unclaimed[origin] = max(gone, unclaimed.get(origin, BEFORE_ALL))
        waiting, heard = self.pending.of(name, state.generation), self.pending.heard(name, state.generation)
        heard = union([heard, acknowledged])
        self.acks.discard_acknowledged_duplicates(uncovered, after, heard, subscription.cursor.is_consumed)
        subscription.merging.start(after, uncovered, unclaimed or None)
        self.pending.put(name, state.generation, waiting, heard)
        return True

    def _place_start(self, subscription: Replicated) -> bool:
        """Count the entries before the start as consumed in this cluster, without announcing that.

        Return whether anything changed.
        """
        state, name = subscription.cursor.state, subscription.name
        placed = self._placed.get(name)
        if (placed is not None and placed[0] is state.starts) or not starts.is_anything_before(state.starts):
            return False
        origins = self._origins()
        ends = starts.ends_before(state.starts, self.acks.known(origins))
        ahead = frozenset(
            origin
            for origin, start in state.starts.items()
            if start.position > BEFORE_ALL
            and (origin not in origins or origins[origin].position < ends.get(origin, BEFORE_ALL))
        )
        if ahead:
            self._ahead[name] = ahead
        else:
            self._ahead.pop(name, None)
            self._placed[name] = state.starts, ends
        found = self.acks.before(ends, state.mark_delete)
        return bool(found) and subscription.merging.acks(found, {}, announce=False)

    def _counts(self, subscription: Replicated, said: Starts) -> bool:
        """Return whether a mark-delete position that came with the starts ``said`` may be merged.

        It may if none of these starts is later than the subscription's own start for the same origin.
        """
        mine = subscription.cursor.state.starts
        by = starts.by_position
        return all(by(start) <= by(mine.get(origin, start)) for origin, start in said.items())

    def _merge(self, subscription: Replicated, vector: AckVector, *, relay: bool) -> bool:
        cursor, name = subscription.cursor, subscription.name
        started = self._place_start(subscription)
        waiting, heard = self.pending.of(name, cursor.generation), self.pending.heard(name, cursor.generation)
        claims = union([vector, waiting]) if waiting else vector
        placed = self.acks.place(claims, cursor.mark_delete)
        news = self.acks.up_to(claims, self._not_claimed(subscription))
        if relay:
            news.merge(self.acks.of_missing(claims))
        hearing = union([heard, news]) if news else heard
        is_news = hearing != heard
        if waiting or placed.rest or is_news:
            self.pending.put(name, cursor.generation, placed.rest, hearing)
        changed = subscription.merging.acks(placed.positions, placed.batches, announce=relay)
        if is_news and relay:
            subscription.note_heard()
        return changed or is_news or started

    def _not_claimed(self, subscription: Replicated) -> Mapping[str, Position]:
        """Return, by origin, the position up to which entries must not be announced as acknowledged, inclusive.

        These are entries before the start, and entries that were trimmed before anybody consumed them.
        """
        state, placed = subscription.cursor.state, self._placed.get(subscription.name)
        ends = dict(state.unclaimed or {})
        if state.starts:
            before = (
                placed[1]
                if placed is not None and placed[0] is state.starts
                else starts.ends_before(state.starts, self.acks.known(self._origins()))
            )
            ends.update((origin, max(end, ends.get(origin, end))) for origin, end in before.items())
        return ends

    def _of_others(self, subscription: Replicated, vector: AckVector) -> AckVector:
        """Return the acknowledgements of messages from origins that ``vector`` does not name."""
        whole = self.whole(subscription)
        return AckVector({origin: acks for origin, acks in whole.origins.items() if origin not in vector.origins})
