"""Workers beside real Apache Pulsar brokers (``kind: pulsar``): messages and the state of subscriptions travel between
clusters whose clients know nothing but their brokers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from peers.apache_support import Beside, beside, bodies, brokers_of, official, read_all

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
