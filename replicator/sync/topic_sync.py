"""Shell around the sync of one topic: passes its events to the cores of :mod:`snapshots`, and queues their decisions.

It wakes the cores when it is time. Their actions go to the topic's :class:`~replicator.sync.action_queue.ActionQueue`.
:class:`~snapshots.controller.SnapshotController` decides which markers to write.
:class:`~replicator.sync.exact_state.ExactState` translates acknowledgements to positions of this cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from replicator.engine.errors import EngineError
from replicator.engine.log.block import BlockKind
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.starting import StartedSubscription
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.running.short_tasks import heard
from replicator.sync.action_queue import ActionQueue
from replicator.sync.checkpoint import Checkpoint
from replicator.sync.ignored_updates import IgnoredUpdates
from replicator.sync.marker_log import OWN_MARKERS_MAX, MarkerLog
from replicator.sync.shared import Shared, monotonic_ms
from replicator.sync.topic_state import TopicState
from replicator.sync.update_applier import UpdateApplier
from snapshots.ack_vector import AckVector
from snapshots.actions import ApplyUpdate, WriteUpdate
from snapshots.controller import SnapshotController
from snapshots.mapping import SnapshotMapping
from snapshots.markers import SnapshotRequest, SnapshotResponse
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Starts, is_anything_before, may_come_before


class TopicSync:
    """Keeps one topic's replicated subscriptions in step."""

    __slots__ = (
        "_alone",
        "_announcing_since",
        "_applier",
        "_changed_at",
        "_checkpoint",
        "_held",
        "_ignored",
        "_loop",
        "_markers",
        "_off",
        "_queue",
        "_shared",
        "_state",
        "_stopped",
        "_timer",
        "_timer_ms",
        "_topic",
        "controller",
    )

    def __init__(
        self, shared: Shared, topic: Topic, mappings: Sequence[SnapshotMapping] = (), *, held: bool = False
    ) -> None:
        """Make it, with the ``mappings`` that the topic's log has.

        If it is ``held``, it announces nothing before :meth:`resume`, which finds out what was announced already.
        """
        self._shared = shared
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._state = TopicState(shared, topic, self._announce_more, self._save_first)
        self.controller = SnapshotController(
            shared.engine.cluster,
            peers=self._peers(),
            reachable_origins=shared.routes.origins(topic.name),
            next_id=shared.next_id,
            settings=shared.settings,
            acks=self._state if shared.exact else None,
            budget=shared.budget,
            snapshot_budget=shared.snapshot_budget,
            starts=self._state.starts,
        )
        self._applier = UpdateApplier(shared, topic, self.controller, self._state, self._settle)
        self._checkpoint = Checkpoint(shared.engine, topic, shared.checkpoint_budget, lambda: self._queue.wake())
        self._queue = ActionQueue(
            shared,
            topic,
            self._applier,
            self._state,
            self._checkpoint,
            on_saved=self._forget_trimmed,
            on_resumed=self._settle,
            on_written=self._on_written,
        )
        self._alone = not self._peers()
        """Whether no other cluster gets markers of this topic."""
        self._off: dict[str, None] = {}
        """Subscriptions that are not replicated now. Announcements about them were ignored."""
        self._ignored: IgnoredUpdates | None = None
        """Last pass over the log for announcements that were ignored; None if there was none."""
        self._changed_at: float | None = None
        """Time of the first acknowledgement that is not announced yet."""
        self._announcing_since: float | None = None
        """Time of the first acknowledgement in the markers that are not in the log yet."""
        self._held = held
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """Time at which the timer ends. It may end before the controller's deadline, but never after it."""
        self._markers = MarkerLog(topic, shared.counted)
        self.controller.restore(mappings)

    @property
    def topic(self) -> Topic:
        return self._topic

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done, now or later."""
        return self._queue.is_idle and self._timer is None and not self._held

    # Starting and stopping.

    def resume(self, unannounced: Collection[str]) -> None:
        """Handle the markers that follow the last checkpoint in the log. Call this once after a restart.

        ``unannounced`` are the deleted subscriptions whose deletion is not announced in the log.
        """
        self._held = False
        topic = self._topic
        self._state.note_kept_lives()
        self._checkpoint.load()
        if topic.log.messages:
            last_message = self._markers.last_message()
            self.controller.on_append(last_message, origin=None, messages=True, now_ms=monotonic_ms())
            self.controller.on_append(topic.log.last, origin=None, messages=False, now_ms=monotonic_ms())
            self._reload_own_markers(last_message)
        tombstones = topic.subscriptions.tombstones
        for name, generation in tombstones.items():
            self.controller.on_subscription_deleted(
                name,
                generation,
                monotonic_ms(),
                announced=name not in unannounced,
                unless_in_use=tombstones.unless_in_use(name),
                again=True,
            )
        after, upto = self._checkpoint.handled, topic.log.last
        while (run := self._markers.next_run(after, upto)) is not None:
            first, last = run
            after = max(after, Position(first.ledger, first.entry - 1))
            for blocks in self._markers.pages(after, last):
                for stored in blocks:
                    self._handle_markers(stored, after)
            after = last
        for subscription in list(topic.subscriptions.values()):
            self._duplicates_came(subscription, subscription.cursor.followed)
            if self._may_have_come_before_its_start(subscription):
                self._messages_came(subscription.name)
        if self._shared.engine.store.pending_acks(topic.topic_id):
            # The worker may have ended when their messages were in the log, and before it saved what they acknowledge.
            for name in self._state.exact.waiting_for(topic.origins.high_waters()):
                self._messages_came(name)
        self._settle()

    def _may_have_come_before_its_start(self, subscription: Subscription) -> bool:
        """Return whether a message before the start may not count as consumed yet, or may still come.

        Such a message can remain if the worker ended right after the message came.
        """
        topic, state = self._topic, subscription.cursor.state
        if not state.replicated or not is_anything_before(state.starts):
            return False
        return topic.log.next_after(state.mark_delete) is not None or may_come_before(
            state.starts, topic.origins.high_waters()
        )

    def _reload_own_markers(self, after: Position) -> None:
        """Let the controller read this cluster's markers after the last message, so that it does not write them again.

        That keeps an idle topic idle (invariant 7). Of many markers only the newest are read.
        """
        cluster, state = self._shared.engine.cluster, self._state.log_state()
        after = max(after, self._markers.before_newest(OWN_MARKERS_MAX))
        for blocks in self._markers.pages(after, self._topic.log.last):
            for stored in blocks:
                if stored.header.origin == cluster and stored.header.kind is BlockKind.MARKERS:
                    for position, marker in self._markers.markers(stored):
                        self._queue.add(self.controller.on_marker(position, cluster, marker, state, monotonic_ms()))

    async def stop(self) -> None:
        self._end()
        await self._queue.stop()
        handled = self._checkpoint.handled  # markers that come while it saves are handled after the next start
        if self._queue.is_empty:
            with contextlib.suppress(EngineError):  # then the markers are only handled again
                await self._queue.save_noted()
                await self._state.save_pending()
                if await self._checkpoint.save_now(handled):
                    self._forget_trimmed()

    def discard(self) -> None:
        """Stop the sync of a topic that was deleted. Its queued actions are dropped."""
        self._end()
        self._queue.discard()

    def _end(self) -> None:
        self._stopped = True
        self._checkpoint.close()
        if self._timer is not None:
            self._timer.cancel()

    # Events.

    def on_topology(self) -> None:
        """Update the peers and origins of the topic after links or the namespace's clusters changed."""
        peers = self._peers()
        self._alone = not peers
        self.controller.on_topology(peers, self._shared.routes.origins(self._topic.name), monotonic_ms())
        self._settle()

    def on_deletion_refused(self) -> None:
        """Go on with what the topic refused while it was to be deleted. It stays."""
        self._queue.wake()
        self.on_topology()

    async def merge_told(self, update: ApplyUpdate) -> None:
        """Merge an update that came by an answer, and not in the log. Return once the result is durable."""
        saved = await self._applier.apply(update, repeating=True)  # an earlier call may have failed to save it
        self._settle()
        if saved is not None:
            await saved
        await self._state.save_pending()  # what waits for messages

    def announce_all(self) -> None:
        self.controller.updates.announce_all(monotonic_ms())
        self._settle()

    def on_appended(self, blocks: Sequence[AppendedBlock]) -> None:
        """Tell the cores that ``blocks`` are in the log, and act on what they bring."""
        if self._alone and self._are_irrelevant(blocks):
            last, messages = blocks[-1], sum([block.header.messages for block in blocks])
            self.controller.on_append(last.last, origin=last.header.origin, messages=messages, now_ms=monotonic_ms())
            return
        cluster, now_ms = self._shared.engine.cluster, monotonic_ms()
        marker_blocks: list[AppendedBlock] = []
        for block in blocks:
            header = block.header
            if header.kind is not BlockKind.MESSAGES:
                marker_blocks.append(block)
            if header.origin != cluster:
                self._state.copied(block)
            self.controller.on_append(block.last, origin=header.origin, messages=header.messages, now_ms=now_ms)
        # Only now: an answer among them may cover a message that came with it.
        for block in marker_blocks:
            if not self._handle_written(block):
                for marker_block in self._markers.appended(block):
                    self._handle_markers(marker_block, BEFORE_ALL)
        if duplicates := [later for block in blocks for _, later in block.duplicates]:
            for subscription in list(self._topic.subscriptions.values()):
                self._duplicates_came(subscription, duplicates)
        if self._state.is_loaded or any(each.replicated for each in self._topic.subscriptions.values()):
            for name in self._state.exact.waiting_for({block.header.origin for block in blocks}):
                self._messages_came(name)
        self._settle()

    def _are_irrelevant(self, blocks: Sequence[AppendedBlock]) -> bool:
        """Return whether ``blocks`` hold only messages of this cluster, and the topic has no replicated subscription.

        In a topic without peers such blocks change no deadline, and nothing waits for them.
        """
        cluster = self._shared.engine.cluster
        for block in blocks:
            header = block.header
            if header.kind is not BlockKind.MESSAGES or header.origin != cluster:
                return False
        return not (self._state.is_loaded or self._topic.subscriptions.any_replicated)

    def on_subscription(self, subscription: Subscription) -> None:
        name, cursor = subscription.name, subscription.cursor
        if not subscription.replicated:
            self._off[name] = None
            self.controller.on_subscription_deleted(name)
            return
        relayed = self._applier.made.get(name)
        announced = relayed is False or (relayed is None and self._shared.exact and not cursor.state.to_announce)
        self.controller.on_subscription(
            name,
            cursor.mark_delete,
            cursor.generation,
            monotonic_ms(),
            announced=announced,
            claims=self._may_claim(subscription),
        )
        if name in self._off:
            del self._off[name]
            self._replay_ignored(name)
            self._messages_came(name)  # they may have come meanwhile
        self._duplicates_came(subscription, cursor.followed)
        if self._may_have_come_before_its_start(subscription):
            self._messages_came(name)
        if cursor.state.unannounced:
            self.on_acknowledged(subscription)
        self._settle()

    def merge_start(self, subscription: StartedSubscription, said: Starts) -> bool:
        """Merge the start that a subscription has at this cluster's brokers into the start that the engine knows.

        Return whether anything changed. If so, the caller must save the subscription.
        """
        mine = self._topic.subscriptions[subscription.name]
        return self._state.exact.merge_start(mine, said)

    def _replay_ignored(self, name: str) -> None:
        """Apply again what other clusters announced in the log about ``name``, which is replicated again."""
        if self._ignored is None or self._ignored.begun:
            updates, turns = self.controller.updates, self._shared.engine.turns
            self._ignored = IgnoredUpdates(self._topic, self._markers, updates, turns)
            self._queue.add([self._ignored])
        self._ignored.of(name)

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        self._off.pop(name, None)
        burial = self._applier.burial(name, generation)
        sparing = self._topic.subscriptions.tombstones.unless_in_use(name)
        self.controller.on_subscription_deleted(
            name,
            generation,
            monotonic_ms(),
            announced=burial is not None and not burial.relay,
            unless_in_use=sparing,
            again=burial is not None and burial.again,
        )
        self._checkpoint.subscription_deleted(name)
        if self._state.is_loaded:
            self._state.exact.forget(name)
        if generation is not None:
            self._state.exact.pending.put(name, generation, AckVector())
        self._settle()

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        if subscription.replicated:
            cursor = subscription.cursor
            local = local and self._may_claim(subscription)
            self.controller.on_mark_delete(
                subscription.name, cursor.mark_delete, cursor.generation, monotonic_ms(), local=local
            )
            self._settle()

    def _may_claim(self, subscription: Subscription) -> bool:
        """Return whether this cluster may announce that all messages up to the mark-delete position are acknowledged.

        It may not if messages lie before the start, or were trimmed before anybody consumed them. Without exact sync it
        always may: then mark-delete positions are the only announcement, and the start travels with them.
        """
        state = subscription.cursor.state
        return not self._shared.exact or (state.unclaimed is None and not is_anything_before(state.starts))

    def on_acknowledged(self, subscription: Subscription) -> None:
        if self._shared.exact:
            self._changed_at = self._changed_at or time.perf_counter()
            self.controller.on_acknowledged(subscription.name, monotonic_ms())
            self._settle()
        else:
            subscription.cursor.state.take_unannounced()

    def _peers(self) -> frozenset[str]:
        return self._shared.peers(self._topic)

    def _announce_more(self, subscription: Subscription) -> None:
        if not self._stopped and self._topic.subscriptions.get(subscription.name) is subscription:
            self.on_acknowledged(subscription)

    def _save_first(self, subscription: Subscription) -> None:
        self._queue.save_first(subscription)

    # The exact state.

    def whole(self, subscription: Subscription) -> AckVector:
        """Return the whole exact state of one subscription."""
        return self._state.exact.whole(subscription)

    def unconsumed(self, subscription: Subscription) -> AckVector:
        """Return the entries of the log that ``subscription`` has not consumed, as identities.

        For a batch that is partly acknowledged, return the message indexes that *are* acknowledged.
        """
        return self._state.exact.unconsumed(subscription)

    def _messages_came(self, name: str) -> None:
        """Merge acknowledgements that other clusters announced before their messages came. Consumers get the
        messages after that."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not subscription.replicated:
            return
        if self._state.exact.messages_came(subscription, relay=self._relays_any()):
            self._queue.save_first(subscription)
        else:
            self._queue.wake()

    def _duplicates_came(self, subscription: Subscription, entries: Collection[Position]) -> None:
        """Deliver messages that came again as new entries, if only the new entries lie behind the subscription's
        start."""
        if entries and subscription.replicated and self._state.exact.duplicates_came(subscription, entries):
            subscription.saved().add_done_callback(heard)

    def _relays_any(self) -> bool:
        routes, name = self._shared.routes, self._topic.name
        return any(routes.relays(name, origin) for origin in routes.origins(name))

    # Time.

    def _on_timer(self) -> None:
        self._timer = None
        actions = self.controller.on_tick(monotonic_ms(), self._state.log_state())
        if any(isinstance(action, WriteUpdate) for action in actions):
            self._announcing_since, self._changed_at = self._changed_at, None
        self._queue.add(actions)
        self._settle()

    def _settle(self) -> None:
        """Set the timer to when the controller wants to be woken."""
        if self._stopped or self._held or self._queue.is_paused:
            return
        now_ms = monotonic_ms()
        if self._timer is not None and self._timer_ms <= now_ms:
            return  # it ends in this turn of the event loop
        deadline_ms = self.controller.next_deadline(now_ms)
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms:
                return  # it ends first, and settles again
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_later(max(0, deadline_ms - now_ms) / 1000, self._on_timer)

    def _on_written(self) -> None:
        if self._announcing_since is not None:
            announced = self._shared.engine.writer.latencies.announce
            announced.observe(time.perf_counter() - self._announcing_since)
            self._announcing_since = None
        self.controller.on_written(monotonic_ms())
        self._settle()

    def _forget_trimmed(self) -> None:
        """Forget the state of messages trimmed some time ago, and mappings that are below all subscriptions."""
        if self._state.forget_trimmed():
            floors = [each.cursor.mark_delete for each in self._topic.subscriptions.values() if each.replicated]
            if floors:
                self.controller.trim(min(floors))

    # Markers.

    def _handle_written(self, block: AppendedBlock) -> bool:
        """Handle a block of markers that this topic's queue wrote, without decoding it. Return whether that was
        possible.

        If somebody else wrote a marker into the same block, all of the block must be decoded.
        """
        written = self._queue.written
        if not written:
            return False
        ledger, first = block.position
        positions = [Position(ledger, entry) for entry in range(first, first + block.header.entries)]
        markers = [written.pop(position, None) for position in positions]
        known = [marker for marker in markers if marker is not None]
        if len(known) < len(markers):
            return False
        for position, marker in zip(positions, known, strict=True):
            self.controller.on_own_marker(position, marker)
        self._checkpoint.handled = max(self._checkpoint.handled, block.last)
        self._queue.wake()  # to save the checkpoint: it may be the last marker for a long time
        return True

    def _handle_markers(self, stored: StoredBlock, after: Position) -> None:
        header, state = stored.header, self._state.log_state()
        for position, marker in self._markers.markers(stored):
            if position <= after:
                continue
            self._checkpoint.handled = max(self._checkpoint.handled, position)
            if (
                header.origin != self._shared.engine.cluster
                and isinstance(marker, SnapshotResponse | SnapshotRequest)
                and self._state.is_inconclusive(marker.vector)
            ):
                self._shared.counted.answers_unprovable += 1
                if isinstance(marker, SnapshotResponse):
                    continue
                marker = replace(marker, vector={})
            actions = self.controller.on_marker(position, header.origin, marker, state, monotonic_ms())
            if after == BEFORE_ALL and any(isinstance(action, ApplyUpdate) for action in actions):  # not a repetition
                self._queue.announced(header.origin, header.publish_time_ms)
            self._queue.add(actions)
        self._queue.wake()
