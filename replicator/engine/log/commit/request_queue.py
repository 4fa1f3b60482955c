"""Queue of requests between the event loop and the writer's thread.

Invariants (DESIGN §3): 3, requests are taken in the order in which they were put, also when some of them had to wait
for room; 11, the queue is bounded in bytes.

1. Requests of one turn of the event loop are handed to the thread together, at the end of the turn. So the thread wakes
   once for them, and they share a commit. A turn that brings much hands over a part at once.
2. While the queue is full, callers wait, and whoever comes later waits behind them.
3. The thread takes a group: what was handed over, up to a limit. If all of it writes rows only, the thread waits a
   moment: these rows often cause appends, which follow at once.
4. A group of many small requests waits a moment, too, while that pays (:class:`CommitDelay`). Each commit has a price,
   whatever it holds, so clients of many topics are served faster by fewer commits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from replicator.engine.log.requests import CopyRequest, PublishRequest, PutManyRequest, Request

GROUP_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of one group. It bounds the memory and the time of one transaction."""
GROUP_PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of producers' entries in one group. A producer keeps so much unconfirmed under way, and no more. If all of it
were one group, the producer would wait while the group is written, and the writer while the next entries come. Links
keep more under way."""
GROUP_REQUESTS_MAX: Final = 4096
GROUP_BLOCKS_MAX: Final = 1024
"""Blocks of links in one group, give or take those of one request. The event loop looks at each after the commit, at
all of them in ten milliseconds."""
QUEUE_BYTES_MAX: Final = 128 * 1024 * 1024
"""While the queue has more bytes than this, publishers wait."""
TURN_BYTES_MAX: Final = 256 * 1024
"""Bytes of one turn of the event loop that are handed over at once: the thread can write them while the turn goes
on."""
ROWS_WAIT_SECONDS: Final = 0.0005
"""Longest wait for more rows. The marker that announces an acknowledgement follows the save of its cursor sooner."""
MORE_WAIT_SECONDS: Final = 0.0005
"""Time that a group waits for more requests: about as long as a commit takes."""
WAITING_REQUESTS_MIN: Final = 4
"""Smaller groups do not wait: their clients would wait longer than they do for a commit."""
WAITING_BYTES_MAX: Final = 256 * 1024
"""Larger groups do not wait: the price of a commit is small beside that of their bytes."""
SLOW_COMMIT_SECONDS: Final = 0.002
"""After a commit that took longer, no group waits: more than a wait would bring has come meanwhile."""
PASSES_MAX: Final = 64
"""Most groups that pass without a wait before a wait is tried again. At this limit, waits are about one in a hundred
groups."""


class CommitDelay:
    """Decision whether a group waits a moment for more requests, by what such waits brought before. Pure.

    1. Only a group of many small requests waits: then many clients are at work. A message that is sent alone never
       waits. Nor does a group after a slow commit.
    2. A wait paid if the group grew by half. If it did not, the next groups do not wait: one after the first such
       wait, and twice as many after each further one, up to a limit.
    """

    __slots__ = ("_passes", "_pause")

    def __init__(self) -> None:
        self._passes = 0
        """Number of groups that are still to pass without a wait."""
        self._pause = 1

    def waits(self, requests: int, size_bytes: int, commit_seconds: float) -> bool:
        """Return whether a group of so many requests and bytes is to wait. ``commit_seconds`` is the time that the
        commit before took."""
        if requests < WAITING_REQUESTS_MIN or size_bytes > WAITING_BYTES_MAX or commit_seconds > SLOW_COMMIT_SECONDS:
            return False
        if self._passes:
            self._passes -= 1
            return False
        return True

    def waited(self, before: int, after: int) -> None:
        """Note by how many requests a group grew while it waited."""
        if 2 * after >= 3 * before:
            self._pause = 1
        else:
            self._passes = self._pause
            self._pause = min(2 * self._pause, PASSES_MAX)


_T = TypeVar("_T")


class ThreadQueue(Generic[_T]):
    """Queue from one thread to one other thread.

    Not :class:`queue.SimpleQueue`: before Python 3.13 its ``get`` with a short timeout can wait for ever, if the
    thread is interrupted while it computes the time left.
    """

    __slots__ = ("_items", "_quiet")

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._quiet = threading.Lock()
        """Held while nothing was put since the taking thread last waited. :meth:`put` releases it, which ends a
        wait."""
        self._quiet.acquire()

    def put(self, item: _T) -> None:
        """Append an item. Only one thread may call this."""
        self._items.append(item)
        if self._quiet.locked():
            self._quiet.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait until there is an item, at most ``seconds``; None waits without a limit. Return whether there is one.

        Only the thread that takes the items may call this.
        """
        if not self._items and seconds != 0:
            until = None if seconds is None else time.monotonic() + seconds
            left = -1.0 if seconds is None else seconds
            while self._quiet.acquire(timeout=left) and not self._items:  # put before an earlier wait
                if until is not None:
                    left = max(0.0, until - time.monotonic())
        return bool(self._items)

    def take(self) -> _T:
        """Return the oldest item. Raise :class:`IndexError` if there is none."""
        return self._items.popleft()


class RequestQueue:
    """Queue that takes requests on the event loop and gives them in groups to the writer's thread.

    ``check`` raises an error if no more requests are accepted. ``sleep`` stops the writer's thread for some seconds.
    """

    def __init__(self, check: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
        self._check = check
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._turn: list[Request] = []
        """Requests of this turn of the event loop that are not handed over yet."""
        self._turn_bytes = 0
        self._handed_over: ThreadQueue[list[Request] | None] = ThreadQueue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._entrance = asyncio.Lock()
        self._entering = 0
        """Number of callers that wait for room. Later callers must wait behind them."""
        self._patience = CommitDelay()
        self._arrived: deque[Request] = deque()
        """Requests that the thread has fetched and not taken into a group yet."""
        self._ended = False
        self._handed_over_count = 0
        self._taken_count = 0
        self._taken_at = 0.0
        """Time at which the thread took the last group. Until it takes the next one, it commits."""

    def __len__(self) -> int:
        """Return the number of requests that the event loop handed over and that are in no group yet."""
        return self._handed_over_count - self._taken_count

    # On the event loop.

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all requests that were put and are not answered yet."""
        return self._bytes

    @property
    def full(self) -> bool:
        """Return whether a new request must wait for room."""
        return self._entering > 0 or self._bytes > QUEUE_BYTES_MAX

    def put(self, request: Request) -> None:
        """Queue a request now, even if the queue is full. Raise the error of ``check`` if no request is accepted."""
        self._check()
        request.submitted = time.perf_counter()
        self._bytes += request.bytes
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        self._turn.append(request)
        self._turn_bytes += request.bytes
        if self._turn_bytes >= TURN_BYTES_MAX:
            self._hand_over()

    async def enter(self, request: Request) -> None:
        """Wait for room, then queue a request.

        Requests enter in the order of the calls, so that no publish overtakes a waiting one.
        """
        self._entering += 1
        try:
            async with self._entrance:
                while self._bytes > QUEUE_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
                self.put(request)
        finally:
            self._entering -= 1

    def done(self, size_bytes: int) -> None:
        """Free the room of answered requests, ``size_bytes`` in all."""
        self._bytes -= size_bytes
        if self._bytes <= QUEUE_BYTES_MAX:
            self._room.set()

    def close(self) -> None:
        """Make the writer's thread end after all requests that were put before."""
        self._hand_over()
        self._handed_over.put(None)

    def _hand_over(self) -> None:
        if self._turn:
            turn, self._turn, self._turn_bytes = self._turn, [], 0
            self._handed_over_count += len(turn)
            self._handed_over.put(turn)

    # On the writer's thread.

    def take_group(self) -> tuple[list[Request], bool]:
        """Wait for requests, and return the next group in order, and whether it is the last.

        The last group may be empty.
        """
        group: list[Request] = []
        size = published = copied = 0
        rows_only = True
        rows_wait_until: float | None = None
        waited_with: int | None = None
        commit_seconds = time.monotonic() - self._taken_at
        full = False
        while not full:
            while self._arrived and not full:
                request = self._arrived.popleft()
                group.append(request)
                size += request.bytes
                if isinstance(request, PublishRequest):
                    published += request.bytes
                    rows_only = False
                elif isinstance(request, CopyRequest):
                    copied += len(request.blocks)
                    rows_only = False
                elif rows_only:
                    rows_only = isinstance(request, PutManyRequest)
                full = (
                    size >= GROUP_BYTES_MAX
                    or published >= GROUP_PUBLISH_BYTES_MAX
                    or copied >= GROUP_BLOCKS_MAX
                    or len(group) >= GROUP_REQUESTS_MAX
                )
            if full or self._ended:
                break
            wait_seconds: float | None = None
            if group and rows_only:
                now = time.monotonic()
                rows_wait_until = rows_wait_until or now + ROWS_WAIT_SECONDS
                wait_seconds = max(0.0, rows_wait_until - now)
            elif group:
                wait_seconds = 0
            if self._handed_over.wait(wait_seconds):
                self._fetch()
            elif rows_only or waited_with is not None or not self._patience.waits(len(group), size, commit_seconds):
                break
            else:
                waited_with = len(group)
                self._sleep(MORE_WAIT_SECONDS)
        if waited_with is not None:
            self._patience.waited(waited_with, len(group))
        self._taken_count += len(group)
        self._taken_at = time.monotonic()
        return group, self._ended and not full

    def _fetch(self) -> None:
        """Fetch the requests that were handed over next."""
        handed_over = self._handed_over.take()
        if handed_over is None:
            self._ended = True
        else:
            self._arrived.extend(handed_over)
