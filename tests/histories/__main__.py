"""Draw random histories, run them in child processes, and shrink what fails: ``python -m histories --help``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

import forked_commands
from postgres_support import databases_of, served_postgres

from histories.driver import regions_of, world
from histories.model import SHAPES, Shape
from histories.shrink import shrunk
from histories.steps import Step, describe, draw, possible

SECONDS_MAX: Final = 60.0
"""A history that takes longer on a quiet machine is a finding."""
START_SECONDS_MAX: Final = 60.0
STEPS: Final = 60
SLOW_SHARE: Final = 0.2
"""Share of histories in which workers are stopped, killed and started."""
DELETES_SHARE: Final = 0.1
BATCH: Final = 12
"""Histories that share clusters, one after the other."""


@dataclass(frozen=True, slots=True)
class History:
    """Parameters of a history: its shape, settings, and a seed or steps."""

    shape: Shape
    deduplication: bool
    seed: int
    slow: bool
    deletes: bool
    steps: tuple[Step, ...] | None = None

    @property
    def clusters(self) -> tuple[str, bool]:
        """Key of the clusters that the history needs. Histories with equal keys can share clusters."""
        return self.shape.name, self.deduplication


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a history. ``failure`` is empty if it passed."""

    steps: tuple[Step, ...]
    failure: str
    seconds: float


def drawn_history(seed: int) -> History:
    """Return the history of a seed."""
    drawn = random.Random(seed)
    shape = drawn.choices(list(SHAPES.values()), weights=[5, 2, 2, 1, 1])[0]
    return History(shape, drawn.random() < 0.4, seed, drawn.random() < SLOW_SHARE, drawn.random() < DELETES_SHARE)


class Notes:
    """File by which the child process tells its parent each step and the end of each history, one line each."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def step(self, step: Step) -> None:
        self._write(name=step.name, arguments=dict(step.arguments))

    def ended(self, failure: str, spent: dict[str, float]) -> None:
        self._write(failure=failure, spent={name: round(seconds, 2) for name, seconds in spent.items()})

    def _write(self, **line: object) -> None:
        self._file.write(json.dumps(line) + "\n")


async def carry_out(
    histories: Sequence[History], path: Path, databases: dict[str, str], count: int, notes: Notes
) -> None:
    """Run histories on the same clusters, up to the first that fails."""
    shape, deduplication = histories[0].shape, histories[0].deduplication
    async with regions_of(shape, path, databases, deduplication=deduplication) as regions:
        for number, history in enumerate(histories):
            drawn = random.Random(f"steps of {history.seed}")
            spent: dict[str, float] = {}
            try:
                async with asyncio.timeout(SECONDS_MAX), world(regions, shape, name=f"h{number}") as clusters:
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
                notes.ended(f"it did not end within {SECONDS_MAX:.0f} s", spent)
                return
            except Exception as error:  # noqa: BLE001 - whatever goes wrong in a history is a finding
                text = "".join(traceback.format_exception(error))
                notes.ended(f"{type(error).__name__}: {error}\n{text[-4_000:]}", spent)
                return
            notes.ended("", spent)


def run(histories: Sequence[History], server: str, count: int, *, keep: Path | None = None) -> list[Outcome]:
    """Run histories in a child process. Return the outcomes up to the first that failed."""
    directory = Path(tempfile.mkdtemp(prefix="pg-history-"))
    directory.chmod(0o755)  # as root, the server of the database runs as another user
    noted = directory / "notes"
    noted.touch()
    names = histories[0].shape.clusters
    began = time.monotonic()
    with databases_of("".join(names), server, f"h{os.getpid()}") as databases:
        pid = os.fork()
        if not pid:
            _child(histories, directory, databases, count, noted)
        ended = _ended(pid, START_SECONDS_MAX + len(histories) * SECONDS_MAX)
    outcomes = _outcomes(noted, ended)
    if outcomes and outcomes[-1].failure:
        text = outcomes[-1].failure + _logged(directory, names)
        outcomes[-1] = replace(outcomes[-1], failure=text, seconds=time.monotonic() - began)
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(directory, keep)
    shutil.rmtree(directory, ignore_errors=True)
    return outcomes


def _child(histories: Sequence[History], directory: Path, databases: dict[str, str], count: int, noted: Path) -> None:
    """Run histories; does not return."""
    os.setsid()
    status = 1
    try:
        asyncio.run(carry_out(histories, directory, databases, count, Notes(noted)))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _ended(pid: int, seconds: float) -> str:
    """Wait for a child. Return what was wrong with its end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "" if status == 0 else f"the process of the history ended with {status}"
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f"the process of the history did not end within {seconds:.0f} s"


def _outcomes(noted: Path, ended: str) -> list[Outcome]:
    found: list[Outcome] = []
    steps: list[Step] = []
    for line in noted.read_text().splitlines():
        said = json.loads(line)
        if "name" in said:
            steps.append(Step(said["name"], said["arguments"]))
        else:
            found.append(Outcome(tuple(steps), said["failure"], sum(said["spent"].values())))
            steps = []
    if ended and not (found and found[-1].failure):
        found.append(Outcome(tuple(steps), ended, 0.0))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="histories to run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each")
    parser.add_argument("--seconds", type=float, default=0, help="begin none after so many seconds; 0: run all")
    parser.add_argument("--no-shrink", action="store_true", help="print failing histories as they were drawn")
    parser.add_argument("--keep", type=Path, help="directory for the data of histories that fail")
    chosen = parser.parse_args(arguments)
    forked_commands.run("--version", cwd=Path.cwd())  # imports once, for all histories
    began, done, failed = time.monotonic(), 0, 0
    drawn = [drawn_history(seed) for seed in range(chosen.seed, chosen.seed + chosen.n)]
    with served_postgres() as server:
        for _, group in groupby(sorted(drawn, key=lambda each: each.clusters), key=lambda each: each.clusters):
            left = list(group)
            while left and not (chosen.seconds and time.monotonic() - began > chosen.seconds):
                keep = None if chosen.keep is None else chosen.keep / str(left[0].seed)
                outcomes = run(left[:BATCH], server, chosen.steps, keep=keep)
                for history, outcome in zip(left, outcomes, strict=False):
                    print(f"seed {history.seed}: {_kind(history)}, {len(outcome.steps)} steps, {outcome.seconds:.1f} s")
                    if outcome.failure:
                        failed += 1
                        _report(history, outcome, server, chosen.steps, shrink=not chosen.no_shrink)
                sys.stdout.flush()
                done += len(outcomes)
                left = left[max(1, len(outcomes)) :]
    print(f"{done} histories, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _kind(history: History) -> str:
    return " ".join([
        history.shape.name,
        *(["deduplication"] if history.deduplication else []),
        *(["kills"] if history.slow else []),
        *(["deletions"] if history.deletes else []),
    ])  # fmt: skip


def _report(history: History, outcome: Outcome, server: str, count: int, *, shrink: bool) -> None:
    print(f"FAILED: {outcome.failure}", flush=True)
    steps = list(outcome.steps)
    if shrink:

        def fails(fewer: list[Step]) -> bool:
            (ended,) = run([replace(history, steps=tuple(fewer))], server, count)
            return bool(ended.failure)

        steps = shrunk(steps, fails)
    print(describe(history.shape, steps, deduplication=history.deduplication), flush=True)


if __name__ == "__main__":
    sys.exit(main())
