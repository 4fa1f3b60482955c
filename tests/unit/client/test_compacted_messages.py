"""A consumer of a compacted topic gets the messages that are left of a batch, under the indexes that they had."""

from __future__ import annotations

from compaction_support import at, keyed, keyed_batch

from replicator.client.message import messages_of
from replicator.engine.compaction.compactor import Compactor
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import LZ4


def test_what_is_compacted_out_of_a_batch_is_not_shown() -> None:
    entries = [at(0, keyed_batch([("a", b"1"), ("b", b"1"), ("c", b"1")], compression=LZ4), 3), at(1, keyed("b", b"2"))]
    compactor = Compactor()
    for entry in entries:
        compactor.note(entry)
    kept = compactor.retained(entries[0])
    assert kept is not None
    position = entries[0].position
    delivery = Delivery(position, 0, 3, None, bytes(kept.content), "us-east", position)
    shown = [
        (message.partition_key(), message.data(), message.message_id().batch_index())
        for message in messages_of(delivery, "orders", -1)
    ]
    assert shown == [("a", b"1", 0), ("c", b"1", 2)]
