"""Coroutines that take their part in :mod:`replicator.running.turns`: their time is counted, and long ones pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from replicator.running.turns import SLICE_SECONDS, FairScheduler, LoopShare

_T = TypeVar("_T")

CLIENT: Final[ContextVar[LoopShare | None]] = ContextVar("CLIENT", default=None)
"""Share of the client whose request is served; None in work of the worker itself."""


def turns_of_this_loop() -> FairScheduler:
    """Return a :class:`FairScheduler` for the event loop on which it is used."""
    return FairScheduler(time.perf_counter, lambda call: asyncio.get_running_loop().call_soon(call))


class Pace:
    """Pauses of one long piece of work: after each slice it waits until it is its client's turn again."""

    __slots__ = ("_share", "_turns", "_until")
    slice_seconds: ClassVar = SLICE_SECONDS
    """For how long the work may hold the event loop before it pauses."""

    def __init__(self, turns: FairScheduler, share: LoopShare | None = None) -> None:
        """Begin a slice. The work counts for ``share``, by default that of the client whose request is served."""
        self._turns = turns
        self._share = share or CLIENT.get() or turns.own
        self._begin()

    @property
    def due(self) -> bool:
        """Return whether the slice is used up, so that :meth:`pause` must be awaited."""
        return self._turns.clock() >= self._until

    async def pause(self) -> None:
        """Wait for the next slice of the client, or of the worker itself, whose use is counted here."""
        if self._share is self._turns.own:  # a client's time is counted by the steps of its request
            now = self._turns.clock()
            self._turns.spend(self._share, max(0.0, now - self._until + self.slice_seconds), now)
        await next_slice(self._turns, self._share, left_over=True)
        self._begin()

    async def finish(self, steps: Generator[None, None, _T]) -> _T:
        """Run the generator ``steps`` to its end, and return its result. Pause between two steps when it is time."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: _T = end.value
                return result
            await self.step()

    async def step(self) -> None:
        """Wait for the next slice if this one is used up."""
        if self._turns.clock() >= self._until:
            await self.pause()

    def _begin(self) -> None:
        self._until = self._turns.clock() + self.slice_seconds


LINK_SLICE_SECONDS: Final = 0.002
"""Slice of the work for links. Beside busy clients, it is a third of a turn of the event loop."""

_turnstiles: Final[WeakKeyDictionary[FairScheduler, asyncio.Lock]] = WeakKeyDictionary()
"""For each event loop, a lock that each link's work holds for a turn before its next slice."""


class LinkPace(Pace):
    """Pace of work for links. After a slice, the work waits for the next turn of the event loop, and does not queue
    with the clients: behind a thousand busy clients it would wait a second for each slice, and links would fall behind
    without bound (invariant 8). Of all links that wait in a worker, one goes on in a turn.
    """

    __slots__ = ()
    slice_seconds: ClassVar = LINK_SLICE_SECONDS

    async def pause(self) -> None:
        if (turnstile := _turnstiles.get(self._turns)) is None:
            turnstile = _turnstiles[self._turns] = asyncio.Lock()
        async with turnstile:
            await asyncio.sleep(0)
        self._begin()


def metered(work: Coroutine[Any, Any, _T], turns: FairScheduler) -> MeteredCoroutine[_T]:
    """Return ``work``, counted as use by the client whose request is served."""
    return MeteredCoroutine(work, turns, CLIENT.get() or turns.own)


async def next_slice(turns: FairScheduler, share: LoopShare, *, left_over: bool = False) -> None:
    """Wait until the client that owns ``share`` has its turn. ``left_over``: its work had a slice already."""
    granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grant() -> bool:
        if not granted.done():  # else nobody waits any more
            turns.reserve()
            granted.set_result(None)
        return False

    turns.wait(share, grant, left_over=left_over)
    await granted


class MeteredCoroutine(Coroutine[Any, Any, _T]):
    """Coroutine that runs another one, and counts its steps as a client's use of the event loop."""

    __slots__ = ("_share", "_turns", "_work")

    def __init__(self, work: Coroutine[Any, Any, _T], turns: FairScheduler, share: LoopShare) -> None:
        self._work = work
        self._turns = turns
        self._share = share

    def send(self, value: Any, /) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        step: Callable[..., Any] = self._work.send
        value: Any = None
        while True:
            try:
                waits_for = self._step(step, value)
            except StopIteration as end:
                result: _T = end.value
                return result
            try:
                value = yield waits_for
                step = self._work.send
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is handed on
                step, value = self._work.throw, error

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        clock = self._turns.clock
        began = clock()
        try:
            return step(*values)
        finally:
            now = clock()
            self._turns.spend(self._share, now - began, now)
