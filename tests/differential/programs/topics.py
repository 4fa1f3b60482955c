"""Names of topics, partitions, lists, patterns, topics that come and go, and the asyncio API."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pulsar
import pulsar.asyncio
from differential.harness import (
    COMES_MS,
    At,
    Differs,
    all_of,
    attempt,
    data,
    program,
    quiet,
    said,
    send_all,
    take,
    texts,
    until,
)

NAMES = {
    "short": "{}",
    "with a domain": "persistent://public/default/{}",
    "with tenant and namespace": "public/default/{}",
    "of two parts": "default/{}",
    "of four parts": "persistent://public/default/a/{}",
    "without a name": "persistent://public/default/",
    "without a namespace": "persistent://public/{}",
    "empty": "",
    "of another domain": "http://public/default/{}",
    "of no tenant": "persistent://nosuch{}/default/t",
    "of no namespace": "persistent://public/nosuch{}/t",
    "with a blank": "persistent://public/default/{} t",
    "with letters": "persistent://public/default/{}-ü-名",
    "with signs": "persistent://public/default/{}:%&=+*",
    "of a partition that there is not": "persistent://public/default/{}-partition-0",
    "like a partition": "persistent://public/default/{}-partition-x",
    "long": "persistent://public/default/{}" + "n" * 250,
}
ACKS_LEAVE_SECONDS = 0.3
NOT_PERSISTENT = "non-persistent://public/default/{}"


UNSUPPORTED = ("of four parts", "with a blank", "with letters", "with signs")
BY_USE = ("of no tenant", "of no namespace")


@program(
    each={f"{which}, {kind}": (which, kind) for which in NAMES for kind in ("producer", "consumer", "partitions")},
    differs={
        **{
            f"{which}, {kind}": Differs("topic-names", "!NotAllowedError")
            for which in UNSUPPORTED
            for kind in ("producer", "consumer", "partitions")
        },
        **{
            f"{which}, {kind}": Differs("namespaces-by-use", "fine")
            for which in BY_USE
            for kind in ("producer", "consumer")
        },
        **{
            f"{which}, partitions": Differs("namespaces-by-use", [NAMES[which].replace("{}", "NAME")])
            for which in BY_USE
        },
    },
)
def names_of_topics(at: At, which: str, kind: str) -> Any:
    topic = NAMES[which].format(at.name)
    client = at.new_client(operation_timeout_seconds=4)
    if kind == "producer":
        return said(lambda: client.create_producer(topic).send(b"m"))
    if kind == "consumer":
        return said(lambda: client.subscribe(topic, "s"))
    found = attempt(lambda: client.get_topic_partitions(topic))
    return found if isinstance(found, str) else [each.replace(at.name, "NAME") for each in found]


@program()
def names_that_mean_one_topic(at: At) -> Any:
    consumer = at.consumer()
    for name in (at.name, f"public/default/{at.name}", at.topic):
        at.producer(name).send(name.replace(at.name, "NAME").encode())
    return texts(consumer, 3), [each.topic_name() == at.topic for each in take(at.consumer("again"), 3)]


@program(
    each={"producer": ("producer",), "consumer": ("consumer",), "reader": ("reader",)},
    differs={kind: Differs("non-persistent-topics", "!NotAllowedError") for kind in ("producer", "consumer", "reader")},
)
def topics_that_are_not_persistent(at: At, kind: str) -> Any:
    topic = NOT_PERSISTENT.format(at.name)
    client = at.new_client(operation_timeout_seconds=4)
    if kind == "producer":
        return said(lambda: client.create_producer(topic).send(b"m"))
    if kind == "consumer":
        return said(lambda: client.subscribe(topic, "s"))
    return said(lambda: client.create_reader(topic, pulsar.MessageId.latest))


def partitioned(at: At, count: int, suffix: str = "") -> str:
    status, _ = at.admin("PUT", f"persistent/public/default/{at.name}{suffix}/partitions", count)
    assert status in (200, 204), status
    return f"{at.topic}{suffix}"


@program(each={"1": (1,), "3": (3,)})
def partitions_of_a_topic(at: At, count: int) -> Any:
    topic = partitioned(at, count)
    return [each.replace(at.name, "NAME") for each in at.client.get_topic_partitions(topic)]


@program()
def messages_with_keys_are_spread(at: At) -> Any:
    topic = partitioned(at, 3)
    producer = at.producer(topic)
    ids = [producer.send(b"%d" % number, partition_key=f"key {number}") for number in range(12)]
    consumer = at.consumer(topic=topic)
    got = take(consumer, 12, acknowledge=True)
    return (
        [each.partition() for each in ids],
        sorted((int(data(each)), each.message_id().partition(), each.topic_name().rpartition("-")[2]) for each in got),
    )


@program(each={f"{scheme}": (scheme,) for scheme in ("RoundRobinDistribution", "UseSinglePartition")})
def messages_without_keys_are_spread(at: At, mode: str) -> Any:
    topic = partitioned(at, 3)
    producer = at.producer(topic, message_routing_mode=getattr(pulsar.PartitionsRoutingMode, mode))
    ids = [producer.send(b"%d" % number) for number in range(9)]
    used = [sum(each.partition() == number for each in ids) for number in range(3)]
    return sorted(used)


@program()
def lazy_producers_of_partitions(at: At) -> Any:
    topic = partitioned(at, 4)
    producer = at.producer(
        topic,
        lazy_start_partitioned_producers=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition,
    )
    ids = [producer.send(b"m") for _ in range(3)]
    return len({each.partition() for each in ids})


@program(each={kind: (kind,) for kind in ("Exclusive", "Shared", "Failover", "KeyShared")})
def consumers_of_partitions(at: At, kind: str) -> Any:
    topic = partitioned(at, 3)
    producer = at.producer(topic)
    for number in range(12):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    consumer = at.consumer(topic=topic, consumer_type=getattr(pulsar.ConsumerType, kind))
    messages = take(consumer, 12)
    for each in messages[:8]:
        consumer.acknowledge(each)
    left = sorted(data(each) for each in messages[8:])
    time.sleep(ACKS_LEAVE_SECONDS)
    consumer.redeliver_unacknowledged_messages()
    return sorted(data(each) for each in all_of(consumer)) == left, said(consumer.unsubscribe)


@program()
def failover_consumers_share_partitions(at: At) -> Any:
    topic = partitioned(at, 4)
    consumers = [
        at.new_client().subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"
    ]
    producer = at.producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    return [sorted({each.message_id().partition() for each in all_of(consumer)}) for consumer in consumers]


@program()
def a_part_by_its_name(at: At) -> Any:
    topic = partitioned(at, 2)
    producer = at.producer(f"{topic}-partition-1")
    sent = producer.send(b"m")
    got = take(at.consumer(topic=topic), 1)[0]
    return (
        sent.partition(),
        got.message_id().partition(),
        got.topic_name().replace(at.name, "NAME"),
        said(lambda: at.new_client(operation_timeout_seconds=4).create_producer(f"{topic}-partition-7")),
    )


@program()
def seeking_partitions(at: At) -> Any:
    topic = partitioned(at, 2)
    producer = at.producer(topic)
    for number in range(6):
        producer.send(b"%d" % number)
    consumer = at.consumer(topic=topic)
    take(consumer, 6, acknowledge=True)
    by_earliest = said(lambda: consumer.seek(pulsar.MessageId.earliest))
    first = sorted(data(each) for each in all_of(consumer))
    by_time = said(lambda: consumer.seek(0))
    return by_earliest, first, by_time, sorted(data(each) for each in all_of(consumer))


@program()
def partitions_that_are_added_are_consumed(at: At) -> Any:
    topic = partitioned(at, 2)
    grown, _ = at.admin("POST", f"persistent/public/default/{at.name}/partitions", 4)
    producer = at.producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(8)]
    return grown in (200, 204), sorted({each.partition() for each in ids}), len(at.client.get_topic_partitions(topic))


@program()
def a_list_of_topics(at: At) -> Any:
    topics = [f"{at.topic}-{letter}" for letter in "abc"]
    consumer = at.consumer(topic=topics)
    for topic in topics:
        at.producer(topic).send(topic[-1].encode())
    got = take(consumer, 3, acknowledge=True)
    closing = said(consumer.unsubscribe)
    return sorted((data(each), each.topic_name()[-1]) for each in got), closing


@program()
def a_list_with_a_name_that_cannot_be(at: At) -> Any:
    return said(lambda: at.new_client(operation_timeout_seconds=4).subscribe([at.topic, "persistent://a"], "s"))


@program(
    each={
        "all of a prefix": (".*", 3),
        "one": ("-a", 1),
        "either": ("-(a|b)", 2),
        "a class": ("-[bc]", 2),
        "none": ("-nothing", 0),
    }
)
def patterns(at: At, rest: str, count: int) -> Any:
    for letter in "abc":
        at.producer(f"{at.topic}-{letter}").send(letter.encode())
    consumer = at.consumer(topic=re.compile(f"persistent://public/default/{at.name}{rest}"))
    return sorted(texts(consumer, count)), quiet(consumer)


@program()
def a_pattern_finds_topics_that_come(at: At) -> Any:
    at.producer(f"{at.topic}-a").send(b"a")
    consumer = at.consumer(topic=re.compile(f"{at.topic}-.*"), pattern_auto_discovery_period=1)
    first = texts(consumer, 1, acknowledge=True)
    at.producer(f"{at.topic}-b").send(b"b")
    return first, quiet(consumer, 5_000)  # this client does not find it at either, whatever it is told


@program()
def a_pattern_matches_partitions(at: At) -> Any:
    topic = partitioned(at, 2, "-p")
    producer = at.producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    consumer = at.consumer(topic=re.compile(f"{at.topic}-.*"))
    return sorted(texts(consumer, 4)), quiet(consumer)


@program(each={mode: (mode,) for mode in ("PersistentOnly", "AllTopics")})
def modes_of_patterns(at: At, mode: str) -> Any:
    at.producer(f"{at.topic}-a").send(b"a")
    consumer = at.consumer(
        topic=re.compile(f"{at.topic}-.*"), regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode)
    )
    return texts(consumer, 1), quiet(consumer)


@program(each={"without a namespace": ("t.*",), "of two namespaces": ("persistent://public/.*/t",)})
def patterns_that_make_no_sense(at: At, pattern: str) -> Any:
    return said(lambda: at.new_client(operation_timeout_seconds=4).subscribe(re.compile(pattern), f"s-{at.name}"))


@program()
def topics_are_made_by_use_and_begin_empty(at: At) -> Any:
    consumer = at.consumer()
    outcome = quiet(consumer)
    partitions = at.client.get_topic_partitions(at.topic)
    return outcome, partitions == [at.topic]


@program()
def a_client_that_asks_nothing(at: At) -> Any:
    client = at.new_client()
    info = client.get_service_info()
    return info.service_url == at.side.service_url, info.use_tls, said(client.close), said(client.shutdown)


@program(
    each={
        "not a URL": ("nonsense",),
        "http": ("http://127.0.0.1:1",),
        "nobody listens": ("pulsar://127.0.0.1:1",),
        "another scheme": ("kafka://127.0.0.1:1",),
    }
)
def service_urls(at: At, url: str) -> Any:
    def use() -> None:
        quietly = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(url, operation_timeout_seconds=2, logger=quietly)
        try:
            client.create_producer(at.topic)
        finally:
            client.close()

    return said(use)


@program(
    each={
        "a producer": (lambda client, at: client.create_producer(at.topic).topic() == at.topic,),
        "a consumer": (lambda client, at: client.subscribe(at.topic, "s").topic() == at.topic,),
        "partitions": (lambda client, at: client.get_topic_partitions(at.topic) == [at.topic],),
        "no namespace": (lambda client, at: said(lambda: client.create_producer(f"public/nosuch{at.name}/t")),),
    },
    differs={"no namespace": Differs("namespaces-by-use", "fine")},
)
def lookups_over_http(at: At, use: Any) -> Any:
    quietly = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(at.side.admin_url, operation_timeout_seconds=5, logger=quietly)
    try:
        return attempt(lambda: use(client, at))
    finally:
        client.close()


def asynchronous(at: At, call: Any) -> Any:
    async def run() -> Any:
        quietly = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.asyncio.Client(at.side.service_url, operation_timeout_seconds=10, logger=quietly)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def awaited(call: Any) -> Any:
    try:
        await call
    except pulsar.asyncio.PulsarException as error:
        return f"!{error.error()}"
    return "fine"


@program()
def asynchronous_producers_and_consumers(at: At) -> Any:
    async def call(client: Any) -> Any:
        producer = await client.create_producer(at.topic, producer_name="me")
        ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(10)))
        consumer = await client.subscribe(at.topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        messages = [await consumer.receive() for _ in range(10)]
        await asyncio.gather(*(consumer.acknowledge(each) for each in messages[:4]))
        await consumer.acknowledge_cumulative(messages[6])
        last = await consumer.get_last_message_id()
        await asyncio.sleep(ACKS_LEAVE_SECONDS)
        consumer.redeliver_unacknowledged_messages()
        again = [data(await consumer.receive()) for _ in range(3)]
        await consumer.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
        first = data(await consumer.receive())
        await consumer.unsubscribe()
        return (
            [data(each) for each in messages],
            str(last) == str(ids[-1]),
            again,
            first,
            producer.producer_name(),
            producer.last_sequence_id(),
            await awaited(consumer.receive()),
        )

    return asynchronous(at, call)


@program()
def asynchronous_errors(at: At) -> Any:
    async def call(client: Any) -> Any:
        await client.subscribe(at.topic, "s")
        await client.create_producer(at.topic, producer_name="me")
        return [
            str(await awaited(client.subscribe(at.topic, "s"))),
            str(await awaited(client.create_producer(at.topic, producer_name="me"))),
            str(await awaited(client.create_producer("persistent://a"))),
            str(await awaited(client.get_topic_partitions("persistent://a"))),
        ]

    return asynchronous(at, call)


@program()
def asynchronous_readers(at: At) -> Any:
    send_all(at.producer(), range(4))

    async def call(client: Any) -> Any:
        reader = await client.create_reader(at.topic, pulsar.MessageId.earliest)
        got = []
        while await reader.has_message_available():
            got.append(data(await reader.read_next()))
        await reader.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
        return got, data(await reader.read_next())

    return asynchronous(at, call)


@program()
def a_client_waits_for_messages_that_come_late(at: At) -> Any:
    consumer = at.consumer()
    early = said(lambda: consumer.receive(300))
    at.producer().send(b"m")
    return early, data(consumer.receive(COMES_MS)), until(consumer.is_connected)
