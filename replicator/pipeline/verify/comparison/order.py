"""Search for entries of one origin that stand in another order than they were published in. Pure.

Logs are read range by range, and each range's reader follows the order by itself. So

1. :func:`out_of_order` puts the ranges of a log together: an origin's entries ascend in each, and from each to the
   next, or the log is suspect. Nothing is sorted, and a log in order needs no more steps.
2. A suspect log may only have entries twice: copies after the first do not count. :func:`first_copies` leaves them
   out, cell by cell, and :func:`order_violations` goes through the rest in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from replicator.pipeline.verify.comparison.overlaps import Pieces, overlaps
from replicator.pipeline.verify.comparison.rows import DESCENT, NOTE, RUN, FindingRow
from snapshots.position import Position

COPIES: Final = pa.schema(
    [
        ("topic", pa.int32()),
        ("cluster", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("count", pa.int64()),
        ("origin", pa.string()),
        ("incarnation", pa.int64()),
        ("origin_ledger", pa.int64()),
        ("start", pa.int64()),
    ]
)
LOG_KEY: Final = ("topic", "cluster")


def out_of_order(notes: Iterable[FindingRow]) -> set[tuple[str, str]]:
    """Return the suspect logs (topic, cluster), by the notes of all ranges."""
    suspect: set[tuple[str, str]] = set()
    ranges: dict[tuple[str, str, str | None, int | None], list[tuple[int, Position, Position]]] = {}
    for note in notes:
        if note.kind == DESCENT:
            suspect.add((note.topic, str(note.cluster)))
        elif note.kind == RUN:
            first, last = (Position.parse(text) for text in str(note.detail).split())
            key = (note.topic, str(note.cluster), note.origin, note.incarnation)
            ranges.setdefault(key, []).append((note.count, first, last))
    for (topic, cluster, _, _), of_log in ranges.items():
        of_log.sort()
        if any(after[1] <= before[2] for before, after in pairwise(of_log)):
            suspect.add((topic, cluster))
    return suspect


def first_copies(table: pa.Table, clusters: int, suspect: set[tuple[int, int]]) -> pa.RecordBatch:
    """Return the first copies in the suspect logs, from whole cells, as rows of :data:`COPIES`."""
    table = table.filter(pa.array(table.column("kind").to_numpy() != NOTE))
    columns = {name: table.column(name).to_numpy() for name in COPIES.names}
    logs = zip(columns["topic"].tolist(), columns["cluster"].tolist(), strict=True)
    chosen = np.fromiter((log in suspect for log in logs), bool, table.num_rows)
    columns = {name: column[chosen] for name, column in columns.items()}
    if not chosen.any():
        return pa.RecordBatch.from_pylist([], schema=COPIES)
    keys = [columns["topic"], np.unique(columns["origin"].astype(str), return_inverse=True)[1]]
    rows = np.stack([*keys, columns["incarnation"], columns["origin_ledger"]]).astype(np.int64)
    changed = np.append(False, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
    count = columns["count"]
    pieces = Pieces(
        np.cumsum(changed),
        columns["start"],
        count,
        columns["cluster"].astype(np.int64),
        columns["ledger"],
        columns["entry"],
        np.zeros(len(count), np.int64),
        (None,) * len(count),
    )
    cut = overlaps(pieces, clusters)
    covers = np.unique(cut.first_cover[cut.first_cover >= 0])
    piece, interval = cut.cover_piece[covers], cut.cover_interval[covers]
    found = {name: column[piece] for name, column in columns.items()}
    found |= {"entry": cut.cover_entry[covers], "start": cut.start[interval], "count": cut.count[interval]}
    return pa.RecordBatch.from_arrays([pa.array(found[field.name], field.type) for field in COPIES], schema=COPIES)


def order_violations(
    tables: Iterable[pa.Table], topics: tuple[str, ...], clusters: tuple[str, ...]
) -> Iterator[FindingRow]:
    """Yield the entries that stand after a later one of their origin, from logs sorted by topic, cluster and
    position."""
    log: tuple[int, int] | None = None
    reached: dict[tuple[str, int], Position] = {}
    for table in tables:
        for row in zip(*(table.column(name).to_pylist() for name in COPIES.names), strict=True):
            topic, cluster, ledger, entry, count, origin, incarnation, origin_ledger, start = row
            if (topic, cluster) != log:
                log, reached = (topic, cluster), {}
            here = Position(origin_ledger, start)
            last = reached.get((origin, incarnation))
            reached[origin, incarnation] = Position(origin_ledger, start + count - 1)
            if last is not None and last > here:
                yield FindingRow(
                    "reordered",
                    topics[topic],
                    1,
                    cluster=clusters[cluster],
                    origin=origin,
                    incarnation=incarnation,
                    origin_ledger=origin_ledger,
                    origin_first=start,
                    origin_last=start,
                    ledger=ledger,
                    entry=entry,
                    detail=f"{clusters[cluster]} {ledger}:{entry}: {origin} {here} after {last}",
                    shown=True,
                )
