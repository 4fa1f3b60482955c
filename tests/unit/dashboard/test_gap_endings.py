"""The ways to end a gap that its page offers: those that the link takes, the one that loses nothing first."""

from __future__ import annotations

import pytest

from replicator.dashboard.link_actions import ENDINGS
from replicator.dashboard.pages import TOLD
from replicator.links.gaps import KINDS, POLICIES, policies_for


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_offers_what_ends_the_kind_of_its_gap(kind: str) -> None:
    assert [ending.policy for ending in ENDINGS[kind]] == policies_for(kind)


def test_a_page_says_what_each_way_did() -> None:
    assert set(POLICIES) <= TOLD.keys()
