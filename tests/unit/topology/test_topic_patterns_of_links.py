"""Patterns select topics, whatever names these have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.topology.patterns import is_named, selects

NAMES = st.one_of(st.text(max_size=30), st.builds("persistent://public/default/{}".format, st.text(max_size=30)))


@given(NAMES)
def test_a_name_that_no_topic_may_have_here_stops_nothing(name: str) -> None:
    assert selects((), ("public/other/.*",), name)
    assert not selects(("public/other/.*",), (), name)
    assert not is_named(("public/other/.*",), name)


def test_a_name_that_no_topic_may_have_here_is_selected_as_any() -> None:
    odd = "persistent://public/default/order service"
    assert selects(("public/default",), (), odd)
    assert not selects((), ("public/default/order service",), odd)


def test_a_partition_goes_with_its_topic() -> None:
    assert selects(("public/default/t",), (), "persistent://public/default/t-partition-3")
