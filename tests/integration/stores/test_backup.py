"""Backups of a worker that runs: consistent, incremental, whole or not there; and restoring them.

The commands are run as a user runs them, and killed as a machine kills them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import forked_commands
import pytest
from backup_support import ORDERS, Mesh, numbered, publish
from engine_support import opened
from failover_support import deployment
from served_worker import ServedWorker, served_worker

from replicator.api import backup as backup_route
from replicator.backup.chunks import Chunks
from replicator.backup.creating import create
from replicator.backup.destination import UNFINISHED, Destination
from replicator.backup.locks import CREATE, Lock
from replicator.backup.manifest import Manifest, Manifests
from replicator.backup.pruning import prune
from replicator.backup.restoring import restore
from replicator.backup.sources import StoreCopy, of_worker
from replicator.client import Client
from replicator.engine.engine import Engine
from replicator.engine.errors import StoreCopyFailed
from replicator.engine.log.block import BlockView
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.store_copy import DamagedBlock, Piece
from replicator.engine.log.store_files import RESTORING
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)
RATE = 2_000
"""Messages a second while a backup is made."""


@pytest.fixture
def alone(tmp_path: Path, postgres_url: str) -> Iterator[Mesh]:
    """Yield a worker of one cluster."""
    with deployment(tmp_path, "A", links="[]", databases={"A": postgres_url}, kind=Mesh) as deployed:
        yield deployed


@pytest.fixture
def alone_here() -> Iterator[ServedWorker]:
    """Another one, in this process."""
    with served_worker() as served:
        yield served


def payloads(engine: Engine) -> set[bytes]:
    topic = engine.find(ORDERS)
    assert topic is not None
    found: set[bytes] = set()
    after = BEFORE_ALL
    while True:
        blocks, after = engine.store.read_blocks(topic.topic_id, after, END, bytes_max=1 << 22)
        if not blocks:
            return found
        for stored in blocks:
            found.update(bytes(decode_entry(entry)[1]) for entry in BlockView(stored.block).entries())


def restored_into(alone: Mesh, directory: str) -> set[bytes]:
    """Restore a backup into a directory of its own; return all that it has."""
    alone.backup("restore", "-c", "A", "--at", "backups", "--into", directory)

    async def read() -> set[bytes]:
        async with opened(alone.path / directory, "A") as engine:
            return payloads(engine)

    return asyncio.run(read())


def chunk_files(alone: Mesh) -> list[Path]:
    """Return the finished files of chunks; a killed command leaves unfinished ones, too."""
    files = (each for each in (alone.backups / "A" / "chunks").rglob("*") if UNFINISHED not in each.name)
    return sorted(each for each in files if each.is_file())


def listed(alone: Mesh) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(alone.backup("list", "--at", "backups", "--output", "json"))
    return found


def large(alone: Mesh, megabytes: int) -> None:
    """Fill the store with what does not pack."""
    send(alone, *(os.urandom(1_000_000) for _ in range(megabytes)))


@contextmanager
def small_disk(alone: Mesh) -> Iterator[Path]:
    """The directory ``small``, a file system of 2 MB."""
    small = alone.path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small)], check=True)


def send(alone: Mesh, *contents: bytes) -> None:
    """Publish each by itself."""
    asyncio.run(publish(alone.client_url("A"), contents, batching_enabled=False))


def test_invariant_1_what_was_confirmed_before_a_backup_is_in_it_though_the_worker_takes_2000_a_second(
    alone: Mesh,
) -> None:
    async def main() -> tuple[set[bytes], set[bytes]]:
        confirmed: set[bytes] = set()
        stop = asyncio.Event()

        async def produce() -> None:
            async with Client(alone.client_url("A")) as client:
                producer = await client.create_producer(ORDERS, batching_enabled=False)
                began, number = time.monotonic(), 0
                while not stop.is_set():
                    contents = numbered("a", number, number + 100)
                    await asyncio.gather(*(producer.send(each) for each in contents))
                    confirmed.update(contents)
                    number += 100
                    await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))

        async def reached(count: int) -> None:
            while len(confirmed) < count:  # noqa: ASYNC110 - the client has no event for it
                await asyncio.sleep(0.01)

        producing = asyncio.create_task(produce())
        await reached(RATE)
        before = set(confirmed)
        await asyncio.to_thread(alone.create, "A")
        meanwhile = len(confirmed)
        await reached(meanwhile + RATE)
        again = set(confirmed)
        await asyncio.to_thread(alone.create, "A")
        stop.set()
        await producing
        return before, again

    before, again = asyncio.run(main())
    newest, oldest = listed(alone)
    assert newest["written_bytes"] <= oldest["written_bytes"] * 10, "it takes what changed, and no more"
    assert again <= restored_into(alone, "newest")
    alone.backup("restore", "-c", "A", "--at", "backups", "--into", "oldest", "--backup", str(oldest["id"]))
    assert "sound" in alone.backup("verify", "-c", "A", "--at", "backups", "--all")

    async def read() -> set[bytes]:
        async with opened(alone.path / "oldest", "A") as engine:
            return payloads(engine)

    assert before <= asyncio.run(read())


def test_a_second_backup_carries_what_changed_and_pruning_keeps_what_is_needed(alone: Mesh) -> None:
    large(alone, 30)
    alone.create("A")
    send(alone, b"one more")
    alone.create("A")
    newest, oldest = listed(alone)
    assert int(str(oldest["written_bytes"])) > 30_000_000
    assert int(str(newest["written_bytes"])) < 6_000_000
    assert "deleted 1 backups" in alone.backup("prune", "-c", "A", "--at", "backups", "--keep", "1")
    (left,) = listed(alone)
    assert left["id"] == newest["id"]
    assert "sound" in alone.backup("verify", "-c", "A", "--at", "backups")
    assert b"one more" in restored_into(alone, "back")
    entries = alone.get("A", "/replication/v1/audit")["entries"]
    audited = [entry for entry in entries if entry["action"] == "backup"]
    assert [entry["detail"]["outcome"] for entry in audited] == ["done", "done"]


def test_a_backup_deletes_older_ones_than_it_is_to_keep_or_says_why_they_stay(alone: Mesh) -> None:
    alone.create("A")
    alone.create("A")
    create_it = ("create", "-f", "topology.yaml", "-c", "A", "--at", "backups", "--keep", "1")
    alone.backup(*create_it)
    assert len(listed(alone)) == 1
    with Lock(Destination(str(alone.backups)), "A", CREATE):
        assert "older backups stay for now" in alone.backup(*create_it)
    assert len(listed(alone)) == 2


@contextmanager
def killed(alone: Mesh, *arguments: str, when: Path, files: int) -> Iterator[None]:
    """Kill a command as soon as there are so many files below a directory."""
    log = alone.path / "killed.log"
    process = forked_commands.start(("backup", *arguments), cwd=alone.path, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while sum(each.is_file() for each in when.rglob("*")) < files:
        assert process.poll() is None, "it was too quick to be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    assert process.wait() < 0
    yield


def test_a_backup_that_is_killed_is_none_and_the_next_one_uses_its_chunks(alone: Mesh) -> None:
    large(alone, 60)
    create_it = ("create", "-f", "topology.yaml", "-c", "A", "--at", "backups")
    with killed(alone, *create_it, when=alone.backups, files=20):
        assert listed(alone) == []
        there = len(chunk_files(alone))
        assert there >= 10
    alone.until(lambda: alone.run_backup(*create_it).returncode == 0, "the worker to notice that nobody reads its copy")
    (made,) = listed(alone)
    assert int(str(made["written_bytes"])) < 62_000_000 - 800_000 * there
    assert "sound" in alone.backup("verify", "-c", "A", "--at", "backups")
    refused = alone.backup("prune", "-c", "A", "--at", "backups", "--keep", "1", status=2)
    assert "somebody else makes a backup there" in refused, "who was killed may still be at work, for all that is known"


def test_a_restore_that_is_killed_keeps_the_worker_from_starting_and_is_done_again(alone: Mesh) -> None:
    large(alone, 60)
    alone.create("A")
    alone.lose("A")
    restoring = alone.data("A") / RESTORING
    with killed(alone, "restore", "-f", "topology.yaml", "-c", "A", "--at", "backups", when=restoring, files=1):
        assert not (alone.data("A") / "log").exists()
        assert "replicator backup restore" in alone.start_refused("A")
    alone.restore("A")
    assert not restoring.exists()
    alone.start("A")
    assert alone.messages("A") == 60


@pytest.mark.parametrize("how", ["flipped", "cut off", "missing"])
def test_a_damaged_chunk_is_found_by_verify_and_by_restore_which_then_changes_nothing(alone: Mesh, how: str) -> None:
    large(alone, 5)
    alone.create("A")
    file = max(chunk_files(alone), key=lambda each: each.stat().st_size)
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        flipped = content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
        file.write_bytes(flipped if how == "flipped" else content[:9])
    digest = file.name.partition("-")[0]
    found = alone.backup("verify", "-c", "A", "--at", "backups", status=1)
    assert digest in found
    assert re.search(r"log/(data\.mdb|segments/\d{10}\.segment) at byte", found)
    alone.lose("A")
    assert digest in alone.restore("A", status=1)
    assert not (alone.data("A") / "log").exists()


def test_a_manifest_that_was_cut_off_is_no_backup(alone: Mesh) -> None:
    alone.create("A")
    (file,) = (alone.backups / "A" / "backups").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert "is no backup" in alone.backup("list", "--at", "backups", status=1)
    assert "is no backup" in alone.backup("restore", "-c", "A", "--at", "backups", "--into", "x", status=1)
    assert "is no backup" in alone.backup("prune", "-c", "A", "--at", "backups", "--keep", "1", status=1)


def test_a_destination_that_is_full_ends_the_backup_with_its_name_and_the_worker_goes_on(alone: Mesh) -> None:
    large(alone, 5)
    with small_disk(alone) as small:
        failed = alone.backup("create", "-f", "topology.yaml", "-c", "A", "--at", "small", status=3)
        assert "No space left on device" in failed
        assert not list(small.rglob("*.unfinished-*"))
        assert json.loads(alone.backup("list", "--at", "small", "--output", "json")) == []
    send(alone, b"goes on")
    alone.create("A")


def test_what_there_is_no_room_to_put_together_is_said_with_how_much_it_needs(alone: Mesh) -> None:
    large(alone, 5)
    alone.create("A")
    with small_disk(alone) as small:
        failed = alone.backup("restore", "-c", "A", "--at", "backups", "--into", "small/data", status=3)
        assert "small/data: No space left on device" in failed
        assert " MB there" in failed
        assert (small / "data" / RESTORING).exists(), "no worker starts there with an empty store"
        shutil.rmtree(small / "data")
        failed = alone.backup("verify", "-c", "A", "--at", "backups", "--scratch", "small", status=3)
        assert "No space left on device" in failed
        assert not list(small.iterdir())
    assert "is no directory" in alone.backup("verify", "-c", "A", "--at", "backups", "--scratch", "nowhere", status=2)


@pytest.mark.parametrize("cut_off_before", [False, True])
def test_a_restore_that_fails_beside_a_store_leaves_it_to_its_worker(alone: Mesh, cut_off_before: bool) -> None:
    """Unless a restore was cut off there before: what it left may be all that there is."""
    large(alone, 5)
    alone.create("A")
    max(chunk_files(alone), key=lambda each: each.stat().st_size).unlink()
    alone.kill("A")
    restoring = alone.data("A") / RESTORING
    if cut_off_before:
        restoring.mkdir()
    assert "cannot be restored" in alone.restore("A", "--replace", status=1)
    assert restoring.exists() == cut_off_before
    if cut_off_before:
        assert "replicator backup restore" in alone.start_refused("A")
    else:
        alone.start("A")
        assert alone.messages("A") == 5


def test_all_backups_are_verified_though_one_is_none(alone: Mesh) -> None:
    for _ in range(3):
        alone.create("A")
    files = sorted((alone.backups / "A" / "backups").iterdir())
    files[1].write_bytes(files[1].read_bytes()[:-10])
    said = alone.backup("verify", "-c", "A", "--at", "backups", "--all", status=1)
    assert [file.stem for file in files if f"{file.stem}: " in said and f"{file.stem}.json" not in said] == [
        files[0].stem, files[2].stem
    ]  # fmt: skip
    assert "is no backup" in said


def test_who_asks_for_a_copy_and_falls_silent_is_in_nobodys_way(
    alone_here: ServedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("127.0.0.1", alone_here.port)
    asked = f"POST /replication/v1/backup HTTP/1.1\r\nHost: {place[0]}:{place[1]}\r\nContent-Length: 64\r\n\r\n"
    with socket.create_connection(place, timeout=120) as silent:
        with monkeypatch.context() as patch:
            patch.setattr("replicator.api.backup.SILENCE_SECONDS_MAX", 0.5)
            silent.sendall(asked.encode() + b"x" * 32)
            assert b"nothing of the body came" in silent.recv(4_096)
        assert alone_here.ask("POST", "/replication/v1/backup").status == 200


def test_a_topic_that_is_deleted_while_a_copy_begins_is_no_part_of_the_backup_which_can_be_restored(
    alone_here: ServedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stays", "goes"):
        assert alone_here.ask("PUT", f"persistent/public/default/{name}").status == 204
    deleted: list[int] = []
    next_piece = backup_route._next

    def delete_first(pieces: Iterator[Piece | DamagedBlock]) -> Piece | DamagedBlock | None:
        if not deleted:
            deleted.append(alone_here.ask("DELETE", "persistent/public/default/goes?force=true").status)
        return next_piece(pieces)

    monkeypatch.setattr(backup_route, "_next", delete_first)
    destination = Destination(str(tmp_path / "backups"))
    manifest = create(destination, "us-east", lambda known: of_worker(alone_here.url, known))
    assert deleted == [204]
    assert "persistent://public/default/stays" in manifest.topics
    assert "persistent://public/default/goes" not in manifest.topics
    restored, _, _ = restore(destination, "us-east", tmp_path / "back")
    assert restored.id == manifest.id


def test_a_copy_that_cannot_begin_says_why(alone_here: ServedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise StoreCopyFailed("the disk is gone")

    monkeypatch.setattr(backup_route, "_next", fails)
    with pytest.raises(StoreCopyFailed, match="the disk is gone"), of_worker(alone_here.url, set()) as copy:
        list(copy.pieces)


def test_where_there_are_more_chunks_than_a_worker_takes_hashes_of_those_of_the_newest_backup_are_named(
    alone_here: ServedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination(str(tmp_path / "backups"))
    named: list[set[bytes]] = []

    def backup_after(*contents: bytes) -> Manifest:
        asyncio.run(publish(alone_here.pulsar_url, contents, batching_enabled=False))

        def source(known: set[bytes]) -> AbstractContextManager[StoreCopy]:
            named.append(known)
            return of_worker(alone_here.url, known)

        return create(destination, "us-east", source)

    first = backup_after(*(os.urandom(1_000_000) for _ in range(4)))
    second = backup_after(b"another")
    assert len(first.digests()) > 2
    assert first.digests() - second.digests(), "the store changed"
    for module in ("replicator.api.backup", "replicator.backup.creating"):
        monkeypatch.setattr(f"{module}.KNOWN_BYTES_MAX", 2 * 32)
    third = backup_after(b"one more")
    assert named[1] == first.digests()
    assert len(named[2]) == 2
    assert named[2] <= second.digests()
    assert third.written_bytes < 4_000_000, "what is sent again is not written again"
    _, mark, _ = restore(destination, "us-east", tmp_path / "back")
    assert mark.backup == third.id


def test_a_directory_with_a_store_is_left_alone_unless_it_is_said_and_then_the_store_is_kept(alone: Mesh) -> None:
    send(alone, b"1")
    alone.create("A")
    send(alone, b"2")
    assert "in use by another worker" in alone.restore("A", "--replace", status=2)
    alone.kill("A")
    assert "give --replace" in alone.restore("A", status=2)
    printed = alone.restore("A", "--replace")
    (aside,) = alone.data("A").glob("replaced-*")
    assert f"`replicator backup reclaim -f FILE --cluster A --from-directory {aside}`" in printed
    assert "took back 1 message" in alone.reclaim("A", "--from-directory", str(aside))
    alone.start("A")
    assert alone.messages("A") == 2
    alone.stop()
    assert "A" in alone.backup("create", "-f", "topology.yaml", "-c", "A", "--at", "offline", "--offline")
    assert "sound" in alone.backup("verify", "-c", "A", "--at", "offline")


def test_a_start_that_restores_into_an_empty_directory_leaves_a_store_alone(alone: Mesh) -> None:
    """The first container of a pod does this before each start of the worker."""
    send(alone, b"1")
    alone.create("A")
    send(alone, b"2")
    alone.kill("A")
    assert "nothing was restored" in alone.restore("A", "--if-empty")
    assert "exclude each other" in alone.restore("A", "--if-empty", "--replace", status=2)
    alone.start("A")
    assert alone.messages("A") == 2
    alone.lose("A")
    (alone.data("A") / RESTORING).mkdir(parents=True)  # one before was cut off
    assert "has no backup of A" in alone.backup(
        "restore", "-f", "topology.yaml", "-c", "A", "--at", "none", "--if-empty", status=2
    )
    assert "from backup" in alone.restore("A", "--if-empty")
    assert "nothing was restored" in alone.restore("A", "--if-empty")
    alone.start("A")
    assert alone.messages("A") == 1


def test_a_directory_without_a_store_gives_no_backup_and_gets_no_store(alone: Mesh) -> None:
    """This happens when its disk is not mounted. An empty backup would be the newest one, and `prune` would keep it."""
    alone.stop()
    kept = alone.path / "kept"
    alone.data("A").rename(kept)
    offline = ("create", "-f", "topology.yaml", "-c", "A", "--at", "backups", "--offline")
    for _ in range(2):
        assert "has no store" in alone.backup(*offline, status=2)
        assert not alone.data("A").exists() or not list(alone.data("A").iterdir())
    assert listed(alone) == []
    kept.rename(alone.data("A"))
    alone.backup(*offline)


def test_what_cannot_be_done_is_said_with_its_status(alone: Mesh) -> None:
    at = ("--at", "backups")
    assert "no backup of A" in alone.backup("verify", "-c", "A", *at, status=2)
    assert "is not the id of a backup" in alone.backup("verify", "-c", "A", *at, "--backup", "../x", status=2)
    assert "Protocol not known" in alone.backup("list", "--at", "nowhere://x", status=2)
    assert "in use by another worker" in alone.backup(
        "create", "-f", "topology.yaml", "-c", "A", *at, "--offline", status=2
    )
    alone.kill("A")
    assert "cannot be reached" in alone.backup("create", "-f", "topology.yaml", "-c", "A", *at, status=3)


def test_backups_lie_wherever_fsspec_reaches(alone: Mesh, tmp_path: Path) -> None:
    """A file system in memory stands for a bucket: files are put whole, without renames."""
    send(alone, b"1", b"2")
    destination = Destination(f"memory://{tmp_path.name}/backups")
    for _ in range(2):
        manifest = create(destination, "A", lambda known: of_worker(alone.url("A"), known))
    assert destination.directories() == ["A"]
    assert Manifests(destination, "A").newest() == manifest.id
    assert len(prune(destination, "A", 1).backups) == 1
    chunks = Chunks(destination, "A")
    chunks.load()
    assert chunks.known == manifest.digests()
    restored, mark, aside = restore(destination, "A", tmp_path / "back")
    assert (restored.id, mark.backup, aside) == (manifest.id, manifest.id, None)

    async def read() -> set[bytes]:
        async with opened(tmp_path / "back", "A") as engine:
            return payloads(engine)

    assert asyncio.run(read()) == {b"1", b"2"}
