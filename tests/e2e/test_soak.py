"""Half an hour at 100 MB/s through two clusters whose topics keep 2 GB: neither the disk nor the memory grows.

``SOAK_SECONDS`` and ``SOAK_MB_A_SECOND`` make it shorter or slower. There is a sample a second; of each tenth of the
time the largest counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from replicator.client import Client, ConsumerType, InitialPosition, Producer
from replicator.drills.ports import free_ports
from replicator.engine.log.segments.settings import SEGMENT_BYTES
from replicator.engine.upkeep.maintenance import LOOK_SHARE
from replicator.operating.processes import WorkerProcess, stop_left_postgres

SECONDS: Final = int(os.environ.get("SOAK_SECONDS", "1800"))
MB_A_SECOND: Final = float(os.environ.get("SOAK_MB_A_SECOND", "100"))
MESSAGE_BYTES: Final = 100_000
TOPIC: Final = "persistent://public/default/soak"
CLUSTERS: Final = ("us-east", "eu-west")
RETENTION_BYTES: Final = 2_000_000_000
SEGMENTS_BEYOND: Final = 4
"""The one that is written, one that is made ahead, and two that are kept to be used again."""
TABLE_BYTES: Final = 1_000_000_000
"""Room for ``data.mdb``: bodies of small groups lie in it, and it does not shrink when groups get larger."""
DISK_BYTES: Final = RETENTION_BYTES + RETENTION_BYTES // LOOK_SHARE + SEGMENTS_BEYOND * SEGMENT_BYTES + TABLE_BYTES
MEMORY_BYTES: Final = 400 * 1024 * 1024
SETTLED_SECONDS_MAX: Final = 120

pytestmark = [
    pytest.mark.skipif("SOAK" not in os.environ, reason="half an hour: make soak runs it"),
    pytest.mark.timeout(SECONDS + 600),
]


@dataclass(frozen=True, slots=True)
class Sample:
    """Measures of one worker."""

    disk_bytes: int
    anonymous_bytes: int


def sampled(data: Path, pid: int) -> Sample:
    disk = 0
    for file in (data / "log").rglob("*"):
        with suppress(FileNotFoundError):
            disk += file.stat().st_blocks * 512
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return Sample(disk, int(anonymous.split()[1]) * 1024)


def tenths(figures: Sequence[int]) -> list[int]:
    size = len(figures) // 10
    return [max(figures[at * size : (at + 1) * size]) for at in range(10)]


async def publish(producer: Producer, seconds: float) -> int:
    """Publish at an even rate; return how many messages were confirmed."""
    payload, began, sent = os.urandom(MESSAGE_BYTES), time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * MB_A_SECOND * 1_000_000 / MESSAGE_BYTES)
        for _ in range(due - sent):
            await producer.wait_for_room()
            producer.enqueue(payload)
        sent = max(sent, due)
        await asyncio.sleep(0.005)
    await producer.flush()
    return sent


async def messages(session: aiohttp.ClientSession, url: str) -> int:
    """Return how many messages of the topic the cluster has ever had."""
    async with session.get(f"{url}/admin/v2/persistent/public/default/soak/stats") as response:
        return int((await response.json())["msgInCounter"]) if response.status == 200 else 0


def test_disk_and_memory_stay_flat_at_the_rate_of_a_disk_with_retention(tmp_path: Path) -> None:
    async def main() -> None:
        ports = dict(zip(CLUSTERS, free_ports(2), strict=True))
        topology = tmp_path / "topology.yaml"
        policies = f"policies: {{retention: {{age: unlimited, size: {RETENTION_BYTES}B}}}}"
        rows = [f"  {name}: {{address: '127.0.0.1:{port}', data: {name}, {policies}}}" for name, port in ports.items()]
        topology.write_text(
            "\n".join(
                ["clusters:", *rows, "links: [{between: [us-east, eu-west]}]", "pipeline: {engine: embedded}", ""]
            )
        )
        workers = {
            name: WorkerProcess(name, f"127.0.0.1:{port}", topology, log_file=tmp_path / f"{name}.log")
            for name, port in ports.items()
        }
        samples: dict[str, list[Sample]] = {name: [] for name in CLUSTERS}
        received = 0
        try:
            for worker in workers.values():
                await worker.start()
            await asyncio.gather(*(worker.ready() for worker in workers.values()))
            pids = {name: worker.pid for name, worker in workers.items()}
            idle = {name: sampled(tmp_path / name, pid or 0).anonymous_bytes for name, pid in pids.items()}

            async def sample() -> None:
                while True:
                    for name, pid in pids.items():
                        samples[name].append(await asyncio.to_thread(sampled, tmp_path / name, pid or 0))
                    await asyncio.sleep(1)

            async with (
                Client(f"pulsar://127.0.0.1:{ports['us-east']}") as client,
                aiohttp.ClientSession() as session,
            ):
                consumer = await client.subscribe(
                    TOPIC,
                    "soak",
                    ConsumerType.Failover,
                    initial_position=InitialPosition.Earliest,
                    replicate_subscription_state_enabled=True,
                )
                producer = await client.create_producer(TOPIC, max_pending_messages=200)
                assert isinstance(producer, Producer)

                async def consume() -> None:
                    nonlocal received
                    while True:
                        some = await consumer.receive_many()
                        received += len(some)
                        await consumer.acknowledge_cumulative(some[-1])

                async with asyncio.TaskGroup() as tasks:
                    beside = [tasks.create_task(sample()), tasks.create_task(consume())]
                    confirmed = await publish(producer, SECONDS)
                    async with asyncio.timeout(SETTLED_SECONDS_MAX):
                        while received < confirmed:  # noqa: ASYNC110 - it is counted beside
                            await asyncio.sleep(0.1)
                        for port in ports.values():
                            while await messages(session, f"http://127.0.0.1:{port}") < confirmed:  # noqa: ASYNC110
                                await asyncio.sleep(0.1)
                    for task in beside:
                        task.cancel()
        finally:
            for name, worker in workers.items():
                if worker.running:
                    await worker.stop()
                stop_left_postgres(worker, tmp_path / name)
        assert received == confirmed
        for name in CLUSTERS:
            disk = tenths([each.disk_bytes for each in samples[name]])
            memory = tenths([each.anonymous_bytes - idle[name] for each in samples[name]])
            print(f"{name}: {confirmed * MESSAGE_BYTES / SECONDS / 1e6:.0f} MB/s; by tenths of the time,")
            print("  disk GB:", *(f"{each / 1e9:.2f}" for each in disk))
            print("  memory above idle MiB:", *(f"{each / 2**20:.0f}" for each in memory))
            assert max(disk) < DISK_BYTES
            assert max(memory) < MEMORY_BYTES
            if SECONDS * MB_A_SECOND * 1e6 > 10 * RETENTION_BYTES:  # else it is still filling
                assert max(memory[5:]) < 1.1 * max(memory[:5])
                assert max(disk[5:]) < 1.1 * max(disk[:5])

    asyncio.run(main())
