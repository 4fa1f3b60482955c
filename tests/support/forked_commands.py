"""Runs commands of the service in forked processes. The parent has imported the service, so that each starts in
milliseconds.

``python tests/support/forked_commands.py`` is the parent. It reads a JSON line for each command (arguments, directory,
where stdout, stderr and the exit status go), and answers with the process's id. What runs is the entry point that users
run.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SETTLE_SECONDS = 0.01
CLOCK_AHEAD_SECONDS = "REPLICATOR_TESTS_CLOCK_AHEAD_SECONDS"
"""Environment variable of a command: seconds by which its wall clock is ahead of the true time; behind if negative.
Monotonic clocks (``time.monotonic``) are unchanged."""
EDITED = "REPLICATOR_TESTS_REVERT"
"""Environment variable of random histories, whose commands run with edits of the source. Its value names a fix that is
taken back, or is empty."""
CAPABILITY_VERSION_3 = 0x20080522
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER = 1, 2, 4, 8
_asking = threading.Lock()
_kept: list[object] = []
"""Objects that cannot be closed; kept, because their collection would warn."""


class Forked:
    """One of these processes, with the interface of :class:`subprocess.Popen`."""

    def __init__(self, pid: int, status: Path) -> None:
        self.pid = pid
        self._status = status
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status; minus a signal's number if it was killed; None while it runs."""
        if self.returncode is None:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                self.returncode = int(self._status.read_text()) if self._status.exists() else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(SETTLE_SECONDS)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    stdout: Path,
    stderr: Path,
    environment: Mapping[str, str] | None = None,
    unprivileged: bool = False,
) -> Forked:
    """Start ``replicator ARGUMENTS`` in ``cwd``; append its output to the files. Its environment is that of this
    process plus ``environment``. ``unprivileged`` takes root's rights to the files of others away."""
    server, status = _server(), _directory() / "status"
    asked: dict[str, Any] = {"arguments": [str(each) for each in arguments], "cwd": str(cwd), "status": str(status)}
    asked["unprivileged"] = unprivileged
    asked |= {"stdout": str(stdout), "stderr": str(stderr)}
    asked["environment"] = {"COLUMNS": "200", **os.environ, **(environment or {})}
    assert server.stdin is not None
    assert server.stdout is not None
    with _asking:
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        return Forked(int(server.stdout.readline()), status)


def run(
    *arguments: str | Path,
    cwd: Path,
    timeout: float = 120,
    environment: Mapping[str, str] | None = None,
    unprivileged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    directory = _directory()
    stdout, stderr = directory / "stdout", directory / "stderr"
    process = start(
        arguments, cwd=cwd, stdout=stdout, stderr=stderr, environment=environment, unprivileged=unprivileged
    )
    try:
        status = process.wait(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(list(arguments), status, stdout.read_text(), stderr.read_text())


def _directory() -> Path:
    """Return a new directory for each call; it is deleted when this process ends."""
    return Path(tempfile.mkdtemp(dir=_directories().name))


@functools.cache
def _directories() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory(prefix="replicator-tests-commands-")
    atexit.register(made.cleanup)
    return made


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.kill)
    return server


def _serve() -> None:
    import typer.main
    from commands_built_once import build_commands_once
    from databases_copied import copy_databases

    if EDITED in os.environ:
        from histories.edits import install_chosen

        install_chosen()

    import replicator.cli.main  # before any fork, with all that commands and workers import when they are called
    import replicator.failover.switch
    import replicator.worker.worker

    build_commands_once()
    copy_databases()
    typer.main.get_command(replicator.cli.main.app)
    _warm()
    gc.collect()
    gc.freeze()  # what was imported is not looked at again, which would copy its memory into each of them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(asked)
        print(pid, flush=True)


def _warm() -> None:
    """Compile the patterns of all HTTP paths once, in the process from which workers are forked."""
    from unittest.mock import MagicMock

    from replicator.index.database import head_revision
    from replicator.security.client_limits import ClientLimits
    from replicator.worker.starting import _make_app

    async def app() -> object:
        return _make_app(MagicMock(), MagicMock(), MagicMock(), ClientLimits())

    head_revision()
    _kept.append(asyncio.run(app()))


def _become(asked: dict[str, Any]) -> None:
    """Run the command in the forked process; never return."""
    from replicator.cli.__main__ import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        for number, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, asked["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (2, asked["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        ):
            os.dup2(os.open(path, flags, 0o644), number)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        _set_clock(int(os.environ.get(CLOCK_AHEAD_SECONDS, "0")))
        if asked["unprivileged"]:
            _give_up_files_of_others()
        sys.argv = ["replicator", *asked["arguments"]]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()  # as Python does at the end of a process
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(asked["status"]).write_text(str(status))
        os._exit(status)


def _give_up_files_of_others() -> None:
    """Drop the capabilities by which root may use any file. It stays root, and what it owns stays its own: another user
    might not be able to read Python's own files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and again for numbers from 32 up
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~(CHOWN | DAC_OVERRIDE | DAC_READ_SEARCH | FOWNER)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _set_clock(ahead_seconds: int) -> None:
    """Shift the wall clock for all code that calls the module ``time`` by its name."""
    if ahead_seconds:
        true_seconds, true_ns = time.time, time.time_ns
        time.time = lambda: true_seconds() + ahead_seconds
        time.time_ns = lambda: true_ns() + ahead_seconds * 1_000_000_000


if __name__ == "__main__":
    _serve()
