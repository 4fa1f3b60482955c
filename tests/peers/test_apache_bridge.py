"""The contracts of the bridge (``tests/bridge_contract*.py``) with real Apache Pulsar brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_contract import *  # noqa: F403 - all of its tests
from bridge_contract import LINKS, bridged, publish
from bridge_contract_rare import *  # noqa: F403 - all of its tests
from bridge_contract_rare import stands
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
