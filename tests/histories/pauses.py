"""Named places in the product where a history can stop a process, to do something in the middle of its work.

Workers and commands of histories run with :data:`POINTS`. A process that comes to a point goes on at once, unless a
file with the point's name is in the directory of pauses. Then it notes that it is there, and waits until the file is
gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from histories.edits import Edit
from histories.watch import Late, patient

PAUSES: Final = "REPLICATOR_TESTS_PAUSES"
"""Environment variable with the directory of pauses."""
POLL_SECONDS: Final = 0.005
REACHED_SECONDS: Final = 30.0
RECLAIM: Final = "reclaim"
"""A reclaim is about to take back the first messages of a topic."""
BACKUP: Final = "backup"
"""A backup is about to copy the first piece of a store."""
FAILOVER: Final = "failover"
"""A planned failover has fenced the source and drained the links, and is about to write the next epoch."""
UNPLANNED: Final = "unplanned"
"""An unplanned failover has written the next epoch at the target, and is about to tell other clusters of it."""

_CALL: Final = '__import__("histories.pauses", fromlist=["come_to"]).come_to("{}")\n'

POINTS: Final = (
    Edit(
        "replicator.backup.reclaiming",
        "                await self._begin()\n                try:\n",
        f"                await self._begin()\n                {_CALL.format(RECLAIM)}                try:\n",
    ),
    Edit(
        "replicator.backup.creating",
        "        for piece in copy.pieces:\n",
        f"        for piece in copy.pieces:\n            {_CALL.format(BACKUP)}",
    ),
    Edit(
        "replicator.failover.planned_run",
        "        report = self._report\n        await self._renew()\n",
        f"        report = self._report\n        {_CALL.format(FAILOVER)}        await self._renew()\n",
    ),
    Edit(
        "replicator.failover.switch",
        '        report.epoch, report.outcome = record.epoch, "done"\n',
        f'        report.epoch, report.outcome = record.epoch, "done"\n        {_CALL.format(UNPLANNED)}',
    ),
)


def come_to(point: str) -> None:
    """Wait at ``point`` while a history wants that. Block the thread."""
    if directory := os.environ.get(PAUSES):
        file = Path(directory, point)
        if file.exists():
            _note_of(file).touch()
            while file.exists():
                time.sleep(POLL_SECONDS)


class Pause:
    """Pause of the next process that comes to one point."""

    def __init__(self, point: str) -> None:
        self._file = Path(os.environ[PAUSES], point)
        _note_of(self._file).unlink(missing_ok=True)
        self._file.touch()

    def wait(self, ended: Callable[[], bool]) -> bool:
        """Wait until a process is at the point. Return False if ``ended`` says that it ended before."""
        deadline = time.monotonic() + patient(REACHED_SECONDS)
        while not _note_of(self._file).exists():
            if ended():
                return False
            if time.monotonic() > deadline:
                raise Late(f"nobody comes to the point {self._file.name} within {patient(REACHED_SECONDS):.0f} s")
            time.sleep(POLL_SECONDS)
        return True

    def end(self) -> None:
        """Let the process go on."""
        self._file.unlink(missing_ok=True)


def _note_of(file: Path) -> Path:
    return file.with_suffix(".reached")
