"""Taking a running worker from one topology to another: one reload at a time, all of it or nothing.

1. The file that the worker was started with is its truth: it is read again. A file with problems changes nothing.
2. Whoever asks may say which topology is meant, by its digest. Where the file says another, nothing is changed: it has
   to be distributed first. That is how all workers end with the same one.
3. What needs a restart is refused, field by field, before anything is changed.
4. Only then is it carried out, by steps that cannot be refused. They go by what runs, so that doing them again after a
   failure nobody foresaw ends in the same state.

A refused file stays in the status until the worker takes the file: it would keep the worker from its next start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from replicator.engine.errors import EngineError
from replicator.running.short_tasks import awaited
from replicator.topology import PROBLEMS_SHOWN_MAX, Topology, TopologyError, load_topology
from replicator.topology.diff import diff, digest, portable_text, refusals, words

log = structlog.get_logger(__name__)


class TopologyDiffers(EngineError):
    """The worker's file is not the one that was meant."""

    status = 409


class NotRunning(EngineError):
    """The worker is starting or stopping; ask again."""

    status = 503


@dataclass(frozen=True, slots=True)
class FileRefused:
    """Reload of the file that failed: the time, and the problems of the file."""

    at_ms: int
    problems: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the status, with at most :data:`PROBLEMS_SHOWN_MAX` problems."""
        return {"at_ms": self.at_ms, "problems": list(self.problems[:PROBLEMS_SHOWN_MAX])}

    def __str__(self) -> str:
        more = len(self.problems) - 1
        return self.problems[0] + (f" (and {more} more)" if more > 0 else "")


class TopologyReloader:
    """Holds the topology that the worker of ``cluster`` runs. ``carry_out`` makes it run another; ``problems`` says why
    the worker could not read again what the file names."""

    def __init__(
        self,
        cluster: str,
        topology: Topology,
        carry_out: Callable[[Topology], Awaitable[None]],
        problems: Callable[[Topology], list[str]] = lambda topology: [],
    ) -> None:
        self.topology = topology
        self._cluster = cluster
        self._carry_out = carry_out
        self._problems = problems
        self._one_at_a_time = asyncio.Lock()
        self._reloading: set[asyncio.Task[list[str]]] = set()
        self._cannot_change_as_it: str | None = "is starting"
        self._loaded_at_ms = _now_ms()
        self._reloads = 0
        self._file_refused: FileRefused | None = None

    def ready(self) -> None:
        """Allow changes from now on: the worker has started."""
        self._cannot_change_as_it = None

    async def close(self) -> None:
        """Refuse to change anything more; return when a reload under way is over."""
        self._cannot_change_as_it = "is stopping"
        await asyncio.gather(*self._reloading, return_exceptions=True)

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        """Read the file again and change to what it says; returns what changed for this worker, in words.

        With ``expected``, the digest that it must have. With ``dry_run`` it is only checked. Raises
        :class:`TopologyError` for what the file, or this worker, cannot do; :class:`TopologyDiffers`;
        :class:`NotRunning`.
        """
        self._check_running()
        path = self._file()
        try:
            topology = await asyncio.to_thread(load_topology, path)
            self._check_meant(topology, expected)
            changed = await self.reload(topology, dry_run=dry_run)
        except EngineError:  # it is about who asks, not about the file
            raise
        except Exception as error:
            if not dry_run:
                problems = error.problems if isinstance(error, TopologyError) else (str(error) or repr(error),)
                self._file_refused = FileRefused(_now_ms(), problems)
            raise
        return changed

    async def reload(self, topology: Topology, *, dry_run: bool = False) -> list[str]:
        """Change to a topology that was read already; otherwise like :meth:`reload_file`. The change goes on even if
        the caller gives up.
        """
        reloading = awaited(self._reload(topology, dry_run), name="reload of the topology")
        self._reloading.add(reloading)
        reloading.add_done_callback(self._reloading.discard)
        return await asyncio.shield(reloading)

    async def _reload(self, topology: Topology, dry_run: bool) -> list[str]:
        async with self._one_at_a_time:
            self._check_running()
            changes = diff(self.topology, topology)
            if problems := refusals(changes, self._cluster) or await asyncio.to_thread(self._problems, topology):
                raise TopologyError(problems)
            ours = words(tuple(change for change in changes if change.concerns(self._cluster)), topology.names)
            if not dry_run:
                await self._carry_out(topology)
                self.topology, self._loaded_at_ms, self._file_refused = topology, _now_ms(), None
                self._reloads += 1
                log.info("topology reloaded", cluster=self._cluster, digest=digest(topology), changed=ours)
            return ours

    def status(self) -> dict[str, Any]:
        """Return the topology that runs, for the status."""
        topology = self.topology
        return {
            "digest": digest(topology),
            "file": None if topology.path is None else str(topology.path.absolute()),
            "loaded_at_ms": self._loaded_at_ms,
            "reloads": self._reloads,
            "refused": None if self._file_refused is None else self._file_refused.as_json(),
        }

    @property
    def file_refused(self) -> FileRefused | None:
        """Return why the file is not what runs, if the last reload of it failed; None if it was taken."""
        return self._file_refused

    def text(self) -> str:
        """Return the topology as YAML, without passwords."""
        return portable_text(self.topology)

    def _file(self) -> Path:
        if self.topology.path is None:
            raise TopologyError([f"the worker of {self._cluster} was not started with a file: restart it"])
        return self.topology.path

    def _check_meant(self, topology: Topology, expected: str | None) -> None:
        if expected is not None and (found := digest(topology)) != expected:
            raise TopologyDiffers(
                f"the topology file {self._file()} of the worker of {self._cluster} is another than the one to apply "
                f"(its digest is {found}): copy the same file to every worker first"
            )

    def _check_running(self) -> None:
        if self._cannot_change_as_it is not None:
            raise NotRunning(
                f"the worker of {self._cluster} cannot change its topology now, because it "
                f"{self._cannot_change_as_it}; try again later"
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
