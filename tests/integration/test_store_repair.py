"""Damaged blocks of a stopped worker are mended by the copies of other clusters; what nobody has is named.

Invariant (DESIGN §3): 2, what comes back is the same bytes at the same position.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import pytest
from backup_support import MESH, ORDERS, Mesh, publish, take
from failover_support import deployment
from postgres_support import databases_of

LARGE = 600_000
"""Alone in its block, and in a segment."""
SMALL = 3_000


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "repair") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def store(mesh: Mesh, verb: str) -> tuple[int, str]:
    done = forked_commands.run("store", verb, "-f", "topology.yaml", "-c", "A", cwd=mesh.path)
    return done.returncode, done.stdout + done.stderr


def rot(data: Path, content: bytes) -> None:
    """Flip a byte of a message wherever it lies in the store of a stopped worker."""
    found = 0
    for file in [data / "log" / "data.mdb", *sorted((data / "log" / "segments").iterdir())]:
        stored = bytearray(file.read_bytes())
        at = stored.find(content[100:160])
        if at >= 0:
            stored[at + 7] ^= 0x20
            file.write_bytes(stored)
            found += 1
    assert found == 1, f"the message lies in {found} files"


def test_invariant_2_damaged_blocks_of_all_origins_come_back_as_they_were_where_they_were(mesh: Mesh) -> None:
    contents = {
        ("A", "segment"): os.urandom(LARGE),
        ("B", "segment"): os.urandom(LARGE),
        ("A", "table"): os.urandom(SMALL),
        ("C", "table"): os.urandom(SMALL),
    }

    async def fill() -> None:
        for (name, _), content in contents.items():
            await publish(mesh.client_url(name), [b"before", content, b"after"], batching_enabled=False)

    asyncio.run(fill())
    mesh.until(lambda: all(mesh.messages(name) == 12 for name in "ABC"), "all messages everywhere")
    mesh.kill("A")
    assert store(mesh, "check")[0] == 0
    for content in contents.values():
        rot(mesh.data("A"), content)
    status, text = store(mesh, "check")
    assert (status, text.count("damaged: topic")) == (1, 1), "a topic is read up to its first damaged block"
    assert store(mesh, "repair") == (0, "4 blocks were mended\n")
    assert store(mesh, "check")[0] == 0
    mesh.start("A")
    found = mesh.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4
    assert mesh.halted("A") == {}


def test_what_nobody_else_has_is_named_and_left_as_it_is(mesh: Mesh) -> None:
    only_here = os.urandom(LARGE)
    mesh.kill("B")
    mesh.kill("C")
    asyncio.run(publish(mesh.client_url("A"), [only_here], batching_enabled=False))
    mesh.kill("A")
    rot(mesh.data("A"), only_here)
    status, text = store(mesh, "repair")
    assert status == 1
    assert "0 blocks were mended" in text
    assert f"damaged: topic {ORDERS} at " in text
    assert text.count("cannot be reached") == 2, "both were asked"
    mesh.start("B")
    mesh.start("C")
    status, text = store(mesh, "repair")
    assert status == 1
    assert "0 blocks were mended" in text
    assert "B: " in text
    assert "C: " in text


def test_a_running_worker_mends_what_it_finds_damaged_and_those_who_stopped_there_go_on(mesh: Mesh) -> None:
    contents = [os.urandom(LARGE), os.urandom(SMALL), os.urandom(LARGE)]
    for content in contents:  # each in a block of its own
        asyncio.run(publish(mesh.client_url("A"), [content]))
    mesh.until(lambda: all(mesh.messages(name) == 3 for name in "ABC"), "all messages everywhere")
    mesh.kill("A")
    for content in contents:
        rot(mesh.data("A"), content)
    mesh.start("A")
    assert asyncio.run(take(mesh.client_url("A"), 3)) == contents
    assert mesh.status("A")["store"]["mended"] == 3
    assert mesh.status("A")["store"]["damaged"] == []
    mesh.kill("A")
    assert store(mesh, "check")[0] == 0
