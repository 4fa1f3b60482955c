"""Official clients that are connected when another cluster's earlier start arrives (DESIGN 4.7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pulsar
import pytest
from backup_support import Mesh
from failover_support import TOPIC, deployment
from official_client import official_client, received
from postgres_support import databases_of

SILENCE_MILLIS = 500
"""Time without a message after which the test takes it that none comes."""
_topics = (f"{TOPIC}-{number}" for number in count())


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "starts_official") as databases,
        deployment(
            tmp_path_factory.mktemp("clusters"), "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Mesh
        ) as made,
    ):
        yield made


@pytest.fixture
def clients(deployed: Mesh) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(official_client(deployed.client_url(name))) for name in "AB"}


def subscribed(client: Any, topic: str, kind: str, start: str) -> Any:
    return client.subscribe(
        topic,
        "sub",
        getattr(pulsar.ConsumerType, kind),
        initial_position=getattr(pulsar.InitialPosition, start),
        replicate_subscription_state_enabled=True,
    )


def consumer_of(deployed: Mesh, topic: str) -> Any:
    """Return cluster A's statistics of its one consumer."""
    stats = deployed.get("A", f"/admin/v2/{topic.replace('://', '/')}/stats")
    (shown,) = stats["subscriptions"]["sub"]["consumers"]
    return shown


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_invariant_5_a_connected_official_consumer_gets_what_an_earlier_start_opens_and_nothing_acknowledged(
    deployed: Mesh, clients: dict[str, Any], kind: str
) -> None:
    topic = next(_topics)
    producer = clients["A"].create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    deployed.until(lambda: deployed.messages("B", topic) == 10, "the copies")
    for source, destination in ("AB", "BA"):
        deployed.pause(source, destination)
    consumer = subscribed(clients["A"], topic, kind, "Latest")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SILENCE_MILLIS)
    connected = consumer_of(deployed, topic)
    there = subscribed(clients["B"], topic, kind, "Earliest")
    assert received(there, 3) == [0, 1, 2]
    deployed.until(lambda: deployed.left("B", "sub", topic) == 7, "B counts them")
    there.close()
    for source, destination in ("AB", "BA"):
        deployed.run_links("resume", source, destination)

    assert received(consumer, 7) == list(range(3, 10))
    deployed.until(lambda: deployed.left("B", "sub", topic) == 0 == deployed.left("A", "sub", topic), "all consumed")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SILENCE_MILLIS)
    assert consumer.is_connected()
    for each in ("address", "connectedSince", "consumerName"):
        assert consumer_of(deployed, topic)[each] == connected[each]
