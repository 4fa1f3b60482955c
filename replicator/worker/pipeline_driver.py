"""The driver of live copy by Spark, as a process that the worker starts and watches.

It carries what the links of the worker hand out (:mod:`replicator.links.planner`), and holds nothing that is not known
elsewhere: losing it costs the seconds until the next one runs, which is started at once, and after failures that follow
each other with growing pauses. It ends with the worker, however that ends: its standard input is a pipe whose other end
only the worker has. What it prints goes into the worker's log; its last words say why links wait. It says now and then
that it lives: one that has fallen silent hangs, is killed, and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_never, wait_exponential

from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout
from replicator.security.access import access
from replicator.topology import PipelineSettings

MODULE: Final = "replicator.pipeline.live.driver"
CONF_VARIABLE: Final = "REPLICATOR_PIPELINE_CONF"
"""Hands ``pipeline.conf`` to the driver: values may be secrets, which neither arguments nor paths of the API show."""
PAUSE_SECONDS_MAX: Final = 60.0
LASTING_SECONDS: Final = 60.0
"""A driver that ran for so long did not fail at its start: the next one is started at once."""
STOP_SECONDS_MAX: Final = 8.0
"""Its queries and its JVM take one or two to end."""
STARTING_STOP_SECONDS_MAX: Final = 0.5
"""One that is still starting its JVM does not listen, and has nothing to end."""
LAST_WORDS_SECONDS: Final = 10.0
"""Time before the driver's end within which its output explains the end; older output is about something else."""
LINE_CHARS_MAX: Final = 2_000
LAST_WORDS_CHARS_MAX: Final = 300
_PREFIX: Final = "live copy: "
"""Prefix of the driver's own lines among those of Spark."""
READY: Final = f"{_PREFIX}ready"
"""Said when its Spark runs."""
ALIVE: Final = f"{_PREFIX}alive"
"""Said every few seconds from then on."""
SILENCE_SECONDS_MAX: Final = 120.0
"""Longest time between two signs of life. Starting one query takes seconds, and tens of them on a busy machine."""
SILENCE_MORE_SECONDS: Final = 5.0
"""Time for which a silent driver is listened to once more: maybe the worker itself stood still."""

log = structlog.get_logger(__name__)


class _Ended(Exception):
    """The driver ended although nobody had asked for it."""


class PipelineDriver:
    """The driver of the worker at ``url``. ``note`` is told what links that have no carrier wait for; ``ended`` the pid
    of a driver that is no more, and so carries nothing.

    :meth:`change` says whether there is to be one, and how it is set up; :meth:`stop` ends it.
    """

    def __init__(
        self,
        cluster: str,
        url: str,
        note: Callable[[str], None],
        ended: Callable[[int], None],
        supervisor: Supervisor,
    ) -> None:
        self._cluster = cluster
        self._url = url
        self._note = note
        self._ended = ended
        self._settings = PipelineSettings()
        self._task = supervisor.task(
            "pipeline driver", "pipeline driver", self._run, cancel_again_seconds=STOP_SECONDS_MAX + 60.0
        )
        self._process: asyncio.subprocess.Process | None = None
        self._last_words = ""
        self._spoke_at = 0.0
        self._is_ready = False
        self._until_silent: asyncio.TimerHandle | None = None
        self.state = "off"
        """``off``, ``external``, ``running``, or ``waiting`` to be started again."""
        self.detail = ""
        self.starts = 0

    async def change(self, settings: PipelineSettings, *, links: int) -> None:
        """Use these settings from now on, for that number of links that Spark carries."""
        before, self._settings = self._settings, settings
        wanted = links > 0 and settings.driver == "worker"
        if self._task.running and (not wanted or (before.master, before.conf) != (settings.master, settings.conf)):
            await self.stop()
        if wanted and not self._task.running:
            self._task.start()
        elif links and not wanted:
            self._set("external", "", f"for Spark: no driver asks; start one by `replicator pipeline run {self._url}`")

    async def stop(self) -> None:
        """End the driver; return when its processes have ended."""
        await self._task.stop()
        self._set("off", "", "for Spark: its driver was stopped")

    def status(self) -> dict[str, Any]:
        """Return the driver's state for the worker's status."""
        return {
            "driver": self.state,
            "detail": self.detail,
            "pid": None if self._process is None else self._process.pid,
            "starts": self.starts,
            "master": self._settings.master,
        }

    async def _run(self) -> None:
        while True:
            retrying = AsyncRetrying(
                retry=retry_if_exception_type((_Ended, OSError)),
                wait=wait_exponential(multiplier=1, max=PAUSE_SECONDS_MAX),
                stop=stop_never,
                before_sleep=self._note_end,
            )
            async for attempt in retrying:
                with attempt:
                    started = time.monotonic()
                    reason = await self._run_once()
                    if time.monotonic() - started < LASTING_SECONDS:
                        raise _Ended(reason)
                    log.warning("pipeline driver ended", cluster=self._cluster, reason=reason)

    def _note_end(self, retry_state: RetryCallState) -> None:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        seconds = 0.0 if retry_state.next_action is None else retry_state.next_action.sleep
        self._set("waiting", str(error), f"for Spark: its driver ended: {error}; started again in {seconds:.0f} s")
        log.warning("pipeline driver ended", cluster=self._cluster, reason=str(error), again_in_seconds=seconds)

    async def _run_once(self) -> str:
        """Run the driver until it ends; return the reason."""
        self._last_words, self._is_ready = "", False
        theirs, ours = os.pipe()
        try:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    MODULE,
                    "--worker",
                    self._url,
                    stdin=theirs,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **access().as_environment(), CONF_VARIABLE: json.dumps(self._settings.conf)},
                    start_new_session=True,  # Ctrl-C reaches us, and we end it in order, and all that it has started
                )
            finally:
                os.close(theirs)
            self.starts += 1
            log.info("pipeline driver started", cluster=self._cluster, pid=process.pid, master=self._settings.master)
            self._set("running", "", "for Spark: its driver is starting")
            try:
                await self._log_lines(process)
                status = await process.wait()
            except BaseException:  # whatever it is: the process must not run on beside the next one
                await self._end(process)
                raise
            spoke = self._last_words and time.monotonic() - self._spoke_at <= LAST_WORDS_SECONDS
            how = f"status {status}" if status >= 0 else f"killed by signal {-status}"
            return f"{self._last_words if spoke else 'it said nothing'} ({how})"
        finally:
            os.close(ours)
            self._listen(None)
            if self._process is not None:
                self._ended(self._process.pid)
            self._process = None

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with timeout(STOP_SECONDS_MAX if self._is_ready else STARTING_STOP_SECONDS_MAX):
                await self._log_lines(process)
                await process.wait()
        except TimeoutError:
            log.warning("pipeline driver killed", cluster=self._cluster, pid=process.pid)
            _kill(process)
            await process.wait()

    async def _log_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while piece := await process.stdout.read(4096):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._heard(line.decode(errors="replace").rstrip()[:LINE_CHARS_MAX])
            rest = rest[:LINE_CHARS_MAX]
        self._heard(rest.decode(errors="replace").rstrip())

    def _heard(self, line: str) -> None:
        if not line:
            return
        if line == ALIVE:
            self._listen(SILENCE_SECONDS_MAX)
            return
        log.info("pipeline driver says", cluster=self._cluster, line=line)
        if line == READY:
            self._is_ready = True
            self._listen(SILENCE_SECONDS_MAX)
            self._set("running", "", "for Spark: its driver runs, and no task of it has asked for this link yet")
        elif line.startswith(_PREFIX) or not self._last_words.startswith(_PREFIX):
            self._last_words, self._spoke_at = line[:LAST_WORDS_CHARS_MAX], time.monotonic()

    def _listen(self, seconds: float | None, *, again: bool = True) -> None:
        """Set the timer that kills the driver unless a sign of life comes within ``seconds``. None sets no timer.

        With ``again``, the first expiry sets the timer once more, for :data:`SILENCE_MORE_SECONDS`.
        """
        if self._until_silent is not None:
            self._until_silent.cancel()
        self._until_silent = None
        if seconds is not None:
            self._until_silent = asyncio.get_running_loop().call_later(seconds, self._note_silence, again)

    def _note_silence(self, again: bool) -> None:
        if again:
            self._listen(SILENCE_MORE_SECONDS, again=False)
        elif self._process is not None:
            self._last_words = f"{_PREFIX}it hung: it gave no sign of life for {SILENCE_SECONDS_MAX:g} s"
            self._spoke_at = time.monotonic()
            log.warning("pipeline driver hangs, and is killed", cluster=self._cluster, pid=self._process.pid)
            _kill(self._process)

    def _set(self, state: str, detail: str, waits_for: str) -> None:
        self.state, self.detail = state, detail
        self._note(waits_for)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process with all that it has started: the group that it was started as."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
