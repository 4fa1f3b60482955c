"""Everything that a producer can do, against a real engine: in process, and through the sockets of a real server."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from channel_support import served
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from engine_support import CuttingProxy, eventually

from replicator.client import Client, CompressionType, ConsumerType, InitialPosition, Message
from replicator.client.errors import DecryptionFailed, ProducerBusy, ProducerFenced, SchemaError, Timeout
from replicator.client.message import ChunkMessageId
from replicator.client.producing.encryption import ConsumerCryptoFailureAction, CryptoKeyReader
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.schema import JsonSchema, StringSchema
from replicator.client.settings import BatchingType, ProducerAccessMode
from replicator.engine.engine import Engine
from replicator.engine.policies import BacklogQuota, TopicPolicies
from replicator.gateway.connection import HELD_BYTES_MAX

TOPIC = "persistent://public/default/produced"
DEADLINE_SECONDS = 30

Scenario = Callable[[Client], Awaitable[None]]
Preparation = Callable[[Engine], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture(params=["embedded", "socket"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario with a client of either transport, after a preparation of the engine."""

    async def main(scenario: Scenario, preparation: Preparation | None) -> None:
        path = tmp_path / "engine"
        async with asyncio.timeout(DEADLINE_SECONDS):
            engine = await Engine.open(path, cluster="us-east")
            try:
                if preparation is not None:
                    await preparation(engine)
                if request.param == "socket":
                    async with served(engine) as url, Client(url) as client:
                        await scenario(client)
            finally:
                await engine.close()
            if request.param == "embedded":
                async with Client(f"embedded:{path}", cluster="us-east") as client:
                    await scenario(client)

    return lambda scenario, preparation=None: asyncio.run(main(scenario, preparation))


async def deduplicating(engine: Engine) -> None:
    topic = await engine.topic(TOPIC)
    await topic.policies.set(TopicPolicies(deduplication=True))


async def received(client: Client, count: int, **arguments: Any) -> list[Message]:
    """Return the messages that a new subscription gets from the beginning on."""
    arguments.setdefault("topic", TOPIC)
    consumer = await client.subscribe(
        subscription_name=arguments.pop("subscription_name", "reading"),
        initial_position=InitialPosition.Earliest,
        **arguments,
    )
    messages = [await consumer.receive(timeout_millis=10_000) for _ in range(count)]
    await consumer.close()
    return messages


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("batching_enabled", [True, False])
def test_what_is_compressed_arrives_as_it_was_sent(
    run: Run, compression: CompressionType, batching_enabled: bool
) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer(TOPIC, compression_type=compression, batching_enabled=batching_enabled)
        contents = [b"reading %d of a sensor; " % n * 20 for n in range(50)] + [b"", random.Random(5).randbytes(500)]
        sent = await producer.send_many(contents)
        got = await received(client, len(contents))
        assert [message.data() for message in got] == contents
        assert [message.message_id() for message in got] == sent

    run(scenario)


@pytest.mark.parametrize("batching_type", list(BatchingType))
def test_with_key_shared_batches_by_key_go_to_the_consumer_of_their_key_in_order(
    run: Run, batching_type: BatchingType
) -> None:
    """With default batching a batch of many keys counts as one without a key: it arrives whole, at one consumer."""
    keys = [None, *(f"k{n}" for n in range(10))]

    async def scenario(client: Client) -> None:
        consumers = [await client.subscribe(TOPIC, "shared", ConsumerType.KeyShared) for _ in range(3)]
        producer = await client.create_producer(TOPIC, batching_type=batching_type, batching_max_messages=64)
        expected: dict[str, list[bytes]] = defaultdict(list)
        confirmations = []
        for n in range(400):
            key = keys[n * 7 % len(keys)]
            expected[key or ""].append(b"%d" % n)
            confirmations.append(producer.enqueue(b"%d" % n, partition_key=key))
        await producer.flush()
        assert len({await confirmation for confirmation in confirmations}) == 400, "each message has its own id"

        got: list[tuple[int, Message]] = []

        async def consume(index: int) -> None:
            while len(got) < 400:
                try:
                    message = await consumers[index].receive(timeout_millis=200)
                except Timeout:
                    continue
                got.append((index, message))
                await consumers[index].acknowledge(message)

        await asyncio.gather(*(consume(index) for index in range(3)))
        by_key: dict[str, list[bytes]] = defaultdict(list)
        owners: dict[str, set[int]] = defaultdict(set)
        for index, message in got:
            by_key[message.partition_key()].append(message.data())
            owners[message.partition_key()].add(index)
        assert by_key == expected
        if batching_type is BatchingType.KeyBased:
            assert all(len(owner) == 1 for owner in owners.values())
            assert len(set().union(*owners.values())) > 1, "the keys are spread"

    run(scenario)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_a_message_over_the_limit_arrives_whole_and_is_consumed_as_one(run: Run, compression: CompressionType) -> None:
    content = random.Random(7).randbytes(11 * 1024 * 1024)

    async def scenario(client: Client) -> None:
        producer = await client.create_producer(
            TOPIC, compression_type=compression, batching_enabled=False, chunking_enabled=True
        )
        consumer = await client.subscribe(TOPIC, "chunks")
        sent = await producer.send(content, {"p": "1"}, "key")
        await producer.send(b"small")
        assert isinstance(sent, ChunkMessageId)
        assert len(sent.chunk_positions()) == 3
        message = await consumer.receive(timeout_millis=20_000)
        assert message.data() == content
        assert (message.properties(), message.partition_key()) == ({"p": "1"}, "key")
        assert message.message_id() == sent
        await consumer.acknowledge(message)
        small = await consumer.receive(timeout_millis=5_000)
        assert small.data() == b"small"
        await consumer.close()
        again = await client.subscribe(TOPIC, "chunks")
        assert (await again.receive(timeout_millis=5_000)).data() == b"small", "the chunks are acknowledged"

    run(scenario)


def test_only_a_consumer_with_the_private_key_reads_what_is_encrypted(run: Run, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    reader = CryptoKeyReader(str(public), str(private))
    contents = [b"secret %d" % n for n in range(20)]

    async def scenario(client: Client) -> None:
        producer = await client.create_producer(
            TOPIC, encryption_key="orders", crypto_key_reader=reader, compression_type=CompressionType.ZSTD
        )
        await producer.send_many(contents)
        got = await received(client, 20, crypto_key_reader=reader)
        assert [message.data() for message in got] == contents
        with pytest.raises(DecryptionFailed):
            await received(client, 1, subscription_name="without")
        (raw,) = await received(
            client, 1, subscription_name="raw", crypto_failure_action=ConsumerCryptoFailureAction.CONSUME
        )
        assert raw.is_encrypted()
        assert b"secret" not in raw.data()

    run(scenario)


def test_an_exclusive_producer_keeps_others_out_until_one_fences_it(run: Run) -> None:
    async def scenario(client: Client) -> None:
        owner = await client.create_producer(TOPIC, "owner", access_mode=ProducerAccessMode.Exclusive)
        with pytest.raises(ProducerBusy):
            await client.create_producer(TOPIC, "shared")
        with pytest.raises(ProducerFenced):
            await client.create_producer(TOPIC, "second", access_mode=ProducerAccessMode.Exclusive)
        await owner.send(b"mine")
        thief = await client.create_producer(TOPIC, "thief", access_mode=ProducerAccessMode.ExclusiveWithFencing)
        await thief.send(b"not yours any more")
        with pytest.raises(ProducerFenced):
            await owner.send(b"late")
        assert not owner.is_connected()
        assert [message.data() for message in await received(client, 2)] == [b"mine", b"not yours any more"]

    run(scenario)


def test_a_close_that_is_cancelled_lets_go_of_the_topic_all_the_same(run: Run) -> None:
    async def scenario(client: Client) -> None:
        for turns in range(8):
            producer = await client.create_producer(TOPIC, producer_name="p")
            producer.enqueue(b"x")
            closing = asyncio.create_task(producer.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await producer.close()

    run(scenario)


def test_who_waits_for_the_topic_gets_it_when_it_is_free(run: Run) -> None:
    async def scenario(client: Client) -> None:
        first = await client.create_producer(TOPIC, "first")
        waiting = asyncio.create_task(
            client.create_producer(TOPIC, "next", access_mode=ProducerAccessMode.WaitForExclusive)
        )
        given_up = asyncio.create_task(
            client.create_producer(TOPIC, "impatient", access_mode=ProducerAccessMode.WaitForExclusive)
        )
        await first.send(b"a")
        assert not waiting.done()
        given_up.cancel()
        await first.close()
        second = await waiting
        await second.send(b"b")
        assert [message.producer_name() for message in await received(client, 2)] == ["first", "next"]

    run(scenario)


@pytest.mark.parametrize("batching_type", list(BatchingType))
def test_what_is_sent_again_is_stored_once_and_says_so(run: Run, batching_type: BatchingType) -> None:
    async def scenario(client: Client) -> None:
        async def send(producer: Any) -> list[bool]:
            confirmations = [
                producer.enqueue(b"%d" % n, partition_key="AB"[n in (1, 2)], sequence_id=n) for n in range(5)
            ]
            await producer.flush()
            return [(await confirmation).is_duplicate() for confirmation in confirmations]

        async with await client.create_producer(TOPIC, "p", batching_type=batching_type) as producer:
            assert await send(producer) == [False] * 5
            assert await send(producer) == [True] * 5
            assert producer.last_sequence_id() == 4
        async with await client.create_producer(TOPIC, "p") as producer:
            assert producer.last_sequence_id() == 4
            await producer.send(b"next")
            assert producer.last_sequence_id() == 5
        got = sorted(message.data() for message in await received(client, 6))
        assert got == [b"0", b"1", b"2", b"3", b"4", b"next"]

    run(scenario, deduplicating)


def test_a_message_in_chunks_that_is_sent_again_is_stored_once(run: Run) -> None:
    async def scenario(client: Client) -> None:
        async with await client.create_producer(
            TOPIC, "p", batching_enabled=False, chunking_enabled=True, chunk_max_message_size=1_000
        ) as producer:
            first = await producer.send(b"x" * 5_000, sequence_id=3)
            second = await producer.send(b"x" * 5_000, sequence_id=3)
            assert isinstance(first, ChunkMessageId)
            assert second.is_duplicate()
            await producer.send(b"end", sequence_id=4)
        assert [len(message.data()) for message in await received(client, 2)] == [5_000, 3]

    run(scenario, deduplicating)


def test_a_backlog_over_its_quota_that_a_client_fills_and_consumes_by_one_connection(tmp_path: Path) -> None:
    """More messages wait than a connection may have waiting; the producer reconnects when the backlog is consumed."""
    padding = bytes(1024 * 1024)
    wanted = [b"%d" % number for number in range(HELD_BYTES_MAX // len(padding) + 8)]

    async def main() -> None:
        engine = await Engine.open(tmp_path / "engine", cluster="us-east")
        async with asyncio.timeout(DEADLINE_SECONDS), served(engine) as url, Client(url) as client:
            consumer = await client.subscribe(TOPIC, "s")
            producer = await client.create_producer(TOPIC)
            await producer.send(b"first")
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(backlog_quota=BacklogQuota(bytes_max=1)))
            await engine.maintenance.run_once()
            sent = [producer.enqueue(number + padding) for number in wanted]
            await eventually(lambda: topic.producers.connected == 0)
            await consumer.acknowledge(await consumer.receive())
            await asyncio.gather(*sent)
            got = await received(client, 1 + len(wanted))
            assert [message.data().rstrip(b"\0") for message in got] == [b"first", *wanted]
        await engine.close()

    asyncio.run(main())


def test_a_message_for_later_comes_after_those_sent_behind_it(run: Run) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe(TOPIC, "s", ConsumerType.Shared)
        producer = await client.create_producer(TOPIC)
        later = producer.enqueue(b"later", deliver_after=timedelta(seconds=1))
        await producer.send(b"now")
        await later
        got = [await consumer.receive(timeout_millis=10_000) for _ in range(2)]
        assert [message.data() for message in got] == [b"now", b"later"]

    run(scenario)


def test_a_partitioned_topic_keeps_each_key_in_one_partition(run: Run) -> None:
    async def three_partitions(engine: Engine) -> None:
        await engine.partitioned.create(TOPIC, 3)

    async def scenario(client: Client) -> None:
        for lazy in (False, True):
            producer = await client.create_producer(TOPIC, lazy_start_partitioned_producers=lazy)
            assert isinstance(producer, PartitionedProducer)
            partitions = defaultdict(set)
            for n in range(60):
                message_id = await producer.send(b"%d" % n, partition_key=f"k{n % 6}")
                partitions[f"k{n % 6}"].add(message_id.partition())
            assert all(len(one) == 1 for one in partitions.values())
            assert len(set().union(*partitions.values())) > 1
            await producer.close()
        got = 0
        for partition in range(3):
            keys = [key for key, one in partitions.items() if one == {partition}]
            messages = await received(client, 20 * len(keys), topic=f"{TOPIC}-partition-{partition}")
            assert {message.partition_key() for message in messages} == set(keys)
            got += len(messages)
        assert got == 120

    run(scenario, three_partitions)


@dataclass
class Flight:
    number: str
    seats: int


def test_typed_messages_arrive_typed_and_a_wrong_one_names_topic_and_field(run: Run) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer(TOPIC, schema=JsonSchema(Flight))
        await producer.send(Flight("N1", 180))
        with pytest.raises(SchemaError, match=f"{TOPIC}: the value does not fit Flight: field seats"):
            await producer.send(Flight("N2", "many"))  # type: ignore[arg-type]
        text = await client.create_producer(TOPIC, schema=StringSchema())
        await text.send("no flight")
        good, bad = await received(client, 2, schema=JsonSchema(Flight))
        assert good.value() == Flight("N1", 180)
        with pytest.raises(SchemaError, match=TOPIC):
            bad.value()
        assert bad.data() == b"no flight"

    run(scenario)


def test_statistics_tell_what_was_sent(run: Run) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer(TOPIC, batching_max_messages=10)
        await producer.send_many([b"x"] * 100)
        stats = producer.stats()
        assert (stats.messages_sent, stats.messages_confirmed, stats.entries_sent) == (100, 100, 10)
        assert (stats.messages_failed, stats.messages_pending) == (0, 0)
        assert 0 < stats.latency_ms_p50 <= stats.latency_ms_p99 <= stats.latency_ms_max

    run(scenario)


CUT_MESSAGES = 600


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        {"batching_max_messages": 20},
        {"batching_max_messages": 20, "batching_type": BatchingType.KeyBased},
        {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 500},
        {"batching_max_messages": 20, "access_mode": ProducerAccessMode.Exclusive},
    ],
    ids=["default", "key based", "chunks", "exclusive"],
)
def test_over_a_connection_that_is_cut_again_and_again_everything_is_stored_once_in_the_order_of_its_key(
    tmp_path: Path, arguments: dict[str, Any], seed: int
) -> None:
    async def main() -> None:
        engine = await Engine.open(tmp_path / "engine", cluster="us-east")
        try:
            await deduplicating(engine)
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                served(engine) as url,
                CuttingProxy(int(url.rpartition(":")[2]), seed=seed, bytes_max=60_000) as proxy,
                Client(url) as direct,
                Client(f"pulsar://{proxy.address}") as client,
            ):
                producer = await client.create_producer(TOPIC, "p", max_pending_messages=10_000, **arguments)
                expected: dict[str, list[bytes]] = defaultdict(list)
                confirmations = []
                for n in range(CUT_MESSAGES):
                    key, content = f"k{n % 5}", b"%d " % n * 60
                    expected[key].append(content)
                    confirmations.append(producer.enqueue(content, partition_key=key))
                    if n % 50 == 0:
                        await asyncio.sleep(0.01)  # so that what is sent meets several connections
                await eventually(lambda: proxy.cuts >= 3, "three cuts")
                proxy.cutting = False
                await producer.flush()
                assert all(confirmation.exception() is None for confirmation in confirmations)
                await producer.send(b"end")
                await producer.close()
                *messages, end = await received(direct, CUT_MESSAGES + 1)
                assert end.data() == b"end", "nothing is stored twice, up to the last"
                by_key: dict[str, list[bytes]] = defaultdict(list)
                for message in messages:
                    by_key[message.partition_key()].append(message.data())
                assert by_key == expected
        finally:
            await engine.close()

    asyncio.run(main())
