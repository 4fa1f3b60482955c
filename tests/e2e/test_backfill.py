"""Backfill between real workers: history by Spark's tasks, hand-over to the live link, subscription states.

DESIGN §7; invariants 2, 3, 5. Each test has topics of its own, published while the link is held by the backfill of a
process that is gone: so their history is still to be brought.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.error import HTTPError

import forked_commands
import psutil
import psycopg
import pytest
from failover_support import Deployment
from printed_fields import problems
from sqlalchemy import make_url

from replicator.client import Client, ConsumerType, InitialPosition, MessageId
from replicator.pipeline.backfill.backfill import BackfillRequest, BackfillRun, link_for
from replicator.pipeline.backfill.report import BackfillReport
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import BadOption, LinkTaken, NoSuchLink, PeerUnavailable
from replicator.pipeline.json_types import BackfillAnswer
from replicator.pipeline.spark.session import DAEMON_MODULE
from replicator.topology import load_topology

GONE = f"process 999999 on {platform.node()} since 2026-01-01T00:00:00Z"
PLAN = "/pipeline/v1/links/A%3EB/plan"
PAYLOAD_BYTES = 20_000

_serial = count()


class Region(Deployment):
    """Clusters A and B, with a link from A to B that the workers carry themselves."""

    def hold_link(self, carrier: str = GONE) -> None:
        self.until(lambda: self.link()["state"] != "connecting", "the link is connected")
        self.post("A", PLAN, {"carrier": carrier, "kind": "backfill", "lanes": 1, "bytes_max": 1, "wait_ms": 0})
        self.until(lambda: self.link()["state"] == "backfilling", "the link is held")

    def link(self) -> Any:
        return self.get("A", "/replication/v1/links/A%3EB")

    def delete(self, cluster: str, path: str) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url(cluster, path), method="DELETE"), timeout=20).close()

    def put(self, cluster: str, path: str) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url(cluster, path), method="PUT"), timeout=20).close()

    def publish(self, topic: str, messages: int, *, payload_bytes: int = 100) -> list[bytes]:
        contents = [b"%06d" % number + bytes(payload_bytes - 6) for number in range(messages)]

        async def publish() -> None:
            async with Client(self.client_url("A")) as client:
                producer = await client.create_producer(topic, batching_max_messages=50)
                await producer.send_many(contents)

        asyncio.run(publish())
        return contents

    def contents(self, cluster: str, topic: str) -> list[bytes]:
        """Return the messages of a topic in a cluster, in order, each as often as it is there."""

        async def read() -> list[bytes]:
            async with Client(self.client_url(cluster)) as client:
                reader = await client.create_reader(topic, MessageId.earliest)
                found = []
                while await reader.has_message_available():
                    found.append((await reader.read_next(timeout_millis=10_000)).data())
                return found

        return asyncio.run(read())

    def entries(self, cluster: str) -> dict[str, int]:
        with DataPlane(self.url(cluster)) as worker:
            return {topic.name.rpartition("/")[2]: topic.messages for topic in worker.topics()[1]}

    def vectors(self, cluster: str, topic: str) -> Any:
        return self.get(cluster, f"/replication/v1/ack-vectors?topic=persistent://public/default/{topic}")


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Region]:
    names = {cluster: f"backfill_{os.getpid()}_{next(_serial)}" for cluster in ("A", "B")}
    url = make_url(postgres_server)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"CREATE DATABASE {name}")
        urls = {each: url.set(database=name).render_as_string(hide_password=False) for each, name in names.items()}
        deployed = Region(tmp_path_factory.mktemp("region"), ["A", "B"], "[{from: A, to: B}]", urls)
        try:
            deployed.start("A", "B")
            yield deployed
        finally:
            deployed.stop()
            for name in names.values():
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def run_of(
    region: Region, spark: Any, *topics: str, show: Callable[[str], None] = lambda _: None, **options: Any
) -> BackfillRun:
    topology = load_topology(region.file)
    request = BackfillRequest(topology, link_for(topology, "A", "B", None), topics, **options)
    return BackfillRun(request, lambda: spark, show)


async def _consume(region: Region, topic: str, subscription: str, acknowledge: Callable[[int, int], bool]) -> None:
    """Receive all of a topic. ``acknowledge`` tells, by entry and index in its batch, whether to acknowledge a
    message."""
    async with Client(region.client_url("A")) as client:
        consumer = await client.subscribe(
            topic,
            subscription,
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
            batch_index_ack_enabled=True,
        )
        entries: dict[tuple[int, int], int] = {}
        for _ in range(region.entries("A")[topic.rpartition("/")[2]]):
            received = await consumer.receive(timeout_millis=10_000)
            where = received.message_id()
            entry = entries.setdefault((where.ledger_id(), where.entry_id()), len(entries))
            if acknowledge(entry, where.batch_index()):
                await consumer.acknowledge(received)


def test_a_region_joins_with_history_and_with_the_states_of_its_consumers(region: Region, spark: Any) -> None:
    region.hold_link()
    history = {f"joins-{number}": region.publish(f"joins-{number}", 400, payload_bytes=3_000) for number in range(6)}
    asyncio.run(_consume(region, "joins-0", "with-holes", lambda entry, _: entry % 2 == 0))
    asyncio.run(_consume(region, "joins-0", "in-parts", lambda entry, index: entry == 0 or index in (1, 30)))
    asyncio.run(_consume(region, "joins-1", "all", lambda *_: True))
    region.put("A", "/admin/v2/persistent/public/default/joins-2/subscription/stays")
    shown: list[str] = []

    report = run_of(region, spark, show=shown.append).run()

    assert report.done, report
    assert problems(report.as_json(), (BackfillAnswer,)) == []
    assert report.carried_bytes > 6 * 400 * 3_000
    assert [topic.transferred for topic in report.topics if topic.topic.endswith(("joins-0", "joins-1"))] == [2, 1]
    assert [each.subscription for each in report.unreplicated] == ["stays"]
    for topic, contents in history.items():
        assert region.contents("B", topic) == contents, "everything, once, in order"
    for topic in ("joins-0", "joins-1"):
        here, there = region.vectors("A", topic)["subscriptions"], region.vectors("B", topic)["subscriptions"]
        digests = {name: state["digest"]["A"] for name, state in here.items()}
        assert digests == {name: state["digest"]["A"] for name, state in there.items()}
    assert region.vectors("B", "joins-0")["subscriptions"]["in-parts"]["unconsumed"]["A"]["batches"]
    region.until(lambda: region.link()["state"] == "idle", "the link is live again")

    again = run_of(region, None).run()
    assert (again.done, again.jobs, again.carried_bytes) == (True, 0, 0)


def test_only_the_topics_that_match_are_brought_and_the_live_link_brings_the_others(region: Region, spark: Any) -> None:
    region.hold_link()
    wanted = region.publish("chosen", 300, payload_bytes=PAYLOAD_BYTES)
    other = region.publish("another", 300, payload_bytes=PAYLOAD_BYTES)
    report = run_of(region, spark, "public/default/chosen").run()
    assert [topic.topic for topic in report.topics] == ["persistent://public/default/chosen"]
    assert report.done
    assert region.contents("B", "chosen") == wanted
    region.until(lambda: region.entries("B").get("another") == len(other), "the live link goes on")


def test_a_topic_that_the_source_deletes_meanwhile_is_named_and_the_others_get_their_states(
    region: Region, spark: Any
) -> None:
    region.hold_link()
    region.publish("deleted", 10)
    region.publish("left", 400, payload_bytes=PAYLOAD_BYTES)
    asyncio.run(_consume(region, "left", "s", lambda entry, _: entry % 2 == 0))
    topology = load_topology(region.file)
    request = BackfillRequest(topology, link_for(topology, "A", "B", None), ("public/default/(deleted|left)",))

    def delete_and_start() -> Any:
        region.delete("A", "/admin/v2/persistent/public/default/deleted")
        return spark

    report = BackfillRun(request, delete_and_start, lambda _: None).run()

    assert (report.done, report.unavailable) == (False, False)
    assert "A has deleted it since" in str(report.topics[0].missing)
    assert report.topics[1].missing is None
    assert report.topics[1].transferred == 1
    assert report.seconds < 60, "it is not waited for"
    assert run_of(region, None, "public/default/left").run().done


def _at_half(region: Region, topics: Collection[str], messages: int) -> bool:
    """By what has come, and not by the reported progress: one job may carry all, and reports when it is over."""
    there = region.entries("B")
    come = sum(there.get(topic, 0) for topic in topics)
    return messages * 0.1 < come < messages * 0.8


def _in_background(run: BackfillRun) -> tuple[threading.Thread, list[BackfillReport]]:
    reports: list[BackfillReport] = []
    thread = threading.Thread(target=lambda: reports.append(run.run()), name="backfill")
    thread.start()
    return thread, reports


def _kill_a_task() -> None:
    """Kill one of the processes that Spark runs tasks in."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if DAEMON_MODULE in process.cmdline() and not process.children():
                process.kill()
                return
    raise AssertionError("no task runs")


def test_a_worker_and_a_task_that_are_killed_under_way_cost_nothing(region: Region, spark: Any) -> None:
    region.hold_link()
    history = {
        f"hit-{number}": region.publish(f"hit-{number}", 400, payload_bytes=PAYLOAD_BYTES) for number in range(3)
    }
    said: list[str] = []
    run = run_of(region, spark, "public/default/hit-.*", show=said.append, rate_bytes=3_000_000)
    thread, reports = _in_background(run)
    region.until(lambda: _at_half(region, history, 1200) or not thread.is_alive(), "it is under way")
    assert thread.is_alive(), (reports, said)
    _kill_a_task()
    region.kill("B")
    region.start("B")
    thread.join(60)
    assert reports, "it went on by itself"
    assert reports[0].done, reports[0]
    for topic, contents in history.items():
        assert region.contents("B", topic) == contents, "everything, once, in order"


def test_a_backfill_whose_driver_is_killed_goes_on_with_the_next_one(region: Region, spark: Any) -> None:
    region.hold_link()
    topics = [f"resumed-{number}" for number in range(3)]
    history = {topic: region.publish(topic, 600, payload_bytes=PAYLOAD_BYTES) for topic in topics}
    log = region.path / "driver.log"
    arguments = ("backfill", "-f", str(region.file), "--from", "A", "--to", "B", "--rate", "1MB")
    driver = forked_commands.start(
        (*arguments, "--topics", "public/default/resumed-.*"), cwd=region.path, stdout=log, stderr=log
    )

    def keep_held() -> None:
        """Report a carrier for the link. Otherwise the link goes on by itself, while Spark starts or after the driver
        is gone."""
        alive = {"carrier": GONE, "topics": ["public/default/resumed-.*"]}
        region.post("A", "/pipeline/v1/links/A%3EB/progress", alive)

    def under_way() -> bool:
        keep_held()
        return driver.poll() is not None or _at_half(region, topics, 1800)

    region.until(under_way, "it is under way", seconds=180)
    assert driver.poll() is None, log.read_text()
    with pytest.raises(LinkTaken, match=f"link A>B is being backfilled by process {driver.pid} on"):
        run_of(region, spark).run()
    listed = forked_commands.run("links", "list", "-f", str(region.file), cwd=region.path).stdout
    assert " %" in listed, listed
    driver.kill()
    driver.wait()
    keep_held()

    report = run_of(region, spark, "public/default/resumed-.*").run()

    assert report.done, report
    assert 0 < report.carried_bytes < 3 * 600 * PAYLOAD_BYTES, "it went on where the other one stopped"
    for topic, contents in history.items():
        assert region.contents("B", topic) == contents, "everything, once, in order"


def test_what_a_driver_asks_of_a_worker_is_checked(region: Region) -> None:
    progress, tell = "/pipeline/v1/links/A%3EB/progress", "/replication/v1/ack-vectors/tell"
    asked: list[tuple[str, Any, int]] = [
        (progress, {}, 400),
        (progress, {"carrier": 1}, 400),
        (progress, {"carrier": "c", "topics": ["("]}, 400),
        (progress, {"carrier": "c", "topics": "all"}, 400),
        ("/pipeline/v1/links/A%3EC/progress", {"carrier": "c"}, 404),
        (tell, [], 400),
        (tell, {"topics": "orders"}, 400),
        (tell, {"topics": ["a/b"]}, 400),
        (tell, {"topics": ["orders"] * 1_001}, 400),
    ]
    for path, body, status in asked:
        with pytest.raises(HTTPError) as refused:
            region.post("A", path, body)
        assert refused.value.code == status, (path, body, refused.value.read())
    assert not region.post("A", progress, {"carrier": "nobody"})["holds"]
    assert region.post("A", tell, {"topics": ["persistent://public/default/nothing"]}) == {"told": 0}


def test_what_cannot_be_begun_is_one_line_that_says_what_to_do(region: Region, spark: Any) -> None:
    with pytest.raises(BadOption, match="no topic of A that link A>B carries matches 'public/default/nothing'"):
        run_of(region, spark, "public/default/nothing").run()
    done = region.command("backfill", "--from", "B", "--to", "A")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "no link from B to A: add `- {from: B, to: A}` to its links, and run `replicator apply" in done.stderr
    region.write("[{from: A, to: B}, {from: B, to: A}]")
    run = run_of(region, spark)
    back = BackfillRun(
        BackfillRequest(load_topology(region.file), link_for(load_topology(region.file), "B", "A", None)),
        lambda: spark,
        lambda _: None,
    )
    region.write("[{from: A, to: B}]")
    with pytest.raises(NoSuchLink, match="does not run link B>A yet: `replicator apply`"):
        back.run()
    region.post("A", "/replication/v1/links/A%3EB/pause", None)
    report = run.run()
    region.post("A", "/replication/v1/links/A%3EB/resume", None)
    assert not report.done
    assert "the link is paused; `replicator links resume`" in report.reason
    region.stop()
    with pytest.raises(PeerUnavailable, match="cannot be reached"):
        run.run()
