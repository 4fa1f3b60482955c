"""Links with SQL between clusters beside brokers: at real ones Spark's tasks run on a cluster, at our own gateways in
the worker's driver, and there the link masks, too, and an embedded cluster gets the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from gateway_broker import gateways_of
from peers.apache_support import Beside, backlog, beside, brokers_of, let_in, official, read_all, until
from pulsar import CompressionType, ConsumerType, InitialPosition, Message
from spark_cluster import spark_cluster

from replicator.pipeline.spark.shipping import UNPACKED_AS

TOPIC = "persistent://public/default/filtered"
WORK = "work"
BATCH: Final = 10
BATCHES: Final = 20
SECONDS_MAX = 240.0
"""A driver that starts on a busy machine takes a minute and more, and so do executors."""
WHERE = "where: \"properties['keep'] = 'yes'\""
SELECT = "select: {payload: \"regexp_replace(decode(payload, 'UTF-8'), '-[0-9]+-', '-x-')\"}"
pytestmark = pytest.mark.timeout(900)


@dataclass
class Pair:
    made: Beside
    masks: bool
    counts_batches: bool
    """Whether backlogs are counted in batches, as brokers do, or in messages, as ours do."""


@pytest.fixture(params=["brokers", "gateways"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    real = request.param == "brokers"
    select = "" if real else f", {SELECT}"
    there = "B" if real else "BC"
    filtered = "".join(f"{{from: A, to: {name}, engine: spark, {WHERE}{select}}}, " for name in there)
    links = f"[{filtered}{{from: B, to: A}}]"
    with ExitStack() as stack:
        pipeline = ""
        if real:
            archive: Path = request.getfixturevalue("executor_archive")
            spark = stack.enter_context(spark_cluster(tmp_path / "spark", workers=1, cores=2))
            conf = {
                "spark.archives": f"{archive}#{UNPACKED_AS}",
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            }
            pipeline = f", master: '{spark.master}', conf: {conf}"
        brokers = stack.enter_context(brokers_of(tmp_path, "A", "B") if real else gateways_of(tmp_path, "A", "B"))
        made = stack.enter_context(beside(tmp_path, f"A{there}", brokers, links, pipeline))
        yield Pair(made, masks=not real, counts_batches=real)


def stays(number: int) -> bool:
    """Return whether the filter keeps a message: every third one, none of each fourth batch, all of batch 2."""
    batch = number // BATCH
    return batch == 2 or (batch % 4 != 3 and number % 3 == 0)


def publish(made: Beside, batches: range) -> None:
    with official(made.brokers["A"]) as client:
        producer = client.create_producer(
            TOPIC,
            batching_enabled=True,
            batching_max_messages=BATCH,
            batching_max_publish_delay_ms=60_000,
            compression_type=CompressionType.LZ4,
        )
        for batch in batches:
            for number in range(batch * BATCH, (batch + 1) * BATCH):
                kept = "yes" if stays(number) else "no"
                producer.send_async(f"A-{batch}-{number}".encode(), lambda *_: None, properties={"keep": kept})
            producer.flush()


def number_of(message: Message) -> int:
    return int(message.data().decode().rpartition("-")[2])


def test_what_a_filter_lets_pass_is_consumed_at_the_other_brokers_and_says_nothing_of_the_rest(pair: Pair) -> None:
    """Invariants 2, 3, 5 and 6, for batches that a link leaves out in part or whole."""
    made = pair.made
    at_a, at_b = made.brokers["A"], made.brokers["B"]
    published = [f"A-{number // BATCH}-{number}" for number in range(BATCH * BATCHES)]
    wanted = [number for number in range(BATCH * BATCHES) if stays(number)]
    copied = [f"A-x-{number}" if pair.masks else published[number] for number in wanted]
    with official(at_a) as client:
        client.subscribe(TOPIC, WORK, ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    publish(made, range(BATCHES // 2))
    until(lambda: made.apache("B")["topics"], lambda: made.apache("B"), SECONDS_MAX)
    made.kill("B")
    publish(made, range(BATCHES // 2, BATCHES))
    made.start("B")
    arrived = until(
        lambda: found if len(found := read_all(at_b, TOPIC, len(copied), 5.0)) >= len(copied) else None,
        lambda: (made.apache("B"), made.get("A", "/replication/v1/links/A%3EB"), made.log("A")),
        SECONDS_MAX,
    )
    assert arrived == copied
    if "C" in made.ports:
        until(lambda: TOPIC in made.topics("C"), made.log("A"), SECONDS_MAX)
        assert read_all(f"pulsar://127.0.0.1:{made.ports['C']}", TOPIC, len(copied), SECONDS_MAX) == copied

    # All of a batch that is there is acknowledged, one by one, but for every fifth one.
    left = {number for number in wanted if number // BATCH % 5 == 0}
    with official(at_b) as client:
        client.create_producer(TOPIC, batching_enabled=False).send(b"B-0")
        until(lambda: backlog(at_b, TOPIC, WORK) >= 0, lambda: made.apache("B"), SECONDS_MAX)
        consumer = let_in(client, TOPIC, WORK, ConsumerType.Shared)
        received = []
        for _ in range(len(wanted) + 1):
            message = consumer.receive(60_000)
            received.append(number_of(message))
            if message.data() == b"B-0" or received[-1] not in left:
                consumer.acknowledge(message)
        assert received == [*wanted, 0]
    open_at_b = len({number // BATCH for number in left}) if pair.counts_batches else len(left)
    open_at_a = BATCHES - 1 if pair.counts_batches else len(published) - BATCH
    until(lambda: backlog(at_b, TOPIC, WORK) == open_at_b, lambda: (backlog(at_b, TOPIC, WORK), made.apache("B")))
    # What B has consumed are parts. All of a batch was, in one; and B's own message.
    until(lambda: backlog(at_a, TOPIC, WORK) == open_at_a, lambda: (backlog(at_a, TOPIC, WORK), made.apache("A")))
    verified = made.report("verify", "--brokers", "--topic", TOPIC)
    assert verified["brokers"]["A"]["messages"] == len(published) + 1
    assert verified["brokers"]["B"]["messages"] == len(copied) + 1

    with official(at_a) as client:
        consumer = let_in(client, TOPIC, WORK, ConsumerType.Shared)
        again = []
        for _ in range(len(published) - BATCH):
            message = consumer.receive(60_000)
            again.append(message.data().decode())
            consumer.acknowledge(message)
        assert sorted(again) == sorted(each for each in published if not each.startswith("A-2-"))
    until(lambda: backlog(at_b, TOPIC, WORK) == 0, lambda: (backlog(at_b, TOPIC, WORK), made.apache("B")))
    assert read_all(at_b, TOPIC, len(copied) + 1) == [*copied, "B-0"]
    link = made.get("A", "/replication/v1/links/A%3EB")
    assert (link["engine"], link["halted_count"], link["gap_count"]) == ("spark", 0, 0)
