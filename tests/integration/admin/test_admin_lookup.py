"""Official clients whose service URL is ``http://host:port``: lookup and partitions over HTTP, messages over the binary
protocol on the same port. And what lookups answer where a cluster is advertised elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_worker import ServedWorker, served_worker

pulsar = pytest.importorskip("pulsar")


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker() as served:
        yield served


def client_of(worker: ServedWorker) -> pulsar.Client:
    return pulsar.Client(worker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def test_a_client_with_an_http_service_url_produces_and_consumes(worker: ServedWorker) -> None:
    client = client_of(worker)
    producer = client.create_producer("persistent://public/default/one")
    consumer = client.subscribe("one", "jobs", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(10):
        producer.send(b"%d" % number)
    got = [consumer.receive(5_000) for _ in range(10)]
    assert [each.data() for each in got] == [b"%d" % number for number in range(10)]
    for each in got:
        consumer.acknowledge(each)
    client.close()


def test_partitions_are_asked_for_over_http(worker: ServedWorker) -> None:
    assert worker.ask("PUT", "persistent/public/default/many/partitions", "3").status == 204
    client = client_of(worker)
    assert len(client.get_topic_partitions("many")) == 3
    consumer = client.subscribe("many", "jobs")
    producer = client.create_producer("many")
    for number in range(12):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    got = {consumer.receive(5_000).data() for _ in range(12)}
    assert got == {b"%d" % number for number in range(12)}
    client.close()


def test_a_topic_that_its_use_makes_has_the_partitions_of_its_namespace(worker: ServedWorker) -> None:
    worker.ask("PUT", "namespaces/public/parted")
    body = '{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 2}'
    assert worker.ask("POST", "namespaces/public/parted/autoTopicCreation", body).status == 204
    client = client_of(worker)
    client.create_producer("persistent://public/parted/new")
    assert worker.ask("GET", "persistent/public/parted/partitioned").json == ["persistent://public/parted/new"]
    client.close()


def test_a_topic_that_is_not_made_by_its_use_is_not_found(worker: ServedWorker) -> None:
    worker.ask("PUT", "namespaces/public/strict")
    assert (
        worker.ask("POST", "namespaces/public/strict/autoTopicCreation", '{"allowAutoTopicCreation": false}').status
        == 204
    )
    client = client_of(worker)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/strict/none")
    assert worker.ask("GET", "persistent/public/strict").json == []
    client.close()


def test_a_pattern_is_matched_over_the_topics_that_http_lists(worker: ServedWorker) -> None:
    import re

    worker.ask("PUT", "persistent/public/listed/orders-1")
    worker.ask("PUT", "persistent/public/listed/orders-2")
    worker.ask("PUT", "persistent/public/listed/other")
    client = client_of(worker)
    consumer = client.subscribe(re.compile("persistent://public/listed/orders-.*"), "jobs")
    for name in ("orders-1", "orders-2", "other"):
        client.create_producer(f"persistent://public/listed/{name}").send(name.encode())
    assert {consumer.receive(5_000).data() for _ in range(2)} == {b"orders-1", b"orders-2"}
    client.close()


def test_lookups_answer_what_is_advertised() -> None:
    with served_worker(more=", advertised: 'outside.example:7000'") as worker:
        answer = worker.ask("GET", "/lookup/v2/topic/persistent/public/default/t").json
        assert answer == {
            "brokerUrl": "pulsar://outside.example:7000",
            "httpUrl": "http://outside.example:7000",
            "nativeUrl": "pulsar://outside.example:7000",
            "brokerUrlSsl": "",
        }
        assert worker.ask("GET", "clusters/us-east").json["serviceUrl"] == "http://outside.example:7000"
        assert worker.ask("GET", "brokers").json == ["outside.example:7000"]
