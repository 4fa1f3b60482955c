"""Failover and failback beside brokers, which workers of ours play, with a topic that has only a subscription."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_broker import gateways_of
from peers.apache_support import backlog, beside, official, until
from pulsar import ConsumerType, InitialPosition

EMPTY = "persistent://public/default/empty"


@pytest.mark.parametrize("beside_brokers", ["A", "AC"], ids=["to an embedded cluster", "to brokers"])
def test_a_topic_that_only_has_a_subscription_is_in_nobodys_way(tmp_path: Path, beside_brokers: str) -> None:
    """C, which serves, writes markers into it that no link carries: nothing that A could lack. Where C is beside
    brokers, these get the topic with its first message."""
    links = "[{between: [A, C], forward: true}]"
    with gateways_of(tmp_path, *beside_brokers) as brokers, beside(tmp_path, "AC", brokers, links) as made:
        with official(brokers["A"]) as client:
            client.subscribe(EMPTY, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)

        def at_c() -> bool:
            topics: list[str] = made.get("C", "/admin/v2/persistent/public/default")
            return EMPTY in topics

        until(at_c, lambda: made.apache("A"))
        for report in (made.report("failover", "--from", "A", "--to", "C"), made.report("failback", "--to", "A")):
            assert report["outcome"] == "done"
            assert [each["equal"] for topic in report["topics"] for each in topic["subscriptions"]] == [True]
        assert backlog(brokers["A"], EMPTY, "work") == 0
