"""A reclaim into a disk that gets full ends with status 3, and goes on when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from backup_support import Mesh, publish
from failover_support import deployment
from postgres_support import databases_of

MESSAGES, BYTES = 30, 500_000


@pytest.fixture
def pair(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "reclaim") as databases,
        deployment(tmp_path, *databases, links="[{between: [A, B]}]", databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def test_a_reclaim_on_a_full_disk_ends_with_status_3_and_takes_the_rest_when_there_is_room(pair: Mesh) -> None:
    asyncio.run(publish(pair.client_url("A"), [os.urandom(BYTES) for _ in range(MESSAGES)], batching_enabled=False))
    pair.until(lambda: pair.messages("B") == MESSAGES, "all messages at B")
    pair.lose("A")
    data = pair.data("A")
    data.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(data)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        fill(data / "filler")
        assert "disk is full" in pair.reclaim("A", status=3), "no store can be made"
        (data / "filler").unlink()
        said = pair.reclaim("A", status=3)
        assert "make room on it" in said
        assert "Traceback" not in said
        subprocess.run(["mount", "-o", "remount,size=200m", str(data)], check=True)
        pair.reclaim("A")
        pair.start("A")
        assert pair.messages("A") == MESSAGES
    finally:
        pair.stop()
        subprocess.run(["umount", str(data)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(b"x" * 4_096):
            pass
