"""Publishing to one topic of the brokers what links brought into the engine's log from other clusters.

Invariants (DESIGN §3): 2, what stands at the brokers already is not published again; 3, one producer publishes in the
order of the log; 11, what is sent and not confirmed is bounded.

How it is exactly once: the brokers' log itself says what of ours is in it, by the stamps, and the bridge reads all of
it (:mod:`replicator.apache.incoming`). So nothing here is remembered but for the time of one producer:

1. Connect the producer. A broker refuses a second one of that name. It takes this one only when it has let go of the
   former one. By then, what the former one sent is stored or on its way to be.
2. Wait until the entries under way are stored, and ask for the last one. Wait until the bridge has read up to there.
   What it did not find by then is not there, and never comes.
3. Publish what was not found, of each origin. An answer makes room for more, and tells who reads the topic where the
   entry lies (:mod:`replicator.apache.confirmed_entries`).
4. Whatever goes wrong ends the producer, and it begins anew at 1.
5. An entry that exceeds a limit of the brokers (:mod:`replicator.apache.entry_limits`) is not sent, and nothing behind
   it: the topic halts, and goes on when the entry is let in. The limits are asked for at 3, and every
   :data:`LIMITS_SECONDS`.
   An operator may pass over it instead: then it is recorded as left out, and publishing goes on behind it.
6. A broker may refuse an entry all the same, and take those that are under way behind it. What is missing then is sent
   first by the next producer, and nothing is sent behind it before it is confirmed. Nor is anything sent behind the
   first entry of an origin: what brokers lack before the first that they have was deleted there, and is not missing.

While another cluster serves the brokers' clients, the producer is their fence. It is opened with the access mode
ExclusiveWithFencing, by which a broker lets go of all other producers and takes no new ones. It is there also when
nothing is to be published. After step 2 nobody else's entry follows, and all of theirs was read.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.confirmed_entries import ConfirmedEntries
from replicator.apache.entries_in_flight import EntriesInFlight, Refused, Renewed, Sent
from replicator.apache.entry_limits import EntryLimits
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import AdminFailed, BridgeError, BridgeHalted
from replicator.apache.left_out import RefusedEntry
from replicator.apache.missing_names import MissingNames
from replicator.apache.names import publishing_producer
from replicator.apache.native_copies import NativeCopies, key_of
from replicator.apache.native_replication import NativeReplication
from replicator.apache.publish_budget import InFlightEntries
from replicator.apache.published_extents import write_of
from replicator.apache.schemas import BrokerSchemas
from replicator.apache.shared_budget import SharedBudget
from replicator.apache.shown import TopicInternals
from replicator.apache.stamps import Identity, marks_of, stamped
from replicator.client.errors import IncompatibleSchema
from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.producer_channel import BrokerProducerChannel
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.schemas.registry import SchemaRegistry
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.engine.types import AccessMode
from replicator.running.timeouts import timeout
from replicator.topology.apache import BROKER_SUFFIX
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

READ_BYTES: Final = 4 * 1024 * 1024
BARRIER_POLL_SECONDS: Final = 0.05
ADMIN_POLL_SECONDS: Final = 0.5
"""Pause before the admin API is asked again that did not answer."""
SUBSCRIPTIONS_SECONDS_MAX: Final = 10.0
"""Longest time for which publishing waits until the brokers have a subscription that links brought."""
BARRIER_SECONDS_MAX: Final = 60.0
"""Longest wait for reading back what was published before. Then the producer begins anew, and the status says why."""
LIMITS_SECONDS: Final = 10.0
"""Time after which the brokers' limits are asked for again, by two requests for each topic that is published to."""
LIMITS_WAIT_SECONDS: Final = 1.0
"""Time for which publishing waits for the limits."""
LIMITS_AGAIN_SECONDS: Final = 60.0
"""Time after which the limits are asked for again if no answer came."""


class Outgoing:
    """Publishes to one topic."""

    def __init__(
        self,
        connector: BrokerConnector,
        admin: BrokerAdmin,
        cluster: str,
        topic: Topic,
        entries: EntryMap,
        registry: SchemaRegistry,
        confirmed: ConfirmedEntries,
        room: SharedBudget,
        *,
        ensure: Callable[[], Awaitable[None]],
        begins: Callable[[], None],
        fails: Callable[[BridgeError], None],
        missing: Callable[[], frozenset[str]],
        has_read: Callable[[Position, TopicInternals], Awaitable[bool]],
        native: NativeReplication | None = None,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare publishing. ``ensure`` raises if the brokers lack the topic: a producer would make them create it.

        ``begins`` is called when publishing has begun, or there is nothing to publish. ``fails`` is called while the
        admin API does not answer. ``missing`` returns the subscriptions that the brokers must get first. ``has_read``
        returns whether the bridge has read everything up to a position of the brokers. ``native`` says what the brokers
        replicate themselves; without it nothing is recognised. ``stored`` is called when messages were recognised.
        """
        self._connector = connector
        self._admin = admin
        self._cluster = cluster
        self._topic = topic
        self._entries = entries
        self._registry = registry
        self._confirmed = confirmed
        self._room = room
        self._ensure = ensure
        self._begins = begins
        self._fails = fails
        self._missing = missing
        self._has_read = has_read
        self._native = native
        self._stored = stored
        self._awaited = MissingNames(SUBSCRIPTIONS_SECONDS_MAX)
        self._news = asyncio.Event()
        self._fencing = False
        self._renewals = 0
        self.refused: RefusedEntry | None = None
        """The entry that the brokers refused last; None if they have taken it since, or if it was passed over."""
        self.fenced = asyncio.Event()
        """Set while nobody else can publish, and everything that others published was read."""
        self.messages = 0
        self.recognised = 0
        """Entries that native replication had brought when a link brought them."""

    def fence(self, fencing: bool) -> None:
        """Keep other producers out, or let them in. A new producer is opened for that at once."""
        if fencing != self._fencing:
            self._fencing = fencing
            self.renew()

    def renew(self) -> None:
        """Open the producer anew: a broker may have let go of it, and not said so yet."""
        self._renewals += 1
        self.fenced.clear()
        self._news.set()

    def wake(self) -> None:
        """Look whether there is something to publish."""
        self._news.set()

    def passed_over(self) -> None:
        """Go on behind the refused entry, which :meth:`EntryMap.leave_out` has noted."""
        self.refused = None
        self.renew()

    def origins(self) -> list[str]:
        """Return the origins whose messages are published at the brokers."""
        own = (self._cluster, self._entries.broker_origin)
        return [origin for origin in self._topic.origins.message_vector() if origin not in own]

    def waiting(self) -> bool:
        """Return whether there are messages that were not found at the brokers yet."""
        vector = self._topic.origins.message_vector()
        return any(self._entries.published_through(origin) < vector[origin] for origin in self.origins())

    def done_through(self) -> Position:
        """Return the position in the log up to which nothing is left to publish."""
        vector = self._topic.origins.message_vector()
        behind = [origin for origin in self.origins() if self._entries.published_through(origin) < vector[origin]]
        return min((self._entries.publish_from(origin) for origin in behind), default=self._topic.log.last)

    async def publish(self) -> None:
        """Publish until something goes wrong, and raise that."""
        while True:
            while not (self.waiting() or self._fencing):
                self._begins()
                self._news.clear()
                await self._news.wait()
            with suppress(Renewed):
                await self._publish_by_one()

    async def _publish_by_one(self) -> None:
        """Publish by one producer. Raises the error that ends it, which may be :class:`Renewed`."""
        renewals, fencing = self._renewals, self._fencing
        settings = ProducerSettings(
            self._topic.name,
            publishing_producer(self._cluster),
            batching=None,
            access_mode=AccessMode.EXCLUSIVE_WITH_FENCING if fencing else AccessMode.SHARED,
        )
        try:
            await self._ensure()
        except AdminFailed:
            if not fencing:  # a fence closes though the admin API is away
                raise
        channel = await self._opened(settings)
        channel.own_numbers = True
        room = InFlightEntries(self._room)
        flight = EntriesInFlight(
            self._news, self._confirmed, room, lambda: self._renewals != renewals, self._begins, self._entries.dropped
        )
        channel.start(flight)
        try:
            await self._read_back(flight, alone=fencing)
            if fencing:
                self.fenced.set()
            if not self.waiting():
                self._begins()
            await self._publish(channel, flight)
        except Refused as refused:
            self.refused = RefusedEntry(refused.entry.identity, refused.entry.bytes, refused.reason)
            raise self._halted(self.refused) from None
        finally:
            self.fenced.clear()
            self._confirmed.over()
            room.close()
            await channel.close()

    async def _opened(self, settings: ProducerSettings) -> BrokerProducerChannel:
        """Open a producer without a schema. If the namespace requires one, open it with the topic's own schema.

        Each message names its own schema in any case."""
        try:
            return await self._connector.open_producer(settings)
        except IncompatibleSchema:
            schema = await self._connector.schema(self._topic.name)
            if schema is None:
                raise
            return await self._connector.open_producer(replace(settings, schema=schema))

    async def _read_back(self, flight: EntriesInFlight, *, alone: bool) -> None:
        """Wait until everything that a former producer of ours published was read.

        With ``alone``, wait until nobody else is connected, and everything that anybody published was read."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BARRIER_SECONDS_MAX
        target: Position | None = None
        while True:
            flight.check()
            try:
                alone = alone and await self._admin.producers(self._topic.name) != [publishing_producer(self._cluster)]
                internals = await self._admin.internals(self._topic.name)
                if not alone and target is None and internals.pending == 0:
                    target = internals.last
                if target is not None and await self._has_read(target, internals):
                    return
            except AdminFailed as error:
                # The producer is there, and stays: where it is a fence, others would get in without it.
                if loop.time() > deadline:
                    raise
                self._fails(error)
                await asyncio.sleep(ADMIN_POLL_SECONDS)
                continue
            if loop.time() > deadline:
                raise BridgeError(
                    f"{self._topic.name}: the bridge has not read what it published before (up to {target}) within "
                    f"{BARRIER_SECONDS_MAX:g} s; see that the brokers answer, and try again"
                )
            await asyncio.sleep(BARRIER_POLL_SECONDS)

    async def _publish(self, channel: BrokerProducerChannel, flight: EntriesInFlight) -> None:
        loop = asyncio.get_running_loop()
        sending = _Sending(
            channel, flight, BrokerSchemas(self._connector, self._registry, self._topic.name), self._entries
        )
        if self._native is not None:
            await self._native.know(self._topic.name)
        after = min((self._entries.publish_from(origin) for origin in self.origins()), default=self._topic.log.last)
        due = loop.time()
        while True:
            flight.check()
            self._news.clear()
            await self._subscriptions_made(flight)
            origins = self.origins()  # last: what comes of an origin that is not among them is passed over
            before, number = after, sending.number
            blocks, after = self._topic.reading.blocks(before, bytes_max=READ_BYTES, origins=origins)
            if blocks and loop.time() >= due:
                due = loop.time() + await self._ask_limits(sending)
            for stored in blocks:
                await self._send_block(sending, stored)
            if after == before:  # nothing is left, or the topic is being deleted
                if not flight.waits:
                    self._begins()
                await self._news.wait()
            elif number == sending.number:  # other tasks run between pages of which nothing is sent
                await asyncio.sleep(0)

    async def _ask_limits(self, sending: _Sending) -> float:
        """Ask for the brokers' limits, and return in how many seconds to ask again.

        If no answer comes, the known limits stay, because messages are copied even while the admin API is away. The
        broker itself refuses entries that exceed a limit.
        """
        try:
            async with timeout(LIMITS_WAIT_SECONDS):
                sending.limits = await self._admin.limits(self._topic.name)
        except (AdminFailed, TimeoutError):
            return LIMITS_AGAIN_SECONDS
        return LIMITS_SECONDS

    async def _subscriptions_made(self, flight: EntriesInFlight) -> None:
        """Wait until the brokers have the subscriptions that are here.

        Each missing one is waited for at most :data:`SUBSCRIPTIONS_SECONDS_MAX`. Then messages go on without it, and
        the status says why."""
        loop = asyncio.get_running_loop()
        while self._awaited.wait(self._missing(), loop.time()):
            flight.check()
            await asyncio.sleep(BARRIER_POLL_SECONDS)

    async def _send_block(self, sending: _Sending, stored: StoredBlock) -> None:
        header, flight = stored.header, sending.flight
        if header.kind is not BlockKind.MESSAGES or sending.is_past(header.origin, header.origin_last):
            return
        view = BlockView(stored.block, header)
        first = header.origin_first
        copies = sending.copies(header.origin, self._topic, self._native)
        recognised: list[RowWrite] = []
        for index in range(header.entries):
            at = Position(first.ledger, first.entry + index)
            missing = sending.is_missing(header.origin, at)
            if not missing and sending.is_sent(header.origin, at):
                continue
            entry = view.entry(index)
            marks = marks_of(entry)
            version = await sending.schemas.there(marks.schema_version)
            absent = view.absent.get(index)
            if copies is not None and absent is None:
                if row := await self._recognised(
                    sending, copies, Identity(header.origin, header.incarnation, at), entry
                ):
                    recognised.append(row)
                    continue
                await self._keep(recognised)
            messages = int(view.batch_sizes[index])
            identity = Identity(header.origin, header.incarnation, at)
            if absent is None:
                published = stamped(entry, identity, version)
            else:  # it is made anew, of up to 64 MiB
                messages -= len(absent)
                published = await asyncio.to_thread(stamped, entry, identity, version, absent)
            sent = Sent(len(published), identity, messages)
            if reason := sending.limits.exceeded(published, marks.delay_ms, sending.channel.entry_bytes_max):
                await flight.landed()  # a broker may refuse an entry before this one
                raise Refused(sent, reason)
            refused = self.refused is not None and identity == self.refused.identity
            alone = missing or refused or sending.is_first(header.origin)
            if alone:
                await flight.landed()
            await flight.room(len(published))
            sending.number += 1
            flight.sent(sending.number, sent)
            sending.channel.publish(sending.number, published)
            sending.note(header.origin, at)
            self.messages += messages
            if alone:
                await flight.landed()
                if refused:
                    self.refused = None
        await self._keep(recognised)

    async def _recognised(
        self, sending: _Sending, copies: NativeCopies, identity: Identity, entry: bytes | memoryview
    ) -> RowWrite | None:
        """Return the row that tells where native replication has brought an entry; None if it must be published."""
        if (found := key_of(entry)) is None:
            return None
        place = await copies.find(found[0], sending.through(identity.origin), sending.flight.check)
        if place is None or (run := self._entries.stands_at(identity, place)) is None:
            return None
        if self.refused is not None and self.refused.identity == identity:
            self.refused = None
        sending.note(identity.origin, identity.position)
        self.recognised += 1
        return write_of(self._topic.topic_id, identity, run)

    async def _keep(self, recognised: list[RowWrite]) -> None:
        """Store the rows of entries that were recognised, before anything behind them is published."""
        if recognised:
            await self._topic.writer.put_many(list({row[1]: row for row in recognised}.values()))
            recognised.clear()
            self._stored()

    def _halted(self, refused: RefusedEntry) -> BridgeHalted:
        origin, _, position = refused.identity
        return BridgeHalted(
            f"{self._topic.name}: the brokers refuse the entry {position} of {origin} ({refused.bytes} bytes): "
            f"{refused.reason}. What follows it waits, and publishing goes on by itself once the entry is let in. "
            f"`replicator links resolve -f FILE --from {origin.removesuffix(BROKER_SUFFIX)} --to {self._cluster} "
            f"--topic {shlex.quote(self._topic.name)} --entry {position} --policy skip-and-record` goes on without it"
        )


class _Sending:
    """State of one producer: by origin, the entries that are at the brokers or were sent."""

    def __init__(
        self, channel: BrokerProducerChannel, flight: EntriesInFlight, schemas: BrokerSchemas, entries: EntryMap
    ) -> None:
        self.channel = channel
        self.flight = flight
        self.schemas = schemas
        self.limits = EntryLimits()
        self.number = channel.ready.last_sequence_id
        """Sequence id of the entry that was sent last."""
        self._entries = entries
        self._through: dict[str, Position] = {}
        """By origin, the last entry that was at the brokers or was sent."""
        self._sent: dict[str, PositionSet] = {}
        """By origin, entries below the last one that the brokers lacked, and that were sent."""
        self._copies: dict[str, NativeCopies] = {}

    def copies(self, origin: str, topic: Topic, native: NativeReplication | None) -> NativeCopies | None:
        """Return the copies of messages of ``origin``; None if native replication has brought none and brings none."""
        if native is None:
            return None
        if origin not in self._entries.native_through and not native.brings(topic.name, origin):
            return None
        if origin not in self._copies:
            self._copies[origin] = NativeCopies(
                topic,
                self._entries,
                origin,
                lambda name: native.origin_of(name) == origin,
                lambda: native.brings(topic.name, origin),
            )
        return self._copies[origin]

    def through(self, origin: str) -> Position:
        """Return the last position of ``origin`` that is at the brokers or was sent."""
        return self._through[origin]

    def is_past(self, origin: str, last: Position) -> bool:
        """Return whether no entry of ``origin`` up to ``last`` is left to be sent."""
        through = self._through.setdefault(origin, self._entries.seen_through(origin))
        return last <= through and not self._entries.missing(origin)

    def is_missing(self, origin: str, at: Position) -> bool:
        """Return whether the brokers have later entries of ``origin`` but lack this one, and it was not sent yet."""
        return at in self._entries.missing(origin) and at not in self._sent.get(origin, ())

    def is_sent(self, origin: str, at: Position) -> bool:
        return at <= self._through[origin] or at in self._entries.unwanted(origin)

    def is_first(self, origin: str) -> bool:
        """Return whether no entry of ``origin`` is at the brokers or was sent."""
        return self._through[origin] == BEFORE_ALL

    def note(self, origin: str, at: Position) -> None:
        """Record that the entry at a position of ``origin`` was sent."""
        if at <= self._through[origin]:
            self._sent.setdefault(origin, PositionSet()).add(at)
        else:
            self._through[origin] = at
