"""The rows that a writer has already published, against a model that decides row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.staging.values import Origin, SourceMark
from replicator.pipeline.errors import BadRow
from replicator.pipeline.sink.source_marks import SourceMarks, merged

places = st.builds(SourceMark, st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
origins = st.builds(Origin, st.sampled_from(["a", "b"]), st.sampled_from([7, 2**53 + 1]))
Row = tuple[Origin | None, SourceMark]


def batch(rows: list[Row]) -> pa.RecordBatch:
    names = ("number", "origin", "incarnation", "origin_ledger", "origin_entry", "batch_index")
    columns = [pa.array(range(len(rows)), pa.int64())]
    columns.append(pa.array([None if origin is None else origin.cluster for origin, _ in rows], pa.string()))
    columns.append(pa.array([None if origin is None else origin.incarnation for origin, _ in rows], pa.int64()))
    columns += [pa.array([place[index] for _, place in rows], pa.int64()) for index in range(3)]
    return pa.record_batch(columns, names=names)


@given(st.lists(st.tuples(st.none() | origins, places), min_size=1), st.dictionaries(origins, places))
def test_rows_above_the_marks_are_written_and_noted(rows: list[Row], published: dict[Origin, SourceMark]) -> None:
    marks = SourceMarks(published)
    wanted = [
        index
        for index, (origin, place) in enumerate(rows)
        if origin is None or origin not in published or place > published[origin]
    ]
    assert marks.unpublished(batch(rows)).column("number").to_pylist() == wanted
    highest: dict[Origin, SourceMark] = {}
    for index in wanted:
        origin, place = rows[index]
        if origin is not None:
            highest[origin] = max(place, highest.get(origin, place))
    assert marks.reached == highest


@pytest.mark.parametrize(
    ("origin", "place", "message"),
    [
        (Origin("a\0b", 1), SourceMark(1, 2, 3), "must be the name of a cluster"),
        (Origin("a" * 600, 1), SourceMark(1, 2, 3), "must be the name of a cluster"),
        (Origin("a", -1), SourceMark(1, 2, 3), "incarnation, ledger, entry and batch index are -1, 1, 2, 3"),
        (Origin("a", 1), SourceMark(1, 2, 2**32), "incarnation, ledger, entry and batch index are 1, 1, 2, 4294967296"),
        (Origin("a", 1), SourceMark(-1, -1, -1), "column 'origin_ledger' has the value -1"),
    ],
)
def test_a_place_that_no_worker_could_keep_is_an_error_before_anything_is_written(
    origin: Origin, place: SourceMark, message: str
) -> None:
    with pytest.raises(BadRow, match=f"{message}.*as this project's source gives them, or leave them out"):
        SourceMarks({}).unpublished(batch([(origin, place)]))


def test_the_marks_of_several_tasks_are_the_highest_of_each() -> None:
    one, other = Origin("a", 1), Origin("b", 1)
    assert merged([{one: SourceMark(1, 5, 0)}, {one: SourceMark(2, 0, 0), other: SourceMark(0, 0, 0)}, {}]) == {
        one: SourceMark(2, 0, 0),
        other: SourceMark(0, 0, 0),
    }
