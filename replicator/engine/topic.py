"""A topic: one log in one cluster, and the subscriptions on it.

Everything that is published, copied or written as a marker comes through here, and everything that is read. The
topic keeps the loop's view of the log (what is durable); the writer thread keeps the tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from replicator.engine.admission import Admission
from replicator.engine.compaction.compaction import Compaction
from replicator.engine.errors import (
    BlockCorrupt,
    EngineError,
    InvalidAck,
    InvalidSeek,
    StoreFailed,
    TopicNotFound,
)
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.ledger_ends import HERE
from replicator.engine.log.left_out import Hole, LeftOutNote
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.parts import PartlyHere
from replicator.engine.log.store import Store, StoredBlock, StoredHeader
from replicator.engine.log.store_tables import TOPIC_KEY, HighWater, TopicRecord
from replicator.engine.log.twins import TwinLinks
from replicator.engine.log.writer import AppendedBlock, CopiedBlock, Extent, Tail, Writer
from replicator.engine.policies import PolicyOverrides, QuotaPolicy, TopicPolicies
from replicator.engine.policies_codec import decode_overrides, encode_overrides
from replicator.engine.producing.producers import EngineProducer, TopicProducers
from replicator.engine.producing.publishing import PublishGate, check_entries
from replicator.engine.producing.sequence_index import Pair, load_twins
from replicator.engine.subscriptions.consumer import Deliver, EngineConsumer
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.subscriptions.topic_subscriptions import TopicSubscriptions
from replicator.engine.topic_listener import TopicListener, TopicNews
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import Namespace
from replicator.engine.types import END_LEDGER, LoggedEntry, ProducerOptions, SubscribeOptions
from replicator.engine.upkeep.hold_quota import REFUSE_PRODUCERS, RELEASE, HoldQuota
from replicator.engine.upkeep.retention import done_through
from replicator.running.short_tasks import awaited
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

if TYPE_CHECKING:
    from replicator.engine.log.block_cache import BlockCache

SEARCH_BLOCKS = 1_000
"""Headers that a search by time reads in one go: some milliseconds."""


class Topic:
    """One topic of one cluster. All methods run on the engine's event loop."""

    def __init__(
        self,
        record: TopicRecord,
        store: Store,
        writer: Writer,
        cache: BlockCache,
        listeners: Sequence[TopicListener[Topic]],
        failover: FailoverRegistry,
        default_policies: TopicPolicies,
        namespace: Namespace,
        admission: Admission,
    ) -> None:
        self.name = record.name
        self.admission = admission
        self.topic_id = record.topic_id
        self.incarnation = record.incarnation
        self.partition = parse_topic(record.name).partition
        self.loop = asyncio.get_running_loop()
        self.writer = writer
        self.failover = failover
        self._default_policies = default_policies
        self.namespace = namespace
        """Its policies hold where the topic has none of its own."""
        self.deleted: TopicNotFound | None = None
        """Set from the moment on at which the topic is being deleted."""
        trimmed = store.trim(record.topic_id)
        self.log = LogIndex(trimmed.through, trimmed.ends.get(HERE, ()))
        self.trimmed_in_store = self.log.trimmed
        """Up to where the log is trimmed for good; not above where it is trimmed."""
        self.held_back: dict[str, Position] = {}
        """By name, such as a link's, the position up to which somebody besides subscriptions is done with the log."""
        self.hold_quotas: dict[str, HoldQuota] = {}
        """By the same name, how much it may hold back."""
        self.holds_exceeded: dict[str, str] = {}
        """The names whose quota is exceeded, each with the policy that says what follows; kept by maintenance."""
        self._store = store
        self._cache = cache
        self._news = TopicNews(self, listeners)
        self._gate = PublishGate(self.name)
        self._left_out: dict[str, tuple[Hole, ...]] = {}
        """By origin, what was asked for since the last hole of it."""
        self._load()
        self.producers = TopicProducers(self, self._store.epoch(self.topic_id))

    def _load(self) -> None:
        own_policies = self._store.policies(self.topic_id)
        self.own_policies = None if own_policies is None else decode_overrides(own_policies)
        """Those that were set for this topic; None if it has those of its namespace, or the engine's default."""
        self.policies = self._policies_that_count()
        for ledger in self._store.ledgers(self.topic_id):
            self.log.append(Position(ledger.ledger, ledger.first), ledger.last - ledger.first + 1, marker=False)
        for first, entries in self._store.marker_runs(self.topic_id):
            self.log.markers.add_range(first.ledger, first.entry, first.entry + entries - 1)
        self._load_parts()
        entries_ever, self.messages = self._store.totals(self.topic_id)
        high_waters = self._store.high_waters(self.topic_id)
        self._high_water = dict(high_waters)
        self._message_vector = self._store.message_vector(self.topic_id, high_waters)
        self._tail = Tail(self.topic_id, self.name, self.incarnation, entries_ever, self.messages, high_waters)
        self._tail.numbered = self._store.has_rows("sequences", self.topic_id)
        self._tail.indexed = self._store.has_rows("numbering", self.topic_id)
        if self._tail.indexed and (pairs := load_twins(self._store, self.topic_id)):
            self.log.twins = TwinLinks(pairs)
        self.compaction = Compaction(self, self._store)
        self.subscriptions = TopicSubscriptions(self, self._store, self._news)

    def _load_parts(self) -> None:
        self.log.parts = None
        for row in self._store.parts(self.topic_id):
            self._note_parts(row.origin, row.origin_first, row.local_first, row.entries)

    def _note_parts(self, origin: str, origin_first: Position, local_first: Position, entries: Sequence[int]) -> None:
        parts = self.log.parts
        if parts is None:
            parts = self.log.parts = PartlyHere(self._absent, self.batch_size)
        for entry in entries:
            parts.add(
                Position(local_first.ledger, local_first.entry + entry),
                origin,
                Position(origin_first.ledger, origin_first.entry + entry),
            )

    def _absent(self, position: Position) -> BitMap:
        first, view = self._block_at(position)
        return view.absent[position.entry - first.entry]

    # What is here.

    @property
    def tail(self) -> Tail:
        """The writer's; passed on to it only."""
        return self._tail

    @property
    def cluster(self) -> str:
        return self._store.cluster

    @property
    def last_add_confirmed(self) -> Position:
        return self.log.last

    @property
    def first_position(self) -> Position | None:
        return self.log.first

    def vector(self) -> dict[str, Position]:
        """The highest origin position of every origin, this cluster's own included; local markers do not count."""
        return {origin: high_water.position for origin, high_water in self._high_water.items()}

    def message_vector(self) -> dict[str, Position]:
        """The same of messages only: for each origin the position of its newest block of messages here."""
        return dict(self._message_vector)

    def high_waters(self) -> Mapping[str, HighWater]:
        """How far each origin is here, this cluster among them."""
        return self._high_water

    def high_water(self, origin: str) -> HighWater | None:
        return self._high_water.get(origin)

    def left_out(self, origin: str) -> list[Hole]:
        """What the links that brought an origin's messages may have left out of them, up to its high-water mark here:
        origin positions p with after < p <= upto, in order and apart from each other."""
        holes = self._left_out.get(origin)
        if holes is None:
            holes = self._left_out[origin] = self._store.left_out(self.topic_id, origin)
        return list(holes)

    def partly_left_out(self, origin: str) -> PositionSet:
        """The batches of an origin of which only a part is here, as origin positions."""
        found = None if self.log.parts is None else self.log.parts.origins.get(origin)
        return PositionSet() if found is None else found

    def trimmed_ends(self) -> Mapping[str, Sequence[Position]]:
        """By origin, the last entry of each of its ledgers that was trimmed here, as origin positions in order."""
        return self._store.trim(self.topic_id).ends if self.trimmed_in_store > BEFORE_ALL else {}

    # Writing.

    async def create_producer(self, options: ProducerOptions) -> EngineProducer:
        """Connect a producer; waits in WaitForExclusive until it owns the topic.

        Raises :class:`ProducerBusy`, :class:`ProducerFenced`, :class:`NotAllowedError` and the store's errors.
        """
        self.check_there()
        self.admission.check_producer()
        return await self.producers.create(options)

    async def publish(self, entries: Sequence[bytes], producer: EngineProducer | None = None) -> list[Position]:
        """Append entries as producers sent them; returns their positions when they are durable (invariant 1), and
        ``DUPLICATE`` for those that deduplication knows. Waits while the backlog's quota holds publishes.

        Raises :class:`EntryCorrupt`, :class:`MessageTooLarge`, :class:`NotAllowedError`, :class:`BacklogQuotaExceeded`
        (then none was appended), and the store's errors.
        """
        checked = check_entries(entries, self.policies, None if producer is None else producer.name)
        self.admission.check_producer()
        if not self._gate.open:
            await self._gate.enter(checked.size_bytes)
            self.admission.check_producer()
            if producer is not None:
                producer.check_open()
        return await self.writer.publish(self._tail, BlockKind.MESSAGES, entries, checked.batch_sizes, checked.numbered)

    def check_takes(self) -> None:
        """Raises why publishes are refused; that they are held is no reason."""
        self.check_there()
        self.admission.check_producer()
        self._gate.check()

    async def admit(self, size_bytes: int) -> None:
        """As :meth:`publish` before it appends: refused while the topic is deleted or the cluster fenced, refused or
        held while the backlog is over its quota. For what goes to the writer by :attr:`tail`, with that of others."""
        self.check_there()
        self.admission.check_producer()
        if not self._gate.open:
            await self._gate.enter(size_bytes)
            self.check_there()
            self.admission.check_producer()

    @property
    def quota_exceeded(self) -> QuotaPolicy | None:
        """What is done to publishes because the backlog is over its quota; None while it is not."""
        return self._gate.policy

    @quota_exceeded.setter
    def quota_exceeded(self, policy: QuotaPolicy | None) -> None:
        self._gate.policy = policy

    def fence_producers(self, error: EngineError) -> None:
        """Let go of producers, and of what waits for the backlog's quota, because of a failover: see
        :mod:`replicator.engine.admission`."""
        self._gate.refuse(error)
        self.producers.fence(error)

    async def stop(self, reason: str) -> None:
        """Let go of producers and of what waits or runs; the store is about to be closed."""
        self.producers.close(reason)
        self._gate.close(StoreFailed(f"{self.name}: {reason}"))
        await self.compaction.stop()

    # Being deleted.

    @property
    def busy(self) -> str | None:
        """Who is connected, in words; None if nobody is."""
        consumers = self.subscriptions.consumers
        if not consumers and not self.producers.connected:
            return None
        return f"{self.name} has {self.producers.connected} producers and {consumers} consumers"

    def leave(self) -> None:
        """Let go of everybody, and take no more requests: the topic is about to be deleted from the store."""
        self.deleted = error = TopicNotFound(f"topic {self.name!r} was deleted")
        self.producers.close("the topic was deleted", TopicNotFound.code)
        self._gate.refuse(error)
        self.subscriptions.topic_deleted(error)

    def stay(self) -> None:
        """The store did not delete it."""
        self.deleted = None
        self.subscriptions.topic_deleted(None)

    def gone(self) -> None:
        """The store has deleted it."""
        self._cache.discard_through(self.topic_id, Position(END_LEDGER, 0))
        self._news.on_log_deleted()

    def check_there(self) -> None:
        if self.deleted is not None:
            raise self.deleted.with_traceback(None)

    async def write_marker(self, entry: bytes, *, local: bool = False) -> Position:
        """Append one marker; a ``local`` one is not carried by links."""
        kind = BlockKind.LOCAL_MARKERS if local else BlockKind.MARKERS
        (position,) = await self.writer.publish(self._tail, kind, [entry], [0])
        return position

    async def append_blocks(self, blocks: Sequence[CopiedBlock]) -> list[Extent]:
        """Append blocks of another origin, exactly once (invariant 2); returns the extents that were new.

        Raises :class:`BlockCorrupt`, :class:`CopyGap`, :class:`IncarnationMismatch`; then none of them was appended.
        """
        return await self.writer.copy(self._tail, blocks, numbered=self.policies.deduplication)

    def committed(self, blocks: Sequence[AppendedBlock]) -> None:
        """The writer made these durable; called once a commit, in order."""
        markers = False
        twins: list[Pair] = []
        for appended in blocks:
            header = appended.header
            is_marker = header.kind is not BlockKind.MESSAGES
            markers |= is_marker
            self.log.append(appended.position, header.entries, marker=is_marker)
            self.messages += header.messages
            if not is_marker:
                self._message_vector[header.origin] = header.origin_last
            if header.kind is not BlockKind.LOCAL_MARKERS:
                self._high_water[header.origin] = HighWater(header.incarnation, header.origin_last)
            if appended.hole:
                self._left_out.pop(header.origin, None)
            if appended.partly:
                self._note_parts(header.origin, header.origin_first, appended.position, appended.partly)
            twins += appended.twins
        if twins:
            self._link_twins(twins)
        self.subscriptions.on_appended(markers=markers)
        self._news.on_appended(blocks)

    def passed_over(self, notes: Sequence[LeftOutNote]) -> None:
        """Links left out all that they had not sent yet up to there, and it is noted in the store."""
        for note in notes:
            self._left_out.pop(note.origin, None)
            before = self._high_water.get(note.origin)
            if before is None or before.position < note.upto:  # else blocks came after it in the same commit
                self._high_water[note.origin] = HighWater(note.incarnation, note.upto)

    def _link_twins(self, found: Sequence[Pair]) -> None:
        pairs = [pair for pair in found if pair[0] > self.log.trimmed]  # else the later one is all that is left of it
        if not pairs:
            return
        if self.log.twins is None:
            self.log.twins = TwinLinks()
        for earlier, later in pairs:
            self.log.twins.link(earlier, later)
        self.subscriptions.on_twins(pairs)

    # Messages that came by two ways.

    @property
    def twins(self) -> bool:
        """Whether any message is here twice, because its producer sent it to two clusters. See :class:`TwinLinks`."""
        return bool(self.log.twins)

    def twin_of(self, position: Position) -> Position | None:
        """Another entry that has the message at ``position``: the one before it if there is one, else the one after."""
        return None if self.log.twins is None else self.log.twins.twin_of(position)

    def with_twins(self, positions: PositionSet) -> PositionSet:
        """``positions``, and all entries that have a message of theirs. It may be the same set, not to be changed."""
        return positions if self.log.twins is None else self.log.twins.with_twins(positions)

    # Reading.

    def read_blocks(
        self,
        after: Position,
        upto: Position | None = None,
        *,
        bytes_max: int,
        origins: Collection[str] | None = None,
        verify: bool = True,
    ) -> tuple[list[StoredBlock], Position]:
        """See :meth:`Store.read_blocks`; never past the LAC."""
        limit = self.log.last if upto is None else min(upto, self.log.last)
        return self._store.read_blocks(self.topic_id, after, limit, bytes_max=bytes_max, origins=origins, verify=verify)

    def read_headers(
        self, after: Position, *, bytes_max: int, blocks_max: int, origins: Collection[str]
    ) -> tuple[list[StoredHeader], Position]:
        """See :meth:`Store.read_headers`; never past the LAC."""
        return self._store.read_headers(
            self.topic_id, after, self.log.last, bytes_max=bytes_max, blocks_max=blocks_max, origins=origins
        )

    def read_entries(
        self, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]:
        """Entries in (``after``, ``upto``], at least one if there is one, through the block cache."""
        limit = self.log.last if upto is None else upto
        found: list[LoggedEntry] = []
        taken = 0
        position = self.log.next_after(after)
        while position is not None and position <= limit and len(found) < entries_max and taken < bytes_max:
            first, view = self._block_at(position)
            header = view.header
            start = position.entry - first.entry
            stop = min(header.entries, start + entries_max - len(found))
            if limit.ledger == first.ledger:
                stop = min(stop, limit.entry - first.entry + 1)
            marker = header.kind is not BlockKind.MESSAGES
            sizes = view.batch_sizes[start:stop].tolist()
            for index, (entry, size) in enumerate(zip(view.entries(start, stop), sizes, strict=True), start):
                found.append(
                    LoggedEntry(
                        Position(first.ledger, first.entry + index),
                        size,
                        marker,
                        entry,
                        header.origin,
                        Position(header.origin_first.ledger, header.origin_first.entry + index),
                    )
                )
                taken += len(entry)
                if taken >= bytes_max:
                    break
            position = self.log.next_after(found[-1].position)
        return found

    def has_position(self, position: Position) -> bool:
        """Whether there is, or was before it was trimmed, an entry at ``position`` that can be acknowledged."""
        return position in self.log or BEFORE_ALL < position <= self.log.trimmed

    async def compact(self) -> None:
        """Compact the topic up to its LAC, or wait for the pass that is running. See :meth:`Compaction.run`."""
        await self.compaction.run()

    def read_compacted(
        self, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]:
        """As :meth:`read_entries`: of the compacted view as far as it reaches, then of the log."""
        return self.compaction.read(after, upto, entries_max, bytes_max)

    def compacted(self) -> None:
        """The topic has another compacted view: what is compacted away is in nobody's way any more."""
        self.subscriptions.follow_log()

    def batch_size(self, position: Position) -> int:
        """The number of messages of the entry at ``position``; raises :class:`InvalidAck` if there is none."""
        if position not in self.log:
            if (compacted := self.compaction.find(position)) is not None:
                return compacted.batch_size
            raise InvalidAck(f"position {position} does not exist in {self.name} (its last entry is {self.log.last})")
        first, view = self._block_at(position)
        return int(view.batch_sizes[position.entry - first.entry])

    def messages_through(self, position: Position) -> int:
        """Messages up to and including ``position``, counted from the topic's first."""
        following = self.log.next_after(position)
        return self.messages if following is None else self._store.messages_before(self.topic_id, following)

    def messages_in(self, positions: PositionSet) -> int:
        """Messages in the entries at ``positions``, all of which exist."""
        return self._store.messages_in(self.topic_id, positions)

    def _block_at(self, position: Position) -> tuple[Position, BlockView]:
        cached = self._cache.get(self.topic_id, position)
        if cached is not None:
            return cached
        stored = self._store.block_of(self.topic_id, position)
        if stored is None:
            raise BlockCorrupt(f"{self.name}: the block that holds {position} is missing from the store")
        view = BlockView(stored.block, stored.header)
        self._cache.put(self.topic_id, stored.position, view, len(stored.block))
        return stored.position, view

    # Policies, and trimming by them.

    async def set_policies(self, policies: PolicyOverrides | TopicPolicies | None) -> None:
        """Give the topic policies of its own, durably: some of them, or all. What is not set comes from its namespace,
        or else from the engine; with None all of it."""
        self.check_there()
        overrides = PolicyOverrides.of(policies) if isinstance(policies, TopicPolicies) else policies or None
        stored = None if overrides is None else encode_overrides(overrides)
        # Who is cancelled cannot call them back from the store: they hold here as well.
        setting = awaited(self._set_policies(overrides, stored))
        setting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(setting)

    async def _set_policies(self, policies: PolicyOverrides | None, stored: bytes | None) -> None:
        await self.writer.put("policies", TOPIC_KEY.pack(self.topic_id), stored)
        self.own_policies = policies
        self.apply_policies()

    def _policies_that_count(self) -> TopicPolicies:
        inherited = self.inherited_policies
        return inherited if self.own_policies is None else self.own_policies.over(inherited)

    @property
    def inherited_policies(self) -> TopicPolicies:
        """What counts where the topic sets nothing: its namespace's, over the engine's."""
        of_namespace = self.namespace.policies.topic_policies
        return self._default_policies if of_namespace is None else of_namespace.over(self._default_policies)

    def set_default_policies(self, policies: TopicPolicies) -> None:
        """What counts where neither the topic nor its namespace sets anything; see the engine's method."""
        self._default_policies = policies
        self.apply_policies()

    def apply_policies(self) -> None:
        """The topic's own policies have changed, or its namespace's."""
        self.policies = self._policies_that_count()
        self.compaction.hold_back()
        self.subscriptions.apply_policies(self.policies)

    def holding(self) -> list[Position]:
        """Where the log is held back, but for those whose quota is exceeded and who are to be released then."""
        return [at for name, at in self.held_back.items() if self.holds_exceeded.get(name) != RELEASE]

    def set_holds_exceeded(self, exceeded: Mapping[str, str]) -> None:
        """Maintenance has found that these hold back more than they may: name and policy of each."""
        self.holds_exceeded = dict(exceeded)
        refusing = next((name for name, policy in exceeded.items() if policy == REFUSE_PRODUCERS), None)
        self._gate.set_refusing_holder(refusing)

    async def trim(self, upto: Position) -> None:
        """Delete the oldest blocks as far as they lie at or below ``upto``; the last block stays (invariant 10), and so
        does what a durable subscription or a link still needs (invariant 5).

        What is read from here on starts above them. A subscription that is not durable is moved there if it lags.
        """
        if self.deleted is not None:
            return
        subscriptions = list(self.subscriptions.values())
        needed_after = (each.cursor.needed_after() for each in subscriptions if each.durable)
        upto = done_through(upto, needed_after, self.holding())
        await self._trim_index(upto, subscriptions)
        if self.trimmed_in_store < self.log.trimmed:  # also what a store that failed did not delete at an earlier call
            trimmed = self.log.trimmed
            await self.writer.trim(self.topic_id, trimmed, self._tail)
            self.trimmed_in_store = trimmed
            if self.log.parts is not None:  # those that are trimmed are holes now
                self._left_out.clear()
                self._load_parts()

    async def _trim_index(self, upto: Position, subscriptions: Sequence[Subscription]) -> None:
        following = self.log.next_after(upto)
        kept = self._store.block_start(self.topic_id, self.log.last if following is None else following)
        end = self.log.trimmed if kept is None else self.log.clamp(Position(kept.ledger, kept.entry - 1))
        if end <= self.log.trimmed:
            return
        self.log.trim(end)
        self._cache.discard_through(self.topic_id, end)
        for subscription in subscriptions:
            if subscription.follow_log():
                await subscription.saved()

    # Subscriptions.

    async def subscribe(self, subscription: str, options: SubscribeOptions, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer; makes the subscription, durably unless it is not to be, if there is none.

        Raises :class:`ConsumerBusy`, :class:`InvalidHashRanges`, :class:`NotAllowedError`, :class:`InvalidSeek`.
        """
        return await self.subscriptions.subscribe(subscription, options, deliver)

    def position_before(self, target: Position) -> Position:
        """The last position before ``target``.

        Raises :class:`InvalidSeek` for a position beyond the end; one with the ledger :data:`END_LEDGER` means the end.
        """
        last = self.log.last
        if target > Position(last.ledger, last.entry + 1) and target.ledger < END_LEDGER:
            raise InvalidSeek(f"{self.name} ends at {last}; there is nothing at {target}")
        return self.log.clamp(Position(target.ledger, target.entry - 1))

    async def position_at_time(self, published_ms: int, *, after: Position) -> Position:
        """See :meth:`Store.position_at_time`; passes over old blocks in pages, between which others have their turn."""
        reached = after
        while page := self._store.block_spans(self.topic_id, reached, blocks_max=SEARCH_BLOCKS):
            older = list(takewhile(lambda block: block.publish_time_ms < published_ms, page))
            if older:
                reached = min(older[-1].last, self.log.last)
            if len(older) < len(page) or reached == self.log.last:
                break
            await asyncio.sleep(0)
        return self._store.position_at_time(self.topic_id, published_ms, after=reached)

    async def compacted_position_before(self, target: Position | int) -> Position:
        """As :meth:`position_before`, for a subscription that reads compacted: the view is searched, then the log."""
        if not isinstance(target, Position):
            return await self.compaction.position_at_time(target)
        position = self.position_before(target)
        before = Position(target.ledger, target.entry - 1)
        return self.log.view.clamp(before) if before < self.log.trimmed else position

    # Figures.

    def status(self) -> dict[str, Any]:
        """The figures of this topic, as the status page shows them."""
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "first": str(self.log.first or BEFORE_ALL),
            "trimmed": str(self.log.trimmed),
            "lac": str(self.log.last),
            "entries": self.log.entries,
            "messages": self.messages,
            "markers": len(self.log.markers),
            "high_water": {origin: str(position) for origin, position in self.vector().items()},
            "subscriptions": [subscription.status() for subscription in self.subscriptions.values()],
        }
