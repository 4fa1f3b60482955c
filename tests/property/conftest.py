"""Places for the bodies of blocks in property tests: segments or the table, unless a test chooses.

By default a directory is opened with all bodies in segments of 64 KiB, then with segments switched off, and so on in
turn. One store thus reads, trims and compacts both kinds of rows, and no test runs twice. ``STORE_BODIES=segments`` or
``STORE_BODIES=table`` makes it one of both; ``make soak`` runs all three.

Each closing checks that the rows and the store's memory agree on the segments.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from segment_support import SMALL, check_places

from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store import Store

LAYOUTS: Final = {
    "mixed": (SMALL, SegmentSettings(segment_bytes=0)),
    "segments": (SMALL,),
    "table": (SegmentSettings(segment_bytes=0),),
}


@pytest.fixture(scope="module", autouse=True)
def bodies() -> Iterator[None]:
    """Choose the place of bodies for the tests of one module of this directory; other tests follow in the same
    process."""
    layouts = LAYOUTS[os.environ.get("STORE_BODIES", "mixed")]
    openings: Counter[Path] = Counter()
    initialize, close = Store.__init__, Store.close

    def opened(
        self: Store, path: Path, *, cluster: str, size_max: int, segments: SegmentSettings | None = None
    ) -> None:
        if segments in (None, SegmentSettings()):
            segments = layouts[openings[path] % len(layouts)]
        initialize(self, path, cluster=cluster, size_max=size_max, segments=segments)
        openings[path] += 1

    def closed(self: Store) -> None:
        check_places(self)
        close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "__init__", opened)
        patch.setattr(Store, "close", closed)
        yield
