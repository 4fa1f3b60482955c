"""Names of the files of the clone that a run of pytest opens, for ``.ci/keyed.py``.

A step of CI that is skipped while its inputs are the same has a list of them. This module tells what the tests really
read. Programs that the tests start are not seen: their files stand in the lists by whole folders.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WANTED = os.environ.get("REPLICATOR_CI_READS")
"""The file that takes the names; a process of pytest appends its own."""


class FilesRead:
    """Plugin that notes each opened file from its creation on, and writes all names when the session ends."""

    def __init__(self, into: Path) -> None:
        self._into = into
        self._root = f"{ROOT}{os.sep}"
        self._opened: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or isinstance(arguments[0], int) or arguments[0] is None:
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - Path is slow, and this is called often
        if path.startswith(self._root):
            self._opened.add(path)

    def pytest_sessionfinish(self) -> None:
        """Write the names of all opened files, and of the modules that were imported before."""
        modules = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
        names = {
            source_of(path.removeprefix(self._root)) for path in self._opened | modules if path.startswith(self._root)
        }
        with self._into.open("a") as file:
            file.writelines(f"{name}\n" for name in sorted(names))


def source_of(name: str) -> str:
    """Return the module behind a file of byte code, and any other name as it is."""
    folder, _, file = name.rpartition("/")
    if not folder.endswith("__pycache__"):
        return name
    return f"{folder.removesuffix('__pycache__')}{file.partition('.')[0]}.py"
