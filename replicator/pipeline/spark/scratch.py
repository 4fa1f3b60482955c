"""Directories that go with the process that made them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make_scratch(prefix: str, parent: Path) -> Path:
    """A directory of this process in ``parent``; those of processes that were killed are removed.

    Its name is ``prefix``, the process's id, and more. Whoever makes it removes it.
    """
    for left in parent.glob(f"{prefix}*-*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
