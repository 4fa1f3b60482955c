"""Entries that a producer has sent and the cluster has not confirmed, and the callers that wait for them.

This module owns the numbers of entries, the futures of messages until they are settled, the order of resending, and the
bound on unconfirmed messages (invariant 11). Messages in the open batch count from the moment they are taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from replicator.client.errors import PulsarException
from replicator.client.message import NO_BATCH, ChunkMessageId, MessageId, OutgoingMessage
from replicator.client.producing.framing import SealedEntry
from replicator.engine.types import DUPLICATE
from snapshots.position import Position

Confirmation = asyncio.Future[MessageId]


class PendingEntry:
    """Sealed entry on its way. Entries of one chunked message share the list of their confirmed positions."""

    __slots__ = ("chunk_positions", "deadline", "sealed", "sent_at")

    def __init__(
        self, sealed: SealedEntry[Confirmation], sent_at: float, deadline: float, chunk_positions: list[Position]
    ) -> None:
        self.sealed = sealed
        self.sent_at = sent_at
        self.deadline = deadline
        self.chunk_positions = chunk_positions


class PendingEntries:
    """Unconfirmed entries of one producer by their ids, which grow by one."""

    def __init__(self, partition: int, messages_max: int) -> None:
        self._partition = partition
        self._messages_max = messages_max
        self._entries: dict[int, PendingEntry] = {}
        self._next_entry_id = 1
        self._chunk_positions: list[Position] = []
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flush_waiters: list[tuple[int, asyncio.Future[PulsarException | None]]] = []
        self.messages = 0
        """Number of unconfirmed messages, including those that are not sealed yet."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def full(self) -> bool:
        """Whether the limit of unconfirmed messages is reached."""
        return self.messages >= self._messages_max

    def add(self, sealed: SealedEntry[Confirmation], now: float, deadline: float) -> int:
        """Keep an entry until it is settled; return its id."""
        entry_id = self._next_entry_id
        self._next_entry_id += 1
        if sealed.chunks > 1 and sealed.chunk_id == 0:
            self._chunk_positions = []
        self._entries[entry_id] = PendingEntry(sealed, now, deadline, self._chunk_positions)
        return entry_id

    def oldest(self) -> tuple[int, PendingEntry]:
        """Return the entry that was sent first; there must be one."""
        return next(iter(self._entries.items()))

    def resendable(self) -> Iterator[tuple[int, bytes]]:
        """Yield the entries to send again on a new connection, in order."""
        for entry_id, entry in self._entries.items():
            assert isinstance(entry.sealed.entry, bytes)
            yield entry_id, entry.sealed.entry

    def unconfirmed(self) -> list[OutgoingMessage]:
        """Return the messages of all entries, in order."""
        return [message for entry in self._entries.values() for message in entry.sealed.messages]

    def confirm(self, entry_id: int, position: Position) -> PendingEntry | None:
        """Settle the futures of a durable entry's messages. Return None if nothing waits for the entry any more.

        The caller calls :meth:`settle_waiters` after a group of confirmations.
        """
        entry = self._take(entry_id)
        if entry is None:
            return None
        sealed = entry.sealed
        if sealed.chunks > 1:
            self._confirm_chunk(entry, position)
        elif sealed.batched:
            size = len(sealed.confirmations)
            for index, confirmation in enumerate(sealed.confirmations):
                if not confirmation.done():
                    confirmation.set_result(MessageId.at(position, self._partition, index, size))
        else:
            (confirmation,) = sealed.confirmations
            if not confirmation.done():
                confirmation.set_result(MessageId.at(position, self._partition, NO_BATCH, 1))
        return entry

    def fail(self, entry_id: int, error: PulsarException) -> int:
        """Fail the messages of an entry that is not stored, and those of its other chunks. Return the number of
        messages."""
        entry = self._entries.get(entry_id)
        if entry is None:
            return 0
        failed = range(entry_id, entry_id + 1)
        if entry.sealed.chunks > 1:
            # Without this chunk the others are of no use; those that are stored stay incomplete until they expire.
            first = entry_id - entry.sealed.chunk_id
            failed = range(first, first + entry.sealed.chunks)
        messages = 0
        for one in failed:
            taken = self._take(one)
            if taken is not None:
                messages += fail_all(taken.sealed.confirmations, error)
        for last_entry_id, waiter in self._flush_waiters:
            if entry_id <= last_entry_id and not waiter.done():
                waiter.set_result(error)
        self.settle_waiters()
        return messages

    async def wait_until_settled(self) -> None:
        """Wait until everything sent so far is confirmed. Raises the first error."""
        if not self._entries:
            return
        waiter: asyncio.Future[PulsarException | None] = asyncio.get_running_loop().create_future()
        self._flush_waiters.append((self._next_entry_id - 1, waiter))
        error = await waiter
        if error is not None:
            raise error

    async def wait_for_room(self) -> None:
        """Wait until there may be room for one more message."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room_waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.settle_waiters()  # hand the wake-up on: the room is still there
            raise

    def stop(self, error: PulsarException) -> int:
        """Fail all messages and waiting callers, but keep the entries for :meth:`unconfirmed`. Return the number of
        messages."""
        messages = sum(fail_all(entry.sealed.confirmations, error) for entry in self._entries.values())
        for _, flush_waiter in self._flush_waiters:
            if not flush_waiter.done():
                flush_waiter.set_result(error)
        self._flush_waiters.clear()
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room_waiters.clear()
        return messages

    def forget(self) -> None:
        """Forget the entries that :meth:`stop` kept."""
        self._entries.clear()
        self.messages = 0

    def _take(self, entry_id: int) -> PendingEntry | None:
        entry = self._entries.pop(entry_id, None)
        if entry is not None:
            self.messages -= len(entry.sealed.messages)
        return entry

    def _confirm_chunk(self, entry: PendingEntry, position: Position) -> None:
        entry.chunk_positions.append(position)
        # The receipts of one channel come in the order of its entries, so the last chunk's comes last.
        for confirmation in entry.sealed.confirmations:
            if not confirmation.done():
                confirmation.set_result(_chunk_message_id(entry.chunk_positions, self._partition))

    def settle_waiters(self) -> None:
        """Wake the callers whose condition came true: a flush without older entries, as many senders as there is
        room."""
        if self._flush_waiters:
            oldest = next(iter(self._entries), self._next_entry_id)
            for last_entry_id, waiter in self._flush_waiters:
                if last_entry_id < oldest and not waiter.done():
                    waiter.set_result(None)
            self._flush_waiters = [pair for pair in self._flush_waiters if not pair[1].done()]
        room = self._messages_max - self.messages
        while self._room_waiters and room > 0:
            waiter_for_room = self._room_waiters.popleft()
            if not waiter_for_room.done():
                waiter_for_room.set_result(None)
                room -= 1


def fail_all(confirmations: Sequence[Confirmation], error: PulsarException) -> int:
    """Settle each future with ``error``; return how many were not settled before."""
    failed = 0
    for confirmation in confirmations:
        if not confirmation.done():
            failed += 1
            confirmation.set_exception(error)
            # A sender that does not look at each future learns of it from flush() or pending(); a log line for each of
            # thousands of futures would only bury that.
            confirmation.exception()
    return failed


def _chunk_message_id(positions: Sequence[Position], partition: int) -> MessageId:
    """Return the id of a chunked message. It is that of a duplicate if the topic already had a chunk: then not all
    positions are known."""
    if DUPLICATE in positions:
        return MessageId.at(DUPLICATE, partition, NO_BATCH, 1)
    return ChunkMessageId(positions, partition)
