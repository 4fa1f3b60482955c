"""Watchdog of a worker's event loop: measures the loop's lag, and ends the process if the loop stands still.

While the event loop stands still, the worker answers no request and logs nothing. Three parts notice it:

1. A timer on the loop (a *beat*) fires every :data:`BEAT_SECONDS`, and measures how late it fired (:class:`LoopLag`).
2. Each beat sets the timer of ``faulthandler`` anew. If :data:`STACKS_SECONDS` pass without a beat, that timer writes
   the stacks of all threads. It needs no GIL, so it works while C code holds the GIL. It uses the clock, so it may
   write stacks for no reason after the process was suspended.
3. A thread ticks every :data:`TICK_SECONDS`, and ends the process after enough ticks without a beat
   (:class:`StallCounter`). A suspended process does not tick, so it is not ended. Nor does a process tick whose C code
   holds the GIL: a probe from outside has to end that.

The process ends by :func:`os._exit`, as a loop that stands still cannot stop anything in order. Like ``kill -9``, this
loses nothing that was confirmed (invariant 1).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

import structlog

from replicator.engine.latencies import Histogram
from replicator.topology import WatchdogSettings

BEAT_SECONDS: Final = 0.1
"""Shorter standstills may go unnoticed between two beats. A beat costs 30 µs, mostly for ``faulthandler``'s timer."""
STACKS_SECONDS: Final = 5.0
"""Time without a beat after which all stacks are written. Nothing on a worker's event loop takes nearly so long."""
TICK_SECONDS: Final = 1.0
TELL_SECONDS: Final = 1.0
"""Longest time for writing the last log lines. Then the process ends even if they are not written, because writing may
hang."""
EXIT_STATUS: Final = 70
"""Exit status of a worker that ended itself: ``EX_SOFTWARE`` of ``sysexits.h``. Service managers restart such a
worker."""
MAX_WINDOW_SECONDS: Final = 60.0
"""The maximum covers the last one to two such windows, so that several scrapers can all see it."""

log = structlog.get_logger(__name__)


class LoopLag:
    """Lag of the event loop: a histogram, and the maximum of the last one to two minutes. Pure."""

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._window_began = 0.0
        self._max_now = self._max_before = 0.0

    def on_beat(self, now: float, due: float) -> None:
        """Record that a beat that was due at ``due`` came at ``now``, both in seconds of one clock."""
        lag_seconds = max(0.0, now - due)
        self.histogram.observe(lag_seconds)
        self._roll(now)
        self._max_now = max(self._max_now, lag_seconds)

    def max_seconds(self, now: float) -> float:
        """Return by how many seconds the event loop's heartbeat was late at most, within the last one to two minutes; 0
        if there was no heartbeat."""
        self._roll(now)
        return max(self._max_now, self._max_before)

    def _roll(self, now: float) -> None:
        windows = (now - self._window_began) // MAX_WINDOW_SECONDS
        if windows >= 1:
            self._max_before = self._max_now if windows < 2 else 0.0
            self._max_now = 0.0
            self._window_began += windows * MAX_WINDOW_SECONDS


class StallCounter:
    """Counter of the watchdog's ticks since the event loop last turned. Pure."""

    def __init__(self) -> None:
        self._beats = -1
        self._ticks = 0

    def on_tick(self, beats: int) -> float:
        """Count a tick, and return for how many seconds of ticks the event loop has not turned.

        ``beats`` is the number of beats since the start; the loop has turned if it changed since the last tick.
        """
        self._ticks = self._ticks + 1 if beats == self._beats else 0
        self._beats = beats
        return self._ticks * TICK_SECONDS


class Watchdog:
    """Watches the event loop on which it is started.

    ``of_process`` says that this loop is the process's only one. Only then may stacks be written and the process be
    ended. ``end_after`` is in seconds, and applies if the topology sets no time; None and 0 mean never.
    """

    def __init__(
        self,
        *,
        of_process: bool = False,
        end_after: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lag = LoopLag()
        self._of_process = of_process
        self._end_after = self._end_after_by_default = end_after
        self._clock = clock
        self._beats = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._may_write = False
        """Whether the timer for the stacks may have run out, so that its thread may be writing."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start beats on the running event loop, and ticks on a thread. A second call does nothing."""
        if self._timer is not None:
            return
        self._due = self._clock()
        self._beat(asyncio.get_running_loop())
        if self._of_process:
            self._thread = threading.Thread(target=self._tick, name="watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop beats and ticks; the process is not ended after this."""
        self._armed = False
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._of_process and not self._is_blocked():
            faulthandler.cancel_dump_traceback_later()

    def use(self, settings: WatchdogSettings) -> None:
        """Apply the settings of a topology. If they set no time, the time given to the constructor applies."""
        said = settings.end_after
        self._end_after = self._end_after_by_default if said is None else said

    def arm(self, armed: bool) -> None:
        """Allow the watchdog to end the process, or forbid it; it is forbidden while a worker starts and stops."""
        self._armed = armed

    def status(self) -> dict[str, float]:
        """Return the field ``event_loop`` of the worker's status."""
        return {"lag_max_seconds": round(self.lag.max_seconds(self._clock()), 6)}

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock()
        self._beats += 1
        self.lag.on_beat(now, self._due)
        self._may_write |= now - self._due >= STACKS_SECONDS / 2
        self._due = now + BEAT_SECONDS
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop)
        if self._of_process and not self._is_blocked():
            self._may_write = False
            with contextlib.suppress(RuntimeError):  # no thread could be started: the next beat tries again
                faulthandler.dump_traceback_later(STACKS_SECONDS, file=_standard_error())

    def _is_blocked(self) -> bool:
        """Return whether the timer's thread may be blocked by a log that nobody reads.

        Setting the timer waits for that thread, and holds the GIL meanwhile. The process would stand still, and no part
        of it could end it.
        """
        if not self._may_write:
            return False
        poll = select.poll()
        poll.register(_standard_error(), select.POLLOUT)
        return not poll.poll(0)

    def _tick(self) -> None:
        standstill = StallCounter()
        while not self._stopped.wait(TICK_SECONDS):
            stood_seconds = standstill.on_tick(self._beats)
            if self._armed and self._end_after and stood_seconds >= self._end_after:
                teller = threading.Thread(target=self._tell_end, args=(stood_seconds,), daemon=True)
                teller.start()
                teller.join(TELL_SECONDS)
                os._exit(EXIT_STATUS)

    def _tell_end(self, stood_seconds: float) -> None:
        log.critical("the event loop stands still; the worker ends", seconds=stood_seconds, status=EXIT_STATUS)
        for thread, frame in sys._current_frames().items():
            # Not by faulthandler, which holds the GIL while it writes: the log may be blocked.
            text = f"Thread {thread:#x}:\n{''.join(traceback.format_stack(frame))}"
            os.write(_standard_error(), text.encode("utf-8", "backslashreplace"))


def _standard_error() -> int:
    return 2 if sys.__stderr__ is None else sys.__stderr__.fileno()
