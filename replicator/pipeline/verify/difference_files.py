"""Files with all differences that verify found, as Parquet for Spark, pandas and others; docs/verify.md.

Each look at the clusters writes its own files, and :meth:`DifferenceFiles.finish` makes the result of them. If a topic
was looked at several times, only the last look's findings count. Only a batch of rows is held in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from replicator.pipeline.errors import BadOption
from replicator.pipeline.verify.comparison.rows import BEHIND, DIFFERENCE_COLUMNS, FindingRow

_LOOKS: Final = "_looks"
"""Directory of the looks' files. Readers of Parquet skip it, because its name begins with an underscore."""

BROKERS: Final = "brokers.parquet"
"""File of differences found at brokers, beside the file of logs."""
_ROWS_AT_ONCE: Final = 20_000

Pair = tuple[str, str | None, str | None]
"""Topic, and the two clusters of a finding."""


class DifferenceFiles:
    """Files of differences in one directory. Raises :class:`BadOption` if the directory is not empty."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            occupied = any(directory.iterdir())
        except OSError as error:
            raise BadOption("parquet", f"{directory} cannot be used: {error.strerror}") from None
        if occupied:
            raise BadOption("parquet", f"{directory} is not empty: name a directory of its own")
        self._replaced: list[frozenset[str]] = []

    def next_look(self, topics: Collection[str] = ()) -> Path:
        """Return the directory for the next look. Earlier findings on ``topics`` no longer count."""
        self._replaced.append(frozenset(topics))
        return self._look(len(self._replaced) - 1)

    def start_over(self) -> None:
        """Discard everything written so far."""
        shutil.rmtree(self._directory / _LOOKS, ignore_errors=True)
        self._replaced.clear()

    def finish(self, came_not: Collection[Pair], more: Iterable[FindingRow], gone: Collection[str] = ()) -> None:
        """Write the result file: the rows that were added, and the findings ``more``.

        Late entries between the clusters of a pair in ``came_not`` become missing ones. Rows of the topics in ``gone``
        are left out.
        """
        with pq.ParquetWriter(self._directory / "differences.parquet", DIFFERENCE_COLUMNS) as writer:
            for batch in self._rows(gone):
                writer.write_batch(_judged(batch, came_not))
            rows = [asdict(found) for found in more]
            writer.write_table(pa.Table.from_pylist(rows, schema=DIFFERENCE_COLUMNS))
        shutil.rmtree(self._directory / _LOOKS, ignore_errors=True)

    def _look(self, number: int) -> Path:
        return self._directory / _LOOKS / str(number)

    def _rows(self, gone: Collection[str]) -> Iterator[pa.RecordBatch]:
        for number in range(len(self._replaced)):
            later = frozenset(gone).union(*self._replaced[number + 1 :])
            files = sorted(str(path) for path in self._look(number).glob("*.parquet"))
            if files:
                rows = ds.dataset(files, schema=DIFFERENCE_COLUMNS)
                yield from rows.to_batches(filter=~ds.field("topic").isin(sorted(later)) if later else None)


class DifferenceRows:
    """File of differences that are final when they are found. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._writer = pq.ParquetWriter(self._path, DIFFERENCE_COLUMNS)
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def write(self, found: Iterable[FindingRow]) -> None:
        rows = iter(found)
        while some := [asdict(each) for each in islice(rows, _ROWS_AT_ONCE)]:
            self._writer.write_table(pa.Table.from_pylist(some, schema=DIFFERENCE_COLUMNS))


def _judged(batch: pa.RecordBatch, came_not: Collection[Pair]) -> pa.RecordBatch:
    columns = (batch.column(name).to_pylist() for name in ("kind", "topic", "cluster", "other"))
    kinds = [
        "missing" if kind == BEHIND and pair in came_not else kind
        for kind, *rest in zip(*columns, strict=True)
        for pair in [tuple(rest)]
    ]
    return batch.set_column(0, DIFFERENCE_COLUMNS.field("kind"), pa.array(kinds, pa.string()))
