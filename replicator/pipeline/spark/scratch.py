"""Scratch directories, which are removed together with their process."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make_scratch(prefix: str, parent: Path) -> Path:
    """Make a directory of this process in ``parent``, and remove those of processes that were killed.

    Its name is ``prefix``, the process's id, and more. The caller removes it.
    """
    for left in parent.glob(f"{prefix}*-*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
