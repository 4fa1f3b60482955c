"""The driver's side of a stream as Spark calls it, against a worker's real wire: no JVM, so every case is cheap."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from wire_worker import ScriptedTopic, WireWorker, single_entry

from replicator.pipeline.errors import BadOption, PeerUnavailable, TopicChanged
from replicator.pipeline.source import stream_source
from replicator.pipeline.source.options import for_stream
from replicator.pipeline.source.stream_source import StreamReader
from snapshots.position import Position

FLIGHTS = "persistent://public/default/flights"
DELAYS = "persistent://public/default/delays"
COLUMNS = pa.schema([("payload", pa.binary())])


@pytest.fixture
def worker() -> Iterator[WireWorker]:
    with WireWorker("us-east") as worker:
        yield worker


class Query:
    """Stand-in for Spark's engine around a reader; its checkpoint is ``read`` and ``planned``, as JSON."""

    def __init__(self, *, available_now: bool = False, read: str | None = None, **options: Any) -> None:
        self.reader = StreamReader(for_stream({name: str(value) for name, value in options.items()}), COLUMNS)
        self.read = json.dumps(self.reader.initialOffset()) if read is None else read
        self.planned: str | None = None
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def plan(self) -> bool:
        """Plan the next batch, and write down what it reads, as the engine does before it runs it."""
        self.planned = json.dumps(self.reader.latestOffset(json.loads(self.read), self.limit))
        return self.planned != self.read

    def run(self) -> list[int]:
        assert self.planned is not None
        partitions = self.reader.partitions(json.loads(self.read), json.loads(self.planned))
        rows = [row["payload"] for each in partitions for batch in self.reader.read(each) for row in batch.to_pylist()]
        self.read = self.planned
        return [int(row) for row in rows]

    def batches(self) -> Iterator[list[int]]:
        while self.plan():
            yield self.run()


def publish(topic: ScriptedTopic, first: int, last: int) -> None:
    for number in range(first, last + 1):
        topic.publish(single_entry(b"%d" % number))


def test_limits_cut_a_backlog_into_batches_and_nothing_is_read_twice(worker: WireWorker) -> None:
    publish(worker.topic(FLIGHTS), 0, 9)
    by_entries = list(Query(url=worker.url, entries_per_trigger=4).batches())
    assert by_entries == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    size = len(worker.topics[FLIGHTS].blocks[0][2])
    by_bytes = list(Query(url=worker.url, bytes_per_trigger=3 * size).batches())
    assert by_bytes == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert list(Query(url=worker.url, bytes_per_trigger=1).batches()) == [[number] for number in range(10)]
    unlimited = Query(url=worker.url, entries_per_trigger=4)
    unlimited.limit = ReadAllAvailable()
    assert list(unlimited.batches()) == [list(range(10))], "a trigger of Spark's that knows no limits"


def test_a_batch_that_was_planned_is_the_same_after_a_restart_whatever_came_since(worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 4)
    query = Query(url=worker.url)
    assert query.plan()
    publish(flights, 5, 6)
    restarted = Query(url=worker.url, read=query.read)
    restarted.planned = query.planned
    assert restarted.run() == [0, 1, 2, 3, 4]
    assert list(restarted.batches()) == [[5, 6]]
    assert not restarted.plan()
    assert restarted.planned == restarted.read, "the same text, by which Spark knows that there is nothing"


def test_topics_that_come_later_are_read_from_their_beginning(worker: WireWorker) -> None:
    publish(worker.topic(FLIGHTS), 0, 1)
    worker.topic("persistent://public/default/empty")
    query = Query(url=worker.url, start="latest")
    assert list(query.batches()) == []
    publish(worker.topic(DELAYS), 10, 11)
    publish(worker.topic("persistent://public/default/empty"), 20, 20)
    publish(worker.topic(FLIGHTS), 2, 2)
    assert sorted(chain.from_iterable(query.batches())) == [2, 10, 11, 20]


def test_what_comes_during_a_run_that_ends_is_left_for_the_next(worker: WireWorker) -> None:
    publish(worker.topic(FLIGHTS), 0, 3)
    query = Query(available_now=True, url=worker.url, entries_per_trigger=3)
    publish(worker.topic(FLIGHTS), 4, 5)
    publish(worker.topic(DELAYS), 10, 10)
    assert list(query.batches()) == [[0, 1, 2], [3]]


def test_what_is_gone_is_an_error_that_names_the_topic_and_skipped_if_the_option_says_so(worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 3)
    query = Query(url=worker.url)
    assert list(query.batches()) == [[0, 1, 2, 3]]
    publish(flights, 4, 9)
    flights.trim(Position(3, 6))
    with pytest.raises(TopicChanged, match=rf"topic {FLIGHTS} was trimmed up to 3:6, past 3:3.* 'onGap'"):
        query.plan()
    assert list(Query(url=worker.url, read=query.read, ongap="skip").batches()) == [[7, 8, 9]]

    worker.topics[FLIGHTS] = anew = ScriptedTopic("us-east", next=Position(53, 0), life=50)
    publish(anew, 20, 21)
    with pytest.raises(TopicChanged, match=rf"topic {FLIGHTS} was deleted and made anew after 3:3"):
        query.plan()
    assert list(Query(url=worker.url, read=query.read, ongap="skip").batches()) == [[20, 21]]

    del worker.topics[FLIGHTS]
    with pytest.raises(TopicChanged, match=rf"topic {FLIGHTS} is not at us-east any more; it was read to 3:3"):
        query.plan()
    publish(worker.topic(DELAYS), 30, 30)
    skipping = Query(url=worker.url, read=query.read, onGap="skip")
    assert list(skipping.batches()) == [[30]]
    assert FLIGHTS not in skipping.read


def test_what_is_trimmed_between_plan_and_read_is_an_error_and_not_a_shorter_answer(worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 5)
    query = Query(url=worker.url, entries_per_partition=2)
    assert query.plan()
    partitions = query.reader.partitions(json.loads(query.read), json.loads(query.planned or ""))
    flights.trim(Position(3, 3))
    with pytest.raises(TopicChanged, match=f"topic {FLIGHTS} was trimmed up to 3:3 since the read from after"):
        list(query.reader.read(partitions[0]))
    assert [batch.num_rows for batch in query.reader.read(partitions[2])] == [2], "what is whole is read"
    flights.life = 9
    with pytest.raises(TopicChanged, match=f"topic {FLIGHTS} was deleted and made anew since the read was planned"):
        list(query.reader.read(partitions[2]))


def test_a_topic_that_is_deleted_between_plan_and_read_is_an_error_or_skipped(worker: WireWorker) -> None:
    for name, number in ((FLIGHTS, 1), (DELAYS, 2)):
        publish(worker.topic(name), number, number)
    queries = {on_gap: Query(url=worker.url, onGap=on_gap) for on_gap in ("fail", "skip")}
    assert all(query.plan() for query in queries.values())
    planned = {
        on_gap: query.reader.partitions(json.loads(query.read), json.loads(query.planned or ""))
        for on_gap, query in queries.items()
    }
    del worker.topics[FLIGHTS]
    with pytest.raises(TopicChanged, match=f"topic {FLIGHTS} was deleted since the read was planned"):
        list(queries["fail"].reader.read(planned["fail"][0]))
    assert [batch.to_pylist() for batch in queries["skip"].reader.read(planned["skip"][0])] == [[{"payload": b"2"}]]


@pytest.mark.parametrize("status", [503, 429])
def test_a_worker_that_comes_back_soon_does_not_stop_a_query(
    worker: WireWorker, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A worker that has too much to do for now does not stop a query, either."""
    publish(worker.topic(FLIGHTS), 0, 1)
    query = Query(url=worker.url)
    worker.refuse["positions"] = status
    asked = len(worker.requests)
    monkeypatch.setattr(stream_source, "RETRY_SECONDS_MAX", 0.3)
    with pytest.raises(PeerUnavailable, match=f"worker at {worker.url} cannot answer positions now"):
        query.plan()
    assert len(worker.requests) - asked > 1
    del worker.refuse["positions"]
    assert list(query.batches()) == [[0, 1]]


@pytest.mark.parametrize("status", [503, 429])
def test_a_worker_that_goes_while_a_task_reads_and_comes_back_soon_does_not_stop_a_query(
    worker: WireWorker, status: int
) -> None:
    publish(worker.topic(FLIGHTS), 0, 1)
    query = Query(url=worker.url)
    assert query.plan()
    worker.refuse["blocks"] = status
    back = threading.Timer(0.3, worker.refuse.clear)
    back.start()
    try:
        assert query.run() == [0, 1]
    finally:
        back.join()


def test_a_checkpoint_that_is_beyond_the_end_of_a_topic_does_not_leave_out_what_comes(worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 2)
    beyond = json.dumps({"us-east": {FLIGHTS: "3:9"}})
    with pytest.raises(TopicChanged, match=f"topic {FLIGHTS} ends at 3:2, before 3:9"):
        Query(url=worker.url, read=beyond).plan()
    planned = Query(url=worker.url, read=json.dumps({"us-east": {FLIGHTS: "3:0"}}))
    planned.planned = beyond
    with pytest.raises(TopicChanged, match=f"topic {FLIGHTS} ends at 3:2, before 3:9"):
        planned.run()
    skipping = Query(url=worker.url, read=beyond, onGap="skip")
    assert list(skipping.batches()) == [[]]
    publish(flights, 3, 4)
    assert list(skipping.batches()) == [[3, 4]]


def test_a_checkpoint_of_other_clusters_is_refused(worker: WireWorker) -> None:
    publish(worker.topic(FLIGHTS), 0, 1)
    query = Query(url=worker.url, read=json.dumps({"eu-west": {FLIGHTS: "3:0"}}))
    with pytest.raises(BadOption, match="option 'url': the query has read cluster eu-west, and no worker given"):
        query.plan()


def test_quiet_topics_cost_neither_partitions_nor_requests(worker: WireWorker) -> None:
    for number in range(300):
        publish(worker.topic(f"{FLIGHTS}-{number:03d}"), number, number)
    query = Query(url=worker.url)
    assert sorted(chain.from_iterable(query.batches())) == list(range(300))
    publish(worker.topic(f"{FLIGHTS}-007"), 1_000, 1_000)
    asked = len(worker.requests)
    assert list(query.batches()) == [[1_000]]
    assert [path.split("?")[0].rsplit("/", 1)[1] for path in worker.requests[asked:]] == [
        "positions",
        "blocks",
        "positions",
    ]
