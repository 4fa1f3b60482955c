"""Filters that are pushed down let through what Spark would let through, wherever they are applied."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from wire_worker import ScriptedTopic, batch_entry, marker_entry, single_entry

from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.source import decode, schema
from replicator.pipeline.source.filters import PushedFilters, condition_of
from snapshots.position import BEFORE_ALL, Position

OPERATORS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    In: lambda value, among: value in among,
    StringStartsWith: lambda value, start: value.startswith(start),
}


def timed_entry(publish_time_ms: int) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time_ms), b"x")


def a_log() -> ScriptedTopic:
    topic, other = ScriptedTopic("us"), ScriptedTopic("eu", next=Position(9, 5))
    topic.publish(single_entry(b"a"), batch_entry([b"b", b"c"]), sizes=[1, 2])
    topic.store(other.publish(timed_entry(5_000), timed_entry(1_000), timed_entry(2**60)))
    topic.publish(marker_entry(10), kind=BlockKind.MARKERS)
    topic.open_ledger(6)
    topic.publish(timed_entry(2_000), timed_entry(3_000))
    return topic


LOG = a_log()


def read(filters: PushedFilters | None, worth_messages: int) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(decode, "_WORTH_MESSAGES", worth_messages)
        decoder = decode.Decoder(schema.COLUMNS, filters)
        after, upto = (BEFORE_ALL, LOG.last) if filters is None else filters.narrowed(BEFORE_ALL, LOG.last)
        batches = []
        if filters is None or filters.wants_topic("us", "t"):
            for at, _, block in LOG.blocks:
                batches += decoder.add(FetchedBlock(at, memoryview(block)), "us", "t", after, upto)
            batches += decoder.finish()
    return [row for batch in batches for row in batch.to_pylist()]


ALL = read(None, 0)
COLUMNS = ("cluster", "topic", "kind", "origin", "ledger", "entry", "origin_ledger", "origin_entry", "publish_time")
VALUES: dict[str, list[Any]] = {
    column: [
        *sorted({row[column] for row in ALL if row[column] is not None}),
        *(["z"] if column in COLUMNS[:4] else []),
    ]
    for column in COLUMNS
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(COLUMNS))
    values = VALUES[column]
    kind = draw(st.sampled_from([*OPERATORS, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is StringStartsWith:
        column = "topic"
        values = ["t", "", "u"]
    value = tuple(draw(st.lists(st.sampled_from(values), min_size=1))) if kind is In else draw(st.sampled_from(values))
    made = kind((column,), value)
    return Not(made) if draw(st.booleans()) else made


def passes(row: dict[str, Any], wanted: Filter) -> bool:
    inner = wanted.child if isinstance(wanted, Not) else wanted
    value = row[inner.attribute[0]]
    if value is None:
        return False
    if isinstance(inner, IsNotNull):
        return True
    return OPERATORS[type(inner)](value, inner.value) is not isinstance(wanted, Not)


@given(wanted=st.lists(filters(), min_size=1, max_size=3), worth_messages=st.sampled_from([0, 10**9]))
def test_what_is_taken_over_is_exact(wanted: list[Filter], worth_messages: int) -> None:
    taken = [(each, condition) for each in wanted if (condition := condition_of(each)) is not None]
    pushed = PushedFilters(tuple(condition for _, condition in taken))
    assert read(pushed, worth_messages) == [row for row in ALL if all(passes(row, each) for each, _ in taken)]


@pytest.mark.parametrize(
    "left",
    [
        EqualTo(("payload",), b"x"),
        EqualTo(("topic",), None),
        EqualTo(("ledger",), None),
        EqualTo(("ledger",), True),
        EqualTo(("properties", "a"), "x"),
        IsNull(("topic",)),
        Not(IsNotNull(("topic",))),
        Not(EqualNullSafe(("publish_time",), VALUES["publish_time"][0])),
        StringContains(("topic",), "t"),
        GreaterThan(("topic",), "t"),
        In(("ledger",), (3, None)),
    ],
)
def test_what_cannot_be_exact_is_left_to_spark(left: Filter) -> None:
    assert condition_of(left) is None
