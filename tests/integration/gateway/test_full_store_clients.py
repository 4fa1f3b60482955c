"""The official client on a full store: its sends end in their time, however full its queue is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from served_worker import served_worker

pytest.importorskip("pulsar")

SENDING = """
import json, os, sys
import pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer("full", block_if_queue_full=True, max_pending_messages=5, batching_enabled=False,
                                  send_timeout_millis=1_500)
results = {}
def answered(result, message_id):
    results[str(result)] = results.get(str(result), 0) + 1
for _ in range(60):
    producer.send_async(os.urandom(50_000), answered)
    if results.get("Result.Timeout", 0) >= 5:
        break
print(json.dumps(results), flush=True)
os._exit(0)  # the library may crash when it ends with messages on their way
"""
"""A queue of 5 messages, and messages of 3 MB together for a store of 2 MB."""


def test_a_send_that_waits_for_room_in_the_clients_queue_ends_although_the_store_is_full() -> None:
    with served_worker(sections={"store": {"size_max": "2MiB", "segment": 0}}) as worker:
        done = subprocess.run(
            [sys.executable, "-c", SENDING, worker.pulsar_url], capture_output=True, text=True, timeout=30, check=True
        )
        results = json.loads(done.stdout.splitlines()[-1])
        assert results["Result.Ok"] > 1
        assert results["Result.Timeout"] >= 5
