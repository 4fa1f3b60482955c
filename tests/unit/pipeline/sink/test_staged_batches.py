"""Staging of a task's rows: their topics, their producer batches, and rows that cannot be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from staging_support import payloads_in

from replicator.engine.log.entry import decode_entry
from replicator.engine.staging.area import decode_frames
from replicator.metadata.metadata_pb2 import LZ4
from replicator.pipeline.errors import BadRow
from replicator.pipeline.sink import staged_batches
from replicator.pipeline.sink.options import SinkColumns, SinkOptions
from replicator.pipeline.sink.staged_batches import StagedBatches
from replicator.protocol.key_hashes import java_string_hash

PREFIX = "persistent://public/default/"


class Task:
    """A task whose worker knows the partitions of topics by their short names."""

    def __init__(self, batch: pa.RecordBatch, partitions: dict[str, int] | None = None, **options: str) -> None:
        parsed = SinkOptions.parse({"url": "http://127.0.0.1:1"} | options)
        self.asked: list[Sequence[str]] = []
        self._partitions = partitions or {}
        self.made = StagedBatches(
            parsed,
            SinkColumns.of(from_arrow_schema(batch.schema), parsed),
            producer="w-0",
            sequence_from=1_000,
            turn=0,
            partitions_of=self._ask,
            wall_clock_ms=lambda: 1_700_000_000_000,
        )
        self.bodies = [*self.made.add(batch), *self.made.flush()]
        self.entries: dict[str, list[bytes]] = {}
        for body in self.bodies:
            for run in decode_frames(body):
                self.entries.setdefault(run.topic.removeprefix(PREFIX), []).extend(map(bytes, run.entries))

    def _ask(self, names: Sequence[str]) -> dict[str, int]:
        self.asked.append(names)
        return {name: self._partitions.get(name.removeprefix(PREFIX), 0) for name in names}

    def payloads(self) -> dict[str, list[bytes]]:
        return {
            topic: [each for entry in entries for each in payloads_in(entry)] for topic, entries in self.entries.items()
        }

    def metadata(self, topic: str) -> list[Any]:
        return [decode_entry(entry)[0] for entry in self.entries[topic]]


def test_rows_of_a_topic_stay_in_order_and_topics_are_asked_for_once() -> None:
    rows = pa.record_batch({"payload": ["1", "2", "3", "4"], "topic": ["a", "b", "public/default/a", "b"]})
    task = Task(rows)
    assert task.payloads() == {"a": [b"1", b"3"], "b": [b"2", b"4"]}
    assert task.asked == [[f"{PREFIX}a", f"{PREFIX}b"]]
    assert len(task.bodies) == 1, "small topics share a request"


def test_batches_have_rising_sequence_ids_and_say_what_they_hold() -> None:
    rows = pa.record_batch({"payload": [str(number) for number in range(5)]})
    task = Task(rows, topic="a", batch_messages="2", compression="lz4")
    found = [
        (each.sequence_id, each.highest_sequence_id, each.num_messages_in_batch, each.compression, each.producer_name)
        for each in task.metadata("a")
    ]
    assert found == [(1000, 1001, 2, LZ4, "w-0"), (1002, 1003, 2, LZ4, "w-0"), (1004, 1004, 1, LZ4, "w-0")]
    assert (task.made.entries, task.made.messages, task.made.sequence_last) == (3, 5, 1004)


def test_a_batch_has_one_key_where_that_is_asked_for() -> None:
    rows = pa.record_batch({"payload": ["1", "2", "3", "4"], "key": ["x", None, "x", "y"]})
    task = Task(rows, topic="a", batch_by_key="true")
    assert sorted((each.partition_key, each.num_messages_in_batch) for each in task.metadata("a")) == [
        ("", 1),
        ("x", 2),
        ("y", 1),
    ]


def test_keys_choose_partitions_and_other_rows_take_turns() -> None:
    rows = pa.record_batch({"payload": [str(n) for n in range(9)], "key": ["k", "l", "k"] + [None] * 6})
    task = Task(rows, {"a": 3}, topic="a", batch_messages="3")
    found = task.payloads()
    for payload, key in ((b"0", "k"), (b"1", "l"), (b"2", "k")):
        assert payload in found[f"a-partition-{java_string_hash(key) % 3}"]
    assert {topic for topic in found if {b"3", b"4", b"5"} <= set(found[topic])} == {"a-partition-1"}
    assert {topic for topic in found if {b"6", b"7", b"8"} <= set(found[topic])} == {"a-partition-2"}


def test_markers_are_left_out() -> None:
    rows = pa.record_batch({"payload": ["1", "m"], "kind": ["message", "marker"]})
    task = Task(rows, topic="a")
    assert (task.payloads(), task.made.left_out) == ({"a": [b"1"]}, 1)


def test_a_body_is_full_at_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "BODY_BYTES_TARGET", 1_000)
    monkeypatch.setattr(staged_batches, "ROWS_BYTES_MAX", 2_000)
    rows = pa.record_batch({"payload": ["x" * 400] * 9})
    task = Task(rows, topic="a", batch_messages="1")
    assert len(task.bodies) == 3
    assert len(task.payloads()["a"]) == 9


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": ["1", "2"], "topic": ["a", None]}, "column 'topic': a row has none"),
        ({"payload": ["1"], "topic": ["a//b"]}, "column 'topic': "),
        ({"payload": ["1"], "topic": ["a"], "event_time": [-1]}, "column 'event_time': -1 ms is before 1970"),
        ({"payload": ["x" * 6_000_000], "topic": ["a"]}, "a message of 60000.* bytes cannot be written"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(BadRow, match=message):
        Task(pa.record_batch(columns))


def test_text_that_is_not_utf8_is_named_by_its_column_and_payloads_are_bytes() -> None:
    """Spark casts any bytes to a string as they are."""
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffA")])
    pairs = pa.MapArray.from_arrays([0, 1], ["a"], wrong)
    for columns in ({"topic": wrong}, {"topic": ["a"], "key": wrong}, {"topic": ["a"], "properties": pairs}):
        with pytest.raises(BadRow, match=f"column '{[*columns][-1]}': a row has text that is not UTF-8"):
            Task(pa.record_batch({"payload": ["x"], **columns}))
    assert Task(pa.record_batch({"payload": wrong, "topic": ["a"]})).payloads() == {"a": [b"\xffA"]}
