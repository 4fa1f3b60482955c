"""Comparison of entries' contents: byte by byte, and for different bytes message by message. Pure; reading is passed
in.

It is used only for intervals whose copies come from unequal blocks: cut in other places, or with other content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from replicator.engine.errors import EngineError
from replicator.engine.log import compression
from replicator.engine.log.entry import decode_entry, split_batch
from replicator.metadata.metadata_pb2 import NONE

Place = tuple[int, int, int, int]
"""Cluster and topic by number, ledger, and the first entry."""
ReadEntries = Callable[[Place, int], Iterator[bytes]]
"""Function that reads a number of entries from a place on; fewer if they do not exist any more."""

EXPANDED_ENTRIES_MAX: Final = 1_000
"""Limit of entries of one comparison that are split into messages; for further ones all messages count."""


def differing_messages(
    intervals: Sequence[int],
    places: Callable[[int], list[Place]],
    counts: Callable[[int], int],
    read: ReadEntries,
) -> Iterator[tuple[int, int, int]]:
    """Yield the entries with differing copies: interval, offset in it, and number of differing messages."""
    room = EXPANDED_ENTRIES_MAX
    for index in intervals:
        copies = [read(place, counts(index)) for place in places(index)]
        for offset, entries in enumerate(zip_longest(*copies)):
            there = {entry for entry in entries if entry is not None}
            if len(there) > 1:
                yield index, offset, _messages(there) if room > 0 else max(map(_size, there))
                room -= 1


def _messages(entries: Iterable[bytes]) -> int:
    """Return how many messages differ between entries of one identity; all, if the difference is in no message."""
    try:
        contents = [_contents(entry) for entry in entries]
    except EngineError:
        return max(map(_size, entries))
    rows: Iterable[tuple[Any, ...]] = zip_longest(*contents)
    differing = sum(1 for row in rows if any(message != row[0] for message in row))
    return differing or max(map(len, contents))


def _size(entry: bytes) -> int:
    try:
        return decode_entry(entry, check=False)[0].num_messages_in_batch
    except EngineError:
        return 1


def _contents(entry: bytes) -> list[tuple[bytes, bytes]]:
    """Return metadata and payload of each message of an entry; one pair for all if they cannot be split."""
    metadata, payload = decode_entry(entry, check=False)
    if metadata.encryption_keys or not metadata.HasField("num_messages_in_batch"):
        return [(metadata.SerializeToString(), bytes(payload))]
    if metadata.compression != NONE:
        payload = memoryview(compression.decompress(payload, metadata.compression, metadata.uncompressed_size))
    batch = split_batch(metadata, payload)
    return [(single.metadata.SerializeToString(), bytes(single.payload)) for single in batch]
