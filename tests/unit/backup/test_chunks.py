"""A chunk is what its name says, or is said to be damaged: whatever byte of its file is another one."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import pytest

from replicator.backup.chunks import Chunks
from replicator.backup.destination import Destination
from replicator.backup.errors import BackupDamaged

PIECES = {"packed": b"orders of a customer " * 40, "as it is": random.Random(7).randbytes(300)}


@pytest.mark.parametrize("how", PIECES)
def test_a_chunk_with_any_byte_changed_is_damaged(tmp_path: Path, how: str) -> None:
    piece = PIECES[how]
    digest = sha256(piece).digest()
    chunks = Chunks(Destination(str(tmp_path)), "us-east")
    chunks.put(digest, piece)
    assert chunks.get(digest, len(piece)) == piece
    (file,) = (each for each in (tmp_path / "us-east" / "chunks").rglob("*") if each.is_file())
    content = file.read_bytes()
    assert (content[:1] == b"P") == (how == "as it is")
    damaged = 0
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            assert chunks.get(digest, len(piece)) == piece, f"byte {at}"  # one that does not matter for the piece
        except BackupDamaged:
            damaged += 1
    assert damaged > 0.8 * len(content)


def test_a_chunk_with_the_content_of_another_one_is_damaged(tmp_path: Path) -> None:
    """Whole and of the right size; only its hash tells."""
    chunks = Chunks(Destination(str(tmp_path)), "us-east")
    pieces = [random.Random(seed).randbytes(300) for seed in (1, 2)]
    for piece in pieces:
        chunks.put(sha256(piece).digest(), piece)
    first, second = (
        next((tmp_path / "us-east" / "chunks").rglob(f"{sha256(piece).hexdigest()}-*")) for piece in pieces
    )
    first.write_bytes(second.read_bytes())
    with pytest.raises(BackupDamaged, match="its hash is not the one in its name"):
        chunks.get(sha256(pieces[0]).digest(), 300)
