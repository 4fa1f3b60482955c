"""Files that only their owner reads: keys, tokens, and topologies that may hold passwords."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600


def replace_private(path: Path, content: bytes) -> None:
    """Write ``content`` to the file ``path``, for its owner alone. Readers find the old or the new file, whole."""
    beside = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_MODE), "wb") as opened:
        opened.write(content)
    beside.replace(path)
