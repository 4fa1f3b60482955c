"""Locks at the places of backups: who is alone there, how long, and what a holder does that was overtaken."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from replicator.backup.chunks import Chunks
from replicator.backup.creating import COPIES_MAX, Source, create
from replicator.backup.destination import Destination
from replicator.backup.errors import BackupError, LockLost
from replicator.backup.locks import CREATE, LOST_SECONDS, PRUNE, STALE_SECONDS, Lock
from replicator.backup.manifest import Manifest, Manifests
from replicator.backup.pruning import prune
from replicator.backup.sources import StoreCopy
from replicator.engine.log.store_copy import Piece

LONG_SECONDS = STALE_SECONDS + 100


class Clocked(MemoryFileSystem):
    """A place with a clock of its own. ``hook`` is called before each operation, once."""

    protocol = "clocked"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    times: ClassVar[dict[str, float]] = {}
    now: ClassVar[float] = 0.0
    written: ClassVar[threading.Condition] = threading.Condition()
    hook: ClassVar[Callable[[str, str], None] | None] = None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._about("write", path)
        super().pipe_file(path, value, mode, **options)
        with self.written:
            self.times[self._strip_protocol(path)] = self.now
            self.written.notify_all()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._about("read", path)
        content: bytes = super().cat_file(path, start, end, **options)
        return content

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._about("list", path)
        return super().find(path, *arguments, **options)

    def rm_file(self, path: str) -> None:
        self._about("delete", path)
        super().rm_file(path)

    def modified(self, path: str) -> datetime:
        self._about("time", path)
        if not self.exists(path):
            raise FileNotFoundError(path)
        return datetime.fromtimestamp(self.times[self._strip_protocol(path)], UTC)

    def _about(self, what: str, path: str) -> None:
        hook = Clocked.hook
        if hook is not None:
            hook(what, path)


def now() -> float:
    """Return the time of the clock that all share: a suspended process finds that time went on."""
    return Clocked.now


@pytest.fixture
def place() -> Iterator[Destination]:
    register_implementation("clocked", Clocked, clobber=True)
    Clocked.now = 1_000.0
    yield Destination("clocked://at")
    Clocked.hook = None
    Clocked.store.clear()
    Clocked.times.clear()


def piece_of(number: int) -> bytes:
    return hashlib.shake_256(bytes([number])).digest(500)


def source_of(*numbers: int, at_ms: int = 1_700_000_000_000) -> Source:
    """Return a store whose file consists of these pieces."""

    @contextmanager
    def opened(known: set[bytes]) -> Iterator[StoreCopy]:
        head: dict[str, Any] = {"cluster": "a", "store_id": "s", "store_format": 1, "version": "0", "topics": {}}
        yield StoreCopy({**head, "made_at_ms": at_ms}, pieces(known))

    def pieces(known: set[bytes]) -> Iterator[Piece]:
        for number in numbers:
            content = piece_of(number)
            digest = hashlib.sha256(content).digest()
            yield Piece("log/data.mdb", digest, len(content), None if digest in known else content)

    return opened


def made(place: Destination, *numbers: int, at_ms: int = 1_700_000_000_000) -> Manifest:
    return create(place, "a", source_of(*numbers, at_ms=at_ms), clock=now)


def assert_all_whole(place: Destination) -> None:
    """Check that every listed backup has all of its chunks."""
    manifests, chunks = Manifests(place, "a"), Chunks(place, "a")
    chunks.load()
    for backup in manifests.ids():
        assert manifests.read(backup).digests() <= chunks.known, backup


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
    for name, content in (("create-1.json", json.dumps({"at": time.time()}).encode()), ("create-2.json", b"no JSON")):
        destination.write(f"a/locks/{name}", content)
        file = tmp_path / "a" / "locks" / name
        os.utime(file, (0, file.stat().st_mtime - STALE_SECONDS - 5))
    with Lock(destination, "a", PRUNE):
        pass
    assert destination.sizes("a/locks") == {}


def test_a_machine_with_a_wrong_clock_takes_no_lock_from_another(tmp_path: Path) -> None:
    """The time in the file is of the machine that wrote it, and may be hours away from the present one's."""
    destination = Destination(str(tmp_path))
    destination.write("a/locks/create-1.json", json.dumps({"at": time.time() - 10 * STALE_SECONDS}).encode())
    with pytest.raises(BackupError, match="was heard of 0 s ago"), Lock(destination, "a", PRUNE):
        raise AssertionError("not reached")


def test_where_a_place_tells_no_times_a_lock_counts_until_it_is_deleted_by_hand(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tells_nothing(self: Clocked, path: str) -> datetime:
        raise NotImplementedError

    monkeypatch.setattr(Clocked, "modified", tells_nothing)
    place.write("a/locks/create-1.json", json.dumps({"at": 0}).encode())
    with pytest.raises(BackupError, match=r"delete a/locks/create-1\.json by hand"), Lock(place, "a", PRUNE):
        raise AssertionError("not reached")
    place.delete(["a/locks/create-1.json"])
    with Lock(place, "a", PRUNE):
        pass


def test_a_prune_that_takes_long_renews_its_lock_and_no_backup_is_made_beside_it(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.locks.RENEW_SECONDS", 0.01)
    for at in range(3):
        made(place, at, at_ms=1_700_000_000_000 + at)
    refused: list[str] = []

    def take_long(what: str, path: str) -> None:
        if what != "delete" or "/chunks/" not in path or refused:
            return
        for _ in range(4):
            with Clocked.written:
                Clocked.now += LOST_SECONDS
                since = Clocked.now
                assert Clocked.written.wait_for(lambda: lock_written_at() >= since, timeout=60), "it is not renewed"  # noqa: B023
        with pytest.raises(BackupError, match="somebody else prunes there") as error:
            made(place, 7)
        refused.append(str(error.value))

    def lock_written_at() -> float:
        return max(at for path, at in Clocked.times.items() if f"/locks/{PRUNE}" in path)

    Clocked.hook = take_long
    assert prune(place, "a", 1).chunks == 2  # its own clock is that of this machine, where hardly any time went by
    assert refused


def test_a_backup_that_takes_long_renews_its_lock_and_nothing_is_pruned_beside_it(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.locks.RENEW_SECONDS", 0.01)
    made(place, 1, 2, at_ms=1_700_000_000_000)
    refused: list[str] = []

    @contextmanager
    def slow(known: set[bytes]) -> Iterator[StoreCopy]:
        with source_of(1, 3, at_ms=1_700_000_000_001)(known) as copy:
            for _ in range(4):
                with Clocked.written:
                    Clocked.now += LOST_SECONDS
                    since = Clocked.now
                    assert Clocked.written.wait_for(lambda: lock_written_at() >= since, timeout=60), "it is not renewed"  # noqa: B023
            with pytest.raises(BackupError, match="somebody else makes a backup there") as error:
                prune(place, "a", 1)
            refused.append(str(error.value))
            yield copy

    def lock_written_at() -> float:
        return max(at for path, at in Clocked.times.items() if f"/locks/{CREATE}" in path)

    create(place, "a", slow)  # its own clock is that of this machine, where hardly any time went by
    assert refused
    assert_all_whole(place)


def test_a_prune_that_lost_its_lock_deletes_nothing_more(place: Destination) -> None:
    for at in range(30):
        made(place, at, at_ms=1_700_000_000_000 + at)
    chunks = Chunks(place, "a")
    chunks.load()
    before = len(chunks.known)

    def take_away(what: str, path: str) -> None:
        if what == "delete" and "/chunks/" in path:
            for lock in [each for each in list(Clocked.store) if "/locks/" in each]:  # others delete meanwhile
                Clocked.store.pop(lock, None)

    Clocked.hook = take_away
    with pytest.raises(LockLost, match="somebody deleted it"):
        prune(place, "a", 1, clock=now)
    Clocked.hook = None
    chunks.load()
    assert before - 8 <= len(chunks.known) < before, "only what was being deleted at that moment"
    assert prune(place, "a", 1, clock=now).chunks == len(chunks.known) - 1


def test_a_holder_that_could_not_renew_its_lock_has_lost_it_though_its_file_is_there(place: Destination) -> None:
    with Lock(place, "a", PRUNE, clock=now) as lock:
        lock.look()
        Clocked.now += LOST_SECONDS + 1
        for ask in (lock.look, lock.renew):
            with pytest.raises(LockLost, match="not renewed for 451 s"):
                ask()
        lock.hold()
        lock.look()
    assert place.sizes("a/locks") == {}


def test_a_lock_that_was_taken_away_is_not_written_again(place: Destination) -> None:
    with Lock(place, "a", PRUNE, clock=now) as lock:
        place.delete([f"a/locks/{name}" for name in place.sizes("a/locks")])
        with pytest.raises(LockLost):
            lock.renew()
        with Lock(place, "a", CREATE, clock=now), pytest.raises(BackupError, match="makes a backup there"):
            lock.hold()
        assert place.sizes("a/locks") == {}


class Suspended:
    """Has something happen before the ``at``-th operation at the place."""

    def __init__(self, at: int, happens: Callable[[], None], passed_over: frozenset[str] = frozenset()) -> None:
        self.left = at
        self.happens = happens
        self.passed_over = passed_over
        self.reached = False

    def __call__(self, what: str, path: str) -> None:
        if what in self.passed_over:
            return
        self.left -= 1
        if self.left < 0:
            Clocked.hook = None
            self.reached = True
            self.happens()


def every_moment(place: Destination, run: Callable[[int], bool]) -> int:
    """Call ``run`` for each operation, until it says that there was none any more; returns how many there were."""
    for at in range(1_000):
        Clocked.store.clear()
        Clocked.times.clear()
        reached = run(at)
        Clocked.hook = None
        assert_all_whole(place)
        if not reached:
            return at
    raise AssertionError("it does not end")


@pytest.mark.parametrize("waits_seconds", [0, LONG_SECONDS])
def test_a_backup_is_whole_or_none_whenever_it_is_suspended_while_another_prunes(
    place: Destination, monkeypatch: pytest.MonkeyPatch, waits_seconds: int
) -> None:
    monkeypatch.setattr("replicator.backup.creating.AT_ONCE", 1)
    outcomes: set[str] = set()

    def run(at: int) -> bool:
        made(place, 1, 2, 3, at_ms=1_700_000_000_000)
        made(place, 9, at_ms=1_700_000_000_001)

        def prune_meanwhile() -> None:
            Clocked.now += waits_seconds
            try:
                prune(place, "a", 1, clock=now)
            except BackupError:
                outcomes.add("in the way")

        Clocked.hook = suspended = Suspended(at, prune_meanwhile)
        try:
            manifest = made(place, 1, 2, 3, 4, at_ms=1_700_000_000_002)
        except LockLost:
            outcomes.add("lost while it was taken")
            return suspended.reached
        assert Manifests(place, "a").newest() == manifest.id
        outcomes.add("made")
        return suspended.reached

    assert every_moment(place, run) >= 7
    assert outcomes == {"made", "lost while it was taken" if waits_seconds else "in the way"}


def test_a_backup_is_whole_or_none_whenever_a_prune_is_suspended_while_it_is_made(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.destination.AT_ONCE", 1)
    outcomes: set[str] = set()

    def run(at: int) -> bool:
        made(place, 1, 2, 3, at_ms=1_700_000_000_000)
        made(place, 9, at_ms=1_700_000_000_001)

        def make_meanwhile() -> None:
            Clocked.now += LONG_SECONDS
            made(place, 1, 2, 3, at_ms=1_700_000_000_002)

        # A request that was sent before the holder was suspended cannot be called back.
        Clocked.hook = suspended = Suspended(at, make_meanwhile, frozenset({"delete"}))
        try:
            prune(place, "a", 1, clock=now)
            outcomes.add("pruned")
        except LockLost:
            outcomes.add("stopped")
        return suspended.reached

    assert every_moment(place, run) >= 7
    assert outcomes == {"pruned", "stopped"}


def test_a_chunk_that_goes_while_a_backup_is_made_is_written_again(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.creating.AT_ONCE", 1)

    def run(at: int) -> bool:
        made(place, 1, 2, 3)

        def delete_one() -> None:
            chunks = Chunks(place, "a")
            chunks.load()
            chunks.delete([hashlib.sha256(piece_of(2)).digest()], lambda: None)

        Clocked.hook = suspended = Suspended(at, delete_one, frozenset({"delete"}))
        made(place, 1, 2, 3, 4, at_ms=1_700_000_000_001)
        return suspended.reached

    assert every_moment(place, run) >= 7


def test_a_backup_that_lost_its_lock_is_whole_or_none_whenever_it_goes_on_while_another_prunes(
    place: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The create is suspended at each moment, a prune takes its lock away, and it goes on at each moment of that
    prune."""
    monkeypatch.setattr("replicator.backup.destination.AT_ONCE", 1)
    outcomes: set[str] = set()

    def suspend(at: int, goes_on_at: int) -> tuple[bool, bool]:
        made(place, 1, 2, 3, at_ms=1_700_000_000_000)
        made(place, 9, at_ms=1_700_000_000_001)
        waiting, going_on = threading.Event(), threading.Event()

        def wait_for_prune() -> None:
            waiting.set()
            assert going_on.wait(60)

        def make() -> None:
            try:
                made(place, 1, 2, 3, at_ms=1_700_000_000_002)
                outcomes.add("made")
            except BackupError:
                outcomes.add("given up")
            finally:
                waiting.set()

        def go_on() -> None:
            going_on.set()
            maker.join()

        Clocked.hook = first = Suspended(at, wait_for_prune, frozenset({"delete"}))
        maker = threading.Thread(target=make)
        maker.start()
        assert waiting.wait(60)
        Clocked.now += LONG_SECONDS
        Clocked.hook = second = Suspended(goes_on_at, go_on, frozenset({"delete"}))
        with suppress(BackupError):  # the maker may have begun anew by then
            prune(place, "a", 1, clock=now)
        Clocked.hook = None
        go_on()
        return first.reached, second.reached

    def every_moment_of_prune(at: int) -> bool:
        reached = True

        def run(goes_on_at: int) -> bool:
            nonlocal reached
            reached, within = suspend(at, goes_on_at)
            return within

        every_moment(place, run)
        return reached

    assert every_moment(place, every_moment_of_prune) >= 7
    assert outcomes == {"made", "given up"}


def test_chunks_that_go_again_and_again_end_the_backup_and_no_manifest_stays(place: Destination) -> None:
    copies: list[int] = []

    @contextmanager
    def source(known: set[bytes]) -> Iterator[StoreCopy]:
        copies.append(len(known))
        with source_of(1, 2, 3)(known) as copy:
            yield copy
        chunks = Chunks(place, "a")
        chunks.load()
        chunks.delete(list(chunks.known)[:1], lambda: None)

    with pytest.raises(BackupError, match="find out who deletes them"):
        create(place, "a", source, clock=now)
    assert len(copies) == COPIES_MAX
    assert Manifests(place, "a").ids() == []


def test_a_prune_keeps_the_backup_made_last_also_after_a_clock_that_was_ahead(tmp_path: Path) -> None:
    place = Destination(str(tmp_path))
    made(place, 1, at_ms=1_900_000_000_000)
    for day in range(3):
        manifest = made(place, 2 + day, at_ms=1_700_000_000_000 + day)
        prune(place, "a", 1, clock=now)
        assert Manifests(place, "a").ids() == [manifest.id]
        assert manifest.made_at_ms == 1_700_000_000_000 + day
