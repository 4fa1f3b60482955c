"""The official client on a full store: its sends end in their time, however full its queue is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import serving_clients
from served_worker import served_worker
from small_disk import Disk, small_disk

pytest.importorskip("pulsar")

SENDING = """
import json, os, sys
import pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer("full", block_if_queue_full=True, max_pending_messages=5, batching_enabled=False,
                                  send_timeout_millis=1_500)
print("made", flush=True)
sys.stdin.readline()
results = {}
def answered(result, message_id):
    results[str(result)] = results.get(str(result), 0) + 1
for _ in range(60):
    producer.send_async(os.urandom(50_000), answered)
    if results.get("Result.Timeout", 0) >= 5:
        break
else:
    producer.flush()
print(json.dumps(results), flush=True)
os._exit(0)  # the library may crash when it ends with messages on their way
"""
"""A queue of 5 messages, and messages of 3 MB together for a store of 2 MB."""


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with small_disk(request.param, tmp_path) as mounted:
        yield mounted


def sent(url: str, before_it_sends: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Return how many messages of a client ended in which way. It has its producer when ``before_it_sends`` is
    called.
    """
    with subprocess.Popen(
        [sys.executable, "-c", SENDING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "made\n"
        before_it_sends()
        said, _ = client.communicate("go\n", timeout=60)
    found: dict[str, int] = json.loads(said.splitlines()[-1])
    return found


def test_a_send_that_waits_for_room_in_the_clients_queue_ends_although_the_store_is_full() -> None:
    with served_worker(sections={"store": {"size_max": "2MiB", "segment": 0}}) as worker:
        results = sent(worker.pulsar_url)
        assert results["Result.Ok"] > 1
        assert results["Result.Timeout"] >= 5


@asynchronous
async def test_a_send_ends_although_the_disk_is_full_and_goes_on_when_there_is_room(disk: Disk) -> None:
    async with opened(disk.path / "data") as engine, serving_clients(engine) as served:
        assert (await asyncio.to_thread(sent, served.url))["Result.Ok"] == 60
        results = await asyncio.to_thread(sent, served.url, disk.fill)
        assert results["Result.Timeout"] >= 5
        assert results.get("Result.Ok", 0) < 60
        disk.make_room()
        assert (await asyncio.to_thread(sent, served.url))["Result.Ok"] == 60
