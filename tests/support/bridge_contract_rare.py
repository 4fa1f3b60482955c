"""Contract of workers beside Apache Pulsar clusters for rare cases: chunked messages, messages for some clusters only,
and messages that brokers skip before a worker reads them. A module of tests imports all of it, as
:mod:`bridge_contract`, and has its fixture ``pair``.

Real brokers must check backlog quotas every second.
"""

from __future__ import annotations

import random
import shutil
from itertools import count
from typing import Final

import forked_commands
import pulsar
from bridge_contract import bridged, publish
from peers.apache_support import Beside, backlog, bodies, cursors, drain, let_in, official, read_all, until
from pulsar import ConsumerType, InitialPosition

CHUNKED_BYTES: Final = 12 * 1024 * 1024
"""Size above that of two entries of the largest size that brokers take."""
LARGE_BYTES: Final = 100_000
LARGE: Final = 200
"""Number of messages far above what a broker may send before the worker grants more."""
_topics = (f"persistent://public/default/rare-{number}" for number in count())


def stands(made: Beside, topic: str) -> str:
    """Return the mark-delete position of A's worker's cursor."""
    return str(cursors(made.brokers["A"], topic)["replicator.bridge.A"]["markDeletePosition"])


def numbers(made: Beside, topic: str, count: int) -> list[int]:
    """Return the number at the start of each message at B's broker; -1 for a message without a blank."""
    found = read_all(made.brokers["B"], topic, count)
    return [int(body.split()[0]) if " " in body else -1 for body in found]


def test_a_message_in_chunks_arrives_whole_and_its_acknowledgement_with_it(pair: Beside) -> None:
    topic, whole = next(_topics), random.Random(1).randbytes(CHUNKED_BYTES)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Failover, initial_position=InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
        for body in (b"before", whole, b"between", whole[::-1], b"after"):
            producer.send(body)
        got = [consumer.receive(60_000) for _ in range(5)]
        assert [message.data() for message in got] == [b"before", whole, b"between", whole[::-1], b"after"]
        consumer.acknowledge(got[1])
        consumer.acknowledge(got[4])
    with official(pair.brokers["B"]) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        read = [reader.read_next(60_000).data() for _ in range(5)]
        assert read == [b"before", whole, b"between", whole[::-1], b"after"]
    chunks = backlog(pair.brokers["A"], topic, "work") - 2
    assert chunks >= 3, "the message was not cut"
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 2 + chunks, lambda: bridged(pair, topic))
    with official(pair.brokers["B"]) as client:
        consumer = let_in(client, topic, "work", ConsumerType.Failover)
        got = [consumer.receive(60_000) for _ in range(3)]
        assert [message.data() for message in got] == [b"before", b"between", whole[::-1]]
        consumer.acknowledge_cumulative(got[2])
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: bridged(pair, topic))


def test_invariants_2_and_5_messages_for_some_clusters_come_to_those_alone_and_acknowledgements_to_all(
    pair: Beside,
) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"all")
        producer.send(b"here", disable_replication=True)
        producer.send(b"B", replication_clusters=["B"])
        producer.send(b"C", replication_clusters=["C", "elsewhere"])
        producer.send(b"both", replication_clusters=["B", "C"])
        producer.send(b"end")
        assert read_all(pair.brokers["A"], topic, 6) == ["all", "here", "B", "C", "both", "end"]
        assert read_all(pair.brokers["B"], topic, 4) == ["all", "B", "both", "end"], bridged(pair, topic)
        assert read_all(pair.client_url("C"), topic, 4) == ["all", "C", "both", "end"], bridged(pair, topic)
        for _ in range(6):
            message = consumer.receive(60_000)
            if message.data() != b"both":
                consumer.acknowledge(message)
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 1, lambda: bridged(pair, topic))
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == ["both"]
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: bridged(pair, topic))
    assert pair.report("verify", "--brokers", "--topic", topic)["brokers"]["B"]["messages"] == 4


def test_a_message_for_a_cluster_behind_one_that_may_not_have_it_is_copied_to_all_and_counted(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["B"]) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"all")
        producer.send(b"C", replication_clusters=["C"])
        producer.send(b"C and A", replication_clusters=["C", "A"])
    assert read_all(pair.brokers["A"], topic, 3) == ["all", "C", "C and A"], bridged(pair, topic)
    assert read_all(pair.client_url("C"), topic, 3) == ["all", "C", "C and A"]
    assert [each["copied_to_all"] for each in bridged(pair, topic)] == [0, 1]


def test_invariant_2_what_a_broker_passes_over_while_it_is_read_is_read_all_the_same(pair: Beside) -> None:
    """The worker keeps its connection, and is told nothing: what comes next is what was not passed over."""
    topic, path = next(_topics), "subscription/replicator.bridge.A/expireMessages"
    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    with pair.paused("A"), official(pair.brokers["A"]) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(LARGE):
            last = producer.send(b"%d " % number + bytes(LARGE_BYTES))
        place = {"ledgerId": last.ledger_id(), "entryId": last.entry_id(), "partitionIndex": -1}
        pair.brokers["A"].admin("POST", f"{topic.replace('://', '/')}/{path}", place)
        until(lambda: stands(pair, topic) == f"{last.ledger_id()}:{last.entry_id()}", lambda: stands(pair, topic))
        producer.send(b"%d after" % LARGE)
    found = numbers(pair, topic, LARGE + 6)[5:]
    assert found == list(range(LARGE + 1)), (found, bridged(pair, topic), pair.log("A"))
    assert bridged(pair, topic)[0]["put_back"] >= 1
    assert stands(pair, topic) == f"{last.ledger_id()}:{last.entry_id() + 1}"


def test_invariant_2_the_last_messages_that_an_operator_passes_over_are_read_though_none_follows(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    with pair.paused("A"), official(pair.brokers["A"]) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(LARGE):
            last = producer.send(b"%d " % number + bytes(LARGE_BYTES))
        pair.brokers["A"].admin("POST", f"{topic.replace('://', '/')}/subscription/replicator.bridge.A/skip_all")
        until(lambda: stands(pair, topic) == f"{last.ledger_id()}:{last.entry_id()}", lambda: stands(pair, topic))
    found = numbers(pair, topic, LARGE + 5)[5:]
    assert found == list(range(LARGE)), (found, bridged(pair, topic), pair.log("A"))
    assert bridged(pair, topic)[0]["put_back"] >= 1


def test_invariant_2_what_a_backlog_quota_takes_from_a_worker_that_is_away_is_read_all_the_same(pair: Beside) -> None:
    for broker in pair.brokers.values():
        broker.admin("PUT", "namespaces/public/quota", {"replication_clusters": [broker.cluster]})
    quota = {"limitSize": 10 * LARGE_BYTES, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    pair.brokers["A"].admin("POST", "namespaces/public/quota/backlogQuota", quota)
    topic = "persistent://public/quota/evicted"
    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    with pair.away("A"):
        before = stands(pair, topic)
        with official(pair.brokers["A"]) as client:
            producer = client.create_producer(topic, batching_enabled=False)
            for number in range(40):
                producer.send(b"%d " % number + bytes(LARGE_BYTES))
        until(lambda: stands(pair, topic) != before, lambda: stands(pair, topic))
    assert numbers(pair, topic, 45)[5:] == list(range(40))


def test_invariants_1_and_2_a_worker_restored_from_an_old_backup_reads_again_what_came_since(pair: Beside) -> None:
    """A restored worker reads messages and acknowledgements of both clusters again, because the brokers still have
    them."""
    topic = next(_topics)
    kept = pair.path / "backups"

    def backup(verb: str) -> None:
        done = forked_commands.run("backup", verb, "-f", str(pair.file), "-c", "A", "--at", str(kept), cwd=pair.path)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("a", range(10)))
        until(lambda: backlog(pair.brokers["B"], topic, "work") == 10, lambda: bridged(pair, topic))
        backup("create")
        publish(pair, "A", topic, bodies("a", range(10, 20)))
        publish(pair, "B", topic, bodies("b", range(20)))
        got = [consumer.receive(60_000) for _ in range(40)]
        for message in got[::2]:
            consumer.acknowledge(message)
        until(lambda: backlog(pair.brokers["B"], topic, "work") == 20, lambda: bridged(pair, topic))
    with pair.away("A"):
        shutil.rmtree(pair.path / "data-A")
        publish(pair, "A", topic, bodies("a", range(20, 30)))
        publish(pair, "B", topic, bodies("b", range(20, 30)))
        backup("restore")
    left = {message.data().decode() for message in got[1::2]}
    for name in "AB":
        found = read_all(pair.brokers[name], topic, 60)
        for origin in "ab":
            assert [body for body in found if body[0] == origin] == bodies(origin, range(30)), (name, pair.log(name))
        until(lambda name=name: backlog(pair.brokers[name], topic, "work") == 40, lambda: bridged(pair, topic))
    assert sum(each["doubled"] for each in bridged(pair, topic)) == 0
    open_there = drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)
    assert sorted(open_there) == sorted([*left, *bodies("a", range(20, 30)), *bodies("b", range(20, 30))])
