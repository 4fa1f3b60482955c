"""The path check of links against an enumeration of all simple paths: invariant 4, and that nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

from hypothesis import given
from hypothesis import strategies as st

from replicator.topology import Link
from replicator.topology.paths import origins_over, passed_on_by, reached_from, reaching

NAMES = "abcde"

links_of_some_topology = st.lists(
    st.builds(Link, st.sampled_from(NAMES), st.sampled_from(NAMES), forward=st.booleans()).filter(
        lambda link: link.source != link.destination
    ),
    max_size=14,
    unique_by=lambda link: link.key,
)


def simple_paths(links: Sequence[Link]) -> set[tuple[str, ...]]:
    """Return every path of a message: a sequence of different clusters, over links that all forward except the
    first."""
    forwards = {(link.source, link.destination): link.forward for link in links}
    return {
        path
        for size in range(2, len(NAMES) + 1)
        for path in permutations(NAMES, size)
        if (path[0], path[1]) in forwards and all(forwards.get(hop, False) for hop in pairwise(path[1:]))
    }


@given(links_of_some_topology)
def test_invariant_4_a_link_carries_an_origin_exactly_where_a_simple_path_leads_over_it(links: list[Link]) -> None:
    paths = simple_paths(links)
    for link in links:
        end = (link.source, link.destination)
        assert origins_over(link, links) == {path[0] for path in paths if path[-2:] == end}


@given(links_of_some_topology)
def test_who_is_reached_is_who_stands_at_the_end_of_a_path(links: list[Link]) -> None:
    paths = simple_paths(links)
    for name in NAMES:
        assert reached_from(name, links) == {path[-1] for path in paths if path[0] == name}
        assert reaching(name, links) == {path[0] for path in paths if path[-1] == name}
        assert passed_on_by(name, links) == {path[-2] for path in paths if path[0] == name and len(path) > 2}


def ring(names: str, *, forward: bool = True) -> list[Link]:
    return [Link(name, after, forward=forward) for name, after in zip(names, names[1:] + names[0], strict=True)]


def test_in_a_ring_a_link_carries_all_but_what_its_destination_originated() -> None:
    links = ring("abcde")
    assert origins_over(links[0], links) == set("acde")
    assert reached_from("a", links) == set("bcde")


def test_without_forwarding_a_link_carries_its_source_alone() -> None:
    links = ring("abc", forward=False)
    assert origins_over(links[0], links) == {"a"}
    assert reached_from("a", links) == {"b"}


def test_spokes_reach_each_other_through_a_hub_that_forwards() -> None:
    spokes = [Link(name, "a") for name in "bcd"]
    hub = [Link("a", name, forward=True) for name in "bcd"]
    assert origins_over(hub[0], spokes + hub) == set("acd")
    assert reached_from("b", spokes + hub) == set("acd")
