"""``make fuzz SECONDS=300``: atheris over :mod:`protocol_target`, from the corpus of the repository on.

What it finds is written to the working directory as ``crash-…``; what belongs into the corpus is copied there by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp

import atheris  # type: ignore[import-not-found, unused-ignore]

with atheris.instrument_imports(include=["replicator.protocol"]):
    from fuzz import protocol_target

if __name__ == "__main__":
    seconds = sys.argv[1] if len(sys.argv) > 1 else "300"
    corpus = Path(__file__).parent / "corpus"
    atheris.Setup(
        [sys.argv[0], mkdtemp(prefix="fuzz-"), str(corpus), f"-max_total_time={seconds}", "-max_len=4096"],
        protocol_target.take,
    )
    atheris.Fuzz()
