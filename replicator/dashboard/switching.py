"""Failovers that are asked for in the dashboard: the same switch as that of the commands, run in this worker.

It asks every worker over HTTP with what its asker showed, as the command does from elsewhere: so it may no more than
they may, and if this worker ends in the middle, the source is free again after its lease.

1. A dry run says what would happen. It counts for :data:`DRY_RUN_SECONDS_MAX`.
2. Who asked for it types the name of the cluster that is to serve. Then the same switch is made, once: who sends the
   form again sees the run that it began.
3. What it says while it goes on, and its report, are kept here until newer ones take their place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.runs import NotNow, Run, Runs
from replicator.engine.errors import EngineError
from replicator.failover.errors import FailoverError
from replicator.failover.peers import Peers
from replicator.failover.report import SwitchReport
from replicator.failover.switch import Switch

DRY_RUN_SECONDS_MAX: Final = 600.0
"""Time after which a dry run is out of date: another one is needed."""
RUNS_MAX: Final = 50
GOING_MAX: Final = 5
"""Dry runs at once; of switches there is one."""
LINES_MAX: Final = 200
CLOSE_SECONDS_MAX: Final = 5.0
"""Time limit for switches to be taken back when the worker ends; otherwise the source is free when its lease ends."""
KINDS: Final = ("planned", "unplanned", "failback")

log = structlog.get_logger(__name__)


class NotTyped(EngineError):
    """The name that was typed is not the one that confirms the switch."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested switch. A failback has no source: its source is whoever serves the target's clients."""

    kind: str
    source: str
    target: str
    keep_consumers: bool = False

    def __str__(self) -> str:
        return f"failback to {self.target}" if self.kind == "failback" else f"{self.source} to {self.target}"


@dataclass(slots=True)
class SwitchRun(Run):
    """One switch or dry run, from its beginning on."""

    wanted: Wanted
    dry: bool
    lines: list[tuple[float, str]] = field(default_factory=list)
    """Texts about the steps taken, each with the seconds since the beginning."""
    report: SwitchReport | None = None
    followed_by: str = ""
    """Id of the switch that was made after this dry run."""

    @property
    def confirmable(self) -> bool:
        """Return whether this is a dry run that a switch may follow."""
        return self.dry and self.report is not None and self.report.outcome == "dry run" and not self.followed_by


class Switches(Runs[SwitchRun]):
    """Switches of one worker's dashboard."""

    def __init__(self, fan_out: FanOut, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(RUNS_MAX, CLOSE_SECONDS_MAX, clock)
        self._fan_out = fan_out

    def dry_run(self, wanted: Wanted, *, shown: str | None, who: str) -> SwitchRun:
        """Begin a dry run. Raise :class:`.runs.NotNow`."""
        if len(self.unended()) >= GOING_MAX:
            raise NotNow(
                f"{GOING_MAX} dry runs and switches of failover go on here already: wait for one of them to end"
            )
        return self._begin(wanted, dry=True, shown=shown, who=who)

    def switch(self, run_id: str, typed: str, *, shown: str | None, who: str) -> SwitchRun:
        """Make the switch that a dry run tried; return its run, also if it has begun already. Raise
        :class:`.runs.RunNotFound`, :class:`.runs.NotNow` or :class:`NotTyped`.
        """
        tried = self.find(run_id)
        if tried.followed_by in self._runs:
            return self._runs[tried.followed_by]
        if not tried.confirmable:
            raise NotNow(
                "only a dry run that has ended without an error can be followed by the switch: make another dry run"
            )
        if tried.who != who:
            raise NotNow(f"this dry run is {tried.who}'s: make one of your own")
        if self._seconds(tried) > DRY_RUN_SECONDS_MAX:
            raise NotNow(f"this dry run is older than {DRY_RUN_SECONDS_MAX / 60:.0f} minutes: make another")
        if typed.strip() != tried.wanted.target:
            raise NotTyped(f"Nothing was switched: type {tried.wanted.target}, the cluster that is to serve.")
        if going := next((run for run in self.unended() if not run.dry), None):
            raise NotNow(
                f"this dashboard is moving clients between clusters already, {going.wanted}: wait until that has ended"
            )
        run = self._begin(tried.wanted, dry=False, shown=shown, who=who)
        tried.followed_by = run.run_id
        return run

    def _begin(self, wanted: Wanted, *, dry: bool, shown: str | None, who: str) -> SwitchRun:
        run = self._keep(SwitchRun(wanted, dry, beginning=self._beginning(who)))
        self._in_background(self._run(run, shown), f"dashboard: {'dry run' if dry else 'switch'} of {wanted}"[:80])
        return run

    async def _run(self, run: SwitchRun, shown: str | None) -> None:
        def note(text: str) -> None:
            if len(run.lines) < LINES_MAX and (not run.lines or run.lines[-1][1] != text):
                run.lines.append((self._seconds(run), text))

        self._fan_out.use_credentials(shown)
        topology = self._fan_out.topology
        note("asking all clusters how they stand")
        try:
            async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
                run.report = await _switched(Switch(topology, peers, progress=note), run)
        except FailoverError as error:
            run.error = str(error)
        except asyncio.CancelledError:
            run.error = "it was given up: the worker ends"
            raise
        except Exception as error:
            run.error = f"it failed: {error}"
            raise
        finally:
            run.seconds = self._seconds(run)
            log.info("dashboard ended a switch", dry_run=run.dry, switch=str(run.wanted), error=run.error)


async def _switched(switch: Switch, run: SwitchRun) -> SwitchReport:
    wanted = run.wanted
    if wanted.kind == "failback":
        return await switch.failback(wanted.target, dry_run=run.dry)
    return await switch.failover(
        wanted.source,
        wanted.target,
        planned=wanted.kind == "planned",
        keep_consumers=wanted.keep_consumers,
        dry_run=run.dry,
    )
