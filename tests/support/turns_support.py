"""Counts of turns of the event loop, and of the work in each turn."""

from __future__ import annotations

import asyncio
import time

STEP_SECONDS = 0.0001


"""Time that one reading of the clock takes. A slice has ten of them, so at most ten commands."""


IN_A_TURN_MAX = 100


"""Commands: a few slices of ten, and what a client that used little does at once."""


class Ticking:
    """A clock that goes on when it is read."""

    def __init__(self, step_seconds: float) -> None:
        self.now = time.perf_counter()
        self._step_seconds = step_seconds

    def __call__(self) -> float:
        self.now += self._step_seconds
        return self.now


class Counted:
    """Counts how much of something is done in each turn of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._this_turn = 0
        self.most = 0
        self.total = 0

    def add(self, count: int = 1) -> None:
        if not self._this_turn:
            self._loop.call_soon(self._turn)
        self._this_turn += count
        self.total += count
        self.most = max(self.most, self._this_turn)

    def _turn(self) -> None:
        self._this_turn = 0
