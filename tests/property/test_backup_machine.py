"""Backups of a file that changes, at a destination where makers are cut off and chunks rot: what is listed is whole, or
is said to be damaged; what is kept is never deleted.

The model: the content of the file at each backup, and which files at the destination were damaged.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.backup.chunks import Chunks
from replicator.backup.creating import create
from replicator.backup.destination import Destination
from replicator.backup.errors import BackupDamaged
from replicator.backup.manifest import Manifest, Manifests
from replicator.backup.pruning import prune
from replicator.backup.sources import StoreCopy
from replicator.engine.log.store_copy import Piece

CLUSTER = "us-east"
FILE = "log/data.mdb"
PIECES = st.lists(st.integers(0, 12), min_size=1, max_size=8)


class CutOff(Exception):
    """The maker of a backup is killed."""


def piece_of(number: int) -> bytes:
    """Return a piece. Some pack well, some not at all, so that only the hash tells what is wrong; the last ones are
    shorter."""
    noise = hashlib.shake_256(bytes([number])).digest(1_500)
    return (noise if number % 2 else bytes([number]) * 1_500)[: 1_500 - 100 * (number > 9)]


class BackupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="backup-machine-"))
        self.at = self.directory / "at"
        self.destination = Destination(str(self.at))
        self.file: list[int] = [0]
        self.backups: dict[str, list[int]] = {}
        self.damaged: set[int] = set()
        """The pieces whose chunk is damaged, or gone."""
        self.made = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize(pieces=PIECES)
    def begin(self, pieces: list[int]) -> None:
        self.file = pieces

    # What happens.

    @rule(pieces=PIECES)
    def change(self, pieces: list[int]) -> None:
        self.file = pieces

    @rule()
    def back_up(self) -> None:
        manifest = self.create(None)
        assert manifest is not None
        self.backups[manifest.id] = list(self.file)

    @rule(after=st.integers(0, 8))
    def back_up_and_be_killed(self, after: int) -> None:
        """Make a backup that is killed: only its chunks stay."""
        if self.create(min(after, len(self.file))) is not None:
            raise AssertionError("it was to be cut off")

    @precondition(lambda self: self.backups)
    @rule(keep=st.integers(1, 3))
    def prune(self, keep: int) -> None:
        pruned = prune(self.destination, CLUSTER, keep)
        kept = sorted(self.backups, reverse=True)[:keep]
        assert sorted(pruned.backups) == sorted(set(self.backups) - set(kept))
        self.backups = {backup: self.backups[backup] for backup in kept}
        needed = {piece for content in self.backups.values() for piece in content}
        assert self.chunks_there() <= needed, "what nobody needs is gone"
        self.damaged &= needed

    @precondition(lambda self: self.backups)
    @rule(data=st.data(), how=st.sampled_from(["flip", "cut off", "delete", "empty"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        files = sorted(each for each in (self.at / CLUSTER / "chunks").rglob("*") if each.is_file())
        if not files:
            return
        file = data.draw(st.sampled_from(files))
        digest = bytes.fromhex(file.name.partition("-")[0])
        content = file.read_bytes()
        if how == "delete":
            file.unlink()
        elif how == "flip":
            at = data.draw(st.integers(0, max(0, len(content) - 1)))
            file.write_bytes(content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :] if content else b"")
        else:
            file.write_bytes(content[: len(content) // 2 if how == "cut off" else 0])
        self.damaged |= {number for number in range(13) if hashlib.sha256(piece_of(number)).digest() == digest}

    # What holds.

    @invariant()
    def every_backup_is_whole_or_said_to_be_damaged(self) -> None:
        manifests = Manifests(self.destination, CLUSTER)
        assert manifests.ids() == sorted(self.backups, reverse=True)
        chunks = Chunks(self.destination, CLUSTER)
        chunks.load()
        for backup, content in self.backups.items():
            (file,) = manifests.read(backup).files
            wanted = [(bytes.fromhex(digest), size) for digest, size in file.chunks]
            for number, piece in zip(content, chunks.get_all(wanted), strict=True):
                if number in self.damaged:
                    assert isinstance(piece, BackupDamaged) or piece == piece_of(number)
                else:
                    assert piece == piece_of(number)

    # Steps.

    def create(self, killed_after: int | None) -> Manifest | None:
        """Make a backup. Forget damaged chunks that it wrote again, because their size showed the damage."""
        self.made += 1
        try:
            manifest = create(self.destination, CLUSTER, self.source(killed_after))
        except CutOff:
            pieces = self.file[:killed_after]
            manifest = None
        else:
            pieces = self.file
            assert len(manifest.files) == 1
        known = Chunks(self.destination, CLUSTER)
        known.load()
        for number in set(pieces) & self.damaged:
            digest = hashlib.sha256(piece_of(number)).digest()
            if digest in known.known:
                try:
                    known.get(digest, len(piece_of(number)))
                except BackupDamaged:
                    continue
                self.damaged.discard(number)
        return manifest

    def source(self, killed_after: int | None) -> object:
        @contextmanager
        def opened(known: set[bytes]) -> Iterator[StoreCopy]:
            head = {
                "cluster": CLUSTER,
                "store_id": "s",
                "store_format": 1,
                "made_at_ms": 1_700_000_000_000 + 1000 * self.made,
                "version": "0",
                "topics": {},
            }
            yield StoreCopy(head, pieces(known))

        def pieces(known: set[bytes]) -> Iterator[Piece]:
            for at, number in enumerate([*self.file, None]):
                if at == killed_after:
                    raise CutOff
                if number is not None:
                    content = piece_of(number)
                    digest = hashlib.sha256(content).digest()
                    yield Piece(FILE, digest, len(content), None if digest in known else content)

        return opened

    def chunks_there(self) -> set[int]:
        digests = {each.name.partition("-")[0] for each in (self.at / CLUSTER / "chunks").rglob("*") if each.is_file()}
        return {number for number in range(13) if hashlib.sha256(piece_of(number)).hexdigest() in digests}


TestBackups = BackupMachine.TestCase
TestBackups.settings = settings(max_examples=examples(30), stateful_step_count=20, deadline=None)
