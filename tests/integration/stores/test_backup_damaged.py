"""Backups of a store with damaged blocks: made of all else, said by every command, and mended after a restore.

Invariant (DESIGN §3): 2, what is not there as it was is refused, and comes back as the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from backup_support import MESH, ORDERS, Mesh, publish, take
from failover_support import deployment
from postgres_support import databases_of

from replicator.backup.destination import Destination
from replicator.backup.manifest import Manifest, Manifests, MissingBlock
from replicator.backup.pruning import prune

LARGE = 600_000
"""Alone in its block, and in a segment."""
OF_A = ("-c", "A", "--at", "backups")


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "damaged") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


@pytest.mark.parametrize("how", ["running", "offline"])
def test_a_segment_that_is_gone_ends_no_backup_and_its_blocks_come_back_after_a_restore(mesh: Mesh, how: str) -> None:
    contents = [b"small", *(random.Random(5).randbytes(LARGE) for _ in range(3)), b"small too"]
    for content in contents:  # each in a block of its own
        asyncio.run(publish(mesh.client_url("A"), [content]))
    mesh.until(lambda: all(mesh.messages(name) == 5 for name in "ABC"), "all messages everywhere")
    for name in "ABC":
        mesh.kill(name)  # so that A finds nobody who could mend it
    for segment in (mesh.data("A") / "log" / "segments").iterdir():
        segment.unlink()
    if how == "running":
        mesh.start("A")
    offline = ["--offline"] if how == "offline" else []
    text = mesh.backup("create", "-f", "topology.yaml", *OF_A, *offline, status=4)
    assert text.count("not whole: backup") == 1
    assert f"lacks 3 blocks that were damaged in the store: {ORDERS} at " in text
    (row,) = json.loads(mesh.backup("list", "--at", "backups", "--output", "json"))
    assert row["damaged_blocks"] == 3
    manifest = Manifests(Destination(str(mesh.backups)), "A").read(row["id"])
    assert [each.topic for each in manifest.damaged] == [ORDERS] * 3
    text = mesh.backup("verify", *OF_A, status=4)
    assert "sound but for 3 blocks" in text
    assert text.count("not whole: backup") == 1
    if how == "running":
        mesh.lose("A")
    mesh.start("B")
    mesh.start("C")
    text = mesh.restore("A", *([] if how == "running" else ["--replace"]), status=4)
    assert "lacks 3 blocks" in text
    assert "replicator verify --fix" in text
    mesh.start("A")
    assert asyncio.run(take(mesh.client_url("A"), 5)) == contents
    assert mesh.status("A")["store"]["mended"] == 3
    found = mesh.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "corrupted")] == [0] * 4
    mesh.create("A")


def test_pruning_keeps_the_newest_backup_that_is_whole(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path))
    manifests = Manifests(destination, "A")
    damaged = (MissingBlock(ORDERS, "1:0", "1:4", "gone"),)
    ids = [f"20260101T00000000{number}Z-{os.urandom(3).hex()}" for number in range(6)]
    for number, backup in enumerate(ids):
        made = Manifest(backup, "A", "s", 1, number, "0", ())
        manifests.write(replace(made, damaged=damaged, format=2) if number >= 2 else made)
    assert prune(destination, "A", 2).backups == [ids[3], ids[2], ids[0]]
    assert manifests.ids() == [ids[5], ids[4], ids[1]]
