"""How the wheel differs from a checkout: ``snapshots`` and ``migrations`` lie inside ``replicator``.

Anybody's environment may have a package ``snapshots`` or ``migrations`` of its own, so a wheel that installs them would
overwrite theirs or be overwritten. In a checkout they stand at the top, beside ``replicator``. The step between the two
is here, and nothing else: pyproject.toml describes the distribution. docs/adr/0048 says why it is done so.

1. setuptools copies all packages below ``build/lib``, as ever.
2. The two are moved into ``replicator``.
3. In every module the imports of them are written anew, and the strings that name one of their modules.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

OWNER = "replicator"
MOVED = ("snapshots", "migrations")
MODULE_NAME = re.compile(rf"(?:{'|'.join(MOVED)})(?:\.\w+)+")


def rewritten(source: str, name: str) -> str:
    """A module's source with :data:`MOVED` looked for inside :data:`OWNER`; ``name`` is for errors."""
    lines = source.encode().splitlines(keepends=True)
    for line, column in sorted(_places(ast.parse(source, name), lines, name), reverse=True):
        content = lines[line]
        lines[line] = content[:column] + f"{OWNER}.".encode() + content[column:]
    return b"".join(lines).decode()


def _places(tree: ast.Module, lines: list[bytes], name: str) -> Iterator[tuple[int, int]]:
    """Yield each place that names a module of :data:`MOVED`: the line and the byte in it, both counted from 0."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(each.name.split(".")[0] in MOVED for each in names):
                # It binds the name `snapshots`, and what uses that would have to be written anew too.
                raise SyntaxError(f"{name}:{node.lineno}: write this import as `from {names[0].name} import …`")
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in MOVED:
                before = "from "
            case ast.Constant(value=str(module)) if MODULE_NAME.fullmatch(module):
                before = "'"
            case _:
                continue
        line, column = node.lineno - 1, node.col_offset
        if lines[line][column:].replace(b'"', b"'")[: len(before + module)] != (before + module).encode():
            raise SyntaxError(f"{name}:{node.lineno}: {module} is not named in a form that can be written anew")
        yield line, column + len(before)


class BuildPy(build_py):
    """Puts :data:`MOVED` into :data:`OWNER`. An editable installation stays as the checkout is."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        library = Path(self.build_lib)
        for package in (OWNER, *MOVED):  # what an earlier build left there would be in the wheel
            shutil.rmtree(library / package, ignore_errors=True)
        super().run()
        for package in MOVED:
            (library / package).rename(library / OWNER / package)
        for module in sorted(path for path in (library / OWNER).rglob("*") if path.suffix in (".py", ".pyi")):
            module.write_text(rewritten(module.read_text(encoding="utf-8"), str(module)), encoding="utf-8")


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPy})
