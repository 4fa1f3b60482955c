"""Draw random histories, run them in child processes, and shrink what fails: ``python -m histories --help``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import forked_commands
from postgres_support import served_postgres

from histories.known import KNOWN
from histories.report import Report, program_of
from histories.reverts import REVERTS
from histories.running import History, Key, Outcome, drawn_history, run, settled_alone
from histories.shrink import failure_kind, shrunk
from histories.steps import Step

STEPS: Final = 60
BATCH: Final = 6
"""Histories that share clusters, one after the other."""
SEEDS_OF_COMMIT: Final = 10**9
"""Number of seeds among which a commit chooses its first one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories. Return 1 if one failed, or if one did not run and no time limit was given."""
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="histories to run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one")
    parser.add_argument("--commit", help="id of a commit, from which the first seed is derived")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each")
    parser.add_argument("--seconds", type=float, default=0, help="begin none after so many seconds; 0: run all")
    parser.add_argument("--no-shrink", action="store_true", help="print failing histories as they were drawn")
    parser.add_argument("--first", action="store_true", help="end at the first history that fails")
    parser.add_argument("--only", choices=("fast", "slow"), help="leave out histories with kills, or those without")
    parser.add_argument("--revert", choices=sorted(REVERTS), help="run workers without this fix")
    parser.add_argument("--known", action="store_true", help="run the known sequences instead of random ones")
    parser.add_argument("--keep", type=Path, help="directory for the data of histories that fail")
    chosen = parser.parse_args(arguments)
    os.environ[forked_commands.EDITED] = chosen.revert or ""
    first = int(chosen.commit, 16) % SEEDS_OF_COMMIT if chosen.commit else chosen.seed
    print(f"histories from seed {first} on", flush=True)
    forked_commands.run("--version", cwd=Path.cwd())  # imports once, for all histories
    began, report = time.monotonic(), Report()
    drawn = [drawn_history(seed) for seed in range(first, first + chosen.n)]
    if chosen.known:
        drawn = [KNOWN[chosen.revert]] if chosen.revert else list(KNOWN.values())
    if chosen.only:
        drawn = [each for each in drawn if each.slow == (chosen.only == "slow")]

    until = began + chosen.seconds if chosen.seconds else None

    def is_over() -> bool:
        late = until is not None and time.monotonic() > until
        return bool(late or (chosen.first and report.failed))

    with served_postgres() as server:
        for batch in batches_of(drawn):
            left = batch
            while left and not is_over():
                keep = None if chosen.keep is None else chosen.keep / str(left[0].seed)
                outcomes = run(left, server, chosen.steps, keep=keep, until=until)
                for history, ended in zip(left, outcomes, strict=False):
                    if ended.late:
                        print(f"seed {history.seed} was late, and runs once more alone: {ended.failure}", flush=True)
                    outcome = settled_alone(history, ended, server, chosen.steps)
                    print(report.add(history, outcome))
                    if outcome.failure:
                        _show(history, outcome, server, chosen.steps, shrink=not chosen.no_shrink)
                sys.stdout.flush()
                left = left[max(1, len(outcomes)) :]
    print("\n".join(report.summary()))
    print(f"{report.histories} histories, {report.failed} failed, {time.monotonic() - began:.0f} s")
    missing = 0 if chosen.seconds or chosen.first else len(drawn) - report.histories
    if missing:
        print(f"{missing} histories did not run")
    return 1 if report.failed or missing else 0


def batches_of(drawn: Sequence[History]) -> list[list[History]]:
    """Return the histories in groups that share clusters, in the order of their first seeds."""
    batches: list[list[History]] = []
    open_batches: dict[Key, list[History]] = {}
    for history in drawn:
        batch = open_batches.get(history.clusters)
        if batch is None or len(batch) == BATCH:
            batch = open_batches[history.clusters] = []
            batches.append(batch)
        batch.append(history)
    return batches


def _show(history: History, outcome: Outcome, server: str, count: int, *, shrink: bool) -> None:
    """Print a failure, and the steps that lead to it as a program."""
    print(f"FAILED: {outcome.failure}", flush=True)
    steps = list(outcome.steps)
    if shrink:

        def fails(fewer: list[Step]) -> bool:
            (ended,) = run([replace(history, steps=tuple(fewer))], server, count)
            return failure_kind(ended.failure) == failure_kind(outcome.failure)

        steps = shrunk(steps, fails)
    print(program_of(history, steps), flush=True)


if __name__ == "__main__":
    sys.exit(main())
