"""The names of a cluster in memory: sorted listings, and how what consumers can subscribe to changes."""

from __future__ import annotations

import pytest

from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import CatalogIndex, Change, TopicAdded, TopicRemoved
from replicator.engine.topics.partitions import PartitionedTopic, partition_of

BASE = "persistent://a/b/orders"


def partition(index: int | str) -> str:
    return f"{BASE}-partition-{index}"


def shown(index: CatalogIndex) -> list[str]:
    namespace = index.namespace("a/b")
    return [] if namespace is None else namespace.subscribable


def test_a_topic_appears_and_disappears() -> None:
    index = CatalogIndex()
    assert index.add_topic(BASE) == [TopicAdded(BASE)]
    assert shown(index) == [BASE]
    assert index.remove_topic(BASE) == [TopicRemoved(BASE)]
    assert shown(index) == []
    assert index.namespaces("a") == ["a/b"]


def test_partitions_are_shown_as_one_name_whatever_comes_first() -> None:
    first, last = CatalogIndex(), CatalogIndex()
    changes: list[Change] = [*first.set_partitioned(PartitionedTopic(BASE, 2))]
    for index in range(2):
        changes += first.add_topic(partition(index))
    assert changes == [TopicAdded(BASE)]
    changes = [*last.add_topic(partition(0)), *last.add_topic(partition(1))]
    changes += last.set_partitioned(PartitionedTopic(BASE, 2))
    assert changes[2:] == [TopicRemoved(partition(0)), TopicRemoved(partition(1)), TopicAdded(BASE)]
    assert shown(first) == shown(last) == [BASE]


def test_growth_changes_nothing_but_takes_in_what_becomes_a_partition() -> None:
    index = CatalogIndex()
    index.set_partitioned(PartitionedTopic(BASE, 1))
    index.add_topic(partition(0))
    assert index.set_partitioned(PartitionedTopic(BASE, 2)) == []
    index.add_topic(partition(5))
    assert index.set_partitioned(PartitionedTopic(BASE, 6)) == [TopicRemoved(partition(5))]
    assert shown(index) == [BASE]


def test_partitions_that_are_left_are_topics_by_themselves_again() -> None:
    index = CatalogIndex()
    index.set_partitioned(PartitionedTopic(BASE, 2))
    index.add_topic(partition(0))
    index.add_topic(partition(1))
    changes = index.remove_partitioned(BASE)
    assert changes == [TopicRemoved(BASE), TopicAdded(partition(0)), TopicAdded(partition(1))]
    assert shown(index) == [partition(0), partition(1)]


def test_internal_names_are_never_shown() -> None:
    index = CatalogIndex()
    internal = "persistent://a/b/__orders"
    assert index.add_topic(f"{internal}-partition-0") == []
    assert index.set_partitioned(PartitionedTopic(internal, 1)) == []
    assert index.remove_partitioned(internal) == []
    assert index.remove_topic(f"{internal}-partition-0") == []


@pytest.mark.parametrize(
    ("index", "is_partition"),
    [("0", True), ("2", True), ("3", False), ("02", False), ("", False), ("x", False), ("-1", False), ("1.0", False)],
)
def test_a_partition_is_told_by_its_canonical_index(index: str, is_partition: bool) -> None:
    whole = PartitionedTopic(BASE, 3)
    assert (partition_of(partition(index), {BASE: whole}) is whole) is is_partition


def test_a_name_like_a_partitions_is_a_topic_where_nothing_is_partitioned() -> None:
    index = CatalogIndex()
    assert index.add_topic(partition(0)) == [TopicAdded(partition(0))]
    assert index.partitions_here(BASE) == [partition(0)]
    assert index.partitioned(parse_topic(BASE)) is None


def test_only_what_is_asked_for_is_listed() -> None:
    index = CatalogIndex()
    for name in ("orders", "orders-partition-0", "orders-partition-10", "orders-partition-2", "orders-partitions", "z"):
        index.add_topic(f"persistent://a/b/{name}")
    index.add_topic("persistent://a/b-2/orders-partition-1")
    assert index.partitions_here(BASE) == [partition(0), partition(10), partition(2)]
    assert index.partitions_here("persistent://c/d/orders") == []
    assert index.tenants() == ["a"]
    assert index.namespaces("a") == ["a/b", "a/b-2"]
    assert index.namespaces("c") == []


def test_what_is_not_there_cannot_be_removed_and_what_is_cannot_be_added() -> None:
    index = CatalogIndex()
    index.add_topic(BASE)
    with pytest.raises(AssertionError, match="is there"):
        index.add_topic(BASE)
    with pytest.raises(AssertionError, match="has topics"):
        index.remove_namespace("a/b")
    with pytest.raises(AssertionError, match="has namespaces"):
        index.remove_tenant("a")
    index.remove_topic(BASE)
    with pytest.raises(AssertionError, match="is not there"):
        index.remove_topic(BASE)
    index.remove_namespace("a/b")
    index.remove_tenant("a")
    assert index.tenants() == []
