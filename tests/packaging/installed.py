"""Running what a wheel has installed, the way somebody runs it who has no clone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments import ROOT

COMMAND_SECONDS_MAX = 300.0


class Installed:
    """The installation in ``binaries``, used in ``folder``, where packages named as ours stand in the way."""

    def __init__(self, binaries: Path, folder: Path, *, in_the_way: bool = True) -> None:
        self.binaries = binaries
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for package in ("snapshots", "migrations") if in_the_way else ():
            (folder / package).mkdir()
            (folder / package / "__init__.py").write_text(f"raise ImportError('{package} is somebody else\\'s')\n")

    def command(self, *arguments: object) -> list[str]:
        """Return the command ``replicator`` with arguments. The folder is first on the modules' path, as with
        ``python -m``."""
        return [str(self.binaries / "replicator"), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables without Java, without the clone, and without the tests' own Python."""
        own = str(Path(sys.executable).parent)
        path = [part for part in os.environ["PATH"].split(os.pathsep) if part != own and not _has_java(part)]
        left_out = ("JAVA_HOME", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**kept, "PATH": os.pathsep.join(path), "PYTHONPATH": str(self.folder), "COLUMNS": "200"}

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.call(self.command(*arguments))

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.call([str(self.binaries / "python"), *map(str, arguments)])

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        assert ROOT not in (self.folder, *self.folder.parents)
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    @contextmanager
    def running(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command of ``replicator``, and send it SIGTERM at the end. Its log is the folder's ``log.txt``."""
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(COMMAND_SECONDS_MAX)


def _has_java(directory: str) -> bool:
    return (Path(directory) / "java").exists() and directory not in ("/usr/bin", "/bin")
