"""Wheels of this repository, and virtual environments that hold nothing but what such a wheel asks for.

Environments cost minutes to fill, so they are kept outside the clone, beside those of ``.ci/pythons``: one for each
interpreter, lock and set of extras. Only the wheel in them is new at each run. Who uses one holds its lock: other
clones on this machine share them. ``.ci/pythons`` removes what was not used for a week.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-ci"
SET_UP_SECONDS_MAX = 900.0
"""Packages come from far away at times."""
PINNED = re.compile(r"^[A-Za-z0-9._-]+==[^ \\]+(?: ; [^\\]+)?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Interpreter:
    version: str
    place: str
    path: Path


def interpreters() -> list[Interpreter]:
    """Return the oldest interpreter here of each supported minor version, the oldest version first."""
    listed = run([ROOT / ".ci" / "pythons", "list"]).splitlines()
    found = [Interpreter(version, place, Path(path)) for version, place, path in (line.split(" ") for line in listed)]
    usable = [each for each in found if not failed([each.path, "-c", "import ensurepip, venv"])]
    return list({each.version.rpartition(".")[0]: each for each in reversed(usable)}.values())[::-1]


def run(command: Sequence[object], *, seconds_max: float = SET_UP_SECONDS_MAX, cwd: Path | None = None) -> str:
    """Run a command, which must succeed; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


def failed(command: Sequence[object]) -> bool:
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode != 0


def has_commit(commit: str) -> bool:
    return not failed(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"])


def tracked_state() -> str:
    """Return a commit of all tracked files as they are in this clone now."""
    return run(["git", "-C", ROOT, "stash", "create"]).strip() or "HEAD"


def unpack(commit: str, into: Path) -> Path:
    """Unpack the files of a commit as ``git archive`` gives them: no repository, nothing built."""
    into.mkdir(parents=True)
    archive = into.with_suffix(".tar")
    run(["git", "-C", ROOT, "archive", "--output", archive, commit])
    run(["tar", "-xf", archive, "-C", into])
    archive.unlink()
    return into


def build_wheel(source: Path, into: Path) -> Path:
    """Run ``pip wheel`` on a directory or an sdist, with the setuptools of this environment."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", into, source])
    (wheel,) = into.glob("replicator-*.whl")
    return wheel


def wheel_of(commit: str) -> Path:
    """Return the wheel of a commit; build it only if the cache lacks it."""
    wheels = CACHE / f"wheel-{commit[:12]}"
    with _locked(wheels):
        if not list(wheels.glob("*.whl")):
            scratch = CACHE / f"build-{commit[:12]}-{os.getpid()}"
            try:
                built = build_wheel(unpack(commit, scratch / "source"), scratch / "built")
                wheels.mkdir(exist_ok=True)
                built.rename(wheels / built.name)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        wheels.touch()
        (wheel,) = wheels.glob("*.whl")
    return wheel


@contextmanager
def environment(interpreter: Interpreter, wheel: Path, *extras: str, name: str = "") -> Iterator[Path]:
    """Give the ``bin`` directory of an environment with just the wheel and its extras, for this caller alone.

    ``name`` tells environments of the same interpreter and extras apart.
    """
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:12]
    place = f"{interpreter.version}-{zlib.crc32(interpreter.place.encode())}"
    directory = CACHE / "-".join(filter(None, ["wheel", name, place, *sorted(extras), lock]))
    with _locked(directory):
        python = directory / "bin" / "python"
        complete = directory / ".complete"
        if not complete.exists() or failed([python, "-c", ""]):
            shutil.rmtree(directory, ignore_errors=True)
            run([interpreter.path, "-m", "venv", directory])
            wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
            pins = directory / "pins.txt"
            pins.write_text("\n".join(PINNED.findall((ROOT / "requirements.lock").read_text())) + "\n")
            run([python, "-m", "pip", "install", "--quiet", "--constraint", pins, wanted])
            complete.touch()
        else:
            run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel])
        run([python, "-m", "pip", "check"])
        directory.touch()
        yield directory / "bin"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(directory.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
