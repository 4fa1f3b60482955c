"""The data source in a real Spark session, reading over real HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from wire_worker import PUBLISHED_AT_MS, WireWorker, batch_entry, marker_entry, single_entry

from replicator.engine.log.block import BlockKind
from replicator.pipeline import data_plane
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from snapshots.position import Position

FLIGHTS = "persistent://public/default/flights"
QUIET = "persistent://public/default/quiet"


@pytest.fixture
def worker() -> Iterator[WireWorker]:
    with WireWorker("us-east") as worker:
        yield worker


def table(spark: Any, **options: Any) -> Any:
    return spark.read.format("replicator").options(**options).load()


def test_a_topic_is_a_table_of_its_messages_and_markers(spark: Any, worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    flights.publish(
        single_entry(b"one", key="N1", region="eu"), batch_entry([b"two", b"three"], key="N2"), sizes=[1, 2]
    )
    flights.publish(marker_entry(10), kind=BlockKind.MARKERS)
    rows = table(spark, url=worker.url, topic="flights").orderBy("ledger", "entry", "batch_index").collect()
    assert [(str(Position(row.ledger, row.entry)), row.batch_index, bytes(row.payload)) for row in rows] == [
        ("3:0", 0, b"one"),
        ("3:1", 0, b"two"),
        ("3:1", 1, b"three"),
        ("3:2", 0, b"marker"),
    ]
    assert (rows[0].cluster, rows[0].topic, rows[0].key, rows[0].properties) == (
        "us-east",
        FLIGHTS,
        "N1",
        {"region": "eu"},
    )
    assert rows[0].publish_time.replace(tzinfo=UTC) == datetime.fromtimestamp(PUBLISHED_AT_MS / 1000, UTC)
    assert [(row.kind, row.marker_type) for row in rows[2:]] == [("message", None), ("marker", 10)]


def test_all_clusters_and_topics_are_read_into_one_table(spark: Any, worker: WireWorker) -> None:
    with WireWorker("eu-west") as other:
        worker.topic(FLIGHTS).publish(single_entry(b"a"))
        other.topic(FLIGHTS).publish(single_entry(b"b"))
        other.topic(QUIET)
        rows = table(spark, url=f"{worker.url},{other.url}").select("cluster", "payload").collect()
    assert sorted((row.cluster, bytes(row.payload)) for row in rows) == [("eu-west", b"b"), ("us-east", b"a")]


def test_a_large_topic_is_read_in_parts_and_pages_that_meet_end_to_end(
    spark: Any, worker: WireWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = worker.topic(FLIGHTS)
    for block in range(50):
        if block % 20 == 19:
            flights.open_ledger(flights.next.ledger + 2)
        flights.publish(*(single_entry(b"%d" % (block * 7 + number)) for number in range(7)))
    read = table(spark, url=worker.url, topic="flights", entries_per_partition=40)
    assert read.rdd.getNumPartitions() >= 7
    assert sorted(int(row.payload) for row in read.select("payload").collect()) == list(range(350))

    monkeypatch.setattr(data_plane, "PAGE_BYTES", 1)
    with DataPlane(worker.url) as here:
        pages = list(here.blocks(FLIGHTS, Position(3, 10), flights.last))
    assert [fetched.first for fetched in pages] == [at for at, _, _ in flights.blocks[1:]]


def test_positions_bound_a_read(spark: Any, worker: WireWorker) -> None:
    worker.topic(FLIGHTS).publish(*(single_entry(b"%d" % number) for number in range(10)))
    read = table(spark, url=worker.url, topic="flights", after="3:2", upto="3:5")
    assert [int(row.payload) for row in read.select("payload").collect()] == [3, 4, 5]
    assert table(spark, url=worker.url, topic="flights", after="3:9").count() == 0


def test_a_schema_with_fewer_columns_is_honoured(spark: Any, worker: WireWorker) -> None:
    worker.topic(FLIGHTS).publish(single_entry(b"a", key="k"))
    read = spark.read.format("replicator").schema("key string, entry bigint").options(url=worker.url).load()
    assert [tuple(row) for row in read.collect()] == [("k", 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://127.0.0.1:1"}, "worker at http://127.0.0.1:1 cannot be reached"),
        ({"topic": "flights"}, "option 'url': missing"),
        ({"url": "here", "topic": "flights", "colour": "red"}, "option 'colour': unknown"),
        ({"url": "WORKER", "topic": "nothing"}, "option 'topic': no topic persistent://public/default/nothing"),
    ],
)
def test_what_is_wrong_with_a_read_is_said_once_and_by_name(
    spark: Any, worker: WireWorker, options: dict[str, str], message: str
) -> None:
    from pyspark.errors import AnalysisException

    if options.get("url") == "WORKER":
        options = options | {"url": worker.url}
    with pytest.raises(AnalysisException) as caught:
        table(spark, **options).count()
    assert str(caught.value).count(message) == 1


def test_a_schema_with_a_column_that_is_not_there_is_refused(spark: Any, worker: WireWorker) -> None:
    from pyspark.errors import AnalysisException

    worker.topic(FLIGHTS)
    for schema, message in (("colour string", "no column colour"), ("key int", "column key is string, not int")):
        with pytest.raises(AnalysisException, match=message):
            spark.read.format("replicator").schema(schema).options(url=worker.url).load().count()


def test_a_corrupt_block_stops_the_read_and_the_session_goes_on(spark: Any, worker: WireWorker) -> None:
    from pyspark.errors import PythonException

    flights = worker.topic(FLIGHTS)
    block = bytearray(flights.publish(single_entry(b"payload")))
    sound = flights.blocks
    flights.blocks = [(Position(3, 0), 1, bytes(block[:-1] + b"!"))]
    with pytest.raises(PythonException, match=r"block at us-east 3:0 \(1 entries\) is damaged: its checksum"):
        table(spark, url=worker.url).collect()
    flights.blocks = sound
    assert table(spark, url=worker.url).count() == 1


def test_an_answer_that_is_not_what_the_api_promises_names_the_worker_and_the_call(worker: WireWorker) -> None:
    worker.topic(FLIGHTS).subscribe("s", ranges=((Position(3, 0), Position(4, 0)),))
    worker.topic(FLIGHTS).mappings.append({"snapshot_id": "x", "local": "3:0", "peer": "eu-west"})
    with DataPlane(worker.url) as here:
        with pytest.raises(UnexpectedAnswer, match=rf"{worker.url}: its answer to subscriptions .* not a range"):
            here.subscriptions(FLIGHTS)
        with pytest.raises(UnexpectedAnswer, match="its answer to mappings cannot be read: remote is missing"):
            here.mappings(FLIGHTS)
        with pytest.raises(
            UnexpectedAnswer, match=r"refused subscriptions of .* with status 404: TopicNotFound: no topic"
        ):
            here.subscriptions("persistent://public/default/nothing")
        worker.refuse["mappings"] = 503
        with pytest.raises(PeerUnavailable, match=r"cannot answer mappings of .* now: Scripted"):
            here.mappings(FLIGHTS)
        assert len(here.topics()[1]) == 1, "the connection is still good"


def test_filters_are_done_by_the_source_and_what_they_rule_out_is_not_asked_for(spark: Any, worker: WireWorker) -> None:
    flights = worker.topic(FLIGHTS)
    flights.publish(*(single_entry(b"%d" % number) for number in range(10)))
    flights.publish(marker_entry(10), kind=BlockKind.MARKERS)
    flights.open_ledger(5)
    flights.publish(*(single_entry(b"%d" % number) for number in range(10, 20)))
    worker.topic(QUIET).publish(single_entry(b"other"))
    rows = table(spark, url=worker.url).where(
        "topic like 'persistent://public/default/fl%' and kind = 'message' and ledger = 5 and entry between 3 and 5 "
        "and publish_time < timestamp'2030-01-01' and cast(payload as string) <> '14'"
    )
    assert sorted(int(row.payload) for row in rows.collect()) == [13, 15]
    asked = [path for path in worker.requests if "/blocks?" in path]
    assert len(asked) == 1
    assert "after=5%3A2&" in asked[0]
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "14" in plan, "what the source cannot do stays with Spark"
    assert "2030" not in plan.split("BatchScan")[0], "what it can do does not"


def test_entries_are_rows_of_their_bytes_as_they_are_stored(spark: Any, worker: WireWorker) -> None:
    entries = [single_entry(b"one"), batch_entry([b"two", b"three"])]
    worker.topic(FLIGHTS).publish(*entries, sizes=[1, 2])
    worker.topic(FLIGHTS).publish(marker_entry(10), kind=BlockKind.MARKERS)
    rows = table(spark, url=worker.url, mode="entries").orderBy("entry").collect()
    assert [(row.entry, row.batch_size, row.kind, bytes(row.content)) for row in rows] == [
        (0, 1, "message", entries[0]),
        (1, 2, "message", entries[1]),
        (2, 0, "marker", marker_entry(10)),
    ]
    assert rows[0].written_time.replace(tzinfo=UTC) == datetime.fromtimestamp(PUBLISHED_AT_MS / 1000, UTC)


def test_a_topic_that_was_trimmed_is_an_error_that_names_it_and_the_session_goes_on(
    spark: Any, worker: WireWorker
) -> None:
    from pyspark.errors import AnalysisException, PythonException

    flights = worker.topic(FLIGHTS)
    for number in range(4):
        flights.publish(single_entry(b"%d" % number))
    planned = table(spark, url=worker.url).select("payload")
    assert planned.rdd.getNumPartitions() == 1, "planned"
    flights.trim(Position(3, 1))
    with pytest.raises(PythonException, match=f"topic {FLIGHTS} was trimmed up to 3:1 since the read from after"):
        planned.collect()
    with pytest.raises(AnalysisException, match=f"topic {FLIGHTS} was trimmed up to 3:1, past 3:0"):
        table(spark, url=worker.url, topic="flights", after="3:0").collect()
    read = table(spark, url=worker.url, topic="flights", after="3:0", onGap="skip").select("payload")
    assert [bytes(row.payload) for row in read.collect()] == [b"2", b"3"]


def test_the_notebook_runs_as_it_stands(spark: Any, worker: WireWorker, tmp_path: Path) -> None:
    flights = worker.topic(FLIGHTS)
    for carrier, delay in (("UA", 10), ("UA", 20), ("DL", -2)):
        flights.publish(single_entry(b'{"carrier": "%s", "dep_delay": %d}' % (carrier.encode(), delay), key="N1"))
    flights.publish(marker_entry(10), kind=BlockKind.MARKERS)
    page = (Path(__file__).parents[3] / "docs" / "notebook.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(cells) == 6
    notebook: dict[str, Any] = {"URL": worker.url, "DIR": str(tmp_path)}
    for cell in cells:
        exec(cell, notebook)
    assert [tuple(row) for row in notebook["delays"].collect()] == [("Delta", 1, -2.0), ("United", 2, 15.0)]
    assert notebook["counted"] == 3
    assert notebook["progress"][-1] == {"us-east": {FLIGHTS: "3:3"}}


def test_spark_starts_where_neither_java_nor_postgres_is_on_the_path(worker: WireWorker, tmp_path: Path) -> None:
    """In a process of its own, because a JVM that runs is not started again."""
    worker.topic(FLIGHTS).publish(single_entry(b"a"))
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "bash", "env", "dirname", "readlink", "uname", "head", "rm", "cat", "ps", "nice", "basename"):
        if found := next((p for p in (Path("/usr/bin", tool), Path("/bin", tool)) if p.exists()), None):
            (tools / tool).symlink_to(found)
    script = (
        "from replicator.pipeline.spark.session import spark_session\n"
        "spark = spark_session('local[1]')\n"
        f"print('rows', spark.read.format('replicator').options(url={worker.url!r}).load().count())\n"
        "spark.stop()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_LOCAL_IP")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert "rows 1" in answer.stdout, answer.stderr
    assert answer.stderr == "", "quiet"
