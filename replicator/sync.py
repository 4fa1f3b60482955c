"""Subscription sync of one worker: the shell around a :class:`SnapshotController` for each topic.

It tells the controllers what happens in the engine's topics, carries out what they decide, and wakes them when
they want to be woken. It keeps nothing that cannot be found in the log again (invariant 9): mappings come back
from the local snapshot markers, and markers that were not handled before a crash are handled after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound, TopicNotFound
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.log.metadata_pb2 import MessageMetadata
from replicator.engine.log.store import StoredBlock
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.topology import Topology
from snapshots.actions import (
    Action,
    ApplyUpdate,
    ControllerSettings,
    ControllerStats,
    LogState,
    RecordMapping,
    WriteLocalSnapshot,
)
from snapshots.controller import SnapshotController
from snapshots.errors import MarkerCorrupt
from snapshots.mapping import SnapshotMapping
from snapshots.markers import LocalSnapshot, Marker, SnapshotResponse, decode_marker, encode_marker
from snapshots.position import BEFORE_ALL, Position

RESTORE_MARKERS_MAX: Final = 100_000
"""Markers looked at when a topic's mappings are read back from its log: seconds, and hours of a busy topic."""
CHECKPOINT_SECONDS: Final = 1.0
REFUSED_PAUSE_SECONDS: Final = 1.0
"""A store that refuses writes is asked again this often."""
PRODUCER_NAME: Final = "replicator"

log = structlog.get_logger(__name__)


class Index(Protocol):
    """Where mappings and states are indexed for people and tools; nothing is read from it to work (invariant 9)."""

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None: ...

    def subscription_moved(
        self, topic: str, name: str, generation: int, mark_delete: Position, *, replicated: bool
    ) -> None: ...

    def subscription_deleted(self, topic: str, name: str) -> None: ...

    def topic_deleted(self, topic: str) -> None: ...


class SubscriptionSync:
    """Keeps the replicated subscriptions of all topics of ``engine`` in step with the ``peers``."""

    def __init__(
        self,
        engine: Engine,
        *,
        peers: Collection[str],
        reachable_origins: Collection[str],
        settings: ControllerSettings,
        index: Index,
    ) -> None:
        self.engine = engine
        self.index = index
        self.ignored_updates = 0
        self.corrupt_markers = 0
        self.unprovable_answers = 0
        self.coming_from_peers: set[tuple[Topic, str]] = set()
        """Subscriptions that are being made because a peer has them."""
        self._peers = frozenset(peers)
        self._reachable_origins = frozenset(reachable_origins)
        self._settings = settings
        self._topics: dict[str, _TopicSync] = {}
        incarnation = uuid.uuid4().hex[:12]
        serial = count(1)
        self._next_id: Callable[[], str] = lambda: f"{engine.cluster}-{incarnation}-{next(serial)}"

    def start(self) -> None:
        """Take up every topic: read back what was known, and handle what was left unhandled."""
        self.engine.add_listener(self)
        for topic in self.engine.topics():
            self._of(topic).resume()

    async def stop(self) -> None:
        await asyncio.gather(*(sync.stop() for sync in self._topics.values()))

    def mappings(self) -> Iterator[tuple[str, SnapshotMapping]]:
        """All mappings that are known, by topic, for an index that lost them."""
        for name, sync in self._topics.items():
            for peer in self._peers:
                for mapping in sync.controller.mappings(peer):
                    yield name, mapping

    def counters(self) -> dict[str, int]:
        """Sums over the topics, since the worker started."""
        totals = dict.fromkeys(ControllerStats.__slots__, 0)
        for sync in self._topics.values():
            for name in totals:
                totals[name] += getattr(sync.controller.stats, name)
        totals["updates_ignored"] = self.ignored_updates
        totals["markers_corrupt"] = self.corrupt_markers
        totals["answers_unprovable"] = self.unprovable_answers
        return totals

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        self._of(topic).on_appended(blocks)

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        if topic.deleted is not None:  # it was just being made
            return
        self._of(topic).on_subscription(subscription)
        self._index_state(topic, subscription)

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        self._of(topic).on_subscription_deleted(name)
        self.index.subscription_deleted(topic.name, name)

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        """Exact states are not told yet."""

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        self._of(topic).on_mark_delete(subscription, local=local)
        self._index_state(topic, subscription)

    def on_log_deleted(self, topic: Topic) -> None:
        """Nobody is told: clusters that have copies keep them, and the subscriptions on them."""
        sync = self._topics.pop(topic.name, None)
        if sync is not None:
            sync.discard()
        self.index.topic_deleted(topic.name)

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        """Partitions are topics like others."""

    def on_namespace_policies(self, namespace: str) -> None:
        for name in self.engine.catalog.topics(namespace):
            topic, sync = self.engine.find(name), self._topics.get(name)
            if topic is not None and sync is not None:
                sync.on_topology(self._peers_of(topic), self._reachable_origins)

    def on_topology(self, topology: Topology) -> None:
        """Clusters or links came or went, or the paces changed: all topics follow."""
        cluster = self.engine.cluster
        self._peers, self._reachable_origins = topology.reached_from(cluster), topology.reaching(cluster)
        self._settings = replace(self._settings, **topology.sync.model_dump())
        for name, sync in self._topics.items():
            topic = self.engine.find(name)
            if topic is not None:
                sync.controller.on_settings(self._settings)
                sync.on_topology(self._peers_of(topic), self._reachable_origins)

    def _peers_of(self, topic: Topic) -> Collection[str]:
        """The clusters that the topic's namespace is copied to."""
        clusters = topic.namespace.policies.replication_clusters
        return self._peers if clusters is None else [peer for peer in self._peers if peer in clusters]

    def on_topic_created(self, topic_name: str) -> None:
        """A topic has nothing to tell before its first entry."""

    def on_topic_deleted(self, topic_name: str) -> None:
        """See :meth:`on_log_deleted`."""

    def _index_state(self, topic: Topic, subscription: Subscription) -> None:
        cursor = subscription.cursor
        self.index.subscription_moved(
            topic.name, subscription.name, cursor.generation, cursor.mark_delete, replicated=subscription.replicated
        )

    def _of(self, topic: Topic) -> _TopicSync:
        sync = self._topics.get(topic.name)
        if sync is None:
            controller = SnapshotController(
                self.engine.cluster,
                peers=self._peers_of(topic),
                reachable_origins=self._reachable_origins,
                next_id=self._next_id,
                settings=self._settings,
            )
            sync = self._topics[topic.name] = _TopicSync(self, topic, controller)
        return sync


class _TopicSync:
    """The shell of one topic's controller. Its actions are carried out one after another, by one task at a time."""

    def __init__(self, sync: SubscriptionSync, topic: Topic, controller: SnapshotController) -> None:
        self.controller = controller
        self._sync = sync
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._actions: list[Action] = []  # an empty deque takes 600 bytes, for each topic
        self._paused: asyncio.TimerHandle | None = None
        """Set while the store refuses writes: nothing new is decided until what waits was carried out."""
        self._repeating = False
        """Whether the first of the actions was tried before."""
        self._stopped = False
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handled = BEFORE_ALL
        self._checkpoint = BEFORE_ALL
        self._checkpoint_due = 0.0
        self._sequence = count()
        controller.restore(self._recorded_mappings())

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
            if looked_at >= RESTORE_MARKERS_MAX or (settled and settled >= set(self._sync._peers)):
                break
        return found[::-1]

    async def stop(self) -> None:
        self._stopped = True
        for timer in (self._timer, self._paused):
            if timer is not None:
                timer.cancel()
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
        for timer in (self._timer, self._paused):
            if timer is not None:
                timer.cancel()
        if self._worker is not None:
            self._worker.cancel()

    # Events.

    def on_topology(self, peers: Collection[str], reachable_origins: Collection[str]) -> None:
        self.controller.on_topology(peers, reachable_origins, _now_ms())
        self._settle()

    def on_appended(self, blocks: Sequence[AppendedBlock]) -> None:
        for block in blocks:
            messages = block.header.kind is BlockKind.MESSAGES
            self.controller.on_append(block.last, origin=block.header.origin, messages=messages, now_ms=_now_ms())
            if not messages:
                stored, _ = self._topic.read_blocks(
                    Position(block.position.ledger, block.position.entry - 1), block.last, bytes_max=1 << 26
                )
                for marker_block in stored:
                    self._handle_markers(marker_block, BEFORE_ALL)
        self._settle()

    def on_subscription(self, subscription: Subscription) -> None:
        if subscription.replicated:
            cursor = subscription.cursor
            self.controller.on_subscription(
                subscription.name,
                cursor.mark_delete,
                cursor.generation,
                _now_ms(),
                announced=(self._topic, subscription.name) in self._sync.coming_from_peers,
            )
            self._settle()

    def on_subscription_deleted(self, name: str) -> None:
        self.controller.on_subscription_deleted(name)
        self._settle()

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        if subscription.replicated:
            cursor = subscription.cursor
            self.controller.on_mark_delete(
                subscription.name, cursor.mark_delete, cursor.generation, _now_ms(), local=local
            )
            self._settle()

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
            if isinstance(marker, SnapshotResponse) and self._is_of_a_log_we_lost(marker):
                self._sync.unprovable_answers += 1
                continue
            self._act(self.controller.on_marker(position, stored.header.origin, marker, self._log_state(), _now_ms()))
        self._start_worker()

    def _is_of_a_log_we_lost(self, answer: SnapshotResponse) -> bool:
        """Whether the peer has entries of ours that are not in our log: it was restored from an old copy.

        Such an answer would let us call consumed what nobody here has ever seen (invariant 5).
        """
        ours, first = answer.vector.get(self._sync.engine.cluster), self._topic.log.first
        return ours is not None and ours not in self._topic.log and (first is None or ours >= first)

    def _markers(self, stored: StoredBlock) -> Iterator[tuple[Position, Marker]]:
        """The markers of a block that are ours to read; a corrupt one is counted and passed over."""
        view = BlockView(stored.block, stored.header)
        for index, entry in enumerate(view.entries()):
            position = Position(stored.position.ledger, stored.position.entry + index)
            try:
                metadata, payload = decode_entry(entry, check=False)
                marker = decode_marker(metadata.marker_type, payload)
            except (EngineError, MarkerCorrupt) as error:
                self._sync.corrupt_markers += 1
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

    async def _apply(self, update: ApplyUpdate) -> None:
        subscription = self._topic.subscriptions.get(update.subscription)
        if subscription is None:
            self._sync.coming_from_peers.add((self._topic, update.subscription))
            try:
                subscription = await self._topic.create_subscription(update.subscription, BEFORE_ALL, replicated=True)
            except (StoreFull, StoreFailed):
                raise
            except EngineError as error:
                log.warning("update refused", topic=self._topic.name, source=update.source, reason=str(error))
                self._sync.ignored_updates += 1
                return
            finally:
                self._sync.coming_from_peers.discard((self._topic, update.subscription))
        if not subscription.replicated:
            self._sync.ignored_updates += 1
            return
        position = BEFORE_ALL if update.position is None else update.position
        if subscription.merge_mark_delete(position, update.generation) or self._repeating:
            try:
                await subscription.saved()
            except SubscriptionNotFound:  # it is being deleted; other subscriptions' updates go on
                self._sync.ignored_updates += 1

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
        now = self._loop.time()
        if handled > self._checkpoint and now >= self._checkpoint_due:
            self._checkpoint_due = now + CHECKPOINT_SECONDS
            await self._sync.engine.remember(self._checkpoint_name(), list(handled))
            self._checkpoint = handled

    def _checkpoint_name(self) -> str:
        return f"{MARKERS_HANDLED} {self._topic.topic_id}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
