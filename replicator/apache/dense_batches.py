"""Batches without gaps: the form in which brokers get a batch from which a link left messages out. Pure.

In logs such a batch keeps the place of each message, and absent messages are marked ``compacted_out`` (ADR 33). Our
engine tells clients which these are, but brokers do not. Then some clients hand them to the application, empty. Others
skip them and never acknowledge them, so that the batch stays open for good. Therefore a batch is published with only
the messages that it has. Brokers show only whole batches, so nobody needs the messages' former places. The entry's
stamp says how many are absent.
"""

from __future__ import annotations

from pyroaring import BitMap

from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.unpacking import unpacked_internally


def dense(entry: bytes | memoryview, absent: BitMap) -> bytes:
    """Return the entry of a batch without the messages at the indexes ``absent``. At least one message must be left.

    It may block until the budget for internal work has room (:func:`~replicator.engine.unpacking.unpacked_internally`).
    So call it on a thread.

    Raises :class:`~replicator.engine.errors.EntryCorrupt`, :class:`~replicator.engine.errors.MessageTooLarge`.
    """
    metadata, payload = decode_entry(entry, check=False)  # the block's checksum covers it
    with unpacked_internally(payload, metadata.compression, metadata.uncompressed_size) as content:
        body = bytearray()
        for index, (single, message) in enumerate(split_batch(metadata, memoryview(content))):
            if index not in absent:
                append_to_batch(body, single, bytes(message))
        metadata.num_messages_in_batch -= len(absent)
        if metadata.HasField("uncompressed_size"):
            metadata.uncompressed_size = len(body)
        return encode_entry(metadata, compress(body, metadata.compression))
