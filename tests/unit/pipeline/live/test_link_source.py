"""The first micro-batch of a link's query only starts what carries."""

from __future__ import annotations

import json

import pyarrow as pa

from replicator.pipeline.live.link_source import WARMING_UP, LaneMessage, LaneWriter, LinkOptions, PlanReader

NOBODY = "http://127.0.0.1:9"
OPTIONS = LinkOptions(NOBODY, "a>b", "a", "b", "127.0.0.1:9", "driver", lanes=3)


def test_a_query_starts_its_tasks_before_it_asks_for_a_plan() -> None:
    reader = PlanReader(OPTIONS)
    before = reader.initialOffset()
    first = reader.latestOffset(before)
    assert first["session"] == WARMING_UP
    lanes = reader.partitions(before, first)
    assert [json.loads(lane.value)["segment"] for lane in lanes] == [None] * OPTIONS.lanes
    assert reader.latestOffset(first) == first, "nobody answers, and nothing is to be run"

    writer = LaneWriter(OPTIONS)
    rows = [row for lane in lanes for row in reader.read(lane)]
    messages = [writer.write(iter([pa.RecordBatch.from_pydict({"lane": [text]})])) for (text,) in rows]
    assert all(isinstance(message, LaneMessage) and not message.plan.session for message in messages)
    writer.commit(messages, 0)
