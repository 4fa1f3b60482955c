"""Receiver queue: prefetched messages, and the permits that ask for more. Sans-IO.

Invariant 11: a cluster sends only what it has permits for, so the queue is bounded by ``size`` messages and the rest of
one batch.

Algorithm:
1. A (re)connected consumer grants ``size`` permits.
2. Each delivered entry costs as many permits as its batch has messages, acknowledged ones included. They are owed to
   the cluster again when the application has taken the messages, or when they were dropped without being shown.
3. Owed permits are granted when they reach half of ``size``: a request for each message would double the traffic,
   and waiting for an empty queue would stall the consumer for a round trip.
4. With ``size`` 0 nothing is prefetched: a permit is granted for each receiver that waits and has none yet. A
   receiver that gives up leaves its permit behind; the message that it brings is for the next one.

Source: the permit flow of Pulsar's binary protocol, as its public documentation describes it; seed 002 on how a queue
that is too large affects other consumers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from snapshots.position import Position

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    messages: Iterator[T | None]
    permits: int
    position: Position | None


class ReceiverQueue(Generic[T]):
    """Entries that wait for the application, opened into messages as they are taken."""

    __slots__ = (
        "_deferred",
        "_entries",
        "_granted",
        "_head",
        "_head_permits",
        "_head_position",
        "_owed",
        "_queued",
        "_returned",
        "_size",
        "_threshold",
    )

    def __init__(self, size: int) -> None:
        assert size >= 0
        self._size = size
        self._threshold = max(1, size // 2)
        self._entries: deque[_Entry[T]] = deque()
        self._head: Iterator[T | None] | None = None
        self._head_permits = 0
        self._head_position: Position | None = None
        self._returned: deque[T] = deque()
        """Messages that were taken and put back; their permits are owed or granted already."""
        self._deferred: Exception | None = None
        self._queued = 0
        self._owed = 0
        self._granted = 0
        """Permits that the cluster has not used yet, for size 0; below 0 after a batch larger than its permits."""

    def __len__(self) -> int:
        """Return the number of messages that the application can take, at most: some may turn out to be
        acknowledged."""
        return self._queued + len(self._returned)

    def restart(self) -> int:
        """Forget everything, for a new connection; return the permits to grant it."""
        self._forget()
        self._owed = 0
        self._granted = 0
        return self._size

    def put(self, messages: Iterator[T | None], permits: int, position: Position | None = None) -> None:
        """Queue one entry that cost ``permits``. Its iterator gives None while it waits for something."""
        assert permits >= 0
        self._entries.append(_Entry(messages, permits, position))
        self._queued += permits
        self._granted -= permits

    def drop(self, permits: int) -> None:
        """Account for an entry that cost ``permits`` and is not going to be shown."""
        self._owed += permits
        self._granted -= permits

    def drop_all(self) -> None:
        """Drop everything queued, before the cluster delivers it again on the same connection."""
        self._owed += self._queued
        self._forget()

    def drop_entries(self, positions: Collection[Position]) -> None:
        """Drop the queued messages of these entries, also the rest of one that was begun."""
        if self._head is not None and self._head_position in positions:
            self._finish_head()
        if not any(entry.position in positions for entry in self._entries):
            return
        kept: deque[_Entry[T]] = deque()
        for entry in self._entries:
            if entry.position in positions:
                self._queued -= entry.permits
                self._owed += entry.permits
            else:
                kept.append(entry)
        self._entries = kept

    def put_back(self, messages: Sequence[T]) -> None:
        """Take back messages that were popped and not shown; they come first again, in this order."""
        self._returned.extendleft(reversed(messages))

    def pop(self) -> T | None:
        """Return the next message; None if there is none, or if the next entry waits for something.

        An error of an entry's iterator comes through once. The rest of that entry is then gone and its permits are owed
        again, and the next call continues with the entry after it.
        """
        if self._returned:
            return self._returned.popleft()
        if self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error
        while True:
            if self._head is None:
                if not self._entries:
                    return None
                self._head, self._head_permits, self._head_position = self._entries.popleft()
            try:
                message = next(self._head)
            except StopIteration:
                self._finish_head()
                continue
            except Exception:
                self._finish_head()
                raise
            if message is None:
                return None
            if self._head_permits > 0:
                self._head_permits -= 1
                self._queued -= 1
                self._owed += 1
            return message

    def pop_many(self, count_max: int) -> list[T]:
        """Return up to ``count_max`` messages. An unreadable entry ends the list; the next call raises its error."""
        taken: list[T] = []
        while len(taken) < count_max:
            try:
                message = self.pop()
            except Exception as error:
                if not taken:
                    raise
                self._deferred = error
                break
            if message is None:
                break
            taken.append(message)
        return taken

    def take_permits(self, waiting: int = 0) -> int:
        """Return the permits to grant now: 0 until half of the queue was consumed.

        With size 0, return enough that each of the ``waiting`` receivers has a permit.
        """
        if self._size == 0:
            self._owed = 0
            wanted = max(0, waiting - len(self) - self._granted)
            self._granted += wanted
            return wanted
        if self._owed < self._threshold:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    def _finish_head(self) -> None:
        self._head = None
        self._head_position = None
        self._queued -= self._head_permits
        self._owed += self._head_permits
        self._head_permits = 0

    def _forget(self) -> None:
        self._entries.clear()
        self._returned.clear()
        self._head = None
        self._head_permits = 0
        self._head_position = None
        self._deferred = None
        self._queued = 0
