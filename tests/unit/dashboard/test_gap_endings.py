"""The ways to end a gap that its page offers: those that the link takes, the one that loses nothing first."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.dashboard.link_actions import resolutions_of
from replicator.dashboard.pages import TOLD
from replicator.engine.lineage import Judgement
from replicator.links.gaps import KINDS, POLICIES, Gap, PolicyRefused, policies_for


def offered(gap: dict[str, Any]) -> list[str]:
    return [ending.policy for ending in resolutions_of(gap)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_offers_what_ends_the_kind_of_its_gap(kind: str) -> None:
    assert offered({"kind": kind}) == policies_for(kind) == offered({"kind": kind, "policies": policies_for(kind)})


@pytest.mark.parametrize(
    ("gap", "policies"),
    [
        (Gap("made-anew", "a", "two lives"), ["keep-both", "copy-anew"]),
        (Gap("made-anew", "a", "two lives", refused=PolicyRefused("copy-anew", "no")), ["keep-both"]),
        (Gap("made-anew", "a", "two lives", judgement=Judgement.LOST), ["keep-both"]),
        (Gap("lost-data", "a", "more there", reclaim_only=True), []),
    ],
)
def test_a_page_offers_nothing_that_was_refused_or_deletes_what_may_be_the_only_copy(
    gap: Gap, policies: list[str]
) -> None:
    assert offered({"kind": gap.kind, "policies": gap.policies()}) == policies
    assert not any(gap.allows(policy, asked=True) for policy in POLICIES if policy not in policies and not gap.refused)


def test_a_page_says_what_each_way_did() -> None:
    assert set(POLICIES) <= TOLD.keys()
