"""Key of an entry, hash of the key, and slot of the hash.

The key of a message decides its consumer, so every worker and every restart must compute the same number: 32-bit
Murmur3, x86 variant, seed 0, unsigned. Invariant 3 (key order holds across a failover) depends on it.
Source: seed 000, "Key_Shared".
"""

from __future__ import annotations

import binascii
from typing import Final

import mmh3

from replicator.metadata.metadata_pb2 import MessageMetadata

SLOTS: Final = 65_536
"""Number of slots that hash ranges divide, as upstream. At most so many consumers share a subscription by ranges."""
HASH_SPACE: Final = 2**32
"""Number of hashes, which are 0..HASH_SPACE-1."""
NON_KEY: Final = b"NON_KEY"
"""Key of all entries without a key. They all go to one consumer, in order."""


def entry_key(metadata: MessageMetadata) -> bytes:
    """Return the key by which an entry is assigned: its ordering key, else its partition key, else :data:`NON_KEY`.

    A batch counts as a whole, by the key of its entry. A partition key that is marked as base64 but is malformed is
    used unchanged: the same text is still the same key, and a producer's mistake does not stop dispatch.
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return NON_KEY
    key = metadata.partition_key.encode()
    if metadata.partition_key_b64_encoded:
        return _decoded(key)
    return key


def key_hash(key: bytes) -> int:
    """Return the 32-bit unsigned hash of a key."""
    return mmh3.hash(key, 0, signed=False)


def slot(hash_of_key: int) -> int:
    """Return the slot of a hash, 0..SLOTS-1."""
    return hash_of_key % SLOTS


def _decoded(text: bytes) -> bytes:
    # Lenient decoders differ between versions of Python. Text that encodes to itself again is valid in all of them.
    try:
        key = binascii.a2b_base64(text)
    except binascii.Error:
        return text
    return key if binascii.b2a_base64(key, newline=False) == text else text
