"""The Arrow schema under which blocks travel: as rows of IPC streams over HTTP, and into Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

BLOCK_SCHEMA: Final = pa.schema(
    [
        ("ledger", pa.uint64()),
        ("first", pa.uint64()),
        ("entries", pa.uint32()),
        ("block", pa.large_binary()),
    ]
)
"""One row is one whole block: the local position of its first entry, how many entries it has, its bytes."""
