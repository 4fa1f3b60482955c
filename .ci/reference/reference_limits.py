"""docs/limits.md: the limits that somebody may meet, each with its number and what happens past it.

The number is a constant's value; the constant's docstring has the reason. limits.yaml beside this file says what is
limited, and what happens past the limit.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

import yaml
from reference_fields import Undocumented

from replicator.topology.scalars import format_size

PAGE: Final = "limits.md"
LIMITS: Final = Path(__file__).with_name("limits.yaml")


def page() -> str:
    """Return the page. Raise :class:`Undocumented` with everything that is wrong."""
    sections: dict[str, list[dict[str, str]]] = yaml.safe_load(LIMITS.read_text())
    wrong: list[str] = []
    lines = [_HEAD]
    for title, limits in sections.items():
        lines.append(f"\n## {title}\n\n{_TABLE}")
        for limit in limits:
            try:
                lines.append(_line(limit))
            except (ModuleNotFoundError, AttributeError):
                wrong.append(
                    f".ci/reference/limits.yaml names {limit['constant']}, which is not there: "
                    "correct it or take it out, then run `make reference`"
                )
    if wrong:
        raise Undocumented("\n".join(wrong))
    return "".join(lines) + _FOOT


def _line(limit: dict[str, str]) -> str:
    module, _, name = limit["constant"].rpartition(".")
    value = getattr(importlib.import_module(module), name)
    setting = f"; `{limit['setting']}` sets it" if "setting" in limit else ""
    return f"| {limit['of']} | {shown(name, value)}{setting} | {limit.get('past', '')} |\n"


def shown(name: str, value: Any) -> str:
    if "BYTES" in name and isinstance(value, int):
        return format_size(value) if value >= 1024 else f"{value} bytes"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


_TABLE: Final = "| of | limit | past it |\n| --- | --- | --- |\n"
_HEAD: Final = """# Limits

<!-- Made by `make reference` from the constants and .ci/reference/limits.yaml. Do not edit it. -->

This page lists the limits that users may meet. Past a limit the sender is slowed, or gets an error that names it.
[Settings](reference/topology.md) change some of them.
"""
_FOOT: Final = """
## What there is not

* Transactions: messages of them are refused by name ([compatibility](compatibility.md)).
* Non-persistent topics, offloading, functions and bookies: the paths are there and say so ([administration](admin.md)).
* A cluster of several workers. A region's cluster is one worker, with the rate and the disk of one machine
  ([sizing](operating.md#sizing)); it restarts in seconds, and another region serves meanwhile.
"""
