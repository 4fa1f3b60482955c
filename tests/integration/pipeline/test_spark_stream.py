"""Streams of topics through Spark, against a worker's real wire: exactly once over restarts, gaps, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tenacity import retry, retry_if_exception_message, stop_after_attempt
from wire_worker import ScriptedTopic, WireWorker, single_entry

from snapshots.position import Position

FLIGHTS = "persistent://public/default/flights"
DELAYS = "persistent://public/default/delays"


@pytest.fixture
def worker() -> Iterator[WireWorker]:
    with WireWorker("us-east") as worker:
        yield worker


@pytest.fixture(autouse=True)
def one_shuffle_partition(spark: Any) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")


class Query:
    """A query that appends what it reads to files, run until it has read all that there is."""

    def __init__(self, spark: Any, path: Path, **options: Any) -> None:
        self._spark, self._path, self._options = spark, path, options

    @retry(
        retry=retry_if_exception_message(match=r"(?s).*Python worker failed to connect back"),
        stop=stop_after_attempt(3),
        reraise=True,
    )
    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Read what there is; gives the progress of each batch that had rows.

        Spark gives a Python process ten seconds to begin, whatever else runs on the machine: then it is tried again.
        """
        stream = (
            self._spark.readStream.format("replicator")
            .schema("topic string, payload binary")
            .options(**(self._options | options))
            .load()
        )
        query = (
            stream.coalesce(1)
            .writeStream.format("parquet")
            .option("path", str(self._path / "rows"))
            .option("checkpointLocation", str(self._path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[str]:
        return sorted(row.payload.decode() for row in self._spark.read.parquet(str(self._path / "rows")).collect())


def publish(topic: ScriptedTopic, first: int, last: int) -> None:
    for number in range(first, last + 1):
        topic.publish(single_entry(b"%s-%02d" % (topic_letter(topic), number)))


def topic_letter(topic: ScriptedTopic) -> bytes:
    return b"f" if topic.next.ledger < 100 else b"d"


def test_a_stream_reads_each_message_once_in_limited_batches_and_goes_on_after_a_restart(
    spark: Any, worker: WireWorker, tmp_path: Path
) -> None:
    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 9)
    query = Query(spark, tmp_path, url=worker.url, entries_per_trigger=4)
    batches = query.run()
    assert [batch["numInputRows"] for batch in batches] == [4, 4, 2]
    assert json.loads(batches[-1]["sources"][0]["endOffset"]) == {"us-east": {FLIGHTS: "3:9"}}
    assert query.rows() == [f"f-{number:02d}" for number in range(10)]

    publish(flights, 10, 12)
    newcomer = worker.topics.setdefault(DELAYS, ScriptedTopic("us-east", next=Position(103, 0)))
    publish(newcomer, 0, 1)
    query.run(bytes_per_trigger="1MiB")
    assert query.rows() == ["d-00", "d-01", *(f"f-{number:02d}" for number in range(13))]
    assert query.run() == [], "nothing came since"


def test_what_is_wrong_with_a_stream_is_said_by_name_and_the_checkpoint_is_good_afterwards(
    spark: Any, worker: WireWorker, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    flights = worker.topic(FLIGHTS)
    publish(flights, 0, 1)
    query = Query(spark, tmp_path, url=worker.url)
    with pytest.raises(StreamingQueryException, match="option 'colour': unknown; the options are url"):
        query.run(colour="red")
    with pytest.raises(StreamingQueryException, match=r"option 'pattern': .*no.* matches no topic at us-east"):
        query.run(pattern="no.*")
    query.run(start="3:1", topic="flights")
    flights.trim(Position(3, 0))
    publish(flights, 2, 3)
    flights.trim(Position(3, 2))
    with pytest.raises(StreamingQueryException, match=f"topic {FLIGHTS} was trimmed up to 3:2, past 3:1"):
        query.run()
    query.run(onGap="skip")
    assert query.rows() == ["f-01", "f-03"]
