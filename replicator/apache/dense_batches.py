"""Batches of which a link left messages out, as they are published to brokers: without gaps. Pure.

In logs such a batch keeps the place of each message, and those that are absent are marked ``compacted_out`` (ADR 33).
Our engine tells clients which these are; brokers know nothing of them. Then some clients hand them to the application,
empty, and others pass over them and never acknowledge them, so that the batch stays open for good. Therefore a batch is
published with the messages that it has, one after the other. Brokers show batches as a whole only, so nothing is asked
of the places that messages had; the entry's stamp says how many are absent.
"""

from __future__ import annotations

from pyroaring import BitMap

from replicator.engine.log.compression import compress, decompress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch


def dense(entry: bytes | memoryview, absent: BitMap) -> bytes:
    """The entry of a batch without the messages at the indexes ``absent``; some are left.

    Raises :class:`~replicator.engine.errors.EntryCorrupt`, :class:`~replicator.engine.errors.MessageTooLarge`.
    """
    metadata, payload = decode_entry(entry, check=False)  # the block's checksum covers it
    content = decompress(payload, metadata.compression, metadata.uncompressed_size)
    body = bytearray()
    for index, (single, message) in enumerate(split_batch(metadata, memoryview(content))):
        if index not in absent:
            append_to_batch(body, single, bytes(message))
    metadata.num_messages_in_batch -= len(absent)
    if metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(body)
    return encode_entry(metadata, compress(body, metadata.compression))
