"""docs/limits.md: the limits that somebody may meet, each with its number, its reason and what happens past it.

The number and the reason are a constant's value and docstring. limits.yaml beside this file says what is limited, and
what happens past the limit.
"""

from __future__ import annotations

import ast
import importlib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml
from reference_fields import Undocumented, plain

from replicator.topology.scalars import format_size

PAGE: Final = "limits.md"
LIMITS: Final = Path(__file__).with_name("limits.yaml")


def page(repository: Path) -> str:
    """Return the page. Raise :class:`Undocumented` with everything that is wrong."""
    sections: dict[str, list[dict[str, str]]] = yaml.safe_load(LIMITS.read_text())
    wrong: list[str] = []
    lines = [_HEAD]
    for title, limits in sections.items():
        lines.append(f"\n## {title}\n\n{_TABLE}")
        for limit in limits:
            try:
                lines.append(_line(limit, repository))
            except (ModuleNotFoundError, AttributeError):
                wrong.append(
                    f".ci/reference/limits.yaml names {limit['constant']}, which is not there: "
                    "correct it or take it out, then run `make reference`"
                )
    if wrong:
        raise Undocumented("\n".join(wrong))
    return "".join(lines) + _FOOT


def _line(limit: dict[str, str], repository: Path) -> str:
    module, _, name = limit["constant"].rpartition(".")
    value = getattr(importlib.import_module(module), name)
    path = Path(*module.split(".")).with_suffix(".py")
    setting = f"; `{limit['setting']}` sets it" if "setting" in limit else ""
    reason = _docstrings(repository / path).get(name, "")
    return (
        f"| {limit['of']} | {shown(name, value)}{setting} | {limit.get('past', '')} | {reason} | `{path}`: `{name}` |\n"
    )


def shown(name: str, value: Any) -> str:
    if "BYTES" in name and isinstance(value, int):
        return format_size(value) if value >= 1024 else f"{value} bytes"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


@cache
def _docstrings(path: Path) -> dict[str, str]:
    """Return the docstrings of a module's constants, by name."""
    body = ast.parse(path.read_text()).body
    found = {}
    for constant, after in pairwise(body):
        target = constant.target if isinstance(constant, ast.AnnAssign) else None
        if (
            isinstance(target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[target.id] = plain(" ".join(after.value.value.split()))
    return found


_TABLE: Final = "| of | limit | past it | why | where it comes from |\n| --- | --- | --- | --- | --- |\n"
_HEAD: Final = """# Limits

<!-- Made by `make reference` from the constants and .ci/reference/limits.yaml. Do not edit it. -->

Everything has a limit, so that nobody takes a worker's memory, disk or time from the others: past it who sends is
slowed, or gets an error that says so. These are the limits that somebody may meet, with the number that the code has.
"""
_FOOT: Final = """
## What there is not

* Transactions: messages of them are refused by name ([compatibility](compatibility.md)).
* Non-persistent topics, offloading, functions and bookies: the paths are there and say so ([administration](admin.md)).
* A cluster of several workers. A region's cluster is one worker, with the rate and the disk of one machine
  ([sizing](operating.md#sizing)); it restarts in seconds, and another region serves meanwhile.
"""
