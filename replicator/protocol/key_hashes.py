"""Hashes of keys by which clients choose a partition. They are the same in every client, so that a key stays in place.

They are those of ``java.lang.String`` and of Murmur3 (x86, 32 bits, seed 0), without the sign bit.
"""

from __future__ import annotations

import struct

import mmh3


def java_string_hash(key: str) -> int:
    """Return ``String.hashCode()`` of the key's UTF-16 units, without the sign bit."""
    encoded = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def murmur3_32_hash(key: str) -> int:
    """Return Murmur3 of the key's UTF-8 bytes, without the sign bit."""
    return mmh3.hash(key.encode(), 0, signed=False) & 0x7FFFFFFF
