"""Findings of the doctor, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from replicator.operating.json_types import DoctorAnswer, DoctorFinding


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """The thing works, and may be slow, unsafe or soon at its end."""
    ERROR = "error"
    """A worker does not start, or does not do what it should."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    """Stable name of the check, such as ``disk``."""
    subject: str
    """The checked cluster, or ``this machine``."""
    level: Level
    text: str
    remedy: str = ""
    """Remedy of the problem; empty if nothing is to be done."""

    def as_json(self) -> DoctorFinding:
        return {
            "check": self.check,
            "subject": self.subject,
            "level": self.level.value,
            "text": self.text,
            "remedy": self.remedy,
        }


MACHINE: Final = "this machine"
_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}


def as_json(findings: Sequence[Finding]) -> DoctorAnswer:
    counts: Any = {level.value: sum(each.level is level for each in findings) for level in Level}
    return {"counts": counts, "findings": [each.as_json() for each in findings]}


def as_table(findings: Sequence[Finding]) -> Table:
    """Return a table of problems and remedies, with the worst last, where a terminal shows it."""
    order = [Level.OK, Level.WARNING, Level.ERROR]
    table = Table("", "check", "about", "finding → what to do")
    for each in sorted(findings, key=lambda each: order.index(each.level)):
        text = f"{each.text}\n→ {each.remedy}" if each.remedy else each.text
        table.add_row(Text(each.level.value, style=_STYLES[each.level]), each.check, each.subject, text)
    return table


def exit_status(findings: Sequence[Finding], *, strict: bool) -> int:
    """Return 1 for an error, and with ``strict`` for a warning too."""
    bad = {Level.ERROR, Level.WARNING} if strict else {Level.ERROR}
    return int(any(each.level in bad for each in findings))
