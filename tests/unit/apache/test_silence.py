"""The bridge notices that brokers have entries and send none of them, and subscribes anew."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from admin_support import administered
from answering_admin import asked
from asynchronous import asynchronous
from engine_support import eventually, message, opened
from gateway_support import serving_clients

from replicator.apache import arrivals
from replicator.apache.arrivals import SILENCE_SECONDS, SILENCE_SECONDS_MAX, StallDetector
from replicator.apache.flow_control import read_budget
from replicator.apache.publish_budget import publish_budget
from replicator.apache.shown import TopicInternals
from replicator.apache.topic_bridge import TopicBridge
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.consumer_channel import BrokerConsumerChannel
from replicator.engine.topic import Topic
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position

TOPIC: Final = "persistent://public/default/t"
READ, PASSED, LAST = Position(3, 9), Position(3, 8), Position(3, 20)


@asynccontextmanager
async def bridging(path: Path) -> AsyncIterator[tuple[Topic, TopicBridge]]:
    """Yield the bridge, not started, of a topic of three messages at a gateway in the place of brokers."""
    async with (
        administered(path / "brokers") as brokers,
        serving_clients(brokers.engine) as served,
        opened(path / "a", "a") as engine,
        asked(brokers.url) as admin,
    ):
        there = await brokers.engine.topic(TOPIC)
        await there.writing.publish([message()] * 3)
        topic = await engine.topic(TOPIC, by_link=True)
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        settings = ApacheSettings(service_url=served.url, admin_url=brokers.url)
        rooms = publish_budget(), read_budget()
        yield topic, TopicBridge(settings, connector, admin, engine, topic, "a.pulsar", *rooms, engine.supervisor, None)
        await connector.close()


@asynchronous
async def test_a_bridge_subscribes_anew_where_a_broker_has_forgotten_its_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker never hears how many messages the first consumer wants, and so it sends none."""
    monkeypatch.setattr(arrivals, "SILENCE_SECONDS", 0.2)
    heard = BrokerConsumerChannel._flow
    consumers: list[BrokerConsumerChannel] = []

    def flow(consumer: BrokerConsumerChannel, permits: int) -> None:
        if consumer not in consumers:
            consumers.append(consumer)
        if consumer is not consumers[0]:
            heard(consumer, permits)

    monkeypatch.setattr(BrokerConsumerChannel, "_flow", flow)
    async with bridging(tmp_path) as (_, bridge):
        bridge.start()
        await eventually(lambda: bridge.status()["messages_read"] == 3)
        assert len(consumers) == 2
        await bridge.stop()


@asynchronous
async def test_nobody_waits_for_a_comparison_of_a_bridge_that_has_ended(tmp_path: Path) -> None:
    """A planned switch would wait its whole time if a topic is deleted or renewed meanwhile, and then refuse."""
    async with bridging(tmp_path) as (_, bridge):  # not started, so it compares nothing
        waiting = asyncio.ensure_future(bridge.compared())
        await asyncio.sleep(0)
        await bridge.stop()
        async with asyncio.timeout(10):
            await waiting
            await bridge.compared()


def test_the_bridge_subscribes_anew_where_nothing_comes_and_ever_more_seldom() -> None:
    silence = StallDetector()
    over = [now for now in range(3_600) if silence.is_over(READ, PASSED, LAST, float(now))]
    assert over[0] == SILENCE_SECONDS
    pauses = [later - before for before, later in itertools.pairwise(over)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 2 * SILENCE_SECONDS
    assert pauses[-1] == SILENCE_SECONDS_MAX
    assert len(over) < 12


def test_brokers_that_send_something_from_time_to_time_are_not_silent() -> None:
    silence = StallDetector()
    for now in range(100):
        read = Position(3, now // 4)
        assert not silence.is_over(read, PASSED, Position(3, 1_000), float(now))


def test_brokers_are_not_silent_where_all_was_read_or_nobody_gets_the_rest() -> None:
    silence = StallDetector()
    for now in range(100):
        assert not silence.is_over(LAST, PASSED, LAST, float(now))
        assert not silence.is_over(READ, LAST, LAST, float(now))
        assert not silence.is_over(BEFORE_ALL, BEFORE_ALL, BEFORE_ALL, float(now))


def test_the_last_entry_that_is_there_is_not_in_a_new_ledger_and_not_in_a_deleted_one() -> None:
    def internals(last_entries: dict[int, int], *ledgers: int) -> TopicInternals:
        last = max(Position(*each) for each in last_entries.items())
        return TopicInternals(last, 0, "load", {}, last_entries, frozenset(ledgers))

    assert internals({3: 20, 7: -1}, 3, 7).last_there == LAST
    assert internals({3: 20, 7: -1}, 7).last_there == BEFORE_ALL
    assert internals({3: 20, 7: 4}, 3, 7).last_there == Position(7, 4)
