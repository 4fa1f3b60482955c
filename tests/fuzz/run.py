"""``make fuzz SECONDS=300``: atheris over each target for a part of the time, from the inputs in the repository on.

What it finds is written to the working directory as ``crash-…``; what belongs into the repository is copied there by
hand. A target is run in a process of its own: ``run.py SECONDS TARGET``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

TARGETS: Final = {"protocol": "corpus", "data_plane": "data_plane_corpus"}
"""Folder with the inputs of each fuzz target."""


def fuzz(name: str, seconds: int) -> None:
    """Fuzz the target ``name`` for ``seconds`` in this process, which ends with it."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with atheris.instrument_imports(
        include=["replicator.protocol", "replicator.engine.log", "replicator.engine.staging", "replicator.tracing"]
    ):
        if name == "protocol":
            from fuzz import protocol_target as target
        else:
            from fuzz import data_plane_target as target

            target.limit_frames()
    inputs = Path(__file__).parent / TARGETS[name]
    options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", f"-artifact_prefix=crash-{name}-"]
    atheris.Setup([sys.argv[0], mkdtemp(prefix="fuzz-"), str(inputs), *options], target.take)
    atheris.Fuzz()


def main() -> None:
    """Fuzz all targets one after another, each in a process of its own and for an equal part of the seconds.

    The first argument gives the seconds (300 if none). With a target's name as second argument, fuzz only that one, in
    this process.
    """
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    if len(sys.argv) > 2:
        fuzz(sys.argv[2], seconds)
        return
    codes = []
    for name in TARGETS:
        print(f"fuzzing {name} for {seconds // len(TARGETS)} s", flush=True)
        command = [sys.executable, __file__, str(max(1, seconds // len(TARGETS))), name]
        codes.append(subprocess.run(command, check=False).returncode)
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
