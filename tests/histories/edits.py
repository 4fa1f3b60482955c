"""Edits of the product's source that workers of a history run with, such as a fix that is taken back.

An edit replaces a text of one module while Python imports it. The text must be there exactly once, so an edit that has
become stale is an error, and a unit test finds it. :func:`install` must come before the first import of such a module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from forked_commands import EDITED


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of one text in the source of a module."""

    module: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return ``source`` with the replacement. Raise ValueError unless the text is there exactly once."""
        if (times := source.count(self.old)) != 1:
            raise ValueError(f"{self.module} has this text {times} times instead of once:\n{self.old}")
        return source.replace(self.old, self.new)


WHOLE_PASS: Final = Edit(
    "replicator.engine.upkeep.maintenance",
    "        async with self._one_at_a_time:\n            await self._retain(topic)\n",
    "        async with self._one_at_a_time:\n            await self._maintain(topic)\n",
)
"""An operator's request to trim a topic makes the whole pass over it, which otherwise comes once in a minute. A shorter
interval would wake what sleeps by mistake."""


class _EditedLoader(importlib.machinery.SourceFileLoader):
    """Loader of one module that is edited. It reads and writes no compiled file."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        for edit in self._edits:
            source = edit.applied(source)
        code: CodeType = compile(source, self.path, "exec", dont_inherit=True)
        return code


class _Edited(MetaPathFinder):
    """Finder of modules that are edited."""

    def __init__(self, edits: Mapping[str, Sequence[Edit]]) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        loader = _EditedLoader(fullname, spec.origin, self._edits[fullname])
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def install(edits: Sequence[Edit]) -> None:
    """Edit these modules when they are imported. Raise RuntimeError if one of them is imported already."""
    by_module: dict[str, list[Edit]] = {}
    for edit in edits:
        if edit.module in sys.modules:
            raise RuntimeError(f"{edit.module} is imported already")
        by_module.setdefault(edit.module, []).append(edit)
    sys.meta_path.insert(0, _Edited(by_module))


def install_chosen() -> None:
    """Install the edits of all histories, and the revert that the environment names."""
    from histories.pauses import POINTS
    from histories.reverts import REVERTS

    install([*POINTS, WHOLE_PASS, *REVERTS.get(os.environ[EDITED], ())])
