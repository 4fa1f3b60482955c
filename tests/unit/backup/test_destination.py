"""Places where backups are kept."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from fsspec import AbstractFileSystem, register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from replicator.backup.chunks import Chunks
from replicator.backup.destination import AT_ONCE, UNFINISHED, Destination
from replicator.backup.errors import BackupDamaged, BackupError, DestinationUnavailable, LockLost
from replicator.backup.manifest import (
    FileChunks,
    Manifest,
    Manifests,
    decode_manifest,
    encode_manifest,
    new_id,
    time_of,
)
from replicator.backup.pruning import prune

MANIFEST = Manifest("20260101T000000000Z-000000", "a", "s", 1, 5, "0", [])


def test_a_file_is_written_whole_and_what_is_unfinished_is_not_there(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path / "at"))
    assert destination.read("a/b") is None
    assert destination.sizes("a") == {}
    assert destination.directories() == []
    destination.write("a/b", b"one")
    destination.write("a/b", b"two!")
    (tmp_path / "at" / "a" / f"c{UNFINISHED}1").write_bytes(b"x")
    assert destination.read("a/b") == b"two!"
    assert destination.sizes("a") == {"b": 4}
    assert destination.directories() == ["a"]
    destination.delete_unfinished("a")
    assert [each.name for each in (tmp_path / "at" / "a").iterdir()] == ["b"]
    destination.delete(["a/b", "a/b"])
    assert destination.sizes("a") == {}


def test_a_place_that_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationUnavailable, match="Not a directory"):
        Destination(str(tmp_path / "file")).write("a/b", b"")
    with pytest.raises(BackupError) as refused:
        Destination("nothing-that-is://user:secret@host/x")
    assert "nothing-that-is://user:***@host/x" in str(refused.value)
    assert "secret" not in str(refused.value).partition(";")[0].partition(": ")[0]


class Sick(MemoryFileSystem):
    """Destination that cannot list one directory, or whose package raises errors of its own."""

    protocol = "sick"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    ill: ClassVar[dict[str, Exception]] = {}
    find = AbstractFileSystem.find  # most kinds have this one

    def ls(self, path: str, detail: bool = True, **options: object) -> list[object]:
        if (error := self.ill.get(path.rpartition("/")[2])) is not None:
            raise error
        return super().ls(path, detail=detail, **options)


class ServiceError(Exception):
    """Error that is no OSError, like those of botocore and aiohttp."""


@pytest.fixture
def sick() -> Iterator[Destination]:
    register_implementation("sick", Sick, clobber=True)
    yield Destination("sick://us:secret@host/at")
    Sick.ill.clear()
    Sick.store.clear()


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(5, "I/O error"), ServiceError("for secret")])
def test_what_cannot_be_listed_is_an_error_and_nothing_is_pruned(sick: Destination, error: Exception) -> None:
    """Otherwise `prune` would delete the chunks of backups that it cannot see."""
    piece = b"x" * 100
    digest = hashlib.sha256(piece).digest()
    Chunks(sick, "a").put(digest, piece)
    Manifests(sick, "a").write(replace(MANIFEST, files=[FileChunks("f", [(digest.hex(), 100)])]))
    for directory in ("backups", "chunks", digest.hex()[:2]):
        Sick.ill[directory] = error
        with pytest.raises(DestinationUnavailable) as raised:
            prune(sick, "a", 1)
        assert "secret" not in str(raised.value)
        Sick.ill.clear()
    assert Manifests(sick, "a").ids() == [MANIFEST.id]
    assert prune(sick, "a", 1).chunks == 0


class Slow(MemoryFileSystem):
    """A place where each deletion waits until :data:`AT_ONCE` of them have been asked for."""

    protocol = "slow"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    together: ClassVar[threading.Barrier] = threading.Barrier(AT_ONCE)
    running: ClassVar[list[str]] = []
    most: ClassVar[int] = 0

    def rm_file(self, path: str) -> None:
        self.running.append(path)
        Slow.most = max(Slow.most, len(self.running))
        self.together.wait(timeout=60)
        self.running.remove(path)
        super().rm_file(path)


def test_files_are_deleted_at_the_same_time_and_no_more_than_eight_of_them() -> None:
    register_implementation("slow", Slow, clobber=True)
    destination = Destination("slow://at")
    paths = [f"a/{number}" for number in range(3 * AT_ONCE)]
    for path in paths:
        destination.write(path, b"x")
    destination.delete(iter(paths))
    assert destination.sizes("a") == {}
    assert Slow.most == AT_ONCE == 8


def test_no_file_is_deleted_any_more_once_what_is_asked_before_each_has_raised(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path))
    paths = [f"a/{number}" for number in range(100)]
    for path in paths:
        destination.write(path, b"x")
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) > 20:
            raise LockLost("another has it")

    with pytest.raises(LockLost):
        destination.delete(paths, ask)
    assert len(destination.sizes("a")) == 80


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/at", "ftp://127.0.0.1:9/at", "webhdfs://127.0.0.1:9/at"])
def test_a_place_that_does_not_answer_is_said_to_be_away(url: str) -> None:
    with pytest.raises(DestinationUnavailable, match=r"127\.0\.0\.1:9"):
        Destination(url).sizes("a")


def test_a_manifest_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    content = encode_manifest(MANIFEST)
    assert decode_manifest(content, "m") == MANIFEST
    for damaged in (b"", content[:-1], content[:70], content.replace(b'"a"', b'"b"'), b"{}\n{}"):
        with pytest.raises(BackupDamaged, match="m is damaged"):
            decode_manifest(damaged, "m")
    for nonsense in ([("no hash", 5)], [("00", "many")], [("00",)], 5):
        with pytest.raises(BackupDamaged, match="m cannot be read"):
            decode_manifest(encode_manifest(replace(MANIFEST, files=[FileChunks("f", nonsense)])), "m")  # type: ignore[arg-type]
    with pytest.raises(BackupError, match="format 3, this version reads 1 and 2"):
        decode_manifest(encode_manifest(Manifest("i", "a", "s", 1, 5, "0", (), format=3)), "m")
    manifests = Manifests(Destination(str(tmp_path)), "a")
    manifests.write(MANIFEST)
    assert manifests.read(manifests.newest()) == MANIFEST
    other = Manifests(Destination(str(tmp_path)), "b")
    other._destination.write(f"b/backups/{MANIFEST.id}.json", content)
    with pytest.raises(BackupDamaged, match="says that it is backup"):
        other.read(MANIFEST.id)


def test_ids_are_in_the_order_of_time() -> None:
    ids = [new_id(at) for at in (1, 2, 999, 1_000, 1_001, 60_000, 1_700_000_000_123)]
    assert ids == sorted(ids)


def test_an_id_comes_after_the_newest_one_also_when_that_ones_clock_was_ahead() -> None:
    ahead = new_id(1_900_000_000_999)
    following = new_id(1_700_000_000_123, ahead)
    assert following > ahead
    assert time_of(following) == 1_900_000_001_000
    assert time_of(new_id(1_900_000_001_001, following)) == 1_900_000_001_001
    assert time_of("20269999T000000000Z-000000") == 0
