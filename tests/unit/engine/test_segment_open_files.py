"""Limit of open files of segments; none is closed under its reader."""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_support import logged, message, opened
from segment_support import path_of, small_segments

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.segments import open_files
from replicator.engine.log.segments.files import preallocate, segment_number
from replicator.engine.log.segments.open_files import OpenFiles
from replicator.engine.log.segments.places import read_placed


def open_segments() -> int:
    """Descriptors of them."""
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found += segment_number(path_of(int(name)).name.removesuffix(" (deleted)")) is not None
        except OSError:
            continue  # that of the listing
    return found


def test_invariant_11_a_store_of_many_segments_holds_few_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "OPEN_MAX", 3)
    most = 2 * 3 + 1  # two each, and that of a segment that is made ahead just now

    async def main() -> None:
        async with opened(tmp_path, settings=small_segments()) as engine:
            topic = await engine.topic("a")
            entries = [message(random.Random(number).randbytes(30_000)) for number in range(40)]
            for entry in entries:
                await topic.publish([entry])
            assert open_segments() <= most
            assert [entry for _, _, entry in logged(topic)] == entries
            assert open_segments() <= most
            with engine.store.env.begin() as txn:
                places = [place for place, _ in read_placed(txn, engine.store.tables["placed"])]
            expected = [bytes(engine.store.segments.read_unchecked(place)) for place in places]
            with ThreadPoolExecutor(4) as threads:  # each closes what the others use
                for _ in range(5):
                    assert list(threads.map(engine.store.segments.read_unchecked, places)) == expected
            assert open_segments() <= most
            await topic.trimming.trim(topic.log.last)
        assert open_segments() == 0
        with pytest.raises(BlockCorrupt, match="the store is closed"):
            engine.store.segments.read_unchecked(places[0])
        assert open_segments() == 0

    asyncio.run(main())


@pytest.mark.parametrize("what", ["forgotten", "closed", "pushed out"])
def test_a_file_that_is_used_is_closed_after_its_last_user(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "OPEN_MAX", 1)
    for number in (1, 2):
        preallocate(tmp_path, number, 4096)
    found = OpenFiles(tmp_path)
    with found.using(1, direct=False) as file:
        with found.using(1, direct=False) as same:
            assert same is file
            if what == "forgotten":
                found.forget(1)
            elif what == "closed":
                found.close()
            else:
                with found.using(2, direct=False):
                    assert open_segments() == 4
        read = bytearray(b"x" * 4096)
        file.read(0, memoryview(read))
        assert read == bytes(4096)
    assert open_segments() == (2 if what == "pushed out" else 0)
    found.close()
    assert open_segments() == 0
