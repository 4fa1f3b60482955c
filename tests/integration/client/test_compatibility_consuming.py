"""Cases of consumers that users of the ecosystem know, where no other test has them: see docs/compatibility.md."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from client_support import running_worker

from replicator.client import Client, ConsumerType, InitialPosition, KeySharedMode, OperationNotSupported
from replicator.client.errors import InvalidConfiguration
from replicator.client.settings import ConsumerKeySharedPolicy

DEADLINE_SECONDS = 30
TOPIC = "orders"
KEY_SHARED = ConsumerType.KeyShared


async def publish(client: Client, count: int, keys: int = 5) -> None:
    async with await client.create_producer(TOPIC, batching_enabled=False) as producer:
        await asyncio.gather(*(producer.send(b"%d" % n, partition_key=f"k{n % keys}") for n in range(count)))


def test_with_a_queue_of_one_every_key_comes_in_order_to_its_consumer(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            running_worker(tmp_path / "engine") as worker,
            Client(worker.url) as client,
        ):
            consumers = [
                await client.subscribe(
                    TOPIC, "s", KEY_SHARED, receiver_queue_size=1, initial_position=InitialPosition.Earliest
                )
                for _ in range(3)
            ]
            await publish(client, 100)
            got: dict[str, list[int]] = defaultdict(list)
            owners: dict[str, set[int]] = defaultdict(set)
            done = asyncio.Event()

            async def consume(number: int) -> None:
                async for message in consumers[number]:
                    got[message.partition_key()].append(int(message.data()))
                    owners[message.partition_key()].add(number)
                    await consumers[number].acknowledge(message)
                    if sum(map(len, got.values())) == 100:
                        done.set()

            tasks = [asyncio.create_task(consume(number)) for number in range(3)]
            await done.wait()
            for consumer in consumers:
                await consumer.close()
            await asyncio.gather(*tasks)
            assert got == {f"k{n}": list(range(n, 100, 5)) for n in range(5)}
            assert all(len(owner) == 1 for owner in owners.values())

    asyncio.run(main())


def test_acknowledgements_that_wait_for_their_group_are_sent_when_the_consumer_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            running_worker(tmp_path / "engine") as worker,
            Client(worker.url) as client,
        ):
            await publish(client, 4)
            consumer = await client.subscribe(
                TOPIC, "s", initial_position=InitialPosition.Earliest, acknowledgement_group_time_ms=3_600_000
            )
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(timeout_millis=5_000))
            await consumer.close()
            again = await client.subscribe(TOPIC, "s")
            assert (await again.receive(timeout_millis=5_000)).data() == b"3"

    asyncio.run(main())


def test_what_is_not_built_yet_is_refused_by_name_before_anything_is_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with Client(f"embedded:{tmp_path / 'engine'}") as client:
            with pytest.raises(OperationNotSupported, match="enable_retry"):
                await client.subscribe("f.*", "s", ConsumerType.Shared, is_pattern_topic=True, enable_retry=True)
            with pytest.raises(TypeError, match="transaction"):
                await client.subscribe(TOPIC, "s", transaction=object())
            with pytest.raises(InvalidConfiguration, match="consumer_type"):
                await client.subscribe(TOPIC, "s", "Shared")  # type: ignore[arg-type]
            with pytest.raises(InvalidConfiguration, match="sticky range"):
                ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 65_536)])

    asyncio.run(main())
