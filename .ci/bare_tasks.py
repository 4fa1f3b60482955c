"""Fails where code starts a task by asyncio itself (``create_task``, ``ensure_future``, ``TaskGroup``) or limits time
by asyncio. ``asyncio.timeout`` does not hold in a cancelled task of an old Python. ``wait_for`` of 3.11 loses the
cancellation of a task whose wait ends at that moment, so the task goes on.

A task that outlives its caller runs under :class:`replicator.running.supervisor.Supervisor`; one that ends by itself is
started by :mod:`replicator.running.short_tasks`; what runs side by side, by :mod:`replicator.running.together`. Where
none of them does, the line says why in a comment that begins with ``bare task:``. Limits of time are
:mod:`replicator.running.timeouts`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOTS = ("replicator", "snapshots")
ALLOWED = "replicator/running/"
BANNED = frozenset({"create_task", "ensure_future", "TaskGroup"})
LIMITS = {"timeout": "timeout", "timeout_at": "timeout_at", "wait_for": "timeout"}
"""Asyncio's limits of time, and the functions that take their place."""
EXCUSE = "# bare task:"


def bare_tasks(path: Path, text: str) -> list[str]:
    """Return one line for each place, as compilers write them."""
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in BANNED:
            name = node.attr
        elif isinstance(node, ast.Attribute) and node.attr in LIMITS and ast.unparse(node.value) == "asyncio":
            found.append(
                f"{path}:{node.lineno}: asyncio.{node.attr}: take replicator.running.timeouts.{LIMITS[node.attr]}"
            )
            continue
        elif isinstance(node, ast.alias) and node.name in BANNED:
            name = node.name
        else:
            continue
        if EXCUSE not in lines[node.lineno - 1]:
            found.append(f"{path}:{node.lineno}: {name} outside {ALLOWED}: nobody would see how the task ends")
    return found


def main(root: Path) -> int:
    found = [
        line
        for folder in ROOTS
        for path in sorted((root / folder).rglob("*.py"))
        if not path.relative_to(root).as_posix().startswith(ALLOWED)
        for line in bare_tasks(path.relative_to(root), path.read_text())
    ]
    print("\n".join(found) or "No bare tasks.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
