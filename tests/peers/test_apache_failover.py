"""Failovers, failbacks and promotions of clusters beside real Apache Pulsar brokers. Their clients are official ones,
and know nothing of failovers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any, Final

import pulsar
import pytest
from peers.apache_support import Beside, backlog, beside, bodies, brokers_of, drain, official, read_all, until
from pulsar import ConsumerType, InitialPosition

LINKS: Final = "[{between: [A, B], forward: true}, {between: [A, C], forward: true}]"
_topics = (f"persistent://public/default/switched-{number}" for number in count())


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two brokers, a worker beside each, linked both ways; and behind A a cluster of kind embedded."""
    path = tmp_path_factory.mktemp("trio")
    with brokers_of(path, "A", "B") as brokers, beside(path, "ABC", brokers, LINKS) as made:
        yield made


@pytest.fixture
def deployment(trio: Beside) -> Iterator[Beside]:
    """Give clusters that each serve their own clients; after the test, fail back to that state."""
    yield trio
    for home in "ABC":
        if trio.state(home)["fenced"]:
            trio.report("failback", "--to", home)
    for name in "AB":
        until(lambda name=name: not any(fences(trio, name)), lambda: trio.apache("A"))


def bridged(made: Beside, name: str, topic: str) -> Any:
    """Return a worker's status of a topic; None if it does not bridge the topic (yet)."""
    return next((each for each in made.apache(name)["topics"] if each["topic"] == topic), None)


def fences(made: Beside, name: str) -> list[bool]:
    return [each["fence"][kind] for each in made.apache(name)["topics"] for kind in ("producers", "consumers")]


def fenced(made: Beside, name: str, topic: str) -> None:
    """Wait until nobody can publish to a topic or consume from it."""
    until(
        lambda: (shown := bridged(made, name, topic)) and shown["fence"]["producers"] and shown["fence"]["consumers"],
        lambda: (bridged(made, name, topic), made.log(name)),
    )


def publish(made: Beside, cluster: str, topic: str, messages: list[str]) -> None:
    with official(made.brokers[cluster]) as client:
        producer = client.create_producer(topic, block_if_queue_full=True)
        for body in messages:
            producer.send_async(body.encode(), lambda *_: None)
        producer.flush()


def subscribe(made: Beside, cluster: str, topic: str, client: pulsar.Client) -> pulsar.Consumer:
    return client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)


def prepared(made: Beside, topic: str, messages: int = 20) -> None:
    """Publish messages at A, with a subscription at A and B, and acknowledge the even ones at A."""
    with official(made.brokers["A"]) as client:
        consumer = subscribe(made, "A", topic, client)
        publish(made, "A", topic, bodies("m", range(messages)))
        for number in range(messages):
            message = consumer.receive(60_000)
            if number % 2 == 0:
                consumer.acknowledge(message)
        until(lambda: backlog(made.brokers["A"], topic, "work") == messages // 2, "A counts them")
    # A backlog of so many is seen in passing too, while half of the messages are there and no acknowledgement.
    assert len(read_all(made.brokers["B"], topic, messages)) == messages
    until(lambda: backlog(made.brokers["B"], topic, "work") == messages // 2, lambda: made.apache("B"))


def test_a_planned_failover_with_clients_connected_loses_nothing_and_repeats_nothing(deployment: Beside) -> None:
    topic, brokers = next(_topics), deployment.brokers
    with official(brokers["A"]) as client:
        consumer = subscribe(deployment, "A", topic, client)
        producer = client.create_producer(topic, send_timeout_millis=60_000)
        for body in bodies("m", range(30)):
            producer.send(body.encode())
        for number in range(30):
            message = consumer.receive(60_000)
            if number not in (3, 7):
                consumer.acknowledge(message)
        until(lambda: backlog(brokers["A"], topic, "work") == 2, "A counts them")

        report = deployment.report("failover", "--from", "A", "--to", "B")
        assert report["outcome"] == "done", report
        (shown,) = [each for each in report["topics"] if each["topic"] == topic]
        assert shown["missing_messages"] == 0
        assert [each["equal"] for each in shown["subscriptions"]] == [True], shown
        # The producer and the consumer of A are let go of, and do not get in again.
        fenced(deployment, "A", topic)
        late: list[Any] = []
        producer.send_async(b"late", lambda result, _: late.append(result))
        assert [each["producerName"] for each in stats(deployment, "A", topic)["publishers"]] == ["replicator.bridge.A"]
        with official(brokers["A"]) as other, pytest.raises(pulsar.PulsarException):
            other.create_producer(topic)
        with official(brokers["A"]) as other, pytest.raises(pulsar.PulsarException):
            subscribe(deployment, "A", topic, other)
    assert pulsar.Result.Ok not in late
    # Invariants 1 and 5: B has all, and delivers exactly what was not acknowledged.
    assert sorted(drain(brokers["B"], topic, "work", ConsumerType.Shared)) == ["m-3", "m-7"]
    assert read_all(brokers["B"], topic, 30) == bodies("m", range(30))
    # What is published and acknowledged at B goes on to A, through the fence.
    publish(deployment, "B", topic, bodies("b", range(10)))
    assert drain(brokers["B"], topic, "work", ConsumerType.Shared) == bodies("b", range(10))
    until(lambda: backlog(brokers["A"], topic, "work") == 0, lambda: bridged(deployment, "A", topic))
    assert read_all(brokers["A"], topic, 40) == bodies("m", range(30)) + bodies("b", range(10))

    report = deployment.report("failback", "--to", "A")
    assert report["outcome"] == "done", report
    publish(deployment, "A", topic, ["home"])
    assert drain(brokers["A"], topic, "work", ConsumerType.Shared) == ["home"]


def stats(made: Beside, cluster: str, topic: str) -> Any:
    return made.brokers[cluster].admin("GET", f"{topic.replace('://', '/')}/stats")


def test_a_dry_run_reports_and_fences_nothing(deployment: Beside) -> None:
    topic = next(_topics)
    prepared(deployment, topic)
    report = deployment.report("failover", "--from", "A", "--to", "B", "--dry-run")
    assert report["outcome"] == "dry run"
    assert "brokers of A and B were not compared" in " ".join(report["notes"])
    (shown,) = [each for each in report["topics"] if each["topic"] == topic]
    assert shown["carried"]
    assert shown["missing_messages"] == 0
    assert [each["equal"] for each in shown["subscriptions"]] == [True], shown
    assert not any(fences(deployment, "A"))
    publish(deployment, "A", topic, ["after"])


def test_what_was_stranded_at_a_promoted_cluster_s_home_flows_on_and_is_counted(deployment: Beside) -> None:
    topic, brokers = next(_topics), deployment.brokers
    prepared(deployment, topic)
    deployment.kill("A")  # the worker alone: its broker goes on
    publish(deployment, "A", topic, bodies("stranded", range(5)))
    report = deployment.report("promote", "--to", "B", "--for", "A")
    assert report["outcome"] == "done"
    publish(deployment, "A", topic, bodies("late", range(2)))  # nobody keeps them out while no worker runs
    deployment.start("A")
    fenced(deployment, "A", topic)
    everything = sorted(bodies("m", range(20)) + bodies("stranded", range(5)) + bodies("late", range(2)))
    assert sorted(read_all(brokers["B"], topic, 27)) == everything

    def stranded() -> Any:
        (found,) = [each for each in deployment.report("failover-status")["stranded"] if each["topic"] == topic]
        return found["messages"] == 7 and found["flowed"]

    until(stranded, lambda: deployment.report("failover-status"))


def test_clients_move_between_brokers_and_an_embedded_cluster(deployment: Beside) -> None:
    """Both ways: A is beside brokers, C is embedded."""
    topic, brokers = next(_topics), deployment.brokers
    prepared(deployment, topic)
    report = deployment.report("failover", "--from", "A", "--to", "C")
    assert report["outcome"] == "done", report
    fenced(deployment, "A", topic)
    with closing(pulsar.Client(deployment.client_url("C"), operation_timeout_seconds=120)) as client:
        consumer = subscribe(deployment, "C", topic, client)
        got = [consumer.receive(60_000) for _ in range(10)]
        assert sorted(each.data().decode() for each in got) == sorted(bodies("m", range(1, 20, 2)))
        client.create_producer(topic).send(b"at-c")
        got.append(consumer.receive(60_000))
        for message in got:
            consumer.acknowledge(message)
        with suppress(pulsar.Timeout):
            pytest.fail(f"again: {consumer.receive(1_000).data()!r}")
    report = deployment.report("failback", "--to", "A")
    assert report["outcome"] == "done", report
    # Nothing was left, and nothing comes again at the broker.
    assert backlog(brokers["A"], topic, "work") == 0
    publish(deployment, "A", topic, ["home"])
    assert drain(brokers["A"], topic, "work", ConsumerType.Shared) == ["home"]


def test_a_target_whose_brokers_lag_is_not_switched_to(deployment: Beside) -> None:
    topic, brokers = next(_topics), deployment.brokers
    prepared(deployment, topic)
    with official(brokers["B"]) as client:
        # Nobody else gets in there, so what is acknowledged at A from now on, behind a hole, cannot be at B.
        deadline = time.monotonic() + 60
        while True:
            try:
                holding = client.subscribe(topic, "work", ConsumerType.Exclusive)
            except pulsar.PulsarException:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                break
        with official(brokers["A"]) as at_a:
            consumer = subscribe(deployment, "A", topic, at_a)
            for message in [consumer.receive(60_000) for _ in range(10)][1:]:
                consumer.acknowledge(message)
            until(lambda: backlog(brokers["A"], topic, "work") == 1, "A counts them")
        report = deployment.report("failover", "--from", "A", "--to", "B", "--timeout", "3", status=1)
        assert report["outcome"] == "refused"
        assert "does not have every acknowledgement" in report["reason"], report["reason"]
        holding.close()
    until(lambda: not any(fences(deployment, "A")), lambda: deployment.apache("A"))
    publish(deployment, "A", topic, ["goes on"])


def test_the_fence_is_there_again_when_worker_and_broker_come_back(deployment: Beside) -> None:
    """The last one: a broker that was killed may take minutes to load new topics on a busy machine."""
    topic, brokers = next(_topics), deployment.brokers
    prepared(deployment, topic)
    deployment.kill("A")
    brokers["A"].kill()
    report = deployment.report("failover", "--from", "A", "--to", "B", "--unplanned")
    assert report["outcome"] == "done"
    assert not report["source_answers"]
    assert sorted(drain(brokers["B"], topic, "work", ConsumerType.Shared)) == sorted(bodies("m", range(1, 20, 2)))

    brokers["A"].start()
    deployment.start("A")
    fenced(deployment, "A", topic)
    until(lambda: backlog(brokers["A"], topic, "work") == 0, lambda: bridged(deployment, "A", topic))
    deployment.kill("A")
    deployment.start("A")
    fenced(deployment, "A", topic)
    with official(brokers["A"]) as client, pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
