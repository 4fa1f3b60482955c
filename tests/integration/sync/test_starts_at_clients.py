"""An official client is connected while the start of its subscription moves back (DESIGN 4.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest
from engine_support import TOPIC
from gateway_support import ServedEngine, served_engine
from official_client import official_client

from replicator.engine.subscriptions.subscription import Subscription
from snapshots.position import BEFORE_ALL
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST

RECEIVE_MILLIS = 10_000
NOTHING_MORE_MILLIS = 1_000


def subscribed(client: Any, kind: str) -> Any:
    return client.subscribe(TOPIC, "sub", consumer_type=getattr(pulsar.ConsumerType, kind))


def acknowledged(consumer: Any, expected: int) -> list[int]:
    """Receive messages and acknowledge each cumulatively; return their numbers."""
    found: list[int] = []
    while True:
        try:
            got = consumer.receive(RECEIVE_MILLIS if len(found) < expected else NOTHING_MORE_MILLIS)
        except pulsar.Timeout:
            return found
        found.append(int(got.data()))
        consumer.acknowledge_cumulative(got)


def subscription_of(served: ServedEngine) -> Subscription:
    topic = served.engine.find(TOPIC)
    assert topic is not None
    return topic.subscriptions["sub"]


def start_at_the_first(served: ServedEngine) -> None:
    """Do what the sync does when another cluster has made the subscription from the earliest message on."""

    def move() -> None:
        subscription = subscription_of(served)
        starts = subscription.cursor.state.starts
        before = PositionSet()
        for run in subscription.topic.log.runs_between(BEFORE_ALL, starts["solo"].position):
            before.add_range(*run)
        subscription.merging.start(dict.fromkeys(starts, FROM_THE_FIRST), before, None)

    served.ask(move)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("acknowledging", [True, False])
def test_messages_that_a_client_drops_are_not_covered_by_its_cumulative_acknowledgements(
    tmp_path: Path, kind: str, acknowledging: bool
) -> None:
    """It drops what came back if it acknowledged later ones, also while that happens. Another client gets that."""
    with served_engine(tmp_path) as served, official_client(f"pulsar://127.0.0.1:{served.port}") as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(5):
            producer.send(b"%d" % number)
        consumer = subscribed(client, kind)
        for number in range(5, 10):
            producer.send(b"%d" % number)
        got = acknowledged(consumer, 5) if acknowledging else []
        left = 5 - len(got)
        served.until(lambda: subscription_of(served).cursor.backlog_entries() == left, "they are acknowledged")
        start_at_the_first(served)
        for number in range(10, 13):
            producer.send(b"%d" % number)
        got += acknowledged(consumer, 3)
        consumer.close()
        with official_client(f"pulsar://127.0.0.1:{served.port}") as other:
            consumer = subscribed(other, kind)
            got += acknowledged(consumer, served.ask(lambda: subscription_of(served).cursor.backlog_entries()))
            served.until(lambda: subscription_of(served).cursor.backlog_entries() == 0, "nothing is left")
        assert set(got) == set(range(13))
