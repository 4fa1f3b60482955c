"""Recognition of messages that both a link and the brokers' own geo-replication bring ("native replication").

Invariants (DESIGN §3):
* 2: A message whose copy is not found at the brokers is published. It may be there twice, but it is never lost.
* 3: A copy counts only if the brokers have all earlier messages of its origin at earlier positions.
* 11: The number of copies that are known at one time is bounded.

1. The bridge reads each copy from the brokers into the engine's log, as a message of these brokers.
   :attr:`EntryMap.native_through` has, by origin, the last position at the brokers of a copy that was read. Before a
   message of the origin is published, the log is searched for the message's copy. The search needs no stored state, so
   a restarted worker continues it.
2. A copy has the same producer, sequence id, publish time, chunk and payload as the message (:class:`MessageKey`).
3. Native replication and links both keep the order of the source. So the copies up to the last recognised one are
   forgotten, and at most :data:`COPIES_MAX` later copies are known.
4. Native replication may be slower than the link. While the brokers replicate the namespace, publishing waits up to
   :data:`WAIT_SECONDS` for the copy of a message. After a wait in vain, publishing does not wait again before another
   copy has come and :data:`AGAIN_SECONDS` have passed. Publishing does not wait for the copy of a message that is more
   than :data:`DISORDER_MS` older than a copy that came: native replication has passed over that message.
5. The position of a recognised copy becomes the position of the link's message at the brokers
   (:meth:`EntryMap.stands_at`). So an acknowledgement of the copy or of the message counts for both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import crc32

from replicator.apache.entry_map import EntryMap
from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

COPIES_MAX: Final = 10_000
"""Most copies of one origin that are known at one time. Later copies are looked up after these are used."""
READ_BYTES: Final = 1024 * 1024
"""Bytes of the log that are searched at once."""
WAIT_SECONDS: Final = 10.0
"""Longest wait for a copy. The wait is shorter than the time after which a stalled topic is reported."""
AGAIN_SECONDS: Final = 60.0
"""Time after a wait in vain during which publishing does not wait for copies."""
DISORDER_MS: Final = 60_000
"""Difference of publish times within which messages of several producers may be in another order."""
POLL_SECONDS: Final = 0.05


class MessageKey(NamedTuple):
    """Values that are the same in a message and in its copy by native replication, and differ in other messages."""

    producer: str
    sequence_id: int
    publish_time_ms: int
    chunk: int
    checksum: int
    """CRC-32 of the payload, as its producer compressed and encrypted it."""


def key_of(entry: bytes | memoryview) -> tuple[MessageKey, str] | None:
    """Return the key of an entry, and the brokers' name of the cluster that the entry came from.

    Return None if the entry is unreadable. The name is empty if the entry was published at these brokers.
    """
    try:
        metadata, payload = decode_entry(entry, check=False)
    except (EntryCorrupt, MessageTooLarge):
        return None
    key = MessageKey(
        metadata.producer_name, metadata.sequence_id, metadata.publish_time, metadata.chunk_id, crc32(payload)
    )
    return key, metadata.replicated_from


class NativeCopies:
    """Copies of the messages of ``origin`` in one topic that native replication brought, and no link brought yet."""

    def __init__(
        self,
        topic: Topic,
        entries: EntryMap,
        origin: str,
        is_origin: Callable[[str], bool],
        expects: Callable[[], bool],
    ) -> None:
        """Prepare the search. ``is_origin`` returns whether the brokers give that name to the cluster of ``origin``.

        ``expects`` returns whether the brokers have said that they replicate this topic with that cluster.
        """
        self._topic = topic
        self._entries = entries
        self._origin = origin
        self._is_origin = is_origin
        self._expects = expects
        self._places: dict[MessageKey, deque[Position]] = {}
        self._order: deque[tuple[Position, MessageKey]] = deque()
        """Known copies, in the order of the brokers."""
        self._searched: Position | None = None
        """Position in the engine's log up to which the log was searched; None before the first search."""
        self._searched_to = BEFORE_ALL
        """Last position at the brokers whose entry was searched."""
        self._newest_ms = 0
        """Latest publish time of a copy that was found."""
        self._again = 0.0
        self._in_vain: Position | None = None
        """Position at the brokers of the last copy that was read when a wait ended in vain."""

    async def find(self, key: MessageKey, sent: Position, check: Callable[[], None]) -> Position | None:
        """Return the position at the brokers of a message's copy; None if the message must be published.

        ``sent`` is the origin position of the last message that was sent to the brokers. A copy counts only after the
        bridge knows that message's position at the brokers. ``check`` is called during the wait, and may raise.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_SECONDS
        while True:
            place = await self._place_of(key)
            if place is None and not self._may_come(key, loop.time()):
                return None
            if place is not None and self._entries.published_through(self._origin) >= sent:
                return place
            if loop.time() >= deadline:
                self._in_vain = self._entries.native_through.get(self._origin)
                self._again = loop.time() + AGAIN_SECONDS
                return None
            check()
            await asyncio.sleep(POLL_SECONDS)

    def _may_come(self, key: MessageKey, now: float) -> bool:
        """Return whether native replication may still bring the message with this key."""
        through = self._entries.native_through.get(self._origin)
        in_vain = self._in_vain == through and self._again > 0
        passed_over = key.publish_time_ms < self._newest_ms - DISORDER_MS
        return self._expects() and not in_vain and now >= self._again and not passed_over

    async def _place_of(self, key: MessageKey) -> Position | None:
        self._forget_through(self._entries.last_published_of(self._origin))
        while key not in self._places and len(self._order) < COPIES_MAX and await self._search():
            pass
        found = self._places.get(key)
        return found[0] if found else None

    def _forget_through(self, place: Position) -> None:
        while self._order and self._order[0][0] <= place:
            _, key = self._order.popleft()
            places = self._places[key]
            places.popleft()
            if not places:
                del self._places[key]

    async def _search(self) -> bool:
        """Search the next part of the log for copies. Return whether there was another part."""
        entries = self._entries
        if self._searched_to >= entries.native_through.get(self._origin, BEFORE_ALL):
            return False
        if self._searched is None:
            first = entries.own_after(entries.last_published_of(self._origin))
            if first is None:
                return False
            self._searched = Position(first.ledger, first.entry - 1)
        before = self._searched
        blocks, self._searched = self._topic.reading.blocks(
            before, bytes_max=READ_BYTES, origins=[entries.broker_origin]
        )
        after = entries.last_published_of(self._origin)
        for stored in blocks:
            header = stored.header
            if header.kind is not BlockKind.MESSAGES:
                continue
            view, first = BlockView(stored.block, header), header.origin_first
            for index in range(header.entries):
                position = Position(first.ledger, first.entry + index)
                place = entries.lives.place_of(position)
                if place <= self._searched_to or entries.lives.origin_of(place) != position:
                    continue  # the brokers have lost it
                self._searched_to = place
                if (found := key_of(view.entry(index))) is None or not self._is_origin(found[1]):
                    continue
                self._newest_ms = max(self._newest_ms, found[0].publish_time_ms)
                if place > after:
                    self._places.setdefault(found[0], deque()).append(place)
                    self._order.append((place, found[0]))
        await asyncio.sleep(0)
        return self._searched != before
