"""The shell of one topic's sync: feeds the cores of :mod:`snapshots` with what happens in the topic, and carries out
what they decide, one action after another, by one task at a time.

The cores are :class:`~snapshots.controller.SnapshotController` for what to write, and
:class:`~replicator.sync.exact_state.ExactState` for what acknowledgements mean in positions of this cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import structlog

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound, TopicNotFound
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.store import StoredBlock
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.sync.applying import Applying
from replicator.sync.exact_state import ExactState
from replicator.sync.marker_log import MarkerLog
from replicator.sync.pending_acks import PendingAcks
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector
from snapshots.actions import Action, ApplyUpdate, LogState, RecordMapping, WriteLocalSnapshot, WriteUpdate
from snapshots.controller import SnapshotController
from snapshots.errors import MarkerCorrupt
from snapshots.markers import SnapshotResponse, SubscriptionsUpdate, encode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.telling import Description

if TYPE_CHECKING:
    from replicator.sync.service import SubscriptionSync

CHECKPOINT_SECONDS: Final = 1.0
UNTOLD_INTERVALS: Final = 3
"""After so many intervals of updates, what was acknowledged before is told."""
UPDATES_AT_ONCE: Final = 100
"""Merged before others have their turn: some milliseconds."""
REFUSED_PAUSE_SECONDS: Final = 1.0
"""A store that refuses writes is asked again this often."""
PRODUCER_NAME: Final = "replicator"

log = structlog.get_logger(__name__)


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
        self._loaded_exact: ExactState | None = None
        self._applying = Applying(sync, topic, self.controller, lambda: self._exact, self._settle)
        self._off: dict[str, None] = {}
        """Subscriptions that are not replicated, so that what was told of them was ignored."""
        self._told: dict[str, None] = {}
        """Subscriptions of which a cleared note that they are to be told is not stored yet."""
        self._trimmed = topic.log.trimmed
        """Extents up to here are of no more use, from a time on."""
        self._forget_at = 0.0
        self._actions: list[Action] = []  # an empty deque takes 600 bytes, for each topic
        self._markers_to_come: dict[str, int] = {}
        """By subscription, how many of the actions write a marker that tells of it."""
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
        self._markers = MarkerLog(topic, sync.counted)
        self.controller.restore(self._markers.recorded_mappings(self._peers()))

    # Starting and stopping.

    def resume(self) -> None:
        """After a restart: handle the markers that stand after the last checkpoint."""
        topic = self._topic
        stored = self._sync.engine.store.meta(self._checkpoint_name())
        self._handled = self._checkpoint = Position(*stored) if stored else BEFORE_ALL
        if topic.messages:
            last_message = self._markers.last_message()
            self.controller.on_append(last_message, origin=None, messages=True, now_ms=_now_ms())
            self.controller.on_append(topic.last_add_confirmed, origin=None, messages=False, now_ms=_now_ms())
            self._recall_own_markers(last_message)
        untold = self._markers.untold_deletions(lambda origin: self._sync.routes.relays(topic.name, origin))
        for name, generation in topic.tombstones.items():
            self.controller.on_subscription_deleted(name, generation, _now_ms(), announced=name not in untold)
        for first, last in list(topic.log.markers.runs()):
            after = max(self._handled, Position(first.ledger, first.entry - 1))
            for blocks in self._markers.pages(after, last):
                for stored in blocks:
                    self._handle_markers(stored, after)
        self._settle()

    def _recall_own_markers(self, after: Position) -> None:
        """What was asked and told since the last message is not asked and told again (invariant 7)."""
        cluster = self._sync.engine.cluster
        for blocks in self._markers.pages(after, self._topic.last_add_confirmed):
            for stored in blocks:
                if stored.header.origin == cluster and stored.header.kind is BlockKind.MARKERS:
                    for position, marker in self._markers.markers(stored):
                        self._act(self.controller.on_marker(position, cluster, marker, self._log_state(), _now_ms()))

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
        self._markers_to_come.clear()
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
                for marker_block in self._markers.blocks(block.position, block.last):
                    self._handle_markers(marker_block, BEFORE_ALL)
        if self._loaded_exact is not None or any(each.replicated for each in self._topic.subscriptions.values()):
            for name in self._exact.waiting_for(origins):
                self._messages_came(name)
        self._settle()

    def _copied(self, block: AppendedBlock) -> None:
        header = block.header
        extent = header.origin, header.incarnation, header.origin_first, block.position, header.entries
        if self._loaded_exact is not None:
            self._loaded_exact.acks.copied(*extent)
        self._sync.index.extents_recorded(self._topic.name, *extent)

    def on_subscription(self, subscription: Subscription) -> None:
        name, cursor = subscription.name, subscription.cursor
        if not subscription.replicated:
            self._off[name] = None
            self.controller.on_subscription_deleted(name)
            return
        relayed = self._applying.from_peers.get(name)
        announced = relayed is False or (relayed is None and self._sync.exact and not cursor.state.to_tell)
        self.controller.on_subscription(
            name,
            cursor.mark_delete,
            cursor.generation,
            _now_ms(),
            announced=announced,
            claims=self._may_claim(subscription),
        )
        if name in self._off:
            del self._off[name]
            self._hear_what_was_ignored(name)
        if cursor.state.untold:
            self.on_acknowledged(subscription)
        self._settle()

    def _hear_what_was_ignored(self, name: str) -> None:
        """A subscription is switched on again. Who hears us is asked; what others told stands in the log."""
        for origin, update in self._markers.updates_of(name):
            lac = self._topic.last_add_confirmed
            self._act(self.controller.updates.on_updates(SubscriptionsUpdate((update,)), origin, lac, _now_ms()))

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        self._off.pop(name, None)
        announced = self._applying.from_peers.get(name) is False
        self.controller.on_subscription_deleted(name, generation, _now_ms(), announced=announced)
        self._told.pop(name, None)
        if generation is not None:
            self._exact.pending.put(name, generation, AckVector())
        self._settle()

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        if subscription.replicated:
            cursor = subscription.cursor
            local = local and self._may_claim(subscription)
            self.controller.on_mark_delete(
                subscription.name, cursor.mark_delete, cursor.generation, _now_ms(), local=local
            )
            self._settle()

    def _may_claim(self, subscription: Subscription) -> bool:
        """Whether all up to its mark-delete position was consumed. With positions alone there is no saying less."""
        return not self._sync.exact or subscription.cursor.state.unclaimed is None

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
    def _exact(self) -> ExactState:
        """Loaded when it is needed first: a topic without replicated subscriptions never needs it."""
        if self._loaded_exact is None:
            topic, engine = self._topic, self._sync.engine
            acks = TopicAcks(
                engine.cluster, topic.incarnation, topic.log, topic.high_water, topic.left_out, topic.trimmed_ends
            )
            for extent in engine.store.extents(topic.topic_id):
                acks.copied(*extent)
            try:
                pending = PendingAcks(topic.topic_id, engine.store.pending_acks(topic.topic_id))
            except MarkerCorrupt as error:
                log.error("acknowledgements that waited are lost", topic=topic.name, reason=str(error))  # noqa: TRY400
                pending = PendingAcks(topic.topic_id, {})
            self._loaded_exact = ExactState(acks, pending, topic.high_waters, exact=self._sync.exact)
        return self._loaded_exact

    def take(self, name: str, *, whole: bool) -> tuple[AckVector, bool]:
        """See :class:`~snapshots.telling.AckSource`."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return AckVector(), False
        taken = self._exact.take(subscription, whole=whole)
        if subscription.cursor.state.untold:  # there was too much for one update
            self._loop.call_soon(self._tell_more, subscription)
        return taken

    def _tell_more(self, subscription: Subscription) -> None:
        if not self._stopped and self._topic.subscriptions.get(subscription.name) is subscription:
            self.on_acknowledged(subscription)

    def describe(self, name: str) -> Description:
        subscription = self._topic.subscriptions.get(name)
        if subscription is None:
            return Description()
        state = subscription.cursor.state
        return Description(dict(state.properties), state.read_compacted)

    def whole(self, subscription: Subscription) -> AckVector:
        """The exact state of one subscription."""
        return self._exact.whole(subscription)

    def unconsumed(self, subscription: Subscription) -> AckVector:
        """See :meth:`TopicAcks.unconsumed`."""
        return self._exact.unconsumed(subscription)

    def _messages_came(self, name: str) -> None:
        """Messages have come that may have been acknowledged elsewhere: merged before any consumer gets them."""
        subscription = self._topic.subscriptions.get(name)
        if subscription is None or not subscription.replicated:
            return
        if self._exact.messages_came(subscription, relay=self._relays_any()):
            subscription.saved().add_done_callback(_take_exception)  # if it fails, they wait again after a restart
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
        for position, marker in self._markers.markers(stored):
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
        cluster = self._sync.engine.cluster
        lost = cluster in answer.vector and not self._holds(cluster, answer.vector[cluster])
        topic = self._topic
        return lost or any(topic.left_out(origin) or topic.partly_left_out(origin) for origin in answer.vector)

    def _log_state(self) -> LogState:
        topic = self._topic
        return LogState(topic.last_add_confirmed, topic.vector(), topic.message_vector(), self._holds)

    def _holds(self, origin: str, position: Position) -> bool:
        return self._exact.acks.holds(origin, position)

    # Actions.

    def _act(self, actions: Sequence[Action]) -> None:
        self._actions.extend(actions)
        for action in actions:
            if isinstance(action, WriteUpdate):
                for update in action.marker.updates:
                    self._markers_to_come[update.subscription] = self._markers_to_come.get(update.subscription, 0) + 1
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
                    del self._actions[: await self._carry_out_some()]
                    self._repeating = False
                await self._save_pending()
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

    async def _carry_out_some(self) -> int:
        """Carry out the first action, or all updates that come first: they are merged one after another, and saved
        together, so that the last subscription of a marker does not wait for the others' commits. Returns how many."""
        first = islice(self._actions, UPDATES_AT_ONCE)
        updates = list(takewhile(lambda action: isinstance(action, ApplyUpdate), first))
        if not updates:
            await self._carry_out(self._actions[0])
            return 1
        saving = [
            await self._applying.apply(update, repeating=self._repeating)
            for update in updates
            if isinstance(update, ApplyUpdate)
        ]
        for outcome in await asyncio.gather(*(each for each in saving if each is not None), return_exceptions=True):
            if isinstance(outcome, SubscriptionNotFound):  # it is being deleted; other subscriptions' updates go on
                self._sync.counted.updates_ignored += 1
            elif isinstance(outcome, BaseException):
                raise outcome
        return len(updates)

    async def _carry_out(self, action: Action) -> None:
        if isinstance(action, RecordMapping):
            self._sync.index.mapping_recorded(self._topic.name, action.mapping)
        elif not isinstance(action, ApplyUpdate):
            written = await self._write(action.marker, local=isinstance(action, WriteLocalSnapshot))
            if isinstance(action, WriteUpdate):
                self._note_told(action, written=written)

    async def _write(self, marker: Any, *, local: bool) -> bool:
        try:
            await self._topic.write_marker(self._entry(marker), local=local)
        except (StoreFull, StoreFailed, TopicNotFound):
            raise
        except EngineError as error:  # it is refused however often it is tried; what comes after it goes on
            log.error("marker refused", topic=self._topic.name, reason=str(error))  # noqa: TRY400
            return False
        return True

    def _note_told(self, action: WriteUpdate, *, written: bool) -> None:
        """A subscription is told for good when the last of the markers that tell of it stands in the log."""
        for update in action.marker.updates:
            name = update.subscription
            to_come = self._markers_to_come.pop(name) - 1
            if to_come:
                self._markers_to_come[name] = to_come
            elif written and (subscription := self._topic.subscriptions.get(name)) is not None:
                subscription.told()
                self._told[name] = None

    def _entry(self, marker: Any) -> bytes:
        marker_type, payload = encode_marker(marker)
        metadata = MessageMetadata(
            producer_name=PRODUCER_NAME,
            sequence_id=next(self._sequence),
            publish_time=time.time_ns() // 1_000_000,
            marker_type=int(marker_type),
        )
        return encode_entry(metadata, payload)

    async def _save_pending(self) -> None:
        """What waits is durable before the marker that brought it counts as handled."""
        if self._loaded_exact is None:
            return
        pending = self._loaded_exact.pending
        while rows := pending.take_changes():
            try:
                await self._sync.engine.writer.put_many(rows)
            except BaseException:
                pending.not_written(rows)
                raise

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
        """What was trimmed some time ago is told by now, and nobody will ask for it again."""
        if self._loop.time() < self._forget_at:
            return
        if self._loaded_exact is not None:
            self._loaded_exact.acks.trim(self._trimmed)
        if self._topic.trimmed_in_store > self._trimmed:
            self._trimmed = self._topic.trimmed_in_store
            self._forget_at = self._loop.time() + UNTOLD_INTERVALS * self._sync.settings.update_interval_ms / 1000
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
