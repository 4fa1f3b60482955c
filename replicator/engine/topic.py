"""A topic: one log in one cluster, and the subscriptions on it.

A topic joins its parts, which have one responsibility each. It manages its own life, and tells its parts what became
durable. It has the event loop's view of the log (the durable part); the writer's thread has the tail.

======================= ============================================================================
part                    answers for
======================= ============================================================================
``topic.log``           positions that exist, and which of them are markers or duplicates
``topic.reading``       reading blocks and entries, and searching for positions
``topic.writing``       publishes, markers and copied blocks, and the gate before publishes
``topic.origins``       progress of each origin here, and what links left out
``topic.foreign``       positions of other clusters' logs that clients bring, and their local positions
``topic.producers``     connected producers
``topic.subscriptions`` the subscriptions by name; making and deleting them, connecting consumers
``topic.policies``      effective policies, from the engine's, the namespace's and its own
``topic.holds``         holders of the log besides subscriptions
``topic.trimming``      deleting the oldest blocks
``topic.compaction``    the compacted view
======================= ============================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from replicator.engine.admission import Admission
from replicator.engine.compaction.compacted_view import CompactedView
from replicator.engine.compaction.compaction import Compaction
from replicator.engine.errors import StoreFailed, TopicNotFound
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log.block import BlockKind
from replicator.engine.log.block_cache import BlockCache
from replicator.engine.log.commit.publishing import topic_terminated
from replicator.engine.log.duplicates import DuplicateEntries
from replicator.engine.log.foreign_positions import ForeignPositions
from replicator.engine.log.last_message import last_message
from replicator.engine.log.ledger_ends import HERE
from replicator.engine.log.left_out import LeftOutNote
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.origins import Origins
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TopicRecord
from replicator.engine.log.topic_reading import CommittedBlock, TopicReading
from replicator.engine.log.writer import AppendedBlock, Tail, Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.duplicate_chains import Pair, load_duplicates
from replicator.engine.producing.producers import TopicProducers
from replicator.engine.producing.publishing import PublishGate
from replicator.engine.producing.topic_writing import PublishingProducer, TopicWriting
from replicator.engine.subscriptions.consumer import Deliver, EngineConsumer
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.subscriptions.starting import Starting
from replicator.engine.subscriptions.topic_subscriptions import TopicSubscriptions
from replicator.engine.topic_listener import TopicListener, TopicNews
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import Namespace
from replicator.engine.types import END_LEDGER, SubscribeOptions
from replicator.engine.upkeep.holds import Holds
from replicator.engine.upkeep.trimming import Trimming
from replicator.running.turns import FairScheduler
from replicator.tracing.tracing import Tracing
from snapshots.position import BEFORE_ALL, Position


class Topic:
    """One topic of one cluster: its parts, and its life. All methods run on the engine's event loop."""

    def __init__(
        self,
        record: TopicRecord,
        store: Store,
        writer: Writer,
        cache: BlockCache,
        listeners: Sequence[TopicListener[Topic]],
        failover: FailoverRegistry,
        starting: Starting,
        default_policies: TopicPolicies,
        namespace: Namespace,
        admission: Admission,
        dispatch_turns: FairScheduler,
        compaction_turn: asyncio.Lock,
        tracing: Tracing | None = None,
    ) -> None:
        self.name = record.name
        self.cluster = store.cluster
        self.topic_id = record.topic_id
        self.incarnation = record.incarnation
        self.partition = parse_topic(record.name).partition
        self.loop = asyncio.get_running_loop()
        self.writer = writer
        self.failover = failover
        self.starting = starting
        self.admission = admission
        self.dispatch_turns = dispatch_turns
        """Turns in which the subscriptions of all topics dispatch."""
        self.tracing = tracing
        self.namespace = namespace
        """Namespace of the topic. Its policies apply if the topic has none of its own."""
        self.deleted: TopicNotFound | None = None
        """Error for callers, set once the deletion of the topic has begun."""
        self._news = TopicNews(self, listeners)
        self.log, self.tail = _load_log(record, store)
        view = CompactedView(store, self.topic_id)
        self.reading = TopicReading(record, self.log, store, cache, view.find)
        self.origins = Origins(self.topic_id, self.log, store, self.reading)
        self.foreign = ForeignPositions(record, self.log, self.origins, store)
        self.policies = LayeredPolicies(
            self.topic_id,
            store,
            writer,
            default_policies,
            namespace,
            check_there=self.check_there,
            changed=self._policies_changed,
        )
        gate = PublishGate(self.name)
        self.writing = TopicWriting(self.tail, writer, gate, self.policies, admission, self.check_there, tracing)
        self.holds = Holds(gate.set_refusing_holder)
        self.compaction = Compaction(self, store, view, compaction_turn)
        self.subscriptions = TopicSubscriptions(self, store, self._news)
        self.trimming = Trimming(self, store)
        self.producers = TopicProducers(self, store.epoch(self.topic_id))

    # Most used.

    def publish(
        self, entries: Sequence[bytes], producer: PublishingProducer | None = None
    ) -> Coroutine[Any, Any, list[Position]]:
        """Append entries as :meth:`TopicWriting.publish` does."""
        return self.writing.publish(entries, producer)

    def subscribe(
        self, subscription: str, options: SubscribeOptions, deliver: Deliver
    ) -> Coroutine[Any, Any, EngineConsumer]:
        """Connect a consumer as :meth:`TopicSubscriptions.subscribe` does."""
        return self.subscriptions.subscribe(subscription, options, deliver)

    # Life of the topic.

    def check_there(self) -> None:
        """Raise :class:`TopicNotFound` once the deletion of the topic has begun."""
        if self.deleted is not None:
            raise self.deleted.with_traceback(None)

    @property
    def busy(self) -> str | None:
        """Text that says how many producers and consumers are connected; None if there are none."""
        producers, consumers = self.producers.connected, self.subscriptions.consumers
        if not consumers and not producers:
            return None
        return f"{self.name} has {producers} producers and {consumers} consumers"

    def leave(self) -> None:
        """Disconnect all clients, and refuse requests, because the topic is about to be deleted from the store."""
        self.deleted = error = TopicNotFound(f"topic {self.name!r} was deleted")
        self.producers.close("the topic was deleted", TopicNotFound.code)
        self.writing.gate.refuse(error)
        self.subscriptions.topic_deleted(error)

    def stay(self) -> None:
        """Keep the topic, because it is not deleted after all. Listeners take up what they passed over meanwhile."""
        self.deleted = None
        self.subscriptions.topic_deleted(None)
        self._news.on_deletion_refused()

    def gone(self) -> None:
        """Drop cached blocks, and tell listeners that the store has deleted the topic."""
        self.reading.discard_through(Position(END_LEDGER, 0))
        self._news.on_log_deleted()

    async def terminate(self) -> Position:
        """Refuse producers for ever. Return the position of the last message, or BEFORE_ALL.

        Earlier publishes are stored. Consumers that have consumed everything are told of the end. Only this cluster
        terminates the topic: links still bring messages of others, so that no confirmed message is lost.
        """
        self.check_there()
        await self.writer.terminate(self.tail)
        if not self.log.terminated:
            self.log.terminated = True
            error = topic_terminated(self.name)
            self.writing.gate.refuse(error)
            self.producers.fence(error)
            self.subscriptions.on_terminated()
        return last_message(self.log)

    async def stop(self, reason: str) -> None:
        """Disconnect producers, and end waiting publishes and compaction, because the store is about to be closed."""
        self.producers.close(reason)
        self.writing.gate.close(StoreFailed(f"{self.name}: {reason}"))
        await self.compaction.stop()

    # What the writer, and the parts, tell.

    def committed(self, blocks: Sequence[AppendedBlock]) -> None:
        """Add ``blocks``, which the writer made durable, to the log. Call this once for each commit, in order."""
        log = self.log
        markers = False
        duplicates: list[Pair] = []
        new: CommittedBlock | None = None
        for appended in blocks:
            header = appended.header
            is_marker = header.kind is not BlockKind.MESSAGES
            markers |= is_marker
            log.append(appended.position, header.entries, marker=is_marker)
            log.messages += header.messages
            duplicates += appended.duplicates
            new = None if appended.block is None else self.reading.keep(appended)
        self.origins.committed(blocks)
        if duplicates and (pairs := log.link_duplicates(duplicates)):
            self.subscriptions.on_duplicates(pairs)
        self.subscriptions.on_appended(new, markers=markers)
        self._news.on_appended(blocks)

    def passed_over(self, notes: Sequence[LeftOutNote]) -> None:
        """Record the ranges that links left out, as their notes in the store say."""
        self.origins.passed_over(notes)

    def compacted(self) -> None:
        """Let subscriptions pass over entries that the new compacted view does not have."""
        self.subscriptions.follow_log()

    def _policies_changed(self) -> None:
        self.compaction.hold_back()
        self.subscriptions.apply_policies(self.policies.effective)

    # Figures.

    def status(self) -> dict[str, Any]:
        """Return the figures of this topic that the status page shows."""
        log = self.log
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "first": str(log.first or BEFORE_ALL),
            "trimmed": str(log.trimmed),
            "lac": str(log.last),
            "entries": log.entries,
            "messages": log.messages,
            "terminated": log.terminated,
            "markers": len(log.markers),
            "high_water": {origin: str(position) for origin, position in self.origins.vector().items()},
            "subscriptions": [subscription.status() for subscription in self.subscriptions.values()],
        }


def _load_log(record: TopicRecord, store: Store) -> tuple[LogIndex, Tail]:
    """Return a topic's stored log: the index for the event loop, and the tail for the writer."""
    topic_id = record.topic_id
    trimmed = store.trim(topic_id)
    log = LogIndex(trimmed.through, trimmed.ends.get(HERE, ()))
    for ledger in store.ledgers(topic_id):
        log.append(Position(ledger.ledger, ledger.first), ledger.last - ledger.first + 1, marker=False)
    for first, entries in store.marker_runs(topic_id):
        log.markers.add_range(first.ledger, first.entry, first.entry + entries - 1)
    log.terminated = store.terminated(topic_id)
    entries_ever, log.messages = store.totals(topic_id)
    tail = Tail(topic_id, record.name, record.incarnation, entries_ever, log.messages, store.high_waters(topic_id))
    tail.terminated = log.terminated
    tail.numbered = store.has_rows("sequences", topic_id)
    tail.indexed = store.has_rows("numbering", topic_id)
    if tail.indexed and (pairs := load_duplicates(store, topic_id)):
        log.duplicates = DuplicateEntries(pairs)
    return log, tail
