"""Tables that verify's tasks pass on: pieces of logs, and findings. Their columns, and findings as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

MESSAGES, MARKERS, NOTE = 0, 1, 100
"""Kinds of rows of :data:`PIECES`; a note is a finding that was made while reading, and is passed on unchanged."""

PIECES: Final = pa.schema(
    [
        ("topic", pa.int32()),
        ("origin", pa.string()),
        ("incarnation", pa.int64()),
        ("origin_ledger", pa.int64()),
        ("cell", pa.int64()),
        ("start", pa.int64()),
        ("kind", pa.int16()),
        ("count", pa.int64()),
        ("cluster", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("messages", pa.int64()),
        ("checksums", pa.int64()),
        ("sound", pa.bool_()),
        ("sizes", pa.binary()),
        ("parts", pa.binary()),
        ("note", pa.string()),
    ]
)
"""Columns of a piece: ``count`` entries from the origin's ``start`` on, which lie in ``cluster`` from ``ledger:entry``
on.

``checksums`` are those of its block. ``parts`` is JSON: the batch indexes that are missing here, by entry.
"""
CELL_KEY: Final = ("topic", "origin", "incarnation", "origin_ledger", "cell")
"""Columns of a cell's key. Rows of one cell are compared together. A cell is a part of an origin's ledger that fits
into any memory."""
CELL_ENTRIES: Final = 65_536

DIFFERENCE_COLUMNS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("cluster", pa.string()),
        ("other", pa.string()),
        ("origin", pa.string()),
        ("incarnation", pa.int64()),
        ("origin_ledger", pa.int64()),
        ("origin_first", pa.int64()),
        ("origin_last", pa.int64()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("count", pa.int64()),
        ("subscription", pa.string()),
        ("detail", pa.string()),
    ]
)
"""Columns of the files of ``--parquet``; docs/verify.md explains them."""
FINDINGS: Final = pa.schema([*DIFFERENCE_COLUMNS, ("shown", pa.bool_())])

# Kinds of findings that are no differences.
COMPARED, READ, RUN, DESCENT, PROBE = "#compared", "#read", "#run", "#descent", "#probe"
DAMAGED: Final = "#damaged"
GONE: Final = "#gone"
"""Kind of a note: a cluster deleted the topic while the topic was read."""
"""A block that a cluster cannot read, or that its checksum does not fit: ``ledger`` and ``entry`` are its first."""
BEHIND: Final = "behind"


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One row of :data:`FINDINGS`; ``count`` is in the unit of the kind: messages, mostly."""

    kind: str
    topic: str
    count: int
    cluster: str | None = None
    other: str | None = None
    origin: str | None = None
    incarnation: int | None = None
    origin_ledger: int | None = None
    origin_first: int | None = None
    origin_last: int | None = None
    ledger: int | None = None
    entry: int | None = None
    subscription: str | None = None
    detail: str | None = None
    shown: bool = False


def findings_table(found: Iterable[FindingRow]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([asdict(each) for each in found], schema=FINDINGS)


class PieceRows:
    """Collector of rows of :data:`PIECES`, column by column."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in PIECES.names}

    def __len__(self) -> int:
        return len(self._columns["topic"])

    def add(self, values: Mapping[str, Any]) -> None:
        for name, column in self._columns.items():
            column.append(values.get(name))

    def take(self) -> pa.RecordBatch:
        columns, self._columns = self._columns, {name: [] for name in PIECES.names}
        arrays = [pa.array(columns[field.name], field.type) for field in PIECES]
        return pa.RecordBatch.from_arrays(arrays, schema=PIECES)


def whole_cells(batches: Iterable[pa.RecordBatch], key: tuple[str, ...] = CELL_KEY) -> Iterator[pa.Table]:
    """Yield sorted rows in new tables, so that rows of one key are always in one table."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        border = _last_change(batch, key)
        if held and (border or not _same_key(held[-1], batch, key)):
            head = [batch.slice(0, border)] if border else []
            yield pa.Table.from_batches([*held, *head])
            held, batch = [], batch.slice(border)
        elif border:
            yield pa.Table.from_batches([batch.slice(0, border)])
            batch = batch.slice(border)
        held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _same_key(before: pa.RecordBatch, after: pa.RecordBatch, key: tuple[str, ...]) -> bool:
    return all(before.column(name)[-1].equals(after.column(name)[0]) for name in key)


def _last_change(batch: pa.RecordBatch, key: tuple[str, ...]) -> int:
    """Return the index of the last row with another key than the row before it; 0 if all have one key."""
    low, high = 0, batch.num_rows - 1
    last = [batch.column(name)[-1] for name in key]
    while low < high:  # sorted, so what equals the last row is a run at the end
        middle = (low + high) // 2
        if all(batch.column(name)[middle].equals(value) for name, value in zip(key, last, strict=True)):
            high = middle
        else:
            low = middle + 1
    return low
