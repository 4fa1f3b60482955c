"""Filter of a stream's rows that are published already, by the place of their message at its origin. Pure.

For each origin (a cluster and its topic's incarnation) the writer's mark at the destination is the highest published
place: ledger, entry, index in the batch. A stream reads the messages of an origin in their order, and commits each
batch as a whole. So everything at or below the mark is published, and nothing above.

1. :meth:`SourceMarks.unpublished` leaves out the rows at or below the marks that the task was told when it began.
2. It notes the highest place of the rest, for the commit that publishes them: :attr:`SourceMarks.reached`.

Rows without an origin (a null in one of the columns) are always written. A place that no cluster could have is an
error, because a worker keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.engine.errors import InvalidWriter
from replicator.engine.staging.values import Origin, SourceMark, check_mark
from replicator.pipeline.errors import BadRow
from replicator.pipeline.sink.options import ORIGIN_COLUMNS

Int64s = npt.NDArray[np.int64]
_PLACE = ("origin_ledger", "origin_entry", "batch_index")


class SourceMarks:
    """Marks of one task. ``published`` are those that the task was told."""

    def __init__(self, published: Mapping[Origin, SourceMark]) -> None:
        self._published = published
        self.reached: dict[Origin, SourceMark] = {}

    def unpublished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are to be written, in order."""
        known = np.ones(batch.num_rows, np.bool_)
        for name in ("origin", "incarnation", *_PLACE):
            if batch.column(name).null_count:
                known &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        origins, codes = _origins(batch)
        place = [_numbers(batch, name) for name in _PLACE]
        for name, column in zip(_PLACE, place, strict=True):
            if (column[known] < 0).any():
                raise BadRow(
                    f"column {name!r} has the value {int(column[known].min())}, and no message has a negative one in "
                    "the cluster that published it: write the columns of origins as this project's source gives them, "
                    "or leave them out"
                )
        marks = np.array([self._published.get(origin, (-1, -1, -1)) for origin in origins], np.int64).reshape(-1, 3)
        wanted = ~known | _above(place, [marks[codes, index] for index in range(3)])
        counted = np.flatnonzero(wanted & known)
        if len(counted):
            self._note(origins, codes[counted], [column[counted] for column in place])
        return batch if wanted.all() else batch.filter(pa.array(wanted))

    def _note(self, origins: list[Origin], codes: Int64s, place: list[Int64s]) -> None:
        order = np.lexsort((place[2], place[1], place[0], codes))
        last = order[np.append(np.flatnonzero(np.diff(codes[order])), len(order) - 1)]
        for row in last.tolist():
            origin, mark = origins[codes[row]], SourceMark(*(int(column[row]) for column in place))
            _check(origin, mark)
            self.reached[origin] = max(mark, self.reached.get(origin, mark))


def merged(marks: list[Mapping[Origin, SourceMark]]) -> dict[Origin, SourceMark]:
    """Return the highest of several tasks' marks."""
    found: dict[Origin, SourceMark] = {}
    for each in marks:
        for origin, mark in each.items():
            found[origin] = max(mark, found.get(origin, mark))
    return found


def _check(origin: Origin, mark: SourceMark) -> None:
    try:
        check_mark(origin, mark)
    except InvalidWriter as error:
        raise BadRow(
            f"columns {', '.join(ORIGIN_COLUMNS)}: a row has an impossible origin: {error}: write these columns "
            "as this project's source gives them, or leave them out"
        ) from None


def _origins(batch: pa.RecordBatch) -> tuple[list[Origin], Int64s]:
    """Return the distinct origins of the rows, and each row's index among them. Rows without an origin have any
    index."""
    clusters = batch.column("origin").fill_null("").dictionary_encode()
    names = clusters.dictionary.to_pylist()
    cluster_codes = clusters.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    incarnations, incarnation_codes = np.unique(_numbers(batch, "incarnation"), return_inverse=True)
    pairs, codes = np.unique(cluster_codes * len(incarnations) + incarnation_codes, return_inverse=True)
    return [
        Origin(names[pair // len(incarnations)], int(incarnations[pair % len(incarnations)])) for pair in pairs.tolist()
    ], codes


def _numbers(batch: pa.RecordBatch, name: str) -> Int64s:
    column = batch.column(name)
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _above(place: list[Int64s], marks: list[Int64s]) -> npt.NDArray[np.bool_]:
    above = place[2] > marks[2]
    for column, mark in ((place[1], marks[1]), (place[0], marks[0])):
        above = (column > mark) | ((column == mark) & above)
    return above
