"""Running of histories in child processes, each with a time limit."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from postgres_support import databases_of

from histories.drawing import draw
from histories.driver import regions_of, world
from histories.pauses import PAUSES
from histories.shapes import JOINED, SHAPES, Shape, largest
from histories.steps import Step, possible
from histories.watch import PATIENCE, Late, patient

SECONDS_MAX: Final = 60.0
"""A history that takes longer on a quiet machine is a finding."""
START_SECONDS_MAX: Final = 60.0
PATIENCE_ALONE: Final = 4.0
"""Factor of the limits of time for a history that runs again because it was late."""
SLOW_SHARE: Final = 0.1
"""Share of histories in which workers stop, are killed, lose their disks or their database."""
DELETES_SHARE: Final = 0.15
DEDUPLICATION_SHARE: Final = 0.4
OFFICIAL_SHARE: Final = 0.1
"""Share of histories without kills and deduplication, which makes one in twenty of all."""
JOINS_SHARE: Final = 0.06
"""Share of histories of a pair that another cluster can join. They share clusters with no other history."""
WEIGHTS: Final = {"pair": 5, "one-way": 2, "mesh": 2, "chain": 1, "ring": 1}
SLOW_WEIGHTS: Final = {"pair": 4, "one-way": 2, "mesh": 4, "chain": 1, "ring": 1}
"""Weights of shapes where disks are lost: only where links lead both ways does everything come back."""

Key = tuple[str, bool, int | None]


@dataclass(frozen=True, slots=True)
class History:
    """Parameters of a history: its shape, settings, and a seed or steps."""

    shape: Shape
    deduplication: bool
    seed: int
    slow: bool
    deletes: bool
    official: bool = False
    """Whether the official Python client takes part."""
    steps: tuple[Step, ...] | None = None
    joins: bool = False
    """Whether another cluster can join, if the shape allows that."""

    @property
    def clusters(self) -> Key:
        """Key of the clusters that the history needs. Histories with equal keys can share clusters."""
        return self.shape.name, self.deduplication, self.seed if self.joins else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a history. ``failure`` is empty if it passed."""

    steps: tuple[Step, ...]
    failure: str
    spent: Mapping[str, float]
    """Seconds by name of step."""
    late: bool = False
    """Whether it failed only because a limit of time was exceeded while workers were busy."""

    @property
    def seconds(self) -> float:
        return sum(self.spent.values())


def drawn_history(seed: int) -> History:
    """Return the history of a seed."""
    drawn = random.Random(seed)
    slow = drawn.random() < SLOW_SHARE
    weights = SLOW_WEIGHTS if slow else WEIGHTS
    shape = SHAPES[drawn.choices(list(weights), weights=list(weights.values()))[0]]
    deduplication, deletes = drawn.random() < DEDUPLICATION_SHARE, drawn.random() < DELETES_SHARE
    official = drawn.random() < OFFICIAL_SHARE and not slow and not deduplication
    joins = drawn.random() < JOINS_SHARE and shape.name in JOINED
    return History(shape, deduplication, seed, slow, deletes, official, joins=joins)


class Notes:
    """File by which the child process tells its parent each step and the end of each history, one line each."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def step(self, step: Step) -> None:
        self._write(name=step.name, arguments=dict(step.arguments))

    def ended(self, failure: str, spent: dict[str, float], *, late: bool = False) -> None:
        rounded = {name: round(seconds, 2) for name, seconds in spent.items()}
        self._write(failure=failure, spent=rounded, late=late)

    def _write(self, **line: object) -> None:
        self._file.write(json.dumps(line) + "\n")


async def carry_out(
    histories: Sequence[History],
    path: Path,
    databases: dict[str, str],
    count: int,
    notes: Notes,
    until: float | None = None,
) -> None:
    """Run histories on the same clusters, up to the first that fails. Begin none after the time ``until``.

    A history that has no steps of its own draws ``count`` steps. Write each step and each history's end to ``notes``.
    """
    shape, deduplication = histories[0].shape, histories[0].deduplication
    async with regions_of(shape, path, databases, deduplication=deduplication) as regions:
        for number, history in enumerate(histories):
            if until is not None and time.monotonic() > until:
                return
            drawn = random.Random(f"steps of {history.seed}")
            spent: dict[str, float] = {}
            try:
                limit = patient(SECONDS_MAX)
                made = world(regions, shape, name=f"h{number}", official=history.official, joins=history.joins)
                async with asyncio.timeout(limit), made as clusters:
                    steps = 0
                    given = list(history.steps or ())
                    while steps < count if history.steps is None else given:
                        if history.steps is None:
                            step = draw(drawn, clusters.model, slow=history.slow, deletes=history.deletes)
                        elif not possible(step := given.pop(0), clusters.model):
                            continue
                        steps += 1
                        notes.step(step)
                        began = time.monotonic()
                        await getattr(clusters, step.name)(**step.arguments)
                        spent[step.name] = spent.get(step.name, 0.0) + time.monotonic() - began
                    began = time.monotonic()
                    await clusters.finish()
                    spent["finish"] = time.monotonic() - began
            except TimeoutError:
                notes.ended(f"it did not end within {limit:.0f} s", spent, late=True)
                return
            except Exception as error:  # noqa: BLE001 - whatever goes wrong in a history is a finding
                text = "".join(traceback.format_exception(error))
                late = isinstance(error, Late | subprocess.TimeoutExpired)
                notes.ended(f"{type(error).__name__}: {error}\n{text[-4_000:]}", spent, late=late)
                return
            notes.ended("", spent)


def run(
    histories: Sequence[History],
    server: str,
    count: int,
    *,
    keep: Path | None = None,
    until: float | None = None,
    patience: float = 1.0,
) -> list[Outcome]:
    """Run histories in a child process. Return the outcomes up to the first that failed.

    Begin none after the time ``until`` of the monotonic clock. ``patience`` is a factor of all limits of time.
    """
    PATIENCE.set(patience)
    directory = Path(tempfile.mkdtemp(prefix="pg-history-"))
    directory.chmod(0o755)  # as root, the server of the database runs as another user
    noted = directory / "notes"
    noted.touch()
    names = largest(histories[0].shape).clusters if histories[0].joins else histories[0].shape.clusters
    with databases_of("".join(names), server, f"h{os.getpid()}") as databases:
        pid = os.fork()
        if not pid:
            _child(histories, directory, databases, count, noted, until)
        ended, late = _ended(pid, patient(START_SECONDS_MAX + len(histories) * SECONDS_MAX))
    outcomes = _outcomes(noted, ended, late=late)
    if outcomes and outcomes[-1].failure:
        text = outcomes[-1].failure + _logged(directory, names)
        outcomes[-1] = replace(outcomes[-1], failure=text)
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(directory, keep)
    shutil.rmtree(directory, ignore_errors=True)
    return outcomes


def settled_alone(history: History, outcome: Outcome, server: str, count: int) -> Outcome:
    """Return the outcome of a history that failed only by a limit of time after it ran once more.

    It runs alone on clusters of its own, with patience, and to its end. An outcome that did not fail so is returned
    unchanged.
    """
    if not outcome.late:
        return outcome
    (again,) = run([history], server, count, patience=PATIENCE_ALONE)
    return again if again.failure else replace(again, late=True)


def _child(
    histories: Sequence[History],
    directory: Path,
    databases: dict[str, str],
    count: int,
    noted: Path,
    until: float | None,
) -> None:
    """Run histories; does not return."""
    os.setsid()
    os.environ[PAUSES] = str(directory)
    status = 1
    try:
        asyncio.run(carry_out(histories, directory, databases, count, Notes(noted), until))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _ended(pid: int, seconds: float) -> tuple[str, bool]:
    """Wait for a child. Return an error, or "" if it ended well, and whether a limit of time is the cause."""
    deadline, has_ended = time.monotonic() + seconds, False
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                has_ended = True
                return "" if status == 0 else f"the process of the history ended with {status}", False
            time.sleep(0.02)
    finally:  # also when it is interrupted
        if not has_ended:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"the process of the history did not end within {seconds:.0f} s", True


def _outcomes(noted: Path, ended: str, *, late: bool) -> list[Outcome]:
    found: list[Outcome] = []
    steps: list[Step] = []
    for line in noted.read_text().splitlines():
        said = json.loads(line)
        if "name" in said:
            steps.append(Step(said["name"], said["arguments"]))
        else:
            found.append(Outcome(tuple(steps), said["failure"], said["spent"], said["late"]))
            steps = []
    if ended and not (found and found[-1].failure):
        found.append(Outcome(tuple(steps), ended, {}, late))
    return found


def _logged(directory: Path, names: Sequence[str]) -> str:
    """Return the first traceback in the log of each worker."""
    text = ""
    for name in names:
        log = directory / f"{name}.log"
        if log.exists() and "Traceback" in (content := log.read_text()):
            at = content.index("Traceback")
            text += f"\n--- {name}.log\n{content[max(0, at - 500) : at + 2_500]}"
    return text
