"""The worker decompresses for itself within a budget of one entry of the largest size: for compaction and for links."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from engine_support import PUBLISH_TIME_MS
from pyroaring import BitMap

from replicator.apache.dense_batches import dense
from replicator.engine import unpacking
from replicator.engine.compaction.compactor import Compactor
from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.compression import UNCOMPRESSED_BYTES_MAX, compress, decompress
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.types import LoggedEntry
from replicator.engine.unpacking import INTERNAL, unpacked_internally
from replicator.metadata.metadata_pb2 import NONE, ZSTD, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.live.filtering import Masked, rewrite_entry
from snapshots.position import Position

PAYLOAD = b"x" * 100_000


def entry() -> bytes:
    body = bytearray()
    for number in range(3):
        append_to_batch(body, SingleMessageMetadata(partition_key=f"k{number}"), PAYLOAD)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=PUBLISH_TIME_MS,
        num_messages_in_batch=3,
        compression=ZSTD,
        uncompressed_size=len(body),
    )
    return encode_entry(metadata, compress(body, ZSTD))


def compacted() -> None:
    at = Position(1, 0)
    Compactor().note(LoggedEntry(at, 3, False, memoryview(entry()), "us-east", at))


def masked() -> None:
    rewrite_entry(entry(), [True, False, True], {0: Masked(payload=b"new")}, frozenset({"payload"}))


def shortened() -> None:
    dense(entry(), BitMap([1]))


@pytest.mark.parametrize("work", [compacted, masked, shortened])
def test_an_entry_counts_while_it_is_looked_into_and_not_afterwards(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    used: list[int] = []

    def noted(*arguments: object) -> bytes:
        used.append(INTERNAL.used_bytes)
        return decompress(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(unpacking, "decompress", noted)
    work()
    assert len(used) == 1
    assert used[0] > 3 * len(PAYLOAD)
    assert INTERNAL.used_bytes == 0


def test_whoever_comes_while_the_budget_is_full_waits_and_damaged_entries_give_it_back() -> None:
    with INTERNAL.held(INTERNAL.bytes_max):
        waiting = threading.Thread(target=masked)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(30)
    assert not waiting.is_alive()
    with pytest.raises(EntryCorrupt), unpacked_internally(b"no zstd", ZSTD, 100):
        pass
    with pytest.raises(MessageTooLarge), unpacked_internally(b"", ZSTD, UNCOMPRESSED_BYTES_MAX + 1):
        pass
    with unpacked_internally(b"plain", NONE, 0) as content:
        assert content == b"plain"
    assert INTERNAL.used_bytes == 0
