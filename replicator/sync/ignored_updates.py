"""Pass over one topic's log for what other clusters announced about a subscription while it was not replicated.

It runs in slices, because it may read a hundred thousand markers (invariant 11). It stands in the topic's
:class:`~replicator.sync.action_queue.ActionQueue`. So updates that arrive meanwhile are applied after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from replicator.engine.log.block import BlockKind
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.topic import Topic
from replicator.running.pacing import Pace, next_slice
from replicator.running.turns import FairScheduler
from replicator.sync.marker_log import MarkerLog
from replicator.sync.shared import monotonic_ms
from snapshots.actions import ApplyUpdate
from snapshots.announcing import UpdateAnnouncer
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate
from snapshots.position import BEFORE_ALL, Position

UPDATES_AT_ONCE: Final = 100
"""Updates after which :meth:`IgnoredUpdates.some` returns. They are merged in one turn of the event loop."""
NAMES_SOUGHT_MAX: Final = 8
"""Most names that are sought in the bytes of a marker before it is decoded. With more names, decoding is cheaper."""


class IgnoredUpdates:
    """Finds the updates of subscriptions that are replicated again, the oldest first.

    A deletion among them is not new, because the subscription was not replicated then: it goes on in the generation
    after it.
    """

    def __init__(self, topic: Topic, markers: MarkerLog, updates: UpdateAnnouncer, turns: FairScheduler) -> None:
        self._topic = topic
        self._markers = markers
        self._updates = updates
        self._turns = turns
        self._names: dict[str, Position] = {}
        """The subscriptions, each with the last position at which updates of it were ignored."""
        self._upto = BEFORE_ALL
        self._after: Position | None = None
        """Position up to which the log was read; None before the first page."""
        self.ended = False

    @property
    def begun(self) -> bool:
        return self._after is not None

    def of(self, name: str) -> None:
        """Also find the updates of ``name`` that are in the log now. Call it only before the pass has begun."""
        self._names[name] = self._upto = self._topic.log.last

    async def some(self) -> list[ApplyUpdate]:
        """Return the next updates to apply, and set :attr:`ended` if they are the last.

        If it is cancelled, the next call reads again what this one read.
        """
        after = self._markers.before_newest() if self._after is None else self._after
        self._after = after
        await next_slice(self._turns, self._turns.own)  # in a turn of the loop after that in which others were merged
        pace, found = Pace(self._turns, self._turns.own), list[ApplyUpdate]()
        sought = [name.encode() for name in self._names] if len(self._names) <= NAMES_SOUGHT_MAX else []
        while len(found) < UPDATES_AT_ONCE:
            await pace.step()
            blocks, reached = self._page(after)
            if reached is None:
                self.ended = True
                break
            for stored in blocks:
                origin = stored.header.origin
                if stored.header.kind is not BlockKind.MARKERS or origin == self._topic.cluster:
                    continue
                for position, marker in self._markers.markers(stored, sought):
                    if position > after and isinstance(marker, SubscriptionsUpdate):
                        found += self._decided(position, origin, marker)
                    await pace.step()
            after = reached
        self._after = after
        return found

    def _page(self, after: Position) -> tuple[list[StoredBlock], Position | None]:
        """Return the markers of a page and the last position in it; None if no marker is left."""
        run = self._markers.next_run(after, self._upto)
        return ([], None) if run is None else self._markers.page(*run)

    def _decided(self, position: Position, origin: str, marker: SubscriptionsUpdate) -> Sequence[ApplyUpdate]:
        wanted = tuple(
            replace(update, whole=True) if update.deleted else update
            for update in marker.updates
            if position <= self._names.get(update.subscription, BEFORE_ALL) and self._counts(update)
        )
        if not wanted:
            return ()
        return self._updates.on_updates(SubscriptionsUpdate(wanted), origin, self._topic.log.last, monotonic_ms())

    def _counts(self, update: SubscriptionUpdate) -> bool:
        """Return whether an update can still change its subscription.

        One of a past generation cannot. Nobody waits for an answer to it either: the subscription is announced anyway.
        """
        living = self._topic.subscriptions.get(update.subscription)
        if living is None:
            return update.generation > self._topic.subscriptions.tombstones.get(update.subscription, 0)
        return living.replicated and update.generation >= living.cursor.generation
