"""``replicator apply``: make the running workers take a changed topology file."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from replicator.cli.admin import OUTPUT_COLUMNS, check_output, opened_topology

if TYPE_CHECKING:
    from replicator.operating.rollout import Outcome, Rollout

err = Console(stderr=True)


def apply(
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The topology that the workers are to run.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether the changes are meant.")] = False,
    skip_unreachable: Annotated[
        bool,
        typer.Option(
            "--skip-unreachable", help="Go on without workers that do not answer; they read the file when they start."
        ),
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="table|json", help="How to print the result.")
    ] = "table",
) -> None:
    """Make the running workers of a topology read its changed file, without a restart.

    Each worker reads its own file: distribute the file first. All are asked to check before any of them changes.
    Exit status 2 if a worker refuses, 3 if one does not answer.
    """
    check_output(output)
    from replicator.operating.rollout import ask_workers, carry_out, problems_of, worst_status

    rollout = asyncio.run(ask_workers(opened_topology(file)))
    _show_plan(output, rollout)
    if not rollout.taking_part or (rollout.missing and not skip_unreachable):
        hint = "" if not rollout.taking_part else "; nothing was changed (--skip-unreachable goes on without them)"
        _fail(output, rollout, [f"{w.cluster}: {w.error}" for w in rollout.missing], 3, f"workers do not answer{hint}")
    if rollout.nothing_to_do:
        _finish(output, rollout, [])
        return
    if not yes:
        _confirm(output, rollout)
    checked = asyncio.run(carry_out(rollout, dry_run=True))
    if status := worst_status(checked):
        _fail(output, rollout, problems_of(checked), status, "nothing was changed")
    outcomes = asyncio.run(carry_out(rollout, dry_run=False))
    if status := worst_status(outcomes):
        said = "not all workers changed; put right what is said above and apply again"
        _fail(output, rollout, problems_of(outcomes), status, said, outcomes)
    _finish(output, rollout, outcomes)


def _show_plan(output: str, rollout: Rollout) -> None:
    if output == "table":
        _out().print(rollout.render())


def _confirm(output: str, rollout: Rollout) -> None:
    if not sys.stdin.isatty():
        _fail(output, rollout, [], 2, "there is no terminal to ask whether the changes are meant: give --yes")
    if not typer.confirm("Make these changes?", err=True):
        _fail(output, rollout, [], 1, "nothing was changed")


def _finish(output: str, rollout: Rollout, outcomes: list[Outcome]) -> None:
    if output == "json":
        _print_json(rollout, outcomes, applied=True)
        return
    for outcome in outcomes:
        _out().print(f"{outcome.cluster}: {'; '.join(outcome.changed) or 'nothing to change here'}", markup=False)


def _fail(
    output: str, rollout: Rollout, problems: list[str], status: int, said: str, outcomes: list[Outcome] | None = None
) -> None:
    if output == "json":
        _print_json(rollout, outcomes or [], applied=False, problems=problems)
    for problem in problems:
        err.print(f"error: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    err.print(f"error: {said}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def _print_json(rollout: Rollout, outcomes: list[Outcome], *, applied: bool, problems: list[str] | None = None) -> None:
    answer: dict[str, Any] = {
        **rollout.as_json(),
        "applied": applied,
        "workers": {
            outcome.cluster: {"changed": list(outcome.changed), "problems": list(outcome.problems)}
            for outcome in outcomes
        },
        "problems": problems or [],
    }
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def _out() -> Console:
    return Console(width=None if sys.stdout.isatty() else OUTPUT_COLUMNS, highlight=False, markup=False, soft_wrap=True)
