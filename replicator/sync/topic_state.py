"""The exact state of one topic's subscriptions as the cores need it: loaded from the store when it is first asked for,
saved before the markers that brought it count as handled, and forgotten where the log was trimmed.

What it means is :mod:`replicator.sync.exact_state`'s; this is where it comes from and where it goes. The state of the
log, which the cores need beside it, is here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from replicator.engine.errors import SubscriptionNotFound
from replicator.engine.log.commit.putting_back import PUT_BACK_BELOW
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.sync.exact_state import ExactState
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.shared import Shared
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector
from snapshots.actions import LogState
from snapshots.announcing import Description
from snapshots.errors import MarkerCorrupt
from snapshots.pacing import GATHER_MS_MAX
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Starts

ANNOUNCED_INTERVALS: Final = 3
"""Number of update intervals after which earlier acknowledgements are announced for sure. An interval counts at its
longest."""

log = structlog.get_logger(__name__)


class TopicState:
    """Exact state of one topic, as a :class:`~snapshots.announcing.AckSource`.

    ``on_more`` is called if a subscription has more to announce than one update takes. ``on_owed`` is called if a
    subscription must be saved before the markers so far count as handled.
    """

    __slots__ = ("_forget_at", "_loaded", "_loop", "_on_more", "_on_owed", "_saving", "_shared", "_topic", "_trimmed")

    def __init__(
        self,
        shared: Shared,
        topic: Topic,
        on_more: Callable[[Subscription], None],
        on_owed: Callable[[Subscription], None],
    ) -> None:
        self._shared = shared
        self._topic = topic
        self._on_more = on_more
        self._on_owed = on_owed
        self._loop = asyncio.get_running_loop()
        self._loaded: ExactState | None = None
        self._saving: asyncio.Lock | None = None
        """Held while acknowledgements that wait are saved; None until the first time."""
        self._trimmed = topic.log.trimmed
        """Position up to which extents are useless from :attr:`_forget_at` on."""
        self._forget_at = 0.0

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def exact(self) -> ExactState:
        """Return the exact state, which is loaded on first use. A topic without replicated subscriptions never needs
        it."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> ExactState:
        topic, engine = self._topic, self._shared.engine
        acks = TopicAcks(
            engine.cluster,
            topic.incarnation,
            topic.log,
            topic.origins.high_water,
            topic.origins.left_out,
            topic.trimming.ends,
        )
        for extent in engine.store.extents(topic.topic_id):
            acks.copied(*extent)
        try:
            pending = PendingAcks(topic.topic_id, engine.store.pending_acks(topic.topic_id))
        except MarkerCorrupt as error:
            log.error("acknowledgements that waited are lost", topic=topic.name, reason=str(error))  # noqa: TRY400
            pending = PendingAcks(topic.topic_id, {})
        below = engine.store.meta(f"{PUT_BACK_BELOW} {topic.topic_id}")
        unproven = BEFORE_ALL if below is None else Position.parse(below)
        return ExactState(acks, pending, topic.origins.high_waters, exact=self._shared.exact, unproven_through=unproven)

    # Content of updates.

    def take(self, name: str, *, whole: bool) -> tuple[AckVector, bool]:
        """See :class:`~snapshots.announcing.AckSource`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return AckVector(), False
        taken = self.exact.take(subscription, whole=whole)
        if subscription.cursor.state.unannounced:  # there was too much for one update
            self._loop.call_soon(self._on_more, subscription)
        return taken

    def owe(self, name: str) -> None:
        """See :class:`~snapshots.announcing.AckSource`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is not None and subscription.replicated:
            subscription.note_all()
            self._on_owed(subscription)

    def starts(self, name: str) -> Starts:
        """Return, by origin, the start of the subscription ``name``; empty if there is no such subscription."""
        subscription = self._topic.subscriptions.get(name)
        return {} if subscription is None else subscription.cursor.state.starts

    def describe(self, name: str) -> Description:
        """See :class:`~snapshots.announcing.AckSource`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return Description()
        state = subscription.cursor.state
        return Description(dict(state.properties), state.read_compacted)

    # Events in the log.

    def copied(self, block: AppendedBlock) -> None:
        """Record that a block of another cluster was appended."""
        header = block.header
        extent = header.origin, header.incarnation, header.origin_first, block.position, header.entries
        if self._loaded is not None:
            self._loaded.acks.copied(*extent)
        self._shared.index.extents_recorded(self._topic.name, *extent)

    def holds(self, origin: str, position: Position) -> bool:
        """Return whether the log has, or had, everything of ``origin`` up to ``position``."""
        return self.exact.acks.holds(origin, position)

    # The log, as the cores see it.

    def is_inconclusive(self, said: Mapping[str, Position]) -> bool:
        """Return whether the peer with the vector ``said`` has messages that this cluster's log lacks and will never
        get.

        Then consuming all of the local log proves nothing for that peer (invariant 5). It may have messages that this
        cluster lost, as after a restore, or messages of others that a link left out.
        """
        cluster = self._shared.engine.cluster
        lost = cluster in said and not self.holds(cluster, said[cluster])
        return lost or any(self._is_incomplete(each) for each in said)

    def _is_incomplete(self, origin: str) -> bool:
        """Return whether links left out messages of ``origin``, or parts of its batches, on their way to this log."""
        origins = self._topic.origins
        return bool(origins.holes(origin) or origins.partly_left_out(origin))

    def log_state(self) -> LogState:
        """Return how far the log reaches, and what it has of each origin. It also records the kept lives anew."""
        topic = self._topic
        origins = topic.origins
        self.note_kept_lives()
        return LogState(
            topic.log.last,
            origins.vector(),
            origins.message_vector(),
            self.holds,
            origins.earlier_lives(),
            self._is_incomplete,
        )

    def note_kept_lives(self) -> None:
        """Record whether the topic keeps earlier lives. Only mark-delete positions are affected by them."""
        if self._shared.exact:
            return
        if kept := tuple(self._topic.origins.earlier_lives()):
            self._shared.kept_lives[self._topic.name] = kept
        else:
            self._shared.kept_lives.pop(self._topic.name, None)

    # Forgetting and saving.

    def forget_trimmed(self) -> bool:
        """Forget extents that were trimmed some time ago: they are announced, and nobody will ask for them again.

        Return whether it was time to look."""
        if self._loop.time() < self._forget_at:
            return False
        if self._loaded is not None:
            self._loaded.acks.trim(self._trimmed)
        if self._topic.trimming.in_store > self._trimmed:
            self._trimmed = self._topic.trimming.in_store
            interval_ms = max(self._shared.settings.update_interval_ms, GATHER_MS_MAX)
            self._forget_at = self._loop.time() + ANNOUNCED_INTERVALS * interval_ms / 1000
            self._shared.index.extents_trimmed(self._topic.name, self._trimmed)
        return True

    async def save_pending(self) -> None:
        """Save the acknowledgements that wait for their messages. Raises the store's errors.

        A row is written only after the cursor of its subscription was saved. In the other order, a worker that is
        killed between the two would forget what the cursor took from the row. Calls go one after another, so each of
        them returns when everything that waited at its time is durable.
        """
        if self._loaded is None:
            return
        pending, subscriptions = self._loaded.pending, self._topic.subscriptions
        self._saving = self._saving or asyncio.Lock()
        async with self._saving:
            while changes := pending.take_changes():
                try:
                    await asyncio.gather(
                        *(save_living(subscriptions[name]) for name in changes if name in subscriptions)
                    )
                    await self._shared.engine.writer.put_many(list(changes.values()))
                except BaseException:
                    pending.not_written(changes)
                    raise


async def save_living(subscription: Subscription) -> None:
    """Save a subscription, if it is not being deleted. Raises the store's errors."""
    with suppress(SubscriptionNotFound):
        await subscription.saved()
