"""A topic of which all is consumed and trimmed ends with markers alone; clients that ask for its end get an answer."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_support import TOPIC, eventually
from gateway_support import entered, running_loop
from worker_pair import pair

from replicator.worker.worker import Worker

pulsar = pytest.importorskip("pulsar")

START_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 10


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not below pytest's own: as root, the embedded server runs as another user, who may not enter that."""
    made = Path(tempfile.mkdtemp(prefix="pg-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


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
    with running_loop() as loop, entered(loop, pair(directory), seconds=START_SECONDS_MAX) as both:
        address = both.topology.cluster("us-east").address
        client = pulsar.Client(
            f"pulsar://{address}",
            operation_timeout_seconds=ANSWER_SECONDS_MAX,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

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
        client.close()
