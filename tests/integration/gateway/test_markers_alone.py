"""Clients that ask for the end of a topic get an answer when all its messages are trimmed and markers are left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from engine_support import TOPIC, eventually
from gateway_support import entered, running_loop
from official_client import official_client
from postgres_support import traversable_directory
from worker_pair import pair

from replicator.worker.worker import Worker

START_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 10


@pytest.fixture
def directory() -> Iterator[Path]:
    with traversable_directory() as made:
        yield made


async def asked(address: str, method: str, path: str, body: Any = None) -> Any:
    wait = aiohttp.ClientTimeout(ANSWER_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(timeout=wait) as session,
        session.request(method, f"http://{address}/admin/v2/{path}", json=body) as answer,
    ):
        assert answer.status < 300, await answer.text()
        return await answer.json() if answer.status == 200 else None


async def trimmed_to_markers(worker: Worker) -> None:
    """Run passes of upkeep until the first that finds all of the topic consumed here and copied there."""
    engine = worker.parts.engine
    topic = engine.find(TOPIC)
    assert topic is not None
    log = topic.log

    async with asyncio.timeout(START_SECONDS_MAX):
        while log.first is None or log.first not in log.markers or log.entries != len(log.markers):
            await engine.maintenance.run_once()
            await asyncio.sleep(0.02)
    await eventually(lambda: topic.subscriptions["sub"].cursor.mark_delete == log.last, "all is consumed")


def test_a_topic_with_markers_alone_left_answers_readers_table_views_and_tools(directory: Path) -> None:
    with ExitStack() as stack:
        loop = stack.enter_context(running_loop())
        both = stack.enter_context(entered(loop, pair(directory), seconds=START_SECONDS_MAX))
        address = both.topology.cluster("us-east").address
        client = stack.enter_context(official_client(f"pulsar://{address}", seconds=ANSWER_SECONDS_MAX))

        def on_loop(call: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(call, loop).result(START_SECONDS_MAX)

        on_loop(
            asked(
                address,
                "POST",
                "namespaces/public/default/retention",
                {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
            )
        )
        consumer = client.subscribe(TOPIC, "sub", replicate_subscription_state_enabled=True)
        producer = client.create_producer(TOPIC)
        for number in range(3):
            producer.send(b"%d" % number)
        for _ in range(3):
            consumer.acknowledge(consumer.receive(ANSWER_SECONDS_MAX * 1000))
        on_loop(trimmed_to_markers(both.workers["us-east"]))

        last = on_loop(asked(address, "GET", "persistent/public/default/orders/lastMessageId"))
        assert (last["ledgerId"], last["entryId"]) == (-1, -1)
        for start in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
            reader = client.create_reader(TOPIC, start)
            assert not reader.has_message_available()
            reader.close()
        assert len(client.create_table_view(TOPIC)) == 0
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        producer.send(b"next", partition_key="k")
        assert reader.has_message_available()
        assert reader.read_next(ANSWER_SECONDS_MAX * 1000).data() == b"next"
