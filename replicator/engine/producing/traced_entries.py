"""Choice of the messages to trace among the entries of one publish call.

1. A ``traceparent`` in a message's properties decides whether the message is traced. An entry is parsed only if that
   word is in its first bytes, and if it occurs somewhere with the bit for sampled.
2. The sampler picks some of the other messages, by their number.

In a large or compressed batch a ``traceparent`` is found only if the first messages, or the batch itself, have one.
Instrumented producers write it into each message, and our client also writes it beside the batch. An encrypted batch is
not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from google.protobuf.message import DecodeError

from replicator.engine.errors import EngineError
from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import decode_entry, split_batch
from replicator.metadata.metadata_pb2 import NONE, KeyValue
from replicator.tracing.context import TRACEPARENT, ProducedContext, parse_traceparent
from replicator.tracing.tracing import TracedMessage, Tracing

LOOKED_AT_BYTES: Final = 4 * 1024
"""Bytes at the start of each entry that are searched. That takes at most 2 µs, of some tens that such an entry takes in
all."""
LOOKED_INTO_BYTES_MAX: Final = 256 * 1024
"""Limit of the uncompressed bytes of a batch that is parsed. It is decompressed on the event loop, in a tenth of a
millisecond. Clients make batches of 128 kB by default. Messages of a larger compressed batch are not traced."""
JOINED_BYTES: Final = 28_000
"""Bytes that are joined for one search. From 30,000 bytes on, Python uses another search, which takes twice the time
for such a word."""
_WORD: Final = TRACEPARENT.encode()
_SAMPLED: Final = re.compile(rb"traceparent\x12.[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]", re.DOTALL)
"""Sampled ``traceparent`` property as protobuf writes it."""


def choose(tracing: Tracing, entries: Sequence[bytes], batch_sizes: Sequence[int]) -> Sequence[TracedMessage]:
    """Return the messages of ``entries`` to trace, mostly none. The entries must be checked."""
    named = _named(entries)
    picked = tracing.sampler.pick(sum(batch_sizes))
    if not named and not picked:
        return ()
    places = list(_places(picked, batch_sizes))
    asked_about = {entry for entry, _ in places}
    chosen: list[TracedMessage] = []
    decided: set[tuple[int, int]] = set()
    for number in named:
        if number not in asked_about and _SAMPLED.search(entries[number]) is None:
            continue
        for index, produced in produced_contexts(entries[number]).items():
            decided.add((number, index))
            if produced.sampled:
                chosen.append(TracedMessage(number, index, produced.context))
    chosen += [TracedMessage(*each, None) for each in places if each not in decided]
    return chosen[: tracing.sampler.admit(len(chosen))] if chosen else ()


def _named(entries: Sequence[bytes]) -> Sequence[int]:
    """Return the indexes of entries that have the word in their first bytes. Small entries are joined for the search,
    which takes a fifth of the time."""
    joined = max(1, JOINED_BYTES * len(entries) // sum(map(len, entries)))
    if joined > 1 and not any(_WORD in b"".join(entries[at : at + joined]) for at in range(0, len(entries), joined)):
        return ()
    return [number for number, entry in enumerate(entries) if entry.find(_WORD, 0, LOOKED_AT_BYTES) >= 0]


def _places(picked: Sequence[int], batch_sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the entry, and the index in it, of picked messages, which are numbered over all entries."""
    numbers = iter(picked)
    wanted = next(numbers, None)
    for entry, end in enumerate(accumulate(batch_sizes)):
        while wanted is not None and wanted < end:
            yield entry, wanted - (end - batch_sizes[entry])
            wanted = next(numbers, None)


def produced_contexts(entry: bytes) -> Mapping[int, ProducedContext]:
    """Return the trace contexts that messages of an entry bring, by index. Messages without a valid one are left
    out."""
    try:
        metadata, payload = decode_entry(entry, check=False)
        if not metadata.HasField("num_messages_in_batch"):
            found = _of_properties(metadata.properties)
            return {} if found is None else {0: found}
        if metadata.encryption_keys:
            return {}
        if metadata.compression != NONE:
            if not any(each.key == TRACEPARENT for each in metadata.properties):
                return {}
            payload = memoryview(
                decompress(payload, metadata.compression, metadata.uncompressed_size, bytes_max=LOOKED_INTO_BYTES_MAX)
            )
        singles = enumerate(single for single, _ in split_batch(metadata, payload))
        return {index: found for index, single in singles if (found := _of_properties(single.properties)) is not None}
    except (EngineError, DecodeError):
        return {}  # what is wrong deeper inside a batch is named to the consumer


def _of_properties(properties: Sequence[KeyValue]) -> ProducedContext | None:
    return next((parse_traceparent(each.value) for each in properties if each.key == TRACEPARENT), None)
