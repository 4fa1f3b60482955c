"""Which messages are traced, of the entries that one call publishes.

1. A message whose properties have a ``traceparent`` is traced if that says so, and not if not: its producer decided.
   An entry is looked into only if that word is in its first bytes, and somewhere in it with the bit for sampled.
2. Of the others the sampler picks some, by how many messages there are.

Of a large batch, or one that is compressed, that is only seen if its first messages, or the batch itself, have one:
instrumented producers write it into each message, and our client beside the batch. A batch that is encrypted is not
looked into.
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
from replicator.tracing.tracing import Chosen, Tracing

LOOKED_AT_BYTES: Final = 4 * 1024
"""Of each entry: it takes 2 µs at most, of some tens that an entry of that size takes in all."""
LOOKED_INTO_BYTES_MAX: Final = 256 * 1024
"""Uncompressed bytes of a batch that is looked into: it is decompressed on the event loop, in a tenth of a millisecond.
Clients make batches of 128 kB by default; the messages of a larger one that is compressed are not traced."""
JOINED_BYTES: Final = 28_000
"""In 30,000 bytes and more Python searches in another way, which takes twice the time for such a word."""
_WORD: Final = TRACEPARENT.encode()
_SAMPLED: Final = re.compile(rb"traceparent\x12.[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]", re.DOTALL)
"""A property as protobuf writes it."""


def choose(tracing: Tracing, entries: Sequence[bytes], batch_sizes: Sequence[int]) -> Sequence[Chosen]:
    """``entries`` were checked. Mostly none."""
    named = _named(entries)
    picked = tracing.sampler.pick(sum(batch_sizes))
    if not named and not picked:
        return ()
    places = list(_places(picked, batch_sizes))
    asked_about = {entry for entry, _ in places}
    chosen: list[Chosen] = []
    decided: set[tuple[int, int]] = set()
    for number in named:
        if number not in asked_about and _SAMPLED.search(entries[number]) is None:
            continue
        for index, produced in produced_contexts(entries[number]).items():
            decided.add((number, index))
            if produced.sampled:
                chosen.append(Chosen(number, index, produced.context))
    chosen += [Chosen(*each, None) for each in places if each not in decided]
    return chosen[: tracing.sampler.admit(len(chosen))] if chosen else ()


def _named(entries: Sequence[bytes]) -> Sequence[int]:
    """Which entries have the word in their first bytes. Small ones are joined first: that is a fifth of the time."""
    joined = max(1, JOINED_BYTES * len(entries) // sum(map(len, entries)))
    if joined > 1 and not any(_WORD in b"".join(entries[at : at + joined]) for at in range(0, len(entries), joined)):
        return ()
    return [number for number, entry in enumerate(entries) if entry.find(_WORD, 0, LOOKED_AT_BYTES) >= 0]


def _places(picked: Sequence[int], batch_sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Entry and index in it of messages that were counted through."""
    numbers = iter(picked)
    wanted = next(numbers, None)
    for entry, end in enumerate(accumulate(batch_sizes)):
        while wanted is not None and wanted < end:
            yield entry, wanted - (end - batch_sizes[entry])
            wanted = next(numbers, None)


def produced_contexts(entry: bytes) -> Mapping[int, ProducedContext]:
    """What the messages of an entry bring along, by index; those that bring nothing valid are not among them."""
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
