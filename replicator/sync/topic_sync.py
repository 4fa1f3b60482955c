"""The shell of one topic's sync: feeds the cores of :mod:`snapshots` with what happens in the topic, and carries out
what they decide, one action after another, by one task at a time.

Nothing is decided here but how an update is applied (:meth:`TopicSync._apply`): the cores are
:class:`~snapshots.controller.SnapshotController` for what to write, and
:class:`~replicator.sync.topic_acks.TopicAcks` for what acknowledgements mean in positions of this cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import structlog

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound, TopicNotFound
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.log.metadata_pb2 import MessageMetadata
from replicator.engine.log.store import StoredBlock
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector, union
from snapshots.actions import Action, ApplyUpdate, LogState, RecordMapping, WriteLocalSnapshot, WriteUpdate
from snapshots.controller import SnapshotController
from snapshots.errors import MarkerCorrupt
from snapshots.mapping import SnapshotMapping
from snapshots.markers import LocalSnapshot, Marker, SnapshotResponse, decode_marker, encode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.telling import Description

if TYPE_CHECKING:
    from replicator.sync.service import SubscriptionSync

RESTORE_MARKERS_MAX: Final = 100_000
"""Markers looked at when a topic's mappings are read back from its log: seconds, and hours of a busy topic."""
CHECKPOINT_SECONDS: Final = 1.0
REFUSED_PAUSE_SECONDS: Final = 1.0
"""A store that refuses writes is asked again this often."""
PRODUCER_NAME: Final = "replicator"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counters:
    """What went wrong, for all topics of a worker."""

    updates_ignored: int = 0
    markers_corrupt: int = 0
    answers_unprovable: int = 0


class TopicSync:
    """Keeps one topic's replicated subscriptions in step; it is also where their exact state comes from
    (:class:`~snapshots.telling.AckSource`)."""

    def __init__(self, sync: SubscriptionSync, topic: Topic) -> None:
        self._sync = sync
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self.controller = SnapshotController(
            sync.engine.cluster,
            peers=self._peers(),
            reachable_origins=sync.routes.origins(topic.name),
            next_id=sync.next_id,
            settings=sync.settings,
            acks=self if sync.exact else None,
        )
        self._loaded_acks: TopicAcks | None = None
        self._loaded_pending: PendingAcks | None = None
        self._from_peers: dict[str, bool] = {}
        """Subscriptions that are being made or deleted because another cluster says so, and whether to tell that on."""
        self._told: dict[str, None] = {}
        """Subscriptions of which a cleared note that they are to be told is not stored yet."""
        self._trimmed = topic.log.trimmed
        """Extents up to here are of no more use."""
        self._actions: list[Action] = []  # an empty deque takes 600 bytes, for each topic
        self._paused: asyncio.TimerHandle | None = None
        """Set while the store refuses writes: nothing new is decided until what waits was carried out."""
        self._repeating = False
        """Whether the first of the actions was tried before."""
        self._stopped = False
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._handled = BEFORE_ALL
        self._checkpoint = BEFORE_ALL
        self._checkpoint_due = 0.0
        self._sequence = count()
        self.controller.restore(self._recorded_mappings())

    # Starting and stopping.

    def resume(self) -> None:
        """After a restart: handle the markers that stand after the last checkpoint."""
        topic = self._topic
        stored = self._sync.engine.store.meta(self._checkpoint_name())
        self._handled = self._checkpoint = Position(*stored) if stored else BEFORE_ALL
        if topic.messages:
            last_message = self._last_message()
            self.controller.on_append(last_message, origin=None, messages=True, now_ms=_now_ms())
            self.controller.on_append(topic.last_add_confirmed, origin=None, messages=False, now_ms=_now_ms())
            self._recall_own_markers(last_message)
        for name, generation in topic.tombstones.items():
            self.controller.on_subscription_deleted(name, generation, _now_ms(), announced=True)
        for first, last in topic.log.markers.runs():
            if last > self._handled:
                self._replay(max(self._handled, Position(first.ledger, first.entry - 1)), last)
        self._settle()

    def _last_message(self) -> Position:
        """At or above the last message: what is before the markers at the end of the log."""
        log = self._topic.log
        position = log.last
        for first, last in reversed(list(log.markers.runs())):
            if last != position:
                break
            position = log.clamp(Position(first.ledger, first.entry - 1))
        return position

    def _recall_own_markers(self, after: Position) -> None:
        """What was asked and told since the last message is not asked and told again (invariant 7)."""
        cluster = self._sync.engine.cluster
        while after < self._topic.last_add_confirmed:
            blocks, reached = self._topic.read_blocks(after, bytes_max=1 << 20)
            for stored in blocks:
                if stored.header.origin == cluster and stored.header.kind is BlockKind.MARKERS:
                    for position, marker in self._markers(stored):
                        self._act(self.controller.on_marker(position, cluster, marker, self._log_state(), _now_ms()))
            if reached == after:
                break
            after = reached

    def _replay(self, after: Position, upto: Position) -> None:
        while after < upto:
            blocks, reached = self._topic.read_blocks(after, upto, bytes_max=1 << 20)
            for stored in blocks:
                self._handle_markers(stored, after)
            if reached == after:
                break
            after = reached

    def _recorded_mappings(self) -> list[SnapshotMapping]:
        """The mappings in the log's local snapshots, from the newest back to one at or below every mark-delete."""
        topic = self._topic
        floor = min(
            (s.cursor.mark_delete for s in topic.subscriptions.values() if s.replicated),
            default=topic.last_add_confirmed,
        )
        found: list[SnapshotMapping] = []
        settled: set[str] = set()
        looked_at = 0
        for first, last in reversed(list(topic.log.markers.runs())):
            blocks, _ = topic.read_blocks(Position(first.ledger, first.entry - 1), last, bytes_max=1 << 26)
            for stored in reversed(blocks):
                looked_at += stored.header.entries
                if stored.header.kind is not BlockKind.LOCAL_MARKERS:
                    continue
                for _, marker in reversed(list(self._markers(stored))):
                    if isinstance(marker, LocalSnapshot):
                        for peer, remote in marker.clusters.items():
                            found.append(SnapshotMapping(marker.snapshot_id, marker.local, peer, remote))
                            if marker.local <= floor:
                                settled.add(peer)
            if looked_at >= RESTORE_MARKERS_MAX or (settled and settled >= self._peers()):
                break
        return found[::-1]

    async def stop(self) -> None:
        self._stopped = True
        self._cancel_timers()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        if not self._actions:
            self._checkpoint_due = 0.0
            with contextlib.suppress(EngineError):  # then the markers are only handled again
                await self._save_checkpoint(self._handled)

    def discard(self) -> None:
        """The topic is gone."""
        self._stopped = True
        self._actions.clear()
        self._cancel_timers()
        if self._worker is not None:
            self._worker.cancel()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._paused, self._checkpoint_timer):
            if timer is not None:
                timer.cancel()

    # Events.

    def on_topology(self) -> None:
        """Links have come or gone, or the namespace's clusters have changed."""
        self.controller.on_topology(self._peers(), self._sync.routes.origins(self._topic.name), _now_ms())
        self._settle()

    def tell_all(self) -> None:
        self.controller.updates.tell_all(_now_ms())
        self._settle()

    def on_appended(self, blocks: Sequence[AppendedBlock]) -> None:
        origins = {block.header.origin for block in blocks}
        for block in blocks:
            header = block.header
            messages = header.kind is BlockKind.MESSAGES
            if header.origin != self._sync.engine.cluster:
                self._copied(block)
            self.controller.on_append(block.last, origin=header.origin, messages=messages, now_ms=_now_ms())
            if not messages:
                stored, _ = self._topic.read_blocks(
                    Position(block.position.ledger, block.position.entry - 1), block.last, bytes_max=1 << 26
                )
                for marker_block in stored:
                    self._handle_markers(marker_block, BEFORE_ALL)
        if self._topic.subscriptions:
            for name in self._pending.waiting_for(origins):
                self._apply_pending(name)
        self._settle()

    def _copied(self, block: AppendedBlock) -> None:
        header = block.header
        extent = header.origin, header.incarnation, header.origin_first, block.position, header.entries
        if self._loaded_acks is not None:
            self._loaded_acks.copied(*extent)
        self._sync.index.extents_recorded(self._topic.name, *extent)

    def on_subscription(self, subscription: Subscription) -> None:
        name, cursor = subscription.name, subscription.cursor
        if not subscription.replicated:
            self.controller.on_subscription_deleted(name)
            return
        relayed = self._from_peers.get(name)
        announced = relayed is False or (relayed is None and self._sync.exact and not cursor.state.to_tell)
        self.controller.on_subscription(name, cursor.mark_delete, cursor.generation, _now_ms(), announced=announced)
        if cursor.state.untold:
            self.on_acknowledged(subscription)
        self._settle()

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        announced = self._from_peers.get(name) is False
        self.controller.on_subscription_deleted(name, generation, _now_ms(), announced=announced)
        self._told.pop(name, None)
        if generation is not None:
            self._pending.put(name, 0, AckVector())
        self._settle()

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        if subscription.replicated:
            cursor = subscription.cursor
            self.controller.on_mark_delete(
                subscription.name, cursor.mark_delete, cursor.generation, _now_ms(), local=local
            )
            self._settle()

    def on_acknowledged(self, subscription: Subscription) -> None:
        if self._sync.exact:
            self.controller.on_acknowledged(subscription.name, _now_ms())
            self._settle()
        else:
            subscription.cursor.take_untold()

    def _peers(self) -> frozenset[str]:
        """The clusters that get the topic's markers: its namespace may say that it is copied to some only."""
        peers = self._sync.routes.peers(self._topic.name)
        clusters = self._topic.namespace.policies.replication_clusters
        return peers if clusters is None else peers & frozenset(clusters)

    # The exact state.

    @property
    def _acks(self) -> TopicAcks:
        """Loaded when it is needed first: a topic without replicated subscriptions never needs it."""
        if self._loaded_acks is None:
            topic = self._topic
            self._loaded_acks = TopicAcks(
                self._sync.engine.cluster, topic.incarnation, topic.log, topic.high_water, topic.left_out
            )
            for extent in self._sync.engine.store.extents(topic.topic_id):
                self._loaded_acks.copied(*extent)
        return self._loaded_acks

    @property
    def _pending(self) -> PendingAcks:
        if self._loaded_pending is None:
            self._loaded_pending = PendingAcks(self._sync.engine, self._topic.topic_id)
        return self._loaded_pending

    def take(self, name: str, *, whole: bool) -> tuple[AckVector, bool]:
        """What of a subscription is not told yet, or all of it; see :class:`~snapshots.telling.AckSource`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return AckVector(), False
        untold = subscription.cursor.take_untold()
        if whole or untold.whole:
            return self.whole(subscription), True
        return self._acks.delta_of(untold, subscription.cursor.state), False

    def describe(self, name: str) -> Description:
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return Description()
        state = subscription.cursor.state
        return Description(dict(state.properties), state.read_compacted)

    def whole(self, subscription: Subscription) -> AckVector:
        """All that is known to be acknowledged, of messages that are not here yet as well."""
        state = subscription.cursor.state
        vector = self._acks.vector_of(state, self._topic.high_waters())
        return union([vector, self._pending.of(subscription.name, state.generation)])

    def unconsumed(self, subscription: Subscription) -> AckVector:
        return self._acks.unconsumed(subscription.cursor.state, self._topic.high_waters())

    def _merge(self, subscription: Subscription, vector: AckVector, *, tell: bool) -> bool:
        """Take over what is acknowledged elsewhere, and keep what is not here yet. Returns whether anything changed
        here; not yet saved."""
        cursor = subscription.cursor
        placed = self._acks.place(vector, cursor.mark_delete)
        self._pending.put(subscription.name, cursor.generation, placed.rest)
        return subscription.merge_acks(placed.positions, placed.batches, tell=tell)

    def _apply_pending(self, name: str) -> None:
        """Messages have come that may have been acknowledged elsewhere: before any consumer gets them."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not subscription.replicated:
            return
        waiting = self._pending.of(name, subscription.cursor.generation)
        if self._merge(subscription, waiting, tell=self._relays_any()):
            subscription.saved().add_done_callback(_take_exception)  # if it fails, they are pending after a restart
        self._start_worker()

    def _relays_any(self) -> bool:
        routes, name = self._sync.routes, self._topic.name
        return any(routes.relays(name, origin) for origin in routes.origins(name))

    def _on_timer(self) -> None:
        self._timer = None
        self._act(self.controller.on_tick(_now_ms(), self._log_state()))
        self._settle()

    def _settle(self) -> None:
        """Set the timer to when the controller wants to be woken."""
        if self._stopped or self._paused is not None:
            return
        deadline_ms = self.controller.next_deadline(_now_ms())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            delay = max(0, deadline_ms - _now_ms()) / 1000
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _handle_markers(self, stored: StoredBlock, after: Position) -> None:
        for position, marker in self._markers(stored):
            if position <= after:
                continue
            self._handled = max(self._handled, position)
            if isinstance(marker, SnapshotResponse) and self._proves_nothing(marker):
                self._sync.counted.answers_unprovable += 1
                continue
            self._act(self.controller.on_marker(position, stored.header.origin, marker, self._log_state(), _now_ms()))
        self._start_worker()

    def _proves_nothing(self, answer: SnapshotResponse) -> bool:
        """Whether the peer has messages that are not in our log and never will be, so that consuming all of ours says
        nothing of them (invariant 5): ours, as we were restored from an old copy; or others', which a link left out.
        """
        ours, first = answer.vector.get(self._sync.engine.cluster), self._topic.log.first
        lost = ours is not None and ours not in self._topic.log and (first is None or ours >= first)
        return lost or any(self._topic.left_out(origin) for origin in answer.vector)

    def _markers(self, stored: StoredBlock) -> Iterator[tuple[Position, Marker]]:
        """The markers of a block that are ours to read; a corrupt one is counted and passed over."""
        view = BlockView(stored.block, stored.header)
        for index, entry in enumerate(view.entries()):
            position = Position(stored.position.ledger, stored.position.entry + index)
            try:
                metadata, payload = decode_entry(entry, check=False)
                marker = decode_marker(metadata.marker_type, payload)
            except (EngineError, MarkerCorrupt) as error:
                self._sync.counted.markers_corrupt += 1
                log.warning("marker cannot be read", topic=self._topic.name, position=str(position), reason=str(error))
                continue
            if marker is not None:
                yield position, marker

    def _log_state(self) -> LogState:
        topic = self._topic
        return LogState(topic.last_add_confirmed, topic.vector(), topic.message_vector())

    # Actions.

    def _act(self, actions: Sequence[Action]) -> None:
        self._actions.extend(actions)
        if actions:
            self._start_worker()

    def _start_worker(self) -> None:
        if self._worker is None and self._paused is None and not self._stopped:
            self._worker = self._loop.create_task(self._work(), name=f"sync {self._topic.name}")

    async def _work(self) -> None:
        """Carry out what is waiting, in order; then note how far markers were handled."""
        try:
            more = True
            while more:
                handled = self._handled
                while self._actions:
                    await self._carry_out(self._actions[0])
                    self._actions.pop(0)
                    self._repeating = False
                if self._loaded_pending is not None:
                    await self._loaded_pending.save()
                await self._save_checkpoint(handled)
                more = bool(self._actions)
        except TopicNotFound:  # it is being deleted
            log.info("subscription sync ends", topic=self._topic.name)
        except (StoreFull, StoreFailed) as error:
            # What was decided is not decided again, so it waits. A crash loses nothing either: the checkpoint stays.
            if not self._repeating:
                log.error("subscription sync stands still", topic=self._topic.name, reason=str(error))  # noqa: TRY400
            self._repeating = True
            self._paused = self._loop.call_later(REFUSED_PAUSE_SECONDS, self._go_on)
        finally:
            self._worker = None

    def _go_on(self) -> None:
        self._paused = None
        self._start_worker()
        self._settle()

    async def _carry_out(self, action: Action) -> None:
        if isinstance(action, RecordMapping):
            self._sync.index.mapping_recorded(self._topic.name, action.mapping)
        elif isinstance(action, ApplyUpdate):
            await self._apply(action)
        else:
            await self._topic.write_marker(self._entry(action.marker), local=isinstance(action, WriteLocalSnapshot))
            if isinstance(action, WriteUpdate):
                for update in action.marker.updates:
                    if (subscription := self._topic.subscriptions.get(update.subscription)) is not None:
                        subscription.told()
                        self._told[update.subscription] = None

    async def _apply(self, update: ApplyUpdate) -> None:
        relay = self._sync.routes.relays(self._topic.name, update.source)
        try:
            if update.deleted:
                await self._bury(update, relay=relay)
                return
            subscription = self._topic.subscriptions.get(update.subscription)
            if subscription is None:
                subscription = await self._create(update, relay=relay)
            if not subscription.replicated:
                self._sync.counted.updates_ignored += 1
                return
            if self._merge_update(subscription, update, relay=relay) or self._repeating:
                await subscription.saved()
        except (StoreFull, StoreFailed, TopicNotFound):
            raise
        except SubscriptionNotFound:  # it is being deleted; other subscriptions' updates go on
            self._sync.counted.updates_ignored += 1
        except EngineError as error:
            log.warning("update refused", topic=self._topic.name, source=update.source, reason=str(error))
            self._sync.counted.updates_ignored += 1

    def _merge_update(self, subscription: Subscription, update: ApplyUpdate, *, relay: bool) -> bool:
        """Returns whether anything changed; not yet saved."""
        cursor = subscription.cursor
        if update.generation < cursor.generation:
            return False
        vector, changed = update.acks, False
        if update.generation > cursor.generation:
            if update.whole:
                # Who put the subscription elsewhere knew nothing of the other origins: what is consumed of them stays.
                stays = self.whole(subscription)
                stays.origins = {name: acks for name, acks in stays.origins.items() if name not in vector.origins}
                subscription.adopt_generation(update.generation)
                vector = union([vector, stays])
            else:
                subscription.merge_mark_delete(update.position or BEFORE_ALL, update.generation)
            changed = True
            if relay:
                self.controller.updates.owe_whole(subscription.name, _now_ms())
        if self._sync.exact:
            vector = union([vector, self._pending.of(subscription.name, cursor.generation)])
            changed |= self._merge(subscription, vector, tell=relay)
        if update.position is not None:
            changed |= subscription.merge_mark_delete(update.position, update.generation)
        return changed

    async def _create(self, update: ApplyUpdate, *, relay: bool) -> Subscription:
        self._from_peers[update.subscription] = relay
        try:
            return await self._topic.create_subscription(
                update.subscription,
                BEFORE_ALL,
                replicated=True,
                properties=dict(update.properties),
                read_compacted=update.read_compacted,
                generation=update.generation,
            )
        finally:
            self._from_peers.pop(update.subscription, None)

    async def _bury(self, update: ApplyUpdate, *, relay: bool) -> None:
        name = update.subscription
        living = self._topic.subscriptions.get(name)
        if living is not None and not living.replicated:
            self._sync.counted.updates_ignored += 1
            return
        self._from_peers[name] = relay
        try:
            await self._topic.bury_subscription(name, update.generation)
        finally:
            self._from_peers.pop(name, None)
        if living is None:
            self.controller.on_subscription_deleted(name, update.generation, _now_ms(), announced=not relay)
            self._settle()

    def _entry(self, marker: Any) -> bytes:
        marker_type, payload = encode_marker(marker)
        metadata = MessageMetadata(
            producer_name=PRODUCER_NAME,
            sequence_id=next(self._sequence),
            publish_time=time.time_ns() // 1_000_000,
            marker_type=int(marker_type),
        )
        return encode_entry(metadata, payload)

    async def _save_checkpoint(self, handled: Position) -> None:
        """Now and then; what stands after it is only handled again, which does no harm."""
        if handled <= self._checkpoint and not self._told:
            return
        now = self._loop.time()
        if now < self._checkpoint_due:
            if self._checkpoint_timer is None and not self._stopped:
                self._checkpoint_timer = self._loop.call_at(self._checkpoint_due, self._on_checkpoint_due)
            return
        self._checkpoint_due = now + CHECKPOINT_SECONDS
        told, self._told = self._told, {}
        saves = [self._topic.subscriptions[name].saved() for name in told if name in self._topic.subscriptions]
        await asyncio.gather(*saves, return_exceptions=True)  # what is not saved is told again after a restart
        if handled > self._checkpoint:
            await self._sync.engine.remember(self._checkpoint_name(), list(handled))
            self._checkpoint = handled
        self._forget_trimmed()

    def _on_checkpoint_due(self) -> None:
        self._checkpoint_timer = None
        self._start_worker()

    def _forget_trimmed(self) -> None:
        """What was trimmed before the last checkpoint is told by now, and nobody will ask for it again."""
        if self._loaded_acks is not None:
            self._loaded_acks.trim(self._trimmed)
        if self._topic.log.trimmed > self._trimmed:
            self._trimmed = self._topic.log.trimmed
            self._sync.index.extents_trimmed(self._topic.name, self._trimmed)
        floors = [each.cursor.mark_delete for each in self._topic.subscriptions.values() if each.replicated]
        if floors:
            self.controller.trim(min(floors))

    def _checkpoint_name(self) -> str:
        return f"{MARKERS_HANDLED} {self._topic.topic_id}"


def _take_exception(saving: asyncio.Future[None]) -> None:
    """Nobody waits for it."""
    if not saving.cancelled():
        saving.exception()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
