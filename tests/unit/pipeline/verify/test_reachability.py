"""Between which clusters a topic is compared."""

from __future__ import annotations

from replicator.pipeline.verify.reachability import Reachability, reachability_of
from replicator.topology import Link

TOPIC = "persistent://public/default/t"
OTHER = "persistent://shop/eu/orders"
A_TO_B = frozenset({("a", "b")})
NOTHING = Reachability(frozenset(), frozenset())


def test_a_topic_that_no_link_lets_through_is_not_compared() -> None:
    links = [Link("a", "b", exclude=("shop/.*",))]
    assert reachability_of(TOPIC, links, {}) == Reachability(A_TO_B, A_TO_B)
    assert reachability_of(OTHER, links, {}) == NOTHING
    assert reachability_of(OTHER, [*links, Link("a", "b", name="shop", topics=("shop/eu",))], {}) == Reachability(
        A_TO_B, A_TO_B
    )


def test_of_several_links_of_a_pair_the_first_that_carries_a_topic_says_whether_it_is_forwarded() -> None:
    links = [Link("c", "a"), Link("a", "b", name="first"), Link("a", "b", name="second", forward=True)]
    assert ("c", "b") not in reachability_of(TOPIC, links, {}).messages
    links[1] = Link("a", "b", name="first", topics=("shop/.*",))
    assert ("c", "b") in reachability_of(TOPIC, links, {}).messages


def test_a_namespace_is_compared_where_its_clusters_let_it_go_from_each_cluster() -> None:
    links = [Link("a", "b"), Link("b", "a"), Link("a", "c")]
    assert reachability_of(TOPIC, links, {"a": ("b",), "b": None}).messages == {("a", "b"), ("b", "a")}
    assert reachability_of(TOPIC, links, {"a": (), "b": ()}) == NOTHING


def test_what_is_forwarded_round_a_ring_is_compared_with_its_origin_and_acknowledgements_link_by_link() -> None:
    ring = [Link("a", "b", forward=True), Link("b", "c", forward=True), Link("c", "a", forward=True)]
    ways = reachability_of(TOPIC, ring, {})
    assert len(ways.messages) == 6
    assert ways.acks == {("a", "b"), ("b", "c"), ("c", "a")}
    assert ways.forwarded == {("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")}
