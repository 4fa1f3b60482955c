"""``make compare``: the same failover drill on each system, several seeds, as one table.

``python -m bench.compare [--seeds 5] [--rate 1000] [--messages 20000] [--out compared]``

Every run is ``replicator drill`` as a user would give it, in a process of its own. Systems take turns, seed by seed,
so that a machine that becomes slower does so for all. ``--out`` gets the directory of each run, ``compared.json`` with
all reports (each has the configuration of its system), and ``compared.md`` with the table. A system that is not here is
left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.machine import machine_line

RUN_SECONDS_MAX: Final = 900
NOT_USABLE: Final = 2
"""Exit status of a drill that cannot run on this machine."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Column of the comparison: a system's title, and the options of its ``replicator drill``."""

    title: str
    options: tuple[str, ...]


CANDIDATES: Final = (
    Candidate("ours, embedded", ("--system", "replicator", "--engine", "embedded")),
    Candidate("ours, official client", ("--system", "replicator", "--engine", "embedded", "--client", "pulsar")),
    Candidate("ours, Spark", ("--system", "replicator", "--engine", "spark")),
    Candidate("ours, beside Pulsar", ("--kind", "pulsar", "--engine", "embedded")),
    Candidate("Pulsar geo-replication", ("--system", "pulsar-geo")),
    Candidate("MirrorMaker 2", ("--system", "mirrormaker2")),
)
_OF_ALL: Final = (
    ("lost", "lost"),
    ("out of order", "out_of_order"),
    ("stranded (RPO)", "rpo_messages"),
    ("RTO, s", "rto_seconds"),
    ("copy lag p50, ms", "copy_lag_ms.p50"),
    ("copy lag p99, ms", "copy_lag_ms.p99"),
    ("sync lag p50, ms", "sync_lag_ms.p50"),
    ("sync lag p99, ms", "sync_lag_ms.p99"),
)
_OF_SUBSCRIPTIONS: Final = (
    ("repeated", "repeated"),
    ("repeated though acknowledged", "repeated_acked_before_kill"),
    ("repeated though settled", "repeated_acked_over_1s_before_kill"),
)

Report = Mapping[str, Any]


def table(reports: Mapping[str, Sequence[Report]]) -> str:
    """Return a Markdown table of each system's figures: medians, with the least and the greatest. Pure.

    ``reports`` has the drills' reports by title of the system. "none" stands for a subscription that a system does not
    have, "–" for a value that could not be measured.
    """
    lines = ["| | " + " | ".join(reports) + " |", "| --- |" + " --- |" * len(reports)]
    for label, field in _OF_ALL:
        cells = [_cell([_field(each, field) for each in of]) for of in reports.values()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    for kind in _kinds(reports):
        for label, field in _OF_SUBSCRIPTIONS:
            cells = [_cell(values) if (values := _of_kind(of, kind, field)) else "none" for of in reports.values()]
            lines.append(f"| {kind.removeprefix('drill-')}: {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _kinds(reports: Mapping[str, Sequence[Report]]) -> Iterator[str]:
    yield from dict.fromkeys(sub["name"] for of in reports.values() for each in of for sub in each["subscriptions"])


def _of_kind(reports: Sequence[Report], kind: str, field: str) -> list[Any]:
    return [sub[field] for each in reports for sub in each["subscriptions"] if sub["name"] == kind]


def _field(report: Report, dotted: str) -> Any:
    value: Any = report
    for part in dotted.split("."):
        value = value[part]
    return value


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    least, middle, greatest = (_shown(value) for value in (min(known), median(known), max(known)))
    return middle if least == greatest else f"{middle} ({least} to {greatest})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


def _run(candidate: Candidate, seed: int, rate: int, messages: int, out: Path) -> Report | None:
    """Run a drill of a candidate, with ``rate`` messages a second; print whether it passed, and return its report.

    Return None if it made no report, after a message that says so.
    """
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "replicator.cli", "drill", "--quiet", *candidate.options]
    command += ["--seed", str(seed), "--rate", str(rate), "--messages", str(messages), "--out", str(out)]
    file = out / "report.json"
    file.unlink(missing_ok=True)
    done = subprocess.run(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if done.returncode == NOT_USABLE or not file.exists():
        print(f"{candidate.title}, seed {seed}: no report, status {done.returncode}: {done.stderr.strip()[-400:]}")
        return None
    report: Report = json.loads(file.read_text())
    print(f"{candidate.title}, seed {seed}: " + ("passed" if report["passed"] else f"failed: {report['failures'][0]}"))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("compared"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    machine = machine_line(asked.out)
    print(machine)
    reports: dict[str, list[Report]] = {each.title: [] for each in CANDIDATES}
    for seed in range(1, asked.seeds + 1):
        for number, candidate in enumerate(CANDIDATES):
            out = asked.out / f"{number}-{seed}"
            report = _run(candidate, seed, asked.rate, asked.messages, out)
            if report is not None:
                reports[candidate.title].append(report)
    found = {title: of for title, of in reports.items() if of}
    runs = ", ".join(f"{title}: {len(of)}" for title, of in found.items())
    text = (
        f"{asked.messages:,} messages at {asked.rate:,} a second; medians, and the least and the greatest of all "
        f"runs ({runs}).\n\n{machine}\n\n{table(found)}"
    )
    (asked.out / "compared.md").write_text(text)
    (asked.out / "compared.json").write_text(json.dumps({"machine": machine, "reports": found}, indent=2) + "\n")
    print(text)
    sys.exit(0 if len(found) == len(CANDIDATES) else 1)


if __name__ == "__main__":
    main()
