"""Shares of the event loop's time: clients get it in slices, first those that ask for little. Sans-IO.

All doors of a worker share one :class:`FairScheduler`. Invariant 11: no client delays another by more than its share.

1. Work of a client ends at the end of its slice, :data:`SLICE_SECONDS`. The rest waits for another slice.
2. In one turn of the event loop, clients get :data:`TURN_SECONDS` together. If work waits, at least one slice of it
   runs in each turn.
3. A client is *behind* while work is left over at the end of its slice, or while it used more than
   :data:`FRESH_SECONDS` lately; recorded use halves every second. After each :data:`SLICE_SECONDS` that the others
   used, one client that is behind gets a slice; at once if no other waits. So a client with small, frequent requests
   need not wait for two hundred that flood, even if each of these used a little less time.
4. Of those behind, the client that used the least time lately comes first. Of the others, the one with the longest wait
   does, after :data:`USE_WEIGHT` seconds were subtracted for each second of its use.
5. A client whose work fits into the turn is served at once, without waiting: nearly always. While others wait, only a
   client that used less than :data:`LIGHT_SECONDS` lately is served at once.

The time that each client used in the last minute is kept for operators (:meth:`FairScheduler.busiest`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

SLICE_SECONDS: Final = 0.001
"""Length of a slice: about fifty small commands. A shorter one would cost busy clients more in pauses."""
TURN_SECONDS: Final = 0.004
"""Time that all clients get together in one turn: a few slices. Then the event loop looks at its sockets again."""
LIGHT_SECONDS: Final = 0.01
"""Use below which a client need not wait for others. One with a few hundred messages a second stays below; one that
floods is above after ten slices."""
FRESH_SECONDS: Final = 0.1
"""Use from which a client counts as behind. It has it with a twentieth to a tenth of the time."""
USE_WEIGHT: Final = 3
"""Seconds of waiting that count as much as a second of use. A client that is not behind used 0.1 s at most, so that it
comes before all that began to wait 0.3 s after it."""
NOTED_SECONDS: Final = 0.0002
"""Use in a turn from which its end is scheduled. A few small commands stay below, and save the cost of that."""
SAMPLED: Final = 8
"""One short piece of work in this many is measured: measuring each delivery of a message would cost too much."""
_BUCKET_SECONDS: Final = 10
_BUCKETS: Final = 6
"""Number of buckets for a client's use, of ten seconds each: together the last minute."""
_HALVINGS_MAX: Final = 60
"""Seconds of rest after which nothing is left of a client's use."""

Job = Callable[[], bool]
"""Work of one slice; returns whether more is left, which waits for another slice."""


class LoopShare:
    """Use of the event loop's time by one client."""

    __slots__ = ("_bucket", "_earlier", "address", "end", "in_bucket", "lately", "role", "since")

    def __init__(self, address: str, end: Callable[[], None] | None = None) -> None:
        """Make the client. ``end`` closes its connection; None for work that is not a client's."""
        self.address = address
        """``host:port`` of the client's connection."""
        self.role = ""
        """The client's role; empty while it is not known."""
        self.end = end
        self.lately = 0.0
        """Seconds used lately, as of the second :attr:`since`. Use counts half as much after each second."""
        self.since = 0
        self.in_bucket = 0.0
        """Seconds used in the present bucket of ten seconds."""
        self._bucket = 0
        """Number of the present bucket of ten seconds."""
        self._earlier: tuple[float, ...] = ()
        """Seconds used in each of the earlier buckets, the oldest first."""

    def begin_second(self, second: int) -> None:
        """Begin to count use in the second of number ``second``."""
        self.lately = self.used(second)
        self.since = second
        self._roll(second // _BUCKET_SECONDS)

    def used(self, second: int) -> float:
        """Return the seconds used until ``second``; each second's use counts half as much one second later."""
        return self.lately * 0.5 ** min(max(0, second - self.since), _HALVINGS_MAX)

    def rank(self) -> float:
        """Return a number that orders clients by :meth:`used`, and that does not change while time goes by."""
        return -math.inf if self.lately <= 0 else self.since + math.log2(self.lately)

    def last_minute(self, second: int) -> float:
        """Return the seconds used in the last minute, give or take ten seconds."""
        self._roll(second // _BUCKET_SECONDS)
        return self.in_bucket + sum(self._earlier)

    def _roll(self, bucket: int) -> None:
        for _ in range(min(bucket - self._bucket, _BUCKETS)):
            self._earlier = (*self._earlier[2 - _BUCKETS :], self.in_bucket)
            self.in_bucket = 0.0
        self._bucket = max(self._bucket, bucket)


class _Waiting:
    """Jobs of one client that wait for slices, in the order in which they came."""

    __slots__ = ("jobs", "left_over", "share")

    def __init__(self, share: LoopShare) -> None:
        self.share = share
        self.jobs: deque[tuple[Job, bool]] = deque()
        """Jobs, each with whether a part of its work was done in an earlier slice."""
        self.left_over = 0
        """Number of jobs that had a slice already."""

    def add(self, job: Job, *, left_over: bool) -> None:
        self.jobs.append((job, left_over))
        self.left_over += left_over

    def run(self) -> bool:
        """Run the first job for a slice. Return whether it is unfinished; if so, it stays the first."""
        job, left_over = self.jobs[0]
        more = False
        try:
            more = job()
        finally:
            self.jobs[0] = (job, True)
            self.left_over += more - left_over
            if not more:
                self.jobs.popleft()
        return more


class FairScheduler:
    """Scheduler that decides which client's work runs next, and when the event loop looks at its sockets again."""

    def __init__(self, clock: Callable[[], float], soon: Callable[[Callable[[], None]], object]) -> None:
        """Make the turns. ``clock`` returns seconds that never go backwards. ``soon`` schedules a call for the next
        turn of the loop.
        """
        self.clock = clock
        self._soon = soon
        self._spent = 0.0
        """Seconds used in this turn."""
        self._unmeasured = 0
        """Short pieces of work since one was measured."""
        self._ends = False
        """Whether the end of this turn is scheduled."""
        self._waiting: dict[LoopShare, _Waiting] = {}
        """All that wait, by client. Each is in one of two heaps, or its first job runs."""
        self._fresh: list[tuple[float, int, _Waiting]] = []
        """Heap of the clients that are not behind, each after the time that orders them, and a number."""
        self._behind: list[tuple[float, int, _Waiting]] = []
        """Heap of the clients that are behind, each after its rank, and a number for equal ranks."""
        self._fresh_spent = 0.0
        """Seconds of clients that are not behind since the last slice of one that is."""
        self._numbers = count()
        self._clients: dict[str, LoopShare] = {}
        """Open connections, by their addresses."""
        self.own = LoopShare("")
        """Work of the worker itself."""

    # Clients.

    def opened(self, share: LoopShare) -> None:
        """Add a client's connection, which :meth:`busiest` and :meth:`clients` list until it is :meth:`closed`."""
        self._clients[share.address] = share

    def closed(self, share: LoopShare) -> None:
        """Forget a client whose connection is over."""
        if self._clients.get(share.address) is share:
            del self._clients[share.address]

    def busiest(self, most: int) -> list[tuple[LoopShare, float]]:
        """Return at most ``most`` clients, those that used the most time in the last minute, each with its seconds."""
        second = int(self.clock())
        used = ((share, share.last_minute(second)) for share in self._clients.values())
        return heapq.nlargest(most, (each for each in used if each[1] > 0), key=lambda each: each[1])

    def client(self, address: str) -> LoopShare | None:
        """Return the client whose connection is from ``host:port``; None if there is none."""
        return self._clients.get(address)

    def clients(self, address: str) -> list[LoopShare]:
        """Return the clients at ``address``: the one of ``host:port``, or all of a host."""
        if (share := self._clients.get(address)) is not None:
            return [share]
        return [each for each in self._clients.values() if each.address.rpartition(":")[0] == address]

    # Time.

    def may_begin(self, share: LoopShare) -> bool:
        """Return whether the client's work may run at once, rather than :meth:`wait`."""
        if self._spent >= TURN_SECONDS:
            return False
        return not self._waiting or share.used(int(self.clock())) <= LIGHT_SECONDS

    def spend(self, share: LoopShare, seconds: float, now: float) -> None:
        """Count time that was used for a client until ``now``."""
        if (second := int(now)) != share.since:
            share.begin_second(second)
        share.lately += seconds
        share.in_bucket += seconds
        self._spent += seconds
        if not self._ends and self._spent >= NOTED_SECONDS:
            self._end_soon()

    def sample(self, share: LoopShare, began: float) -> None:
        """Count short work of a client that began at ``began``. Some of it is measured, and stands for the rest."""
        self._unmeasured += 1
        if self._unmeasured >= SAMPLED:
            self._unmeasured = 0
            now = self.clock()
            self.spend(share, SAMPLED * (now - began), now)

    def reserve(self) -> None:
        """Count a slice for work that was granted in this turn; its real use is counted by :meth:`spend` later."""
        self._spent += SLICE_SECONDS

    def wait(self, share: LoopShare, job: Job, *, left_over: bool = False) -> None:
        """Call ``job`` at the client's turn, and at each later one for as long as it returns True.

        Jobs of one client are called in the order in which they came. ``job`` counts what it uses by :meth:`spend`.
        ``left_over`` says that a part of the work was done in an earlier slice.
        """
        waiting = self._waiting.get(share) or _Waiting(share)
        waiting.add(job, left_over=left_over)
        if share not in self._waiting:
            self._waiting[share] = waiting
            self._enter(waiting)
        if not self._ends:
            self._end_soon()

    def _enter(self, waiting: _Waiting) -> None:
        """Add a client to the heap of those that are behind, if it is, or to that of the others."""
        now, share = self.clock(), waiting.share
        used = share.used(int(now))
        if used > FRESH_SECONDS or waiting.left_over:
            heapq.heappush(self._behind, (share.rank(), next(self._numbers), waiting))
        else:
            heapq.heappush(self._fresh, (now + USE_WEIGHT * used, next(self._numbers), waiting))

    def _end_soon(self) -> None:
        self._ends = True
        self._soon(self._end)

    def _end(self) -> None:
        """End this turn: give what is left of its time to those that wait, at least one slice."""
        first = True
        try:
            while self._waiting and (first or self._spent < TURN_SECONDS):
                of_behind = bool(self._behind) and (not self._fresh or self._fresh_spent >= SLICE_SECONDS)
                waiting = self._take_behind() if of_behind else self._take_fresh()
                if waiting is None:
                    continue
                before = self._spent
                more = self._run(waiting)
                if more or self._spent > before:  # else the job had nothing to do
                    first = False
                    self._fresh_spent = 0.0 if of_behind else self._fresh_spent + self._spent - before
        finally:  # also if a job fails: the others go on
            self._spent = 0.0
            self._ends = False
            if self._waiting:
                self._end_soon()

    def _take_fresh(self) -> _Waiting | None:
        """Take the first client that is not behind from its heap, and return it. If it fell behind since it entered the
        heap, move it to the other one, and return None."""
        waiting = heapq.heappop(self._fresh)[2]
        if not waiting.left_over:
            return waiting
        self._enter(waiting)
        return None

    def _take_behind(self) -> _Waiting | None:
        """Take the first client that is behind from its heap, and return it. If it used time since it entered the heap,
        give it its new place, and return None."""
        rank, number, waiting = self._behind[0]
        if (now_rank := waiting.share.rank()) > rank:
            heapq.heapreplace(self._behind, (now_rank, number, waiting))
            return None
        heapq.heappop(self._behind)
        return waiting

    def _run(self, waiting: _Waiting) -> bool:
        """Run the first job of a client. If a job remains, let the client wait again. Return whether the job that ran
        is unfinished."""
        try:
            return waiting.run()
        finally:
            if waiting.jobs:
                self._enter(waiting)
            else:
                del self._waiting[waiting.share]
