"""Programs that measure with an official client, each a process of its own: one in Python, one in Go.

The Go program (``bench/go``) is built by the first benchmark that needs it, into a cache outside the clone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.brokers import Broker

SECONDS_MAX: Final = 120.0
BUILD_SECONDS_MAX: Final = 1200.0
"""Limit of the Go program's build: its modules come through the network, Kubernetes' client among them."""
_GO_SOURCES: Final = Path(__file__).parent / "go"
_ROOT: Final = Path(__file__).parents[1]


class ProgramFailed(Exception):
    """A program did not do what is measured; the text says what it printed."""


class ProgramMissing(Exception):
    """A program cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run of a program, with the CPU time of both sides."""

    count: int
    seconds: float
    client_cores: float
    """CPU time of the client's process divided by the run's duration: 1 is a core, the most that Python code uses."""
    broker_cores: float
    """CPU time of the broker divided by the run's duration; 0 if the broker's process is not known."""
    p50_ms: float
    p99_ms: float
    broker_bytes: float = 0.0
    """Resident memory of the broker at the end, as the Go program reports it."""

    @classmethod
    def said(cls, measured: Mapping[str, Any]) -> Run:
        """Return the run that one line of a program's output, parsed from JSON, describes."""
        seconds = measured["seconds"]
        return cls(
            measured["count"],
            seconds,
            measured["cpu_seconds"] / seconds,
            measured.get("broker_cpu_seconds", 0.0) / seconds,
            measured.get("p50_ms", 0.0),
            measured.get("p99_ms", 0.0),
            float(measured.get("broker_bytes", 0)),
        )

    @property
    def rate(self) -> float:
        """Return the number of counted items, such as messages or rounds, per second."""
        return self.count / self.seconds

    @property
    def broker_ms(self) -> float:
        """Return the broker's CPU time in milliseconds for each counted item, such as a message or a round."""
        return 1000 * self.broker_cores / self.rate


@dataclass(frozen=True, slots=True)
class Program:
    """Command that starts a client's program; ``name`` is the client's language."""

    name: str
    command: tuple[str, ...]

    def arguments(self, broker: Broker, given: Mapping[str, Any]) -> list[str]:
        """Return the command line with the broker's url and pid, and ``given``: options by name, True for a flag."""
        flags = [f"--{name}={value}" for name, value in given.items() if not isinstance(value, bool)]
        switches = [f"--{name}" for name, value in given.items() if value is True]
        return [*self.command, f"--url={broker.url}", f"--pid={broker.pid or 0}", *flags, *switches]

    async def run(self, broker: Broker, **given: Any) -> Run:
        """Run the program for a work that prints one measurement, and return it.

        Raise :class:`ProgramFailed` if the program fails.
        """
        (run,) = await self.runs(broker, **given)
        return run

    async def runs(
        self,
        broker: Broker,
        *,
        seconds_max: float = SECONDS_MAX,
        at_line: Callable[[str], Awaitable[None]] | None = None,
        **given: Any,
    ) -> list[Run]:
        """Run the program once, and return the measurements that it prints, in order.

        ``at_line`` is awaited with each line that the program prints, before the next line is read. Raise
        :class:`ProgramFailed` if the program fails or takes longer than ``seconds_max``.
        """
        arguments = self.arguments(broker, {name.replace("_", "-"): value for name, value in given.items()})
        process = await asyncio.create_subprocess_exec(
            *arguments, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        failing = asyncio.ensure_future(process.stderr.read())
        said: list[str] = []
        try:
            async with asyncio.timeout(seconds_max):
                async for line in process.stdout:
                    said.append(line.decode())
                    if at_line is not None:
                        await at_line(said[-1])
                failed = await failing
                await process.wait()
        except TimeoutError:
            raise ProgramFailed(f"{' '.join(arguments)} did not end within {seconds_max:.0f} s") from None
        finally:
            failing.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise ProgramFailed(f"{' '.join(arguments)}: {failed.decode(errors='replace')[-500:]}")
        return [Run.said(json.loads(line)) for line in said if line.startswith("{")]


def python_program() -> Program:
    """Return the program of the Python client. Raise :class:`ProgramMissing` if the client is not installed."""
    try:
        import pulsar  # noqa: F401
    except ImportError:
        raise ProgramMissing("the Python client is not here: pip install pulsar-client") from None
    return Program("python", (sys.executable, "-m", "bench.client_program"))


async def go_program_for(group: str, say: Callable[[str], None]) -> Program | None:
    """Return the Go program for ``group``, built if needed. If it cannot run here, say why, and return None."""
    try:
        return await go_program()
    except ProgramMissing as why:
        say(f"group {group} is left out: {why}")
        return None


async def go_program() -> Program:
    """Return the Go program, built if needed. Raise :class:`ProgramMissing` if Go is missing, or the build fails."""
    go = shutil.which("go")
    if go is None:
        raise ProgramMissing("Go is not on this machine")
    sources = hashlib.sha256()
    for file in sorted(_GO_SOURCES.iterdir()):
        sources.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-bench"
    binary = cache / f"go-{sources.hexdigest()[:12]}"
    building = Path(f"{binary}.{os.getpid()}")
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(go, "build", "-o", str(building), "."),
            cwd=_GO_SOURCES,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(BUILD_SECONDS_MAX):
            said, _ = await process.communicate()
        if process.returncode != 0:
            raise ProgramMissing(f"the Go program cannot be built: {said.decode(errors='replace')[-500:]}")
        await asyncio.to_thread(building.replace, binary)  # two at once must not run half of one
    return Program("go", (str(binary),))
