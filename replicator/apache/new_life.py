"""Beginning a new life of a topic whose brokers were put back to an older copy of their data, or set up anew.

Invariants (DESIGN §3): 2, a new message is never taken for the one that had its position before; 1, what the bridge
published there and the brokers lost is published again.

1. The message that was read last is gone, or differs (:class:`replicator.apache.errors.BrokersPutBack`). By halving,
   the worker finds the last entry that is the same as its own copy. Before the end of a restored copy all entries are
   the same, and none is behind it. The first and the last entry of each ledger are known also when the log has trimmed
   the worker's copies. Brokers never add to a ledger that was closed. So a ledger whose first entry is the same is the
   same up to its end.
2. The new life begins behind that entry (:mod:`replicator.apache.broker_lives`). It is stored together with what it
   changes: runs of entries that the brokers have lost are forgotten, so that they are published again.
3. The origin's mark in the log is raised to the new life, so that its blocks are taken. The earlier life stays in the
   log as closed history, and links take the new life up by themselves (docs/adr/0080).
4. If no entry is the same, as at brokers that were set up anew, the life begins before the first entry.
5. If the worker's store is new, too, the other clusters say which positions are taken. The new life lies above them. So
   their links stop with a gap that ``keep-both`` ends, and nothing that they have is deleted. If an earlier store had
   begun a life, and the brokers have what the other clusters have of it, that life goes on from the first entry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import NamedTuple, Protocol, TypeVar

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_lives import BrokerLife
from replicator.apache.copies_elsewhere import EntryFingerprint
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeHalted, BrokersPutBack, entries_hidden
from replicator.apache.published_extents import FIRST_READ, lives_row, read_row, removal_of, write_of
from replicator.apache.shown import TopicInternals
from replicator.engine.errors import EngineError
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

log = structlog.get_logger(__name__)
_ItemT = TypeVar("_ItemT")


class ReadState(NamedTuple):
    """The state in which reading goes on."""

    incarnation: int
    """The incarnation of the topic at the brokers."""
    reached: Position
    """The position of the brokers up to which all is durable here."""
    is_first: bool = False
    """Whether nothing of the topic was read, and the brokers do not have the subscription by which to read it."""


class Cursor(Protocol):
    """The cursor by which the bridge reads (:class:`replicator.apache.reading_cursor.ReadingCursor`)."""

    async def standing(self) -> ReadState: ...


class States(Protocol):
    """The part of :class:`replicator.apache.state.SubscriptionStates` that is needed when the brokers were put back."""

    lock: asyncio.Lock

    def put_back(self, after: Position, there: Set[str]) -> list[RowWrite]: ...


def copy_of(topic: Topic, entries: EntryMap, place: Position) -> MessageMetadata | None:
    """Return the metadata of the worker's own copy of the entry at ``place``, a position of the brokers.

    Return None if it was trimmed, or if nobody can read it.
    """
    local = entries.to_local(PositionSet([place])).first()
    if local is None:
        return None
    try:
        found = topic.reading.entries(Position(local.ledger, local.entry - 1), local, 1, 1)
        return decode_entry(found[0].entry, check=False)[0] if found else None
    except EngineError:
        return None


def expected(topic: Topic, entries: EntryMap, place: Position) -> EntryFingerprint | None:
    """Return what the entry at ``place`` was when it was read; None if that is not known any more."""
    for known in (entries.read, entries.first_read):
        if (read := known.get(place.ledger)) is not None and read.entry == place.entry:
            return EntryFingerprint(read.publish_time_ms, read.sequence_id)
    copy = copy_of(topic, entries, place)
    return None if copy is None else EntryFingerprint(copy.publish_time, copy.sequence_id)


async def last_common(admin: BrokerAdmin, topic: Topic, entries: EntryMap, internals: TopicInternals) -> Position:
    """Return the last place whose entry is the same at the brokers and in the worker's log; BEFORE_ALL if none is.

    Entries that the log has trimmed are known by the first and the last one of each ledger. Raises
    :class:`AdminFailed`, and :class:`BridgeHalted` if the brokers show the worker no entries.
    """
    known = entries.beyond(BEFORE_ALL).copy()
    for noted in (entries.read, entries.first_read):
        known.update(PositionSet(Position(ledger, read.entry) for ledger, read in noted.items()))

    async def same(place: Position) -> bool:
        if place.entry > internals.last_entries.get(place.ledger, -1) or place.ledger not in internals.ledgers:
            return False
        was = expected(topic, entries, place)
        if was is None:
            return False
        if (found := await admin.seen_entry(topic.name, place)) is None:
            raise BridgeHalted(entries_hidden(topic.name, "; reading goes on by itself then"))
        return was.is_same(found)

    ledgers = [(ledger, each) for ledger, each in known.by_ledger() if ledger in internals.ledgers]
    whole = await _count_same(ledgers, lambda each: same(Position(each[0], each[1].max())))
    begin = Position(ledgers[whole - 1][0], ledgers[whole - 1][1].max()) if whole else BEFORE_ALL
    if whole and begin.ledger == (before := entries.lives.begin).ledger:  # a life began in it, and it is the same
        begin = max(begin, min(before, Position(before.ledger, internals.last_entries[before.ledger])))
    if whole == len(ledgers):
        return begin
    ledger, of_ledger = ledgers[whole]
    found = await _count_same(range(len(of_ledger)), lambda number: same(Position(ledger, of_ledger[number])))
    if not found:
        return begin
    end = internals.last_entries[ledger]
    return Position(ledger, end if end < of_ledger[found] else of_ledger[found - 1])  # all up to the latter was read


async def _count_same(items: Sequence[_ItemT], same: Callable[[_ItemT], Awaitable[bool]]) -> int:
    """Return how many of ``items``, from the first on, are ``same``; no item behind the first other one is."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if await same(items[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def begin_life(
    topic: Topic, entries: EntryMap, after: Position, now_ms: int, put_back: BrokersPutBack | None = None
) -> list[RowWrite]:
    """Begin the life behind ``after``, a place, in ``entries``. Return the rows to be stored for it.

    ``put_back`` says what the brokers and other clusters have of earlier lives, if the log has nothing of the topic.
    """
    read, first = entries.read, entries.first_read
    origin = entries.broker_origin
    told = put_back or BrokersPutBack("")
    known = topic.origins.high_water(origin) or told.elsewhere
    lost = BEFORE_ALL if known is None else known.position
    former = 0 if known is None else known.incarnation
    above = max([now_ms, former + 1, lost.ledger + 1, *(i + 1 for i in entries.lives.incarnations)])
    life = BrokerLife(after, told.goes_on or above, lost)
    lives = entries.lives.began(life, former if told.subscription is None else told.subscription)
    gone, cut = entries.begin_life(lives)
    return [
        *(removal_of(topic.topic_id, identity, run) for identity, run in gone),
        *(write_of(topic.topic_id, identity, run) for identity, run in cut),
        *(read_row(topic.topic_id, ledger, None) for ledger in read.keys() - entries.read.keys()),
        *(read_row(topic.topic_id, ledger, None, FIRST_READ) for ledger in first.keys() - entries.first_read.keys()),
        lives_row(topic.topic_id, lives),
    ]


class NewLife:
    """Begins new lives of one topic's data at the brokers, and stores them."""

    def __init__(self, admin: BrokerAdmin, topic: Topic, entries: EntryMap, states: States) -> None:
        self._admin = admin
        self._topic = topic
        self._entries = entries
        self._states = states
        self._unstored: list[RowWrite] = []

    async def standing(self, cursor: Cursor) -> ReadState:
        """Return where reading goes on after the brokers were put back. Call it while nothing is read.

        The brokers are asked again first, so that one odd answer begins no life. Raises :class:`BridgeError`, and the
        store's errors.
        """
        try:
            return await cursor.standing()
        except BrokersPutBack as error:
            put_back = error
        internals = await self._admin.internals(self._topic.name)
        async with self._states.lock:
            after = await last_common(self._admin, self._topic, self._entries, internals)
            self._unstored += begin_life(self._topic, self._entries, after, time.time_ns() // 1_000_000, put_back)
            self._unstored += self._states.put_back(after, internals.cursors.keys())
        what = "a life of the brokers' data goes on" if put_back.goes_on else "a new life of the brokers' data begins"
        log.warning(what, topic=self._topic.name, after=str(after), reason=str(put_back))
        await self.store()
        return await cursor.standing()

    async def forget_subscriptions(self) -> None:
        """Forget the states of subscriptions that were seen at the brokers, because the topic there was made anew.

        The new topic lacks subscriptions of the former one. They do not count as deleted, and are made again. Raises
        the store's errors.
        """
        async with self._states.lock:
            self._unstored += self._states.put_back(BEFORE_ALL, frozenset())
        await self.store()

    async def store(self) -> None:
        """Store what a new life changes, and have the log take blocks of it. Nothing may be read before.

        Do nothing if this was done.
        """
        while self._unstored:
            writes = list(self._unstored)
            await self._topic.writer.put_many(writes)
            del self._unstored[: len(writes)]
        known = self._topic.origins.high_water(self._entries.broker_origin)
        incarnations = self._entries.lives.incarnations
        if known is not None and incarnations and known.incarnation < incarnations[-1]:
            life = HighWater(incarnations[-1], BEFORE_ALL)
            await self._topic.writer.keep_both(self._topic.tail, {self._entries.broker_origin: life})
