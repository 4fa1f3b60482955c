"""Run a step of CI, unless its inputs are those of a green run on this machine: ``.ci/keyed.py STEP``.

``.ci/inputs.toml`` beside this file lists the files that each step reads. Their contents, the versions of the tools
and of this Python make a key. A green run leaves the key in ``~/.cache/replicator-ci/green`` for a week, and the step
is skipped while its key is there. ``REPLICATOR_CI_ALL=1`` runs every step.

The list is held to what happens: pytest names each file of the clone that it opens
(``tests/support/files_read.py``). A step that reads a file outside its list leaves no key and says so: it is never
skipped until the list is mended.
``.ci/keyed.py --key STEP`` prints a key.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LISTS: Final = ROOT / ".ci" / "inputs.toml"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-ci"
KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""Limit on the age of a green run that counts: packages of the system are not in the key, so each step runs weekly."""
KEY_LENGTH: Final = 16
GROUP: Final = "@"
"""Mark of a pattern that names a group of patterns."""
ALL: Final = "REPLICATOR_CI_ALL"
READS: Final = "REPLICATOR_CI_READS"
"""Name of the variable that tells pytest where to write the names of the files it opened."""


class ListBroken(Exception):
    """A list of inputs is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of CI, as ``.ci/inputs.toml`` declares it."""

    name: str
    command: tuple[str, ...]
    patterns: tuple[str, ...]
    tests: tuple[str, ...]
    """Files or folders of tests that the command runs; none if it is not pytest."""
    tools: tuple[str, ...]
    """Commands whose output is part of the key."""
    names: bool
    """Whether the names of all files are part of the key: the step looks whether files are there."""

    def reads(self, file: str) -> bool:
        """Return whether the list names ``file``, a path relative to the clone."""
        return any(_matches(file, pattern) for pattern in self.patterns)


def steps(text: str) -> dict[str, Step]:
    """Parse the lists; raises :class:`ListBroken`."""
    declared = tomllib.loads(text)
    groups = declared.pop("groups", {})
    return {name: _step(name, table, groups) for name, table in declared.items()}


def _step(name: str, table: dict[str, Any], groups: dict[str, list[str]]) -> Step:
    patterns: list[str] = []
    for pattern in table["inputs"]:
        if not pattern.startswith(GROUP):
            patterns.append(pattern)
        elif pattern[1:] in groups:
            patterns += groups[pattern[1:]]
        else:
            raise ListBroken(f"{name} in .ci/inputs.toml: there is no group {pattern[1:]}")
    tests = tuple(table.get("tests", ()))
    tools, names = tuple(table.get("tools", ())), table.get("names", False)
    return Step(name, tuple(table["command"]), tuple(patterns), tests, tools, names)


def _matches(file: str, pattern: str) -> bool:
    return file.startswith(pattern) if pattern.endswith("/") else fnmatchcase(file, pattern)


def files_of(root: Path) -> list[str]:
    """Return the files of a clone: those that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        capture_output=True,
        check=True,
    ).stdout
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    return sorted(name for name in names if (root / name).is_symlink() or (root / name).is_file())


def key_of(step: Step, root: Path, files: Sequence[str], said: Iterable[str]) -> str:
    """Return the key of a step; ``said`` are the versions that count. Raises :class:`ListBroken`."""
    for pattern in step.patterns:
        if not any(_matches(file, pattern) for file in files):
            raise ListBroken(f"{step.name} in .ci/inputs.toml: no file is {pattern}")
    total = hashlib.sha256()

    def add(*parts: bytes) -> None:
        for part in parts:
            total.update(len(part).to_bytes(8) + part)

    add(*(os.fsencode(part) for part in (step.name, *step.command, *said)))
    if step.names:
        add(*map(os.fsencode, files))
    for file in files:
        if step.reads(file):
            path = root / file
            mode = path.lstat().st_mode
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            add(os.fsencode(file), mode.to_bytes(4), content)
    return total.hexdigest()[:KEY_LENGTH]


def versions(step: Step, root: Path) -> list[str]:
    """Return what this Python and the tools of a step say of themselves; a tool that is not there says so."""
    said = [sys.version, platform.machine(), str(os.geteuid() == 0)]
    for tool in step.tools:
        ran = subprocess.run(["bash", "-c", tool], cwd=root, capture_output=True, check=False)  # noqa: S607
        said.append(f"{tool}: {ran.returncode} {ran.stdout!r} {ran.stderr!r}")
    return said


def unlisted(step: Step, files: Iterable[str], read: Iterable[str]) -> list[str]:
    """Return the files of the clone that were read, and that the list of the step does not name."""
    known = set(files)
    return sorted(name for name in set(read) if name in known and not step.reads(name))


def _is_green(mark: Path) -> bool:
    try:
        return 0 <= time.time() - mark.stat().st_mtime < KEPT_SECONDS
    except OSError:
        return False


def _keep(mark: Path) -> None:
    """Leave the key of a green run, and remove the ones that no longer count."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for other in mark.parent.iterdir():
        if not _is_green(other):
            other.unlink(missing_ok=True)


def _run(step: Step) -> tuple[int, list[str]]:
    """Run the command of a step; return its status, and the files that it read as far as pytest saw them."""
    with tempfile.TemporaryDirectory(prefix="replicator-reads-") as directory:
        reads = Path(directory) / "reads"
        status = subprocess.run(step.command, cwd=ROOT, env={**os.environ, READS: str(reads)}, check=False).returncode
        return status, reads.read_text().splitlines() if reads.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run or skip the step that the arguments name; return the status to end with."""
    name = arguments[-1] if arguments else ""
    declared = steps(LISTS.read_text())
    if name not in declared or len(arguments) > 2 or (len(arguments) == 2 and arguments[0] != "--key"):
        print(f"Usage: .ci/keyed.py [--key] STEP, one of: {', '.join(declared)}", file=sys.stderr)
        return 2
    step = declared[name]
    files = files_of(ROOT)
    said = versions(step, ROOT)
    key = key_of(step, ROOT, files, said)
    if len(arguments) == 2:
        print(key)
        return 0
    mark = CACHE / "green" / f"{name}-{key}"
    if _is_green(mark) and os.environ.get(ALL, "") in ("", "0"):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(mark.stat().st_mtime))
        print(f"{name}: skipped, its inputs are those of a green run at {when} (key {key}; {ALL}=1 runs it)")
        return 0
    status, read = _run(step)
    if status != 0:
        return status if status > 0 else 1
    if step.tests and not read:
        print(f"{name}: green, and not skipped next time: pytest did not say which files it read")
    elif outside := unlisted(step, files, read):
        lacking = " ".join(outside)
        print(f"{name}: green, and not skipped next time: its list in .ci/inputs.toml lacks what it read: {lacking}")
    elif key_of(step, ROOT, files_of(ROOT), said) != key:
        print(f"{name}: green, and not skipped next time: its inputs changed while it ran")
    else:
        _keep(mark)
        print(f"{name}: green (key {key})")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ListBroken as broken:
        sys.exit(str(broken))
