"""``python -m bench.versions OTHER [NAME ...]``: measures groups with this version and with another one, in turn.

``OTHER`` is a checkout of the other version with its own ``.venv``. Both run this checkout's benchmarks, each in its
own environment, so only the ``replicator`` package differs. Peers are left out. Each pair begins with the version that
the pair before ended with, so that neither always finds the machine as the other one leaves it.

For each figure it prints both medians, and the median and the range of the ratios of the pairs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from bench.brokers import ALONE
from bench.measurement import significant

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final = ("copy", "lag", "publish", "subscriptions", "many", "live")
"""Groups to measure if none are named: those that users feel most."""
PAIRS: Final = 5

Figures = Mapping[str, float]


def main(
    other: Annotated[Path, typer.Argument(help="A checkout of the other version, with its .venv.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Groups to measure.")] = None,
    pairs: Annotated[int, typer.Option(min=1, help="How often each version is measured.")] = PAIRS,
    scale: Annotated[float, typer.Option(min=0.001, help="As of bench, for a trial.")] = 1.0,
) -> None:
    """Measure groups with this version and another one, in turn; print ratios of this one's figures to the other's."""
    measured: dict[Path, list[Figures]] = {other.absolute(): [], ROOT: []}
    order = list(measured)
    with tempfile.TemporaryDirectory(prefix="replicator-bench-") as directory:
        shutil.copytree(ROOT / "bench", Path(directory) / "bench")
        for number in range(pairs):
            for checkout in order:
                typer.echo(f"pair {number + 1} of {pairs}: {checkout}", err=True)
                measured[checkout].append(_measure(checkout, Path(directory), names or GROUPS, scale))
            order.reverse()
    typer.echo(table(measured[other.absolute()], measured[ROOT]))


def _measure(checkout: Path, directory: Path, names: Sequence[str], scale: float) -> Figures:
    """Run the benchmark code that lies in ``directory`` with the ``replicator`` of ``checkout``.

    Return the figures of the groups ``names``, by name of the figure.
    """
    subprocess.run(
        [checkout / ".venv/bin/python", "-m", "bench", *names, "--scale", str(scale)],
        cwd=directory,  # where Python finds bench; replicator comes from the environment
        env={**os.environ, ALONE: "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    results = json.loads((directory / "bench" / "results.json").read_text())
    return {each["name"]: each["value"] for each in results}


def table(other: Sequence[Figures], this: Sequence[Figures]) -> str:
    """Return a Markdown table of the figures that all runs have, with the ratios of this version to the other. Pure."""
    lines = ["| figure | other | this | ratio | from | to |", "| --- | --- | --- | --- | --- | --- |"]
    for name in this[0]:
        if not all(name in run for run in (*other, *this)):
            continue
        ratios = [one[name] / two[name] for one, two in zip(this, other, strict=True) if two[name]]
        if ratios:
            before, now = (f"{significant(median(run[name] for run in runs)):g}" for runs in (other, this))
            spread = (f"{ratio:.2f}" for ratio in (median(ratios), min(ratios), max(ratios)))
            lines.append(f"| {' | '.join((name, before, now, *spread))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
