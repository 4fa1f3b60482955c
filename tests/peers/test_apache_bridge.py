"""Workers beside real Apache Pulsar brokers (``kind: pulsar``): messages and the state of subscriptions travel between
clusters whose clients know nothing but their brokers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from peers.apache_support import Beside, backlog, beside, bodies, brokers_of, drain, official, read_all, until
from pulsar import ConsumerType, InitialPosition

BOTH_WAYS: Final = "[{between: [A, B]}]"
_topics = (f"persistent://public/default/bridged-{number}" for number in count())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two brokers, a worker beside each, linked both ways."""
    path = tmp_path_factory.mktemp("pair")
    with brokers_of(path, "A", "B") as brokers, beside(path, "AB", brokers, BOTH_WAYS) as made:
        yield made


def publish(made: Beside, cluster: str, topic: str, messages: list[str], *, batched: bool = False) -> None:
    with official(made.brokers[cluster]) as client:
        producer = client.create_producer(topic, batching_enabled=batched, block_if_queue_full=True)
        for body in messages:
            producer.send_async(body.encode(), lambda *_: None)
        producer.flush()


def test_messages_published_at_one_broker_appear_once_and_in_order_at_the_other(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(300)))
    publish(pair, "A", topic, bodies("b", range(300)), batched=True)
    assert read_all(pair.brokers["B"], topic, 600) == bodies("a", range(300)) + bodies("b", range(300)), pair.log("A")
    assert read_all(pair.brokers["A"], topic, 600) == bodies("a", range(300)) + bodies("b", range(300))


def test_acknowledgements_out_of_order_at_one_broker_are_exact_at_the_other(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("m", range(60)))
        got = [consumer.receive(60_000) for _ in range(60)]
        left = {3, 4, 17, 30, 59}
        for number, message in enumerate(got):
            if number not in left:
                consumer.acknowledge(message)
        until(lambda: backlog(pair.brokers["A"], topic, "work") == 5, "the broker of A counts them")
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 5, lambda: (pair.apache("A"), pair.apache("B")))
    # Invariants 5 and 6: exactly these are left, in order.
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == bodies("m", sorted(left))
    # What was acknowledged at B comes back to A.
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: (pair.apache("A"), pair.apache("B")))


def test_cumulative_acknowledgements_and_both_directions(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "fail", ConsumerType.Failover, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("a", range(40)))
        until(lambda: backlog(pair.brokers["B"], topic, "fail") == 40, lambda: (pair.apache("A"), pair.apache("B")))
        publish(pair, "B", topic, bodies("b", range(40)))  # the same topic of both clusters
        got = [consumer.receive(60_000) for _ in range(80)]
        assert [message.data().decode() for message in got] == bodies("a", range(40)) + bodies("b", range(40))
        consumer.acknowledge_cumulative(got[54])
    until(lambda: backlog(pair.brokers["B"], topic, "fail") == 25, lambda: (pair.apache("A"), pair.apache("B")))
    assert drain(pair.brokers["B"], topic, "fail", ConsumerType.Failover) == bodies("b", range(15, 40))
