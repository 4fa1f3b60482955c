"""Subscribers of several topics that are not partitioned, as the registry finds them."""

from __future__ import annotations

from replicator.engine.subscriptions.failover import FailoverRegistry


class Member:
    def __init__(self, registry: FailoverRegistry) -> None:
        self.name = "sub"
        self.registry = registry
        self.names: list[str] = []
        self.spread = False

    def consumer_names(self) -> list[str]:
        return self.names

    def spread_over_topics(self, spread: bool) -> None:
        self.spread = spread

    def connect(self, name: str) -> None:
        self.names.append(name)
        self.registry.add(self, name)

    def disconnect(self, name: str) -> None:
        self.names.remove(name)
        self.registry.remove(self, name)


def test_one_topic_is_not_many_however_many_consumers_it_has() -> None:
    topic = Member(FailoverRegistry())
    for name in ("a", "b", "a"):
        topic.connect(name)
    assert not topic.spread


def test_a_second_topic_with_the_same_consumer_changes_both_and_back() -> None:
    registry = FailoverRegistry()
    one, other, third = Member(registry), Member(registry), Member(registry)
    one.connect("a")
    other.connect("b")
    assert not one.spread
    assert not other.spread
    other.connect("a")
    assert one.spread
    assert other.spread
    third.connect("a")
    other.disconnect("a")
    assert one.spread
    assert not other.spread
    third.disconnect("a")
    assert not one.spread
