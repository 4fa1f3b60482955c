"""``replicator apply``: make the running workers take a changed topology file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replicator.cli.admin import opened_topology
from replicator.cli.output import Shown, side_console
from replicator.operating.json_types import ApplyAnswer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from replicator.operating.rollout import Outcome, Rollout


def apply(
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="Topology file that the workers should run.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Apply the changes without asking for confirmation.")
    ] = False,
    skip_unreachable: Annotated[
        bool,
        typer.Option(
            "--skip-unreachable", help="Go on without workers that do not answer; they read the file when they start."
        ),
    ] = False,
) -> Shown[ApplyAnswer]:
    """Make the running workers of a topology read its changed file, without a restart.

    Each worker reads its own file, so distribute the changed file first. All workers are asked to check the change
    before any of them makes it. Exit status 2 if a worker refuses, or if its own file has other paths; 3 if a worker
    does not answer.
    """
    from replicator.operating.rollout import ask_workers, carry_out, problems_of, worst_status

    rollout = asyncio.run(ask_workers(opened_topology(file)))
    if not rollout.participants or (rollout.missing and not skip_unreachable):
        hint = "" if not rollout.participants else "; nothing was changed (--skip-unreachable goes on without them)"
        problems = [f"{worker.cluster}: {worker.error}" for worker in rollout.missing]
        away = [f"error: workers do not answer: {'; '.join(problems)}{hint}"]
        return Shown(_value(rollout, [], applied=False, problems=problems), _table(rollout, []), status=3, notes=away)
    if rollout.nothing_to_do:
        return _applied(rollout, [])
    if not yes:
        if not sys.stdin.isatty():
            said = "there is no terminal to ask whether the changes are meant: give --yes"
            return _refused(rollout, [], 2, said)
        side_console().print(rollout.render(), soft_wrap=True)
        if not typer.confirm("Make these changes?", err=True):
            return _refused(rollout, [], 1, "nothing was changed")
    checked = asyncio.run(carry_out(rollout, dry_run=True))
    if status := worst_status(checked):
        return _refused(rollout, problems_of(checked), status, "nothing was changed")
    if unread := rollout.unsaved_changes(checked):
        return _refused(rollout, unread, 2, "nothing was changed")
    outcomes = asyncio.run(carry_out(rollout, dry_run=False))
    if status := worst_status(outcomes):
        said = "not all workers changed; put right what is said above and apply again"
        return _refused(rollout, problems_of(outcomes), status, said, outcomes)
    return _applied(rollout, outcomes)


def _applied(rollout: Rollout, outcomes: list[Outcome]) -> Shown[ApplyAnswer]:
    return Shown(_value(rollout, outcomes, applied=True), _table(rollout, outcomes))


def _refused(
    rollout: Rollout, problems: list[str], status: int, said: str, outcomes: list[Outcome] | None = None
) -> Shown[ApplyAnswer]:
    value = _value(rollout, outcomes or [], applied=False, problems=problems)
    notes = [f"error: {problem}" for problem in (*problems, said)]
    return Shown(value, _table(rollout, []), status=status, notes=notes)


def _value(
    rollout: Rollout, outcomes: list[Outcome], *, applied: bool, problems: list[str] | None = None
) -> ApplyAnswer:
    return {
        **rollout.as_json(),
        "applied": applied,
        "workers": {
            outcome.cluster: {"changed": list(outcome.changed), "problems": list(outcome.problems)}
            for outcome in outcomes
        },
        "problems": problems or [],
    }


def _table(rollout: Rollout, outcomes: list[Outcome]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines = [f"{outcome.cluster}: {'; '.join(outcome.changed) or 'nothing to change here'}" for outcome in outcomes]
    return Group(rollout.render(), *(Text(line, no_wrap=True, overflow="ignore") for line in lines))
