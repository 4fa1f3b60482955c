"""Links that may append, and links that a change of the topology cuts off."""

from __future__ import annotations

from replicator.api.linked_sources import IncomingLink, LinkedSources


def link(source: str, name: str = "", *origins: str) -> IncomingLink:
    return IncomingLink(source, name, frozenset({source, *origins}))


def test_links_of_one_cluster_are_told_apart_by_name() -> None:
    sources = LinkedSources([link("us-east"), link("us-east", "bulk", "ap-south")])
    assert sources.find("us-east") == link("us-east")
    assert sources.find("us-east", "bulk") == link("us-east", "bulk", "ap-south")
    assert sources.find("us-east", "small") is None
    assert "us-east" in sources
    assert "eu-west" not in sources


def test_only_a_link_that_is_gone_or_may_bring_less_is_cut_off() -> None:
    sources = LinkedSources([link("stays"), link("goes"), link("more"), link("less", "", "x"), link("two", "a")])
    cut_off = sources.replace([link("stays"), link("more", "", "x"), link("less"), link("two", "b"), link("new")])
    assert cut_off == {("goes", ""), ("less", ""), ("two", "a")}
    assert sources.find("goes") is None
    assert sources.find("new") is not None
