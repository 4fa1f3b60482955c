"""A drill that is started in the dashboard: a child process of this worker, one at a time.

It is the command ``replicator drill --against``, in a process of its own (:mod:`replicator.cli.watched_drill`), with
the scenario that moves the drill's own clients and nothing else. It asks the workers with what its starter showed, so
it may no more than they may.

1. Who starts it types the name of its namespace once more. What is wrong is refused by the field's name.
2. What the child says is kept here: its progress, its last lines, and at the end the id of its report. The report
   lies in the database of this worker's cluster, where the page of all drills finds it.
3. It ends by itself, or is ended: by SIGTERM, so that it removes its topic; one that does not end in
   :data:`END_SECONDS_MAX` is killed with all that it started. It also ends with the worker, however that ends: its
   standard input is a pipe whose other end only the worker has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from replicator.dashboard.fan_out import BEARER, FanOut
from replicator.dashboard.runs import NotNow, Run, Runs
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import parse_namespace
from replicator.operating.processes import exit_reason
from replicator.running.private_files import replace_private
from replicator.running.timeouts import timeout
from replicator.topology import dump

MODULE: Final = "replicator.cli.watched_drill"
MESSAGES_MIN: Final = 100
MESSAGES_MAX: Final = 20_000
"""Limit of messages of one drill: verifying so many in ten clusters takes no Spark."""
RATE_MIN: Final = 100
RATE_MAX: Final = 2_000
"""Messages a second: a drill is not to be in the way of others' clients."""
RUNS_MAX: Final = 20
LINES_MAX: Final = 50
LINE_CHARS_MAX: Final = 500
END_SECONDS_MAX: Final = 30.0
"""Time limit for a drill to stop its clients and to remove its topic from every cluster."""
CLOSE_SECONDS_MAX: Final = 5.0
"""Time limit for ending a drill when the worker ends."""
DIRECTORY: Final = "drill"
"""Name of the drill's directory, in the directory of the worker's data; it is removed with the drill."""
_SAID: Final = (
    frozenset({"phase", "published", "confirmed", "consumed"}),
    frozenset({"id", "passed", "kept"}),
    frozenset({"error"}),
)
"""Sets of fields by which a line of the child is recognised."""

log = structlog.get_logger(__name__)


class DrillRefused(EngineError):
    """A value in the form is not possible; ``field`` is its name there."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(slots=True)
class DrillRun(Run):
    """One drill, from its start on."""

    namespace: str
    messages: int
    rate: int
    phase: str = "starting"
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers of messages: published, confirmed, and consumed by each subscription."""
    lines: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LINES_MAX))
    """Lines of the child's output, each with the seconds since the beginning."""
    report_id: str = ""
    passed: bool | None = None
    kept: str = ""
    ending: str = ""
    """Name of whoever ended the drill early."""

    def heard(self, line: str, at: float) -> None:
        """Take in a line of the child's output."""
        said = _said(line)
        if said is None:
            if line:
                self.lines.append((at, line[:LINE_CHARS_MAX]))
        elif "phase" in said:
            if said["phase"] != self.phase:
                self.lines.append((at, str(said["phase"])[:LINE_CHARS_MAX]))
            self.phase = str(said["phase"])
            consumed = {f"consumed by {name}": count for name, count in said["consumed"].items()}
            self.counts = {"published": said["published"], "confirmed": said["confirmed"], **consumed}
        elif "error" in said:
            self.error = str(said["error"])
        else:
            self.report_id, self.passed, self.kept = said["id"], said["passed"], said["kept"]


def _said(line: str) -> Mapping[str, Any] | None:
    """Return the content of a line that the child itself wrote; None for a line that something else printed."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    is_its_own = isinstance(said, dict) and any(names <= said.keys() for names in _SAID)
    return said if is_its_own else None


class Drilling(Runs[DrillRun]):
    """Drills started in one worker's dashboard."""

    def __init__(self, fan_out: FanOut, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(RUNS_MAX, 2 * CLOSE_SECONDS_MAX, clock)
        self._fan_out = fan_out
        self._cluster = cluster
        self._process: asyncio.subprocess.Process | None = None

    @property
    def going(self) -> DrillRun | None:
        return next(iter(self.unended()), None)

    def start(self, form: Mapping[str, str], *, shown: str | None, who: str) -> DrillRun:
        """Start the drill that a form describes. Raise :class:`DrillRefused` or :class:`.runs.NotNow`.

        ``shown`` is the credential that the user showed (``Bearer …``), or None; ``who`` is the user's name.
        """
        namespace = form.get("namespace", "").strip()
        try:
            parse_namespace(namespace)
        except EngineError as error:
            raise DrillRefused("namespace", str(error)) from None
        messages = _number(form, "messages", MESSAGES_MIN, MESSAGES_MAX)
        rate = _number(form, "rate", RATE_MIN, RATE_MAX)
        if form.get("typed", "").strip() != namespace:
            raise DrillRefused("typed", f"Nothing was started: type {namespace}, the namespace of the drill.")
        if len(self._fan_out.clusters) < 2:
            raise NotNow("a drill moves clients from one cluster to another, and the topology has only one cluster")
        if self._fan_out.topology.auth.enabled and not (shown or "").startswith(BEARER):
            raise NotNow(
                "the clients of a drill need a token to show, and you signed in without one: sign in with a token"
            )
        if self.going is not None:
            raise NotNow(f"a drill goes on here already, in {self.going.namespace}: wait for it, or end it")
        run = self._keep(DrillRun(namespace, messages, rate, beginning=self._beginning(who)))
        self._in_background(self._run(run, shown), "dashboard: drill")
        return run

    def end(self, run_id: str, who: str) -> DrillRun:
        """Ask a drill to end; one that has ended stays as it is. Raise :class:`.runs.RunNotFound`."""
        run = self.find(run_id)
        if run.going and not run.ending:
            run.ending = who
            run.lines.append((self._seconds(run), f"{who} ends it"))
            if self._process is not None:
                self._in_background(self._end(run, self._process), "dashboard: ending a drill")
        return run

    async def _run(self, run: DrillRun, shown: str | None) -> None:
        topology = self._fan_out.topology
        directory = topology.cluster(self._cluster).data / DIRECTORY
        theirs, ours = os.pipe()
        try:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            directory.mkdir(parents=True)
            file = directory / "topology.yaml"
            replace_private(file, dump(topology).encode())
            wanted = {
                "topology": str(file), "kept_by": self._cluster, "namespace": run.namespace,
                "messages": run.messages, "rate": run.rate, "out": str(directory),
            }  # fmt: skip
            os.write(ours, f"{json.dumps(wanted)}\n".encode())
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE,
                stdin=theirs,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._fan_out.environment_of(shown),
                start_new_session=True,  # Ctrl-C reaches us, and we end it in order, and all that it has started
            )  # fmt: skip
            log.info("dashboard started a drill", namespace=run.namespace, who=run.who, pid=process.pid)
            try:
                if run.ending:
                    process.terminate()
                await self._listen(run, process)
                status = await process.wait()
            except BaseException:  # whatever it is: the process must not run on
                await _killed(process, CLOSE_SECONDS_MAX)
                raise
            if not (run.report_id or run.error or run.ending):
                run.error = f"it {exit_reason(status)}, and without a report"
        except OSError as error:
            run.error = f"it cannot be started: {error}"
        except asyncio.CancelledError:
            run.error = "it was given up: the worker ends"
            raise
        except Exception as error:
            run.error = f"it failed: {error}"
            raise
        finally:
            os.close(theirs)
            os.close(ours)
            self._process = None
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            run.seconds = self._seconds(run)
            log.info("dashboard ended a drill", report=run.report_id, passed=run.passed, error=run.error)

    async def _end(self, run: DrillRun, process: asyncio.subprocess.Process) -> None:
        if await _killed(process, END_SECONDS_MAX):
            run.error = f"it did not end within {END_SECONDS_MAX:.0f} s and was killed: its topic may be left"

    async def _listen(self, run: DrillRun, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while piece := await process.stdout.read(4096):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                run.heard(line.decode(errors="replace").strip(), self._seconds(run))
            rest = rest[: LINE_CHARS_MAX * 100]


async def _killed(process: asyncio.subprocess.Process, seconds_max: float) -> bool:
    """End a process; return whether it had to be killed."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with timeout(seconds_max):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group that it was started as: all that it has started
        await process.wait()
        return True
    return False


def _number(form: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = form.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise DrillRefused(name, f"{name} must be a number from {least} to {most}, not {text[:40]!r}")
    return int(text)
