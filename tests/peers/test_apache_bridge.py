"""The contracts of the bridge (``tests/support/bridge_contract*.py``) with real Apache Pulsar brokers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import forked_commands
import pytest
from bridge_contract import *  # noqa: F403 - all of its tests
from bridge_contract import LINKS, bridged, faults, publish, state_travels, verified
from bridge_contract_rare import *  # noqa: F403 - all of its tests
from bridge_contract_rare import stands
from bridge_contract_remedies import *  # noqa: F403 - all of its tests
from bridge_contract_starts import *  # noqa: F403 - all of its tests
from peers.apache_support import Beside, beside, bodies, brokers_of, read_all, until


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Two brokers, a worker beside each, linked both ways; and behind A a cluster of kind embedded."""
    path = tmp_path_factory.mktemp("pair")
    with (
        brokers_of(path, "A", "B", backlogQuotaCheckIntervalInSeconds="1") as brokers,
        beside(path, "ABC", brokers, LINKS) as made,
    ):
        yield made


def test_invariant_2_what_brokers_have_deleted_before_it_was_read_halts_the_topic_and_is_named(pair: Beside) -> None:
    """They delete whole ledgers, where workers of ours in their place keep what lies in the same file."""
    for broker in pair.brokers.values():
        broker.admin("PUT", "namespaces/public/gone", {"replication_clusters": [broker.cluster]})
    topic = "persistent://public/gone/deleted"
    path, expire = topic.replace("://", "/"), "subscription/replicator.bridge.A/expireMessages"
    broker = pair.brokers["A"]

    def ledgers() -> list[int]:
        return [each["ledgerId"] for each in broker.admin("GET", f"{path}/internalStats")["ledgers"]]

    publish(pair, "A", topic, bodies("m", range(5)))
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))
    read = ledgers()[-1]
    with pair.away("A"):
        publish(pair, "A", topic, bodies("gone", range(5)))
        broker.admin("PUT", f"{path}/unload")
        publish(pair, "A", topic, bodies("gone", range(5, 10)))
        place = {"ledgerId": ledgers()[-1], "entryId": 2, "partitionIndex": -1}
        broker.admin("POST", f"{path}/{expire}", place)
        until(lambda: stands(pair, topic) == f"{place['ledgerId']}:2", lambda: stands(pair, topic))
        broker.admin("DELETE", f"{path}/truncate")
        until(lambda: read not in ledgers(), ledgers)
        until(lambda: stands(pair, topic) == f"{place['ledgerId']}:4", lambda: stands(pair, topic))
    until(
        lambda: any(
            each["halted"] and "passed over messages" in each["errors"].get("reading", "")
            for each in bridged(pair, topic)
        ),
        lambda: bridged(pair, topic),
    )
    assert read_all(pair.brokers["B"], topic, 5) == bodies("m", range(5))


def test_names_of_subscriptions_that_the_admin_api_decodes_twice_travel_too(pair: Beside) -> None:
    state_travels(pair, "50%", "a+b", "100%25+ sure")


def of_topic(made: Beside, topic: str) -> Any:
    """Return the status of a topic at B's worker."""
    return next((each for each in made.apache("B")["topics"] if each["topic"] == topic), {"errors": {}})


def test_an_entry_that_a_policy_keeps_out_halts_its_topic_is_named_and_follows_when_it_is_let_in(pair: Beside) -> None:
    """In the middle of messages, so that none behind it is under way; other topics of the connection go on."""
    topic, other = "persistent://public/default/limited", "persistent://public/default/unlimited"
    path = topic.replace("://", "/")
    publish(pair, "A", topic, ["first"])
    assert read_all(pair.brokers["B"], topic, 1) == ["first"]
    policies = pair.brokers["B"]
    policies.admin("POST", f"{path}/maxMessageSize", 2000)
    until(lambda: policies.admin("GET", f"{path}/maxMessageSize") == 2000, "the policy is there")
    large = "large" + 9_000 * "x"
    policies.admin("PUT", f"{path}/unload")  # the next producer asks for the limits
    publish(pair, "A", topic, [*bodies("a", range(5)), large, *bodies("b", range(3))])
    publish(pair, "A", other, bodies("o", range(5)))
    until(
        lambda: "maxMessageSize is 2000" in of_topic(pair, topic)["errors"].get("publishing", ""),
        lambda: of_topic(pair, topic),
    )
    assert of_topic(pair, topic)["halted"]
    assert read_all(policies, other, 5) == bodies("o", range(5))
    assert read_all(policies, topic, 6) == ["first", *bodies("a", range(5))]
    policies.admin("DELETE", f"{path}/maxMessageSize")
    assert read_all(policies, topic, 10) == ["first", *bodies("a", range(5)), large, *bodies("b", range(3))]
    until(lambda: of_topic(pair, topic)["errors"] == {}, lambda: of_topic(pair, topic))
    assert of_topic(pair, topic)["out_of_order"]["entries"] == 0


def test_an_operator_passes_over_one_entry_that_brokers_refuse_and_it_is_recorded_as_left_out(pair: Beside) -> None:
    topic = "persistent://public/default/passed-over"
    path, broker = topic.replace("://", "/"), pair.brokers["B"]
    publish(pair, "A", topic, ["first"])
    assert read_all(broker, topic, 1) == ["first"]
    broker.admin("POST", f"{path}/maxMessageSize", 2000)
    until(lambda: broker.admin("GET", f"{path}/maxMessageSize") == 2000, "the policy is there")
    broker.admin("PUT", f"{path}/unload")  # the next producer asks for the limits
    large = "large" + 9_000 * "x"
    publish(pair, "A", topic, [*bodies("a", range(3)), large, *bodies("b", range(3)), large])

    def refused() -> Any:
        return of_topic(pair, topic).get("refused")

    until(refused, lambda: of_topic(pair, topic))
    first = refused()["entry"]

    def pass_over(entry: str) -> subprocess.CompletedProcess[str]:
        named = ("--from", "A", "--to", "B", "--topic", topic, "--entry", entry, "--policy", "skip-and-record")
        return forked_commands.run("links", "resolve", "-f", str(pair.file), *named, cwd=pair.path)

    wrong = pass_over("1:999999")
    assert wrong.returncode != 0
    assert "the brokers do not refuse the entry 1:999999 of A, so it is not left out" in wrong.stderr
    assert f"the entry that they refuse now is: {first}" in wrong.stderr
    done = pass_over(first)
    assert done.returncode == 0, done.stderr
    until(lambda: refused() and refused()["entry"] != first, lambda: of_topic(pair, topic))
    assert read_all(broker, topic, 7) == ["first", *bodies("a", range(3)), *bodies("b", range(3))]
    done = pass_over(refused()["entry"])
    assert done.returncode == 0, done.stderr
    until(
        lambda: of_topic(pair, topic)["errors"] == {} and not of_topic(pair, topic)["publishing_waits"],
        lambda: of_topic(pair, topic),
    )
    with pair.away("B"):
        publish(pair, "A", topic, ["last"])
    assert read_all(broker, topic, 8) == ["first", *bodies("a", range(3)), *bodies("b", range(3)), "last"]
    assert [each["bytes"] > 9_000 for each in of_topic(pair, topic)["left_out"]] == [True, True]
    assert of_topic(pair, topic)["out_of_order"]["entries"] == 0
    assert faults(verified(pair, topic)) == {}


def test_what_a_broker_takes_behind_an_entry_that_it_refuses_is_not_sent_again_and_is_named(pair: Beside) -> None:
    """The worker does not know of the policy yet."""
    topic = "persistent://public/default/limited-at-once"
    path, broker = topic.replace("://", "/"), pair.brokers["B"]
    publish(pair, "A", topic, ["first"])
    assert read_all(broker, topic, 1) == ["first"]
    large = "large" + 9_000 * "x"
    broker.admin("POST", f"{path}/maxMessageSize", 2000)
    until(lambda: broker.admin("GET", f"{path}/maxMessageSize") == 2000, "the policy is there")
    publish(pair, "A", topic, [*bodies("a", range(5)), large, *bodies("b", range(3))])
    until(
        lambda: "refuse the entry" in of_topic(pair, topic)["errors"].get("publishing", ""),
        lambda: of_topic(pair, topic),
    )
    broker.admin("DELETE", f"{path}/maxMessageSize")
    found = read_all(broker, topic, 10)
    assert sorted(found) == sorted(["first", *bodies("a", range(5)), large, *bodies("b", range(3))])
    assert [body for body in found if body != large] == ["first", *bodies("a", range(5)), *bodies("b", range(3))]
    late = len(found) - 1 - found.index(large) == 0
    until(lambda: of_topic(pair, topic)["out_of_order"]["entries"] == late, lambda: of_topic(pair, topic))


def test_brokers_that_let_no_consumer_make_a_subscription_are_read(pair: Beside) -> None:
    for broker in pair.brokers.values():
        broker.admin("PUT", "namespaces/public/strict", {"replication_clusters": [broker.cluster]})
        kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
        broker.admin("POST", "namespaces/public/strict/retention", kept)
        broker.admin(
            "POST", "namespaces/public/strict/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}
        )
    topic = "persistent://public/strict/orders"
    publish(pair, "A", topic, bodies("m", range(100)))
    assert read_all(pair.brokers["B"], topic, 100) == bodies("m", range(100))
