"""Workers beside Apache Pulsar clusters: differences that the worker names by itself, and getting halted topics going.

A module of tests imports all of it, as :mod:`bridge_contract`, and has its fixture ``pair``, with real brokers.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from typing import Any

import forked_commands
from bridge_contract import bridged, in_engine, publish
from peers.apache_support import Beside, backlog, bodies, cursors, drain, let_in, official, read_all, until
from pulsar import ConsumerType, InitialPosition

_topics = (f"persistent://public/default/remedied-{number}" for number in count())


def command(made: Beside, verb: str, topic: str, *more: str, status: int = 0) -> Any:
    """Return the JSON report of ``replicator bridge VERB``, which must end with ``status``."""
    arguments = ("bridge", verb, topic, "-f", "topology.yaml", *more, "--output", "json")
    done = forked_commands.run(*arguments, cwd=made.path)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def shown(made: Beside, cluster: str, topic: str) -> Any:
    """Return the status of a topic in a worker; one without errors if the topic is not bridged there."""
    found = [each for each in made.apache(cluster)["topics"] if each["topic"] == topic]
    return found[0] if found else {"halted": False, "errors": {}, "remedies": {}, "comparison": {"differences": []}}


def halted(made: Beside, cluster: str, topic: str, text: str) -> None:
    """Return when a worker has halted a topic for a reason with ``text``, and names the command that ends it."""
    until(
        lambda: (
            (each := shown(made, cluster, topic))["halted"]
            and text in each["errors"].get("reading", "")
            and "replicator bridge renew" in each["remedies"].get("reading", "")
        ),
        lambda: shown(made, cluster, topic),
    )


def is_there(made: Beside, cluster: str, topic: str) -> bool:
    return topic in made.brokers[cluster].admin("GET", "persistent/public/default")


def well(made: Beside, topic: str) -> None:
    """Return when no worker names an error or a difference of a topic."""
    until(
        lambda: (
            not any(
                each["errors"] or each["comparison"]["differences"] or each["comparison"]["unread"]
                for each in bridged(made, topic)
            )
        ),
        lambda: bridged(made, topic),
    )


def test_messages_that_the_brokers_do_not_give_are_named_within_a_minute(pair: Beside) -> None:
    topic = next(_topics)
    path, broker = topic.replace("://", "/"), pair.brokers["A"]
    publish(pair, "A", topic, bodies("m", range(3)))
    assert read_all(pair.brokers["B"], topic, 3) == bodies("m", range(3))
    slow = {
        "dispatchThrottlingRateInMsg": 1,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 3600,
    }
    broker.admin("POST", f"{path}/subscriptionDispatchRate", slow)
    until(lambda: broker.admin("GET", f"{path}/subscriptionDispatchRate"), "the policy is there")
    publish(pair, "A", topic, bodies("m", range(3, 6)))
    publish(pair, "A", topic, bodies("m", range(6, 20)))
    until(lambda: shown(pair, "A", topic)["comparison"]["differences"], lambda: shown(pair, "A", topic))
    (named,) = shown(pair, "A", topic)["comparison"]["differences"]
    assert "are not read" in named, named
    at_a = next(each for each in command(pair, "status", topic, status=1) if each["cluster"] == "A")
    assert at_a["comparison"]["unread"] > 0
    assert at_a["comparison"]["age_seconds"] < 60
    # The bridge asks for them again, by a new consumer; nothing else is wrong.
    assert all("subscribes anew" in each for each in at_a["errors"].values()), at_a["errors"]
    broker.admin("DELETE", f"{path}/subscriptionDispatchRate")
    broker.admin("PUT", f"{path}/unload")
    assert read_all(pair.brokers["B"], topic, 20) == bodies("m", range(20))
    well(pair, topic)
    assert command(pair, "status", topic)


def test_a_topic_that_is_deleted_at_the_brokers_is_not_made_anew_and_its_renewal_brings_what_others_have(
    pair: Beside,
) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("a", range(5))
    publish(pair, "B", topic, bodies("b", range(5)))
    assert read_all(pair.brokers["A"], topic, 10)[5:] == bodies("b", range(5))
    pair.brokers["A"].admin("DELETE", f"{topic.replace('://', '/')}?force=true")
    halted(pair, "A", topic, "was deleted at the brokers")
    publish(pair, "B", topic, bodies("b", range(5, 10)))
    until(lambda: shown(pair, "A", topic)["publishing_waits"], lambda: shown(pair, "A", topic))
    assert "was deleted" in shown(pair, "A", topic)["errors"].get("publishing", "was deleted")
    assert not is_there(pair, "A", topic)
    assert read_all(pair.brokers["B"], topic, 15) == [*bodies("a", range(5)), *bodies("b", range(10))]
    planned = command(pair, "renew", topic, "--dry-run")
    assert {each["cluster"]: each["way"] for each in planned} == {"A": "anew", "B": "nothing"}
    assert not is_there(pair, "A", topic)
    assert command(pair, "renew", topic) == planned
    assert read_all(pair.brokers["A"], topic, 10) == bodies("b", range(10))
    publish(pair, "A", topic, bodies("c", range(5)))
    assert read_all(pair.brokers["B"], topic, 20)[15:] == bodies("c", range(5))
    well(pair, topic)


def test_invariant_2_a_topic_whose_reading_subscription_was_deleted_is_renewed_and_misses_nothing(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    with pair.away("A"):
        pair.brokers["A"].admin("DELETE", f"{topic.replace('://', '/')}/subscription/replicator.bridge.A?force=true")
        publish(pair, "A", topic, bodies("m", range(5, 10)))
    halted(pair, "A", topic, "is gone")
    (text,) = [each["text"] for each in command(pair, "renew", topic, "--dry-run") if each["cluster"] == "A"]
    assert "goes on behind" in text
    halted(pair, "A", topic, "is gone")
    command(pair, "renew", topic)
    publish(pair, "A", topic, bodies("m", range(10, 12)))
    assert read_all(pair.brokers["B"], topic, 12) == bodies("m", range(12))
    well(pair, topic)


def test_invariant_2_a_reading_subscription_that_is_another_one_is_put_back_and_never_deleted(pair: Beside) -> None:
    """Somebody has made it anew, behind messages that were not read."""
    topic, broker, name = next(_topics), pair.brokers["A"], "replicator.bridge.A"
    path = f"{topic.replace('://', '/')}/subscription/{name}"
    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    with pair.away("A"):
        broker.admin("DELETE", f"{path}?force=true")
        publish(pair, "A", topic, bodies("m", range(5, 10)))
        with official(broker) as client:
            client.subscribe(topic, name, initial_position=InitialPosition.Latest).close()
    halted(pair, "A", topic, "is not the one")
    command(pair, "renew", topic)
    publish(pair, "A", topic, bodies("m", range(10, 12)))
    assert read_all(pair.brokers["B"], topic, 12) == bodies("m", range(12))
    properties = broker.admin("GET", f"{path}/properties")
    assert int(properties["incarnation"]) > 0
    well(pair, topic)


def test_a_topic_that_was_made_anew_is_renewed_and_no_cluster_loses_what_it_has(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    publish(pair, "A", topic, bodies("m", range(5)))
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 5, lambda: bridged(pair, topic))
    publish(pair, "B", topic, bodies("b", range(3)))
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 8, lambda: bridged(pair, topic))
    pair.brokers["A"].admin("DELETE", f"{topic.replace('://', '/')}?force=true")
    publish(pair, "A", topic, bodies("n", range(5)))
    halted(pair, "A", topic, "is gone")
    command(pair, "renew", topic)
    found = read_all(pair.brokers["A"], topic, 8)
    assert sorted(found) == sorted([*bodies("n", range(5)), *bodies("b", range(3))])
    assert read_all(pair.brokers["B"], topic, 13)[8:] == bodies("n", range(5))
    # Invariant 5: what is not acknowledged stays so, at both.
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 13, lambda: bridged(pair, topic))
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 8, lambda: bridged(pair, topic))
    assert len(drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)) == 13
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: bridged(pair, topic))
    well(pair, topic)


def test_a_worker_that_lost_its_store_gets_going_by_itself(pair: Beside) -> None:
    """It reads its brokers again and gets the other cluster's messages: each is there once, and none that was
    acknowledged comes again."""
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    publish(pair, "A", topic, bodies("a", range(5)))
    publish(pair, "B", topic, bodies("b", range(5)))
    for name in "AB":
        assert len(read_all(pair.brokers[name], topic, 10)) == 10
    with official(pair.brokers["A"]) as client:
        consumer = let_in(client, topic, "work", ConsumerType.Shared)
        for _ in range(4):
            consumer.acknowledge(consumer.receive(30_000))
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 6, lambda: bridged(pair, topic))
    pair.kill("A")
    shutil.rmtree(pair.path / "data-A")
    publish(pair, "A", topic, bodies("a", range(5, 10)))
    publish(pair, "B", topic, bodies("b", range(5, 10)))
    pair.start("A")
    for name in "AB":
        found = read_all(pair.brokers[name], topic, 20)
        for origin in "ab":
            assert [body for body in found if body[0] == origin] == bodies(origin, range(10)), name
    until(lambda: all(backlog(pair.brokers[name], topic, "work") == 16 for name in "AB"), lambda: bridged(pair, topic))
    assert shown(pair, "A", topic)["may_be_missing"] == []
    well(pair, topic)


def test_a_subscription_on_a_topic_without_messages_is_made_at_the_other_cluster(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    until(lambda: "work" in in_engine(pair, "A", topic), lambda: bridged(pair, topic))
    until(lambda: "work" in cursors(pair.brokers["B"], topic), lambda: bridged(pair, topic))
    well(pair, topic)


def test_a_topic_without_messages_that_is_deleted_and_made_anew_keeps_its_subscriptions(pair: Beside) -> None:
    """At both clusters. While it is deleted, it halts as other topics do."""
    topic = next(_topics)
    path, brokers = topic.replace("://", "/"), pair.brokers

    def both_have_work() -> bool:
        seen = [each["state"]["subscriptions"] for each in bridged(pair, topic)]
        return seen == [1, 1] and all("work" in cursors(brokers[name], topic) for name in "AB")

    with official(brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    until(both_have_work, lambda: bridged(pair, topic))
    for name in "AB":
        brokers[name].admin("DELETE", f"{path}?force=true")
    for name in "AB":
        halted(pair, name, topic, "was deleted at the brokers")
    for name in "AB":
        brokers[name].admin("PUT", path)
    until(both_have_work, lambda: bridged(pair, topic))
    publish(pair, "A", topic, bodies("m", range(3)))
    until(lambda: all(backlog(brokers[name], topic, "work") == 3 for name in "AB"), lambda: bridged(pair, topic))
    well(pair, topic)


def test_a_partition_without_a_partitioned_topic_says_what_to_do_and_that_ends_it(pair: Beside) -> None:
    base = next(_topics)
    topic, broker = f"{base}-partition-1", pair.brokers["A"]
    publish(pair, "A", topic, bodies("m", range(2)))  # a producer makes it; the admin API would refuse to
    until(
        lambda: "create-partitioned-topic" in shown(pair, "A", topic)["errors"].get("reading", ""),
        lambda: pair.apache("A"),
    )
    broker.admin("DELETE", f"{topic.replace('://', '/')}?force=true")
    broker.admin("PUT", f"{base.replace('://', '/')}/partitions", 2)
    publish(pair, "A", topic, bodies("m", range(2, 5)))
    # A reader that comes first would make a topic of its own at B.
    path = "persistent/public/default/partitioned"
    until(lambda: base in pair.brokers["B"].admin("GET", path), lambda: bridged(pair, topic))
    assert read_all(pair.brokers["B"], topic, 3) == bodies("m", range(2, 5))
    well(pair, topic)


def test_a_namespace_that_the_brokers_replicate_themselves_is_named(pair: Beside) -> None:
    broker = pair.brokers["A"]
    broker.admin("PUT", "clusters/elsewhere", {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": broker.url})
    tenant = {"allowedClusters": [broker.cluster, "elsewhere"], "adminRoles": []}
    broker.admin("POST", "tenants/public", tenant)
    broker.admin("PUT", "namespaces/public/native", {"replication_clusters": [broker.cluster]})
    try:
        broker.admin("PUT", "persistent/public/native/t")
        until(lambda: shown(pair, "A", "persistent://public/native/t")["comparison"].get("age_seconds"), "is bridged")
        broker.admin("POST", "namespaces/public/native/replication", [broker.cluster, "elsewhere"])
        until(lambda: "public/native" in pair.apache("A")["native_replication"], lambda: pair.apache("A"))
        (found,) = [
            each for each in pair.report("doctor", status=0)["findings"] if each["check"] == "native-replication"
        ]
        assert "public/native" in found["text"]
    finally:
        broker.admin("POST", "namespaces/public/native/replication", [broker.cluster])
