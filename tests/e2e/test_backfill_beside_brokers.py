"""Backfill and the Spark data source where workers run beside brokers: workers of ours play these, so only Spark needs
Java."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_broker import gateways_of
from peers.apache_support import Beside, backlog, beside, official, read_all, until
from pulsar import ConsumerType, InitialPosition
from pyspark.errors import PythonException, StreamingQueryException

from replicator.pipeline.backfill.backfill import BackfillRequest, BackfillRun, link_for
from replicator.topology import load_topology

GONE = f"process 999999 on {platform.node()} since 2026-01-01T00:00:00Z"
LINKS = "[{between: [A, B]}, {from: C, to: A}]"
"""C is of kind embedded."""
LINK = "/replication/v1/links/A%3EB"
PLAN = "/pipeline/v1/links/A%3EB/plan"
TOPIC = "persistent://public/default/history"
MESSAGES = [f"{number:04d}{'x' * 20_000}" for number in range(300)]
"""Messages, more than a live link brings in a moment."""
ACKNOWLEDGED = 40


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    path = tmp_path_factory.mktemp("pair")
    with gateways_of(path, "A", "B") as brokers, beside(path, "ABC", brokers, LINKS) as made:
        yield made


@pytest.mark.timeout(300)
def test_history_of_the_brokers_is_carried_by_spark_to_those_of_the_other_cluster(pair: Beside, spark: Any) -> None:
    pair.until(lambda: pair.get("A", LINK)["state"] != "connecting", "the link is connected")
    pair.post("A", PLAN, {"carrier": GONE, "kind": "backfill", "lanes": 1, "bytes_max": 1, "wait_ms": 0})
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(TOPIC, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        for body in MESSAGES:
            producer.send_async(body.encode(), lambda *_: None)
        producer.flush()
        for _ in range(ACKNOWLEDGED):
            consumer.acknowledge(consumer.receive(60_000))

    def read() -> bool:
        (shown,) = pair.apache("A")["topics"] or [{"messages_read": 0}]
        return int(shown["messages_read"]) == len(MESSAGES)

    until(read, lambda: pair.apache("A"))
    assert backlog(pair.brokers["B"], TOPIC, "work") == -1, "nothing came yet"

    topology = load_topology(pair.file)
    request = BackfillRequest(topology, link_for(topology, "A", "B", None))
    report = BackfillRun(request, lambda: spark, lambda _: None).run()
    assert report.done, report
    assert report.carried_bytes > len(MESSAGES) * 20_000
    assert report.jobs > 0
    assert report.beside_brokers == ("A", "B")

    assert read_all(pair.brokers["B"], TOPIC, len(MESSAGES)) == MESSAGES
    left = len(MESSAGES) - ACKNOWLEDGED
    until(lambda: backlog(pair.brokers["B"], TOPIC, "work") == left, lambda: pair.apache("B"))
    verified = pair.report("verify", "--brokers", "--topic", TOPIC)
    assert verified["brokers"]["B"]["messages"] == len(MESSAGES)

    # The table of a worker beside brokers is its spool.
    table = spark.read.format("replicator").options(topology=str(pair.file), cluster="B", topic=TOPIC).load()
    rows = table.where("kind = 'message'").orderBy("ledger", "entry").select("payload", "origin").collect()
    assert [bytes(row["payload"]).decode() for row in rows] == MESSAGES
    assert {row["origin"] for row in rows} == {"A.pulsar"}


def test_rows_are_not_written_to_a_worker_beside_brokers_which_would_not_get_them(pair: Beside, spark: Any) -> None:
    """By the worker's address alone, as with a topology: an error that says what to do, nothing that is lost."""
    rows = spark.range(0, 40, 1, 2).selectExpr("concat('row-', cast(id as string)) as payload")

    def write(cluster: str, **options: str) -> None:
        rows.write.format("replicator").mode("append").options(url=pair.url(cluster), **options).save()

    with pytest.raises(PythonException) as caught:
        write("A", topic="written")
    assert "would not get what is written to this worker (the worker of A serves no clients" in str(caught.value)
    assert f"at {pair.brokers['A'].url}): write to the brokers, " in str(caught.value)
    assert "or to an embedded cluster with a link" in str(caught.value)
    table = spark.readStream.format("replicator").options(url=pair.url("B"), topic=TOPIC).load()
    query = (
        table.writeStream.format("replicator")
        .options(url=pair.url("A"), topic="written", checkpointLocation=str(pair.path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="clients would not get what is written to this worker"):
        query.awaitTermination()
    assert "persistent://public/default/written" not in pair.topics("A")

    write("C", topic="written")  # links carry it on to the brokers
    found = read_all(pair.brokers["A"], "persistent://public/default/written", 40)
    assert sorted(found) == sorted(f"row-{number}" for number in range(40))
