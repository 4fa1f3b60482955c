"""Places where backups are kept, and who works there at the same time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from replicator.backup.destination import UNFINISHED, Destination
from replicator.backup.errors import BackupDamaged, BackupError, DestinationUnavailable
from replicator.backup.locks import CREATE, PRUNE, STALE_SECONDS, Lock
from replicator.backup.manifest import Manifest, Manifests, decode_manifest, encode_manifest, new_id

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


@pytest.mark.parametrize(("first", "second"), [(CREATE, PRUNE), (PRUNE, CREATE), (PRUNE, PRUNE)])
def test_who_prunes_is_alone(tmp_path: Path, first: str, second: str) -> None:
    destination = Destination(str(tmp_path))
    with Lock(destination, "a", first):
        with pytest.raises(BackupError, match="somebody else"), Lock(destination, "a", second):
            raise AssertionError("not reached")
        with Lock(destination, "b", second):
            pass
    with Lock(destination, "a", second):
        pass
    assert destination.sizes("a/locks") == {}


def test_backups_are_made_side_by_side(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path))
    with Lock(destination, "a", CREATE), Lock(destination, "a", CREATE):
        pass


def test_who_was_killed_long_ago_is_in_nobodys_way(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path))
    destination.write("a/locks/create-1.json", json.dumps({"at": time.time() - STALE_SECONDS - 5}).encode())
    destination.write("a/locks/create-2.json", b"no JSON")
    with Lock(destination, "a", PRUNE):
        pass
    assert destination.sizes("a/locks") == {}


def test_a_manifest_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    content = encode_manifest(MANIFEST)
    assert decode_manifest(content, "m") == MANIFEST
    for damaged in (b"", content[:-1], content[:70], content.replace(b'"a"', b'"b"'), b"{}\n{}"):
        with pytest.raises(BackupDamaged, match="m is damaged"):
            decode_manifest(damaged, "m")
    with pytest.raises(BackupError, match="format 2, this version reads 1"):
        decode_manifest(encode_manifest(Manifest("i", "a", "s", 1, 5, "0", (), format=2)), "m")
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
