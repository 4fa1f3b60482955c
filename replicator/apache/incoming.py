"""Reading one topic of the brokers into the engine's log.

Invariants (DESIGN §3): 1 and 2, the brokers' cursor moves only after what it passes is durable here: blocks, and rows
that tell where the bridge's own entries lie, in one transaction. What comes again then is dropped by the high-water
mark, which was committed with them; rows are written again. 3, entries are appended in the order in which the broker
stores them; 4, what the bridge itself published is recognised by its stamp, or by the broker's confirmation, and not
appended again; 11, what is read and not yet stored is bounded by permits.

1. Whole entries come through a durable Exclusive subscription with a reserved name: as one consumer gets all of them,
   they come in order, and without delay.
2. Nothing is stored behind what the brokers have passed over (:mod:`replicator.apache.skipped_messages`).
3. Runs of entries without a stamp become blocks of the brokers' own origin. Its positions are the broker's. What its
   producer wants in some clusters only lies in blocks of its own, which links leave out for the others (ADR 47). So
   does what native replication brought and other links bring to some clusters, too (ADR 111).
4. Entries with a stamp are the bridge's own. They tell where what it published lies; that is stored as well. One that
   is confirmed to be the very next is not read (:mod:`replicator.apache.confirmed_entries`): the confirmation tells the
   same.
5. The version of an entry's schema is put into the engine's terms, and that schema is durable first.
6. When all is durable, the broker's cursor is moved, cumulatively.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple

import structlog

from replicator.apache.arrivals import Arrivals
from replicator.apache.confirmed_entries import ConfirmedEntries
from replicator.apache.entry_map import EntryMap, ReadEntry
from replicator.apache.errors import BridgeError
from replicator.apache.flow_control import FlowControl
from replicator.apache.names import reading_subscription
from replicator.apache.native_replication import NativeOrigins
from replicator.apache.published_extents import FIRST_READ, read_row, write_of
from replicator.apache.schemas import BrokerSchemas
from replicator.apache.shared_budget import SharedBudget
from replicator.apache.skipped_messages import Gap, gaps_among
from replicator.apache.stamps import Identity, Marks, marks_of, with_schema_version
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.errors import NotAllowedError
from replicator.engine.log.block import BLOCK_ENTRIES_MAX, BlockKind, build_block
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, InitialPosition, SubscriptionType
from replicator.running.timeouts import timeout
from snapshots.position import BEFORE_ALL, Position

log = structlog.get_logger(__name__)

BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024
NAMED_MAX: Final = 5
BEGIN_SECONDS: Final = 1.0
"""Time without an error after which reading counts as begun. It also does once something was stored."""


class _Found(NamedTuple):
    others: bool
    """Whether some entry was not the bridge's own."""
    confirmed: int
    """Messages of the bridge's own that were not read."""


class Incoming:
    """Reads one topic, whose incarnation at the brokers is ``incarnation``.

    ``begins`` is called when reading goes well, and ``stored`` when new entries of the bridge's own were found.
    ``check`` raises :class:`BridgeError` if messages were passed over."""

    def __init__(
        self,
        connector: BrokerConnector,
        cluster: str,
        topic: Topic,
        entries: EntryMap,
        schemas: BrokerSchemas,
        confirmed: ConfirmedEntries,
        room: SharedBudget,
        *,
        incarnation: int,
        reached: Position,
        begins: Callable[[], None],
        stored: Callable[[], None],
        check: Callable[[Sequence[Gap]], Awaitable[None]],
        natives: NativeOrigins | None = None,
    ) -> None:
        self._connector = connector
        self._cluster = cluster
        self._name = reading_subscription(cluster)
        self._topic = topic
        self._entries = entries
        self._schemas = schemas
        self._confirmed = confirmed
        self._room = room
        self._incarnation = incarnation
        self._begins = begins
        self._stored = stored
        self._check = check
        self._natives = natives
        self._events: Arrivals | None = None
        self.open = False
        """Whether the brokers have let the bridge in, and send what there is."""
        self.waiting = False
        """Whether all that came is stored, and reading waits for more."""
        self.reached = reached
        """Position of the brokers up to which everything is durable here."""
        self.messages = 0
        self.messages_confirmed = 0
        """Number of :attr:`messages` that are the bridge's own and did not have to be read."""
        self.copied_to_all = 0
        """Entries that their producers wanted in some clusters only, or that native replication brought to more."""
        self.replicated_natively = 0
        """Entries that the brokers' own geo-replication brought."""

    async def read(self) -> None:
        """Read until the connection ends. Raises what it ends with, :class:`BridgeHalted`, and the store's errors."""
        events = self._events = Arrivals()
        channel = await self._connector.open_consumer(
            ConsumerSettings(
                topic=self._topic.name,
                subscription=self._name,
                consumer_name=self._name,
                consumer_type=SubscriptionType.EXCLUSIVE,
                initial_position=InitialPosition.EARLIEST,
                replicated=False,
                create_topic=False,
                subscription_properties={"incarnation": str(self._incarnation)},
            )
        )
        channel.start(events)
        self._confirmed.open(events.wake)
        permits = FlowControl(channel.flow, self._room)
        self.open = True
        try:
            await self._read(channel, events, permits)
        finally:
            self.open = False
            self._confirmed.close()
            permits.close()
            await channel.close()

    def fail(self, error: BridgeError) -> None:
        """Have :meth:`read` raise ``error``, once it has stored what came."""
        if self._events is not None:
            self._events.on_lost(error)

    async def _read(self, channel: ConsumerChannel, events: Arrivals, permits: FlowControl) -> None:
        requests = count(1)
        acknowledged = BEFORE_ALL
        held = others = begun = False
        while True:
            self.waiting = True
            try:
                async with timeout(self._confirmed.hold_seconds() if held else None if begun else BEGIN_SECONDS):
                    arrived = await events.take()
            except TimeoutError:
                if held:
                    permits.grant()
                    held = False
                else:
                    begun = True
                    self._begins()
                continue
            finally:
                self.waiting = False
            permits.used(arrived)
            if others and not self._confirmed.expected(False):
                permits.grant()  # the broker reads on while this is stored
            found = await self._store(arrived)
            others = found.others
            if arrived and not begun:
                begun = True
                self._begins()
            if self.reached > acknowledged:
                acknowledged = self.reached
                channel.acknowledge_cumulative(next(requests), acknowledged, None)
            held = not found.others and self._confirmed.expected(found.confirmed > 0)
            if not held:
                permits.grant()
            elif found.confirmed:
                permits.pause()

    async def _store(self, arrived: Sequence[Delivery]) -> _Found:
        """Store what arrived, and what is confirmed to follow it. All of it is durable on return.

        If that fails, the entries after :attr:`reached` are read again."""
        if gaps := gaps_among(self.reached, (delivery.position for delivery in arrived)):
            await self._check(gaps)
        marks = [marks_of(delivery.entry) for delivery in arrived]
        await self._schemas.fetch(each.schema_version for each in marks if each.identity is None)
        writes: dict[bytes, RowWrite] = {}
        messages = confirmed = published = 0
        reached = self.reached

        def found(identity: Identity, position: Position) -> None:
            nonlocal published
            seen = self._entries.seen_at_broker(identity, position)
            if seen is not None:
                write = write_of(self._topic.topic_id, identity, seen)
                writes[write[1]] = write
                published += 1

        high_water = self._topic.origins.high_water(self._entries.broker_origin)
        stored = BEFORE_ALL if high_water is None else high_water.position
        origin_of = self._entries.lives.origin_of
        blocks = _Blocks(self._entries.broker_origin, self._incarnation, stored, origin_of)
        for delivery, (identity, version, clusters, *_, replicated_from) in zip(arrived, marks, strict=True):
            if delivery.position <= reached:
                continue  # its acknowledgement was lost, or its confirmation was faster
            if identity is None and origin_of(delivery.position) > stored:
                self.replicated_natively += bool(replicated_from)
                if version:
                    entry = with_schema_version(delivery.entry, self._schemas.here(version))
                    delivery = delivery._replace(entry=entry)
                only = None if clusters is None else self._only(clusters)
                if replicated_from:
                    only = self._clusters_to_copy_to(only, replicated_from)
                blocks.add(delivery, only)
            elif identity is not None:
                found(identity, delivery.position)
            reached = delivery.position
            messages += delivery.batch_size
        for row in self._rows_of_read(arrived, marks):
            writes[row[1]] = row
        made = blocks.end()
        for position, identity, batch_size in self._confirmed.after(reached):
            reached = position
            found(identity, position)
            confirmed += batch_size
        rows = list(writes.values())
        if made:
            await self._topic.writing.copy(made, writes=rows)
        elif rows:
            await self._topic.writer.put_many(rows)
        self.reached = reached
        self.messages += messages + confirmed
        self.messages_confirmed += confirmed
        if published:
            self._stored()
        return _Found(bool(made), confirmed)

    def _rows_of_read(self, arrived: Sequence[Delivery], marks: Sequence[Marks]) -> Iterator[RowWrite]:
        """Note the first and the last entry of each ledger that arrived, and yield the rows of that."""
        entries, topic_id = self._entries, self._topic.topic_id
        if not arrived:
            return
        first = entries.first_read.get(end := arrived[-1].position.ledger)
        if first is not None and arrived[0].position > Position(end, first.entry):
            arrived, marks = arrived[-1:], marks[-1:]  # nearly always
        last: dict[int, ReadEntry] = {}
        for delivery, each in zip(arrived, marks, strict=True):
            ledger, entry = delivery.position
            # An entry that nobody here can decode has no publish time: it could not be told from another one.
            if delivery.position <= self.reached or each.publish_time_ms <= 0:
                continue
            last[ledger] = read = ReadEntry(entry, each.publish_time_ms, each.sequence_id)
            if entries.first_read.setdefault(ledger, read).entry == entry:  # also if storing it has failed before
                yield read_row(topic_id, ledger, read, FIRST_READ)
        for ledger, read in last.items():
            for gone in entries.was_read(ledger, read):
                yield read_row(topic_id, gone, None)
                yield read_row(topic_id, gone, None, FIRST_READ)
            yield read_row(topic_id, ledger, read)

    def _clusters_to_copy_to(self, only: frozenset[str] | None, replicated_from: str) -> frozenset[str] | None:
        """Return the clusters of ``only`` that get an entry brought by native replication. None stands for all.

        Clusters that get it by a link of their own are left out. If links cannot keep to that, all get it: twice rather
        than never.
        """
        found = None if self._natives is None else self._natives.clusters_for(self._topic.name, replicated_from)
        if found is None:
            return only
        try:
            return self._topic.writing.only((found if only is None else found & only) | {self._cluster})
        except NotAllowedError as error:
            if not self.copied_to_all:
                log.warning("what is for some clusters is copied to all", topic=self._topic.name, reason=str(error))
            self.copied_to_all += 1
            return only

    def _only(self, clusters: frozenset[str]) -> frozenset[str] | None:
        """Return the clusters that may get an entry whose producer names ``clusters``; None for all.

        All get it if links cannot keep to the names, or if none of the names is known: brokers may call clusters
        otherwise. The broker has accepted the entry, so nobody can tell its producer."""
        reason = f"none of {', '.join(sorted(map(str, clusters))[:NAMED_MAX])} is a cluster of the topology"
        try:
            if self._topic.writing.knows_of(clusters):
                return self._topic.writing.only(clusters | {self._cluster})
        except NotAllowedError as error:
            reason = str(error)
        if not self.copied_to_all:
            log.warning("what is for some clusters is copied to all", topic=self._topic.name, reason=reason)
        self.copied_to_all += 1
        return None


class _Blocks:
    """Builder of blocks from applications' entries, in order. A block has adjacent entries for the same clusters."""

    def __init__(
        self, origin: str, incarnation: int, stored: Position, origin_of: Callable[[Position], Position]
    ) -> None:
        """Begin after ``stored``, the last entry in the log.

        ``origin_of`` translates a position at the brokers to the origin position that all clusters use."""
        self._origin = origin
        self._incarnation = incarnation
        self._stored = stored
        self._origin_of = origin_of
        self._blocks: list[CopiedBlock] = []
        self._run: list[Delivery] = []
        self._bytes = 0
        self._only: frozenset[str] | None = None

    def add(self, delivery: Delivery, only: frozenset[str] | None) -> None:
        run, size = self._run, len(delivery.entry)
        if run and (
            only != self._only
            or delivery.position != Position(run[-1].position.ledger, run[-1].position.entry + 1)
            or self._bytes + size > BLOCK_BYTES_MAX
            or len(run) >= BLOCK_ENTRIES_MAX
        ):
            self._end_run()
        self._only = only
        self._run.append(delivery)
        self._bytes += size

    def end(self) -> list[CopiedBlock]:
        """Return the blocks of all entries that were added."""
        if self._run:
            self._end_run()
        return self._blocks

    def _end_run(self) -> None:
        block = build_block(
            kind=BlockKind.MESSAGES,
            origin=self._origin,
            incarnation=self._incarnation,
            origin_first=self._origin_of(self._run[0].position),
            publish_time_ms=time.time_ns() // 1_000_000,
            entries=[delivery.entry for delivery in self._run],
            batch_sizes=[delivery.batch_size for delivery in self._run],
            only=self._only,
        )
        self._blocks.append(CopiedBlock(self._stored, block))
        self._run, self._bytes = [], 0
