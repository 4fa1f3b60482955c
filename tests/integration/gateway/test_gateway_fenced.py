"""Answers of a fenced cluster to official clients: invariant 1, and where they belong.

The fence is set as a failover sets it; :mod:`test_failover_official_clients` has real failovers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine, linked_engines

from replicator.engine.errors import ClusterFenced, EngineError, Redirect, TooBusy
from replicator.engine.fencing import disconnect_consumers, disconnect_producers
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandProducer,
    CommandSubscribe,
    ServerError,
)

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
LookupType = CommandLookupTopicResponse.LookupType


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedEngine]]:
    with linked_engines(tmp_path_factory.mktemp("clusters"), "A", "B") as served:
        yield served


@pytest.fixture
def fence(clusters: Mapping[str, ServedEngine]) -> Iterator[Any]:
    """Fences A, for producers and consumers or for producers alone; ends with the test."""
    served = clusters["A"]

    def put(error: EngineError | None, *, keep_consumers: bool = False) -> None:
        def act() -> None:
            consumers = None if keep_consumers else error
            served.engine.admission.fence(error, consumers)
            if error is not None:
                disconnect_producers(served.engine.topics(), error)
            if consumers is not None:
                disconnect_consumers(served.engine.topics(), consumers)

        served.ask(act)

    yield put
    put(None)


def let_go(served: ServedEngine, error: EngineError) -> None:
    """Disconnect all producers and consumers, as a failback does at the cluster that served."""
    disconnect_producers(served.engine.topics(), error)
    disconnect_consumers(served.engine.topics(), error)


def lookup(port: int, topic: str) -> CommandLookupTopicResponse:
    def asked(request_id: int) -> BaseCommand:
        wanted = CommandLookupTopic(topic=topic, request_id=request_id)
        return BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=wanted)

    with BareClient(port) as client:
        found: CommandLookupTopicResponse = client.request(asked)
        return found


def test_a_client_is_sent_to_the_cluster_that_serves_and_finds_back(
    clusters: Mapping[str, ServedEngine], fence: Any, topic: str
) -> None:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(clusters["A"].url, operation_timeout_seconds=10, logger=logger)
    try:
        producer = client.create_producer(topic, send_timeout_millis=0)
        consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)

        def goes_on(number: int, name: str) -> None:
            producer.send(b"%d" % number)
            found = clusters[name].engine.find(topic)
            assert found is not None
            assert found.producers.connected == 1
            while consumer.receive(WAIT_MS).data() != b"%d" % number:
                pass

        goes_on(0, "A")
        fence(ClusterFenced("A is being switched to B"))  # nobody is told where to go yet
        fence(ClusterFenced("B serves", Redirect(clusters["B"].url)))
        goes_on(1, "B")
        fence(None)
        clusters["B"].ask(partial(let_go, clusters["B"], ClusterFenced("B is being switched to A")))
        goes_on(2, "A")
    finally:
        client.close()


@pytest.mark.parametrize("reason", [ClusterFenced("being switched"), TooBusy("starting")])
def test_while_it_is_not_settled_who_serves_clients_are_to_try_again(
    clusters: Mapping[str, ServedEngine], fence: Any, topic: str, reason: EngineError
) -> None:
    fence(reason)
    answer = lookup(clusters["A"].port, topic)
    assert (answer.response, answer.error) == (LookupType.Failed, ServerError.ServiceNotReady)


def test_lookups_are_answered_as_ever_where_consumers_stay_and_producers_hear_where_to_go(
    clusters: Mapping[str, ServedEngine], fence: Any, topic: str
) -> None:
    with BareClient(clusters["A"].port) as bare:

        def asked(request_id: int) -> BaseCommand:
            wanted = CommandProducer(topic=topic, producer_id=1, request_id=request_id)
            return BaseCommand(type=BaseCommand.PRODUCER, producer=wanted)

        bare.request(asked)
        fence(ClusterFenced("B serves", Redirect(clusters["B"].url)), keep_consumers=True)
        closing = bare.next(BaseCommand.CLOSE_PRODUCER).command.close_producer
        assert closing.assignedBrokerServiceUrl == clusters["B"].url
    answer = lookup(clusters["A"].port, topic)
    assert (answer.response, answer.brokerServiceUrl) == (LookupType.Connect, clusters["A"].url)


def test_clients_that_use_tls_are_sent_where_that_is_served(
    clusters: Mapping[str, ServedEngine], fence: Any, topic: str
) -> None:
    """The lookup sends them there, and so does the closing of a producer or a consumer."""
    moved_to = Redirect(clusters["B"].url, "pulsar+ssl://b.example:6651")
    with BareClient(clusters["A"].port) as bare:
        bare.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic=topic, producer_id=1, request_id=number)
            )
        )
        bare.request(
            lambda number: BaseCommand(
                type=BaseCommand.SUBSCRIBE,
                subscribe=CommandSubscribe(
                    topic=topic, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=number
                ),
            )
        )
        fence(ClusterFenced("B serves", moved_to))
        producer = bare.next(BaseCommand.CLOSE_PRODUCER).command.close_producer
        consumer = bare.next(BaseCommand.CLOSE_CONSUMER).command.close_consumer
    answer = lookup(clusters["A"].port, topic)
    assert answer.response == LookupType.Redirect
    assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == (moved_to.url, moved_to.tls_url)
    for closing in (producer, consumer):
        assert closing.assignedBrokerServiceUrl == moved_to.url
        assert closing.assignedBrokerServiceUrlTls == moved_to.tls_url
