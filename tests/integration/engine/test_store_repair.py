"""Damaged blocks of a stopped worker are mended by the copies of other clusters; what nobody has is named.

Invariant (DESIGN §3): 2, what comes back is the same bytes at the same position.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import lmdb
import pytest
from backup_support import MESH, ORDERS, Mesh, publish, take
from failover_support import deployment
from postgres_support import databases_of

from replicator.engine.log.block import BlockKind
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY
from snapshots.position import BEFORE_ALL, Position

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


def store(mesh: Mesh, verb: str, *options: str) -> tuple[int, str]:
    done = forked_commands.run("store", verb, "-f", "topology.yaml", "-c", "A", *options, cwd=mesh.path)
    return done.returncode, done.stdout + done.stderr


def rot(data: Path, content: bytes) -> None:
    """Flip a byte of a message wherever it lies in the store of a stopped worker."""
    found = 0
    for file in [data / "log" / "data.mdb", *sorted((data / "log" / "segments").iterdir())]:
        stored = bytearray(file.read_bytes())
        at = stored.find(content[100:160])
        found += at >= 0
        while at >= 0:  # a page that was freed may still have it too
            stored[at + 7] ^= 0x20
            file.write_bytes(stored)
            at = stored.find(content[100:160])
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
    assert (status, text.count("damaged: topic")) == (1, 4)
    status, text = store(mesh, "repair")
    assert status == 0
    assert "4 blocks were mended\n" in text
    assert text.count("asks B at http://") == 1
    assert store(mesh, "check")[0] == 0
    mesh.start("A")
    found = mesh.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4
    assert mesh.halted("A") == {}


def rot_head(data: Path, content: bytes) -> None:
    """Flip a byte of the head of the block that has a message. Old copies of the block in free pages get it too."""
    with lmdb.open(str(data / "log"), readonly=True, lock=False, max_dbs=1) as env, env.begin() as txn:
        rows = [bytes(row) for _, row in txn.cursor(db=env.open_db(b"blocks", txn=txn, create=False))]
    (row,) = (row for row in rows if content in row)
    block = row[row.index(b"RBK1") :]
    file = data / "log" / "data.mdb"
    stored = bytearray(file.read_bytes())
    at, found = stored.find(block), 0
    while at >= 0:
        stored[at + 12] ^= 0x20
        found += 1
        at = stored.find(block)
    assert found
    file.write_bytes(stored)


def test_invariant_2_small_blocks_whose_heads_are_damaged_come_back_from_the_other_clusters(mesh: Mesh) -> None:
    contents = {name: os.urandom(SMALL) for name in "ABC"}

    async def fill() -> None:
        for name, content in contents.items():
            for each in (b"before", content, b"after"):  # each in a block of its own
                await publish(mesh.client_url(name), [each])

    asyncio.run(fill())
    mesh.until(lambda: all(mesh.messages(name) == 9 for name in "ABC"), "all messages everywhere")
    mesh.kill("A")
    for content in contents.values():
        rot_head(mesh.data("A"), content)
    status, text = store(mesh, "check")
    assert (status, text.count("asks the other clusters for it")) == (1, 3)
    status, text = store(mesh, "repair")
    assert status == 0, text
    assert "3 blocks were mended\n" in text
    assert store(mesh, "check")[0] == 0
    mesh.start("A")
    found = mesh.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4


def test_blocks_whose_rows_are_gone_come_back_from_the_other_clusters_or_are_named(mesh: Mesh) -> None:
    for name in "ABC":
        asyncio.run(
            publish(mesh.client_url(name), [b"%s %d" % (name.encode(), at) for at in range(6)], batching_enabled=False)
        )
    mesh.until(lambda: all(mesh.messages(name) == 18 for name in "ABC"), "all messages everywhere")
    before = [each["messages"] for each in mesh.status("A")["topics"] if each["name"] == ORDERS]
    mesh.kill("A")
    assert store(mesh, "check")[0] == 0
    gone = take_out_blocks(mesh.data("A"), every=3)
    status, text = store(mesh, "check")
    assert status == 1
    assert text.count(f"topic {ORDERS}: the rows of blocks") >= 1
    status, text = store(mesh, "repair")
    assert status == 0, text
    assert f"{gone} blocks were mended" in text
    assert store(mesh, "check")[0] == 0
    mesh.start("A")
    assert [each["messages"] for each in mesh.status("A")["topics"] if each["name"] == ORDERS] == before
    found = mesh.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4
    mesh.kill("A")
    take_out_blocks(mesh.data("A"), every=3)
    for name in "BC":
        mesh.kill(name)
    status, text = store(mesh, "repair")
    assert status == 1
    assert f"topic {ORDERS}: the rows of blocks" in text
    assert "cannot be reached" in text


def test_blocks_whose_rows_are_gone_everywhere_are_given_up_where_the_operator_accepts_it(mesh: Mesh) -> None:
    for at in range(3):  # each in a block of its own
        asyncio.run(publish(mesh.client_url("A"), [b"known %d" % at]))
    mesh.until(lambda: all(mesh.messages(name) == 3 for name in "ABC"), "all messages everywhere")
    for name in "BC":
        mesh.kill(name)
    for at in range(3):
        asyncio.run(publish(mesh.client_url("A"), [b"alone %d" % at]))
    mesh.kill("A")
    assert take_out_blocks(mesh.data("A"), every=1, after=3) == 3
    status, text = store(mesh, "repair", "--accept-loss")
    assert status == 1, f"nobody answers, so nothing is given up: {text}"
    assert "lost:" not in text
    for name in "BC":
        mesh.start(name)
    status, text = store(mesh, "repair")
    assert status == 1
    assert f"topic {ORDERS}: the rows of blocks" in text
    status, text = store(mesh, "repair", "--accept-loss")
    assert status == 0, text
    assert f"lost: topic {ORDERS}: A's " in text
    assert "nobody has them" in text
    assert store(mesh, "check")[0] == 0
    mesh.start("A")
    asyncio.run(publish(mesh.client_url("A"), [b"later"]))
    left = asyncio.run(take(mesh.client_url("A"), 4))
    assert sorted(left) == [b"known 0", b"known 1", b"known 2", b"later"]


def take_out_blocks(data: Path, *, every: int, after: int = 0) -> int:
    """Delete rows of blocks of a stopped worker's store that hold messages; returns how many."""
    opened = Store(data, cluster="A", size_max=1 << 30)
    try:
        (topic_id,) = [record.topic_id for record in opened.topics() if record.name == ORDERS]
        heads = opened.block_heads(topic_id, BEFORE_ALL, Position(1 << 62, 0), blocks_max=1_000)
        chosen = [head.first for head in heads if head.header.kind is BlockKind.MESSAGES][after::every]
        with opened.env.begin(write=True) as txn:
            for first in chosen:
                assert txn.delete(BLOCK_KEY.pack(topic_id, *first), db=opened.tables["blocks"])
        return len(chosen)
    finally:
        opened.close()


def test_what_nobody_else_has_is_named_and_left_as_it_is(mesh: Mesh) -> None:
    only_here = [os.urandom(LARGE) for _ in range(3)]
    mesh.kill("B")
    mesh.kill("C")
    for content in only_here:  # each in a block of its own
        asyncio.run(publish(mesh.client_url("A"), [content]))
    mesh.kill("A")
    for content in only_here:
        rot(mesh.data("A"), content)
    status, text = store(mesh, "repair")
    assert status == 1
    assert "0 blocks were mended" in text
    assert text.count(f"damaged: topic {ORDERS} at ") == 3
    assert text.count("does not answer, and is not asked for other blocks") == 2, "each was waited for once"
    assert "asks C at http://" in text
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


def verify(mesh: Mesh, *options: str) -> tuple[int, Any]:
    command = ("verify", "-f", "topology.yaml", "--settle", "0", "--output", "json", *options)
    done = forked_commands.run(*command, cwd=mesh.path)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("--since", "7d")], ids=["all", "by heads"])
def test_verify_names_damaged_blocks_of_a_running_worker_and_fix_has_them_mended(
    mesh: Mesh, options: tuple[str, ...]
) -> None:
    """One flipped byte in the table, and a segment that is gone: its blocks cannot be read at all."""
    contents = [os.urandom(SMALL), os.urandom(LARGE), os.urandom(SMALL), os.urandom(LARGE)]
    for content in contents:  # each in a block of its own
        asyncio.run(publish(mesh.client_url("A"), [content]))
    mesh.until(lambda: all(mesh.messages(name) == 4 for name in "ABC"), "all messages everywhere")
    assert verify(mesh, *options)[0] == 0
    for name in "ABC":  # B alone: else it would mend what it cannot read while it starts, and while verify reads it
        mesh.kill(name)
    rot(mesh.data("B"), contents[0])
    for segment in (mesh.data("B") / "log" / "segments").iterdir():
        segment.unlink()
    mesh.start("B")
    status, found = verify(mesh, *options)
    counts = (status, found["corrupted"], found["missing"], set(found["unreachable"]))
    assert counts == (1, 3, 0, {"A", "C"}), json.dumps(found["topics"])
    assert {each["cluster"] for each in found["damaged"]} == {"B"}
    assert {each["topic"] for each in found["damaged"]} == {ORDERS}
    named = [each["position"] for each in found["damaged"]]
    assert len(set(named)) == 3
    mesh.start("A")
    mesh.start("C")
    status, found = verify(mesh, "--fix", *options)
    assert (status, found["corrupted"], found["damaged"]) == (0, 0, [])
    (done,) = [step for step in found["fix"] if step.startswith(f"done: B mended {ORDERS} at ")]
    assert named[0] in done, "nobody else would have found that one: its checksum is wrong"
    assert mesh.status("B")["store"]["mended"] == 3
    mesh.kill("B")
    done_b = forked_commands.run("store", "check", "-f", "topology.yaml", "-c", "B", cwd=mesh.path)
    assert done_b.returncode == 0, done_b.stderr


def test_verify_fix_says_what_nobody_has_and_leaves_it(mesh: Mesh) -> None:
    only_here = os.urandom(LARGE)
    mesh.kill("B")
    mesh.kill("C")
    asyncio.run(publish(mesh.client_url("A"), [only_here], batching_enabled=False))
    mesh.kill("A")
    rot(mesh.data("A"), only_here)
    for name in "ABC":
        mesh.start(name)
    status, found = verify(mesh, "--fix")
    assert status == 1
    assert [each["cluster"] for each in found["damaged"]] == ["A"]
    text = f"not done: A mends {ORDERS} at {found['damaged'][0]['position']}: no cluster gave it whole: "
    assert found["fix"][0].startswith(text), found["fix"]
