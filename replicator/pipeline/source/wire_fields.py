"""Reader of fields of many protobuf messages at once, by NumPy. Pure: a buffer and places in, values out.

A message is a run of ``tag varint | value``. All messages are read in step: in round k the k-th field of each, so the
work is some array operations a field, however many messages there are.

1. Each round reads a tag and a number (the value of a varint field, the length of a field of bytes) of every message
   that has not ended. Varints are read byte by byte; most have one or two.
2. Wanted fields are kept; the last one counts if a field comes twice, as in protobuf. Repeated ones are all kept.
3. A malformed message (a field beyond its end, a type that the format does not use) is left, and marked.

The caller handles marked messages: a guess that was wrong, or a message that protobuf itself must read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PADDING_BYTES: Final = 32
"""Padding that a buffer must have behind its last message: a varint of ten bytes is read before its end is checked."""
ROUNDS_MAX: Final = 256
"""Limit of fields of a message. Longer ones are for protobuf: a round costs the same for one message as for
hundreds."""
_VARINT_BYTES_MAX: Final = 10

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Varint field of each message, 0 if it has none."""

    values: UInt64s
    present: Bools


@dataclass(frozen=True, slots=True)
class Spans:
    """Field of bytes of each message: the place of its content in the buffer."""

    starts: Int64s
    lengths: Int64s
    present: Bools


@dataclass(frozen=True, slots=True)
class Repeated:
    """All values of a repeated field of bytes, ordered by message.

    ``owners`` has the index of each value's message. ``starts`` and ``lengths`` say where the value is in the buffer.
    """

    owners: Int64s
    starts: Int64s
    lengths: Int64s


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields that were read. Values of messages that are not ``sound`` have no meaning."""

    numbers: dict[int, Numbers]
    spans: dict[int, Spans]
    repeated: dict[int, Repeated]
    sound: Bools


def read_fields(
    content: Bytes,
    starts: Int64s,
    ends: Int64s,
    *,
    numbers: Collection[int] = (),
    spans: Collection[int] = (),
    repeated: Collection[int] = (),
) -> Fields:
    """Read the named fields of the messages that lie from ``starts`` to ``ends``.

    ``content`` must have :data:`PADDING_BYTES` more than the last end.
    """
    count = len(starts)
    assert not count or int(ends.max()) + PADDING_BYTES <= len(content)
    found_numbers = {field: Numbers(np.zeros(count, np.uint64), np.zeros(count, np.bool_)) for field in numbers}
    found_spans = {
        field: Spans(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_)) for field in spans
    }
    lists: dict[int, list[tuple[Int64s, Int64s, Int64s]]] = {field: [] for field in repeated}
    sound = np.ones(count, np.bool_)
    open_rows = np.flatnonzero(starts < ends)
    at, limit = starts[open_rows], ends[open_rows]
    for _ in range(ROUNDS_MAX):
        if not len(open_rows):
            break
        tags, at, whole = read_varints(content, at)
        amounts, at, whole_amount = read_varints(content, at)
        field_numbers, types = tags >> np.uint64(3), tags & np.uint64(7)
        is_bytes = types == 2
        good = whole & whole_amount & (is_bytes | (types == 0)) & (field_numbers > 0)
        # Compared before they are added: a length may be anything up to 2**64.
        good &= ~is_bytes | (amounts <= np.uint64(len(content)))
        value_at = at
        at = at + np.where(good & is_bytes, amounts, np.uint64(0)).astype(np.int64)
        good &= at <= limit
        for field in np.unique(field_numbers[good]).tolist():
            chosen = good & (field_numbers == field)
            if field in found_numbers:
                rows = open_rows[chosen & ~is_bytes]
                found_numbers[field].values[rows] = amounts[chosen & ~is_bytes]
                found_numbers[field].present[rows] = True
                good &= ~(chosen & is_bytes)  # another type than the format's
            elif field in found_spans:
                rows = open_rows[chosen & is_bytes]
                found_spans[field].starts[rows] = value_at[chosen & is_bytes]
                found_spans[field].lengths[rows] = amounts[chosen & is_bytes].astype(np.int64)
                found_spans[field].present[rows] = True
                good &= ~(chosen & ~is_bytes)
            elif field in lists:
                taken = chosen & is_bytes
                lists[field].append((open_rows[taken], value_at[taken], amounts[taken].astype(np.int64)))
                good &= ~(chosen & ~is_bytes)
        sound[open_rows[~good]] = False
        more = good & (at < limit)
        open_rows, at, limit = open_rows[more], at[more], limit[more]
    sound[open_rows] = False
    return Fields(found_numbers, found_spans, {field: _in_order(parts) for field, parts in lists.items()}, sound)


def read_varints(content: Bytes, at: Int64s) -> tuple[UInt64s, Int64s, Bools]:
    """Return the varint at each place, the place after it, and whether it is one of at most ten bytes."""
    first = content[at]
    values = (first & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(first & 0x80)
    for index in range(1, _VARINT_BYTES_MAX):
        if not len(longer):
            break
        byte = content[at[longer] + index]
        values[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        after[longer] = at[longer] + index + 1
        longer = longer[(byte & 0x80) != 0]
    whole = np.ones(len(at), np.bool_)
    whole[longer] = False
    return values, after, whole


def _in_order(parts: list[tuple[Int64s, Int64s, Int64s]]) -> Repeated:
    """Sort the values by message. Rounds have the first value of each message, then the second of each."""
    if not parts:
        none = np.zeros(0, np.int64)
        return Repeated(none, none, none)
    owners, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(owners, kind="stable")
    return Repeated(owners[order], starts[order], lengths[order])
