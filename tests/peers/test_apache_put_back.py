"""Real brokers that copy messages to each other beside the links of their workers. And real brokers that are put back
to an older copy of their data, or set up anew, under workers that know more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import forked_commands
import pulsar
import pytest
from bridge_contract import bridged, faults, publish, verified
from bridge_contract_remedies import command
from peers.apache_support import Beside, backlog, beside, bodies, brokers_of, drain, official, read_all, until
from pulsar import ConsumerType, InitialPosition

DATA: Final = ("metadata", "bookkeeper")
KEPT: Final = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two brokers, and a worker beside each, linked both ways."""
    path = tmp_path_factory.mktemp("put-back")
    with brokers_of(path, "A", "B") as brokers, beside(path, "AB", brokers, "[{between: [A, B]}]") as made:
        yield made


def of_topic(made: Beside, name: str, topic: str) -> Any:
    found = [each for each in made.apache(name)["topics"] if each["topic"] == topic]
    return found[0] if found else {"errors": {}, "lives": []}


def same_at_both(made: Beside, topic: str, messages: int) -> None:
    """Check that the brokers of both clusters get ``messages`` messages of a topic, and no more."""
    found = [len(read_all(made.brokers[name], topic, messages)) for name in "AB"]
    assert found == [messages] * 2, ([of_topic(made, name, topic) for name in "AB"], made.log("A"), made.log("B"))


def copy_data(source: Path, to: Path) -> None:
    for each in DATA:
        shutil.rmtree(to / each, ignore_errors=True)
        shutil.copytree(source / each, to / each)


def consume(made: Beside, name: str, topic: str, subscription: str, count: int) -> list[str]:
    """Acknowledge the first ``count`` messages of a subscription, one by one."""
    found = []
    with official(made.brokers[name]) as client:
        consumer = client.subscribe(
            topic,
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for _ in range(count):
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            found.append(message.data().decode())
    return found


def test_what_native_replication_and_links_bring_stands_once_at_each_broker_until_native_replication_ends(
    pair: Beside,
) -> None:
    """The way from native replication to links in the same namespace (docs/migrate.md)."""
    topic = "persistent://public/both/orders"
    path, brokers = topic.replace("://", "/"), pair.brokers
    for name, other in ("AB", "BA"):
        broker, remote = brokers[name], brokers[other]
        urls = {"serviceUrl": remote.admin_url, "brokerServiceUrl": remote.url}
        broker.admin("PUT", f"clusters/{other}", urls)
        broker.admin("POST", "tenants/public", {"adminRoles": [], "allowedClusters": ["A", "B"]})
        broker.admin("PUT", "namespaces/public/both", {"replication_clusters": ["A", "B"]})
        broker.admin("POST", "namespaces/public/both/retention", KEPT)

    def at_both(messages: int) -> None:
        """Check that each broker has ``messages`` messages and no more: each once, and those of a cluster in order."""
        for name in "AB":
            found = read_all(brokers[name], topic, messages)
            assert len(found) == messages == len(set(found)), (bridged(pair, topic), pair.log(name))
            for origin in "AB":
                theirs = [int(body[2:]) for body in found if body[0] == origin]
                assert theirs == list(range(len(theirs))), bridged(pair, topic)

    with pair.away("A"), pair.away("B"):
        for name in "AB":
            publish(pair, name, topic, bodies(name, range(30)))
            publish(pair, name, topic, bodies(name, range(30, 50)), batched=True)
        at_both(100)
    for away, other in ("AB", "BA"):
        with pair.away(away):  # its link brings this after native replication has
            publish(pair, other, topic, bodies(other, range(50, 60)))
            read_all(brokers[away], topic, 110 if away == "A" else 120)
    until(lambda: len(bridged(pair, topic)) == 2, lambda: bridged(pair, topic))
    assert faults(verified(pair, topic)) == {}
    at_both(120)
    assert [each["messages_published"] for each in bridged(pair, topic)] == [0, 0]
    for name in "AB":
        brokers[name].admin("POST", "namespaces/public/both/replication", [name])
    until(
        lambda: not any(brokers[name].admin("GET", f"{path}/stats").get("replication") for name in "AB"),
        "native replication has ended",
    )
    for name in "AB":
        publish(pair, name, topic, bodies(name, range(60, 70)))
    at_both(140)
    left = ["A-3", "A-65", "B-55"]
    with official(brokers["A"]) as client:
        consumer = client.subscribe(topic, "app", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        for message in [consumer.receive(60_000) for _ in range(140)]:
            if message.data().decode() not in left:
                consumer.acknowledge(message)
        until(lambda: backlog(brokers["A"], topic, "app") == 3, lambda: backlog(brokers["A"], topic, "app"))
    until(lambda: backlog(brokers["B"], topic, "app") == 3, lambda: bridged(pair, topic))
    assert sorted(drain(brokers["B"], topic, "app", ConsumerType.Shared)) == left
    until(lambda: backlog(brokers["A"], topic, "app") == 0, lambda: bridged(pair, topic))
    assert faults(verified(pair, topic)) == {}


def test_invariants_1_and_2_a_broker_is_put_back_to_an_older_copy_while_its_worker_is_away(
    pair: Beside, tmp_path: Path
) -> None:
    """More is published there than it has lost, so that no position shows it. Its worker had read what was lost."""
    topic, a, b = "persistent://public/default/restored", pair.brokers["A"], pair.brokers["B"]
    publish(pair, "A", topic, bodies("m", range(10)))
    publish(pair, "B", topic, bodies("n", range(5)))
    same_at_both(pair, topic, 15)
    consume(pair, "A", topic, "app", 3)
    until(lambda: backlog(b, topic, "app") == 12, lambda: backlog(b, topic, "app"))
    a.stop()
    copy_data(a.directory, tmp_path)
    a.start()
    publish(pair, "A", topic, bodies("lost", range(30)))
    publish(pair, "B", topic, bodies("again", range(5)))
    same_at_both(pair, topic, 50)
    consume(pair, "B", topic, "app", 4)
    with pair.away("A"):
        a.stop()
        copy_data(tmp_path, a.directory)
        a.start()
        publish(pair, "A", topic, bodies("new", range(100)))
    here = read_all(b, topic, 150)
    assert [body for body in here if body.startswith(("m", "lost", "new"))] == [
        *bodies("m", range(10)),
        *bodies("lost", range(30)),
        *bodies("new", range(100)),
    ]
    there = read_all(a, topic, 120)
    assert len(there) == 120
    assert [body for body in there if body.startswith("new")] == bodies("new", range(100))
    assert [body for body in there if body.startswith("again")] == bodies("again", range(5))
    until(lambda: of_topic(pair, "A", topic)["errors"] == {}, lambda: of_topic(pair, "A", topic))
    assert len(of_topic(pair, "A", topic)["lives"]) == 2
    # B has 150 entries, 7 of them acknowledged; A lacks the 30 that it lost.
    until(
        lambda: (backlog(a, topic, "app"), backlog(b, topic, "app")) == (113, 143),
        lambda: (backlog(a, topic, "app"), backlog(b, topic, "app")),
    )
    publish(pair, "A", topic, ["last"])
    assert read_all(b, topic, 151)[-1] == "last"
    assert faults(verified(pair, topic)) == {}


def test_invariants_1_and_2_a_broker_is_set_up_anew_beside_a_worker_that_knows_the_former_one(pair: Beside) -> None:
    """Its ledgers begin with the numbers that the former one gave."""
    topic, a, b = "persistent://public/default/anew", pair.brokers["A"], pair.brokers["B"]
    for _ in range(5):  # so that the ledgers of this topic have higher numbers than those of the new brokers
        publish(pair, "A", topic, [])
        a.admin("PUT", f"{topic.replace('://', '/')}/unload")
    publish(pair, "A", topic, bodies("m", range(50)))
    publish(pair, "B", topic, bodies("n", range(20)))
    same_at_both(pair, topic, 70)
    a.stop()
    for each in DATA:
        shutil.rmtree(a.directory / each)
    a.start()
    a.admin("POST", "namespaces/public/default/retention", KEPT)
    publish(pair, "A", topic, bodies("new", range(30)))
    here = read_all(b, topic, 100)
    assert [body for body in here if not body.startswith("n-")] == [*bodies("m", range(50)), *bodies("new", range(30))]
    assert sorted(read_all(a, topic, 50)) == sorted([*bodies("new", range(30)), *bodies("n", range(20))])
    until(lambda: of_topic(pair, "A", topic)["errors"] == {}, lambda: of_topic(pair, "A", topic))
    publish(pair, "B", topic, ["last"])
    assert read_all(a, topic, 51)[-1] == "last"


def test_a_new_store_beside_new_brokers_keeps_what_another_cluster_has(pair: Beside) -> None:
    """Its positions lie above those that are taken, so an operator can have the link go on without a deletion."""
    topic, a, b = "persistent://public/default/both-new", pair.brokers["A"], pair.brokers["B"]
    for _ in range(5):  # so that the ledgers of this topic have higher numbers than those of the new brokers
        publish(pair, "A", topic, [])
        a.admin("PUT", f"{topic.replace('://', '/')}/unload")
    publish(pair, "A", topic, bodies("m", range(20)))
    assert len(read_all(b, topic, 20)) == 20
    pair.kill("A")
    shutil.rmtree(pair.path / "data-A")
    a.stop()
    for each in DATA:
        shutil.rmtree(a.directory / each)
    a.start()
    a.admin("POST", "namespaces/public/default/retention", KEPT)
    publish(pair, "A", topic, bodies("new", range(30)))
    pair.start("A")
    until(lambda: len(of_topic(pair, "A", topic)["lives"]) == 2, lambda: of_topic(pair, "A", topic))

    def gap() -> str:
        links = pair.get("A", "/replication/v1/status")["links"]
        return next((str(each["halted"].get(topic, "")) for each in links if each["to"] == "B"), "")

    until(lambda: "keep-both" in gap(), lambda: pair.get("A", "/replication/v1/status")["links"])
    options = ("-f", "topology.yaml", "--from", "A", "--to", "B", "--topic", topic, "--policy", "keep-both")
    done = forked_commands.run("links", "resolve", *options, cwd=pair.path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_all(b, topic, 50) == [*bodies("m", range(20)), *bodies("new", range(30))]


def test_no_life_begins_where_retention_has_deleted_all_that_was_read(pair: Beside) -> None:
    topic, a, b = "persistent://public/default/expired", pair.brokers["A"], pair.brokers["B"]
    path = topic.replace("://", "/")
    publish(pair, "A", topic, bodies("m", range(10)))
    assert len(read_all(b, topic, 10)) == 10
    until(lambda: backlog(a, topic, "replicator.bridge.A") == 0, "all is read")
    with pair.away("A"):
        a.admin("PUT", f"{path}/unload")
        a.admin("DELETE", f"{path}/truncate")
        until(lambda: read_all(a, topic, 0) == [], "the brokers have deleted all", pause=0.5)
        publish(pair, "A", topic, bodies("new", range(10)))
    assert read_all(b, topic, 20) == [*bodies("m", range(10)), *bodies("new", range(10))]
    assert of_topic(pair, "A", topic)["lives"] == []


def test_messages_may_be_missing_where_brokers_passed_over_the_end_of_a_ledger_and_deleted_it(pair: Beside) -> None:
    """While the worker was away: nobody can say what a ledger had that is gone."""
    topic, a, b = "persistent://public/default/skipped", pair.brokers["A"], pair.brokers["B"]
    path = topic.replace("://", "/")

    def ledgers() -> list[int]:
        return [each["ledgerId"] for each in a.admin("GET", f"{path}/internalStats")["ledgers"]]

    publish(pair, "A", topic, bodies("m", range(16)))
    assert len(read_all(b, topic, 16)) == 16
    until(lambda: backlog(a, topic, "replicator.bridge.A") == 0, "all is read")
    (read,) = ledgers()
    with pair.away("A"):
        publish(pair, "A", topic, bodies("unread", range(20)))
        a.admin("POST", f"{path}/subscription/replicator.bridge.A/skip_all")
        a.admin("PUT", f"{path}/unload")
        until(lambda: len(ledgers()) > 1, ledgers)
        a.admin("DELETE", f"{path}/truncate")
        until(lambda: read not in ledgers(), ledgers)
        publish(pair, "A", topic, bodies("after", range(4)))
    assert read_all(b, topic, 20) == [*bodies("m", range(16)), *bodies("after", range(4))]
    (place,) = of_topic(pair, "A", topic)["may_be_missing"]
    assert (place["after"], place["entries"]) == (f"{read}:15", 20)
    (known,) = command(pair, "acknowledge-missing", topic, "--cluster", "A")
    assert known["places"] == [place]
    assert of_topic(pair, "A", topic)["may_be_missing"] == []
    assert of_topic(pair, "A", topic)["lives"] == []
