"""A failback of a cluster beside brokers, which workers of ours play, with a topic that has only a subscription."""

from __future__ import annotations

from pathlib import Path

from gateway_broker import gateways_of
from peers.apache_support import backlog, beside, official, until
from pulsar import ConsumerType, InitialPosition

EMPTY = "persistent://public/default/empty"


def test_a_topic_that_only_has_a_subscription_is_in_nobodys_way(tmp_path: Path) -> None:
    """C, which serves, writes markers into it that no link carries: nothing that A could lack."""
    links = "[{between: [A, C], forward: true}]"
    with gateways_of(tmp_path, "A") as brokers, beside(tmp_path, "AC", brokers, links) as made:
        with official(brokers["A"]) as client:
            client.subscribe(EMPTY, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)

        def at_c() -> list[str]:
            topics: list[str] = made.get("C", "/admin/v2/persistent/public/default")
            return [topic for topic in topics if topic == EMPTY]

        until(at_c, lambda: made.apache("A"))
        assert made.report("failover", "--from", "A", "--to", "C")["outcome"] == "done"
        report = made.report("failback", "--to", "A")
        assert report["outcome"] == "done"
        assert [each["equal"] for topic in report["topics"] for each in topic["subscriptions"]] == [True]
        assert backlog(brokers["A"], EMPTY, "work") == 0
